//! Memory that another process lends, as fixed buffers.
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
/// Pieces that a ring has room for.
const PLACES: usize = 512;

/// Memory, and who lends it: here the same process.
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

/// A ring with memory of its own, and a file whose blocks have their numbers.
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

    /// Reads from that block on into `buf`.
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
fn what_is_lent_is_registered_when_it_is_first_used() {
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
    // And out of it: what the owner put there goes to the disk.
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
fn what_lies_in_two_pieces_is_used_without() {
    let (mut disk, peer) = (Disk::new(), Peer::new(2, PIECE));
    for start in [PIECE - 1, PIECE - BLOCK + 1] {
        drop(disk.read(5, peer.lend(0, start, BLOCK)));
        assert_eq!((seen(&peer, start), seen(&peer, start + BLOCK - 1)), (5, 5));
    }
    assert_eq!((disk.not_fixed(), disk.ring.lent_pieces()), (2, 0));
}

/// Numbers of regions are never used twice, places are: each finds its own
/// memory behind it, and they never run out.
#[test]
fn places_of_those_who_left_are_used_again() {
    let mut disk = Disk::new();
    for round in 0..4 * PLACES {
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
    // Nobody has any of it any more: before a sleep all of it goes.
    let _ = disk.ring.arm();
    assert_eq!(disk.ring.lent_pieces(), 0);
}

#[test]
fn without_a_sleep_it_goes_too() {
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
fn what_an_operation_uses_stays() {
    let (mut disk, peer) = (Disk::new(), Peer::new(1, BLOCK));
    let (read, write) = nix::unistd::pipe().unwrap();
    let (pipe, mut write) = (disk.ring.add_file(read.into()).unwrap(), File::from(write));
    let Peer { pool, lender } = peer;
    let buf = lender.lend(0, 0, 8).unwrap();
    disk.ring.read(3, pipe, 0, buf).unwrap();
    disk.ring.submit().unwrap();
    // Of the peer nothing is left here but what the kernel waits to fill.
    drop(lender);
    for _ in 0..4 {
        disk.ring.submit().unwrap();
        let _ = disk.ring.arm();
    }
    assert_eq!(disk.ring.lent_pieces(), 1);
    // Others come meanwhile, and get other places.
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
fn beyond_the_places_there_are_it_is_used_without() {
    let mut disk = Disk::new();
    let mut peers: Vec<Peer> = (0..PLACES + 8).map(|_| Peer::new(1, BLOCK)).collect();
    for (block, peer) in (0..=u8::MAX).cycle().zip(&peers) {
        drop(disk.read(block, peer.lend(0, 0, BLOCK)));
        assert_eq!(seen(peer, 0), block);
    }
    assert_eq!((disk.not_fixed(), disk.ring.lent_pieces()), (8, PLACES));
    assert_eq!(
        disk.ring.lent_left_out(),
        None,
        "the kernel refused nothing"
    );
    // Room for those who are left over comes when others leave.
    peers.drain(..16);
    let _ = disk.ring.arm();
    for peer in &peers {
        drop(disk.read(1, peer.lend(0, 0, BLOCK)));
    }
    assert_eq!((disk.not_fixed(), disk.ring.lent_pieces()), (8, PLACES - 8));
}

#[test]
fn a_ring_that_ends_gives_everything_back() {
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
