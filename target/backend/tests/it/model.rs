//! Random requests, compared with a vector of bytes.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::cast_possible_truncation,
    reason = "tests"
)]

use nix::errno::Errno;
use nvmeof_backend::{BlockSize, Claim, Done, Op, Spec};
use nvmeof_backend_conformance::{Bench, Keeps, Wrap};
use nvmeof_backend_layers::{Delayed, Faulty, Plan};
use proptest::prelude::*;
use tempfile::NamedTempFile;

/// Requests of one batch are in flight together, each in a lane of its own.
const LANES: usize = 4;
const LANE_BLOCKS: usize = 24;

#[derive(Clone, Debug)]
enum RequestKind {
    Read,
    Write { byte: u8, fua: bool },
    WriteZeroes { may_deallocate: bool, fua: bool },
    Deallocate,
    Flush,
}

#[derive(Clone, Debug)]
struct BlockRequest {
    kind: RequestKind,
    start: usize,
    blocks: usize,
}

fn request() -> impl Strategy<Value = BlockRequest> {
    let kind = prop_oneof![
        3 => Just(RequestKind::Read),
        4 => (1..=255u8, any::<bool>()).prop_map(|(byte, fua)| RequestKind::Write { byte, fua }),
        2 => any::<(bool, bool)>()
            .prop_map(|(may_deallocate, fua)| RequestKind::WriteZeroes { may_deallocate, fua }),
        1 => Just(RequestKind::Deallocate),
        1 => Just(RequestKind::Flush),
    ];
    (kind, 0..LANE_BLOCKS)
        .prop_flat_map(|(kind, start)| (Just(kind), Just(start), 0..=(LANE_BLOCKS - start).min(15)))
        .prop_map(|(kind, start, blocks)| BlockRequest {
            kind,
            start,
            blocks,
        })
}

fn batches() -> impl Strategy<Value = Vec<Vec<BlockRequest>>> {
    let batch = proptest::collection::vec(request(), LANES);
    proptest::collection::vec(batch, 1..12)
}

fn run(bench: &mut Bench, model: &mut [u8], batch: &[BlockRequest]) {
    let block = bench.block;
    let mut expected = std::collections::HashMap::new();
    let mut done: Vec<Done> = Vec::new();
    for (
        lane,
        BlockRequest {
            kind,
            start,
            blocks,
        },
    ) in batch.iter().enumerate()
    {
        let first = (lane * LANE_BLOCKS + start) * block;
        let (offset, len) = (first as u64, (blocks * block) as u64);
        let bytes = &mut model[first..][..blocks * block];
        let op = match *kind {
            RequestKind::Read => Op::Read {
                offset,
                buf: bench.buf(bytes.len(), 0xDD),
            },
            RequestKind::Write { byte, fua } => {
                bytes.fill(byte);
                let mut buf = bench.buf(bytes.len(), byte);
                if let (Some(last), Some(byte)) = (buf.last_mut(), bytes.last_mut()) {
                    (*last, *byte) = (lane as u8, lane as u8);
                }
                Op::Write { offset, buf, fua }
            }
            RequestKind::WriteZeroes {
                may_deallocate,
                fua,
            } => {
                bytes.fill(0);
                Op::WriteZeroes {
                    offset,
                    len,
                    may_deallocate,
                    fua,
                }
            }
            RequestKind::Deallocate => {
                bytes.fill(0);
                let fua = false;
                Op::Deallocate { offset, len, fua }
            }
            RequestKind::Flush => Op::Flush,
        };
        let reads = matches!(op, Op::Read { .. }).then(|| bytes.to_vec());
        expected.insert(bench.submit(op, &mut done), reads);
    }
    while done.len() < batch.len() {
        bench.poll_once(&mut done);
    }
    for Done { tag, buf, result } in done {
        assert_eq!(result, Ok(()));
        if let Some(bytes) = expected.remove(&tag).unwrap() {
            assert!(*buf.unwrap() == *bytes, "a read gave other bytes");
        }
    }
    assert!(expected.is_empty());
}

fn check(claim: &Claim, wrap: Wrap, batches: &[Vec<BlockRequest>]) {
    assert!(claim.geometry().deallocate_zeroes, "the model needs it");
    let mut bench = Bench::new(claim, Keeps::Bytes, wrap);
    let mut model = vec![0; usize::try_from(bench.size).unwrap()];
    for batch in batches {
        run(&mut bench, &mut model, batch);
    }
    for (n, bytes) in model.chunks(bench.block).enumerate() {
        let read = bench.read((n * bench.block) as u64, bench.block);
        assert!(read == bytes, "block {n} differs from the model");
    }
}

fn file_in(dir: &str, block_size: BlockSize) -> (NamedTempFile, Claim) {
    let file = NamedTempFile::new_in(dir).unwrap();
    let blocks = LANES * LANE_BLOCKS;
    let size = blocks as u64 * u64::from(block_size.bytes());
    file.as_file().set_len(size).unwrap();
    let path = file.path().to_owned();
    let readonly = false;
    let claim = Claim::take(&Spec::File { path, readonly }, Some(block_size)).unwrap();
    (file, claim)
}

const BARE: Wrap = |backend| backend;
const SHORT_AND_LATE: Wrap = |backend| {
    let plan = Plan::Seeded {
        seed: 1,
        error_one_in: 0,
        short_one_in: 2,
        errno: Errno::EIO,
    };
    Box::new(Delayed::new(Box::new(Faulty::new(backend, plan)), 2, 2))
};

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn file_on_disk_matches_model(batches in batches()) {
        let (_file, claim) = file_in(env!("CARGO_TARGET_TMPDIR"), BlockSize::B512);
        check(&claim, BARE, &batches);
    }

    #[test]
    fn file_with_short_transfers_matches_model(batches in batches()) {
        let (_file, claim) = file_in(env!("CARGO_TARGET_TMPDIR"), BlockSize::B4096);
        check(&claim, SHORT_AND_LATE, &batches);
    }

    #[test]
    fn file_in_tmpfs_matches_model(batches in batches()) {
        let (_file, claim) = file_in("/dev/shm", BlockSize::B512);
        check(&claim, SHORT_AND_LATE, &batches);
    }

    #[test]
    fn ram_matches_model(batches in batches()) {
        let size = LANES * LANE_BLOCKS * 4096;
        let spec = format!("ram:{size}").parse().unwrap();
        let claim = Claim::take(&spec, Some(BlockSize::B4096)).unwrap();
        check(&claim, SHORT_AND_LATE, &batches);
    }
}
