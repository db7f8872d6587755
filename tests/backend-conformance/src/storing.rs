//! Written data are returned by reads.

use nvmeof_backend::Op;

use crate::bench::{BUFFER, Bench};

pub(crate) fn written_data_are_read(bench: &mut Bench) {
    let block = bench.block;
    let last = bench.size - block as u64;
    for (n, fua) in [(1, false), (2, true)] {
        bench.fill(0, BUFFER, n, fua);
        bench.fill(last, block, n + 10, fua);
        bench.fill(block as u64, block, n + 20, fua);
        bench.ok(Op::Flush);
        bench.expect(0, block, n);
        bench.expect(block as u64, block, n + 20);
        bench.expect(2 * block as u64, BUFFER - 2 * block, n);
        bench.expect(last, block, n + 10);
    }
}

pub(crate) fn write_zeroes_zeroes_exactly_the_range(bench: &mut Bench) {
    let block = bench.block;
    // Longer than a buffer of zeroes, and not aligned to it.
    let len = (1 << 20) + 3 * block;
    let start = block as u64;
    for (may_deallocate, fua) in [(false, false), (false, true), (true, false), (true, true)] {
        for at in (0..len + 2 * block).step_by(BUFFER) {
            bench.fill(at as u64, BUFFER, 5, false);
        }
        bench.ok(Op::WriteZeroes {
            offset: start,
            len: len as u64,
            may_deallocate,
            fua,
        });
        bench.expect(0, block, 5);
        for at in (0..len).step_by(BUFFER) {
            bench.expect(start + at as u64, BUFFER.min(len - at), 0);
        }
        bench.expect(start + len as u64, block, 5);
    }
}

pub(crate) fn deallocated_bytes_read_as_zero_if_reported(bench: &mut Bench) {
    let block = bench.block;
    bench.fill(0, BUFFER, 6, false);
    let (offset, len) = (block as u64, (BUFFER - 2 * block) as u64);
    let fua = false;
    bench.ok(Op::Deallocate { offset, len, fua });
    bench.expect(0, block, 6);
    bench.expect((BUFFER - block) as u64, block, 6);
    let zero = bench
        .stores
        .geometry(bench.store)
        .is_some_and(|it| it.deallocate_zeroes);
    let bytes = bench.read(offset, BUFFER - 2 * block);
    let old = bench.kept(6);
    let fine = |byte: &u8| *byte == 0 || (!zero && *byte == old);
    assert!(bytes.iter().all(fine));
}

pub(crate) fn reads_overwrite_whole_buffer(bench: &mut Bench) {
    let block = bench.block as u64;
    let offset = 1 << 20;
    bench.ok(Op::WriteZeroes {
        offset,
        len: BUFFER as u64,
        may_deallocate: true,
        fua: false,
    });
    let buf = bench.buf(BUFFER, 0xAB);
    let buf = bench.ok(Op::Read { offset, buf }).unwrap();
    assert!(buf.iter().all(|byte| *byte == 0));
    drop(buf);
    bench.expect(offset + block, bench.block, 0);
}
