//! Writes that disks still have though their host may wait for them no more: it sends
//! them again by another queue and then writes something newer, which the old ones must
//! not undo. So newer writes of the same bytes wait until they are over, whoever sends
//! them.
//!
//! That begins when the queue is lost. A host may know sooner than we do that it is, so
//! it begins for a write that takes long, too.

use std::collections::BTreeMap;
use std::ops::Range;
use std::time::Duration;

use nvmeof_backend::Request as DiskRequest;
use nvmeof_target_core::{FollowUps, RangeLock, overlap};

use super::slots::Changing;
use super::{Io, QueuePair, State};
use crate::tag::{SlotId, Tag};

/// Those of one queue, by the slots of their commands.
#[derive(Debug, Default)]
pub(crate) struct Lingering(BTreeMap<SlotId, One>);

#[derive(Debug)]
struct One {
    changing: Changing,
    _lock: RangeLock,
}

/// A host that finds a queue dead has waited longer for an answer.
const SLOW: Duration = Duration::from_secs(1);

impl Lingering {
    /// The disk has nothing of the command in `slot` any more.
    #[inline]
    pub(super) fn is_over(&mut self, slot: SlotId) {
        // Almost always there are none.
        if !self.0.is_empty() {
            self.0.remove(&slot);
        }
    }

    /// Whether a disk of which `is_it` says that it is the one may be writing some of
    /// `bytes`.
    pub(crate) fn may_write(&self, is_it: &impl Fn(u32) -> bool, bytes: &Range<u64>) -> bool {
        let mut all = self.0.values().map(|one| &one.changing);
        all.any(|one| overlap(&one.bytes, bytes) && is_it(one.disk))
    }

    /// When the oldest command was begun for which a disk may be changing of which
    /// `is_it` says that it is the one.
    pub(crate) fn oldest(&self, is_it: &impl Fn(u32) -> bool) -> Option<Duration> {
        let all = self.0.values().map(|one| &one.changing);
        let its = all.filter(|one| is_it(one.disk));
        its.map(|one| one.began).min()
    }
}

impl QueuePair {
    /// The connection is over, or will be: nothing more is begun, and newer writes wait
    /// for what disks may be changing for it.
    pub(crate) fn end(&mut self, io: &mut Io<'_>) {
        if self.state != State::Closing {
            self.state = State::Closing;
            self.leave_backlog(io);
            self.keep_out_of(io.now, io);
            // The host gives up its I/O queues with it, and sends again what they had.
            if self.core.ends() {
                io.resources.follow_ups |= FollowUps::POLL_ALL;
            }
        }
    }

    /// What waits for room on its disk does not get there any more.
    fn leave_backlog(&mut self, io: &mut Io<'_>) {
        let (host, queue) = (self.host(), self.place);
        let its = |one: &DiskRequest| Tag::from_bits(one.tag).queue == queue;
        for request in io.resources.backlog.remove_all(host, its) {
            self.on_disk = self.on_disk.saturating_sub(1);
            let slot = Tag::from_bits(request.tag).slot;
            self.rare.lingering.is_over(slot);
            self.free(slot);
        }
    }

    /// Newer writes wait for what takes long.
    pub(crate) fn keep_out_of_slow(&mut self, io: &mut Io<'_>) {
        if let Some(until) = io.now.checked_sub(SLOW) {
            self.keep_out_of(until, io);
        }
    }

    fn keep_out_of(&mut self, until: Duration, io: &mut Io<'_>) {
        for (slot, changing) in self.slots.changing(until) {
            self.rare.lingering.0.entry(slot).or_insert_with(|| One {
                _lock: io.resources.locked.member.keep_out(
                    io.storage.identity(changing.disk),
                    changing.bytes.clone(),
                    changing.began,
                ),
                changing,
            });
        }
    }
}
