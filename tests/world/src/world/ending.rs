//! The end of a run: all calls complete, everything is read, all resources are released.

use std::time::Duration;

use nvmeof_rdma_sim::SimChances;

use super::{Phase, World};
use crate::host::BUFFERS;
use crate::oracle::Wrong;
use crate::plan::LONGEST;
use crate::workload::{self, Ask, Kind};

impl World {
    /// Advances to the next phase. Returns whether there was progress.
    pub(super) fn advance_phase(&mut self, now: Duration) -> Result<bool, Wrong> {
        match self.phase {
            Phase::Work => {
                let changed = self.make_trouble(now)?
                    || self.remove_namespaces(now)?
                    || self.change_keys(now)?;
                if changed {
                    return Ok(true);
                }
                let quota = self.hosts.iter().map(|host| host.shape.calls);
                let all_made = quota.zip(&self.made).all(|(quota, made)| quota == *made);
                let all_ended = self.calls.is_empty();
                let none_left = self.next_fault == self.plan.faults.len()
                    && self.away.next == self.plan.removals.len()
                    && self.keys_are_done();
                if all_made && all_ended && none_left {
                    return Ok(self.come_to_rest());
                }
                Ok(false)
            }
            Phase::Calm => {
                let rest = self.later.is_empty()
                    && self.key_changes.is_empty()
                    && self.reactors.run()
                    && self.draining.is_none()
                    && self
                        .hosts
                        .iter()
                        .all(|host| host.is_up() && now >= host.stalled_until)
                    && self.oracle.unsettled() == 0;
                let rest = rest && self.clear_reservations()?;
                if rest {
                    self.say(format_args!("all calls have completed"));
                    self.check_keys_are_current()?;
                    self.phase = Phase::Verify { ns: 0, block: 0 };
                }
                Ok(rest)
            }
            Phase::Verify { ns, block } => self.verify(ns, block, now),
            Phase::Flush { host, ns } => self.flush(host, ns, now),
            Phase::Leave => self.leave(now),
            Phase::Over => Ok(false),
        }
    }

    fn come_to_rest(&mut self) -> bool {
        self.say(format_args!("no more calls"));
        self.phase = Phase::Calm;
        self.plan.net.chances = SimChances::default();
        self.net.set_chances(SimChances::default());
        for host in &mut self.hosts {
            host.behave();
        }
        self.imposters.leave();
        true
    }

    /// Reads the next part of all namespaces, one call at a time.
    fn verify(&mut self, ns: usize, block: u64, now: Duration) -> Result<bool, Wrong> {
        if !self.calls.is_empty() {
            return Ok(false);
        }
        let shape = self.plan.disks.get(ns).filter(|shape| !shape.scratch);
        let Some(shape) = shape.cloned() else {
            return Ok(self.verified());
        };
        if block == shape.blocks {
            self.phase = Phase::Verify {
                ns: ns + 1,
                block: 0,
            };
            return Ok(true);
        }
        // A host with a faulty provider may be lost even now.
        let Some(at) = self.hosts.iter().position(|host| host.is_up()) else {
            return Ok(false);
        };
        let end = (block + LONGEST / shape.block_size).min(shape.blocks);
        let piece = block..end;
        let ask = Ask {
            kind: Kind::Read,
            ns,
            ranges: vec![piece],
            spoil: None,
        };
        self.ask(ask, at, now)
    }

    /// Submits a call of an idle host.
    fn ask(&mut self, ask: Ask, at: usize, now: Duration) -> Result<bool, Wrong> {
        let shape = self.plan.disks[ask.ns].clone();
        let take = |len| self.hosts[at].buffers.take(len);
        let prepared = workload::prepare(ask, at, &shape, &mut self.oracle, take, now);
        let Some(prepared) = prepared else {
            return Err(Wrong("an idle host has no free buffer".to_owned()));
        };
        self.submit(prepared, now)
    }

    /// A call of [`verify`](Self::verify) succeeded.
    pub(super) fn piece_verified(&mut self, ns: usize, end: u64) {
        if let Phase::Verify { .. } = self.phase {
            self.phase = Phase::Verify { ns, block: end };
        }
    }

    /// Everything was read. Repeats it after a crash, if the plan has one.
    fn verified(&mut self) -> bool {
        if std::mem::take(&mut self.plan.crash_at_end) {
            self.say(format_args!(
                "everything is read; flushing all backing stores"
            ));
            self.phase = Phase::Flush { host: 0, ns: 0 };
            return true;
        }
        self.say(format_args!("everything is read"));
        self.phase = Phase::Leave;
        true
    }

    /// Flushes a disk from a host, then the next. The last flush is followed by a power loss.
    fn flush(&mut self, host: usize, ns: usize, now: Duration) -> Result<bool, Wrong> {
        if !self.calls.is_empty() {
            return Ok(false);
        }
        if host == self.hosts.len() {
            self.say(format_args!("everything is flushed; power loss"));
            self.phase = Phase::Calm;
            self.crash_target(now)?;
            return Ok(true);
        }
        let next = match ns + 1 {
            next if next < self.plan.disks.len() => Phase::Flush { host, ns: next },
            _ => Phase::Flush {
                host: host + 1,
                ns: 0,
            },
        };
        let everything = 0..self.plan.disks[ns].blocks;
        let ask = Ask {
            kind: Kind::Flush,
            ns,
            ranges: vec![everything],
            spoil: None,
        };
        // A host that is lost does not know about its writes.
        if !self.hosts[host].is_up() || self.ask(ask, host, now)? {
            self.phase = next;
        }
        Ok(true)
    }

    /// Waits until all hosts have disconnected, and checks that all resources are free.
    fn leave(&mut self, now: Duration) -> Result<bool, Wrong> {
        let mut changed = false;
        for host in &mut self.hosts {
            let before = host.changes;
            host.leave(now);
            changed |= host.changes != before;
        }
        if changed {
            return Ok(true);
        }
        let left = self.hosts.iter().all(|host| host.has_left());
        if !self.reactors.run() || !left || self.reactors.queue_pairs() > 0 {
            return Ok(false);
        }
        let controllers = self.target.controllers();
        if controllers > 0 {
            return Err(Wrong(format!(
                "all hosts disconnected, but the target still has {controllers} controllers"
            )));
        }
        if self.disks.oldest().is_some() {
            return Ok(false);
        }
        self.reactors.check_free()?;
        for at in 0..self.hosts.len() {
            self.check_host_buffers(at)?;
        }
        self.check_errors()?;
        self.count_authentications();
        self.say(format_args!("all resources are released"));
        self.phase = Phase::Over;
        Ok(true)
    }

    /// A host without calls in flight has all its buffers.
    pub(super) fn check_host_buffers(&self, at: usize) -> Result<(), Wrong> {
        let all: usize = BUFFERS.iter().map(|class| class.count).sum();
        let free = self.hosts[at].buffers.available();
        if free == all {
            return Ok(());
        }
        Err(Wrong(format!(
            "host {at} has nothing in flight, but only {free} of {all} buffers"
        )))
    }

    /// Counts the Flushes that may report losses. Each queue of a host gets one error of a
    /// Flush for a loss. A write in flight that completes later causes another one. Flushes
    /// in flight may report the loss as well.
    pub(super) fn count_losses(&mut self) {
        let lost: u64 = self.lost().sum();
        let new = lost - self.losses.seen;
        if new > 0 {
            let calls = self.calls.values().filter(|call| call.kind.changes());
            let queues = self.plan.hosts.iter().map(|host| host.queues.len());
            let flushes = queues.sum::<usize>() + calls.count();
            self.losses.expected += new * flushes as u64;
            self.losses.seen = lost;
        }
    }

    /// After a reconnect, each queue of the host may report losses again, because responses
    /// may have been lost.
    pub(super) fn connected_after_losses(&mut self, host: usize) {
        let disks = self.lost().filter(|lost| *lost > 0).count();
        self.losses.expected += (disks * self.hosts[host].queues()) as u64;
    }

    /// Number of losses of each disk, not by crashes.
    fn lost(&self) -> impl Iterator<Item = u64> {
        (0..self.plan.disks.len()).map(|disk| self.disks.lost(disk))
    }

    /// Checks that hosts got only errors that a disk returned.
    fn check_errors(&self) -> Result<(), Wrong> {
        let (reported, injected) = (self.errors, self.disks.injected());
        let losses = self.losses.expected;
        let fine = reported.reads <= injected.reads
            && reported.writes <= injected.writes + losses
            && reported.no_space <= injected.no_space
            && reported.others <= injected.others;
        if fine {
            return Ok(());
        }
        Err(Wrong(format!(
            "hosts got errors that no disk returned: {reported:?}, disks returned {injected:?}"
        )))
    }
}
