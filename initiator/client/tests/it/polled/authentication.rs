//! Authentication of connected queues again.

use std::time::Duration;

use super::{World, run};
use crate::fake::{BLOCK, Requirement, keys};
use nvmeof_initiator::polled::{AdminQueue, Call, IoQueue, SubmitError};
use nvmeof_initiator::protocol::{ControllerEvent, admin};
use nvmeof_initiator::{Cns, Error, Operation, Status};
use nvmeof_initiator_core::blocks::flush;
use nvmeof_wire::aer::AsyncEvent;

impl World {
    /// A target that requires one of these keys, and a host with the first one.
    fn with_keys(required: &[u8]) -> Self {
        let mut world = Self::new(1);
        world.target.manners.authentication = Some(Requirement::of(required));
        world.options.keys = Some(keys(required[0], None));
        world
    }

    fn require(&mut self, required: &[u8]) {
        self.target
            .authentications
            .change(&Requirement::of(required));
    }

    /// Runs until a requested authentication has ended.
    fn authenticated(&mut self, io: &mut IoQueue) -> Result<(), Error> {
        let mut done = Vec::new();
        loop {
            while io.poll(self.net.now(), &mut done) {}
            if let Some(result) = io.take_reauthentication() {
                return result;
            }
            self.poll_once(io.next_deadline());
        }
    }

    /// Flushes; returns the status.
    fn flush(&mut self, io: &mut IoQueue) -> Status {
        io.submit(flush(1), None, 7, self.net.now()).unwrap();
        let done = self.ended(io, 1).pop().unwrap();
        assert_eq!(done.user, 7);
        match done.result {
            Ok(_) => Status::SUCCESS,
            Err(Error::Command(error)) => error.status.kind(),
            Err(error) => panic!("{error}"),
        }
    }

    fn run_admin(&mut self, admin: &mut AdminQueue, until: impl Fn(&AdminQueue, usize) -> bool) {
        let mut done = Vec::new();
        while !until(admin, done.len()) {
            while admin.poll(self.net.now(), &mut done) {}
            self.poll_once(admin.next_deadline());
        }
    }
}

#[test]
fn commands_refused_until_authentication_are_sent_again() {
    let mut world = World::with_keys(&[1]);
    let admin = world.ready_admin();
    let mut io = world.ready_io(&admin, 8);
    let before = world.target.authentications.messages;
    world.target.authentications.demand();
    // In-capsule, keyed, and split into three commands; each in a place of its own.
    let lens = [4096, 8192, 300 << 10];
    for (user, len) in (0..).zip(lens) {
        let mut buf = world.buf(len);
        buf.fill(u8::try_from(user + 1).unwrap());
        let write = run(Operation::Write, user * 1024, (len / BLOCK) as u64);
        io.submit(write, Some(buf), user, world.net.now()).unwrap();
    }
    let done = world.ended(&mut io, 3);
    for ((user, len), call) in (0..).zip(lens).zip(done) {
        assert!(call.result.is_ok(), "{user}: {:?}", call.result);
        assert_eq!((call.user, call.buf.unwrap().len()), (user, len));
        let at = usize::try_from(user).unwrap() * 1024 * BLOCK;
        assert_eq!(world.target.disk[at], u8::try_from(user + 1).unwrap());
    }
    assert!(
        world
            .target
            .authentications
            .refused
            .iter()
            .all(|qid| *qid == 1)
    );
    assert!(world.target.authentications.refused.len() >= 3);
    // One transaction: Negotiate and Reply.
    assert_eq!(world.target.authentications.messages, before + 2);
    assert!(io.take_reauthentication().is_none(), "nobody requested it");
    assert_eq!(io.connection().in_flight(), 0);
}

#[test]
fn refused_command_ends_with_its_status_if_authentication_fails() {
    let mut world = World::with_keys(&[1]);
    let admin = world.ready_admin();
    let mut io = world.ready_io(&admin, 8);
    world.require(&[2]);
    world.target.authentications.demand();
    assert_eq!(world.flush(&mut io), Status::AUTHENTICATION_REQUIRED);
    assert!(io.is_ready(), "{:?}", io.error());
    // The next attempt is made after a pause.
    let messages = world.target.authentications.messages;
    assert_eq!(world.flush(&mut io), Status::AUTHENTICATION_REQUIRED);
    assert_eq!(world.target.authentications.messages, messages);
    world.require(&[1]);
    let end = world.net.now() + Duration::from_secs(2);
    while world.net.now() < end {
        world.poll_once(Some(end));
    }
    assert_eq!(world.flush(&mut io), Status::SUCCESS);
    assert!(world.target.authentications.messages > messages);
}

/// A controller that refuses a command for ever does not keep it for ever.
#[test]
fn command_is_sent_again_a_limited_number_of_times() {
    let mut world = World::with_keys(&[1]);
    let admin = world.ready_admin();
    let mut io = world.ready_io(&admin, 8);
    world.target.manners.status = Some(Status::AUTHENTICATION_REQUIRED);
    let served = world.target.served.len();
    let (messages, begin) = (world.target.authentications.messages, world.net.now());
    assert_eq!(world.flush(&mut io), Status::AUTHENTICATION_REQUIRED);
    assert_eq!(world.target.served.len() - served, 6);
    // Each transaction, of two messages, begins a second after the last one.
    assert_eq!(world.target.authentications.messages - messages, 10);
    assert!(world.net.now() - begin >= Duration::from_secs(4));
    // The next call is not worth another one at once either.
    world.target.manners.status = None;
    world.target.authentications.demand();
    let begin = world.net.now();
    assert_eq!(world.flush(&mut io), Status::SUCCESS);
    assert!(world.net.now() - begin > Duration::from_millis(900));
}

/// A target whose workers are busy is not a dead one.
#[test]
fn slow_message_of_a_connected_queue_does_not_close_it() {
    let mut world = World::with_keys(&[1]);
    let admin = world.ready_admin();
    let mut io = world.ready_io(&admin, 8);
    world.target.manners.stalls_messages = true;
    io.reauthenticate(None).unwrap();
    let run = |world: &mut World, io: &mut IoQueue, time| {
        let (mut done, end) = (Vec::new(), world.net.now() + Duration::from_secs(time));
        while world.net.now() < end {
            while io.poll(world.net.now(), &mut done) {}
            world.poll_once(Some(end));
        }
    };
    run(&mut world, &mut io, 115);
    assert!(io.is_ready(), "{:?}", io.error());
    assert_eq!(world.target.stalled(), 1);
    assert_eq!(world.flush(&mut io), Status::SUCCESS);
    // Some time, it is.
    run(&mut world, &mut io, 10);
    let error = io.error().unwrap().to_string();
    assert!(error.contains("Authentication Send"), "{error}");
}

#[test]
fn command_with_do_not_retry_and_host_without_key_get_the_status() {
    let refused = Status::AUTHENTICATION_REQUIRED;
    for (keys, status) in [(Some(keys(1, None)), refused.with_dnr()), (None, refused)] {
        let mut world = World::new(1);
        world.options.keys = keys;
        let admin = world.ready_admin();
        let mut io = world.ready_io(&admin, 8);
        world.target.manners.status = Some(status);
        assert_eq!(world.flush(&mut io), refused);
        assert_eq!(world.target.authentications.messages, 0);
    }
}

#[test]
fn requested_authentication_uses_new_keys_from_then_on() {
    let mut world = World::with_keys(&[1, 2]);
    let admin = world.ready_admin();
    let mut io = world.ready_io(&admin, 8);
    assert_eq!(world.target.authentications.proved(), [Some(0); 2]);
    io.reauthenticate(Some(keys(2, None))).unwrap();
    // Calls go on.
    assert_eq!(world.flush(&mut io), Status::SUCCESS);
    world.authenticated(&mut io).unwrap();
    let mut proved = world.target.authentications.proved();
    proved.sort();
    assert_eq!(proved, [Some(0), Some(1)]);

    world.require(&[2]);
    world.target.authentications.demand();
    assert_eq!(world.flush(&mut io), Status::SUCCESS);
    io.reauthenticate(None).unwrap();
    world.authenticated(&mut io).unwrap();
}

#[test]
fn failed_request_keeps_queue_and_keys() {
    let mut world = World::with_keys(&[1]);
    let admin = world.ready_admin();
    let mut io = world.ready_io(&admin, 8);
    io.reauthenticate(Some(keys(9, None))).unwrap();
    let error = world.authenticated(&mut io).unwrap_err();
    assert!(
        error.to_string().contains("authentication failed"),
        "{error}"
    );
    // With a key of the controller, which this one does not have.
    io.reauthenticate(Some(keys(1, Some(3)))).unwrap();
    assert!(world.authenticated(&mut io).is_err());
    assert!(io.is_ready());
    world.target.authentications.demand();
    assert_eq!(world.flush(&mut io), Status::SUCCESS);
}

#[test]
fn request_without_any_key_is_refused() {
    let mut world = World::new(1);
    let admin = world.ready_admin();
    let mut io = world.ready_io(&admin, 8);
    io.reauthenticate(None).unwrap();
    let error = world.authenticated(&mut io).unwrap_err();
    assert!(error.to_string().contains("has no key"), "{error}");
    io.close();
    assert!(io.reauthenticate(None).is_err());
}

#[test]
fn later_request_replaces_one_that_has_not_ended() {
    let mut world = World::with_keys(&[1, 2]);
    let admin = world.ready_admin();
    let mut io = world.ready_io(&admin, 8);
    io.reauthenticate(Some(keys(9, None))).unwrap();
    let mut done = Vec::new();
    io.poll(world.net.now(), &mut done);
    io.reauthenticate(Some(keys(2, None))).unwrap();
    world.authenticated(&mut io).unwrap();
    assert!(world.target.authentications.proved().contains(&Some(1)));
}

#[test]
fn messages_wait_for_room_and_calls_for_the_messages() {
    let mut world = World::with_keys(&[1]);
    let admin = world.ready_admin();
    let mut io = world.ready_io(&admin, 4);
    world.target.manners.holds = true;
    for user in 0..3 {
        io.submit(flush(1), None, user, world.net.now()).unwrap();
    }
    io.reauthenticate(None).unwrap();
    let mut done = Vec::new();
    for _ in 0..9 {
        io.poll(world.net.now(), &mut done);
        world.poll_once(None);
    }
    let refused = io.submit(flush(1), None, 3, world.net.now()).unwrap_err();
    assert!(matches!(refused.why, SubmitError::Full));
    world.target.release();
    world.authenticated(&mut io).unwrap();
    assert_eq!(world.flush(&mut io), Status::SUCCESS);
}

/// Each call ends once, with its buffer.
#[test]
fn calls_that_wait_for_an_authentication_end_with_the_connection() {
    let mut world = World::with_keys(&[1]);
    let admin = world.ready_admin();
    let mut io = world.ready_io(&admin, 8);
    let free = world.pool.available();
    world.target.authentications.demand();
    for user in 0..4 {
        let buf = world.buf(8192);
        let read = run(Operation::Read, 0, 16);
        io.submit(read, Some(buf), user, world.net.now()).unwrap();
    }
    io.reauthenticate(None).unwrap();
    let messages = world.target.authentications.messages;
    let mut done = Vec::new();
    while world.target.authentications.messages == messages {
        while io.poll(world.net.now(), &mut done) {}
        world.poll_once(io.next_deadline());
    }
    assert!(done.is_empty(), "{done:?}");
    assert_eq!(io.connection().in_flight(), 5, "with the message");
    world.target.hang_up();
    let done = world.ended(&mut io, 4);
    let users: Vec<u64> = done.iter().map(|call| call.user).collect();
    assert_eq!(users, [0, 1, 2, 3]);
    assert!(
        done.iter()
            .all(|call| matches!(call.result, Err(Error::Lost(_))))
    );
    drop(done);
    assert_eq!(world.pool.available(), free);
    assert!(io.is_closed());
    let error = io.take_reauthentication().unwrap().unwrap_err();
    assert!(
        error.to_string().contains("closed the connection"),
        "{error}"
    );
}

#[test]
fn admin_queue_is_authenticated_again_with_its_own_commands() {
    let mut world = World::with_keys(&[1]);
    let mut admin = world.ready_admin();
    // Keep Alive is refused first, and sent again.
    world.target.authentications.demand();
    let end = world.net.now() + Duration::from_secs(4);
    while world.net.now() < end {
        world.run_admin(&mut admin, |_, _| true);
        let mut done = Vec::new();
        admin.poll(world.net.now(), &mut done);
        world.poll_once(admin.next_deadline());
    }
    assert_eq!(world.target.authentications.refused, [0]);
    assert!(admin.error().is_none(), "{:?}", admin.error());

    world.target.authentications.demand();
    let page = admin.page(4096);
    let identify = admin::identify(Cns::CONTROLLER, 0);
    admin
        .submit(Call::new(identify.into(), page, 1), world.net.now())
        .unwrap();
    world.run_admin(&mut admin, |_, done| done == 1);
    assert_eq!(world.target.authentications.refused, [0, 0]);

    admin.reauthenticate(None).unwrap();
    while admin.take_reauthentication().is_none() {
        let mut done = Vec::new();
        admin.poll(world.net.now(), &mut done);
        world.poll_once(admin.next_deadline());
    }
}

#[test]
fn events_arrive_after_a_failed_and_a_later_authentication() {
    let mut world = World::with_keys(&[1]);
    let mut admin = world.ready_admin();
    while !world.target.notify(AsyncEvent::ANA_CHANGED) {
        world.run_admin(&mut admin, |_, _| true);
        let mut done = Vec::new();
        admin.poll(world.net.now(), &mut done);
        world.poll_once(admin.next_deadline());
    }
    // The next request is refused, and the authentication fails.
    world.require(&[2]);
    world.target.authentications.demand();
    world.run_admin(&mut admin, |admin, _| admin.has_event());
    assert_eq!(admin.take_event(), Some(ControllerEvent::AnaChanged));
    world.run_admin(&mut admin, |admin, _| admin.connection().in_flight() == 0);
    assert_eq!(world.target.authentications.refused, [0]);
    world.require(&[1]);
    admin.reauthenticate(None).unwrap();
    world.run_admin(&mut admin, |admin, _| admin.connection().in_flight() == 1);
    while !world.target.notify(AsyncEvent::ANA_CHANGED) {
        let mut done = Vec::new();
        admin.poll(world.net.now(), &mut done);
        world.poll_once(admin.next_deadline());
    }
    world.run_admin(&mut admin, |admin, _| admin.has_event());
}
