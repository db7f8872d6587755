//! Slots for the commands in flight on one queue pair: as many as the host may send.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::time::Duration;

use nvmeof_memory::{Buf, Classes};
use nvmeof_target_core::{Action, BarrierScope, Data, IoKind, IoOp, Remote, Request};

use super::account::{Account, Held};
use super::charged::Charged;
use super::losses::Risk;
use super::stalled::Oldest;
use crate::data_buffers::DataBuffers;
use crate::tag::SlotId;

/// The commands of one queue pair.
#[derive(Debug)]
pub(super) struct Slots {
    slots: Vec<Slot>,
    free: Vec<u16>,
}

#[derive(Debug, Default)]
struct Slot {
    generation: u16,
    taken: bool,
    /// Never moved; holds no resources while the slot is free.
    command: Command,
}

/// One command and the buffers it holds.
#[derive(Debug, Default)]
pub(super) struct Command {
    /// Unused for the response to a held command.
    pub(super) request: Request,
    /// The capsule of the command, unless it is lent to the backing store.
    pub(super) capsule: Option<Buf>,
    /// Its data, unless they are lent to the provider or the backing store.
    pub(super) data: Charged,
    /// A second buffer, for what a Compare reads from the backing store and for pieces of
    /// data that stay in the target.
    pub(super) spare: Charged,
    /// Whether the backing store cannot use the data at their offset in the capsule.
    pub(super) misaligned: bool,
    /// Which buffer is lent.
    pub(super) lent: Lent,
    /// The deferred action: waits for a buffer, a lock, or an RDMA Read.
    pub(super) deferred: Option<Action>,
    /// Its position among lock holders, if it waits for a lock.
    pub(super) lock_ticket: Option<u64>,
    /// What may be lost of its write.
    pub(super) risk: Option<Risk>,
    /// The stamp of the arrival of a Flush.
    pub(super) arrived: Option<u64>,
    /// Whether it holds one of the queue's RDMA Reads.
    pub(super) reads: bool,
    /// When it started.
    pub(super) began: Duration,
    /// Since when it waits for the host.
    pub(super) on_wire: Option<Duration>,
}

/// Lengths of the buffers that a command needs before it can continue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct MissingBuffers {
    /// Of the buffer for its data.
    pub(super) data: Option<u32>,
    /// Of the second one.
    pub(super) spare: Option<u32>,
}

impl MissingBuffers {
    pub(super) const NOTHING: Self = Self {
        data: None,
        spare: None,
    };

    pub(super) fn both(self) -> bool {
        self.data.is_some() && self.spare.is_some()
    }

    /// The kind of the longer one.
    #[cold]
    pub(super) fn kind(self, buffers: &Classes) -> usize {
        let len = self.data.max(self.spare).unwrap_or_default();
        buffers.kind_of(usize::try_from(len).unwrap_or(usize::MAX))
    }
}

/// What a backing store may be changing for a command.
#[derive(Clone, Debug)]
pub(super) struct Changing {
    pub(super) store: u32,
    pub(super) bytes: Range<u64>,
    /// When the command started.
    pub(super) began: Duration,
}

/// Which buffer of a command the backing store has, or into which the data of a Connect
/// are pulled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Lent {
    #[default]
    None,
    Capsule,
    Data,
    /// For a compare: it does not return to the command.
    Spare,
    /// The same buffer, for one piece after the other.
    Piece,
}

impl Slots {
    pub(super) fn new(count: u16) -> Self {
        Self {
            slots: (0..count).map(|_| Slot::default()).collect(),
            free: (0..count).rev().collect(),
        }
    }

    /// Grows to `count` slots.
    pub(super) fn grow(&mut self, count: u16) {
        let from = u16::try_from(self.slots.len()).unwrap_or(u16::MAX);
        self.slots
            .resize_with(count.max(from).into(), Slot::default);
        self.free.extend((from..count).rev());
    }

    /// Takes a free slot; its command holds nothing. Check [`is_full`](Self::is_full)
    /// first.
    pub(super) fn take(&mut self) -> Option<(SlotId, &mut Command)> {
        let index = self.free.pop()?;
        let slot = self.slots.get_mut(usize::from(index))?;
        slot.taken = true;
        let generation = slot.generation;
        Some((SlotId { index, generation }, &mut slot.command))
    }

    /// The command in that slot, unless the slot was reused.
    pub(super) fn get(&mut self, id: SlotId) -> Option<&mut Command> {
        let slot = self.slots.get_mut(usize::from(id.index))?;
        (slot.taken && slot.generation == id.generation).then_some(&mut slot.command)
    }

    /// As [`get`](Self::get), read-only.
    pub(super) fn peek(&self, id: SlotId) -> Option<&Command> {
        let slot = self.slots.get(usize::from(id.index))?;
        (slot.taken && slot.generation == id.generation).then_some(&slot.command)
    }

    /// Ends the command in that slot: returns its buffers to their pools, and ends their
    /// charge to `account`.
    #[inline]
    pub(super) fn free(&mut self, id: SlotId, account: Option<&Account>) {
        self.answered(id, account, false);
    }

    /// As [`free`](Self::free): its host has the response, `with_data` or without.
    #[inline]
    pub(super) fn answered(&mut self, id: SlotId, account: Option<&Account>, with_data: bool) {
        let slot = self.slots.get_mut(usize::from(id.index));
        let its = |slot: &&mut Slot| slot.taken && slot.generation == id.generation;
        let Some(slot) = slot.filter(its) else {
            return;
        };
        if with_data {
            slot.command.data.arrived(account);
        }
        slot.command.clear(account);
        slot.taken = false;
        slot.generation = slot.generation.wrapping_add(1);
        self.free.push(id.index);
    }

    /// The queue is closed: ends all charges to `account` except those of buffers that
    /// backing stores have, which are returned.
    pub(super) fn hand_over(&mut self, account: &Account) -> Vec<(SlotId, Held)> {
        let all = (0u16..).zip(&mut self.slots);
        let lent = all.filter_map(|(index, slot)| {
            let command = &mut slot.command;
            let held = match command.lent {
                // The provider had it, and returned it.
                _ if command.on_wire.is_some() => None,
                Lent::None => None,
                Lent::Capsule => Some(Held::Capsule),
                Lent::Data => command.data.hand_over().map(Held::Data),
                Lent::Spare | Lent::Piece => command.spare.hand_over().map(Held::Data),
            };
            drop((
                command.data.end(Some(account)),
                command.spare.end(Some(account)),
            ));
            let generation = slot.generation;
            Some((SlotId { index, generation }, held?))
        });
        lent.collect()
    }

    /// The slot of the command with that identifier that has no response yet.
    pub(super) fn find(&mut self, cid: u16) -> Option<SlotId> {
        let mut all = (0u16..).zip(&self.slots);
        let (index, slot) = all.find(|(_, slot)| {
            let request = &slot.command.request;
            slot.taken && request.cid() == cid && !request.is_complete()
        })?;
        let generation = slot.generation;
        Some(SlotId { index, generation })
    }

    /// Whether a backing store that `is_it` accepts may be writing to `bytes` for one of
    /// the commands, or will be before `lock`. Commands that `passes` accepts are
    /// ignored.
    pub(super) fn may_write(
        &self,
        lock: u64,
        is_it: &impl Fn(u32) -> bool,
        bytes: &Range<u64>,
        passes: impl Fn(SlotId) -> bool,
    ) -> bool {
        let mut all = (0u16..).zip(&self.slots);
        all.any(|(index, slot)| {
            let generation = slot.generation;
            let command = &slot.command;
            let before = command.lock_ticket.is_some_and(|ticket| ticket < lock);
            slot.taken
                && (command.deferred.is_none() || before)
                && command.request.may_write(is_it, bytes)
                && !passes(SlotId { index, generation })
        })
    }

    /// The start of the oldest command of this scope that uses a backing store that `is_it`
    /// accepts.
    pub(super) fn oldest(
        &self,
        is_it: &impl Fn(u32) -> bool,
        scope: BarrierScope,
    ) -> Option<Duration> {
        // Most queues have nothing in flight.
        if self.in_use() == 0 {
            return None;
        }
        let taken = self.slots.iter().filter(|slot| slot.taken);
        let its = taken.filter(|slot| {
            let request = &slot.command.request;
            match scope {
                BarrierScope::Writes => request.will_write(is_it),
                _ if request.awaits_check() => false,
                BarrierScope::CheckedWrites => request.will_write(is_it),
                BarrierScope::CheckedAccesses => {
                    request.will_write(is_it) || request.will_read(is_it)
                }
            }
        });
        its.map(|slot| slot.command.began).min()
    }

    /// What backing stores may be changing for commands that started before or at
    /// `until`.
    pub(super) fn changing(&self, until: Duration) -> Vec<(SlotId, Changing)> {
        // Most queues have nothing in flight.
        if self.in_use() == 0 {
            return Vec::new();
        }
        let all = (0u16..).zip(&self.slots).filter(|(_, slot)| slot.taken);
        // Deferred commands have not reached their backing store.
        let started =
            all.filter(|(_, slot)| slot.command.deferred.is_none() && slot.command.began <= until);
        let changing = started.filter_map(|(index, slot)| {
            let generation = slot.generation;
            let (store, bytes) = slot.command.request.changing()?;
            let began = slot.command.began;
            let id = SlotId { index, generation };
            Some((
                id,
                Changing {
                    store,
                    bytes,
                    began,
                },
            ))
        });
        changing.collect()
    }

    /// Commands in flight by namespace.
    pub(super) fn namespaces(&self) -> BTreeMap<u32, usize> {
        let mut counts = BTreeMap::new();
        // Most queues have nothing in flight.
        if self.in_use() > 0 {
            let taken = self.slots.iter().filter(|slot| slot.taken);
            for slot in taken.filter(|slot| !slot.command.request.is_complete()) {
                *counts.entry(slot.command.request.nsid()).or_default() += 1;
            }
        }
        counts
    }

    /// Whether no slot is free.
    pub(super) fn is_full(&self) -> bool {
        self.free.is_empty()
    }

    /// Slots in use.
    pub(super) fn in_use(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Whether a command in flight started on `store`.
    pub(super) fn uses(&self, store: u32) -> bool {
        let taken = self.slots.iter().filter(|slot| slot.taken);
        taken
            .map(|slot| &slot.command.request)
            .any(|request| request.store() == Some(store))
    }

    /// The backing stores that commands in flight use.
    pub(super) fn stores(&self) -> BTreeSet<u32> {
        let taken = self.slots.iter().filter(|slot| slot.taken);
        taken
            .filter_map(|slot| slot.command.request.store())
            .collect()
    }

    /// Commands in flight that started on `store`.
    pub(super) fn of_store(&self, store: u32) -> Vec<SlotId> {
        self.find_all(|command| command.request.store() == Some(store))
    }

    /// Commands in flight that `wanted` accepts.
    pub(super) fn find_all(&self, wanted: impl Fn(&Command) -> bool) -> Vec<SlotId> {
        // Most queues have nothing in flight.
        if self.in_use() == 0 {
            return Vec::new();
        }
        let all = (0u16..).zip(&self.slots);
        let wanted = all.filter(|(_, slot)| slot.taken && wanted(&slot.command));
        let ids = wanted.map(|(index, slot)| SlotId {
            index,
            generation: slot.generation,
        });
        ids.collect()
    }

    /// All commands, including those of free slots.
    pub(super) fn commands(&self) -> impl Iterator<Item = &Command> {
        self.slots.iter().map(|slot| &slot.command)
    }

    /// The oldest command that waits for data of the host, and the oldest that waits for
    /// the host to take data.
    pub(super) fn oldest_transfers(&self) -> Oldest {
        let mut all = Oldest::default();
        // Most queues have nothing in flight.
        if self.in_use() == 0 {
            return all;
        }
        let transfers = self.slots.iter().zip(0_u64..).filter(|(slot, _)| {
            let pushes = slot.command.lent == Lent::Data;
            slot.taken && slot.command.on_wire.is_some() && (slot.command.reads || pushes)
        });
        for (slot, at) in transfers {
            let number = u64::from(slot.generation) << 16 | at;
            let one = slot.command.on_wire.map(|since| (since, number));
            let oldest = if slot.command.reads {
                &mut all.pull
            } else {
                &mut all.push
            };
            *oldest = one.into_iter().chain(*oldest).min();
            if let Some(mark) = slot.command.data.mark() {
                all.kind = all.kind.max(Some(mark.kind()));
                all.trust = Some(mark.trust());
            }
        }
        all
    }

    /// Since when the oldest transfer waits for the host.
    pub(super) fn longest_on_wire(&self) -> Option<Duration> {
        // Most of a thousand queues have nothing in flight; their slots would evict those
        // of the others from the cache.
        if self.in_use() == 0 {
            return None;
        }
        let taken = self.slots.iter().filter(|slot| slot.taken);
        taken.filter_map(|slot| slot.command.on_wire).min()
    }
}

impl Command {
    /// Releases everything. The request may stay: it is complete, and the next one
    /// overwrites it.
    fn clear(&mut self, account: Option<&Account>) {
        self.capsule = None;
        self.data.discard(account);
        self.spare.discard(account);
        self.misaligned = false;
        self.lent = Lent::None;
        self.deferred = None;
        self.lock_ticket = None;
        self.risk = None;
        self.arrived = None;
        self.reads = false;
        self.on_wire = None;
    }

    /// The ranges of host memory that its command lists, if it has a list.
    #[inline]
    pub(super) fn pieces(&self) -> Vec<Remote> {
        match (self.request.data(), &self.capsule) {
            (Data::List { .. }, Some(capsule)) => self.request.pieces(capsule),
            _ => Vec::new(),
        }
    }

    /// Takes back a lent buffer. The data that a Compare read are not kept but returned.
    #[inline(always)]
    pub(super) fn take_back(&mut self, buf: Option<Buf>, account: Option<&Account>) -> Option<Buf> {
        match std::mem::take(&mut self.lent) {
            Lent::Data => drop(self.data.restore(buf)),
            Lent::Capsule => self.capsule = buf,
            Lent::Piece => drop(self.spare.restore(buf)),
            Lent::Spare => {
                drop(self.spare.end(account));
                return buf;
            }
            Lent::None => {}
        }
        None
    }

    /// Returns its buffer between two pieces of a command whose data stay in the target,
    /// so that others can use it, however long the command takes.
    pub(super) fn pause(&mut self, next: &Action, account: Option<&Account>) {
        if let Action::Execute(op) = next
            && matches!(op.kind, IoKind::Fetch { .. })
        {
            drop(self.spare.end(account));
        }
    }

    /// What `action` needs in addition to what the command has.
    #[inline]
    pub(super) fn missing(&self, action: &Action) -> MissingBuffers {
        let (data, spare) = match action {
            Action::Execute(op) => match op.kind {
                IoKind::Read => (buffer_len(op), None),
                IoKind::Write if self.misaligned => (buffer_len(op), None),
                IoKind::Compare => (None, buffer_len(op)),
                IoKind::Fetch { pages } => (None, Some(u32::from(pages) * IoKind::PAGE)),
                _ => (None, None),
            },
            // It got the first buffer without the second, which follows later.
            Action::Pull { .. } if !self.data.is_none() => (None, None),
            Action::Pull { remote, spare } => {
                (Some(remote.len), Some(*spare).filter(|len| *len > 0))
            }
            Action::Produce { len } => (Some(*len), None),
            Action::PullBehind { .. }
            | Action::Fuse
            | Action::AwaitSave(_)
            | Action::Compute(_)
            | Action::Respond(_)
            | Action::Hold
            | Action::Close(_) => (None, None),
        };
        MissingBuffers {
            data: data.filter(|_| self.data.is_none()),
            spare: spare.filter(|_| self.spare.is_none()),
        }
    }

    /// Takes what it lacks. Returns false, and takes nothing, if that is not available
    /// now.
    // The caller knows what is lacking.
    #[inline(always)]
    pub(super) fn provide(&mut self, missing: MissingBuffers, buffers: &mut DataBuffers) -> bool {
        if let Some(len) = missing.data
            && !self.data.put(take(len, buffers))
        {
            return false;
        }
        if let Some(len) = missing.spare
            && !self.spare.put(take(len, buffers))
        {
            // A command does not wait for a buffer while it holds one.
            if missing.data.is_some() {
                drop(self.data.end(None));
            }
            return false;
        }
        true
    }
}

fn buffer_len(op: &IoOp) -> Option<u32> {
    u32::try_from(op.len).ok()
}

#[inline]
fn take(len: u32, buffers: &mut DataBuffers) -> Option<Buf> {
    buffers.take(usize::try_from(len).ok()?)
}
