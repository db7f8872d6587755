//! Computations of authentications. They take up to tens of milliseconds, so they run outside the
//! reactors.
//!
//! ```text
//!  queue pair ── ComputeJob ──► ComputeWorkers: fair queue ──► thread
//!      ▲                                                         │
//!      └────────────── mailbox of its reactor ◄── result ────────┘
//! ```
//!
//! # Why no wait is endless
//! * A queue pair has one command that waits for a computation, so there are no more jobs than
//!   queue pairs. Connections without a controller are limited (`limits.unconnected`).
//! * A job that is dropped without a result reports a refusal, so each job ends its wait.
//! * Jobs are served round robin: by port, hosts with a controller apart from all others; there
//!   by address or by Host NQN. A turn is bounded by cost, and newcomers come last. A job waits
//!   for one turn of each source that was there before it, for each job before it of its own
//!   source.
//! * A closed queue pair cancels its job, which then costs nothing.

mod fair;
mod pairs;
mod pool;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use nvmeof_dhchap::{Exchange, Random, Work, WorkResult};
use nvmeof_target_core::{PortAddress, Source};
use nvmeof_wire::Nqn;
use nvmeof_wire::auth::GroupId;

use crate::computed::Computed;
use crate::mailbox::{Mailbox, Order};
use crate::tag::Tag;
pub use pool::WorkerPool;

/// Runs the computations of reactors on other threads.
pub trait ComputeWorkers: Send + Sync {
    /// Takes a job. Does not wait for it: a reactor calls this.
    fn submit(&self, job: ComputeJob);
}

/// A computation that a command waits for. [`run`](Self::run) or [`refuse`](Self::refuse) reports
/// its result to the reactor; dropping it refuses it.
pub struct ComputeJob {
    work: Option<Work>,
    group: GroupId,
    source: JobSource,
    mailbox: Mailbox,
    tag: Tag,
    is_cancelled: Arc<AtomicBool>,
    /// The result if it is dropped, until it has another one.
    refusal: Option<WorkResult>,
}

/// Whose turn a job takes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct JobSource {
    /// The port of the connection, if it is known.
    pub(crate) port: Option<PortAddress>,
    pub(crate) peer: JobPeer,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum JobPeer {
    /// It has no controller, so its name may be any.
    Unproven(Source),
    /// A host with a controller.
    Host(Box<Nqn>),
}

/// The claim of a command to the result of its job. Dropping it cancels the job.
#[derive(Debug)]
pub(crate) struct PendingJob(Arc<AtomicBool>);

impl ComputeJob {
    /// A job whose result goes to the command `tag` by `mailbox`, and the claim of that command.
    pub(crate) fn new(
        work: Work,
        source: JobSource,
        mailbox: Mailbox,
        tag: Tag,
    ) -> (Self, PendingJob) {
        let is_cancelled = Arc::<AtomicBool>::default();
        let pending = PendingJob(Arc::clone(&is_cancelled));
        let job = Self {
            group: work.group(),
            refusal: Some(work.not_run("the worker ended without a result")),
            work: Some(work),
            source,
            mailbox,
            tag,
            is_cancelled,
        };
        (job, pending)
    }

    /// The group of its exponentiations; `NULL` if it has none.
    #[must_use]
    pub fn group(&self) -> GroupId {
        self.group
    }

    /// Whether nobody waits for the result: the queue pair is closed.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.is_cancelled.load(Ordering::Relaxed)
    }

    /// Runs it and reports the result.
    pub fn run(self, random: &mut dyn Random) {
        self.run_with(None, random);
    }

    /// As [`run`](Self::run), with an exchange that was prepared before.
    pub(crate) fn run_with(mut self, prepared: Option<Exchange>, random: &mut dyn Random) {
        if let Some(work) = self.work.take() {
            self.report(work.run_with(prepared, random));
        }
    }

    /// Reports that it cannot be run, and why. The authentication fails.
    pub fn refuse(mut self, why: &'static str) {
        if let Some(work) = self.work.take() {
            self.report(work.not_run(why));
        }
    }

    /// The group of the exchange that it generates: see [`Work::generates`].
    pub(crate) fn generates(&self) -> Option<GroupId> {
        self.work.as_ref().and_then(Work::generates)
    }

    fn report(&mut self, result: WorkResult) {
        self.refusal = None;
        if !self.is_cancelled() {
            self.mailbox.order(Order::Computed(Computed {
                tag: self.tag,
                result,
                is_cancelled: Arc::clone(&self.is_cancelled),
            }));
        }
    }
}

impl Drop for ComputeJob {
    fn drop(&mut self) {
        if let Some(refusal) = self.refusal.take() {
            self.report(refusal);
        }
    }
}

impl Drop for PendingJob {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl fmt::Debug for ComputeJob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ComputeJob")
            .field("work", &self.work)
            .field("source", &self.source)
            .finish_non_exhaustive()
    }
}

/// Jobs for tests of this room.
#[cfg(test)]
mod testing {
    use std::net::IpAddr;
    use std::sync::Arc;
    use std::time::Duration;

    use nvmeof_dhchap::{ControllerAuth, Key, Policy, Work};
    use nvmeof_target_core::{Fabric, Limits, Model, PortSpec};
    use nvmeof_wire::auth::{HashId, Negotiate};

    use super::*;
    use crate::tag::SlotId;

    pub(super) fn nqn(text: &str) -> Nqn {
        Nqn::new(text).unwrap()
    }

    /// A challenge, the first computation of an authentication.
    pub(super) fn work(group: GroupId) -> Work {
        let key = "DHHC-1:00:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh+KfiaR:";
        let policy = Policy {
            first_is_old: false,
            unknown: Default::default(),
            keys: vec![Arc::new(Key::parse(key).unwrap())],
            controller_key: None,
            hashes: vec![HashId::SHA256],
            groups: vec![group],
        };
        let names = [
            "nqn.2026-11.org.example:host",
            "nqn.2026-11.org.example:disk",
        ];
        let [host, subsystem] = names.map(nqn);
        let now = Duration::ZERO;
        let mut side = ControllerAuth::new(host, subsystem, Arc::new(policy), now, now);
        let mut message = [0; 72];
        let offer = Negotiate {
            t_id: 1,
            sc_c: 0,
            hashes: &[HashId::SHA256],
            groups: &[group],
            is_offered: true,
        };
        let len = offer.write(&mut message).unwrap();
        side.send(now, &message[..len]).unwrap().unwrap()
    }

    pub(super) fn port(number: u16) -> PortAddress {
        let ip = IpAddr::from([10, 0, 0, 1]);
        let spec = PortSpec::new(ip, number, vec![Fabric::Iwarp.into()]);
        let model = Model::build(Limits::default(), &[spec], &[]).unwrap();
        model.ports()[0].address()
    }

    pub(super) fn unproven(number: u8) -> JobSource {
        JobSource {
            port: Some(port(4420)),
            peer: JobPeer::Unproven(Source::Ip([10, 0, 0, number].into())),
        }
    }

    pub(super) fn host(number: u8) -> JobSource {
        JobSource {
            port: Some(port(4420)),
            peer: JobPeer::Host(Box::new(nqn(&format!(
                "nqn.2026-11.org.example:host{number}"
            )))),
        }
    }

    pub(super) fn tag(number: u16) -> Tag {
        let id = |index| SlotId {
            index,
            generation: 0,
        };
        Tag {
            queue: id(number),
            slot: id(0),
        }
    }

    /// A job with that tag.
    pub(super) fn job(
        group: GroupId,
        source: JobSource,
        mailbox: &Mailbox,
        number: u16,
    ) -> (ComputeJob, PendingJob) {
        ComputeJob::new(work(group), source, mailbox.clone(), tag(number))
    }

    /// The results that arrived: the numbers of the jobs and whether each succeeded.
    pub(super) fn results(mailbox: &Mailbox) -> Vec<(u16, bool)> {
        let orders = mailbox.take_orders().into_iter();
        let results = orders.filter_map(|order| match order {
            Order::Computed(computed) => computed.into_result(),
            _ => None,
        });
        results
            .map(|(tag, result)| (tag.queue.index, format!("{result:?}") == "WorkResult(Ok)"))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use nvmeof_dhchap::SystemRandom;

    use super::testing::{job, results, unproven};
    use super::*;

    #[test]
    fn every_job_reports_exactly_one_result() {
        let mailbox = Mailbox::new().unwrap();
        let jobs = [0, 1, 2].map(|number| job(GroupId::NULL, unproven(1), &mailbox, number));
        let [(ran, _first), (refused, _second), (dropped, _third)] = jobs;
        ran.run(&mut SystemRandom);
        refused.refuse("no worker");
        drop(dropped);
        assert_eq!(results(&mailbox), [(0, true), (1, false), (2, false)]);
    }

    #[test]
    fn cancelled_job_reports_nothing() {
        let mailbox = Mailbox::new().unwrap();
        let jobs = [0, 1, 2].map(|number| job(GroupId::NULL, unproven(1), &mailbox, number));
        let [(first, pending), (second, others), (late, last)] = jobs;
        assert!(!first.is_cancelled());
        drop((pending, others));
        assert!(first.is_cancelled());
        first.run(&mut SystemRandom);
        drop(second);
        assert!(mailbox.take().is_empty(), "the reactor is not woken");
        // Its queue is closed between the result and its receipt.
        late.run(&mut SystemRandom);
        drop(last);
        assert!(results(&mailbox).is_empty());
    }
}
