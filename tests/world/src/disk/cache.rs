//! The contents of one disk: volatile, stable, and the cache between.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

use nvmeof_backend::{Losses, Op};
use nvmeof_rdma_layers::{Dice, OneIn};

use crate::plan::DiskShape;

pub(super) struct Disk {
    pub(super) shape: DiskShape,
    /// Contents for reads.
    now: Vec<u8>,
    /// Contents after a crash.
    stable: Vec<u8>,
    /// Blocks written since, oldest first.
    cache: Vec<Cached>,
    pub(super) losses: Arc<Losses>,
}

/// One block in the write cache.
struct Cached {
    block: u64,
    data: Box<[u8]>,
    /// The job that wrote it.
    job: u64,
    /// When that job completed, in events.
    done: Option<u64>,
    /// Whether it becomes stable by itself when the job completes.
    through: bool,
}

/// Blocks that the cache holds before the oldest is written back.
const CACHE: usize = 1024;

fn is_through(op: &Op) -> bool {
    match op {
        Op::Write { fua, .. } | Op::WriteZeroes { fua, .. } | Op::Deallocate { fua, .. } => *fua,
        Op::Read { .. } | Op::Flush => false,
    }
}

impl Disk {
    /// A disk of zeroes.
    pub(super) fn new(shape: DiskShape) -> Self {
        let len = usize::try_from(shape.blocks * shape.block_size).unwrap();
        Self {
            shape,
            now: vec![0; len],
            stable: vec![0; len],
            cache: Vec::new(),
            losses: Losses::of_its_own(),
        }
    }

    /// Writes back blocks beyond the size of the cache.
    pub(super) fn keep_within_bounds(&mut self) {
        if self.cache.len() > CACHE {
            self.write_back_oldest();
        }
    }

    fn block(&self, block: u64) -> Range<usize> {
        let size = self.shape.block_size;
        let start = usize::try_from(block * size).unwrap();
        start..start + usize::try_from(size).unwrap()
    }

    fn blocks(&self, bytes: &Range<u64>) -> Range<u64> {
        bytes.start / self.shape.block_size..bytes.end / self.shape.block_size
    }

    /// Copies bytes between the disk and the operation.
    pub(super) fn transfer(&mut self, job: u64, op: &mut Op, bytes: Range<u64>) {
        let start = usize::try_from(bytes.start).unwrap();
        let end = usize::try_from(bytes.end).unwrap();
        match op {
            Op::Read { offset, buf } => {
                let from = usize::try_from(*offset).unwrap();
                buf.copy_in(start - from, &self.now[start..end]).unwrap();
                return;
            }
            Op::Write { offset, buf, .. } => {
                let from = usize::try_from(*offset).unwrap();
                let now = &mut self.now[start..end];
                buf.copy_out(start - from, now).unwrap();
            }
            Op::Deallocate { .. } if !self.shape.deallocate => return,
            Op::WriteZeroes { .. } | Op::Deallocate { .. } => self.now[start..end].fill(0),
            Op::Flush => return,
        }
        let through = is_through(op);
        for block in self.blocks(&bytes) {
            let data = self.now[self.block(block)].into();
            self.cache.push(Cached {
                block,
                data,
                job,
                done: None,
                through,
            });
        }
    }

    /// A write completes: it is stable immediately with FUA.
    pub(super) fn written(&mut self, job: u64, now: u64, op: &Op, well: bool) {
        for one in self.cache.iter_mut().filter(|one| one.job == job) {
            one.done = Some(now);
        }
        if well && (is_through(op) || !self.shape.volatile) {
            self.stabilise(|one| one.job == job);
        }
    }

    /// Writes completed before the flush was submitted become stable.
    pub(super) fn flush(&mut self, submitted: u64) {
        self.stabilise(|one| one.done.is_some_and(|at| at < submitted));
    }

    /// A flush failed like in the kernel: dirty blocks count as written, though some are not.
    /// Reads still return them.
    pub(super) fn forget(&mut self, dice: &mut Dice) {
        let blocks = |through: bool| -> BTreeSet<u64> {
            let of_it = self.cache.iter().filter(|one| one.through == through);
            of_it.map(|one| one.block).collect()
        };
        let cached = blocks(false);
        let mut forgotten: BTreeSet<u64> = cached.difference(&blocks(true)).copied().collect();
        forgotten.retain(|_| dice.happens(OneIn(2)));
        self.cache.retain(|one| !forgotten.contains(&one.block));
        self.losses.add();
    }

    fn write_back_oldest(&mut self) {
        let half = self.cache.len() / 2;
        let Some(limit) = self.cache.get(half).map(|one| one.job) else {
            return;
        };
        self.stabilise(|one| one.job < limit);
    }

    /// Makes the blocks that `chosen` selects stable, and older versions of them. Newer
    /// versions stay in the cache.
    fn stabilise(&mut self, chosen: impl Fn(&Cached) -> bool) {
        let mut newest = BTreeMap::new();
        for (at, one) in self.cache.iter().enumerate() {
            if chosen(one) {
                newest.insert(one.block, at);
            }
        }
        for (block, at) in &newest {
            let place = self.block(*block);
            self.stable[place].copy_from_slice(&self.cache[*at].data);
        }
        let mut at = 0;
        self.cache.retain(|one| {
            let overwritten = newest.get(&one.block).is_some_and(|last| at <= *last);
            at += 1;
            !overwritten
        });
    }

    /// An operation in flight during a crash: any of its blocks may be done.
    pub(super) fn tear(&mut self, op: &Op, dice: &mut Dice) {
        let (offset, len) = op.range();
        if matches!(op, Op::Read { .. } | Op::Flush)
            || matches!(op, Op::Deallocate { .. } if !self.shape.deallocate)
        {
            return;
        }
        for block in self.blocks(&(offset..offset + len)) {
            if dice.happens(OneIn(2)) {
                let place = self.block(block);
                let from = usize::try_from(offset).unwrap();
                let data = match op {
                    Op::Write { buf, .. } => {
                        let mut data = vec![0; place.len()];
                        buf.copy_out(place.start - from, &mut data).unwrap();
                        data.into()
                    }
                    _ => vec![0; place.len()].into(),
                };
                self.cache.push(Cached {
                    block,
                    data,
                    job: 0,
                    done: None,
                    through: false,
                });
            }
        }
    }

    /// For each block, one of its states since it was last stable.
    pub(super) fn crash(&mut self, dice: &mut Dice) {
        let mut states: BTreeMap<u64, Vec<Box<[u8]>>> = BTreeMap::new();
        for one in self.cache.drain(..) {
            states.entry(one.block).or_default().push(one.data);
        }
        for (block, states) in states {
            let kept = dice.below(states.len() + 1);
            if let Some(data) = states.get(kept) {
                let place = self.block(block);
                self.stable[place].copy_from_slice(data);
            }
        }
        self.now.copy_from_slice(&self.stable);
    }
}
