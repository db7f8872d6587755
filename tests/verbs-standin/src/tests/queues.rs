//! Queue pairs: entries, limits, retries, errors.

use super::bench::{Bench, INLINE, Request, SIGNALLED, Shape};
use crate::raw::{event, status};

const OK: u32 = status::IBV_WC_SUCCESS;
const FLUSHED: u32 = status::IBV_WC_WR_FLUSH_ERR;

#[test]
fn entries_are_free_when_covering_completion_is_taken() {
    let shape = Shape {
        sends: 3,
        ..Shape::default()
    };
    let bench = Bench::new("profile=roce", shape);
    for id in 0..8 {
        assert_eq!(bench.b.receive(id, 0, 64), 0);
    }
    let send = |id, flags| {
        let segment = bench.a.segment(0, 8);
        bench.a.post(Request::send(id, segment).flags(flags))
    };
    assert_eq!((send(1, 0), send(2, 0)), (0, 0));
    assert_eq!(bench.a.poll(8), [], "they are not signaled");
    assert_eq!(send(3, SIGNALLED), 0);
    assert_eq!(send(4, SIGNALLED), libc::ENOMEM, "done, and not taken");
    assert_eq!(bench.a.poll(8), [(3, OK)]);
    for id in 5..8 {
        assert_eq!(send(id, 0), 0);
    }
    // Without a completion the queue stays full for ever.
    assert_eq!(send(8, SIGNALLED), libc::ENOMEM);
    bench.finish();
}

#[test]
fn receives_beyond_size_are_refused() {
    let shape = Shape {
        receives: 2,
        ..Shape::default()
    };
    let bench = Bench::new("profile=roce", shape);
    let results: Vec<_> = (0..3).map(|id| bench.b.receive(id, 0, 64)).collect();
    assert_eq!(results, [0, 0, libc::ENOMEM]);
    let segment = bench.a.segment(0, 8);
    assert_eq!(bench.a.post(Request::send(1, segment)), 0);
    assert_eq!(bench.b.receive(3, 0, 64), libc::ENOMEM, "not taken yet");
    assert_eq!(bench.b.poll(1), [(0, OK)]);
    assert_eq!(bench.b.receive(3, 0, 64), 0);
    bench.finish();
}

#[test]
fn requests_beyond_limits_are_refused() {
    let bench = Bench::new("profile=roce", Shape::default());
    let inline = |len| {
        let segment = bench.a.segment(0, len);
        bench
            .a
            .post(Request::write(1, segment, bench.b.remote(0)).flags(INLINE))
    };
    assert_eq!((inline(32), inline(33)), (0, libc::EINVAL));
    let read = Request::read(2, bench.a.segment(0, 8), bench.b.remote(0));
    assert_eq!(bench.a.post(read.flags(INLINE)), libc::EINVAL);
    bench.finish();
    let iwarp = Bench::new("profile=iwarp", Shape::default());
    let invalidates = Request {
        opcode: rdma_sys::ibv_wr_opcode::IBV_WR_SEND_WITH_INV,
        ..Request::send(1, iwarp.a.segment(0, 8)).flags(INLINE)
    };
    assert_eq!(iwarp.a.post(invalidates), libc::EINVAL);
    iwarp.finish();
}

#[test]
fn message_waits_for_receive_on_roce() {
    let bench = Bench::new("profile=roce", Shape::default());
    assert_eq!(bench.a.post(Request::send(1, bench.a.segment(0, 8))), 0);
    assert_eq!(
        bench
            .a
            .post(Request::write(2, bench.a.segment(0, 8), bench.b.remote(0))),
        0
    );
    for _ in 0..100 {
        assert_eq!(bench.a.poll(8), []);
    }
    assert_eq!(
        crate::counters(&bench.device).unwrap().receiver_not_ready,
        1
    );
    assert_eq!(bench.b.receive(7, 0, 64), 0);
    assert_eq!(bench.b.poll(8), [(7, OK)]);
    assert_eq!(bench.a.poll(8), [(1, OK), (2, OK)]);
    bench.finish();
}

#[test]
fn limited_retries_end_with_status() {
    let shape = Shape {
        rnr_retry: 2,
        ..Shape::default()
    };
    let bench = Bench::new("profile=roce", shape);
    assert_eq!(
        bench
            .a
            .post(Request::send(1, bench.a.segment(0, 8)).flags(0)),
        0
    );
    let mut found = Vec::new();
    for _ in 0..8 {
        found.extend(bench.a.poll(8));
    }
    assert_eq!(found, [(1, status::IBV_WC_RNR_RETRY_EXC_ERR)]);
    bench.finish();
    let bench = Bench::new("profile=roce retry_polls=5", Shape::default());
    bench.b.destroy_qp();
    assert_eq!(bench.a.post(Request::send(1, bench.a.segment(0, 8))), 0);
    let found: Vec<_> = (0..8).flat_map(|_| bench.a.poll(8)).collect();
    assert_eq!(found, [(1, status::IBV_WC_RETRY_EXC_ERR)]);
    bench.finish();
}

#[test]
fn error_flushes_both_queues_in_order() {
    let bench = Bench::new("profile=roce delay=1", Shape::default());
    for id in 10..13 {
        assert_eq!(bench.a.receive(id, 0, 64), 0);
    }
    let mut wrong = bench.a.segment(0, 8);
    wrong.lkey ^= 0x100;
    let good = bench.a.segment(0, 8);
    assert_eq!(
        bench
            .a
            .post(Request::write(1, good, bench.b.remote(0)).flags(0)),
        0
    );
    assert_eq!(
        bench
            .a
            .post(Request::write(2, wrong, bench.b.remote(0)).flags(0)),
        0
    );
    assert_eq!(
        bench
            .a
            .post(Request::write(3, good, bench.b.remote(0)).flags(0)),
        0
    );
    let expected = [
        (2, status::IBV_WC_LOC_PROT_ERR),
        (3, FLUSHED),
        (10, FLUSHED),
        (11, FLUSHED),
        (12, FLUSHED),
    ];
    assert_eq!(bench.a.poll(16), expected);
    // What is posted later is flushed as well.
    assert_eq!(bench.a.post(Request::send(4, good).flags(0)), 0);
    assert_eq!(bench.a.receive(13, 0, 64), 0);
    assert_eq!(bench.a.poll(16), [(4, FLUSHED), (13, FLUSHED)]);
    bench.finish();
}

#[test]
fn message_without_receive_ends_iwarp_connection() {
    let bench = Bench::new("profile=iwarp", Shape::default());
    assert_eq!(bench.a.receive(9, 0, 64), 0);
    assert_eq!(bench.a.post(Request::send(1, bench.a.segment(0, 8))), 0);
    assert_eq!(bench.a.poll(8), [(1, OK), (9, FLUSHED)]);
    assert_eq!(bench.b.device_events(), [event::QP_FATAL]);
    bench.finish();
}

#[test]
fn shared_receives_report_limit_and_last_one() {
    let shape = Shape {
        shared: 8,
        limit: 2,
        receives: 0,
        ..Shape::default()
    };
    let bench = Bench::new("profile=roce", shape);
    for id in 0..3 {
        assert_eq!(bench.b.receive(id, 0, 64), 0);
    }
    let send = |id| assert_eq!(bench.a.post(Request::send(id, bench.a.segment(0, 8))), 0);
    send(1);
    assert_eq!(bench.b.device_events(), []);
    send(2);
    assert_eq!(bench.b.device_events(), [event::SRQ_LIMIT]);
    send(3);
    assert_eq!(bench.b.device_events(), [], "once");
    assert_eq!(bench.b.poll(2), [(0, OK), (1, OK)]);
    bench.b.post(Request::send(4, {
        let mut wrong = bench.b.segment(0, 8);
        wrong.lkey = 0;
        wrong
    }));
    assert_eq!(bench.b.device_events(), [event::LAST_WQE]);
    // The receive is lost with the queue pair.
    bench.b.destroy_qp();
    assert_eq!(crate::counters(&bench.device).unwrap().lost_receives, 1);
    assert_eq!(bench.b.poll(8), []);
    bench.finish();
}

#[test]
fn reads_wait_for_depth_and_complete_late() {
    let shape = Shape {
        reads: 1,
        ..Shape::default()
    };
    for (settings, early) in [
        ("profile=roce read_delay=3", vec![]),
        ("profile=iwarp read_delay=3", vec![3]),
    ] {
        let bench = Bench::new(settings, shape);
        assert_eq!(bench.b.receive(0, 0, 64), 0);
        let segment = bench.a.segment(0, 8);
        assert_eq!(
            bench.a.post(Request::read(1, segment, bench.b.remote(0))),
            0
        );
        assert_eq!(bench.a.post(Request::send(3, segment)), 0);
        assert_eq!(
            bench.a.post(Request::read(2, segment, bench.b.remote(0))),
            0
        );
        let ids = |found: Vec<(u64, u32)>| found.iter().map(|(id, _)| *id).collect::<Vec<_>>();
        assert_eq!(ids(bench.a.poll(8)), early, "{settings}");
        let rest: Vec<_> = (0..12).flat_map(|_| bench.a.poll(8)).collect();
        let all = if early.is_empty() {
            vec![1, 3, 2]
        } else {
            vec![1, 2]
        };
        assert_eq!(ids(rest), all, "{settings}");
        bench.finish();
    }
}
