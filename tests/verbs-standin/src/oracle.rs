//! What devices may still do with memory: tests ask before they believe that a buffer is theirs.

use crate::memory::{Mr, Piece, Segment};
use crate::queue::{Data, Entry, Op, Progress, Qp, Receive, State};
use crate::raw::access;
use crate::world::{World, lock};

/// What may still write to the `len` bytes at `addr`, in words. `None` if nothing does: no
/// receive and no unfinished RDMA Read has them as its destination, and no peer has a key to them
/// with which it may write.
#[must_use]
pub fn writer_of(addr: u64, len: usize) -> Option<String> {
    let bytes = Piece {
        addr,
        len: len as u64,
    };
    let world = lock();
    let mut queues = world.qps.iter().map(|(_, qp)| qp);
    queues
        .find_map(|qp| work_on(&world, qp, bytes))
        .or_else(|| shared_receive_on(&world, bytes))
        .or_else(|| key_to(&world, bytes))
}

/// Queue pairs of a device that are not destroyed, in whatever state.
#[must_use]
pub fn queue_pairs(device: &str) -> usize {
    let world = lock();
    let qps = world.qps.iter();
    let named = |qp: &Qp| {
        world
            .devices
            .get(qp.device)
            .is_some_and(|one| one.name == device)
    };
    qps.filter(|(_, qp)| named(qp)).count()
}

/// Work of a queue pair that writes to `bytes`.
fn work_on(world: &World, qp: &Qp, bytes: Piece) -> Option<String> {
    if qp.state == State::Error {
        return None;
    }
    let hits =
        |segment: &Segment| place(world, qp.device, segment).is_some_and(|to| to.overlaps(bytes));
    let receives = |receive: &Receive| receive.segments.iter().any(hits);
    let reads = |entry: &Entry| match &entry.op {
        Op::Read { local, .. } => is_open(entry) && local.iter().any(hits),
        _ => false,
    };
    let number = qp.number;
    if let Some(receive) = qp.receives.iter().find(|receive| receives(receive)) {
        let id = receive.id;
        return Some(format!("receive {id:#x} of queue pair {number}"));
    }
    let read = qp.sends.iter().find(|entry| reads(entry))?;
    Some(format!("RDMA Read {:#x} of queue pair {number}", read.id))
}

fn shared_receive_on(world: &World, bytes: Piece) -> Option<String> {
    world.srqs.iter().find_map(|(key, srq)| {
        let hits = |segment: &Segment| {
            place(world, srq.device, segment).is_some_and(|to| to.overlaps(bytes))
        };
        let mut receives = srq.receives.iter();
        let receive = receives.find(|receive| receive.segments.iter().any(hits))?;
        let id = receive.id;
        Some(format!("receive {id:#x} of shared receive queue {key}"))
    })
}

/// A key with which a peer may write to `bytes`.
fn key_to(world: &World, bytes: Piece) -> Option<String> {
    let serves = |qp: &Qp| qp.state == State::Ready;
    let windows = world.memory.mws.iter().find_map(|(_, window)| {
        let bound = window.bound?;
        let mr = world.memory.mrs.get(bound.mr)?;
        let open = mr.piece(bound.addr, bound.len)?;
        let mut qps = world.qps.iter().map(|(_, qp)| qp);
        let alive = qps.any(|qp| qp.number == bound.qp && serves(qp));
        let writes = bound.access & access::REMOTE_WRITE != 0;
        (alive && writes && open.overlaps(bytes)).then(|| format!("window {:#010x}", bound.key))
    });
    let region = |mr: &Mr| {
        let mut qps = world.qps.iter().map(|(_, qp)| qp);
        let writes = mr.access & access::REMOTE_WRITE != 0 && !mr.invalidated;
        writes && mr.all().overlaps(bytes) && qps.any(|qp| qp.pd == mr.pd && serves(qp))
    };
    windows.or_else(|| {
        let mut regions = world.memory.mrs.iter().map(|(_, mr)| mr);
        let mr = regions.find(|mr| region(mr))?;
        Some(format!("region {:#010x}", mr.key))
    })
}

/// Work of a queue pair that uses the region of a device with this key, in words.
pub(crate) fn user_of(world: &World, device: usize, key: u32) -> Option<String> {
    let uses = |segment: &Segment| segment.key == key;
    let qps = world.qps.iter().map(|(_, qp)| qp);
    let mut qps = qps.filter(|qp| qp.device == device);
    qps.find_map(|qp| {
        let received = qp.receives.iter().any(|one| one.segments.iter().any(uses));
        let sent = |entry: &Entry| {
            let segments = match &entry.op {
                Op::Read { local, .. } => local,
                Op::Send {
                    data: Data::Memory(from),
                    ..
                }
                | Op::Write {
                    data: Data::Memory(from),
                    ..
                } => from,
                _ => return false,
            };
            is_open(entry) && segments.iter().any(uses)
        };
        let number = qp.number;
        (received || qp.sends.iter().any(sent)).then(|| format!("queue pair {number}"))
    })
}

fn is_open(entry: &Entry) -> bool {
    !matches!(entry.progress, Progress::Done(_))
}

/// The bytes of a segment.
fn place(world: &World, device: usize, segment: &Segment) -> Option<Piece> {
    let keys = &world.devices.get(device)?.keys;
    world.memory.bytes_of(keys, *segment)
}
