//! Authentication of queues that serve commands already, changes of keys, and messages in any
//! order.

use std::time::Duration;

use nvmeof_dhchap::{HostAuth, HostStep, Refusal, Work};
use nvmeof_wire::admin::Cns;
use nvmeof_wire::auth::{
    AuthCommand, Explanation, Failure, FailureSide, GroupId, HashId, MAX_MESSAGE, Negotiate, Reply,
    Success2,
};
use nvmeof_wire::fabrics::PropertyAccess;
use nvmeof_wire::nvm::Io;
use nvmeof_wire::opcode::io;
use nvmeof_wire::registers::{Cc, Property};
use nvmeof_wire::{Sgl, Status, nvm};
use proptest::prelude::*;

use crate::testing::{
    HOST, Host, NOW, Numbers, SUBNQN, apply_keys, connect_data, host_keys, keyed_target, nqn,
    only_host, policy, target,
};
use crate::{
    Action, AuthenticationCounts, AuthenticationOutcome, AuthenticationSpec, CloseCause, Event,
    KeyState, Request, Target,
};

fn key_state(target: &Target) -> Option<KeyState> {
    target.connected()[0].authentication.map(|how| how.key)
}

fn counted(target: &Target, outcome: AuthenticationOutcome) -> u64 {
    target.authentication_report().all.get(outcome)
}

/// A Negotiate of a host with usable hash functions and groups.
fn negotiate() -> Vec<u8> {
    let keys = host_keys(1, None);
    match HostAuth::start(nqn(HOST), nqn(SUBNQN), keys, 7).1 {
        HostStep::Send(bytes) => bytes,
        other => panic!("{other:?}"),
    }
}

/// Begins an Authentication Send up to its computation.
fn computing(host: &mut Host, cid: u16, message: &[u8]) -> (Request, Work) {
    let len = u32::try_from(message.len()).unwrap();
    let mut sqe = AuthCommand::send(len).to_sqe();
    sqe.cid = cid.into();
    sqe.dptr = Sgl::keyed(0x1000, len, 7).to_descriptor();
    let mut request = Request::default();
    let action = host.queue.begin(host.now, &sqe.to_bytes(), &mut request);
    assert!(matches!(action, Action::Pull { .. }), "{action:?}");
    let event = Event::Pulled(message);
    match host.queue.step(host.now, &mut request, event) {
        Action::Compute(work) => (request, work),
        other => panic!("{other:?}"),
    }
}

/// An admin queue and an I/O queue whose host proved key 1.
fn connected() -> (Target, Host, Host) {
    let target = keyed_target();
    let (admin, cntlid) = Host::proven(&target);
    let mut io = Host::unproven(&target, 1, &connect_data(cntlid));
    assert_eq!(io.authenticate(host_keys(1, None)), Ok(()));
    (target, admin, io)
}

#[test]
fn queues_authenticate_again_under_outstanding_commands() {
    let (target, mut admin, mut io) = connected();
    let mut read = Io::new(1, 0, 8).to_sqe(io::READ);
    read.cid = 900.into();
    read.dptr = Sgl::keyed(0x1000, 4096, 7).to_descriptor();
    let mut request = Request::default();
    let action = io.queue.begin(NOW, &read.to_bytes(), &mut request);
    assert!(matches!(action, Action::Execute(_)), "{action:?}");
    assert_eq!(io.authenticate(host_keys(1, Some(9))), Ok(()));
    assert_eq!(admin.authenticate(host_keys(2, Some(9))), Ok(()));
    assert_eq!(io.end(request, action).status(), Status::SUCCESS);
    let how = target.connected()[0].authentication.unwrap();
    assert_eq!((how.key, how.is_mutual), (KeyState::Old, true));
    let remark = admin.queue.take_remark().unwrap();
    assert!(remark.starts_with("re-authenticated: old key"), "{remark}");
    assert_eq!(counted(&target, AuthenticationOutcome::Success), 4);
    assert_eq!(admin.identify(Cns::CONTROLLER, 0).status(), Status::SUCCESS);
    assert_eq!(io.queue.next_deadline(), None);
}

#[test]
fn failure_on_a_connected_queue_leaves_everything_as_it_was() {
    let (target, mut admin, mut io) = connected();
    let before = target.connected();
    for queue in [&mut admin, &mut io] {
        let ended = queue.authenticate(host_keys(3, None));
        assert_eq!(ended, Err(Refusal::ByController(Explanation::FAILED)));
        let remark = queue.queue.take_remark().unwrap();
        assert!(remark.ends_with("the queue remains connected"), "{remark}");
        queue.now += Duration::from_secs(1);
        assert_eq!(queue.close_cause(), None);
    }
    assert_eq!(target.connected(), before);
    assert_eq!(counted(&target, AuthenticationOutcome::WrongKey), 2);
    assert_eq!(io.plain(nvm::flush(1)).status(), Status::SUCCESS);
    assert_eq!(io.authenticate(host_keys(1, None)), Ok(()));
}

#[test]
fn silence_on_a_connected_queue_ends_only_the_transaction() {
    let (target, mut admin, mut io) = connected();
    let before = target.connected();
    for queue in [&mut admin, &mut io] {
        assert_eq!(queue.auth_send(&negotiate()).status(), Status::SUCCESS);
        let deadline = queue.queue.next_deadline().unwrap();
        queue.now = deadline;
        assert_eq!(queue.close_cause(), None);
        assert_eq!(queue.queue.next_deadline(), None);
        assert_eq!(queue.authenticate(host_keys(1, None)), Ok(()));
    }
    assert_eq!(counted(&target, AuthenticationOutcome::Timeout), 2);
    assert_eq!(target.connected(), before);
}

#[test]
fn key_state_follows_the_present_keys() {
    let (target, mut admin, mut io) = connected();
    assert_eq!(key_state(&target), Some(KeyState::Current));
    let changes = apply_keys(&target, only_host(policy(&[3, 1], Some(9))));
    let changed = |key| format!("the key of host {HOST} is changed: {key}");
    assert_eq!(changes, ["key_file", "old_key_file"].map(changed));
    assert_eq!(key_state(&target), Some(KeyState::Old));
    // The old key is accepted until it is removed.
    assert_eq!(io.authenticate(host_keys(1, None)), Ok(()));
    let changes = apply_keys(&target, only_host(policy(&[3], None)));
    assert_eq!(
        changes,
        ["old_key_file", "controller_key_file"].map(changed)
    );
    assert_eq!(key_state(&target), Some(KeyState::Removed));
    // The host stays connected, but cannot prove the removed key again.
    assert!(admin.authenticate(host_keys(1, None)).is_err());
    assert_eq!(key_state(&target), Some(KeyState::Removed));
    assert_eq!(io.plain(nvm::flush(1)).status(), Status::SUCCESS);
    assert_eq!(admin.authenticate(host_keys(3, None)), Ok(()));
    assert_eq!(key_state(&target), Some(KeyState::Current));
    let changes = apply_keys(&target, AuthenticationSpec::default());
    assert_eq!(changes, [format!("the key of host {HOST} is removed")]);
    assert_eq!(key_state(&target), Some(KeyState::Removed));
    assert_eq!(target.authentication_report().hosts, []);
    // A host that gets a key again is counted anew.
    apply_keys(&target, only_host(policy(&[1], None)));
    let anew = AuthenticationCounts::default();
    assert_eq!(target.authentication_report().hosts, [(nqn(HOST), anew)]);
}

#[test]
fn same_keys_are_no_change() {
    let target = keyed_target();
    assert_eq!(
        apply_keys(&target, only_host(policy(&[1, 2], Some(9)))),
        [""; 0]
    );
    let mut policy = policy(&[1, 2], Some(9));
    policy.groups.push(GroupId::FFDHE2048);
    policy.hashes.reverse();
    let changes = apply_keys(&target, only_host(policy));
    let changed = |key| format!("the key of host {HOST} is changed: {key}");
    assert_eq!(changes, ["hash", "dh_groups"].map(changed));
    let mut spec = target.model().authentication().clone();
    spec.subsystems.insert(nqn(SUBNQN));
    let changes = apply_keys(&target, spec);
    let required = format!("subsystem {SUBNQN} is changed: require_authentication");
    assert_eq!(changes, [required]);
}

#[test]
fn new_keys_apply_from_the_next_transaction_on() {
    let target = keyed_target();
    let mut host = Host::unproven(&target, 0, &connect_data(0xffff));
    apply_keys(&target, only_host(policy(&[3], None)));
    assert_eq!(host.authenticate(host_keys(3, None)), Ok(()));
    // In the middle of a transaction.
    let mut host = Host::unproven(&target, 0, &connect_data(0xffff));
    assert_eq!(host.auth_send(&negotiate()).status(), Status::SUCCESS);
    apply_keys(&target, only_host(policy(&[4, 3], None)));
    let (mut auth, _) = HostAuth::start(nqn(HOST), nqn(SUBNQN), host_keys(3, None), 7);
    assert!(matches!(auth.sent(), HostStep::Receive));
    let HostStep::Run(work) = auth.received(&host.auth_receive().data) else {
        panic!("no challenge");
    };
    let HostStep::Send(reply) = auth.finished(work.run(&mut Numbers(1))) else {
        panic!("no reply");
    };
    assert_eq!(host.auth_send(&reply).status(), Status::SUCCESS);
    assert!(matches!(auth.sent(), HostStep::Receive));
    assert!(matches!(
        auth.received(&host.auth_receive().data),
        HostStep::Done
    ));
    assert!(host.queue.is_connected());
}

#[test]
fn host_whose_key_was_removed_before_it_proved_it_is_refused() {
    let target = keyed_target();
    let mut host = Host::unproven(&target, 0, &connect_data(0xffff));
    apply_keys(&target, AuthenticationSpec::default());
    let ended = host.authenticate(host_keys(1, None));
    assert_eq!(ended, Err(Refusal::ByController(Explanation::FAILED)));
    assert_eq!(counted(&target, AuthenticationOutcome::NoKey), 1);
    // It may connect again, and then needs no key.
    let (_admin, _) = Host::admin(&target);
}

/// A host that proves a key which is removed before it joins gets no controller: those with that
/// key were disconnected before.
#[test]
fn key_that_is_removed_during_the_proof_gives_no_controller() {
    let target = keyed_target();
    let mut host = Host::unproven(&target, 0, &connect_data(0xffff));
    let (auth, step) = HostAuth::start(nqn(HOST), nqn(SUBNQN), host_keys(1, None), 7);
    let mut auth = auth;
    let HostStep::Send(negotiate) = step else {
        panic!("no message");
    };
    assert_eq!(host.auth_send(&negotiate).status(), Status::SUCCESS);
    assert!(matches!(auth.sent(), HostStep::Receive));
    let HostStep::Run(work) = auth.received(&host.auth_receive().data) else {
        panic!("no challenge");
    };
    let HostStep::Send(reply) = auth.finished(work.run(&mut Numbers(1))) else {
        panic!("no reply");
    };
    assert_eq!(host.auth_send(&reply).status(), Status::SUCCESS);
    apply_keys(&target, only_host(policy(&[5], None)));
    let ended = host.auth_receive();
    assert_eq!(ended.status().kind(), Status::CONNECT_CONTROLLER_BUSY);
    assert!(!ended.status().dnr());
    assert!(!host.queue.is_connected());
    assert_eq!(target.connected(), []);
}

/// A host that lost a message of its transaction begins another one.
#[test]
fn negotiate_on_a_connected_queue_begins_anew() {
    let (_target, mut admin, _io) = connected();
    assert_eq!(admin.auth_send(&negotiate()).status(), Status::SUCCESS);
    assert_eq!(admin.authenticate(host_keys(1, None)), Ok(()));
    assert_eq!(admin.auth_send(&negotiate()).status(), Status::SUCCESS);
    assert_eq!(admin.auth_receive().status(), Status::SUCCESS);
    assert_eq!(admin.authenticate(host_keys(1, None)), Ok(()));
}

#[test]
fn host_that_got_a_key_while_connected_may_prove_it() {
    let target = target();
    let (mut admin, cntlid) = Host::admin(&target);
    let ended = admin.authenticate(host_keys(1, None));
    assert_eq!(ended, Err(Refusal::ByController(Explanation::FAILED)));
    assert_eq!(admin.close_cause(), None);
    let changes = apply_keys(&target, only_host(policy(&[1], None)));
    assert_eq!(changes, [format!("the key of host {HOST} is added")]);
    assert_eq!(key_state(&target), None);
    assert_eq!(admin.authenticate(host_keys(1, None)), Ok(()));
    assert_eq!(key_state(&target), Some(KeyState::Current));
    // Its next queue has to.
    let _io = Host::unproven(&target, 1, &connect_data(cntlid));
}

#[test]
fn receive_on_a_connected_queue_without_a_transaction_is_out_of_sequence() {
    let (_target, mut admin, mut io) = connected();
    for queue in [&mut admin, &mut io] {
        for _ in 0..10 {
            assert_eq!(
                queue.auth_receive().status(),
                Status::COMMAND_SEQUENCE_ERROR
            );
        }
        assert_eq!(queue.close_cause(), None);
    }
    let target = target();
    let (mut plain, _) = Host::admin(&target);
    assert_eq!(
        plain.auth_receive().status(),
        Status::COMMAND_SEQUENCE_ERROR
    );
}

#[test]
fn reset_during_a_computation_leaves_the_command_without_response() {
    let (_target, mut admin, _io) = connected();
    let (mut request, work) = computing(&mut admin, 900, &negotiate());
    assert!(admin.queue.awaits_worker());
    assert_eq!(admin.set_cc(0).status(), Status::SUCCESS);
    assert_eq!(admin.set_cc(Cc::ENABLE.0).status(), Status::SUCCESS);
    let event = Event::Computed(work.run(&mut Numbers(1)));
    let action = admin.queue.step(admin.now, &mut request, event);
    assert!(matches!(action, Action::Hold), "{action:?}");
    assert!(!admin.queue.awaits_worker());
    // Another transaction replaces that of before the reset.
    assert_eq!(admin.authenticate(host_keys(1, None)), Ok(()));
}

/// A queue has one computation, whatever its host sends meanwhile.
#[test]
fn message_during_a_computation_is_out_of_sequence() {
    let (_target, mut admin, _io) = connected();
    let (mut first, work) = computing(&mut admin, 900, &negotiate());
    for _ in 0..3 {
        // A Receive does not wait for it, either.
        for later in [admin.auth_receive(), admin.auth_send(&negotiate())] {
            assert_eq!(later.status(), Status::COMMAND_SEQUENCE_ERROR);
            assert!(!later.cqe.status().dnr());
        }
    }
    assert!(admin.queue.awaits_worker());
    // Also if the transaction has ended meanwhile.
    admin.now = admin.queue.next_deadline().unwrap();
    assert_eq!(admin.close_cause(), None);
    let later = admin.auth_send(&negotiate());
    assert_eq!(later.status(), Status::COMMAND_SEQUENCE_ERROR);
    let event = Event::Computed(work.run(&mut Numbers(1)));
    let action = admin.queue.step(admin.now, &mut first, event);
    assert!(matches!(action, Action::Respond(_)), "{action:?}");
    assert_eq!(admin.authenticate(host_keys(1, None)), Ok(()));
}

/// A peer that does not fetch a failure cannot send messages for ever.
#[test]
fn messages_after_a_failure_close_an_unproven_queue() {
    let target = keyed_target();
    let mut host = Host::unproven(&target, 0, &connect_data(0xffff));
    assert_eq!(host.auth_send(&[0; 20]).status(), Status::SUCCESS);
    for _ in 0..8 {
        let refused = host.auth_send(&negotiate());
        assert_eq!(refused.status(), Status::COMMAND_SEQUENCE_ERROR);
    }
    host.now += Duration::from_secs(1);
    assert!(host.close_cause().is_some());
}

#[test]
fn computation_without_result_fails_after_two_minutes() {
    let target = keyed_target();
    let mut host = Host::unproven(&target, 0, &connect_data(0xffff));
    let (_request, _work) = computing(&mut host, 900, &negotiate());
    let deadline = host.queue.next_deadline().unwrap();
    assert_eq!(deadline, NOW + Duration::from_secs(120));
    host.now = deadline;
    assert_eq!(host.close_cause(), Some(CloseCause::AuthenticationFailed));
    assert_eq!(counted(&target, AuthenticationOutcome::Internal), 1);
}

#[test]
fn computation_that_is_not_run_fails_the_authentication() {
    let target = keyed_target();
    let mut host = Host::unproven(&target, 0, &connect_data(0xffff));
    let (mut request, work) = computing(&mut host, 900, &negotiate());
    let event = Event::Computed(work.not_run("no worker"));
    let action = host.queue.step(host.now, &mut request, event);
    assert!(matches!(action, Action::Respond(_)), "{action:?}");
    assert_eq!(host.auth_receive().data[7], Explanation::FAILED.0);
    assert_eq!(counted(&target, AuthenticationOutcome::Internal), 1);
}

#[test]
fn closed_queue_with_a_computation_leaves_nothing() {
    let target = keyed_target();
    let mut host = Host::unproven(&target, 0, &connect_data(0xffff));
    let (_request, work) = computing(&mut host, 900, &negotiate());
    let _ = host.queue.close();
    assert_eq!(target.shared.registry.proposals(), 0);
    drop(work);
}

/// What a peer without the key does.
#[derive(Clone, Debug)]
enum Act {
    Bytes(Vec<u8>),
    /// A well-formed message, by number.
    Message(u8),
    /// A message of the host itself, which a third party recorded on another queue.
    Replay(u8),
    Receive(u32),
    Other,
    /// The computation ends, or cannot be run.
    Computed(bool),
    Wait(u16),
    Keys(u8),
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        1 => prop::collection::vec(any::<u8>(), 1..200).prop_map(Act::Bytes),
        6 => any::<u8>().prop_map(Act::Message),
        2 => any::<u8>().prop_map(Act::Replay),
        4 => (0u32..5000).prop_map(Act::Receive),
        1 => Just(Act::Other),
        6 => any::<bool>().prop_map(Act::Computed),
        1 => (0u16..40_000).prop_map(Act::Wait),
        1 => (0u8..4).prop_map(Act::Keys),
    ]
}

fn written(write: impl FnOnce(&mut [u8]) -> Option<usize>) -> Vec<u8> {
    let mut buf = vec![0; MAX_MESSAGE];
    let len = write(&mut buf).unwrap();
    buf.truncate(len);
    buf
}

fn message(number: u8) -> Vec<u8> {
    let t_id = u16::from(number & 1) + 7;
    let value = [number; 32];
    let reply = Reply {
        t_id,
        seqnum: u32::from(number >> 5),
        response: &value,
        challenge: (number & 2 != 0).then_some(&value),
        public: &[],
    };
    let failure = Failure {
        t_id,
        side: FailureSide::Host,
        explanation: Explanation::FAILED,
    };
    match number % 7 {
        0..3 => written(|buf| {
            let offer = Negotiate {
                t_id,
                sc_c: u8::from(number > 250),
                hashes: &[HashId::SHA256],
                groups: &[GroupId::NULL],
                is_offered: true,
            };
            offer.write(buf)
        }),
        3 | 4 => written(|buf| reply.write(buf)),
        5 => written(|buf| Success2 { t_id }.write(buf)),
        _ => written(|buf| failure.write(buf)),
    }
}

/// The messages that the host sends to connect a queue, both ways.
fn recorded() -> Vec<Vec<u8>> {
    let target = keyed_target();
    let mut host = Host::unproven(&target, 0, &connect_data(0xffff));
    let (mut auth, mut step) = HostAuth::start(nqn(HOST), nqn(SUBNQN), host_keys(1, Some(9)), 7);
    let mut all = Vec::new();
    loop {
        step = match step {
            HostStep::Send(bytes) => {
                assert_eq!(host.auth_send(&bytes).status(), Status::SUCCESS);
                all.push(bytes);
                auth.sent()
            }
            HostStep::Receive => auth.received(&host.auth_receive().data),
            HostStep::Run(work) => auth.finished(work.run(&mut Numbers(1))),
            HostStep::Done => return all,
            HostStep::Refused(refusal) => panic!("{refusal}"),
        };
    }
}

/// A queue, and its command in progress.
struct Peer {
    host: Host,
    computing: Option<(Request, Work)>,
    cid: u16,
}

impl Peer {
    fn act(&mut self, act: &Act, recorded: &[Vec<u8>], target: &Target) {
        let now = self.host.now;
        match act {
            Act::Bytes(bytes) => self.send(bytes),
            Act::Message(number) => self.send(&message(*number)),
            Act::Replay(number) => {
                let at = usize::from(*number) % recorded.len();
                self.send(&recorded[at]);
            }
            Act::Receive(len) => {
                let mut sqe = AuthCommand::receive(*len).to_sqe();
                sqe.dptr = Sgl::keyed(0x1000, *len, 7).to_descriptor();
                self.begin(&sqe, &[]);
            }
            Act::Other => self.begin(&PropertyAccess::get(Property::CAP, true), &[]),
            Act::Computed(runs) => {
                let Some((mut request, work)) = self.computing.take() else {
                    return;
                };
                let result = match runs {
                    true => work.run(&mut Numbers(now.as_secs())),
                    false => work.not_run("as the test likes"),
                };
                let event = Event::Computed(result);
                let action = self.host.queue.step(now, &mut request, event);
                assert!(matches!(action, Action::Respond(_)), "{action:?}");
            }
            Act::Wait(ms) => self.host.now += Duration::from_millis((*ms).into()),
            Act::Keys(byte) => {
                let keys = &[byte + 10, 1];
                let _ = target.apply(
                    crate::Model::clone(&target.model())
                        .with_authentication(only_host(policy(keys, Some(9)))),
                );
            }
        }
    }

    fn send(&mut self, message: &[u8]) {
        let len = u32::try_from(message.len()).unwrap();
        let mut sqe = AuthCommand::send(len).to_sqe();
        sqe.dptr = Sgl::keyed(0x1000, len, 7).to_descriptor();
        self.begin(&sqe, message);
    }

    fn begin(&mut self, sqe: &nvmeof_wire::Sqe, data: &[u8]) {
        let mut sqe = *sqe;
        self.cid = self.cid.wrapping_add(1);
        sqe.cid = self.cid.into();
        let mut request = Request::default();
        let (queue, now) = (&mut self.host.queue, self.host.now);
        let mut action = queue.begin(now, &sqe.to_bytes(), &mut request);
        loop {
            action = match action {
                Action::Pull { .. } => queue.step(now, &mut request, Event::Pulled(data)),
                Action::Produce { len } => {
                    assert!(len <= 4096);
                    let mut out = vec![0; usize::try_from(len).unwrap()];
                    queue.step(now, &mut request, Event::Buffer(&mut out))
                }
                Action::Compute(work) => {
                    assert!(self.computing.is_none());
                    self.computing = Some((request, work));
                    return;
                }
                Action::Respond(response) => {
                    let bounds = response.push.map_or(1, |push| push.len);
                    assert!((1..=4096).contains(&bounds));
                    return;
                }
                Action::Close(_) => return,
                other => panic!("{other:?}"),
            };
        }
    }
}

proptest! {
    #[test]
    fn peer_without_the_key_never_connects(
        acts in prop::collection::vec(act(), 1..40),
        qid in 0u16..2,
    ) {
        let target = keyed_target();
        let (mut admin, cntlid) = Host::proven(&target);
        let recorded = recorded();
        let data = connect_data(if qid == 0 { 0xffff } else { cntlid });
        let host = Host::unproven(&target, qid, &data);
        let mut peer = Peer { host, computing: None, cid: 0 };
        for act in &acts {
            peer.act(act, &recorded, &target);
            prop_assert!(!peer.host.queue.is_connected(), "{act:?}");
            if peer.host.close_cause().is_some() {
                break;
            }
            // As long as it is open, it is closed some time.
            prop_assert!(peer.host.queue.next_deadline().is_some());
        }
        prop_assert_eq!(target.controllers(), 1);
        prop_assert_eq!(target.connected()[0].io_queues, 0);
        prop_assert_eq!(admin.close_cause(), None);
        let _ = peer.host.queue.close();
        prop_assert_eq!(target.shared.registry.proposals(), 0);
    }

    #[test]
    fn messages_in_any_order_leave_a_connected_queue_as_it_was(
        acts in prop::collection::vec(act(), 1..40),
    ) {
        let (target, mut admin, io) = connected();
        let recorded = recorded();
        let mut peer = Peer { host: io, computing: None, cid: 0 };
        for act in acts.iter().filter(|act| !matches!(act, Act::Other | Act::Keys(_))) {
            // Several computations are requested only one after the other.
            if peer.computing.is_some() && !matches!(act, Act::Computed(_)) {
                continue;
            }
            peer.act(act, &recorded, &target);
            prop_assert_eq!(peer.host.close_cause(), None);
        }
        let how = target.connected()[0].authentication;
        prop_assert_eq!(how.map(|how| how.key), Some(KeyState::Current));
        let flush = peer.host.plain(nvm::flush(1));
        prop_assert_eq!(flush.status(), Status::SUCCESS);
        prop_assert_eq!(admin.close_cause(), None);
    }
}
