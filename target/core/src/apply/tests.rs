//! Effects of model changes on hosts.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests"
)]

mod access;
mod ports;

use nvmeof_wire::admin::{Cns, GetLogPage, LogId, NSID_ALL};
use nvmeof_wire::fabrics::Connect;
use nvmeof_wire::identify::{IdentifyNamespace, NamespaceList};
use nvmeof_wire::log::DiscoveryHeader;
use nvmeof_wire::nvm::{DatasetManagement, DsmRange, Io, flush};
use nvmeof_wire::opcode::io;
use nvmeof_wire::{Nqn, Sqe, Status};
use zerocopy::{FromBytes, IntoBytes};

use super::*;
use crate::NamespaceState;
use crate::testing::{
    CLOSED, HOST, Host, NOW, PEER, SUBNQN, apply, apply_with, change_a_namespace, closed,
    connect_data, keyed, namespace, port, subsystem, target,
};
use crate::{
    Action, ChangeKind, CloseCause, Event, Executed, IoKind, Limits, Order, Request, SubsystemSpec,
};

fn nqn(text: &str) -> Nqn {
    Nqn::new(text).unwrap()
}

fn read(nsid: u32, slba: u64) -> Sqe {
    Io::new(nsid, slba, 1).to_sqe(io::READ)
}

fn read_of(host: &mut Host, nsid: u32) -> Status {
    host.read(read(nsid, 0), 512).status()
}

fn active(admin: &mut Host) -> Vec<u32> {
    let completion = admin.identify(Cns::ACTIVE_NAMESPACES, 0);
    let list = NamespaceList::read_from_bytes(&completion.data).unwrap();
    list.iter().collect()
}

fn with(namespaces: &[u32]) -> SubsystemSpec {
    SubsystemSpec {
        namespaces: namespaces.iter().copied().map(namespace).collect(),
        ..subsystem()
    }
}

#[test]
fn namespaces_come_and_go_under_a_host() {
    let target = target();
    let (mut admin, mut io) = Host::ready(&target);
    assert_eq!(read_of(&mut io, 7), Status::INVALID_FIELD);
    let applied = apply(&target, &[with(&[1, 7]), closed()]);
    assert_eq!(applied.disconnected, []);
    let kinds: Vec<_> = applied.changes.into_iter().map(|one| one.kind).collect();
    assert_eq!(
        kinds,
        [
            // Namespace 3 is removed, 7 is added.
            ChangeKind::Removed,
            ChangeKind::Added
        ]
    );
    assert_eq!(read_of(&mut io, 7), Status::SUCCESS);
    assert_eq!(io.ops.last().unwrap().store, 70);
    assert_eq!(read_of(&mut io, 3), Status::INVALID_FIELD);
    assert_eq!(active(&mut admin), [1, 7]);
    assert_eq!(
        admin.identify(Cns::DESCRIPTORS, 7).status(),
        Status::SUCCESS
    );
}

#[test]
fn resized_namespace_has_its_new_size() {
    let target = target();
    let (mut admin, mut io) = Host::ready(&target);
    let last = read(1, 1000);
    assert_eq!(io.read(last, 512).status(), Status::LBA_OUT_OF_RANGE);
    change_a_namespace(&target);
    assert_eq!(io.read(last, 512).status(), Status::SUCCESS);
    let completion = admin.identify(Cns::NAMESPACE, 1);
    let id = IdentifyNamespace::read_from_bytes(&completion.data)
        .ok()
        .unwrap();
    assert_eq!(id.nsze.get(), 1001);
}

#[test]
fn command_completes_on_its_original_store() {
    let target = target();
    let (_admin, mut io) = Host::ready(&target);
    let ranges = [DsmRange::new(0, 1), DsmRange::new(8, 1)];
    let command = DatasetManagement {
        nsid: 1,
        ranges: 2,
        deallocate: true,
    };
    let mut sqe = command.to_sqe();
    sqe.dptr = keyed(32).to_descriptor();
    let mut request = Request::default();
    let action = io.queue.begin(io.now, &sqe.to_bytes(), &mut request);
    assert!(matches!(action, Action::Pull { .. }), "{action:?}");
    assert_eq!(request.store(), Some(10));
    // The namespace gets another backing store, which new commands use.
    let mut other = with(&[1]);
    other.namespaces[0].store = 99;
    let _ = apply(&target, &[other]);
    assert_eq!(read_of(&mut io, 1), Status::SUCCESS);
    assert_eq!(io.ops.last().unwrap().store, 99);
    // The first command continues on the old one.
    let data = ranges.as_bytes();
    let mut action = io.queue.step(io.now, &mut request, Event::Pulled(data));
    for offset in [0, 8 * 512] {
        let Action::Execute(op) = action else {
            panic!("{action:?}");
        };
        assert_eq!(
            (op.store, op.offset, op.kind),
            (10, offset, IoKind::Deallocate)
        );
        assert_eq!(request.store(), Some(10));
        let outcome = Executed::Ok;
        let event = Event::Executed { outcome, data };
        action = io.queue.step(io.now, &mut request, event);
    }
    assert!(matches!(action, Action::Respond(_)), "{action:?}");
    assert_eq!(request.store(), None);
}

#[test]
fn flush_of_all_skips_none_when_a_namespace_is_removed() {
    let target = target();
    let (_admin, mut io) = Host::ready(&target);
    let _ = apply(&target, &[with(&[1, 2, 3])]);
    let sqe = flush(NSID_ALL);
    let mut request = Request::default();
    let mut action = io.queue.begin(io.now, &sqe.to_bytes(), &mut request);
    let mut flushed = Vec::new();
    while let Action::Execute(op) = action {
        flushed.push(op.store);
        if flushed.len() == 1 {
            let _ = apply(&target, &[with(&[2, 3])]);
            assert_eq!(read_of(&mut io, 1), Status::INVALID_FIELD);
        }
        let (outcome, data) = (Executed::Ok, &[][..]);
        let event = Event::Executed { outcome, data };
        action = io.queue.step(io.now, &mut request, event);
    }
    assert_eq!(flushed, [10, 20, 30]);
}

#[test]
fn removed_subsystem_disconnects_its_controllers() {
    let target = target();
    let (mut admin, mut io) = Host::ready(&target);
    let cntlid = admin.queue.association().unwrap().2;
    let applied = apply(&target, &[closed()]);
    assert_eq!(
        applied.disconnected,
        [Disconnected {
            cntlid,
            hostnqn: nqn(HOST),
            subnqn: nqn(SUBNQN),
            peer: PEER.into(),
            reason: DisconnectReason::SubsystemRemoved,
        }]
    );
    let gone = Some(CloseCause::ControllerGone { cntlid });
    assert_eq!(
        (admin.close_cause(), io.close_cause()),
        (gone.clone(), gone)
    );
    assert_eq!(target.controllers(), 0);
    let mut again = Host::open(&target, 0, 32);
    let completion = again.connect(&Connect::new(0, 32, 0), &connect_data(0xffff));
    assert_eq!(completion.status(), Status::CONNECT_INVALID_PARAMETERS);
    // A later subsystem with this NQN is another one: no state remains.
    let _ = apply(&target, &[subsystem()]);
    let (mut admin, mut io) = Host::ready(&target);
    assert_eq!(read_of(&mut io, 1), Status::SUCCESS);
    assert_eq!(active(&mut admin), [1, 3]);
}

#[test]
fn a_host_that_is_denied_is_disconnected_and_others_stay() {
    let target = target();
    let allowed = |hosts: &[&str]| SubsystemSpec {
        allow_any_host: false,
        allowed_hosts: hosts.iter().copied().map(str::to_owned).collect(),
        ..subsystem()
    };
    let other = "nqn.2026-11.org.example:other";
    let (mut admin, mut io) = Host::ready(&target);
    let data = nvmeof_wire::fabrics::ConnectData::new([8; 16], 0xffff, &nqn(SUBNQN), &nqn(other));
    let (mut second, _) = Host::admin_with(&target, 0, &data);
    // Now by name, which changes nothing for listed hosts.
    let applied = apply(&target, &[allowed(&[HOST, other])]);
    assert_eq!(applied.disconnected.len(), 0);
    assert_eq!(read_of(&mut io, 1), Status::SUCCESS);
    let applied = apply(&target, &[allowed(&[other])]);
    let [lost] = &applied.disconnected[..] else {
        panic!("{applied:?}");
    };
    assert_eq!(
        (lost.hostnqn, lost.reason),
        (nqn(HOST), DisconnectReason::HostDenied)
    );
    assert!(admin.close_cause().is_some() && io.close_cause().is_some());
    assert_eq!(second.close_cause(), None);
    assert_eq!(active(&mut second), [1, 3]);
}

#[test]
fn counters_stay_when_a_subsystem_changes() {
    let target = target();
    let (_admin, mut io) = Host::ready(&target);
    assert_eq!(read_of(&mut io, 1), Status::SUCCESS);
    change_a_namespace(&target);
    assert_eq!(read_of(&mut io, 1), Status::SUCCESS);
    let served = target.shared.served();
    assert_eq!(
        served
            .live(&nqn(SUBNQN))
            .unwrap()
            .health
            .counts(NOW)
            .moved
            .reads,
        2
    );
    let closed = served.live(&nqn(CLOSED)).unwrap();
    assert_eq!(closed.health.counts(NOW).moved.reads, 0);
}

#[test]
fn the_discovery_log_has_a_new_generation_when_it_changed() {
    let target = target();
    let mut host = crate::admin::tests::discovery(&target);
    let mut header = || {
        let page = GetLogPage::new(LogId::DISCOVERY, 0, 0, 1024);
        let completion = host.read(page.to_sqe(), 1024);
        let (header, _) = DiscoveryHeader::read_from_prefix(&completion.data).unwrap();
        (header.genctr.get(), header.numrec.get())
    };
    assert_eq!(header(), (1, 1));
    // Namespaces are not part of it.
    change_a_namespace(&target);
    assert_eq!(header(), (1, 1));
    let mut second = port();
    second.trsvcid += 1;
    let _ = apply_with(&target, &[port(), second], &[subsystem()]);
    assert_eq!(header(), (2, 2));
    let _ = apply_with(&target, &[port()], &[]);
    assert_eq!(header(), (3, 0));
}

#[test]
fn same_model_is_no_change_and_other_limits_are_refused() {
    let target = target();
    let (mut admin, _io) = Host::ready(&target);
    let applied = apply(&target, &[subsystem(), closed()]);
    assert_eq!(applied, Applied::default());
    let limits = Limits {
        io_queues: 5,
        ..target.limits().clone()
    };
    let model = Model::build(limits, &[port()], &[]).unwrap();
    assert_eq!(target.apply(model), Err(LimitsChanged));
    assert_eq!(active(&mut admin), [1, 3]);
    assert!(!matches!(
        admin.queue.poll(admin.now),
        Some(Order::Close(_))
    ));
}

#[test]
fn changes_display_in_words() {
    let build =
        |specs: &[SubsystemSpec]| Model::build(Limits::default(), &[port()], specs).unwrap();
    let mut other = with(&[1, 2]);
    other.namespaces[0].blocks = 2000;
    other.namespaces[1].readonly = true;
    other.serial = Some("1".into());
    let changes = build(&[with(&[1, 2, 3]), closed()]).difference(&build(&[other]));
    let lines: Vec<_> = changes.iter().map(ToString::to_string).collect();
    assert_eq!(
        lines,
        [
            format!("subsystem {SUBNQN} is changed: serial"),
            format!("{SUBNQN}: namespace 1 is resized from 512000 to 1024000 bytes"),
            format!("{SUBNQN}: namespace 2 is changed: readonly"),
            format!("{SUBNQN}: namespace 3 is removed"),
            format!("subsystem {CLOSED} is removed"),
        ]
    );
    // All differences of one subject, in order.
    let mut before = with(&[1, 2, 3]);
    before.namespaces[1].state = NamespaceState::Disabled;
    let mut after = before.clone();
    (after.serial, after.model) = (Some("1".into()), Some("other".into()));
    let one = &mut after.namespaces[0];
    (one.blocks, one.readonly, one.uuid) = (2000, true, Some([1; 16]));
    one.storage = "ram:1M".into();
    after.namespaces[1].storage = "/disks/other".into();
    after.namespaces[2].state = NamespaceState::Disabled;
    after.namespaces[2].ana_group = 2;
    let changes = build(&[before]).difference(&build(&[after]));
    let lines: Vec<_> = changes.iter().map(ToString::to_string).collect();
    assert_eq!(
        lines,
        [
            format!("subsystem {SUBNQN} is changed: serial"),
            format!("subsystem {SUBNQN} is changed: model"),
            format!("{SUBNQN}: namespace 1 is resized from 512000 to 1024000 bytes"),
            format!("{SUBNQN}: namespace 1 is changed: path"),
            format!("{SUBNQN}: namespace 1 is changed: uuid"),
            format!("{SUBNQN}: namespace 1 is changed: readonly"),
            format!("{SUBNQN}: namespace 2 is changed: path"),
            format!("{SUBNQN}: namespace 3 is disabled"),
            format!("{SUBNQN}: namespace 3 is changed: ana_group"),
        ]
    );
    let changes = build(&[]).difference(&build(&[closed()]));
    let lines: Vec<_> = changes.iter().map(ToString::to_string).collect();
    assert_eq!(
        lines,
        [
            format!("subsystem {CLOSED} is added"),
            format!("{CLOSED}: host nqn.2026-11.org.example:friend is allowed to connect"),
            format!("{CLOSED}: namespace 1 is added"),
        ]
    );
}
