//! Keys, rights and windows.

use rdma_sys::{bind_mw_t, ibv_mw, ibv_mw_bind_info, ibv_mw_type, ibv_wr_opcode as opcode};

use super::bench::{Bench, End, Request, Shape};
use crate::ibverbs::{ibv_dereg_mr, ibv_reg_mr};
use crate::raw::{access, event, status};

const OK: u32 = status::IBV_WC_SUCCESS;

#[test]
fn data_are_copied_between_registered_ranges() {
    let mut bench = Bench::new("profile=roce", Shape::default());
    bench.a.memory[..8].copy_from_slice(b"from a..");
    assert_eq!(
        bench.a.post(Request::write(
            1,
            bench.a.segment(0, 8),
            bench.b.remote(100)
        )),
        0
    );
    assert_eq!(bench.a.poll(8), [(1, OK)]);
    assert_eq!(&bench.b.memory[99..109], b"\0from a..\0");
    assert_eq!(
        bench.a.post(Request::read(
            2,
            bench.a.segment(50, 4),
            bench.b.remote(100)
        )),
        0
    );
    assert_eq!(bench.a.poll(8), [(2, OK)]);
    assert_eq!(&bench.a.memory[50..55], b"from\0");
    bench.finish();
}

#[test]
fn access_outside_range_or_rights_is_refused() {
    let reads = access::LOCAL_WRITE | access::REMOTE_READ;
    for (settings, access, start, change) in [
        ("profile=roce", 7, 4090, 0),
        ("profile=roce", 7, 0, 0x100),
        ("profile=roce", reads, 0, 0),
    ] {
        let shape = Shape {
            access,
            ..Shape::default()
        };
        let bench = Bench::new(settings, shape);
        assert_eq!(bench.b.receive(9, 0, 64), 0);
        let (addr, key) = bench.b.remote(start);
        let remote = (addr, key ^ change);
        assert_eq!(
            bench
                .a
                .post(Request::write(1, bench.a.segment(0, 8), remote)),
            0
        );
        assert_eq!(bench.a.poll(8), [(1, status::IBV_WC_REM_ACCESS_ERR)]);
        assert_eq!(bench.b.device_events(), [event::QP_ACCESS_ERR]);
        assert_eq!(bench.b.poll(8), [(9, status::IBV_WC_WR_FLUSH_ERR)]);
        bench.finish();
    }
}

#[test]
fn iwarp_read_needs_memory_that_peer_may_write() {
    let shape = Shape {
        access: access::LOCAL_WRITE | access::REMOTE_READ,
        ..Shape::default()
    };
    for (settings, expected) in [
        ("profile=iwarp", status::IBV_WC_LOC_PROT_ERR),
        ("profile=roce", OK),
    ] {
        let bench = Bench::new(settings, shape);
        assert_eq!(
            bench
                .a
                .post(Request::read(1, bench.a.segment(0, 8), bench.b.remote(0))),
            0
        );
        assert_eq!(bench.a.poll(8), [(1, expected)], "{settings}");
        bench.finish();
    }
}

#[test]
fn empty_segment_stands_for_two_gigabytes_except_on_iwarp() {
    for (settings, expected) in [
        ("profile=roce", status::IBV_WC_LOC_PROT_ERR),
        ("profile=iwarp", OK),
    ] {
        let bench = Bench::new(settings, Shape::default());
        assert_eq!(bench.b.receive(9, 0, 64), 0);
        assert_eq!(bench.a.post(Request::send(1, bench.a.segment(0, 0))), 0);
        assert_eq!(bench.a.poll(8), [(1, expected)], "{settings}");
        bench.finish();
    }
}

/// A window of B and a region that it can be bound to.
struct Window {
    mw: *mut ibv_mw,
    mr: *mut rdma_sys::ibv_mr,
    key: u32,
}

impl Window {
    fn new(end: &mut End) -> Self {
        let flags = (access::LOCAL_WRITE | access::BIND).cast_signed();
        let place = end.memory.as_mut_ptr().cast();
        // SAFETY: memory that lives as long as the region.
        let mr = unsafe { ibv_reg_mr(end.pd, place, end.memory.len(), flags) };
        // SAFETY: a device of the bench.
        let alloc = unsafe { (*end.context).ops.alloc_mw };
        // SAFETY: a domain.
        let mw = unsafe { alloc.unwrap()(end.pd, ibv_mw_type::IBV_MW_TYPE_2) };
        // SAFETY: made above.
        let key = unsafe { (*mw).rkey } + 1;
        Self { mw, mr, key }
    }

    fn bind(&self, end: &End, key: u32, start: usize, len: u64) -> Request {
        let info = ibv_mw_bind_info {
            mr: self.mr,
            addr: end.remote(start).0,
            length: len,
            mw_access_flags: access::REMOTE_WRITE,
        };
        Request {
            opcode: opcode::IBV_WR_BIND_MW,
            segment: None,
            bind: Some(bind_mw_t {
                mw: self.mw,
                rkey: key,
                bind_info: info,
            }),
            ..Request::send(50, end.segment(0, 1))
        }
    }

    fn destroy(self, end: &End) {
        // SAFETY: a region that is in use.
        let busy = unsafe { ibv_dereg_mr(self.mr) };
        // SAFETY: a device of the bench.
        let dealloc = unsafe { (*end.context).ops.dealloc_mw };
        // SAFETY: a window.
        assert_eq!(unsafe { dealloc.unwrap()(self.mw) }, 0);
        if busy != 0 {
            assert_eq!(busy, libc::EBUSY);
            // SAFETY: a region.
            assert_eq!(unsafe { ibv_dereg_mr(self.mr) }, 0);
        }
    }
}

#[test]
fn window_opens_its_range_until_it_is_invalidated() {
    let mut bench = Bench::new("profile=roce", Shape::default());
    let window = Window::new(&mut bench.b);
    let key = window.key;
    assert_eq!(bench.b.post(window.bind(&bench.b, key, 100, 50)), 0);
    assert_eq!(bench.b.poll(8), [(50, OK)]);
    let remote = (bench.b.remote(120).0, key);
    assert_eq!(
        bench
            .a
            .post(Request::write(1, bench.a.segment(0, 30), remote)),
        0
    );
    assert_eq!(bench.a.poll(8), [(1, OK)]);
    // The peer invalidates it, then its owner, which has no effect.
    assert_eq!(bench.b.receive(9, 0, 64), 0);
    let last = Request {
        opcode: opcode::IBV_WR_SEND_WITH_INV,
        key,
        ..Request::send(2, bench.a.segment(0, 8))
    };
    assert_eq!(bench.a.post(last), 0);
    assert_eq!(bench.b.poll(8), [(9, OK)]);
    let local = Request {
        opcode: opcode::IBV_WR_LOCAL_INV,
        key,
        segment: None,
        ..Request::send(3, bench.b.segment(0, 1))
    };
    assert_eq!(bench.b.post(local), 0);
    assert_eq!(bench.b.poll(8), [(3, OK)]);
    assert_eq!(
        bench
            .a
            .post(Request::write(4, bench.a.segment(0, 8), remote)),
        0
    );
    let found = bench.a.poll(8);
    assert_eq!(found, [(2, OK), (4, status::IBV_WC_REM_ACCESS_ERR)]);
    window.destroy(&bench.b);
    bench.finish();
}

#[test]
fn invalid_binds_are_refused() {
    for (key, start, len) in [(0x100, 0, 8), (0, 4090, 8), (0, 0, 0)] {
        let mut bench = Bench::new("profile=roce", Shape::default());
        let window = Window::new(&mut bench.b);
        let bind = window.bind(&bench.b, window.key ^ key, start, len);
        assert_eq!(bench.b.post(bind), 0);
        assert_eq!(bench.b.poll(8), [(50, status::IBV_WC_MW_BIND_ERR)]);
        window.destroy(&bench.b);
        bench.finish();
    }
    let mut bench = Bench::new("profile=roce", Shape::default());
    let window = Window::new(&mut bench.b);
    assert_eq!(bench.b.post(window.bind(&bench.b, window.key, 0, 8)), 0);
    assert_eq!(bench.b.post(window.bind(&bench.b, window.key + 1, 0, 8)), 0);
    let twice = [(50, OK), (50, status::IBV_WC_MW_BIND_ERR)];
    assert_eq!(bench.b.poll(8), twice, "it is bound already");
    window.destroy(&bench.b);
    bench.finish();
}

#[test]
fn window_of_another_queue_pair_is_closed() {
    let mut bench = Bench::new("profile=roce", Shape::default());
    let window = Window::new(&mut bench.a);
    // A opens it to B, and A is not its own peer.
    assert_eq!(bench.a.post(window.bind(&bench.a, window.key, 0, 100)), 0);
    let remote = (bench.a.remote(0).0, window.key);
    assert_eq!(
        bench
            .a
            .post(Request::write(1, bench.a.segment(0, 8), remote)),
        0
    );
    let found = bench.a.poll(8);
    assert_eq!(found, [(50, OK), (1, status::IBV_WC_REM_ACCESS_ERR)]);
    window.destroy(&bench.a);
    bench.finish();
}

#[test]
fn region_cannot_be_invalidated_by_peer_except_on_iwarp() {
    for (settings, expected) in [
        ("profile=no-windows", status::IBV_WC_REM_INV_REQ_ERR),
        ("profile=iwarp", OK),
    ] {
        let bench = Bench::new(settings, Shape::default());
        assert_eq!(bench.b.receive(9, 0, 64), 0);
        let (_, key) = bench.b.remote(0);
        let send = Request {
            opcode: opcode::IBV_WR_SEND_WITH_INV,
            key,
            ..Request::send(1, bench.a.segment(0, 8))
        };
        // On iWARP the receive is placed in the region before it is invalidated.
        assert_eq!(bench.a.post(send), 0);
        assert_eq!(bench.b.poll(8), [(9, expected)], "{settings}");
        bench.finish();
    }
}
