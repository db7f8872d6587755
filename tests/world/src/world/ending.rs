//! The end of a run: everything comes to rest, is read, and is given back.

use std::time::Duration;

use nvmeof_rdma_sim::SimChances;

use super::{Phase, World};
use crate::host::BUFFERS;
use crate::oracle::Wrong;
use crate::plan::LONGEST;
use crate::workload::{self, Ask, Kind};

impl World {
    /// Goes from one phase to the next. Says whether anything was done.
    pub(super) fn advance_phase(&mut self, now: Duration) -> Result<bool, Wrong> {
        match self.phase {
            Phase::Work => {
                if self.make_trouble(now)? || self.remove_namespaces(now)? {
                    return Ok(true);
                }
                let quota = self.hosts.iter().map(|host| host.shape.calls);
                let all_made = quota.zip(&self.made).all(|(quota, made)| quota == *made);
                let all_ended = self.calls.is_empty();
                let none_left = self.next_fault == self.plan.faults.len()
                    && self.away.next == self.plan.removals.len();
                if all_made && all_ended && none_left {
                    return Ok(self.come_to_rest());
                }
                Ok(false)
            }
            Phase::Calm => {
                let rest = self.later.is_empty()
                    && self.reactors.run()
                    && self.draining.is_none()
                    && self
                        .hosts
                        .iter()
                        .all(|host| host.is_up() && now >= host.hangs_until)
                    && self.oracle.unsettled() == 0;
                if rest {
                    self.say(format_args!("all is at rest"));
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
        self.say(format_args!("work is over"));
        self.phase = Phase::Calm;
        self.plan.net.chances = SimChances::default();
        self.net.set_chances(SimChances::default());
        for host in &mut self.hosts {
            host.behave();
        }
        true
    }

    /// Reads the next piece of everything, one call at a time.
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
        // A host whose provider is faulty may be lost even now.
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

    /// Submits a call of a host at rest.
    fn ask(&mut self, ask: Ask, at: usize, now: Duration) -> Result<bool, Wrong> {
        let shape = self.plan.disks[ask.ns].clone();
        let take = |len| self.hosts[at].buffers.take(len);
        let prepared = workload::prepare(ask, at, &shape, &mut self.oracle, take, now);
        let Some(prepared) = prepared else {
            return Err(Wrong("a host at rest has no buffer free".to_owned()));
        };
        self.submit(prepared, now)
    }

    /// A call of [`verify`](Self::verify) ended well.
    pub(super) fn piece_verified(&mut self, ns: usize, end: u64) {
        if let Phase::Verify { .. } = self.phase {
            self.phase = Phase::Verify { ns, block: end };
        }
    }

    /// Everything was read. Once more after a crash, if the plan says so.
    fn verified(&mut self) -> bool {
        if std::mem::take(&mut self.plan.crash_at_end) {
            self.say(format_args!(
                "all is read; and now all backing stores are flushed"
            ));
            self.phase = Phase::Flush { host: 0, ns: 0 };
            return true;
        }
        self.say(format_args!("all is read"));
        self.phase = Phase::Leave;
        true
    }

    /// Has a host flush a disk, and goes on with the next. After the last there is no
    /// power.
    fn flush(&mut self, host: usize, ns: usize, now: Duration) -> Result<bool, Wrong> {
        if !self.calls.is_empty() {
            return Ok(false);
        }
        if host == self.hosts.len() {
            self.say(format_args!("all is flushed; and now without power"));
            self.phase = Phase::Calm;
            self.crash_target(now);
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
        // One that is lost by now knows nothing of what it wrote.
        if !self.hosts[host].is_up() || self.ask(ask, host, now)? {
            self.phase = next;
        }
        Ok(true)
    }

    /// Waits until all have left, and looks at what they left behind.
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
                "all hosts left, and the target still has {controllers} controllers"
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
        self.say(format_args!("all is given back"));
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
            "host {at} has nothing in flight, and {free} of {all} buffers"
        )))
    }

    /// Each queue of a host is told of what a disk lost, by a Flush. Of each write that was
    /// on its way and is answered later the host is told once more; and Flushes that came
    /// before that and are not answered say so as well, of what was written before they came.
    pub(super) fn count_losses(&mut self) {
        let lost: u64 = self.lost().sum();
        let new = lost - self.losses.seen;
        if new > 0 {
            let calls = self.calls.values().filter(|call| call.kind.changes());
            let queues = self.plan.hosts.iter().map(|host| host.queues.len());
            let told = queues.sum::<usize>() + calls.count();
            self.losses.told += new * told as u64;
            self.losses.seen = lost;
        }
    }

    /// A host that may have connected again is told by each queue: answers may be lost.
    pub(super) fn connected_after_losses(&mut self, host: usize) {
        let disks = self.lost().filter(|lost| *lost > 0).count();
        self.losses.told += (disks * self.hosts[host].queues()) as u64;
    }

    /// How often each disk lost something, but for crashes.
    fn lost(&self) -> impl Iterator<Item = u64> {
        (0..self.plan.disks.len()).map(|disk| self.disks.lost(disk))
    }

    /// No error was answered that no disk gave.
    fn check_errors(&self) -> Result<(), Wrong> {
        let (told, given) = (self.answered, self.disks.injected());
        let owed = self.losses.told;
        let fine = told.reads <= given.reads
            && told.writes <= given.writes + owed
            && told.no_space <= given.no_space
            && told.others <= given.others;
        if fine {
            return Ok(());
        }
        Err(Wrong(format!(
            "hosts were told of errors that no disk gave: {told:?}, disks gave {given:?}"
        )))
    }
}
