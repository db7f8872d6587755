//! Connect (Base 2.1, 6.3): each refusal has its status and offending field.

use std::time::Duration;

use nvmeof_wire::admin::Cns;
use nvmeof_wire::fabrics::{Connect, ConnectData, InvalidParameter, PropertyAccess};
use nvmeof_wire::identify::IdentifyController;
use nvmeof_wire::registers::{Cc, Property};
use nvmeof_wire::{Nqn, Status, admin, opcode};
use zerocopy::{FromBytes, IntoBytes};

use crate::testing::{
    CLOSED, Completion, Host, closed, connect_data, keyed, port, subsystem, target, target_with,
};
use crate::{CloseCause, Limit, Limits, Model, PortAddress, PortBounds, SubsystemSpec, Target};

fn assert_parameter(completion: &Completion, field: InvalidParameter) {
    assert_eq!(completion.status(), Status::CONNECT_INVALID_PARAMETERS);
    assert_eq!(InvalidParameter::from_result(completion.result()), field);
    assert!(completion.cqe.status().dnr());
}

fn admin(change: impl FnOnce(&mut Connect, &mut ConnectData)) -> Completion {
    let mut host = Host::open(&target(), 0, 32);
    let mut connect = Connect::new(0, 32, 0);
    let mut data = connect_data(0xffff);
    change(&mut connect, &mut data);
    let completion = host.connect(&connect, &data);
    let remark = host.queue.take_remark().unwrap();
    assert!(remark.contains("Connect refused") != completion.cqe.status().is_success());
    completion
}

#[test]
fn an_admin_queue_gets_a_controller() {
    let target = target();
    let (host, cntlid) = Host::admin(&target);
    assert_eq!(target.controllers(), 1);
    let (_, subnqn, id) = host.queue.association().unwrap();
    assert_eq!((subnqn, id), (crate::testing::SUBNQN, cntlid));
    drop(host);
    assert_eq!(target.controllers(), 0);
}

#[test]
fn each_wrong_parameter_is_named() {
    let completion = admin(|connect, _| connect.recfmt = 1.into());
    assert_eq!(completion.status(), Status::CONNECT_INCOMPATIBLE_FORMAT);
    assert_parameter(
        &admin(|connect, _| connect.qid = 1.into()),
        InvalidParameter::InCommand(42),
    );
    for sqsize in [0, 32, u16::MAX] {
        let completion = admin(|connect, _| connect.sqsize = sqsize.into());
        assert_parameter(&completion, InvalidParameter::InCommand(44));
    }
    assert_parameter(
        &admin(|_, data| data.hostid = [0; 16]),
        InvalidParameter::InData(0),
    );
    for cntlid in [0, 1, 0xfffe] {
        let completion = admin(|_, data| data.cntlid = cntlid.into());
        assert_parameter(&completion, InvalidParameter::InData(16));
    }
}

#[test]
fn connect_requires_valid_and_known_names() {
    let other = Nqn::new("nqn.2026-11.org.example:other").unwrap();
    assert_parameter(
        &admin(|_, data| data.subnqn = other.to_field()),
        InvalidParameter::InData(256),
    );
    assert_parameter(
        &admin(|_, data| data.subnqn = [b'x'; 256]),
        InvalidParameter::InData(256),
    );
    for bad in [[0xff; 256], [b'x'; 256]] {
        let completion = admin(|_, data| data.hostnqn = bad);
        assert_parameter(&completion, InvalidParameter::InData(512));
    }
    let closed = Nqn::new(CLOSED).unwrap();
    let completion = admin(|_, data| data.subnqn = closed.to_field());
    assert_eq!(completion.status(), Status::CONNECT_INVALID_HOST);
}

/// A Connect as `spdk_nvme_perf` sends it without `hostnqn:`: no host name, and a Host
/// Identifier that the program made up.
fn of_spdk(data: &mut ConnectData) {
    data.hostnqn = [0; 256];
    data.hostid = [0x5d; 16];
}

#[test]
fn empty_hostnqn_connects_where_any_host_may() {
    let target = target();
    let mut host = Host::open(&target, 0, 32);
    let mut data = connect_data(0xffff);
    of_spdk(&mut data);
    let completion = host.connect(&Connect::new(0, 32, 0), &data);
    assert_eq!(completion.status(), Status::SUCCESS);
    let message = host.queue.take_remark().unwrap();
    assert!(
        message.contains("uuid:5d5d5d5d-5d5d-5d5d-5d5d-5d5d5d5d5d5d"),
        "{message}"
    );
    assert!(message.contains("empty HOSTNQN"), "{message}");
    let mut data = connect_data(0xffff);
    of_spdk(&mut data);
    let (_admin, cntlid) = Host::admin_with(&target, 0, &data);
    data.cntlid = cntlid.into();
    let mut io = Host::open(&target, 1, 128);
    let completion = io.connect(&Connect::new(1, 128, 0), &data);
    assert_eq!(completion.status(), Status::SUCCESS);
    // Another host without a name has another identifier, and is another host.
    data.hostid = [1; 16];
    let mut io = Host::open(&target, 2, 128);
    let completion = io.connect(&Connect::new(2, 128, 0), &data);
    assert_parameter(&completion, InvalidParameter::InData(512));
}

#[test]
fn empty_hostnqn_connects_for_discovery() {
    let completion = admin(|_, data| {
        of_spdk(data);
        data.subnqn = Nqn::discovery().to_field();
    });
    assert_eq!(completion.status(), Status::SUCCESS);
}

#[test]
fn empty_hostnqn_is_refused_where_hosts_are_listed() {
    let mut host = Host::open(&target(), 0, 32);
    let mut data = connect_data(0xffff);
    of_spdk(&mut data);
    data.subnqn = Nqn::new(CLOSED).unwrap().to_field();
    let completion = host.connect(&Connect::new(0, 32, 0), &data);
    assert_eq!(completion.status(), Status::CONNECT_INVALID_HOST);
    let message = host.queue.take_remark().unwrap();
    assert!(
        message.contains("the host sent an empty HOSTNQN"),
        "{message}"
    );
}

#[test]
fn names_of_test_suites_connect_as_they_are() {
    for name in ["blktests-subsystem-1", "testnqn"] {
        let spec = SubsystemSpec {
            nqn: name.into(),
            allow_any_host: false,
            allowed_hosts: vec!["hostnqn".into()],
            ..subsystem()
        };
        let target = Target::new(Model::build(Limits::default(), &[port()], &[spec]).unwrap());
        let mut data = connect_data(0xffff);
        data.subnqn = Nqn::new(name).unwrap().to_field();
        data.hostnqn = Nqn::new("hostnqn").unwrap().to_field();
        let mut host = Host::open(&target, 0, 32);
        let completion = host.connect(&Connect::new(0, 32, 0), &data);
        assert_eq!(completion.status(), Status::SUCCESS, "{name}");
    }
}

#[test]
fn a_host_that_is_allowed_connects() {
    let completion = admin(|_, data| {
        data.subnqn = Nqn::new(CLOSED).unwrap().to_field();
        data.hostnqn = Nqn::new("nqn.2026-11.org.example:friend")
            .unwrap()
            .to_field();
    });
    assert_eq!(completion.status(), Status::SUCCESS);
}

#[test]
fn connect_without_free_controller_may_be_retried() {
    let target = target();
    let hosts: Vec<_> = (0..3).map(|_| Host::admin(&target)).collect();
    let mut one_more = Host::open(&target, 0, 32);
    let completion = one_more.connect(&Connect::new(0, 32, 0), &connect_data(0xffff));
    assert_eq!(completion.status(), Status::CONNECT_CONTROLLER_BUSY);
    assert!(!completion.cqe.status().dnr());
    drop(hosts);
    let completion = one_more.connect(&Connect::new(0, 32, 0), &connect_data(0xffff));
    assert_eq!(completion.status(), Status::SUCCESS);
}

fn io(change: impl FnOnce(&mut Connect, &mut ConnectData)) -> Completion {
    let target = target();
    let (_admin, cntlid) = Host::admin(&target);
    let mut host = Host::open(&target, 1, 128);
    let mut connect = Connect::new(1, 128, 0);
    let mut data = connect_data(cntlid);
    change(&mut connect, &mut data);
    host.connect(&connect, &data)
}

#[test]
fn an_io_queue_joins_only_its_own_controller() {
    assert_eq!(io(|_, _| ()).status(), Status::SUCCESS);
    // The controller may be gone: the host is to create another one, not to
    // give up.
    for cntlid in [0, 2, 0xffff] {
        let completion = io(|_, data| data.cntlid = cntlid.into());
        let field = InvalidParameter::from_result(completion.result());
        assert_eq!(completion.status(), Status::CONNECT_INVALID_PARAMETERS);
        assert_eq!(field, InvalidParameter::InData(16));
        assert!(!completion.cqe.status().dnr());
    }
    let closed = Nqn::new(CLOSED).unwrap();
    assert_parameter(
        &io(|_, data| data.subnqn = closed.to_field()),
        InvalidParameter::InData(256),
    );
    assert_parameter(
        &io(|_, data| data.hostnqn = closed.to_field()),
        InvalidParameter::InData(512),
    );
    assert_parameter(
        &io(|_, data| data.hostid = [8; 16]),
        InvalidParameter::InData(0),
    );
    assert_parameter(
        &io(|connect, _| connect.qid = 2.into()),
        InvalidParameter::InCommand(42),
    );
}

#[test]
fn queue_is_connected_once_until_it_is_gone() {
    let target = target();
    let (_admin, cntlid) = Host::admin(&target);
    let first = Host::io(&target, 1, cntlid);
    let mut second = Host::open(&target, 1, 128);
    let completion = second.connect(&Connect::new(1, 128, 0), &connect_data(cntlid));
    assert_parameter(&completion, InvalidParameter::InCommand(42));
    drop(first);
    let completion = second.connect(&Connect::new(1, 128, 0), &connect_data(cntlid));
    assert_eq!(completion.status(), Status::SUCCESS);
}

#[test]
fn queues_beyond_the_granted_number_are_refused() {
    let target = target();
    let (mut admin, cntlid) = Host::admin(&target);
    let two = admin::SetFeatures::new(nvmeof_wire::features::FeatureId::NUMBER_OF_QUEUES, 0x1_0001);
    assert_eq!(admin.plain(two.to_sqe()).result(), 0x1_0001);
    let mut third = Host::open(&target, 3, 128);
    let completion = third.connect(&Connect::new(3, 128, 0), &connect_data(cntlid));
    assert_parameter(&completion, InvalidParameter::InCommand(42));
}

/// The reported depth remains when the port changes: a host reads it once.
#[test]
fn a_port_may_have_shorter_queues_than_others() {
    let served = |queue_depth| {
        let limits = target().limits().clone();
        let bounds = PortBounds {
            queue_depth,
            ..PortBounds::default()
        };
        let model = Model::build(limits, &[port()], &[subsystem(), closed()]).unwrap();
        model.with_port_bounds([bounds]).unwrap()
    };
    let target = Target::new(served(Some(32)));
    let reported = |host: &mut Host| {
        let cap = host
            .plain(PropertyAccess::get(Property::CAP, true))
            .result();
        let id = host.identify(Cns::CONTROLLER, 0);
        let id = IdentifyController::read_from_bytes(&id.data).unwrap();
        // MQES is zero-based.
        (cap & 0xffff, id.maxcmd.get())
    };
    let entries = |cntlid, entries| {
        let mut host = Host::open(&target, 1, 128);
        let connect = Connect::new(1, entries, 0);
        host.connect(&connect, &connect_data(cntlid))
    };
    let (mut admin, cntlid) = Host::admin_at(&target, &port(), &connect_data(0xffff));
    assert_eq!(reported(&mut admin), (31, 32));
    let completion = entries(cntlid, 33);
    assert_parameter(&completion, InvalidParameter::InCommand(44));
    assert_eq!(entries(cntlid, 32).status(), Status::SUCCESS);
    assert_eq!(target.apply(served(Some(16))).unwrap().disconnected, []);
    assert_eq!(entries(cntlid, 32).status(), Status::SUCCESS);
    assert_eq!(reported(&mut admin), (31, 32));
    let (mut next, cntlid) = Host::admin_at(&target, &port(), &connect_data(0xffff));
    assert_eq!(reported(&mut next), (15, 16));
    assert_parameter(&entries(cntlid, 17), InvalidParameter::InCommand(44));
}

#[test]
fn an_io_queue_waits_for_the_controller_to_be_enabled() {
    let target = target();
    let mut admin = Host::open(&target, 0, 32);
    let completion = admin.connect(&Connect::new(0, 32, 0), &connect_data(0xffff));
    let cntlid = u16::try_from(completion.result()).unwrap();
    let mut io = Host::open(&target, 1, 128);
    let connect = Connect::new(1, 128, 0);
    let completion = io.connect(&connect, &connect_data(cntlid));
    assert_eq!(completion.status(), Status::COMMAND_SEQUENCE_ERROR);
    assert!(!completion.cqe.status().dnr());
    admin.set_cc(Cc::ENABLE.0);
    assert_eq!(
        io.connect(&connect, &connect_data(cntlid)).status(),
        Status::SUCCESS
    );
}

#[test]
fn connect_comes_first_and_once() {
    let mut host = Host::open(&target(), 0, 32);
    let completion = host.plain(admin::bare(opcode::admin::KEEP_ALIVE));
    assert_eq!(completion.status(), Status::COMMAND_SEQUENCE_ERROR);
    assert!(
        host.queue
            .take_follow_ups()
            .contains(crate::FollowUps::POLL)
    );
    assert_eq!(host.close_cause(), Some(CloseCause::NotConnected));
    let mut host = Host::open(&target(), 0, 32);
    let (connect, data) = (Connect::new(0, 32, 0), connect_data(0xffff));
    assert_eq!(host.connect(&connect, &data).status(), Status::SUCCESS);
    assert_eq!(
        host.connect(&connect, &data).status(),
        Status::COMMAND_SEQUENCE_ERROR
    );
}

#[test]
fn a_second_command_before_the_first_connect_is_done_closes_the_queue() {
    let target = target();
    let mut connect = Connect::new(0, 32, 0).to_sqe();
    connect.dptr = keyed(1024).to_descriptor();
    for second in [connect, admin::bare(opcode::admin::KEEP_ALIVE)] {
        let mut host = Host::open(&target, 0, 32);
        let mut requests = [(); 2].map(|()| crate::Request::default());
        let [one, two] = &mut requests;
        let first = host.queue.begin(host.now, &connect.to_bytes(), one);
        assert!(matches!(first, crate::Action::Pull { .. }));
        let second = host.queue.begin(host.now, &second.to_bytes(), two);
        let crate::Action::Close(cause) = second else {
            panic!("{second:?}");
        };
        assert_eq!(cause, CloseCause::NotConnected);
    }
    assert_eq!(target.controllers(), 0);
}

#[test]
fn connect_without_buffers_may_be_retried() {
    let target = target();
    let mut host = Host::open(&target, 0, 32);
    let (connect, data) = (Connect::new(0, 32, 0), connect_data(0xffff));
    host.queue.set_room(Err("no capsules".to_owned()));
    let completion = host.connect(&connect, &data);
    assert_eq!(completion.status(), Status::CONNECT_CONTROLLER_BUSY);
    assert!(!completion.cqe.status().dnr());
    assert!(host.queue.take_remark().unwrap().contains("no capsules"));
    assert!(!host.queue.is_connected());
    host.queue.set_room(Ok(()));
    assert_eq!(host.connect(&connect, &data).status(), Status::SUCCESS);
    assert!(host.queue.is_connected());
}

fn discovery() -> ConnectData {
    let mut data = connect_data(0xffff);
    data.subnqn = Nqn::discovery().to_field();
    data
}

#[test]
fn discovery_controllers_replace_only_each_other() {
    let target = target();
    let most = target.limits().discovery_controllers;
    let mut all: Vec<_> = (0..most)
        .map(|at| {
            let mut host = Host::open(&target, 0, 32);
            host.queue.set_home(if at == 7 { 3 } else { 1 });
            host.connect(&Connect::new(0, 32, 0), &discovery());
            host
        })
        .collect();
    for (at, host) in (0u32..).zip(&mut all) {
        // Number 7 was idle longest.
        host.now += Duration::from_secs(if at == 7 { 1 } else { 2 });
        host.csts();
    }
    let _nvm: Vec<_> = (0..3).map(|_| Host::admin(&target)).collect();
    let mut newest = Host::open(&target, 0, 32);
    newest.queue.set_home(5);
    let completion = newest.connect(&Connect::new(0, 32, 0), &discovery());
    assert_eq!(completion.status(), Status::SUCCESS);
    // Only the reactor of the replaced one is woken.
    let follow_ups = newest.queue.take_follow_ups();
    assert!(
        follow_ups.contains(crate::FollowUps::CALL)
            && !follow_ups.contains(crate::FollowUps::POLL_ALL)
    );
    let calls = newest.queue.take_calls();
    assert_eq!(
        calls.iter().map(|call| call.reactor).collect::<Vec<_>>(),
        [3]
    );
    let lost: Vec<_> = (0..)
        .zip(&mut all)
        .filter_map(|(at, host)| host.close_cause().map(|_| at))
        .collect();
    assert_eq!(lost, [7]);
    assert_eq!(target.controllers(), usize::from(most) + 3);
}

/// A discovery controller of this host on port `number`.
fn finder(target: &Target, number: u16, name: &str) -> Host {
    let mut data = discovery();
    data.hostnqn = Nqn::new(name).unwrap().to_field();
    let mut host = Host::open(target, 0, 32);
    host.queue.set_port(PortAddress {
        traddr: port().traddr,
        trsvcid: 4419 + number,
    });
    let completion = host.connect(&Connect::new(0, 32, 0), &data);
    assert_eq!(completion.status(), Status::SUCCESS);
    host
}

#[test]
fn host_with_most_discovery_controllers_loses_one() {
    let target = target();
    let mut patient = finder(&target, 1, "nqn.2026-11.org.example:patient");
    let mut kept = Vec::new();
    let most = usize::from(target.limits().discovery_controllers);
    for at in 0..200 {
        let mut chatty = finder(&target, 1, "nqn.2026-11.org.example:chatty");
        let remark = chatty.queue.take_remark().unwrap();
        let replaced = "of nqn.2026-11.org.example:chatty, 192.0.2.7:40001 \
                        (limits.discovery_controllers = 64)";
        assert_eq!(remark.contains(replaced), at + 1 >= most, "{remark}");
        kept.push(chatty);
    }
    assert_eq!(patient.close_cause(), None);
    assert_eq!(target.controllers(), most);
    let limit_counters = u64::try_from(201 - most).unwrap();
    assert_eq!(
        target.limit_counters().get(Limit::DiscoveryControllers),
        limit_counters
    );
    // A further one does not replace a patient host either.
    let _late = finder(&target, 1, "nqn.2026-11.org.example:late");
    assert_eq!(patient.close_cause(), None);
}

/// Made-up names cannot be distinguished from others, but their port can.
#[test]
fn made_up_names_replace_no_host_of_another_port() {
    let target = target();
    // A controller on each port counts like one.
    let mut first = finder(&target, 1, "nqn.2026-11.org.example:patient");
    let mut second = finder(&target, 2, "nqn.2026-11.org.example:patient");
    let _kept: Vec<_> = (0..200)
        .map(|at| finder(&target, 1, &format!("nqn.2026-11.org.example:made-up-{at}")))
        .collect();
    assert_eq!(second.close_cause(), None);
    assert!(first.close_cause().is_some(), "it was silent longest");
}

/// A host may have a persistent controller and a temporary one, and keeps both.
#[test]
fn made_up_names_replace_no_second_controller_of_another_port() {
    let target = target();
    let mut patient = [1, 1].map(|port| finder(&target, port, "nqn.2026-11.org.example:patient"));
    let mut other = finder(&target, 1, "nqn.2026-11.org.example:other");
    let most = usize::from(target.limits().discovery_controllers);
    let name = |at| format!("nqn.2026-11.org.example:made-up-{at}");
    let mut made_up: Vec<_> = (0..1000).map(|at| finder(&target, 2, &name(at))).collect();
    for host in patient.iter_mut().chain([&mut other]) {
        assert_eq!(host.close_cause(), None);
    }
    let open = |hosts: &mut [Host]| {
        let causes = hosts.iter_mut().map(Host::close_cause);
        causes.filter(Option::is_none).count()
    };
    assert_eq!(open(&mut made_up), most - 3);
    // Further ones of the port with few replace those of the port with many.
    let fewer = most / 2 - 8;
    let mut late: Vec<_> = (0..fewer)
        .map(|at| finder(&target, 1, &format!("nqn.2026-11.org.example:late-{at}")))
        .collect();
    assert_eq!((open(&mut late), open(&mut patient)), (fewer, 2));
    assert_eq!(open(&mut made_up), most - 3 - fewer);
    // A host with many is replaced on any port, also on one with few.
    let mut chatty: Vec<_> = (0..most)
        .map(|_| finder(&target, 3, "nqn.2026-11.org.example:chatty"))
        .collect();
    assert_eq!((open(&mut chatty), open(&mut patient)), (2, 2));
}

#[test]
fn leaving_twice_does_not_remove_the_next_queue() {
    let target = target();
    let (_admin, cntlid) = Host::admin(&target);
    let mut first = Host::io(&target, 1, cntlid);
    first.queue.leave();
    assert_eq!(first.queue.take_calls().len(), 1);
    let _second = Host::io(&target, 1, cntlid);
    first.queue.leave();
    assert!(first.queue.take_calls().is_empty());
    drop(first);
    let mut third = Host::open(&target, 1, 128);
    let completion = third.connect(&Connect::new(1, 128, 0), &connect_data(cntlid));
    assert_parameter(&completion, InvalidParameter::InCommand(42));
}

#[test]
fn host_names_cannot_forge_log_lines() {
    let named = |name: &[u8]| {
        admin(|_, data| {
            data.hostnqn = [0; 256];
            data.hostnqn[..name.len()].copy_from_slice(name);
        })
    };
    assert_eq!(named(b"my host").status(), Status::SUCCESS);
    assert_parameter(&named(b"a\nb"), InvalidParameter::InData(512));
}

#[test]
fn connect_data_may_be_in_the_capsule_and_must_be_complete() {
    let mut host = Host::open(&target(), 0, 32);
    let sqe = Connect::new(0, 32, 0).to_sqe();
    let data = connect_data(0xffff);
    let short = host.write(sqe, &data.as_bytes()[..1023]);
    assert_eq!(short.status(), Status::DATA_SGL_LENGTH_INVALID);
    let completion = host.write_in_capsule(sqe, data.as_bytes());
    assert_eq!(completion.status(), Status::SUCCESS);
}

#[test]
fn a_queue_that_never_connects_is_closed() {
    let limits = Limits {
        connect_timeout: Duration::from_secs(5),
        ..Limits::default()
    };
    let mut host = Host::open(&target_with(limits), 0, 32);
    assert_eq!(
        host.queue.next_deadline(),
        Some(host.now + Duration::from_secs(5))
    );
    assert_eq!(host.close_cause(), None);
    host.now += Duration::from_secs(5);
    assert_eq!(
        host.close_cause(),
        Some(CloseCause::NoConnect { seconds: 5 })
    );
}

/// Linux creates the queue pairs of all I/O queues before it connects the first.
#[test]
fn io_queues_may_wait_longer_for_their_connect() {
    let mut host = Host::open(&target(), 1, 128);
    host.now += Duration::from_secs(59);
    assert_eq!(host.close_cause(), None);
    host.now += Duration::from_secs(1);
    assert_eq!(
        host.close_cause(),
        Some(CloseCause::NoConnect { seconds: 60 })
    );
}

#[test]
fn host_without_flow_control_gets_no_sq_head() {
    let mut host = Host::open(&target(), 0, 32);
    let mut connect = Connect::new(0, 32, 0);
    connect.cattr = nvmeof_wire::fabrics::CATTR_NO_SQ_FLOW;
    let completion = host.connect(&connect, &connect_data(0xffff));
    assert_eq!(
        (completion.status(), completion.cqe.sqhd.get()),
        (Status::SUCCESS, 0xffff)
    );
}

/// Reservations take hosts with one identifier for one host.
#[test]
fn hosts_with_one_identifier_are_reported_or_refused() {
    let name = |text: &str| Nqn::new(text).unwrap();
    let data = |number: u8, id: u8| {
        let nqn = name(&format!("nqn.2026-11.org.example:host-{number}"));
        ConnectData::new([id; 16], 0xffff, &name(crate::testing::SUBNQN), &nqn)
    };
    for unique_host_ids in [false, true] {
        let target = target_with(Limits {
            unique_host_ids,
            ..Limits::default()
        });
        let connect = |number, id| {
            let mut host = Host::open(&target, 0, 32);
            let status = host
                .connect(&Connect::new(0, 32, 0), &data(number, id))
                .cqe
                .status();
            (status, host.queue.take_remark().unwrap_or_default(), host)
        };
        let (status, remark, first) = connect(1, 7);
        assert!(
            status.is_success() && !remark.contains("identifier"),
            "{remark}"
        );
        let (status, _, again) = connect(1, 7);
        assert!(status.is_success(), "another controller of the same host");
        let (status, remark, _second) = connect(2, 7);
        assert_eq!(status.is_success(), !unique_host_ids);
        assert!(
            remark.contains("host identifier") && remark.contains("host-1"),
            "{remark}"
        );
        let shared = target.shared_host_ids();
        if unique_host_ids {
            assert_eq!(status.kind(), Status::CONNECT_INVALID_HOST);
            assert!(!status.dnr(), "the other host may leave");
            assert_eq!(target.limit_counters().get(Limit::UniqueHostIds), 1);
            assert_eq!(shared, []);
        } else {
            let hosts = [1, 2].map(|n| name(&format!("nqn.2026-11.org.example:host-{n}")));
            assert_eq!(shared, [([7; 16], hosts.to_vec())]);
        }
        let (status, _, _third) = connect(3, 8);
        assert!(status.is_success());
        drop((first, again));
    }
}
