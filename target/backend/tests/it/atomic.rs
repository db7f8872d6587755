//! Atomicity as Identify reports it (AWUN and NAWUN: one block; NACWU: 4 KiB): a read of that
//! length, concurrent with writes, returns the data of one of them.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests")]

use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use nvmeof_backend::{BlockSize, Claim, Done, Op, Spec};
use nvmeof_backend_conformance::{Bench, Keeps};
use tempfile::NamedTempFile;

/// Writes of each writer.
const ROUNDS: usize = 1000;
/// Operations of each that are in flight at the same time.
const AT_ONCE: usize = 4;

/// The range that all of them access, in bytes.
#[derive(Clone, Copy)]
struct Range {
    offset: u64,
    len: usize,
}

/// Two reactors write the same range while a third one reads it.
fn assert_atomic(claim: &Claim, keeps: Keeps, range: Range) {
    let mut reader = bench(claim, keeps);
    reader.fill(range.offset, range.len, 0, false);
    let writing = AtomicUsize::new(2);
    thread::scope(|scope| {
        for first in [1, 2] {
            let writing = &writing;
            scope.spawn(move || {
                let ended = Ended(writing);
                write(&mut bench(claim, keeps), range, first);
                drop(ended);
            });
        }
        while writing.load(Ordering::Acquire) > 0 {
            read(&mut reader, range);
        }
    });
}

/// Marks the end of a writer, also when it panics.
struct Ended<'a>(&'a AtomicUsize);

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Release);
    }
}

fn bench(claim: &Claim, keeps: Keeps) -> Bench {
    Bench::new(claim, keeps, |backend| backend)
}

/// Writes odd bytes, or even ones.
fn write(bench: &mut Bench, range: Range, first: usize) {
    let mut done = Vec::new();
    for round in (0..ROUNDS).step_by(AT_ONCE) {
        for at in 0..AT_ONCE {
            let byte = u8::try_from((first + 2 * (round + at)) % 250).unwrap();
            let (offset, buf, fua) = (range.offset, bench.buf(range.len, byte), false);
            bench.submit(Op::Write { offset, buf, fua }, &mut done);
        }
        wait(bench, &mut done);
    }
}

fn read(bench: &mut Bench, range: Range) {
    let mut done = Vec::new();
    for _ in 0..AT_ONCE {
        let (offset, buf) = (range.offset, bench.buf(range.len, 0xDD));
        bench.submit(Op::Read { offset, buf }, &mut done);
    }
    wait(bench, &mut done);
}

/// Waits for all submitted operations. All bytes of a read are equal.
fn wait(bench: &mut Bench, done: &mut Vec<Done>) {
    while done.len() < AT_ONCE {
        bench.poll_once(done);
    }
    for Done { result, buf, .. } in done.drain(..) {
        assert_eq!(result, Ok(()));
        let bytes = buf.unwrap();
        let differs = bytes.iter().position(|byte| *byte != bytes[0]);
        assert_eq!(differs, None, "parts of two writes");
    }
}

fn claim(path: &Path, block_size: BlockSize) -> Claim {
    let spec = Spec::File {
        path: path.to_owned(),
        readonly: false,
    };
    Claim::take(&spec, Some(block_size)).unwrap()
}

/// A block, and the maximum length of a fused Compare and Write.
fn lengths(block_size: BlockSize) -> [usize; 2] {
    [block_size.bytes().try_into().unwrap(), 4096]
}

#[test]
fn ram_never_tears_writes_it_reports_as_atomic() {
    for block_size in BlockSize::ALL {
        for (spec, keeps) in [("ram:3M", Keeps::Bytes), ("null:3M", Keeps::Nothing)] {
            let claim = Claim::take(&spec.parse().unwrap(), Some(block_size)).unwrap();
            for len in lengths(block_size) {
                // Also across the border of two chunks of the RAM store.
                let border = (1 << 20) - u64::from(block_size.bytes());
                for offset in [0, border] {
                    assert_atomic(&claim, keeps, Range { offset, len });
                }
            }
        }
    }
}

/// With direct I/O: the page cache does not guarantee atomicity. Identify cannot report less
/// than a block.
#[test]
fn file_never_tears_writes_it_reports_as_atomic() {
    let file = NamedTempFile::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    file.as_file().set_len(3 << 20).unwrap();
    for block_size in BlockSize::ALL {
        let claim = claim(file.path(), block_size);
        if claim.geometry().direct {
            for len in lengths(block_size) {
                assert_atomic(&claim, Keeps::Bytes, Range { offset: 0, len });
            }
        }
    }
}
