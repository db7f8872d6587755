//! Many concurrent requests, and several reactors.

use nvmeof_backend::{Done, Op, RefusalReason, Request};

use crate::bench::{BUFFERS, Bench, IN_FLIGHT};

/// Submits until the ring is full or all buffers are in use; returns the number.
fn flood(bench: &mut Bench, done: &mut Vec<Done>) -> u64 {
    for tag in 0..BUFFERS as u64 {
        let byte = tag as u8 + 1;
        let (buf, fua) = (bench.buf(bench.block, byte), tag % 3 == 0);
        let offset = tag * bench.block as u64;
        let op = Op::Write { offset, buf, fua };
        let mut request = Request { tag, op };
        match bench.try_submit(&mut request) {
            Ok(at_once) => done.extend(at_once),
            Err(why) => {
                assert_eq!((why, request.tag), (RefusalReason::Full, tag));
                let buf = request.op.into_buf().unwrap();
                assert!(buf.iter().all(|it| *it == byte), "the buffer is unchanged");
                return tag;
            }
        }
    }
    BUFFERS as u64
}

pub(crate) fn accepted_requests_complete_once(bench: &mut Bench) {
    for _ in 0..3 {
        let mut done = Vec::new();
        let taken = flood(bench, &mut done);
        assert!(taken >= u64::from(IN_FLIGHT), "only {taken} were accepted");
        while (done.len() as u64) < taken {
            bench.poll_once(&mut done);
        }
        assert!(!bench.stores.poll(&mut done).unwrap());
        done.sort_by_key(|it| it.tag);
        for (tag, done) in (0..taken).zip(done) {
            assert_eq!((done.tag, done.result), (tag, Ok(())));
            assert!(done.buf.unwrap().iter().all(|it| *it == tag as u8 + 1));
        }
        assert_eq!(bench.pool.available(), BUFFERS);
        for n in 0..taken {
            bench.expect(n * bench.block as u64, bench.block, n as u8 + 1);
        }
    }
}

pub(crate) fn dropped_reactor_returns_buffers(bench: &mut Bench) {
    flood(bench, &mut Vec::new());
    bench.stores.kick().unwrap();
    let config = nvmeof_uring::RingConfig::default();
    let other = nvmeof_backend::UringStores::new(config).unwrap();
    drop(std::mem::replace(&mut bench.stores, other));
    assert_eq!(bench.pool.available(), BUFFERS);
}

pub(crate) fn reactors_read_same_data(one: &mut Bench, other: &mut Bench) {
    for byte in 1..5 {
        let offset = u64::from(byte) * one.block as u64;
        one.fill(offset, one.block, byte, false);
        other.expect(offset, one.block, byte);
        other.fill(offset, one.block, byte + 100, false);
        one.expect(offset, one.block, byte + 100);
    }
    other.ok(Op::Flush);
}
