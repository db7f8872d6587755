//! Begin and end of faults.

use std::time::Duration;

use nvmeof_rdma_layers::OneIn;
use nvmeof_rdma_sim::{NetworkFault, SimChances};
use nvmeof_target_engine::Mail;

use super::{Reactors, TARGET_IP, Undo, World};
use crate::disk::Temper;
use crate::oracle::{Ending, Wrong};
use crate::plan::Fault;

/// Additional time for the target to release a host after its keep-alive time-out, because
/// closing lingers.
const A_MOMENT: Duration = Duration::from_millis(300);
/// The same for a host that was connecting, which has other time-outs.
const A_WHILE: Duration = Duration::from_secs(3);

impl World {
    /// Starts the faults that are due. Returns whether there was one.
    pub(super) fn make_trouble(&mut self, now: Duration) -> Result<bool, Wrong> {
        let mut any = false;
        while let Some((after, fault)) = self.plan.faults.get(self.next_fault).copied()
            && self.ended >= after
        {
            // No faults while the target drains.
            if self.draining.is_some() {
                break;
            }
            self.next_fault += 1;
            self.say(format_args!("fault: {fault:?}"));
            self.fault(fault, now)?;
            any = true;
        }
        Ok(any)
    }

    fn fault(&mut self, fault: Fault, now: Duration) -> Result<(), Wrong> {
        match fault {
            Fault::Reset(host) => {
                let host = self.hosts[host].ip;
                self.net.inject(NetworkFault::Reset(host, TARGET_IP));
            }
            Fault::Cut(host, how_long) => self.cut(host, now + how_long),
            Fault::HalfClose { host, by_target } => {
                let host = self.hosts[host].ip;
                self.net.inject(if by_target {
                    NetworkFault::HalfClose(TARGET_IP, host)
                } else {
                    NetworkFault::HalfClose(host, TARGET_IP)
                });
            }
            Fault::HostCrash { host, silent } => {
                if silent {
                    self.cut(host, now + Duration::from_secs(8));
                    let keep_alive = self.hosts[host].shape.keep_alive;
                    // The end of a stall heals the network too.
                    let stalls = self.plan.net.chances.stall != OneIn(0);
                    let alone = self.hosts.len() == 1 && self.imposters.are_none();
                    if alone && !keep_alive.is_zero() && !stalls {
                        let heals = self.heals;
                        let by = now + self.time_to_forget(keep_alive);
                        self.at(by, Undo::MustBeForgotten { heals });
                    }
                }
                self.crash_host(host, now)?;
            }
            Fault::HostStalls(host, how_long) => {
                self.hosts[host].stalled_until = now + how_long;
            }
            Fault::TargetCrash => self.crash_target(now)?,
            Fault::TargetDrain => self.drain_target(),
            Fault::SlowDisk(slow, how_long) => {
                let latency = Duration::ZERO..=slow;
                self.disks.set_temper(Temper {
                    latency,
                    ..self.plan.temper.clone()
                });
                self.at(now + how_long, Undo::CalmDisk);
            }
            Fault::BadDisk(how_long) => {
                self.disks.set_temper(Temper {
                    eio: OneIn(5),
                    enospc: OneIn(8),
                    ..self.plan.temper.clone()
                });
                self.at(now + how_long, Undo::CalmDisk);
            }
            Fault::Corruption(how_long) => {
                self.net.set_chances(SimChances {
                    corrupt: OneIn(60),
                    ..self.plan.net.chances
                });
                self.at(now + how_long, Undo::NoCorruption);
            }
            Fault::Refuse(count) => self.net.inject(NetworkFault::Refuse(TARGET_IP, count)),
        }
        Ok(())
    }

    pub(super) fn at(&mut self, when: Duration, undo: Undo) {
        self.undone += 1;
        self.later.insert((when, self.undone), undo);
    }

    fn cut(&mut self, host: usize, until: Duration) {
        self.cuts += 1;
        self.net
            .inject(NetworkFault::Cut(self.hosts[host].ip, TARGET_IP));
        self.at(until, Undo::Heal(host));
    }

    /// Ends the faults that are due. Returns whether there was one.
    pub(super) fn undo_due(&mut self, now: Duration) -> Result<bool, Wrong> {
        let mut any = false;
        while let Some(entry) = self.later.first_entry()
            && entry.key().0 <= now
        {
            let undo = entry.remove();
            self.say(format_args!("ends: {undo:?}"));
            match undo {
                Undo::MustBeForgotten { heals } => self.check_forgotten(heals)?,
                Undo::Heal(host) => {
                    self.cuts -= 1;
                    self.heals += 1;
                    let host = self.hosts[host].ip;
                    self.net.inject(NetworkFault::Heal(host, TARGET_IP));
                }
                Undo::CalmDisk => self.disks.set_temper(self.plan.temper.clone()),
                Undo::NoCorruption => self.net.set_chances(self.plan.net.chances),
                Undo::StartTarget => self.start_target(),
                Undo::AddNamespace(ns) => self.add_namespace(ns, now)?,
            }
            any = true;
        }
        Ok(any)
    }

    /// Time-out for the target to release a host that fails silently now.
    fn time_to_forget(&self, keep_alive: Duration) -> Duration {
        // Rounded up to units of KAS, which are seconds for this target (NVMe Base 2.1,
        // 5.1.13.2.1 and 5.1.25.1.8).
        let seconds = keep_alive.as_millis().div_ceil(1000);
        let keep_alive = Duration::from_secs(u64::try_from(seconds).unwrap());
        // With traffic based keep alive, a whole interval must pass without a command (3.9.4),
        // and another one may have started.
        let intervals = 1 + u32::from(self.plan.limits.traffic_keep_alive);
        let more = match self.has_only_settled_queue_pairs() {
            true => A_MOMENT,
            false => A_WHILE,
        };
        keep_alive * intervals + more
    }

    /// NVMe Base 2.0, section 3.9: the target disconnects a host that is silent for its
    /// keep-alive time, without an error of the network.
    fn check_forgotten(&self, heals: u64) -> Result<(), Wrong> {
        let pairs = self.reactors.queue_pairs();
        let controllers = self.target.controllers();
        if self.heals > heals || (pairs == 0 && controllers == 0) {
            return Ok(());
        }
        Err(Wrong(format!(
            "the only host failed silently longer than its keep-alive time ago, but the target \
             still has {pairs} queue pairs and {controllers} controllers"
        )))
    }

    /// The process of a host crashes. Its calls get no results.
    fn crash_host(&mut self, host: usize, now: Duration) -> Result<(), Wrong> {
        self.hosts[host].crash(now);
        let lost = self.calls.extract_if(.., |_, call| call.host == host);
        for (id, call) in lost.collect::<Vec<_>>() {
            self.ended += 1;
            self.oracle.end(id, Ending::Lost)?;
            self.request_lost(id, &call)?;
        }
        self.check_host_buffers(host)
    }

    /// Power loss, restored a moment later.
    pub(super) fn crash_target(&mut self, now: Duration) -> Result<(), Wrong> {
        if !self.reactors.run() {
            return Ok(());
        }
        self.reactors = Reactors::default();
        self.workers.crash();
        self.count_authentications();
        self.say(format_args!("target crashes"));
        self.disks.crash();
        self.oracle.crash();
        self.lose_reservations()?;
        let pause = [0, 1, 100][self.dice.below(3)];
        self.at(now + Duration::from_millis(pause), Undo::StartTarget);
        Ok(())
    }

    /// Starts to drain the target.
    fn drain_target(&mut self) {
        if !self.reactors.run() {
            return;
        }
        // A disk that fails the last flush loses data, and reports it.
        self.disks.set_temper(self.plan.temper.clone());
        self.reactors.send(Mail::DRAIN);
        let all = 0..self.plan.disks.len();
        self.oracle.sent_by(None);
        self.draining = Some(all.map(|ns| self.oracle.begin_flush(ns)).collect());
    }

    /// The target drained: acknowledged writes are on stable media, so a power loss loses
    /// none of them.
    pub(super) fn drained(&mut self) -> Result<(), Wrong> {
        for ns in 0..self.plan.disks.len() {
            self.look_for_losses(ns);
        }
        for flush in self.draining.take().unwrap_or_default() {
            self.oracle.end(flush, Ending::Done)?;
        }
        self.say(format_args!("target drained"));
        self.crash_target(self.net.now())
    }
}
