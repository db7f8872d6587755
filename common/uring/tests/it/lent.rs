//! Lent memory as fixed buffers.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "tests"
)]

use std::fs::File;
use std::io::Write;
use std::sync::Arc;

use nvmeof_memory::{Buf, Foreign, Lender, Pages, Pool, PoolLayout, Shared};
use nvmeof_uring::{Done, FileId, Ring, RingConfig, WriteMode};

const BLOCK: usize = 4096;
const PIECE: usize = 2 << 20;
/// Pieces that a ring registers at most.
const MAX_PIECES: usize = 512;

/// Memory and its lender: here the same process.
struct Peer {
    pool: Pool,
    lender: Lender,
}

impl Peer {
    fn new(count: usize, stride: usize) -> Self {
        let layout = PoolLayout {
            count,
            stride,
            lead: 0,
        };
        let pool = Pool::new(layout, Pages::Shareable).unwrap();
        let file = pool.region().file().unwrap();
        let region = Foreign::default().map(file, count * stride, 1 << 30);
        let (marks, _) = Shared::create(BLOCK).unwrap();
        let lender = Lender::new(region.unwrap().unwrap(), Arc::new(marks), 0, Arc::new(()));
        Self { pool, lender }
    }

    fn lend(&self, number: u32, start: usize, len: usize) -> Buf {
        let len = u32::try_from(len).unwrap();
        self.lender.lend(number, start as u64, len).unwrap()
    }
}

/// A ring with memory of its own, and a file whose blocks contain their numbers.
struct Disk {
    ring: Ring,
    file: FileId,
    done: Vec<Done>,
    _own: Pool,
}

impl Disk {
    fn new() -> Self {
        let mut ring = Ring::new(RingConfig::default()).unwrap();
        let layout = PoolLayout {
            count: 1,
            stride: BLOCK,
            lead: 0,
        };
        let own = Pool::new(layout, Pages::Normal).unwrap();
        assert_eq!(ring.register_regions([own.region()]).left_out, 0);
        let mut file = tempfile::tempfile().unwrap();
        for number in 0..=u8::MAX {
            file.write_all(&[number; BLOCK]).unwrap();
        }
        Self {
            file: ring.add_file(file).unwrap(),
            ring,
            done: Vec::new(),
            _own: own,
        }
    }

    fn wait(&mut self) -> Done {
        while self.done.is_empty() {
            self.ring.submit().unwrap();
            self.ring.reap(&mut self.done).unwrap();
        }
        self.done.pop().unwrap()
    }

    /// Reads into `buf` from that block on.
    fn read(&mut self, block: u8, buf: Buf) -> Buf {
        let at = u64::from(block) * BLOCK as u64;
        let len = u32::try_from(buf.len()).unwrap();
        self.ring.read(1, self.file, at, buf).unwrap();
        let done = self.wait();
        assert_eq!(done.result, Ok(len));
        done.buf.unwrap()
    }

    fn not_fixed(&self) -> u64 {
        self.ring.counts().not_fixed
    }
}

/// The bytes that the owner sees from `start` on.
fn seen(peer: &Peer, start: usize) -> u8 {
    peer.lend(99, start, 1).to_vec()[0]
}

#[test]
fn lent_memory_is_registered_at_first_use() {
    let (mut disk, peer) = (Disk::new(), Peer::new(3, PIECE));
    let mut own = peer.pool.take().unwrap();
    assert_eq!(disk.ring.lent_pieces(), 0);
    drop(disk.read(7, peer.lend(0, 8, BLOCK)));
    assert_eq!(seen(&peer, 8), 7);
    assert_eq!(disk.ring.lent_pieces(), 1);
    drop(disk.read(9, peer.lend(0, PIECE - BLOCK, BLOCK)));
    assert_eq!((seen(&peer, PIECE - 1), disk.ring.lent_pieces()), (9, 1));
    drop(disk.read(11, peer.lend(0, 2 * PIECE, BLOCK)));
    assert_eq!((seen(&peer, 2 * PIECE), disk.ring.lent_pieces()), (11, 2));
    // Writes from lent memory: the bytes of its owner go to the file.
    own.fill(200);
    let start = usize::try_from(own.region_offset()).unwrap();
    let lent = peer.lend(0, start, BLOCK);
    disk.ring
        .write(1, disk.file, 0, lent, WriteMode::Dsync)
        .unwrap();
    assert_eq!(disk.wait().result, Ok(4096));
    let back = disk.read(0, peer.lend(0, 0, BLOCK));
    assert!(back.to_vec().iter().all(|byte| *byte == 200));
    assert_eq!((disk.not_fixed(), disk.ring.lent_left_out()), (0, None));
}

#[test]
fn buffer_across_two_pieces_is_not_registered() {
    let (mut disk, peer) = (Disk::new(), Peer::new(2, PIECE));
    for start in [PIECE - 1, PIECE - BLOCK + 1] {
        drop(disk.read(5, peer.lend(0, start, BLOCK)));
        assert_eq!((seen(&peer, start), seen(&peer, start + BLOCK - 1)), (5, 5));
    }
    assert_eq!((disk.not_fixed(), disk.ring.lent_pieces()), (2, 0));
}

/// Ids of regions are never reused, indices are: each refers to its own memory, and they
/// never run out.
#[test]
fn indices_of_released_pieces_are_reused() {
    let mut disk = Disk::new();
    for round in 0..4 * MAX_PIECES {
        let block = u8::try_from(round % 256).unwrap();
        let peer = Peer::new(1, BLOCK);
        drop(disk.read(block, peer.lend(0, 0, BLOCK)));
        assert!(
            peer.lend(1, 0, BLOCK)
                .to_vec()
                .iter()
                .all(|byte| *byte == block)
        );
        assert_eq!((disk.ring.lent_left_out(), disk.not_fixed()), (None, 0));
    }
    assert_eq!(disk.not_fixed(), 0);
    // All of it is unused: a sleep releases it.
    let _ = disk.ring.arm();
    assert_eq!(disk.ring.lent_pieces(), 0);
}

#[test]
fn submit_releases_pieces_without_sleep() {
    let mut disk = Disk::new();
    let peers: Vec<Peer> = (0..8).map(|_| Peer::new(1, BLOCK)).collect();
    for peer in &peers {
        drop(disk.read(1, peer.lend(0, 0, BLOCK)));
    }
    assert_eq!(disk.ring.lent_pieces(), 8);
    drop(peers);
    for _ in 0..8 {
        disk.ring.submit().unwrap();
    }
    assert_eq!(disk.ring.lent_pieces(), 0);
}

#[test]
fn piece_in_flight_is_kept() {
    let (mut disk, peer) = (Disk::new(), Peer::new(1, BLOCK));
    let (read, write) = nix::unistd::pipe().unwrap();
    let (pipe, mut write) = (disk.ring.add_file(read.into()).unwrap(), File::from(write));
    let Peer { pool, lender } = peer;
    let buf = lender.lend(0, 0, 8).unwrap();
    disk.ring.read(3, pipe, 0, buf).unwrap();
    disk.ring.submit().unwrap();
    // Only the operation in flight still uses the memory of the peer.
    drop(lender);
    for _ in 0..4 {
        disk.ring.submit().unwrap();
        let _ = disk.ring.arm();
    }
    assert_eq!(disk.ring.lent_pieces(), 1);
    // Other memory that is registered meanwhile gets other indices.
    let other = Peer::new(1, BLOCK);
    drop(disk.read(77, other.lend(0, 0, BLOCK)));
    write.write_all(b"for you!").unwrap();
    let done = disk.wait();
    assert_eq!((done.tag, done.result), (3, Ok(8)));
    assert_eq!(done.buf.unwrap().to_vec(), b"for you!");
    assert_eq!(&pool.take().unwrap()[..8], b"for you!");
    let _ = disk.ring.arm();
    assert_eq!((disk.ring.lent_pieces(), disk.not_fixed()), (1, 0));
    assert_eq!(seen(&other, 0), 77);
}

#[test]
fn pieces_beyond_limit_are_not_registered() {
    let mut disk = Disk::new();
    let mut peers: Vec<Peer> = (0..MAX_PIECES + 8).map(|_| Peer::new(1, BLOCK)).collect();
    for (block, peer) in (0..=u8::MAX).cycle().zip(&peers) {
        drop(disk.read(block, peer.lend(0, 0, BLOCK)));
        assert_eq!(seen(peer, 0), block);
    }
    assert_eq!((disk.not_fixed(), disk.ring.lent_pieces()), (8, MAX_PIECES));
    assert_eq!(
        disk.ring.lent_left_out(),
        None,
        "the kernel refused nothing"
    );
    // Released pieces make room for the remaining peers.
    peers.drain(..16);
    let _ = disk.ring.arm();
    for peer in &peers {
        drop(disk.read(1, peer.lend(0, 0, BLOCK)));
    }
    assert_eq!(
        (disk.not_fixed(), disk.ring.lent_pieces()),
        (8, MAX_PIECES - 8)
    );
}

#[test]
fn drop_of_ring_releases_lent_memory() {
    let (mut disk, peer) = (Disk::new(), Peer::new(1, BLOCK));
    drop(disk.read(1, peer.lend(0, 0, BLOCK)));
    let (read, _write) = nix::unistd::pipe().unwrap();
    let pipe = disk.ring.add_file(read.into()).unwrap();
    disk.ring.read(3, pipe, 0, peer.lend(0, 0, 8)).unwrap();
    disk.ring.submit().unwrap();
    assert!(peer.lender.lend(0, 0, 8).is_none(), "it is in use");
    drop(disk);
    assert!(peer.lender.lend(0, 0, 8).is_some());
}
