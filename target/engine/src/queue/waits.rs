//! Watchdog of commands: logs each command that is outstanding for too long, once, with
//! what it waits for.
//!
//! It walks the slots about once a second, when the reactor checks its queues: it costs
//! commands nothing.

use std::fmt;
use std::time::Duration;

use nvmeof_target_core::Action;
use nvmeof_wire::Sqe;
use nvmeof_wire::opcode::{admin, io as nvm};

use super::slots::Lent;
use super::{Capsule, Io, QueuePair, log_peer};
use crate::tag::SlotId;

/// A command that takes longer is reported.
const LONGEST: Duration = Duration::from_secs(10);

/// What a command waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WaitsFor {
    CommandsBefore,
    Buffer,
    RdmaRead,
    Lock,
    EarlierWrites,
    Save,
    Worker,
    OtherHalf,
    StoreSlot,
    Store,
    Host,
}

impl fmt::Display for WaitsFor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::CommandsBefore => "commands of its queue or host that arrived before it",
            Self::Buffer => "a data buffer",
            Self::RdmaRead => "a free RDMA Read of its queue",
            Self::Lock => "a range lock",
            Self::EarlierWrites => "commands of its namespace that began before it",
            Self::Save => "the record of write protection and reservations",
            Self::Worker => "a worker that authenticates hosts",
            Self::OtherHalf => "the other half of its fused operation",
            Self::StoreSlot => "a free slot of its backing store",
            Self::Store => "its backing store",
            Self::Host => "the host to move its data or to take its response",
        })
    }
}

impl QueuePair {
    /// Reports commands that have been outstanding for longer than [`LONGEST`] since the
    /// queue was checked at `last_check`. Returns their number.
    pub(crate) fn report_stalled(&self, last_check: Duration, io: &mut Io<'_>) -> u64 {
        let Some(until) = io.now.checked_sub(LONGEST) else {
            return 0;
        };
        let from = last_check.checked_sub(LONGEST);
        let crossed = |began| began <= until && from.is_none_or(|from| began > from);
        let started = self.slots.find_all(|command| crossed(command.began));
        let started = started.into_iter().filter_map(|slot| {
            let command = self.slots.peek(slot)?;
            Some((
                command.request.cid(),
                command.request.nsid(),
                command.request.opcode(),
                Some(slot),
            ))
        });
        let not_started = self
            .arrivals
            .waiting
            .iter()
            .filter(|capsule| crossed(capsule.arrived));
        let not_started = not_started.filter_map(|Capsule { buf, len, .. }| {
            let sqe = Sqe::in_capsule(buf.get(..*len)?)?;
            Some((sqe.cid.get(), sqe.nsid.get(), sqe.opcode, None))
        });
        let mut count = 0;
        for (cid, nsid, opcode, slot) in started.chain(not_started) {
            count += 1;
            let Some(left_out) = io.resources.wait_log.ask(io.now) else {
                continue;
            };
            let opcode = match self.is_admin() {
                true => admin::name(opcode),
                false => nvm::name(opcode),
            };
            let waits_for = slot.map(|slot| self.waits_for(slot, io));
            let waits_for = waits_for.unwrap_or(WaitsFor::CommandsBefore);
            let seconds = LONGEST.as_secs();
            log_peer!(
                warn,
                self,
                cid,
                opcode,
                nsid,
                left_out,
                "command outstanding for more than {seconds} s: waiting for {waits_for}"
            );
        }
        count
    }

    /// What the command in `slot` waits for.
    fn waits_for(&self, slot: SlotId, io: &Io<'_>) -> WaitsFor {
        if let Some(reason) = io.resources.locked.waiting.reason(self.id, slot) {
            return reason;
        }
        let Some(command) = self.slots.peek(slot) else {
            return WaitsFor::Store;
        };
        let tag = self.tag(slot).0;
        match &command.deferred {
            Some(Action::Pull { .. } | Action::PullBehind { .. }) if !command.reads => {
                WaitsFor::RdmaRead
            }
            Some(_) => WaitsFor::Buffer,
            None if self.is_computing(slot) => WaitsFor::Worker,
            None if command.on_wire.is_some() => WaitsFor::Host,
            None if self.is_half(slot) && command.lent == Lent::None => WaitsFor::OtherHalf,
            None if io.resources.backlog.has(tag) => WaitsFor::StoreSlot,
            None => WaitsFor::Store,
        }
    }
}
