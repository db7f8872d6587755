//! Completion queues: events, order, capacity.

use super::bench::{Bench, Request, SIGNALLED, SOLICITED, Shape};
use crate::ibverbs::{ibv_ack_cq_events, ibv_destroy_cq, ibv_get_cq_event};
use crate::raw::{event, status};

const OK: u32 = status::IBV_WC_SUCCESS;

fn send(bench: &Bench, id: u64, flags: u32) {
    let segment = bench.a.segment(0, 8);
    assert_eq!(bench.a.post(Request::send(id, segment).flags(flags)), 0);
}

#[test]
fn event_is_raised_once_and_only_for_later_completions() {
    let bench = Bench::new("profile=roce", Shape::default());
    for id in 0..6 {
        assert_eq!(bench.b.receive(id, 0, 64), 0);
    }
    send(&bench, 1, SIGNALLED);
    assert_eq!(bench.b.wake_ups(), 0, "it is not armed");
    bench.b.arm(false);
    assert_eq!(bench.b.wake_ups(), 0, "the completion is older");
    send(&bench, 2, SIGNALLED);
    send(&bench, 3, SIGNALLED);
    assert_eq!(bench.b.wake_ups(), 1, "one for each arming");
    bench.b.arm(false);
    bench.b.arm(false);
    send(&bench, 4, SIGNALLED);
    assert_eq!(bench.b.wake_ups(), 1);
    assert_eq!(bench.b.poll(8), [(0, OK), (1, OK), (2, OK), (3, OK)]);
    send(&bench, 5, SIGNALLED);
    assert_eq!(bench.b.wake_ups(), 0, "taking completions does not arm");
    bench.finish();
}

#[test]
fn solicited_arming_waits_for_solicited_messages_and_errors() {
    let bench = Bench::new("profile=roce", Shape::default());
    for id in 0..4 {
        assert_eq!(bench.b.receive(id, 0, 64), 0);
    }
    bench.b.arm(true);
    send(&bench, 1, SIGNALLED);
    assert_eq!(bench.b.wake_ups(), 0);
    send(&bench, 2, SIGNALLED | SOLICITED);
    assert_eq!(bench.b.wake_ups(), 1);
    bench.b.arm(false);
    bench.b.arm(true);
    send(&bench, 3, SIGNALLED);
    assert_eq!(bench.b.wake_ups(), 1, "the wider arming stays");
    bench.b.arm(true);
    // Longer than the receive.
    let long = bench.a.segment(0, 65);
    assert_eq!(bench.a.post(Request::send(4, long)), 0);
    assert_eq!(bench.b.wake_ups(), 1, "an error");
    bench.finish();
}

#[test]
fn completions_beyond_capacity_fail_queue() {
    let shape = Shape {
        cqe: 2,
        ..Shape::default()
    };
    let bench = Bench::new("profile=roce", shape);
    for id in 0..4 {
        assert_eq!(bench.b.receive(id, 0, 64), 0);
        send(&bench, id, SIGNALLED);
        assert_eq!(bench.a.poll(1), [(id, OK)]);
    }
    assert_eq!(bench.b.device_events(), [event::CQ_ERR]);
    assert_eq!(bench.b.poll(8).len(), 2);
    bench.finish();
}

#[test]
fn unacknowledged_event_is_recorded_as_misuse() {
    let bench = Bench::new("profile=roce", Shape::default());
    assert_eq!(bench.b.receive(0, 0, 64), 0);
    bench.b.arm(false);
    send(&bench, 1, SIGNALLED);
    let (mut cq, mut context) = (std::ptr::null_mut(), std::ptr::null_mut());
    let channel = bench.b.channel;
    // SAFETY: a channel, and places for both.
    let taken = unsafe { ibv_get_cq_event(channel, &raw mut cq, &raw mut context) };
    assert_eq!(taken, 0);
    let words = "a completion queue is destroyed with 1 unacknowledged events";
    let recorded = || crate::violations().iter().any(|text| text == words);
    assert!(!recorded());
    // SAFETY: a queue, which is in use.
    assert_eq!(unsafe { ibv_destroy_cq(cq) }, libc::EBUSY);
    assert!(recorded());
    // SAFETY: the event from above.
    unsafe { ibv_ack_cq_events(cq, 1) };
    bench.finish();
}
