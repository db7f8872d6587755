//! Requests that are refused, and their errors.

use nix::errno::Errno;
use nvmeof_backend::{CloseError, IoErrorKind, Op, RefusalReason, Request};

use crate::bench::Bench;

pub(crate) fn ranges_outside_or_misaligned_are_refused(bench: &mut Bench) {
    let (block, size) = (bench.block as u64, bench.size);
    bench.fill(size - block, bench.block, 3, false);
    for (offset, len) in [
        (size, block),
        (size - block, 2 * block),
        (u64::MAX - block + 1, block),
        (u64::MAX, block),
        (1, block),
        (block / 2, block),
        (0, block + 1),
        (0, block / 2),
    ] {
        let fua = false;
        let mut ops = vec![
            Op::Deallocate { offset, len, fua },
            Op::WriteZeroes {
                offset,
                len,
                may_deallocate: false,
                fua,
            },
        ];
        let len = usize::try_from(len).unwrap();
        let buf = bench.buf(len, 1);
        ops.push(Op::Write { offset, buf, fua });
        let buf = bench.buf(len, 1);
        ops.push(Op::Read { offset, buf });
        for op in ops {
            let (verb, owned) = (op.verb(), bench.pool.available());
            let has_buf = matches!(op, Op::Read { .. } | Op::Write { .. });
            let done = bench.run(op);
            let error = done.result.unwrap_err();
            assert_eq!(error.kind, IoErrorKind::OutOfRange, "{error}");
            assert_eq!((error.verb, error.offset), (verb, offset));
            assert_eq!(done.buf.is_some(), has_buf);
            drop(done.buf);
            assert_eq!(bench.pool.available(), owned + usize::from(has_buf));
        }
    }
    bench.expect(size - block, bench.block, 3);
}

pub(crate) fn empty_ranges_complete(bench: &mut Bench) {
    bench.fill(0, bench.block, 4, false);
    for offset in [0, bench.size] {
        let buf = bench.buf(0, 0);
        assert!(bench.ok(Op::Read { offset, buf }).is_some());
        let (buf, fua) = (bench.buf(0, 0), true);
        assert!(bench.ok(Op::Write { offset, buf, fua }).is_some());
        let (len, fua) = (0, true);
        bench.ok(Op::Deallocate { offset, len, fua });
        bench.ok(Op::WriteZeroes {
            offset,
            len,
            may_deallocate: true,
            fua,
        });
    }
    bench.expect(0, bench.block, 4);
}

pub(crate) fn store_is_closed_only_when_idle(bench: &mut Bench) {
    let (buf, offset, tag) = (bench.buf(bench.block, 0), 0, 1);
    let op = Op::Read { offset, buf };
    let taken = bench.try_submit(&mut Request { tag, op });
    let mut done = Vec::from_iter(taken.unwrap());
    while done.is_empty() {
        match bench.stores.close(bench.store) {
            Err(CloseError::Busy(1)) => bench.poll_once(&mut done),
            other => panic!("closed before the read completed: {other:?}"),
        }
    }
    assert_eq!((done.len(), &done[0].result), (1, &Ok(())));
    let _ = bench.stores.close(bench.store);
    let closed = bench.stores.close(bench.store);
    assert!(matches!(closed, Err(CloseError::NotOpen)));
    let op = Op::Flush;
    let refused = bench.try_submit(&mut Request { tag, op });
    assert_eq!(refused.unwrap_err(), RefusalReason::NotOpen);
    assert!(bench.stores.geometry(bench.store).is_none());
}

pub(crate) fn read_only_store_refuses_changes(bench: &mut Bench) {
    let (offset, block) = (0, bench.block);
    let before = bench.read(offset, block);
    let len = block as u64;
    let (buf, fua) = (bench.buf(block, before[0] ^ 1), true);
    for op in [
        Op::Write { offset, buf, fua },
        Op::Deallocate { offset, len, fua },
        Op::WriteZeroes {
            offset,
            len,
            may_deallocate: true,
            fua,
        },
    ] {
        let error = bench.err(op);
        let expected = (IoErrorKind::ReadOnly, Errno::EROFS);
        assert_eq!((error.kind, error.errno), expected);
    }
    bench.ok(Op::Flush);
    assert_eq!(bench.read(offset, block), before);
}
