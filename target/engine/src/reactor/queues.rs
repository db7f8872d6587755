//! The queue pairs of one reactor: a table with generations.

use std::collections::VecDeque;
use std::ops::Range;
use std::time::Duration;

use nvmeof_rdma::{LightGuard, QpId};
use nvmeof_target_core::{BarrierScope, RangeLock};

use super::resets::{DelayedReset, Departed, ResetLog};
use crate::queue::{Lingering, QueuePair, UnreturnedBuffers};
use crate::tag::SlotId;

/// Queue pairs by slot, and by the provider's identifier.
#[derive(Default)]
pub(super) struct Queues {
    entries: Vec<Entry>,
    /// The slot that was free for longest is used next, so that generations last.
    free: VecDeque<u16>,
    /// For connection events and messages in shared receives, which carry no tag.
    by_qp: SlotsByQp,
}

#[derive(Default)]
struct Entry {
    generation: u16,
    queue_pair: Option<QueuePair>,
    /// Marks an admin queue as one with little traffic.
    light_guard: Option<LightGuard>,
    /// Operations of the last user of the slot that backing stores still have. The slot
    /// is not reused until they complete, because they carry its tag.
    store_ops: u32,
    /// Locks that these operations hold.
    locks: Vec<RangeLock>,
    /// Their buffers, in the account of the host, and the ranges that they may be
    /// changing.
    left: Option<UnreturnedBuffers>,
    /// Counts at its controller until they are done.
    departed: Option<Departed>,
    /// When a Cross-Controller Reset that waits for them is logged.
    reset_log: ResetLog,
}

impl Entry {
    /// Ranges that backing stores may be changing for a closed queue. Only writes delay
    /// other commands.
    fn lingering(&self) -> Option<&Lingering> {
        self.left.as_ref().map(UnreturnedBuffers::lingering)
    }
}

impl Queues {
    /// Adds a queue pair that `make` creates for its slot. `None` if all slots are used.
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
        let id = SlotId { index, generation };
        let queue_pair = make(id);
        let link = &queue_pair.link;
        self.by_qp.insert(link.provider, link.qp, id);
        entry.queue_pair = Some(queue_pair);
        Some(id)
    }

    pub(super) fn get(&mut self, id: SlotId) -> Option<&mut QueuePair> {
        let entry = self.entries.get_mut(usize::from(id.index))?;
        if entry.generation != id.generation {
            return None;
        }
        entry.queue_pair.as_mut()
    }

    /// Marks the queue at `id` as one with little traffic.
    pub(super) fn lighten(&mut self, id: SlotId, light_guard: LightGuard) {
        let entry = self.entries.get_mut(usize::from(id.index));
        if let Some(entry) = entry.filter(|entry| entry.generation == id.generation) {
            entry.light_guard = Some(light_guard);
        }
    }

    /// The slot of the provider's queue pair.
    pub(super) fn find(&self, provider: usize, qp: QpId) -> Option<SlotId> {
        self.by_qp.get(provider, qp)
    }

    pub(super) fn remove(&mut self, provider: usize, qp: QpId) -> Option<QueuePair> {
        let id = self.by_qp.remove(provider, qp)?;
        let entry = self.entries.get_mut(usize::from(id.index))?;
        let mut queue_pair = entry.queue_pair.take()?;
        entry.light_guard = None;
        entry.generation = entry.generation.wrapping_add(1);
        entry.store_ops = queue_pair.store_ops;
        let left = queue_pair.close_account();
        if entry.store_ops > 0 {
            entry.locks = queue_pair.take_locks();
            entry.left = left;
            entry.departed = Departed::of(&mut queue_pair);
        }
        if entry.store_ops == 0 {
            self.free.push_back(id.index);
        }
        Some(queue_pair)
    }

    /// An operation for the command in `slot` of a closed queue completed. Returns whether
    /// every reactor must poll its queues.
    pub(super) fn executed(&mut self, id: SlotId, slot: SlotId) -> bool {
        if let Some(entry) = self.entries.get_mut(usize::from(id.index))
            && entry.generation == id.generation.wrapping_add(1)
            && entry.store_ops > 0
        {
            entry.store_ops -= 1;
            if let Some(left) = &mut entry.left {
                left.release(slot);
            }
            if entry.store_ops == 0 {
                entry.locks.clear();
                entry.left = None;
                self.free.push_back(id.index);
                return entry.departed.take().is_some_and(Departed::release);
            }
        }
        false
    }

    /// Operations of closed queues count as ended for their controllers, if all commands of the
    /// queue used backing stores that `is_it` accepts. Returns whether every reactor must poll its
    /// queues.
    pub(super) fn abandon_store_ops(&mut self, is_it: impl Fn(u32) -> bool) -> bool {
        let mut must_poll = false;
        for entry in &mut self.entries {
            let departed = entry.departed.take_if(|it| it.uses_only(&is_it));
            must_poll |= departed.is_some_and(Departed::release);
        }
        must_poll
    }

    /// Whether a backing store that `is_it` accepts may be writing to `bytes` without a
    /// lock, or will be before `lock`.
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

    /// The start of the oldest command of this scope that uses a backing store that `is_it`
    /// accepts.
    pub(super) fn oldest(
        &self,
        is_it: &impl Fn(u32) -> bool,
        scope: BarrierScope,
    ) -> Option<Duration> {
        let each = self
            .entries
            .iter()
            .filter_map(|entry| match &entry.queue_pair {
                Some(queue_pair) => queue_pair.oldest(is_it, scope),
                None => entry.lingering().and_then(|left| left.oldest(is_it)),
            });
        each.min()
    }

    /// Cross-Controller Resets that wait for backing stores longer than they should, if that
    /// is to be logged now. Also whether any waits.
    pub(super) fn delayed_resets(&mut self, now: Duration) -> (Vec<DelayedReset>, bool) {
        let mut is_any = false;
        let mut delayed = Vec::new();
        for entry in &mut self.entries {
            let (operations, impacted) = match (&entry.queue_pair, &entry.departed) {
                (Some(queue_pair), _) => (queue_pair.store_ops, queue_pair.impacted()),
                (None, Some(departed)) => (entry.store_ops, departed.impacted()),
                (None, None) => continue,
            };
            let Some(impacted) = impacted.filter(|_| operations > 0) else {
                entry.reset_log = ResetLog::default();
                continue;
            };
            is_any = true;
            if let Some(waited) = entry.reset_log.due(now) {
                delayed.push(DelayedReset {
                    impacted,
                    operations,
                    waited,
                });
            }
        }
        (delayed, is_any)
    }

    /// The queues in use, and what backing stores have of closed ones.
    pub(super) fn all(
        &self,
    ) -> (
        impl Iterator<Item = &QueuePair>,
        impl Iterator<Item = &UnreturnedBuffers>,
    ) {
        let queue_pairs = self
            .entries
            .iter()
            .filter_map(|entry| entry.queue_pair.as_ref());
        let left = self.entries.iter().filter_map(|entry| entry.left.as_ref());
        (queue_pairs, left)
    }

    /// Slots in use.
    pub(super) fn ids(&self) -> Vec<SlotId> {
        self.ids_where(|_| true)
    }

    /// Slots in use whose queue pairs `is_it` accepts.
    pub(super) fn ids_where(&self, is_it: impl Fn(&QueuePair) -> bool) -> Vec<SlotId> {
        let all = (0u16..).zip(&self.entries);
        all.filter(|(_, entry)| entry.queue_pair.as_ref().is_some_and(&is_it))
            .map(|(index, entry)| SlotId {
                index,
                generation: entry.generation,
            })
            .collect()
    }

    /// Whether a command in flight started on `store`.
    pub(super) fn use_store(&self, store: u32) -> bool {
        let mut queue_pairs = self
            .entries
            .iter()
            .filter_map(|entry| entry.queue_pair.as_ref());
        queue_pairs.any(|queue_pair| queue_pair.uses(store))
    }

    pub(super) fn len(&self) -> usize {
        self.by_qp.count
    }

    pub(super) fn is_empty(&self) -> bool {
        self.by_qp.count == 0
    }
}

/// Slots by provider and queue pair. A `QpId` has its slot at the provider in the low bits, so
/// those index a table: a message in a shared receive needs no hash. Queue pairs with the same
/// low bits share an entry.
#[derive(Default)]
struct SlotsByQp {
    providers: Vec<Vec<Vec<(QpId, SlotId)>>>,
    count: usize,
}

/// As many entries as a reactor has slots. The table does not shrink.
const LOW_BITS: u64 = 0xffff;

impl SlotsByQp {
    fn index(qp: QpId) -> usize {
        usize::try_from(qp.0 & LOW_BITS).unwrap_or(0)
    }

    fn insert(&mut self, provider: usize, qp: QpId, id: SlotId) {
        let index = Self::index(qp);
        if self.providers.len() <= provider {
            self.providers.resize_with(provider + 1, Vec::new);
        }
        if let Some(entries) = self.providers.get_mut(provider) {
            if entries.len() <= index {
                entries.resize_with(index + 1, Vec::new);
            }
            if let Some(entry) = entries.get_mut(index) {
                entry.push((qp, id));
                self.count += 1;
            }
        }
    }

    fn get(&self, provider: usize, qp: QpId) -> Option<SlotId> {
        let entry = self.providers.get(provider)?.get(Self::index(qp))?;
        let (_, id) = entry.iter().find(|(one, _)| *one == qp)?;
        Some(*id)
    }

    fn remove(&mut self, provider: usize, qp: QpId) -> Option<SlotId> {
        let entries = self.providers.get_mut(provider)?;
        let entry = entries.get_mut(Self::index(qp))?;
        let position = entry.iter().position(|(one, _)| *one == qp)?;
        self.count -= 1;
        Some(entry.swap_remove(position).1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queue_pairs_with_same_low_bits_are_distinguished() {
        let mut slots = SlotsByQp::default();
        let id = |index| SlotId {
            index,
            generation: 1,
        };
        // Provider, queue pair.
        let all = [
            (1, QpId(1 << 17)),
            (0, QpId(1 << 17)),
            (1, QpId(2 << 17)),
            (1, QpId(1 << 17 | 1 << 16)),
            (1, QpId(1 << 32 | LOW_BITS)),
        ];
        for (index, (provider, qp)) in (0..).zip(all) {
            assert_eq!(slots.get(provider, qp), None);
            slots.insert(provider, qp, id(index));
        }
        for (index, (provider, qp)) in (0..).zip(all) {
            assert_eq!(slots.get(provider, qp), Some(id(index)));
            assert_eq!(slots.remove(provider, qp), Some(id(index)));
            assert_eq!(slots.remove(provider, qp), None);
            assert_eq!(slots.count, all.len() - usize::from(index) - 1);
        }
        assert_eq!(slots.get(7, QpId(0)), None);
    }
}
