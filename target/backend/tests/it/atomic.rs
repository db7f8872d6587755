//! What Identify says of atomic writes (AWUN and NAWUN: one block; NACWU: 4 KiB):
//! whoever reads so much while others write it sees what one of them wrote, never some
//! of both.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests")]

use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use nvmeof_backend::{BlockSize, Claim, Done, Op, Spec};
use nvmeof_backend_conformance::{Bench, Keeps};
use tempfile::NamedTempFile;

/// Writes of each writer.
const ROUNDS: usize = 1000;
/// Operations of each that are in flight at once.
const AT_ONCE: usize = 4;

/// Where all of them work, in bytes.
#[derive(Clone, Copy)]
struct Range {
    offset: u64,
    len: usize,
}

/// Two reactors write the same range, a third one reads it meanwhile.
fn it_is_whole(claim: &Claim, keeps: Keeps, range: Range) {
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

/// Also when it panics.
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

/// Waits for all that were submitted. What was read is all one byte.
fn wait(bench: &mut Bench, done: &mut Vec<Done>) {
    while done.len() < AT_ONCE {
        bench.turn(done);
    }
    for Done { result, buf, .. } in done.drain(..) {
        assert_eq!(result, Ok(()));
        let bytes = buf.unwrap();
        let differs = bytes.iter().position(|byte| *byte != bytes[0]);
        assert_eq!(differs, None, "a part of one write and a part of another");
    }
}

fn claim(path: &Path, block_size: BlockSize) -> Claim {
    let spec = Spec::File {
        path: path.to_owned(),
        readonly: false,
    };
    Claim::take(&spec, Some(block_size)).unwrap()
}

/// A block, and what a fused Compare and Write may be about.
fn lengths(block_size: BlockSize) -> [usize; 2] {
    [block_size.bytes().try_into().unwrap(), 4096]
}

#[test]
fn what_ram_says_is_atomic_is_whole_for_who_reads_it() {
    for block_size in BlockSize::ALL {
        for (spec, keeps) in [("ram:3M", Keeps::Bytes), ("null:3M", Keeps::Nothing)] {
            let claim = Claim::take(&spec.parse().unwrap(), Some(block_size)).unwrap();
            for len in lengths(block_size) {
                // Across the border of what is locked together, too.
                let border = (1 << 20) - u64::from(block_size.bytes());
                for offset in [0, border] {
                    it_is_whole(&claim, keeps, Range { offset, len });
                }
            }
        }
    }
}

/// With direct I/O. The page cache promises nothing, and no less than a block can be
/// told.
#[test]
fn what_a_file_says_is_atomic_is_whole_for_who_reads_it() {
    let file = NamedTempFile::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    file.as_file().set_len(3 << 20).unwrap();
    for block_size in BlockSize::ALL {
        let claim = claim(file.path(), block_size);
        if claim.geometry().direct {
            for len in lengths(block_size) {
                it_is_whole(&claim, Keeps::Bytes, Range { offset: 0, len });
            }
        }
    }
}
