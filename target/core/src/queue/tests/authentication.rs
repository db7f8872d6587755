//! Authentication of queues that are not connected yet: who gets a controller, and who does not.

use std::time::Duration;

use nvmeof_dhchap::{HostKeys, Policy, Refusal};
use nvmeof_wire::admin::Cns;
use nvmeof_wire::auth::{AuthCommand, Explanation, GroupId, HashId, MAX_MESSAGE};
use nvmeof_wire::fabrics::{Connect, ConnectResult, PropertyAccess};
use nvmeof_wire::registers::Property;
use nvmeof_wire::{Nqn, Sgl, Sqe, Status, nvm};
use zerocopy::IntoBytes;

use crate::testing::{
    CLOSED, HOST, HOST_ID, Host, NOW, Outcome, SUBNQN, apply_keys, connect_data, connect_data_of,
    host_keys, keyed_target, nqn, only_host, policy, target, target_with,
};
use crate::{
    AuthenticationOutcome, AuthenticationSpec, CloseCause, KeyState, Limit, Limits, Model, Request,
    SubsystemSpec, Target,
};

const LINGER: Duration = Duration::from_millis(100);

/// How often authentications ended so, in all and of [`HOST`].
fn counted(target: &Target, outcome: AuthenticationOutcome) -> [u64; 2] {
    let report = target.authentication_report();
    let its = report.hosts.iter().find(|(host, _)| *host == nqn(HOST));
    [
        report.all.get(outcome),
        its.map_or(0, |(_, counts)| counts.get(outcome)),
    ]
}

/// The queue is closed for this cause, when its host had time to receive the response.
#[track_caller]
fn assert_closes(host: &mut Host, cause: &CloseCause) {
    assert_eq!(host.close_cause(), None);
    assert_eq!(host.queue.next_deadline(), Some(host.now + LINGER));
    host.now += LINGER;
    assert_eq!(host.close_cause().as_ref(), Some(cause));
}

/// Nothing of a host is used.
#[track_caller]
fn assert_unused(target: &Target) {
    let shared = &target.shared;
    assert_eq!((target.controllers(), shared.registry.proposals()), (0, 0));
    assert!(shared.hosts.is_empty() && shared.port_queues.is_empty());
}

#[test]
fn host_with_key_gets_a_controller_after_it_proved_the_key() {
    for controller_key in [None, Some(9)] {
        let target = keyed_target();
        let mut host = Host::unproven(&target, 0, &connect_data(0xffff));
        assert_eq!(target.controllers(), 0);
        assert_eq!(host.queue.claimed(), Some((HOST, SUBNQN)));
        assert_eq!(host.authenticate(host_keys(1, controller_key)), Ok(()));
        assert!(host.queue.is_connected() && host.queue.claimed().is_none());
        let remark = host.queue.take_remark().unwrap();
        let sides = if controller_key.is_some() {
            "both sides"
        } else {
            "host only"
        };
        for words in [
            "connected by",
            "current key, hash SHA-256, group NULL",
            sides,
        ] {
            assert!(remark.contains(words), "{remark}");
        }
        let connected = target.connected();
        let how = connected[0].authentication.unwrap();
        assert_eq!(
            (how.key, how.is_mutual),
            (KeyState::Current, controller_key.is_some())
        );
        assert_eq!((how.hash, how.group), (HashId::SHA256, GroupId::NULL));
        assert_eq!(counted(&target, AuthenticationOutcome::Success), [1, 1]);
        // It serves commands.
        assert_eq!(host.close_cause(), None);
        assert_eq!(
            host.set_cc(nvmeof_wire::registers::Cc::ENABLE.0).status(),
            Status::SUCCESS
        );
        assert_eq!(host.identify(Cns::CONTROLLER, 0).status(), Status::SUCCESS);
    }
}

#[test]
fn controller_has_the_identifier_that_connect_announced() {
    let target = keyed_target();
    let mut host = Host::open(&target, 0, 32);
    let completion = host.connect(&Connect::new(0, 32, 0), &connect_data(0xffff));
    let announced = ConnectResult::from_result(completion.result()).cntlid;
    assert_eq!(host.authenticate(host_keys(1, None)), Ok(()));
    assert_eq!(host.queue.association().unwrap().2, announced);
    assert_eq!(target.shared.registry.proposals(), 0);
}

#[test]
fn hosts_without_key_connect_as_before() {
    let target = keyed_target();
    let data = connect_data_of("nqn.2026-11.org.example:other", 0xffff);
    let (_admin, _) = Host::admin_with(&target, 0, &data);
    assert_eq!(target.connected()[0].authentication, None);
    assert_eq!(target.authentication_report().hosts.len(), 1);
}

#[test]
fn io_queue_joins_after_its_host_proved_the_key() {
    let target = keyed_target();
    let (_admin, cntlid) = Host::proven(&target);
    let mut io = Host::unproven(&target, 1, &connect_data(cntlid));
    assert_eq!(target.connected()[0].io_queues, 0);
    assert_eq!(io.authenticate(host_keys(1, Some(9))), Ok(()));
    assert_eq!(target.connected()[0].io_queues, 1);
    assert_eq!(io.plain(nvm::flush(1)).status(), Status::SUCCESS);
    // The identifier of the queue is taken now, but was not before.
    let mut second = Host::unproven(&target, 1, &connect_data(cntlid));
    let (ended, status) = second.transact(host_keys(1, None));
    assert_eq!(
        (ended, status),
        (Err(Refusal::Closed), Status::CONNECT_INVALID_PARAMETERS)
    );
    assert_closes(&mut second, &CloseCause::NotJoined);
}

#[test]
fn unproven_queues_use_nothing_of_a_host() {
    let target = keyed_target();
    let unproven: Vec<_> = (0..100)
        .map(|_| Host::unproven(&target, 0, &connect_data(0xffff)))
        .collect();
    assert_eq!(target.shared.registry.proposals(), 100);
    // The host itself has all that it may have.
    let hosts: Vec<_> = (0..3).map(|_| Host::proven(&target)).collect();
    let cntlid = hosts[0].1;
    let claimed: Vec<_> = (0..100)
        .map(|_| Host::unproven(&target, 1, &connect_data(cntlid)))
        .collect();
    let mut io = Host::unproven(&target, 1, &connect_data(cntlid));
    assert_eq!(io.authenticate(host_keys(1, None)), Ok(()));
    drop((unproven, claimed, io, hosts));
    assert_unused(&target);
}

#[test]
fn wrong_key_ends_that_queue_alone() {
    let target = keyed_target();
    let (mut admin, cntlid) = Host::proven(&target);
    let mut io = Host::unproven(&target, 1, &connect_data(cntlid));
    assert_eq!(io.authenticate(host_keys(1, None)), Ok(()));
    for data in [connect_data(0xffff), connect_data(cntlid)] {
        let qid = if data.cntlid.get() == 0xffff { 0 } else { 2 };
        let mut peer = Host::unproven(&target, qid, &data);
        let ended = peer.authenticate(host_keys(3, None));
        assert_eq!(ended, Err(Refusal::ByController(Explanation::FAILED)));
        let remark = peer.queue.take_remark().unwrap();
        assert_eq!(
            remark,
            "authentication failed: the response matches none of the keys of the host"
        );
        assert_eq!(peer.queue.claimed(), Some((HOST, SUBNQN)));
        assert_closes(&mut peer, &CloseCause::AuthenticationFailed);
        let _ = peer.queue.close();
    }
    assert_eq!(counted(&target, AuthenticationOutcome::WrongKey), [2, 2]);
    assert_eq!((admin.close_cause(), io.close_cause()), (None, None));
    assert_eq!(io.plain(nvm::flush(1)).status(), Status::SUCCESS);
    assert_eq!(admin.identify(Cns::CONTROLLER, 0).status(), Status::SUCCESS);
    assert_eq!(target.connected()[0].io_queues, 1);
}

#[test]
fn wrong_key_of_the_controller_ends_the_queue_without_a_controller() {
    let target = keyed_target();
    let mut host = Host::unproven(&target, 0, &connect_data(0xffff));
    let ended = host.authenticate(host_keys(1, Some(8)));
    assert!(
        matches!(ended, Err(Refusal::ControllerNotAuthenticated(_))),
        "{ended:?}"
    );
    assert_eq!(
        counted(&target, AuthenticationOutcome::RefusedByHost),
        [1, 1]
    );
    assert_closes(&mut host, &CloseCause::AuthenticationFailed);
    assert_eq!(target.controllers(), 0);
}

#[test]
fn host_that_requires_a_missing_controller_key_is_refused() {
    let target = target();
    apply_keys(&target, only_host(policy(&[1], None)));
    let mut host = Host::unproven(&target, 0, &connect_data(0xffff));
    let ended = host.authenticate(host_keys(1, Some(9)));
    assert_eq!(ended, Err(Refusal::ByController(Explanation::FAILED)));
    assert_eq!(
        counted(&target, AuthenticationOutcome::NoControllerKey),
        [1, 1]
    );
    assert_closes(&mut host, &CloseCause::AuthenticationFailed);
}

#[test]
fn host_without_usable_hash_or_group_is_refused() {
    let keys = host_keys(1, None);
    let other_hash = HostKeys {
        hashes: vec![HashId::SHA512],
        ..keys.clone()
    };
    let other_group = HostKeys {
        groups: vec![GroupId::FFDHE2048],
        ..keys
    };
    for (keys, explanation) in [
        (other_hash, Explanation::HASH_NOT_USABLE),
        (other_group, Explanation::GROUP_NOT_USABLE),
    ] {
        let target = keyed_target();
        let mut host = Host::unproven(&target, 0, &connect_data(0xffff));
        let ended = host.authenticate(keys);
        assert_eq!(ended, Err(Refusal::ByController(explanation)));
        assert_eq!(counted(&target, AuthenticationOutcome::NotUsable), [1, 1]);
        assert_closes(&mut host, &CloseCause::AuthenticationFailed);
    }
}

#[test]
fn subsystem_that_requires_authentication_refuses_hosts_without_key() {
    let target = target();
    apply_keys(
        &target,
        AuthenticationSpec {
            subsystems: [nqn(SUBNQN)].into(),
            ..AuthenticationSpec::default()
        },
    );
    let mut host = Host::unproven(&target, 0, &connect_data(0xffff));
    let ended = host.authenticate(host_keys(1, None));
    assert_eq!(ended, Err(Refusal::ByController(Explanation::FAILED)));
    // Only hosts with keys have counters.
    assert_eq!(counted(&target, AuthenticationOutcome::NoKey), [1, 0]);
    assert_eq!(target.authentication_report().hosts, []);
    assert_eq!(target.shared.authentications.hosts(), 0);
    assert_closes(&mut host, &CloseCause::AuthenticationFailed);
}

/// Without DNR: Linux retries this, but gives up if its authentication fails.
#[test]
fn host_whose_keys_are_not_known_is_told_to_try_again() {
    let target = target();
    apply_keys(&target, only_host(policy(&[], None)));
    let connect = |qid| {
        let mut host = Host::open(&target, qid, 32);
        let completion = host.connect(&Connect::new(qid, 32, 0), &connect_data(0xffff));
        assert_eq!(completion.status(), Status::CONNECT_CONTROLLER_BUSY);
        let remark = host.queue.take_remark().unwrap();
        assert!(
            remark.contains("no key file of the host could be read"),
            "{remark}"
        );
        // The same queue may try again.
        assert!(host.queue.claimed().is_none() && host.close_cause().is_none());
        host
    };
    let mut waiting = connect(0);
    connect(1);
    assert_eq!(counted(&target, AuthenticationOutcome::NoKey), [0, 0]);
    apply_keys(&target, only_host(policy(&[1], None)));
    let completion = waiting.connect(&Connect::new(0, 32, 0), &connect_data(0xffff));
    assert_eq!(completion.status(), Status::SUCCESS);
    assert_eq!(waiting.authenticate(host_keys(1, None)), Ok(()));
}

#[test]
fn only_key_that_is_known_can_be_the_old_one() {
    let target = target();
    let old = Policy {
        first_is_old: true,
        unknown: Default::default(),
        ..policy(&[2], None)
    };
    apply_keys(&target, only_host(old));
    let mut host = Host::unproven(&target, 0, &connect_data(0xffff));
    assert_eq!(host.authenticate(host_keys(2, None)), Ok(()));
    let key_state = || target.connected()[0].authentication.unwrap().key;
    assert_eq!(key_state(), KeyState::Old);
    let changes = apply_keys(&target, only_host(policy(&[1, 2], None)));
    assert_eq!(changes.len(), 1, "{changes:?}");
    assert!(changes[0].ends_with("changed: key_file"), "{changes:?}");
    assert_eq!(key_state(), KeyState::Old);
}

#[test]
fn names_are_checked_before_authentication() {
    let target = keyed_target();
    let status = |qid, data| {
        let mut host = Host::open(&target, qid, 32);
        let completion = host.connect(&Connect::new(qid, 32, 0), &data);
        (completion.status(), host.queue.claimed().is_some())
    };
    let mut elsewhere = connect_data(0xffff);
    elsewhere.subnqn = nqn("nqn.2026-11.org.example:none").to_field();
    assert_eq!(
        status(0, elsewhere),
        (Status::CONNECT_INVALID_PARAMETERS, false)
    );
    let mut denied = connect_data(0xffff);
    denied.subnqn = nqn(CLOSED).to_field();
    assert_eq!(status(0, denied), (Status::CONNECT_INVALID_HOST, false));
    // No such controller; a number for an admin queue.
    assert_eq!(
        status(1, connect_data(5)),
        (Status::CONNECT_INVALID_PARAMETERS, false)
    );
    assert_eq!(
        status(0, connect_data(5)),
        (Status::CONNECT_INVALID_PARAMETERS, false)
    );
    assert_unused(&target);
}

#[test]
fn other_commands_need_authentication_and_may_be_repeated() {
    let target = keyed_target();
    let mut host = Host::unproven(&target, 0, &connect_data(0xffff));
    let commands: [Sqe; 4] = [
        PropertyAccess::get(Property::CAP, true),
        nvmeof_wire::admin::Identify::new(Cns::CONTROLLER, 0).to_sqe(),
        nvm::flush(1),
        Connect::new(0, 32, 0).to_sqe(),
    ];
    for command in commands.into_iter().chain(commands).take(7) {
        let completion = host.plain(command);
        assert_eq!(completion.status(), Status::AUTHENTICATION_REQUIRED);
        assert!(!completion.cqe.status().dnr());
    }
    assert_eq!(host.close_cause(), None);
    // It still authenticates.
    assert_eq!(host.authenticate(host_keys(1, None)), Ok(()));
}

#[test]
fn queue_with_eight_refused_commands_is_closed() {
    let target = keyed_target();
    let mut host = Host::unproven(&target, 0, &connect_data(0xffff));
    for _ in 0..8 {
        assert_eq!(host.close_cause(), None);
        let completion = host.plain(PropertyAccess::get(Property::CAP, true));
        assert_eq!(completion.status(), Status::AUTHENTICATION_REQUIRED);
    }
    assert_eq!(counted(&target, AuthenticationOutcome::Protocol), [1, 1]);
    // Also a command of the authentication comes too late.
    let Outcome::Closed(cause) = host.run(AuthCommand::receive(4096).to_sqe(), &[], &[]) else {
        panic!("served");
    };
    assert_eq!(cause, CloseCause::NotAuthenticated);
    assert_eq!(host.close_cause(), Some(cause));
}

#[test]
fn second_command_during_one_of_the_authentication_closes_the_queue() {
    let target = keyed_target();
    let mut host = Host::unproven(&target, 0, &connect_data(0xffff));
    let mut send = AuthCommand::send(72).to_sqe();
    send.dptr = Sgl::keyed(0x1000, 72, 7).to_descriptor();
    let mut request = Request::default();
    let action = host.queue.begin(NOW, &send.to_bytes(), &mut request);
    assert!(matches!(action, crate::Action::Pull { .. }), "{action:?}");
    let Outcome::Closed(cause) = host.run(AuthCommand::receive(4096).to_sqe(), &[], &[]) else {
        panic!("served");
    };
    assert_eq!(cause, CloseCause::NotAuthenticated);
    assert_eq!(counted(&target, AuthenticationOutcome::Protocol), [1, 1]);
}

#[test]
fn wrong_fields_of_authentication_commands_are_invalid() {
    let target = keyed_target();
    let refused = |sqe: Sqe| {
        let mut host = Host::unproven(&target, 0, &connect_data(0xffff));
        let completion = host.plain(sqe);
        assert_eq!(completion.status(), Status::INVALID_FIELD, "{sqe:?}");
        assert!(completion.cqe.status().dnr());
        assert_eq!(host.authenticate(host_keys(1, None)), Ok(()));
    };
    let with = |mut command: AuthCommand, len, sgl: Sgl| {
        command.len = u32::into(len);
        command.sgl = sgl.to_descriptor();
        command.to_sqe()
    };
    for command in [AuthCommand::send(72), AuthCommand::receive(4096)] {
        let len = command.len.get();
        let sgl = Sgl::keyed(0x1000, len, 7);
        refused(with(
            AuthCommand {
                spsp0: 0,
                ..command
            },
            len,
            sgl,
        ));
        refused(with(
            AuthCommand {
                spsp1: 2,
                ..command
            },
            len,
            sgl,
        ));
        refused(with(AuthCommand { secp: 0, ..command }, len, sgl));
        refused(with(command, len + 1, sgl));
        refused(with(command, len - 1, sgl));
        refused(with(command, 0, Sgl::keyed(0x1000, 0, 7)));
        // Two descriptors of half the length each.
        let half = Sgl::keyed(0x1000, len / 2, 7).to_descriptor();
        let list = Sgl::LastSegment { offset: 0, len: 32 };
        let mut host = Host::unproven(&target, 0, &connect_data(0xffff));
        let descriptors = [half.as_bytes(), half.as_bytes()].concat();
        let outcome = host.run(with(command, len, list), &[], &descriptors);
        let Outcome::Answered(completion) = outcome else {
            panic!("{outcome:?}");
        };
        assert_eq!(completion.status(), Status::INVALID_FIELD);
    }
    refused(with(
        AuthCommand::send(0),
        4097,
        Sgl::keyed(0x1000, 4097, 7),
    ));
}

#[test]
fn only_the_bytes_of_a_message_are_pushed() {
    let target = keyed_target();
    let mut host = Host::unproven(&target, 0, &connect_data(0xffff));
    let (_, step) = nvmeof_dhchap::HostAuth::start(nqn(HOST), nqn(SUBNQN), host_keys(1, None), 7);
    let nvmeof_dhchap::HostStep::Send(negotiate) = step else {
        panic!("{step:?}");
    };
    assert_eq!(host.auth_send(&negotiate).status(), Status::SUCCESS);
    // Too short for it: it is not lost.
    let short = host.read(AuthCommand::receive(47).to_sqe(), 47);
    assert_eq!(short.status(), Status::INVALID_FIELD);
    // A buffer that is longer than any message.
    let challenge = host.read(AuthCommand::receive(1 << 20).to_sqe(), 1 << 20);
    assert_eq!(
        (challenge.status(), challenge.data.len()),
        (Status::SUCCESS, 16 + 32)
    );
    // There is no further message.
    let nothing = host.read(AuthCommand::receive(4096).to_sqe(), MAX_MESSAGE);
    assert_eq!(nothing.status(), Status::COMMAND_SEQUENCE_ERROR);
}

#[test]
fn message_in_the_capsule_is_as_good() {
    let target = keyed_target();
    let mut host = Host::unproven(&target, 0, &connect_data(0xffff));
    let garbage = host.write_in_capsule(AuthCommand::send(72).to_sqe(), &[7; 72]);
    assert_eq!(garbage.status(), Status::SUCCESS);
    let failure = host.auth_receive();
    assert_eq!(failure.data[..8], [0, 0xf1, 0, 0, 7, 7, 1, 7]);
    assert_eq!(counted(&target, AuthenticationOutcome::Protocol), [1, 1]);
    assert_closes(&mut host, &CloseCause::AuthenticationFailed);
}

#[test]
fn failure_is_counted_once_and_messages_after_it_do_not_extend_its_time() {
    let target = keyed_target();
    let mut host = Host::unproven(&target, 0, &connect_data(0xffff));
    assert_eq!(host.auth_send(&[7; 80]).status(), Status::SUCCESS);
    let deadline = host.queue.next_deadline().unwrap();
    for _ in 0..7 {
        host.now += Duration::from_millis(100);
        let ignored = host.auth_send(&[7; 80]);
        assert_eq!(ignored.status(), Status::COMMAND_SEQUENCE_ERROR);
    }
    assert_eq!(counted(&target, AuthenticationOutcome::Protocol), [1, 1]);
    assert_eq!(host.queue.next_deadline(), Some(deadline));
    host.now = deadline;
    assert_eq!(host.close_cause(), Some(CloseCause::AuthenticationFailed));
    assert_eq!(counted(&target, AuthenticationOutcome::Timeout), [0, 0]);
}

#[test]
fn silent_host_is_closed_after_its_keep_alive_timeout_within_bounds() {
    for (kato_ms, seconds) in [(40_000, 40), (5000, 30), (1, 30), (0, 120), (u32::MAX, 120)] {
        let target = keyed_target();
        let connect = Connect::new(0, 32, kato_ms);
        let mut host = Host::unproven_with(&target, &connect, &connect_data(0xffff));
        let deadline = host.queue.next_deadline().unwrap();
        assert_eq!(deadline, NOW + Duration::from_secs(seconds));
        host.now = deadline - Duration::from_millis(1);
        assert_eq!(host.close_cause(), None);
        host.now = deadline;
        let cause = CloseCause::AuthenticationTimeout { seconds };
        assert_eq!(host.close_cause(), Some(cause));
        assert_eq!(counted(&target, AuthenticationOutcome::Timeout), [1, 1]);
        let remark = host.queue.take_remark().unwrap();
        assert!(
            remark.contains(&format!("no message within {seconds} s")),
            "{remark}"
        );
        let _ = host.queue.close();
        assert_unused(&target);
    }
}

#[test]
fn each_step_is_progress_and_has_its_own_time() {
    let target = keyed_target();
    let mut host = Host::unproven(&target, 0, &connect_data(0xffff));
    assert_eq!(host.queue.last_progress(), Some(NOW));
    host.now += Duration::from_secs(100);
    let mut keys = host_keys(1, None);
    keys.hashes = vec![HashId::SHA256];
    let (_, step) = nvmeof_dhchap::HostAuth::start(nqn(HOST), nqn(SUBNQN), keys, 7);
    let nvmeof_dhchap::HostStep::Send(negotiate) = step else {
        panic!("{step:?}");
    };
    assert_eq!(host.auth_send(&negotiate).status(), Status::SUCCESS);
    assert_eq!(host.queue.last_progress(), Some(host.now));
    assert_eq!(
        host.queue.next_deadline(),
        Some(host.now + Duration::from_secs(120))
    );
    let before = host.now;
    host.now += Duration::from_secs(50);
    // Refused commands are no progress.
    let refused = host.plain(PropertyAccess::get(Property::CAP, true));
    assert_eq!(refused.status(), Status::AUTHENTICATION_REQUIRED);
    assert_eq!(host.queue.last_progress(), Some(before));
}

#[test]
fn proposed_identifier_that_another_host_got_may_be_connected_again() {
    let spec = SubsystemSpec {
        cntlid_min: Some(7),
        cntlid_max: Some(7),
        ..crate::testing::subsystem()
    };
    let model = Model::build(Limits::default(), &[crate::testing::port()], &[spec]);
    let target = Target::new(model.unwrap());
    apply_keys(&target, only_host(policy(&[1], None)));
    let [mut first, mut second] =
        [(); 2].map(|()| Host::unproven(&target, 0, &connect_data(0xffff)));
    assert_eq!(target.shared.registry.proposals(), 2);
    assert_eq!(second.authenticate(host_keys(1, None)), Ok(()));
    let (_, status) = first.transact(host_keys(1, None));
    assert_eq!(status, Status::CONNECT_CONTROLLER_BUSY);
    let remark = first.queue.take_remark().unwrap();
    assert!(remark.contains("controller identifier 7"), "{remark}");
    assert_eq!(target.limit_counters().get(Limit::ControllerIds), 1);
    assert_closes(&mut first, &CloseCause::NotJoined);
    // Also one that needs no key.
    drop((first, second));
    let mut third = Host::unproven(&target, 0, &connect_data(0xffff));
    let other = connect_data_of("nqn.2026-11.org.example:other", 0xffff);
    let (_other, cntlid) = Host::admin_with(&target, 0, &other);
    assert_eq!(cntlid, 7);
    assert_eq!(
        third.transact(host_keys(1, None)).1,
        Status::CONNECT_CONTROLLER_BUSY
    );
}

#[test]
fn proposed_identifier_outside_a_changed_range_is_refused() {
    let model = |first| {
        let spec = SubsystemSpec {
            cntlid_min: Some(first),
            cntlid_max: Some(first + 1),
            ..crate::testing::subsystem()
        };
        let model = Model::build(Limits::default(), &[crate::testing::port()], &[spec]);
        model
            .unwrap()
            .with_authentication(only_host(policy(&[1], None)))
    };
    let target = Target::new(model(7));
    let mut host = Host::unproven(&target, 0, &connect_data(0xffff));
    let _ = target.apply(model(20)).unwrap();
    let (_, status) = host.transact(host_keys(1, None));
    assert_eq!(status, Status::CONNECT_CONTROLLER_BUSY);
    let (_admin, cntlid) = Host::proven(&target);
    assert_eq!(cntlid, 20);
}

#[test]
fn identifiers_that_are_proposed_are_given_to_others_last() {
    let target = keyed_target();
    let _first = Host::unproven(&target, 0, &connect_data(0xffff));
    let other = connect_data_of("nqn.2026-11.org.example:other", 0xffff);
    let (_other, cntlid) = Host::admin_with(&target, 0, &other);
    assert_eq!(cntlid, 2);
    let mut second = Host::unproven(&target, 0, &connect_data(0xffff));
    assert_eq!(second.authenticate(host_keys(1, None)), Ok(()));
    assert_eq!(second.queue.association().unwrap().2, 3);
}

#[test]
fn proven_host_beyond_its_quota_is_refused() {
    let limits = Limits {
        controllers: 3,
        host_controllers: 1,
        ..Limits::default()
    };
    let target = target_with(limits);
    apply_keys(&target, only_host(policy(&[1], None)));
    let (_admin, _) = Host::proven(&target);
    for controller_key in [None, Some(9)] {
        apply_keys(&target, only_host(policy(&[1], controller_key)));
        let mut second = Host::unproven(&target, 0, &connect_data(0xffff));
        let (_, status) = second.transact(host_keys(1, controller_key));
        assert_eq!(status, Status::CONNECT_CONTROLLER_BUSY);
        let remark = second.queue.take_remark().unwrap();
        assert!(remark.contains("limits.host_controllers"), "{remark}");
        assert!(!second.queue.is_connected());
        assert_closes(&mut second, &CloseCause::NotJoined);
    }
    assert_eq!(target.controllers(), 1);
    assert_eq!(counted(&target, AuthenticationOutcome::Success), [3, 3]);
}

#[test]
fn missing_buffers_refuse_the_queue_when_it_joins() {
    let target = keyed_target();
    let mut host = Host::unproven(&target, 0, &connect_data(0xffff));
    host.queue
        .set_room(Err("0 of the 32 capsule buffers".to_owned()));
    let (_, status) = host.transact(host_keys(1, None));
    assert_eq!(status, Status::CONNECT_CONTROLLER_BUSY);
    assert!(!host.queue.is_connected());
}

#[test]
fn discovery_authenticates_only_if_required() {
    let target = keyed_target();
    let mut data = connect_data(0xffff);
    data.subnqn = Nqn::discovery().to_field();
    let (plain, _) = Host::admin_with(&target, 0, &data);
    drop(plain);
    let spec = AuthenticationSpec {
        discovery: true,
        ..only_host(policy(&[1], None))
    };
    let changes = apply_keys(&target, spec);
    assert!(changes.contains(&"the discovery subsystem is changed: require_authentication".into()));
    let _known = Host::unproven(&target, 0, &data);
    let mut other = connect_data_of("nqn.2026-11.org.example:other", 0xffff);
    other.subnqn = Nqn::discovery().to_field();
    let _unknown = Host::unproven(&target, 0, &other);
    assert_eq!(target.controllers(), 0);
}

#[test]
fn host_with_the_name_but_another_identifier_is_another_matter_than_its_key() {
    let target = keyed_target();
    let (_admin, cntlid) = Host::proven(&target);
    let mut data = connect_data(cntlid);
    data.hostid = HOST_ID.map(|byte| byte + 1);
    let mut io = Host::open(&target, 1, 32);
    let completion = io.connect(&Connect::new(1, 32, 0), &data);
    assert_eq!(completion.status(), Status::CONNECT_INVALID_PARAMETERS);
}

#[test]
fn controller_lost_during_authentication_refuses_the_io_queue() {
    let target = keyed_target();
    let (admin, cntlid) = Host::proven(&target);
    let mut io = Host::unproven(&target, 1, &connect_data(cntlid));
    drop(admin);
    let (_, status) = io.transact(host_keys(1, None));
    assert_eq!(status, Status::CONNECT_INVALID_PARAMETERS);
    assert_closes(&mut io, &CloseCause::NotJoined);
    assert_unused_after(io, &target);
}

fn assert_unused_after(host: Host, target: &Target) {
    drop(host);
    assert_unused(target);
}

#[test]
fn subsystem_removed_during_authentication_refuses_the_queue() {
    let target = keyed_target();
    let mut host = Host::unproven(&target, 0, &connect_data(0xffff));
    let model = Model::build(
        target.limits().clone(),
        &[crate::testing::port()],
        &[crate::testing::closed()],
    );
    let model = model
        .unwrap()
        .with_authentication(only_host(policy(&[1], None)));
    let _ = target.apply(model).unwrap();
    let (_, status) = host.transact(host_keys(1, None));
    assert_eq!(status, Status::CONNECT_INVALID_PARAMETERS);
    assert_eq!(target.controllers(), 0);
}

#[test]
fn each_group_and_hash_of_the_policy_is_negotiated() {
    for (hash, group) in [
        (HashId::SHA512, GroupId::FFDHE2048),
        (HashId::SHA384, GroupId::FFDHE3072),
    ] {
        let target = target();
        let policy = Policy {
            hashes: vec![hash],
            groups: vec![group],
            ..policy(&[1], Some(9))
        };
        apply_keys(&target, only_host(policy));
        let mut host = Host::unproven(&target, 0, &connect_data(0xffff));
        assert_eq!(host.authenticate(host_keys(1, Some(9))), Ok(()));
        let how = target.connected()[0].authentication.unwrap();
        assert_eq!((how.hash, how.group, how.is_mutual), (hash, group, true));
    }
}
