//! Quotas of hosts and ports.

use nvmeof_wire::fabrics::{Connect, ConnectData};
use nvmeof_wire::log::ana::AnaState;
use nvmeof_wire::registers::Cc;
use nvmeof_wire::{Nqn, Status};

use crate::testing::{Host, connect_data, port, port_in, subsystem, target_with};
use crate::{ExhaustedQuotas, Limit, Limits, Model, PortAddress, PortLimit, Target};

const OTHER: &[u8] = b"nqn.2026-11.org.example:other";

/// Connect data of a host with another NQN.
fn of_other(cntlid: u16) -> ConnectData {
    let mut data = connect_data(cntlid);
    data.hostnqn = [0; 256];
    data.hostnqn[..OTHER.len()].copy_from_slice(OTHER);
    data
}

fn limits() -> Limits {
    Limits {
        queue_depth: 128,
        io_queues: 4,
        controllers: 3,
        host_controllers: 2,
        host_queues: 3,
        host_commands: 300,
        ..Limits::default()
    }
}

/// A new controller, enabled: its queue and its identifier.
fn admin(target: &Target, data: &ConnectData) -> (Host, Status, u16) {
    let mut host = Host::open(target, 0, 32);
    let completion = host.connect(&Connect::new(0, 32, 0), data);
    let cntlid = u16::try_from(completion.result() & 0xffff).unwrap();
    if completion.status().is_success() {
        assert_eq!(host.set_cc(Cc::ENABLE.0).status(), Status::SUCCESS);
    }
    (host, completion.status(), cntlid)
}

fn queue(target: &Target, qid: u16, entries: u16, data: &ConnectData) -> (Host, Status) {
    let mut host = Host::open(target, qid, entries);
    let status = host.connect(&Connect::new(qid, entries, 0), data).status();
    (host, status)
}

#[test]
fn controllers_per_host_are_limited() {
    let target = target_with(limits());
    let [first, _second] = [(); 2].map(|()| {
        let (host, status, _) = admin(&target, &connect_data(0xffff));
        assert_eq!(status, Status::SUCCESS);
        host
    });
    // Without DNR: the host may retry.
    let (mut third, status, _) = admin(&target, &connect_data(0xffff));
    assert_eq!(status, Status::CONNECT_CONTROLLER_BUSY);
    let remark = third.queue.take_remark().unwrap();
    assert!(remark.contains("raise limits.host_controllers"), "{remark}");
    let (_other, status, _) = admin(&target, &of_other(0xffff));
    assert_eq!(status, Status::SUCCESS, "there is one left for others");
    let (_, status, _) = admin(&target, &of_other(0xffff));
    assert_eq!(status, Status::CONNECT_CONTROLLER_BUSY);
    let limit_counters = target.limit_counters();
    assert_eq!(limit_counters.get(Limit::HostControllers), 1);
    assert_eq!(limit_counters.get(Limit::Controllers), 1);
    drop(first);
    let (_, status, _) = admin(&target, &connect_data(0xffff));
    assert_eq!(status, Status::SUCCESS);
}

/// A host with this NQN on port `number` connects an admin queue.
fn one_by(target: &Target, number: u16, name: &str) -> (Host, Status) {
    let mut data = connect_data(0xffff);
    data.hostnqn = Nqn::new(name).unwrap().to_field();
    let mut host = Host::open(target, 0, 32);
    host.queue.set_port(PortAddress {
        traddr: port().traddr,
        trsvcid: 4419 + number,
    });
    let status = host.connect(&Connect::new(0, 32, 0), &data).status();
    (host, status)
}

/// Connects hosts with different NQNs on the ports `by`, as long as they get controllers.
/// Returns their number.
fn come(target: &Target, by: &[u16], kept: &mut Vec<Host>) -> usize {
    let before = kept.len();
    for (at, number) in by.iter().cycle().enumerate() {
        let name = format!("nqn.2026-11.org.example:made-up-{before}-{at}");
        let (host, status) = one_by(target, *number, &name);
        if status != Status::SUCCESS {
            assert_eq!(status, Status::CONNECT_CONTROLLER_BUSY);
            break;
        }
        kept.push(host);
    }
    kept.len() - before
}

fn with_ports(limits: Limits, count: u16) -> Target {
    let ports: Vec<_> = (1..=count)
        .map(|number| port_in(number, AnaState::OPTIMIZED))
        .collect();
    Target::new(Model::build(limits, &ports, &[subsystem()]).unwrap())
}

#[test]
fn controllers_per_port_are_limited() {
    let limits = Limits {
        controllers: 16,
        port_controllers: 12,
        ..Limits::default()
    };
    let target = with_ports(limits, 2);
    let (mut first, mut second) = (Vec::new(), Vec::new());
    assert_eq!(come(&target, &[1], &mut first), 12);
    let limit_counters =
        || [Limit::PortControllers, Limit::Controllers].map(|one| target.limit_counters().get(one));
    assert_eq!(limit_counters(), [1, 0]);
    // Without DNR: the host may retry.
    let (mut late, _) = one_by(&target, 1, "nqn.2026-11.org.example:late");
    let remark = late.queue.take_remark().unwrap();
    for words in [
        "port 127.0.0.1:4420 has its quota of the 16 controllers",
        "limits.port_controllers = 12",
        "raise limits.controllers",
    ] {
        assert!(remark.contains(words), "{remark}");
    }
    assert_eq!(come(&target, &[2], &mut second), 4);
    assert_eq!(limit_counters(), [2, 1]);
    // Freed controllers are for any port, except the reserved ones.
    first.truncate(10);
    assert_eq!(come(&target, &[2], &mut second), 2);
    second.truncate(1);
    first.truncate(9);
    assert_eq!(come(&target, &[1], &mut first), 3);
}

#[test]
fn lone_port_may_have_every_controller() {
    let limits = Limits {
        controllers: 16,
        port_controllers: 12,
        ..Limits::default()
    };
    assert_eq!(come(&with_ports(limits, 1), &[1], &mut Vec::new()), 16);
}

/// Each port gets its reserved controllers, however the hosts of other ports are divided.
#[test]
fn remaining_controllers_are_reserved_per_port() {
    let limits = Limits {
        controllers: 16,
        port_controllers: 10,
        ..Limits::default()
    };
    let target = with_ports(limits.clone(), 4);
    let mut kept = Vec::new();
    assert_eq!(come(&target, &[1, 2], &mut kept), 12);
    assert_eq!(come(&target, &[3], &mut kept), 2);
    assert_eq!(come(&target, &[4], &mut kept), 2);
    // Fewer are reserved than there are ports: one of them gets it.
    let few = Limits {
        controllers: 4,
        port_controllers: 3,
        ..limits
    };
    let target = with_ports(few, 4);
    let mut kept = Vec::new();
    assert_eq!(come(&target, &[1], &mut kept), 3);
    assert_eq!(come(&target, &[2, 3], &mut kept), 1);
}

#[test]
fn queues_and_commands_per_host_are_limited() {
    let target = target_with(limits());
    let (_first, _, one) = admin(&target, &connect_data(0xffff));
    let (_second, _, two) = admin(&target, &connect_data(0xffff));
    let data = |cntlid| connect_data(cntlid);
    let (_a, status) = queue(&target, 1, 128, &data(one));
    assert_eq!(status, Status::SUCCESS);
    let (b, status) = queue(&target, 1, 128, &data(two));
    assert_eq!(status, Status::SUCCESS);
    // 44 more commands, over all controllers.
    let (mut c, status) = queue(&target, 2, 45, &data(two));
    assert_eq!(status, Status::CONNECT_CONTROLLER_BUSY);
    let remark = c.queue.take_remark().unwrap();
    assert!(remark.contains("raise limits.host_commands"), "{remark}");
    // The same connection may request fewer, and its first request does not count.
    let fewer = Connect::new(2, 44, 0);
    assert_eq!(c.connect(&fewer, &data(two)).status(), Status::SUCCESS);
    let (_d, status) = queue(&target, 2, 2, &data(one));
    assert_eq!(status, Status::CONNECT_CONTROLLER_BUSY, "a fourth");
    let limit_counters =
        [Limit::HostQueues, Limit::HostCommands].map(|limit| target.limit_counters().get(limit));
    assert_eq!(limit_counters, [1, 1]);
    // Another host is not affected.
    let (_other, _, its) = admin(&target, &of_other(0xffff));
    let (_e, status) = queue(&target, 1, 128, &of_other(its));
    assert_eq!(status, Status::SUCCESS);
    drop(b);
    let (_f, status) = queue(&target, 1, 128, &data(two));
    assert_eq!(status, Status::SUCCESS);
}

#[test]
fn connections_per_port_are_limited() {
    let limits = Limits {
        port_connections: PortLimit::always(2),
        ..Limits::default()
    };
    let model = Model::build(limits, &[], &[]).unwrap();
    let target = Target::new(model);
    let quota = [(); 2].map(|()| target.port_quota("10.0.0.1:4420").unwrap());
    let refused = target.port_quota("10.0.0.1:4420").unwrap_err();
    assert!(refused.cause.contains("raise limits.port_connections"));
    assert!(target.port_quota("10.0.0.2:4420").is_ok());
    assert_eq!(target.limit_counters().get(Limit::PortConnections), 1);
    drop(quota);
    assert!(target.port_quota("10.0.0.1:4420").is_ok());
}

/// A controller and an I/O queue with `entries` of a host on port
/// `number`, which may be none.
fn queue_at(
    target: &Target,
    number: Option<u16>,
    entries: u16,
    data: &dyn Fn(u16) -> ConnectData,
    exhausted: &ExhaustedQuotas,
) -> ([Host; 2], Status) {
    let at = |host: &mut Host| {
        if let Some(number) = number {
            let traddr = port().traddr;
            let trsvcid = 4419 + number;
            host.queue.set_port(PortAddress { traddr, trsvcid });
        }
    };
    let mut admin = Host::open(target, 0, 32);
    at(&mut admin);
    let completion = admin.connect(&Connect::new(0, 32, 0), &data(0xffff));
    let cntlid = u16::try_from(completion.result()).unwrap();
    assert_eq!(admin.set_cc(Cc::ENABLE.0).status(), Status::SUCCESS);
    let mut host = Host::open(target, 1, entries);
    at(&mut host);
    host.queue.set_exhausted(exhausted.clone());
    let status = host.connect(&Connect::new(1, entries, 0), &data(cntlid));
    ([admin, host], status.status())
}

/// The commands outstanding on one port are limited for any number of hosts, and
/// other ports are not affected.
#[test]
fn commands_per_port_are_limited() {
    let target = target_with(Limits {
        controllers: 8,
        host_controllers: 8,
        port_commands: PortLimit::always(300),
        queue_depth: 128,
        ..Limits::default()
    });
    let none = ExhaustedQuotas::default();
    let first = |cntlid| connect_data(cntlid);
    let (one, status) = queue_at(&target, Some(1), 128, &first, &none);
    assert_eq!(status, Status::SUCCESS);
    let (_two, status) = queue_at(&target, Some(1), 128, &of_other, &none);
    assert_eq!(status, Status::SUCCESS);
    // Without DNR: the host may retry.
    let ([_, mut third], status) = queue_at(&target, Some(1), 45, &of_other, &none);
    assert_eq!(status, Status::CONNECT_CONTROLLER_BUSY);
    let remark = third.queue.take_remark().unwrap();
    for words in ["port 127.0.0.1:4420", "300", "raise limits.port_commands"] {
        assert!(remark.contains(words), "{remark}");
    }
    let limit_counters =
        || [Limit::PortCommands, Limit::HostCommands].map(|one| target.limit_counters().get(one));
    assert_eq!(limit_counters(), [1, 0]);
    let (_a, status) = queue_at(&target, Some(1), 44, &of_other, &none);
    assert_eq!(status, Status::SUCCESS);
    for elsewhere in [Some(2), None] {
        let (_b, status) = queue_at(&target, elsewhere, 128, &of_other, &none);
        assert_eq!(status, Status::SUCCESS, "{elsewhere:?}");
    }
    drop(one);
    let (_c, status) = queue_at(&target, Some(1), 128, &of_other, &none);
    assert_eq!(status, Status::SUCCESS);
    assert_eq!(limit_counters(), [1, 0]);
}

/// The quota of a port applies only while there are other ports.
#[test]
fn lone_port_may_have_every_command_and_connection() {
    let of_port = PortLimit {
        alone: 300,
        beside_others: 128,
    };
    let limits = Limits {
        queue_depth: 128,
        port_commands: of_port,
        port_connections: of_port,
        ..Limits::default()
    };
    for (ports, queues) in [(1, 2), (2, 1)] {
        let target = with_ports(limits.clone(), ports);
        let none = ExhaustedQuotas::default();
        let all: Vec<_> = (0..queues)
            .map(|_| queue_at(&target, Some(1), 128, &of_other, &none))
            .collect();
        assert!(all.iter().all(|(_, status)| *status == Status::SUCCESS));
        let (_more, status) = queue_at(&target, Some(1), 128, &of_other, &none);
        assert_eq!(status, Status::CONNECT_CONTROLLER_BUSY, "{ports}");
        let mut quota = (0..1000).map_while(|_| target.port_quota("a").ok());
        let most = of_port.with_ports(usize::from(ports));
        assert_eq!(
            quota.by_ref().collect::<Vec<_>>().len(),
            usize::try_from(most).unwrap()
        );
    }
}

/// A queue beyond the quota of its port is refused, an admin queue too, and does not
/// count against its host.
#[test]
fn remaining_buffers_are_reserved_for_other_ports() {
    let target = target_with(Limits::default());
    let first = |cntlid| connect_data(cntlid);
    let exhausted = ExhaustedQuotas {
        hosts: Vec::new(),
        port: true,
    };
    let ([_admin, mut host], status) = queue_at(&target, Some(1), 32, &first, &exhausted);
    assert_eq!(status, Status::CONNECT_CONTROLLER_BUSY);
    let remark = host.queue.take_remark().unwrap();
    for words in [
        "port 127.0.0.1:4420 has queues",
        "reserved for hosts of other ports",
        "limits.port_memory = 90",
        "raise reactor.buffer_memory",
    ] {
        assert!(remark.contains(words), "{remark}");
    }
    let mut other = Host::open(&target, 0, 32);
    other.queue.set_exhausted(exhausted);
    let completion = other.connect(&Connect::new(0, 32, 0), &connect_data(0xffff));
    assert_eq!(completion.status(), Status::CONNECT_CONTROLLER_BUSY);
    other.queue.set_exhausted(ExhaustedQuotas::default());
    let completion = other.connect(&Connect::new(0, 32, 0), &connect_data(0xffff));
    assert_eq!(completion.status(), Status::SUCCESS);
    let limit_counters =
        [Limit::PortMemory, Limit::HostMemory].map(|one| target.limit_counters().get(one));
    assert_eq!(limit_counters, [2, 0]);
}
