//! The queue pairs of one reactor: a table with generations.

use std::collections::{HashMap, VecDeque};
use std::ops::Range;
use std::time::Duration;

use nvmeof_rdma::{Lightened, QpId};
use nvmeof_target_core::RangeLock;

use crate::queue::{Left, Lingering, QueuePair};
use crate::tag::SlotId;

/// Queue pairs by place and by the provider's name for them.
#[derive(Default)]
pub(super) struct Queues {
    entries: Vec<Entry>,
    /// The one that is free longest is taken next, so that generations last.
    free: VecDeque<u16>,
    /// For events that carry no tag: connection events alone.
    by_qp: HashMap<(usize, QpId), SlotId>,
}

#[derive(Default)]
struct Entry {
    generation: u16,
    queue_pair: Option<QueuePair>,
    /// Says of an admin queue that little is sent over it.
    lightened: Option<Lightened>,
    /// Operations that disks still have of the last user of the place. Until
    /// they are done nobody else gets it, since they carry its name.
    on_disk: u32,
    /// Locks that they are done under.
    locks: Vec<RangeLock>,
    /// Their buffers, in its host's account, and what they may be changing.
    left: Option<Left>,
}

impl Entry {
    /// What disks may be changing of a queue that is gone. One that answers nothing,
    /// or a read, keeps nobody waiting who asks for another.
    fn lingering(&self) -> Option<&Lingering> {
        self.left.as_ref().map(Left::lingering)
    }
}

impl Queues {
    /// Adds what `make` makes of the place given to it. `None` when there are
    /// as many as places can name.
    pub(super) fn insert(&mut self, make: impl FnOnce(SlotId) -> QueuePair) -> Option<SlotId> {
        let index = match self.free.pop_front() {
            Some(index) => index,
            None => {
                let index = u16::try_from(self.entries.len()).ok()?;
                self.entries.push(Entry::default());
                index
            }
        };
        let entry = self.entries.get_mut(usize::from(index))?;
        let generation = entry.generation;
        let place = SlotId { index, generation };
        let queue_pair = make(place);
        self.by_qp
            .insert((queue_pair.link.provider, queue_pair.link.qp), place);
        entry.queue_pair = Some(queue_pair);
        Some(place)
    }

    pub(super) fn get(&mut self, place: SlotId) -> Option<&mut QueuePair> {
        let entry = self.entries.get_mut(usize::from(place.index))?;
        if entry.generation != place.generation {
            return None;
        }
        entry.queue_pair.as_mut()
    }

    /// Little is sent over the queue at `place`.
    pub(super) fn lighten(&mut self, place: SlotId, lightened: Lightened) {
        let entry = self.entries.get_mut(usize::from(place.index));
        if let Some(entry) = entry.filter(|entry| entry.generation == place.generation) {
            entry.lightened = Some(lightened);
        }
    }

    /// The place of the provider's queue pair.
    pub(super) fn place(&self, provider: usize, qp: QpId) -> Option<SlotId> {
        self.by_qp.get(&(provider, qp)).copied()
    }

    pub(super) fn remove(&mut self, provider: usize, qp: QpId) -> Option<QueuePair> {
        let place = self.by_qp.remove(&(provider, qp))?;
        let entry = self.entries.get_mut(usize::from(place.index))?;
        let mut queue_pair = entry.queue_pair.take()?;
        entry.lightened = None;
        entry.generation = entry.generation.wrapping_add(1);
        entry.on_disk = queue_pair.on_disk;
        let left = queue_pair.close_account();
        if entry.on_disk > 0 {
            entry.locks = queue_pair.take_locks();
            entry.left = left;
        }
        if entry.on_disk == 0 {
            self.free.push_back(place.index);
        }
        Some(queue_pair)
    }

    /// A disk operation of a queue that is gone ended, which was for the command
    /// in `slot` of it.
    pub(super) fn executed(&mut self, place: SlotId, slot: SlotId) {
        if let Some(entry) = self.entries.get_mut(usize::from(place.index))
            && entry.generation == place.generation.wrapping_add(1)
            && entry.on_disk > 0
        {
            entry.on_disk -= 1;
            if let Some(left) = &mut entry.left {
                left.release(slot);
            }
            if entry.on_disk == 0 {
                entry.locks.clear();
                entry.left = None;
                self.free.push_back(place.index);
            }
        }
    }

    /// Whether a disk of which `is_it` says that it is the one may be writing some
    /// of `bytes`, but under a lock, or will before it is the turn of `lock`.
    pub(super) fn may_write(
        &self,
        lock: u64,
        is_it: &impl Fn(u32) -> bool,
        bytes: &Range<u64>,
    ) -> bool {
        self.entries.iter().any(|entry| match &entry.queue_pair {
            Some(queue_pair) => queue_pair.may_write(lock, is_it, bytes),
            None => entry
                .lingering()
                .is_some_and(|left| left.may_write(is_it, bytes)),
        })
    }

    /// When the oldest command was begun that will write to a disk of which `is_it`
    /// says that it is the one.
    pub(super) fn oldest_write(&self, is_it: &impl Fn(u32) -> bool) -> Option<Duration> {
        let each = self
            .entries
            .iter()
            .filter_map(|entry| match &entry.queue_pair {
                Some(queue_pair) => queue_pair.oldest_write(is_it),
                None => entry.lingering().and_then(|left| left.oldest(is_it)),
            });
        each.min()
    }

    /// Those that are there, and what disks have of those that are gone.
    pub(super) fn all(
        &self,
    ) -> (
        impl Iterator<Item = &QueuePair>,
        impl Iterator<Item = &Left>,
    ) {
        let queue_pairs = self
            .entries
            .iter()
            .filter_map(|entry| entry.queue_pair.as_ref());
        let left = self.entries.iter().filter_map(|entry| entry.left.as_ref());
        (queue_pairs, left)
    }

    /// Places that are taken now.
    pub(super) fn places(&self) -> Vec<SlotId> {
        let all = (0u16..).zip(&self.entries);
        all.filter(|(_, entry)| entry.queue_pair.is_some())
            .map(|(index, entry)| SlotId {
                index,
                generation: entry.generation,
            })
            .collect()
    }

    /// Whether a command in flight was begun for that disk.
    pub(super) fn use_disk(&self, disk: u32) -> bool {
        let mut queue_pairs = self
            .entries
            .iter()
            .filter_map(|entry| entry.queue_pair.as_ref());
        queue_pairs.any(|queue_pair| queue_pair.uses(disk))
    }

    pub(super) fn len(&self) -> usize {
        self.by_qp.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.by_qp.is_empty()
    }
}
