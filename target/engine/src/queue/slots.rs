//! Commands in flight on one queue pair: as many as the host may send.

use std::collections::BTreeMap;
use std::ops::Range;
use std::time::Duration;

use nvmeof_memory::{Buf, Classes};
use nvmeof_target_core::{Action, Data, IoKind, IoOp, Remote, Request};

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
    /// Never moved: what is in a place that is free holds nothing.
    command: Command,
}

/// One command and the buffers it holds.
#[derive(Debug, Default)]
pub(super) struct Command {
    /// Says nothing for an answer to a command that was held.
    pub(super) request: Request,
    /// What the command came in, unless it is lent to the disk.
    pub(super) capsule: Option<Buf>,
    /// Its data, unless they are lent to the provider or the disk.
    pub(super) data: Charged,
    /// A second buffer, for what a compare reads from the disk and for a piece
    /// of what stays here.
    pub(super) spare: Charged,
    /// Whether the disk cannot take its data from where they are in the
    /// capsule.
    pub(super) misaligned: bool,
    /// Which buffer is somewhere else.
    pub(super) lent: Lent,
    /// The action that waits: for a buffer, a lock, or an RDMA Read that may be posted.
    pub(super) deferred: Option<Action>,
    /// When it is its turn to write, if it waits for a lock.
    pub(super) turn: Option<u64>,
    /// What may be lost of what the disk writes for it.
    pub(super) risk: Option<Risk>,
    /// The stamp with which a Flush came.
    pub(super) came: Option<u64>,
    /// Whether one of the queue's RDMA Reads is its own.
    pub(super) reads: bool,
    /// When it was begun.
    pub(super) began: Duration,
    /// Since when it waits for the host.
    pub(super) on_wire: Option<Duration>,
}

/// Bytes of the buffers that a command has to get before it goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Lacks {
    /// Of that for its data.
    pub(super) data: Option<u32>,
    /// Of the second one.
    pub(super) spare: Option<u32>,
}

impl Lacks {
    pub(super) const NOTHING: Self = Self {
        data: None,
        spare: None,
    };

    pub(super) fn both(self) -> bool {
        self.data.is_some() && self.spare.is_some()
    }

    /// The kind of the longest.
    #[cold]
    pub(super) fn kind(self, buffers: &Classes) -> usize {
        let len = self.data.max(self.spare).unwrap_or_default();
        buffers.kind_of(usize::try_from(len).unwrap_or(usize::MAX))
    }
}

/// What a disk may be changing for a command.
#[derive(Clone, Debug)]
pub(super) struct Changing {
    pub(super) disk: u32,
    pub(super) bytes: Range<u64>,
    /// When the command was begun.
    pub(super) began: Duration,
}

/// Which buffer of a command the disk has, or a Connect's data are pulled into.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Lent {
    #[default]
    None,
    Capsule,
    Data,
    /// For a compare: it does not come back.
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

    /// Makes it `count` places.
    pub(super) fn grow(&mut self, count: u16) {
        let from = u16::try_from(self.slots.len()).unwrap_or(u16::MAX);
        self.slots
            .resize_with(count.max(from).into(), Slot::default);
        self.free.extend((from..count).rev());
    }

    /// Takes a free place; its command holds nothing. Ask
    /// [`is_full`](Self::is_full) first.
    pub(super) fn take(&mut self) -> Option<(SlotId, &mut Command)> {
        let index = self.free.pop()?;
        let slot = self.slots.get_mut(usize::from(index))?;
        slot.taken = true;
        let generation = slot.generation;
        Some((SlotId { index, generation }, &mut slot.command))
    }

    /// The command in that place, unless it is another by now.
    pub(super) fn get(&mut self, place: SlotId) -> Option<&mut Command> {
        let slot = self.slots.get_mut(usize::from(place.index))?;
        (slot.taken && slot.generation == place.generation).then_some(&mut slot.command)
    }

    /// As [`get`](Self::get), to look at it.
    pub(super) fn peek(&self, place: SlotId) -> Option<&Command> {
        let slot = self.slots.get(usize::from(place.index))?;
        (slot.taken && slot.generation == place.generation).then_some(&slot.command)
    }

    /// Ends the command in that place: its buffers go back to their pools, and `account`
    /// counts them no more.
    #[inline]
    pub(super) fn free(&mut self, place: SlotId, account: Option<&Account>) {
        self.answered(place, account, false);
    }

    /// As [`free`](Self::free): its host has the answer, `with_data` or without.
    #[inline]
    pub(super) fn answered(&mut self, place: SlotId, account: Option<&Account>, with_data: bool) {
        let slot = self.slots.get_mut(usize::from(place.index));
        let its = |slot: &&mut Slot| slot.taken && slot.generation == place.generation;
        let Some(slot) = slot.filter(its) else {
            return;
        };
        if with_data {
            slot.command.data.arrived(account);
        }
        slot.command.clear(account);
        slot.taken = false;
        slot.generation = slot.generation.wrapping_add(1);
        self.free.push(place.index);
    }

    /// The queue is gone: `account` counts nothing of its commands any more but the
    /// buffers that disks have, which are returned.
    pub(super) fn hand_over(&mut self, account: &Account) -> Vec<(SlotId, Held)> {
        let all = (0u16..).zip(&mut self.slots);
        let lent = all.filter_map(|(index, slot)| {
            let command = &mut slot.command;
            let held = match command.lent {
                // The provider had it, and gave it back.
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

    /// The place of the command of that identifier, which is not answered yet.
    pub(super) fn find(&mut self, cid: u16) -> Option<SlotId> {
        let mut all = (0u16..).zip(&self.slots);
        let (index, slot) = all.find(|(_, slot)| {
            let request = &slot.command.request;
            slot.taken && request.cid() == cid && !request.is_over()
        })?;
        let generation = slot.generation;
        Some(SlotId { index, generation })
    }

    /// Whether the disk may be writing some of `bytes` for one of the commands,
    /// on a disk of which `is_it` says that it is the one, but for those of which
    /// `passes` says yes, or will before it is the turn of `lock`.
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
            let before = command.turn.is_some_and(|turn| turn < lock);
            slot.taken
                && (command.deferred.is_none() || before)
                && command.request.may_write(is_it, bytes)
                && !passes(SlotId { index, generation })
        })
    }

    /// When the oldest of the commands was begun that will write to a disk of which
    /// `is_it` says that it is the one.
    pub(super) fn oldest_write(&self, is_it: &impl Fn(u32) -> bool) -> Option<Duration> {
        // Most queues have nothing in flight.
        if self.in_use() == 0 {
            return None;
        }
        let taken = self.slots.iter().filter(|slot| slot.taken);
        let write = taken.filter(|slot| slot.command.request.will_write(is_it));
        write.map(|slot| slot.command.began).min()
    }

    /// What disks may be changing for the commands that were begun until `until`.
    pub(super) fn changing(&self, until: Duration) -> Vec<(SlotId, Changing)> {
        // Most queues have nothing in flight.
        if self.in_use() == 0 {
            return Vec::new();
        }
        let all = (0u16..).zip(&self.slots).filter(|(_, slot)| slot.taken);
        // What waits for something did not get to its disk.
        let begun =
            all.filter(|(_, slot)| slot.command.deferred.is_none() && slot.command.began <= until);
        let changing = begun.filter_map(|(index, slot)| {
            let generation = slot.generation;
            let (disk, bytes) = slot.command.request.changing()?;
            let began = slot.command.began;
            let place = SlotId { index, generation };
            Some((place, Changing { disk, bytes, began }))
        });
        changing.collect()
    }

    /// How many commands in flight there are of each namespace that has any.
    pub(super) fn namespaces(&self) -> BTreeMap<u32, usize> {
        let mut counts = BTreeMap::new();
        // Most queues have nothing in flight.
        if self.in_use() > 0 {
            let taken = self.slots.iter().filter(|slot| slot.taken);
            for slot in taken.filter(|slot| !slot.command.request.is_over()) {
                *counts.entry(slot.command.request.nsid()).or_default() += 1;
            }
        }
        counts
    }

    /// Whether no place is free.
    pub(super) fn is_full(&self) -> bool {
        self.free.is_empty()
    }

    /// Jobs there are.
    pub(super) fn in_use(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Whether a command in flight was begun for that disk.
    pub(super) fn uses(&self, disk: u32) -> bool {
        let taken = self.slots.iter().filter(|slot| slot.taken);
        taken
            .map(|slot| &slot.command.request)
            .any(|request| request.disk() == Some(disk))
    }

    /// Commands in flight that were begun for that disk.
    pub(super) fn of_disk(&self, disk: u32) -> Vec<SlotId> {
        self.find_all(|command| command.request.disk() == Some(disk))
    }

    /// Commands in flight of which `wanted` says yes.
    pub(super) fn find_all(&self, wanted: impl Fn(&Command) -> bool) -> Vec<SlotId> {
        // Most queues have nothing in flight.
        if self.in_use() == 0 {
            return Vec::new();
        }
        let all = (0u16..).zip(&self.slots);
        let wanted = all.filter(|(_, slot)| slot.taken && wanted(&slot.command));
        let places = wanted.map(|(index, slot)| SlotId {
            index,
            generation: slot.generation,
        });
        places.collect()
    }

    /// All commands, also of places that are free.
    pub(super) fn commands(&self) -> impl Iterator<Item = &Command> {
        self.slots.iter().map(|slot| &slot.command)
    }

    /// The oldest of those that wait for the host to give data, and of those that wait
    /// for it to take some.
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
                all.standing = Some(mark.standing());
            }
        }
        all
    }

    /// Since when the one that waits longest for the host does so.
    pub(super) fn longest_on_wire(&self) -> Option<Duration> {
        // Of a thousand queues most have nothing in flight; their slots would
        // push those of the others out of the cache.
        if self.in_use() == 0 {
            return None;
        }
        let taken = self.slots.iter().filter(|slot| slot.taken);
        taken.filter_map(|slot| slot.command.on_wire).min()
    }
}

impl Command {
    /// Lets go of everything. The request may stay: it is over, and the next
    /// one is begun in its place.
    fn clear(&mut self, account: Option<&Account>) {
        self.capsule = None;
        drop(self.data.end(account));
        drop(self.spare.end(account));
        self.misaligned = false;
        self.lent = Lent::None;
        self.deferred = None;
        self.turn = None;
        self.risk = None;
        self.came = None;
        self.reads = false;
        self.on_wire = None;
    }

    /// The places of the host's memory that its command has a list of, if it has
    /// one.
    #[inline]
    pub(super) fn pieces(&self) -> Vec<Remote> {
        match (self.request.data(), &self.capsule) {
            (Data::List { .. }, Some(capsule)) => self.request.pieces(capsule),
            _ => Vec::new(),
        }
    }

    /// The buffer that was somewhere else is back. What a compare read is not
    /// kept but returned.
    #[inline]
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

    /// Between two pieces of a command whose data stay here: gives the buffer back
    /// that it has for them, so that others have their turn, however long it is.
    pub(super) fn pause(&mut self, next: &Action, account: Option<&Account>) {
        if let Action::Execute(op) = next
            && matches!(op.kind, IoKind::Fetch { .. })
        {
            drop(self.spare.end(account));
        }
    }

    /// What `action` needs and the command has not.
    #[inline]
    pub(super) fn lacks(&self, action: &Action) -> Lacks {
        let (data, spare) = match action {
            Action::Execute(op) => match op.kind {
                IoKind::Read => (buffer_len(op), None),
                IoKind::Write if self.misaligned => (buffer_len(op), None),
                IoKind::Compare => (None, buffer_len(op)),
                IoKind::Fetch { pages } => (None, Some(u32::from(pages) * IoKind::PAGE)),
                _ => (None, None),
            },
            // It got the first buffer without the second, which it gets later.
            Action::Pull { .. } if !self.data.is_none() => (None, None),
            Action::Pull { remote, spare } => {
                (Some(remote.len), Some(*spare).filter(|len| *len > 0))
            }
            Action::Produce { len } => (Some(*len), None),
            Action::PullBehind { .. }
            | Action::Fuse
            | Action::Keep(_)
            | Action::Respond(_)
            | Action::Hold
            | Action::Close(_) => (None, None),
        };
        Lacks {
            data: data.filter(|_| self.data.is_none()),
            spare: spare.filter(|_| self.spare.is_none()),
        }
    }

    /// Takes what it lacks. False, and nothing is taken, when that cannot be had now.
    // It is known where what it lacks is.
    #[inline(always)]
    pub(super) fn provide(&mut self, lacks: Lacks, buffers: &mut DataBuffers) -> bool {
        if let Some(len) = lacks.data
            && !self.data.put(take(len, buffers))
        {
            return false;
        }
        if let Some(len) = lacks.spare
            && !self.spare.put(take(len, buffers))
        {
            // Nobody waits for a buffer while holding one.
            if lacks.data.is_some() {
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
