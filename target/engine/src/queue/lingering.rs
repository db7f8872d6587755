//! Writes in progress on a backing store whose host may have given up on them. A host
//! sends them again by another queue and may then write newer data, which the old writes
//! must not overwrite. Newer writes of the same bytes, by any host, therefore wait until
//! the old ones are complete.
//!
//! This applies when the queue is lost. A host may detect that before the target does, so
//! it applies to a write that takes long as well.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::time::Duration;

use nvmeof_backend::Request as StoreRequest;
use nvmeof_rdma::Peer;
use nvmeof_target_core::{FollowUps, InFlight, RangeLock, overlap};

use super::slots::Changing;
use super::{Io, QueuePair, State};
use crate::tag::{SlotId, Tag};

/// The lingering writes of one queue, by the slots of their commands.
#[derive(Debug, Default)]
pub(crate) struct Lingering(BTreeMap<SlotId, LingeringWrite>);

#[derive(Debug)]
struct LingeringWrite {
    changing: Changing,
    _lock: RangeLock,
}

/// The controller of a queue, and backing stores, as a log names them.
#[derive(Clone, Debug)]
pub(crate) struct Impacted {
    pub(crate) peer: Peer,
    pub(crate) host: String,
    pub(crate) subsystem: String,
    pub(crate) cntlid: u16,
    /// Those that commands of the queue use.
    pub(crate) stores: BTreeSet<u32>,
}

/// A host that declares a queue dead has waited longer for a response.
const SLOW: Duration = Duration::from_secs(1);

impl Lingering {
    /// The backing store has completed the operation of `slot`.
    #[inline]
    pub(super) fn complete(&mut self, slot: SlotId) {
        // Almost always there are none.
        if !self.0.is_empty() {
            self.0.remove(&slot);
        }
    }

    /// Whether a backing store that `is_it` accepts may be writing to `bytes`.
    pub(crate) fn may_write(&self, is_it: &impl Fn(u32) -> bool, bytes: &Range<u64>) -> bool {
        let mut all = self.0.values().map(|one| &one.changing);
        all.any(|one| overlap(&one.bytes, bytes) && is_it(one.store))
    }

    /// The start of the oldest command that may be changing a backing store that `is_it`
    /// accepts.
    pub(crate) fn oldest(&self, is_it: &impl Fn(u32) -> bool) -> Option<Duration> {
        let all = self.0.values().map(|one| &one.changing);
        let its = all.filter(|one| is_it(one.store));
        its.map(|one| one.began).min()
    }
}

impl QueuePair {
    /// The connection ends: starts nothing more, and makes newer writes wait for what
    /// backing stores may be changing for it.
    pub(crate) fn end(&mut self, io: &mut Io<'_>) {
        if self.state != State::Closing {
            self.state = State::Closing;
            self.cold.computing.clear();
            self.remove_from_backlog(io);
            self.block_newer_writes(io.now, io);
            // The host drops its I/O queues as well, and resends their commands.
            self.core.ends();
            io.resources.calls.extend(self.core.take_calls());
            self.check_quiesced(io);
        }
    }

    /// Of a connection that is over: whether backing stores have nothing of it any more.
    pub(super) fn check_quiesced(&mut self, io: &mut Io<'_>) {
        if self.store_ops == 0 {
            self.core.quiesced();
            io.resources.follow_ups |= self.core.take_follow_ups() & FollowUps::POLL_ALL;
        }
    }

    /// Of a connection that is over: what backing stores have of it counts as ended, if they are
    /// those that `is_it` accepts.
    pub(crate) fn abandon_store_ops(&mut self, is_it: impl Fn(u32) -> bool, io: &mut Io<'_>) {
        if self.is_closing() && self.slots.stores().into_iter().all(is_it) {
            self.core.quiesced();
            io.resources.follow_ups |= self.core.take_follow_ups() & FollowUps::POLL_ALL;
        }
    }

    /// Removes operations that wait for a free slot of their backing store.
    fn remove_from_backlog(&mut self, io: &mut Io<'_>) {
        let (host, queue) = (self.host(), self.id);
        let its = |one: &StoreRequest| Tag::from_bits(one.tag).queue == queue;
        for request in io.resources.backlog.remove_all(host, its) {
            self.store_ops = self.store_ops.saturating_sub(1);
            let slot = Tag::from_bits(request.tag).slot;
            self.cold.lingering.complete(slot);
            self.free(slot);
        }
    }

    /// Makes newer writes wait for operations that take long.
    pub(crate) fn block_writes_behind_slow(&mut self, io: &mut Io<'_>) {
        if let Some(until) = io.now.checked_sub(SLOW) {
            self.block_newer_writes(until, io);
        }
    }

    fn block_newer_writes(&mut self, until: Duration, io: &mut Io<'_>) {
        for (slot, changing) in self.slots.changing(until) {
            self.cold
                .lingering
                .0
                .entry(slot)
                .or_insert_with(|| LingeringWrite {
                    _lock: io.resources.locked.member.block_writes(
                        io.stores.identity(changing.store),
                        changing.bytes.clone(),
                        changing.began,
                    ),
                    changing,
                });
        }
    }

    /// Its controller, and the backing stores that its commands use. `None` before a Connect.
    pub(crate) fn association(&self) -> Option<Impacted> {
        let (host, subsystem, cntlid) = self.core.association()?;
        Some(Impacted {
            peer: self.link.peer,
            host: host.to_owned(),
            subsystem: subsystem.to_owned(),
            cntlid,
            stores: self.slots.stores(),
        })
    }

    /// The same, if a Cross-Controller Reset waits for the queue.
    pub(crate) fn impacted(&self) -> Option<Impacted> {
        self.core.is_reset().then(|| self.association()).flatten()
    }

    /// Counts at its controller for what backing stores still have of it.
    pub(crate) fn take_in_flight(&mut self) -> Option<InFlight> {
        self.core.take_in_flight()
    }
}
