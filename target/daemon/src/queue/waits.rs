//! The watchdog of commands: names each that is outstanding for too long in the log,
//! once, with what it waits for.
//!
//! It walks the slots when the reactor looks after its queues, about once a second:
//! commands pay nothing for it.

use std::fmt;
use std::time::Duration;

use nvmeof_target_core::Action;
use nvmeof_wire::opcode::{admin, io as nvm};

use super::slots::{Job, Lent};
use super::{Edge, Io, of_peer};
use crate::tag::{Place, Tag};

/// A command that takes longer is reported.
const LONGEST: Duration = Duration::from_secs(10);

/// What a command waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WaitsFor {
    Buffer,
    RdmaRead,
    Lock,
    EarlierWrites,
    Protection,
    OtherHalf,
    DiskQueue,
    Disk,
    Host,
}

impl fmt::Display for WaitsFor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Buffer => "a data buffer",
            Self::RdmaRead => "a free RDMA Read of its queue",
            Self::Lock => "a range lock",
            Self::EarlierWrites => "earlier writes to its namespace",
            Self::Protection => "the file of write protections",
            Self::OtherHalf => "the other half of its fused operation",
            Self::DiskQueue => "a free slot of its backing store",
            Self::Disk => "its backing store",
            Self::Host => "the host to move its data or to take its response",
        })
    }
}

impl Edge {
    /// Reports commands that have been outstanding for longer than [`LONGEST`] since
    /// the queue was `looked` at last. Returns how many.
    pub(crate) fn report_stalled(&self, looked: Duration, io: &mut Io<'_>) -> u64 {
        let Some(until) = io.now.checked_sub(LONGEST) else {
            return 0;
        };
        let from = looked.checked_sub(LONGEST);
        let crossed = |began| began <= until && from.is_none_or(|from| began > from);
        let stalled = self.slots.find_all(|job| crossed(job.began));
        let mut count = 0;
        for slot in stalled {
            if let Some(job) = self.slots.peek(slot) {
                self.report(slot, job, io);
                count += 1;
            }
        }
        count
    }

    #[cold]
    fn report(&self, slot: Place, job: &Job, io: &mut Io<'_>) {
        if let Some(left_out) = io.wait_log.ask(io.now) {
            let (cid, nsid) = (job.request.cid(), job.request.nsid());
            let opcode = match self.is_admin() {
                true => admin::name(job.request.opcode()),
                false => nvm::name(job.request.opcode()),
            };
            let (seconds, waits_for) = (LONGEST.as_secs(), self.waits_for(slot, job, io));
            of_peer!(
                warn,
                self,
                cid,
                opcode,
                nsid,
                left_out,
                "command outstanding for more than {seconds} s: waiting for {waits_for}"
            );
        }
    }

    /// What the command in `slot` waits for.
    fn waits_for(&self, slot: Place, job: &Job, io: &Io<'_>) -> WaitsFor {
        let queue = self.place;
        if let Some(reason) = io.waiting.reason(queue, slot) {
            return reason;
        }
        let tag = Tag { queue, slot }.to_bits();
        match &job.hungry {
            Some(Action::Pull { .. } | Action::PullBehind { .. }) if !job.reads => {
                WaitsFor::RdmaRead
            }
            Some(_) => WaitsFor::Buffer,
            None if job.on_wire.is_some() => WaitsFor::Host,
            None if self.is_half(slot) && job.lent == Lent::None => WaitsFor::OtherHalf,
            None if io.backlog.iter().any(|(_, one)| one.tag == tag) => WaitsFor::DiskQueue,
            None => WaitsFor::Disk,
        }
    }
}
