//! Abort, over the queues of a controller.

use nvmeof_wire::admin::{Abort, bare};
use nvmeof_wire::fabrics::Connect;
use nvmeof_wire::nvm::Io;
use nvmeof_wire::opcode::{admin, io};
use nvmeof_wire::{Sqe, Status};

use crate::controller::aborts::AbortOutcome;
use crate::testing::{Host, Outcome, connect_data, keyed, target};
use crate::{Action, Order, Request};

fn write(cid: u16) -> Sqe {
    let range = Io::new(1, 0, 1);
    let mut sqe = range.to_sqe(io::WRITE);
    sqe.dptr = keyed(512).to_descriptor();
    sqe.cid = cid.into();
    sqe
}

fn held(host: &mut Host, sqe: Sqe) {
    let outcome = host.run(sqe, &[], &[]);
    assert!(matches!(outcome, Outcome::Held), "{outcome:?}");
}

/// The response that the queue orders: status and result.
fn ordered(host: &mut Host) -> Option<(Status, u64)> {
    match host.queue.poll(host.now)? {
        Order::Respond(response) => {
            assert!(response.push.is_none());
            Some((response.cqe.status(), response.cqe.result.get()))
        }
        other => panic!("{other:?}"),
    }
}

fn looked_for(host: &mut Host) -> Option<u16> {
    match host.queue.poll(host.now)? {
        Order::Abort { cid } => Some(cid),
        other => panic!("{other:?}"),
    }
}

/// The reactors of its calls.
fn called(host: &mut Host) -> Vec<u16> {
    let calls = host.queue.take_calls();
    calls.into_iter().map(|call| call.reactor).collect()
}

#[test]
fn command_not_started_is_aborted_and_both_complete() {
    let (mut first, mut host) = Host::ready(&target());
    let mut request = Request::default();
    let action = host
        .queue
        .begin(host.now, &write(77).to_bytes(), &mut request);
    assert!(matches!(action, Action::Pull { .. }));
    held(&mut first, Abort { sqid: 1, cid: 77 }.to_sqe());
    let follow_ups = first.queue.take_follow_ups();
    assert!(
        follow_ups.contains(crate::FollowUps::CALL)
            && !follow_ups.contains(crate::FollowUps::POLL_ALL)
    );
    assert_eq!(called(&mut first), [0]);
    assert_eq!(ordered(&mut first), None, "the queue has not looked yet");
    assert_eq!(looked_for(&mut host), Some(77));
    assert_eq!(looked_for(&mut host), None);
    let Action::Respond(response) = host.queue.abort(&mut request) else {
        panic!()
    };
    assert_eq!(response.cqe.cid.get(), 77);
    assert_eq!(response.cqe.status(), Status::ABORT_REQUESTED);
    assert!(request.is_complete());
    let _ = host.queue.take_follow_ups();
    host.queue.aborted(77, true);
    assert_eq!(host.queue.take_follow_ups(), crate::FollowUps::CALL);
    assert_eq!(called(&mut host), [0]);
    assert_eq!(ordered(&mut first), Some((Status::SUCCESS, 0)));
    assert_eq!(ordered(&mut first), None);
}

/// Only the reactor of the other queue is woken, and for a command of the admin
/// queue none.
#[test]
fn uninvolved_reactors_are_not_woken() {
    let target = target();
    let mut first = Host::open(&target, 0, 32);
    first.queue.set_home(3);
    let (mut first, cntlid) = first.into_admin(0, &connect_data(0xffff));
    let mut host = Host::open(&target, 1, 128);
    host.queue.set_home(5);
    let completion = host.connect(&Connect::new(1, 128, 0), &connect_data(cntlid));
    assert_eq!(completion.status(), Status::SUCCESS);
    held(&mut first, Abort { sqid: 1, cid: 5 }.to_sqe());
    assert_eq!(called(&mut first), [5]);
    assert_eq!(looked_for(&mut host), Some(5));
    host.queue.aborted(5, false);
    assert_eq!(called(&mut host), [3]);
    assert_eq!(ordered(&mut first), Some((Status::SUCCESS, 1)));
    let _ = first.queue.take_follow_ups();
    held(&mut first, Abort { sqid: 0, cid: 5 }.to_sqe());
    assert_eq!(first.queue.take_follow_ups(), crate::FollowUps::POLL);
    assert!(first.queue.take_calls().is_empty());
}

#[test]
fn unknown_command_is_not_aborted() {
    let (mut first, mut host) = Host::ready(&target());
    held(&mut first, Abort { sqid: 1, cid: 5 }.to_sqe());
    assert_eq!(looked_for(&mut host), Some(5));
    host.queue.aborted(5, false);
    assert_eq!(ordered(&mut first), Some((Status::SUCCESS, 1)));
    let completion = first.plain(Abort { sqid: 2, cid: 5 }.to_sqe());
    assert_eq!(
        (completion.status(), completion.result()),
        (Status::SUCCESS, 1)
    );
}

#[test]
fn event_request_completes_before_its_abort() {
    let (mut first, _) = Host::admin(&target());
    held(&mut first, bare(admin::ASYNC_EVENT_REQUEST));
    held(&mut first, Abort { sqid: 0, cid: 3 }.to_sqe());
    assert_eq!(ordered(&mut first), Some((Status::ABORT_REQUESTED, 0)));
    assert_eq!(ordered(&mut first), Some((Status::SUCCESS, 0)));
    assert_eq!(ordered(&mut first), None);
}

/// Base 2.1, 5.1.1 and ACL: Abort Command Limit Exceeded.
#[test]
fn there_are_at_most_four_aborts() {
    let (mut first, _host) = Host::ready(&target());
    for cid in 0..4 {
        held(&mut first, Abort { sqid: 1, cid }.to_sqe());
    }
    let completion = first.plain(Abort { sqid: 1, cid: 9 }.to_sqe());
    assert_eq!(completion.status(), Status::ABORT_LIMIT_EXCEEDED);
}

#[test]
fn closing_queue_completes_aborts_of_its_commands() {
    let (mut first, host) = Host::ready(&target());
    held(&mut first, Abort { sqid: 1, cid: 1 }.to_sqe());
    assert_eq!(host.queue.close().1.len(), 1, "the admin queue");
    assert_eq!(ordered(&mut first), Some((Status::SUCCESS, 1)));
}

/// The queue may leave while the Abort is in flight: the Abort then completes
/// immediately without effect, since no queue would report an outcome.
#[test]
fn abort_for_a_closed_queue_completes_immediately() {
    let (first, host) = Host::ready(&target());
    let controller = std::sync::Arc::clone(first.queue.controller().unwrap());
    assert_eq!(host.queue.close().1.len(), 1, "the admin queue");
    assert_eq!(controller.ask_abort(9, 1, 1), AbortOutcome::NoQueue);
    assert_eq!(controller.completed_abort(), None);
}
