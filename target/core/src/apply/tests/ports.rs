//! Ports that offer some of the subsystems.

use nvmeof_wire::fabrics::InvalidParameter;
use nvmeof_wire::log::DiscoveryPage;

use super::*;
use crate::PortSpec;

/// Port `number`, which offers these subsystems.
fn port_to(number: u16, subsystems: &[&str]) -> PortSpec {
    let names = subsystems.iter().copied().map(str::to_owned);
    PortSpec {
        trsvcid: 4419 + number,
        subsystems: Some(names.collect()),
        ..port()
    }
}

fn open() -> SubsystemSpec {
    SubsystemSpec {
        nqn: CLOSED.into(),
        allow_any_host: true,
        allowed_hosts: Vec::new(),
        ..closed()
    }
}

fn served(ports: &[PortSpec]) -> Target {
    let both = [subsystem(), open()];
    Target::new(Model::build(Limits::default(), ports, &both).unwrap())
}

/// NQN and service of each entry of the discovery log.
fn reported(target: &Target) -> Vec<(String, String)> {
    let mut host = crate::admin::tests::discovery(target);
    let command = GetLogPage::new(LogId::DISCOVERY, 0, 0, 8192);
    let completion = host.read(command.to_sqe(), 8192);
    let page = DiscoveryPage::parse(&completion.data).unwrap();
    let entries = page.entries.iter().map(|entry| {
        let name = Nqn::from_field(&entry.subnqn).unwrap();
        (name.as_str().to_owned(), entry.trsvcid.to_string())
    });
    let mut reported: Vec<_> = entries.collect();
    reported.sort();
    reported
}

#[test]
fn port_offers_only_its_subsystems() {
    let ports = [port_to(1, &[SUBNQN, CLOSED]), port_to(2, &[CLOSED])];
    let target = served(&ports);
    let at = |name: &str, service: &str| (name.to_owned(), service.to_owned());
    assert_eq!(
        reported(&target),
        [at(CLOSED, "4420"), at(CLOSED, "4421"), at(SUBNQN, "4420")]
    );
    let data = connect_data(0xffff);
    let (_by_first, _) = Host::admin_at(&target, &ports[0], &data);
    let mut by_second = Host::open(&target, 0, 32);
    by_second.queue.set_port(crate::PortAddress {
        traddr: ports[1].traddr.clone(),
        trsvcid: ports[1].trsvcid,
    });
    let completion = by_second.connect(&Connect::new(0, 32, 0), &data);
    assert_eq!(completion.status(), Status::CONNECT_INVALID_PARAMETERS);
    let named = InvalidParameter::from_result(completion.result());
    assert_eq!(named, InvalidParameter::InData(256));
    let remark = by_second.queue.take_remark().unwrap();
    assert!(remark.contains("this port does not offer"), "{remark}");
}

/// An I/O queue must use the port of its controller: another port may offer other
/// subsystems, or have other ANA states.
#[test]
fn io_queues_must_use_the_port_of_the_controller() {
    let ports = [port_to(1, &[SUBNQN]), port_to(2, &[CLOSED])];
    let target = served(&ports);
    let (_admin, cntlid) = Host::admin_at(&target, &ports[0], &connect_data(0xffff));
    let mut completions = ports.iter().map(|port| {
        let mut io = Host::open(&target, 1, 128);
        io.queue.set_port(crate::PortAddress {
            traddr: port.traddr.clone(),
            trsvcid: port.trsvcid,
        });
        io.connect(&Connect::new(1, 128, 0), &connect_data(cntlid))
    });
    assert_eq!(completions.next().unwrap().status(), Status::SUCCESS);
    let refused = completions.next().unwrap();
    assert_eq!(refused.status(), Status::CONNECT_INVALID_PARAMETERS);
    let named = InvalidParameter::from_result(refused.result());
    assert_eq!(named, InvalidParameter::InData(16));
}

#[test]
fn host_is_disconnected_when_its_port_loses_the_subsystem() {
    let ports = [port(), port_to(2, &[SUBNQN])];
    let target = served(&ports);
    let (mut by_first, _) = Host::ready_at(&target, &ports[0], HOST);
    let (mut by_second, _) = Host::ready_at(&target, &ports[1], HOST);
    let next = [port(), port_to(2, &[CLOSED])];
    let applied = apply_with(&target, &next, &[subsystem(), open()]);
    let reasons: Vec<_> = applied.disconnected.iter().map(|one| one.reason).collect();
    assert_eq!(reasons, [DisconnectReason::SubsystemNotOffered]);
    assert_eq!(by_first.close_cause(), None);
    assert!(by_second.close_cause().is_some());
    let change = applied.changes[0].to_string();
    assert!(change.contains("is changed: subsystems"), "{change}");
}

#[test]
fn port_with_unknown_subsystem_is_refused() {
    for names in [&[][..], &[SUBNQN, "nqn.2026-11.org.example:other"], &["x"]] {
        let error = Model::build(Limits::default(), &[port_to(1, names)], &[subsystem()]);
        assert_eq!(error.unwrap_err().key, "subsystems", "{names:?}");
    }
}
