//! Both sides of transactions against each other, and each against messages in any order.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "tests"
)]

use std::sync::Arc;
use std::time::Duration;

use nvmeof_dhchap::{
    AuthFailure, ControllerAuth, Expected, HostAuth, HostKeys, HostStep, Key, Policy, Random,
    RandomError, Received, Refusal, Secret, UnknownKeys, Work, WorkError,
};
use nvmeof_wire::Nqn;
use nvmeof_wire::auth::{
    Explanation, Failure, FailureSide, GroupId, HashId, MAX_MESSAGE, Message, Negotiate, Reply,
    Success2,
};
use proptest::prelude::*;

const HASHES: [HashId; 3] = [HashId::SHA256, HashId::SHA384, HashId::SHA512];
const NOW: Duration = Duration::ZERO;
const KATO: Duration = Duration::from_secs(40);
/// How long a computation may take.
const WORK: Duration = Duration::from_secs(120);

/// Reproducible numbers.
struct Numbers(u64);

impl Random for Numbers {
    fn fill(&mut self, bytes: &mut [u8]) -> Result<(), RandomError> {
        for byte in bytes {
            self.0 = self
                .0
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            *byte = self.0.to_be_bytes()[0];
        }
        Ok(())
    }
}

fn key(byte: u8, transformation: Option<HashId>) -> Arc<Key> {
    let secret = Secret::take(&mut [byte; 32]).unwrap();
    Arc::new(Key::of(secret, transformation).unwrap())
}

fn host_nqn() -> Nqn {
    Nqn::new("nqn.2026-11.org.example:host").unwrap()
}

fn subsystem_nqn() -> Nqn {
    Nqn::new("nqn.2026-11.org.example:disk").unwrap()
}

fn policy(keys: &[u8], controller_key: Option<u8>, groups: &[GroupId]) -> Policy {
    Policy {
        first_is_old: false,
        unknown: Default::default(),
        keys: keys.iter().map(|byte| key(*byte, None)).collect(),
        controller_key: controller_key.map(|byte| key(byte, Some(HashId::SHA384))),
        hashes: HASHES.to_vec(),
        groups: groups.to_vec(),
    }
}

fn host_keys(host: u8, controller: Option<u8>) -> HostKeys {
    let controller = controller.map(|byte| key(byte, Some(HashId::SHA384)));
    HostKeys::new(key(host, None), controller)
}

fn controller(policy: Policy) -> ControllerAuth {
    ControllerAuth::new(host_nqn(), subsystem_nqn(), Arc::new(policy), KATO, NOW)
}

/// Runs a transaction of `keys` with `side`: how it ended on both sides.
fn transact(
    side: &mut ControllerAuth,
    keys: HostKeys,
) -> (Result<(), Refusal>, Option<AuthFailure>) {
    let (ended, failure) = transact_or_wait(side, keys);
    (ended.expect("a message for the host"), failure)
}

/// As [`transact`]. `None`: the host waits for a message, and there is none.
fn transact_or_wait(
    side: &mut ControllerAuth,
    keys: HostKeys,
) -> (Option<Result<(), Refusal>>, Option<AuthFailure>) {
    let mut random = Numbers(7);
    let (mut host, mut step) = HostAuth::start(host_nqn(), subsystem_nqn(), keys, 9);
    let mut failure = None;
    loop {
        step = match step {
            HostStep::Send(bytes) => {
                match side.send(NOW, &bytes) {
                    Ok(Some(work)) => {
                        let mut buf = [0; MAX_MESSAGE];
                        assert_eq!(side.receive(NOW, &mut buf), Received::Later);
                        failure = side.finish(NOW, work.run(&mut random)).err();
                    }
                    Ok(None) => {}
                    Err(error) => failure = Some(error),
                }
                host.sent()
            }
            HostStep::Receive => {
                let mut buf = [0; MAX_MESSAGE];
                let Received::Message(len) = side.receive(NOW, &mut buf) else {
                    return (None, failure);
                };
                host.received(&buf[..len])
            }
            HostStep::Run(work) => host.finished(work.run(&mut random)),
            HostStep::Done => return (Some(Ok(())), failure),
            HostStep::Refused(refusal) => return (Some(Err(refusal)), failure),
        };
    }
}

const NULL: &[GroupId] = &[GroupId::NULL];

#[test]
fn right_keys_authenticate_with_each_hash_and_group() {
    let groups = [GroupId::NULL, GroupId::FFDHE2048, GroupId::FFDHE3072];
    for hash in HASHES {
        for group in groups {
            for controller_key in [None, Some(5)] {
                let mut policy = policy(&[1], Some(5), &[group]);
                policy.hashes = vec![hash];
                let mut side = controller(policy);
                assert!(!side.is_authenticated());
                let ended = transact(&mut side, host_keys(1, controller_key));
                assert_eq!(ended, (Ok(()), None), "{hash:?} {group:?}");
                assert!(side.is_authenticated());
                assert_eq!(side.proved_key(), Some(0));
                assert_eq!(side.next_deadline(), None);
            }
        }
    }
}

#[test]
fn wrong_key_of_the_host_is_refused_in_each_group() {
    for group in [GroupId::NULL, GroupId::FFDHE2048] {
        let mut side = controller(policy(&[1], None, &[group]));
        let (host, failure) = transact(&mut side, host_keys(2, None));
        assert_eq!(host, Err(Refusal::ByController(Explanation::FAILED)));
        assert_eq!(failure, Some(AuthFailure::WrongResponse));
        assert!(!side.is_authenticated());
        assert_eq!(side.expected(), Expected::Close);
    }
}

#[test]
fn second_key_is_accepted_and_told() {
    let mut side = controller(policy(&[1, 2], None, NULL));
    assert_eq!(transact(&mut side, host_keys(2, None)), (Ok(()), None));
    assert_eq!(side.proved_key(), Some(1));
}

#[test]
fn wrong_key_of_the_controller_is_refused_by_the_host() {
    let mut side = controller(policy(&[1], Some(6), NULL));
    let (host, failure) = transact(&mut side, host_keys(1, Some(5)));
    let Err(Refusal::ControllerNotAuthenticated(_)) = host else {
        panic!("{host:?}");
    };
    assert_eq!(failure, Some(AuthFailure::ByHost(Explanation::FAILED)));
    assert!(!side.is_authenticated());
    assert_eq!(side.expected(), Expected::Close);
}

#[test]
fn controller_without_key_refuses_to_authenticate_itself() {
    let mut side = controller(policy(&[1], None, NULL));
    let (host, failure) = transact(&mut side, host_keys(1, Some(5)));
    assert_eq!(host, Err(Refusal::ByController(Explanation::FAILED)));
    assert_eq!(failure, Some(AuthFailure::NoControllerKey));
}

/// After a failure of which it is told, Linux deletes its controller. It connects again after the
/// loss of a connection.
#[test]
fn host_whose_key_may_be_unknown_is_told_nothing_and_closed() {
    let of_host = UnknownKeys {
        host: 1,
        controller: false,
    };
    let of_controller = UnknownKeys {
        host: 0,
        controller: true,
    };
    let with = |unknown, keys: &[u8]| Policy {
        unknown,
        ..policy(keys, None, NULL)
    };
    let cases = [
        (with(of_host, &[1]), host_keys(2, None)),
        (with(of_controller, &[1]), host_keys(1, Some(5))),
        (with(of_host, &[]), host_keys(1, None)),
    ];
    for (policy, keys) in cases {
        let mut side = controller(policy);
        let ended = transact_or_wait(&mut side, keys);
        assert_eq!(ended, (None, Some(AuthFailure::UnknownKey)));
        assert_eq!(side.expected(), Expected::Close);
    }
    // What is unknown has nothing to do with it.
    let cases = [
        (with(of_controller, &[1]), host_keys(2, None)),
        (with(of_host, &[1]), host_keys(1, Some(5))),
    ];
    for (policy, keys) in cases {
        let (host, _) = transact(&mut controller(policy), keys);
        assert_eq!(host, Err(Refusal::ByController(Explanation::FAILED)));
    }
    // A connected queue remains, so that its host is told.
    let mut side = controller(with(of_host, &[1]));
    assert_eq!(transact(&mut side, host_keys(1, None)), (Ok(()), None));
    let (host, failure) = transact(&mut side, host_keys(2, None));
    assert_eq!(host, Err(Refusal::ByController(Explanation::FAILED)));
    assert_eq!(failure, Some(AuthFailure::UnknownKey));
    assert_eq!(side.expected(), Expected::Nothing);
}

#[test]
fn authenticated_queue_survives_a_failed_transaction() {
    let mut side = controller(policy(&[1], None, NULL));
    assert_eq!(transact(&mut side, host_keys(1, None)), (Ok(()), None));
    let (host, _) = transact(&mut side, host_keys(2, None));
    assert!(host.is_err());
    assert!(side.is_authenticated());
    assert_eq!(side.expected(), Expected::Nothing);
    // Of a transaction that is not continued.
    let work = side.send(NOW, &negotiate(1, &HASHES, NULL, 0)).unwrap();
    assert!(work.is_some());
    assert!(side.expire(WORK).is_some());
    assert!(side.is_authenticated());
    assert_eq!(side.next_deadline(), None);
    assert_eq!(transact(&mut side, host_keys(1, None)), (Ok(()), None));
}

#[test]
fn late_result_of_an_earlier_transaction_is_ignored() {
    let mut side = controller(policy(&[1], None, NULL));
    assert_eq!(transact(&mut side, host_keys(1, None)), (Ok(()), None));
    let old = side
        .send(NOW, &negotiate(1, &HASHES, NULL, 0))
        .unwrap()
        .unwrap();
    assert!(side.expire(WORK).is_some());
    let new = side
        .send(NOW, &negotiate(2, &HASHES, NULL, 0))
        .unwrap()
        .unwrap();
    side.finish(NOW, old.run(&mut Numbers(1))).unwrap();
    assert_eq!(side.expected(), Expected::Work);
    side.finish(NOW, new.run(&mut Numbers(2))).unwrap();
    assert_eq!(side.expected(), Expected::Host);
}

#[test]
fn silent_host_is_refused_in_time() {
    let mut side = controller(policy(&[1], None, NULL));
    let deadline = side.next_deadline().unwrap();
    assert_eq!(deadline, KATO);
    assert_eq!(side.expire(deadline - Duration::from_millis(1)), None);
    assert_eq!(side.expire(deadline), Some(AuthFailure::Timeout(KATO)));
    assert_eq!(side.expected(), Expected::Close);
}

fn negotiate(t_id: u16, hashes: &[HashId], groups: &[GroupId], sc_c: u8) -> Vec<u8> {
    let message = Negotiate {
        t_id,
        sc_c,
        hashes,
        groups,
        is_offered: true,
    };
    written(|buf| message.write(buf))
}

fn written(write: impl FnOnce(&mut [u8]) -> Option<usize>) -> Vec<u8> {
    let mut buf = vec![0; MAX_MESSAGE];
    let len = write(&mut buf).unwrap();
    buf.truncate(len);
    buf
}

/// What the host fetches after `bytes` were refused.
fn told(side: &mut ControllerAuth, bytes: &[u8]) -> Explanation {
    let failure = side.send(NOW, bytes).expect_err("a refusal");
    let mut buf = [0; MAX_MESSAGE];
    let Received::Message(len) = side.receive(NOW, &mut buf) else {
        panic!("no message after {failure}");
    };
    let Ok(Message::Failure(told)) = Message::parse(&buf[..len]) else {
        panic!("no failure after {failure}");
    };
    assert_eq!(told.side, FailureSide::Controller);
    assert_eq!(side.expected(), Expected::Close);
    assert_eq!(side.receive(NOW, &mut buf), Received::Nothing);
    told.explanation
}

#[test]
fn refused_offers_are_explained() {
    let fresh = || controller(policy(&[1], None, &[GroupId::FFDHE2048]));
    let good = [GroupId::FFDHE2048];
    let mut other_protocol = negotiate(1, &HASHES, &good, 0);
    other_protocol[8] = 9;
    for (bytes, explanation) in [
        (
            negotiate(1, &HASHES, &good, 1),
            Explanation::CONCATENATION_MISMATCH,
        ),
        (
            negotiate(1, &[HashId(9)], &good, 0),
            Explanation::HASH_NOT_USABLE,
        ),
        (negotiate(1, &[], &good, 0), Explanation::HASH_NOT_USABLE),
        (
            negotiate(1, &HASHES, NULL, 0),
            Explanation::GROUP_NOT_USABLE,
        ),
        (other_protocol, Explanation::PROTOCOL_NOT_USABLE),
        (vec![0; 3], Explanation::INCORRECT_PAYLOAD),
        (vec![7; 80], Explanation::INCORRECT_MESSAGE),
        (
            written(|buf| Success2 { t_id: 1 }.write(buf)),
            Explanation::INCORRECT_MESSAGE,
        ),
    ] {
        assert_eq!(told(&mut fresh(), &bytes), explanation);
    }
    let mut keyless = controller(policy(&[], None, NULL));
    let offer = negotiate(1, &HASHES, NULL, 0);
    assert_eq!(told(&mut keyless, &offer), Explanation::FAILED);
}

/// A controller that has sent its challenge.
fn challenged(group: GroupId) -> ControllerAuth {
    let mut side = controller(policy(&[1], Some(5), &[group]));
    let work = side.send(NOW, &negotiate(3, &HASHES, &[group], 0));
    let work = work.unwrap().unwrap();
    side.finish(NOW, work.run(&mut Numbers(3))).unwrap();
    let mut buf = [0; MAX_MESSAGE];
    assert!(matches!(side.receive(NOW, &mut buf), Received::Message(_)));
    side
}

#[test]
fn wrong_replies_are_explained() {
    let public = &[2; 256];
    let good = Reply {
        t_id: 3,
        seqnum: 1,
        response: &[0; 32],
        challenge: Some(&[1; 32]),
        public,
    };
    let payload = Explanation::INCORRECT_PAYLOAD;
    let wrong = [
        (Reply { t_id: 4, ..good }, payload),
        (Reply { seqnum: 0, ..good }, payload),
        (
            Reply {
                public: &[],
                ..good
            },
            payload,
        ),
        (
            Reply {
                public: &public[1..],
                ..good
            },
            payload,
        ),
        (
            Reply {
                response: &[0; 48],
                challenge: Some(&[1; 48]),
                ..good
            },
            payload,
        ),
        (
            Reply {
                response: &[],
                challenge: Some(&[]),
                ..good
            },
            payload,
        ),
    ];
    for (reply, explanation) in wrong {
        let bytes = written(|buf| reply.write(buf));
        assert_eq!(
            told(&mut challenged(GroupId::FFDHE2048), &bytes),
            explanation
        );
    }
    // Found by the computation: public values out of range, and a wrong response.
    let mut one = [0; 256];
    one[255] = 1;
    for (public, explanation) in [
        (&[0; 256], payload),
        (&one, payload),
        (&[0xff; 256], payload),
        (public, Explanation::FAILED),
    ] {
        let mut side = challenged(GroupId::FFDHE2048);
        let bytes = written(|buf| Reply { public, ..good }.write(buf));
        let work = side.send(NOW, &bytes).unwrap().unwrap();
        let failure = side.finish(NOW, work.run(&mut Numbers(4))).unwrap_err();
        assert_eq!(failure.explanation(), explanation);
    }
}

#[test]
fn failure_of_the_host_ends_without_an_answer() {
    let mut side = challenged(GroupId::NULL);
    let failure = Failure {
        t_id: 3,
        side: FailureSide::Host,
        explanation: Explanation::FAILED,
    };
    let bytes = written(|buf| failure.write(buf));
    assert_eq!(
        side.send(NOW, &bytes).unwrap_err(),
        AuthFailure::ByHost(Explanation::FAILED)
    );
    assert_eq!(side.expected(), Expected::Close);
}

#[test]
fn work_that_is_not_run_fails_the_transaction() {
    let mut side = controller(policy(&[1], None, NULL));
    let work = side
        .send(NOW, &negotiate(1, &HASHES, NULL, 0))
        .unwrap()
        .unwrap();
    let failure = side.finish(NOW, work.not_run("no worker")).unwrap_err();
    assert_eq!(failure, AuthFailure::Work(WorkError::NotRun("no worker")));
    let mut buf = [0; MAX_MESSAGE];
    assert!(matches!(side.receive(NOW, &mut buf), Received::Message(8)));
}

#[test]
fn short_buffer_does_not_lose_the_message() {
    let mut side = controller(policy(&[1], None, NULL));
    let work = side
        .send(NOW, &negotiate(1, &HASHES, NULL, 0))
        .unwrap()
        .unwrap();
    side.finish(NOW, work.run(&mut Numbers(5))).unwrap();
    assert_eq!(side.receive(NOW, &mut [0; 47]), Received::TooShort);
    assert_eq!(side.receive(NOW, &mut [0; 48]), Received::Message(48));
}

/// One step of a peer that does what it likes.
#[derive(Clone, Debug)]
enum Act {
    Send(Vec<u8>),
    /// A well-formed message of a host without the key, by number.
    Message(u8),
    Receive(usize),
    Finish,
    Expire,
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        prop::collection::vec(any::<u8>(), 0..100).prop_map(Act::Send),
        (0u8..6).prop_map(Act::Message),
        (0usize..200).prop_map(Act::Receive),
        Just(Act::Finish),
        Just(Act::Finish),
        Just(Act::Expire),
    ]
}

fn forged(number: u8) -> Vec<u8> {
    let reply = |challenge| Reply {
        t_id: 1,
        seqnum: 1,
        response: &[1; 32],
        challenge,
        public: &[],
    };
    match number {
        0 | 1 => negotiate(1, &HASHES, NULL, 0),
        2 => written(|buf| reply(None).write(buf)),
        3 => written(|buf| reply(Some(&[7; 32])).write(buf)),
        4 => written(|buf| Success2 { t_id: 1 }.write(buf)),
        _ => written(|buf| {
            let side = FailureSide::Host;
            let explanation = Explanation::FAILED;
            Failure {
                t_id: 1,
                side,
                explanation,
            }
            .write(buf)
        }),
    }
}

proptest! {
    /// Whatever a peer without the key does in whatever order, it is not authenticated, and the
    /// state machine neither panics nor waits without a deadline.
    #[test]
    fn peer_without_key_is_never_authenticated(acts in prop::collection::vec(act(), 1..60)) {
        let mut side = controller(policy(&[1], Some(5), NULL));
        let mut works: Vec<Work> = Vec::new();
        let mut random = Numbers(11);
        for act in acts {
            match act {
                Act::Send(bytes) => works.extend(side.send(NOW, &bytes).ok().flatten()),
                Act::Message(number) => {
                    works.extend(side.send(NOW, &forged(number)).ok().flatten());
                }
                Act::Receive(len) => {
                    let mut buf = [0; MAX_MESSAGE];
                    let _ = side.receive(NOW, &mut buf[..len]);
                }
                Act::Finish => if let Some(work) = works.pop() {
                    let _ = side.finish(NOW, work.run(&mut random));
                },
                Act::Expire => {
                    let _ = side.expire(KATO * 2);
                }
            }
            prop_assert!(!side.is_authenticated());
            let waits = matches!(side.expected(), Expected::Host | Expected::Work);
            prop_assert_eq!(side.next_deadline().is_some() || !waits, true);
        }
    }

    /// Whatever a controller sends, the host is only satisfied by one with the key.
    #[test]
    fn host_is_not_satisfied_by_forged_messages(
        messages in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..120), 1..8),
    ) {
        let keys = host_keys(1, Some(5));
        let (mut host, mut step) = HostAuth::start(host_nqn(), subsystem_nqn(), keys, 9);
        let mut messages = messages.into_iter();
        loop {
            step = match step {
                HostStep::Send(_) => host.sent(),
                HostStep::Receive => match messages.next() {
                    Some(bytes) => host.received(&bytes),
                    None => break,
                },
                HostStep::Run(work) => host.finished(work.run(&mut Numbers(3))),
                HostStep::Done => panic!("satisfied"),
                HostStep::Refused(_) => break,
            };
        }
    }
}
