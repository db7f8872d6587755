//! Changes of ANA states and of the hosts of a namespace, from one
//! model to the next.

use nvmeof_wire::aer::AsyncEvent;
use nvmeof_wire::features::AsyncEventConfig;
use nvmeof_wire::log::ana::AnaState;
use nvmeof_wire::registers::Cc;

use super::*;
use crate::admin::tests::access::{page, served, two_groups};
use crate::admin::tests::events::{changed, enable, event, hold};
use crate::testing::port_in;
use crate::{AnaGroup, NamespaceState, PortSpec};

const OTHER: &str = "nqn.2026-11.org.example:other";

/// Enables namespace and ANA notices.
fn listen(host: &mut Host) {
    enable(host, AsyncEventConfig::NSAN | AsyncEventConfig::ANACN);
    for _ in 0..4 {
        hold(host);
    }
}

fn events(host: &mut Host) -> Vec<AsyncEvent> {
    std::iter::from_fn(|| event(host)).collect()
}

/// Reads the Changed Namespace List, which clears the event.
fn changed_namespaces(host: &mut Host) -> Vec<u32> {
    let page = GetLogPage::new(LogId::CHANGED_NAMESPACES, 0, 0, 4096);
    changed(&host.read(page.to_sqe(), 4096).data)
}

fn two_ports(first: AnaState, second: AnaState) -> [PortSpec; 2] {
    [port_in(1, first), port_in(2, second)]
}

#[test]
fn ana_state_changes_for_hosts_of_that_port() {
    let ports = two_ports(AnaState::OPTIMIZED, AnaState::NON_OPTIMIZED);
    let target = served(&ports, two_groups());
    let (mut first, mut first_io) = Host::ready_at(&target, &ports[0], HOST);
    let (mut second, mut second_io) = Host::ready_at(&target, &ports[1], HOST);
    listen(&mut first);
    listen(&mut second);
    let next = two_ports(AnaState::INACCESSIBLE, AnaState::NON_OPTIMIZED);
    let applied = apply_with(&target, &next, &[two_groups()]);
    let lines: Vec<_> = applied.changes.iter().map(ToString::to_string).collect();
    assert_eq!(
        lines,
        ["port 127.0.0.1:4420: ANA group 2 is changed from optimized to inaccessible"]
    );
    assert_eq!(events(&mut first), [AsyncEvent::ANA_CHANGED]);
    assert_eq!(events(&mut second), []);
    assert_eq!(read_of(&mut first_io, 2), Status::ANA_INACCESSIBLE);
    assert_eq!(read_of(&mut first_io, 1), Status::SUCCESS);
    assert_eq!(read_of(&mut second_io, 2), Status::SUCCESS);
    // Once, until the page is read.
    let next = two_ports(AnaState::CHANGE, AnaState::NON_OPTIMIZED);
    let _ = apply_with(&target, &next, &[two_groups()]);
    assert_eq!(events(&mut first), []);
    let groups = vec![
        (1, AnaState::OPTIMIZED, vec![1, 4], 0),
        (2, AnaState::CHANGE, vec![2, 3], 2),
    ];
    assert_eq!(page(&mut first), (2, groups));
    assert_eq!(page(&mut second).0, 0);
    let _ = apply_with(&target, &ports, &[two_groups()]);
    assert_eq!(events(&mut first), [AsyncEvent::ANA_CHANGED]);
    assert_eq!(read_of(&mut first_io, 2), Status::SUCCESS);
    assert_eq!(page(&mut first).0, 3);
    // A Controller Level Reset restarts the counts.
    first.set_cc(0);
    first.set_cc(Cc::ENABLE.0);
    assert_eq!(page(&mut first).0, 0);
}

#[test]
fn ana_group_change_sends_two_notices() {
    let ports = two_ports(AnaState::OPTIMIZED, AnaState::INACCESSIBLE);
    let target = served(&ports, two_groups());
    let (mut host, mut io) = Host::ready_at(&target, &ports[1], HOST);
    listen(&mut host);
    let mut moved = two_groups();
    moved.namespaces[3].ana_group = 2;
    let applied = apply_with(&target, &ports, &[moved]);
    assert_eq!(
        applied.changes[0].to_string(),
        format!("{SUBNQN}: namespace 4 is changed: ana_group")
    );
    assert_eq!(events(&mut host), [AsyncEvent::NAMESPACE_CHANGED]);
    assert_eq!(changed_namespaces(&mut host), [4]);
    assert_eq!(events(&mut host), [AsyncEvent::ANA_CHANGED]);
    assert_eq!(read_of(&mut io, 4), Status::ANA_INACCESSIBLE);
    let groups = vec![
        (1, AnaState::OPTIMIZED, vec![1], 1),
        (2, AnaState::INACCESSIBLE, vec![2, 3, 4], 1),
    ];
    assert_eq!(page(&mut host), (1, groups));
}

#[test]
fn takeover_by_another_gateway_is_an_ana_change_only() {
    let served_by = |state: NamespaceState, blocks: u64| {
        let mut spec = two_groups();
        for namespace in spec.namespaces.iter_mut().filter(|it| it.ana_group == 2) {
            namespace.state = state;
            namespace.blocks = blocks;
            // Each takeover opens the images again.
            namespace.store += 100;
        }
        let ana = match state {
            NamespaceState::Ready => AnaState::OPTIMIZED,
            _ => AnaState::INACCESSIBLE,
        };
        (two_ports(ana, ana), [spec])
    };
    let (ports, [spec]) = served_by(NamespaceState::Standby, 1000);
    let target = served(&ports, spec);
    let (mut host, _io) = Host::ready_at(&target, &ports[0], HOST);
    listen(&mut host);
    for state in [NamespaceState::Ready, NamespaceState::Standby] {
        let (ports, specs) = served_by(state, 1000);
        let _ = apply_with(&target, &ports, &specs);
        assert_eq!(events(&mut host), [AsyncEvent::ANA_CHANGED], "{state:?}");
        let _ = page(&mut host);
    }
    // The former owner had another size.
    let (ports, specs) = served_by(NamespaceState::Ready, 2000);
    let _ = apply_with(&target, &ports, &specs);
    assert_eq!(events(&mut host), [AsyncEvent::NAMESPACE_CHANGED]);
    assert_eq!(changed_namespaces(&mut host), [2, 3]);
    assert_eq!(events(&mut host), [AsyncEvent::ANA_CHANGED]);
}

#[test]
fn added_namespace_is_no_ana_change() {
    let ports = two_ports(AnaState::OPTIMIZED, AnaState::INACCESSIBLE);
    let target = served(&ports, two_groups());
    let (mut host, mut io) = Host::ready_at(&target, &ports[1], HOST);
    listen(&mut host);
    let mut more = two_groups();
    more.namespaces.push(crate::NamespaceSpec {
        ana_group: 2,
        ..namespace(5)
    });
    let _ = apply_with(&target, &ports, &[more]);
    assert_eq!(events(&mut host), [AsyncEvent::NAMESPACE_CHANGED]);
    assert_eq!(read_of(&mut io, 5), Status::ANA_INACCESSIBLE);
    // The page changed nevertheless.
    assert_eq!(page(&mut host).0, 1);
}

#[test]
fn host_is_notified_of_accessible_namespaces_only() {
    let target = served(&[port()], two_groups());
    let (mut host, mut io) = Host::ready_at(&target, &port(), HOST);
    let (mut other, mut its_io) = Host::ready_at(&target, &port(), OTHER);
    listen(&mut host);
    listen(&mut other);
    let for_other = |blocks| {
        let mut spec = two_groups();
        spec.namespaces[0].hosts = Some(vec![OTHER.into()]);
        spec.namespaces[0].blocks = blocks;
        spec
    };
    // One host loses access, and nothing changes for the others.
    let applied = apply_with(&target, &[port()], &[for_other(1000)]);
    assert_eq!(applied.disconnected, []);
    assert_eq!(
        applied.changes[0].to_string(),
        format!("{SUBNQN}: namespace 1 is changed: hosts")
    );
    assert_eq!(events(&mut host), [AsyncEvent::NAMESPACE_CHANGED]);
    assert_eq!(changed_namespaces(&mut host), [1]);
    assert_eq!(active(&mut host), [2, 3, 4]);
    assert_eq!(read_of(&mut io, 1), Status::INVALID_FIELD);
    assert_eq!(events(&mut other), []);
    assert_eq!(read_of(&mut its_io, 1), Status::SUCCESS);
    // Only the other host is notified of its size.
    let _ = apply_with(&target, &[port()], &[for_other(2000)]);
    assert_eq!(events(&mut host), []);
    assert_eq!(changed_namespaces(&mut host), []);
    assert_eq!(events(&mut other), [AsyncEvent::NAMESPACE_CHANGED]);
    assert_eq!(changed_namespaces(&mut other), [1]);
    // It returns, with the size that the other host saw.
    let mut all = for_other(2000);
    all.namespaces[0].hosts = None;
    let _ = apply_with(&target, &[port()], &[all]);
    assert_eq!(events(&mut host), [AsyncEvent::NAMESPACE_CHANGED]);
    assert_eq!(read_of(&mut io, 1), Status::SUCCESS);
    assert_eq!(events(&mut other), []);
}

#[test]
fn groups_of_a_removed_port_are_inaccessible() {
    let ports = two_ports(AnaState::OPTIMIZED, AnaState::OPTIMIZED);
    let target = served(&ports, two_groups());
    let (_admin, mut io) = Host::ready_at(&target, &ports[1], HOST);
    assert_eq!(read_of(&mut io, 1), Status::SUCCESS);
    let _ = apply_with(&target, &ports[..1], &[two_groups()]);
    assert_eq!(read_of(&mut io, 1), Status::ANA_INACCESSIBLE);
}

#[test]
fn explicit_default_ana_state_is_no_change() {
    let target = served(&[port()], two_groups());
    let (mut host, _io) = Host::ready_at(&target, &port(), HOST);
    listen(&mut host);
    let named = PortSpec {
        ana_groups: vec![AnaGroup {
            id: 2,
            state: AnaState::OPTIMIZED,
        }],
        ..port()
    };
    let applied = apply_with(&target, &[named], &[two_groups()]);
    assert_eq!(applied, Applied::default());
    assert_eq!(events(&mut host), []);
    assert_eq!(page(&mut host).0, 0);
}
