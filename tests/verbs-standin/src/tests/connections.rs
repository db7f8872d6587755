//! Connection management: ends, removal, time-outs.

use super::bench::{Bench, Request, Shape, event};
use crate::ibverbs::ibv_alloc_pd;
use crate::raw::{cm_event, event as device_event, status};
use crate::rdmacm::{rdma_disconnect, rdma_resolve_route};

#[test]
fn both_sides_learn_of_end_when_both_confirmed_it() {
    let bench = Bench::new("profile=roce", Shape::default());
    assert_eq!(bench.b.receive(9, 0, 64), 0);
    // SAFETY: an id of the bench.
    assert_eq!(unsafe { rdma_disconnect(bench.a.id) }, 0);
    assert_eq!(event(bench.a.events), None, "the peer has not confirmed");
    let gone = cm_event::RDMA_CM_EVENT_DISCONNECTED;
    assert_eq!(event(bench.b.events), Some((gone, 0, bench.b.id)));
    assert_eq!(
        bench.b.poll(8),
        [],
        "its queue pair works until it is stopped"
    );
    // SAFETY: an id of the bench.
    assert_eq!(unsafe { rdma_disconnect(bench.b.id) }, 0);
    assert_eq!(bench.b.poll(8), [(9, status::IBV_WC_WR_FLUSH_ERR)]);
    let over = cm_event::RDMA_CM_EVENT_TIMEWAIT_EXIT;
    assert_eq!(event(bench.a.events), Some((gone, 0, bench.a.id)));
    assert_eq!(event(bench.a.events), Some((over, 0, bench.a.id)));
    assert_eq!(event(bench.b.events), Some((over, 0, bench.b.id)));
    bench.finish();
}

#[test]
fn iwarp_stream_ends_for_both_sides() {
    let bench = Bench::new("profile=iwarp", Shape::default());
    assert_eq!(bench.b.receive(9, 0, 64), 0);
    // SAFETY: an id of the bench.
    assert_eq!(unsafe { rdma_disconnect(bench.a.id) }, 0);
    let gone = cm_event::RDMA_CM_EVENT_DISCONNECTED;
    assert_eq!(event(bench.a.events), Some((gone, 0, bench.a.id)));
    assert_eq!(event(bench.b.events), Some((gone, 0, bench.b.id)));
    assert_eq!(bench.b.poll(8), [(9, status::IBV_WC_WR_FLUSH_ERR)]);
    bench.finish();
}

#[test]
fn removed_device_reports_it_everywhere() {
    let bench = Bench::new("profile=roce", Shape::default());
    assert_eq!(bench.a.receive(9, 0, 64), 0);
    bench.set("remove");
    let removed = cm_event::RDMA_CM_EVENT_DEVICE_REMOVAL;
    assert_eq!(event(bench.a.events), Some((removed, 0, bench.a.id)));
    assert_eq!(bench.a.device_events(), [device_event::DEVICE_FATAL]);
    assert_eq!(bench.a.poll(8), [(9, status::IBV_WC_WR_FLUSH_ERR)]);
    // SAFETY: contexts are never freed.
    assert!(unsafe { ibv_alloc_pd(bench.a.context) }.is_null());
    // SAFETY: an id of the bench.
    assert_ne!(unsafe { rdma_disconnect(bench.a.id) }, 0);
    // Everything can be destroyed.
    bench.finish();
}

#[test]
fn calls_in_wrong_state_are_refused() {
    let bench = Bench::new("profile=roce", Shape::default());
    // SAFETY: an id of the bench.
    assert_ne!(unsafe { rdma_resolve_route(bench.a.id, 1) }, 0);
    bench.a.destroy_qp();
    bench.finish();
}

#[test]
fn message_before_end_of_set_up_is_reported() {
    let bench = Bench::new("profile=roce", Shape::default());
    assert_eq!(bench.b.receive(9, 0, 64), 0);
    assert_eq!(bench.a.post(Request::send(1, bench.a.segment(0, 8))), 0);
    assert_eq!(bench.b.device_events(), [], "it is established");
    bench.finish();
}
