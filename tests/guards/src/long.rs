//! Two software providers on pipes: payload of 128 KiB in several frames.

use std::hint::black_box;

use nvmeof_memory::{Buf, Pages, Pool, PoolLayout};
use nvmeof_rdma::{Event, Inline, Provider as _, RemoteSlice, Rights, Tag, Work};

use crate::engine::{BYTES, Endpoint, connected};

/// Bytes of each payload.
const LONG: usize = 128 << 10;
/// Buffers of each side.
const BUFS: usize = 16;
/// Maximum iterations of a round.
const TURNS: u32 = 100_000;

/// Direction of the payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// RDMA Writes, each followed by a Send: the data of a read and its response.
    Write,
    /// RDMA Reads: the data of a write.
    Read,
}

/// A side that accesses the memory of the other, connected.
pub struct Long {
    direction: Direction,
    worker: Endpoint,
    owner: Endpoint,
    bufs: Vec<Buf>,
    remotes: Vec<RemoteSlice>,
}

impl Long {
    /// Both sides.
    #[must_use]
    pub fn new(direction: Direction) -> Self {
        let (mut worker, mut owner) = connected(false);
        owner.post_recvs();
        let own = pool(&mut worker);
        let others = pool(&mut owner);
        let rights = Rights::REMOTE_READ | Rights::REMOTE_WRITE;
        let expose = |buf| owner.provider.expose(owner.qp, buf, rights).unwrap();
        let remotes = std::iter::from_fn(|| others.take()).map(expose).collect();
        Self {
            direction,
            worker,
            owner,
            bufs: std::iter::from_fn(|| own.take()).collect(),
            remotes,
        }
    }

    /// Transfers `count` payloads at a time, at most 16.
    pub fn round(&mut self, count: usize) {
        assert!(count <= BUFS, "more payloads than buffers");
        let Self { worker, owner, .. } = self;
        worker_posts(worker, self.direction, &mut self.bufs, &self.remotes, count);
        let (mut done, mut heard) = (0, 0);
        for _ in 0..TURNS {
            heard += owner_iteration(owner);
            done += worker_iteration(worker, &mut self.bufs);
            let all = match self.direction {
                Direction::Write => done == 2 * count && heard == count,
                Direction::Read => done == count,
            };
            if all {
                return;
            }
        }
        panic!("only {done} of {count} completed, and there is no progress");
    }
}

fn pool(end: &mut Endpoint) -> Pool {
    let layout = PoolLayout {
        count: BUFS,
        stride: LONG,
        lead: 0,
    };
    let pool = Pool::new(layout, Pages::Normal).unwrap();
    end.provider.register(pool.region()).unwrap();
    pool
}

/// Posts the work of a round, which counts for the worker.
#[inline(never)]
fn worker_posts(
    end: &mut Endpoint,
    direction: Direction,
    bufs: &mut Vec<Buf>,
    remotes: &[RemoteSlice],
    count: usize,
) {
    for &remote in remotes.iter().take(count) {
        let local = bufs.pop().unwrap();
        let work = match direction {
            Direction::Write => Work::Write { local, remote },
            Direction::Read => Work::Read { local, remote },
        };
        end.provider.post(end.qp, Tag(0), work).unwrap();
        if direction == Direction::Write {
            let answer = Work::Send {
                head: Inline::new(&[7; BYTES]).unwrap(),
                body: None,
                invalidate: None,
                solicited: false,
            };
            end.provider.post(end.qp, Tag(0), answer).unwrap();
        }
    }
}

/// Polls, and takes completions. Returns their number.
#[inline(never)]
fn worker_iteration(end: &mut Endpoint, bufs: &mut Vec<Buf>) -> usize {
    end.poll_once();
    let mut count = 0;
    for event in end.events.drain(..) {
        match event {
            Event::Completion(done) if done.outcome.is_success() => {
                count += 1;
                bufs.extend(done.buf);
            }
            Event::Established { .. } => {}
            other => panic!("{other:?}"),
        }
    }
    black_box(count)
}

/// Polls the owner of the memory. Returns the number of received messages.
#[inline(never)]
fn owner_iteration(end: &mut Endpoint) -> usize {
    // The compiler must not merge this function with the receiver's.
    black_box(Direction::Read);
    end.receive()
}
