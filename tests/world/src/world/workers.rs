//! The workers of the target's authentications, in virtual time: each computation takes a random
//! time, so that they end in another order than they began.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use nvmeof_initiator::dhchap::{Random, RandomError};
use nvmeof_rdma_layers::Dice;
use nvmeof_target_engine::{ComputeJob, ComputeWorkers};

/// Clones share the jobs.
#[derive(Clone)]
pub(crate) struct Workers(Arc<Mutex<Inner>>);

struct Inner {
    now: Duration,
    dice: Numbers,
    slowest: Duration,
    /// By the time at which each ends, and its number.
    jobs: BTreeMap<(Duration, u64), ComputeJob>,
    number: u64,
}

/// Random numbers of a seed.
struct Numbers(Dice);

impl Random for Numbers {
    fn fill(&mut self, bytes: &mut [u8]) -> Result<(), RandomError> {
        for part in bytes.chunks_mut(8) {
            part.copy_from_slice(&self.0.roll().to_le_bytes()[..part.len()]);
        }
        Ok(())
    }
}

impl Workers {
    /// Each computation takes up to `slowest`.
    pub(crate) fn new(seed: u64, slowest: Duration) -> Self {
        Self(Arc::new(Mutex::new(Inner {
            now: Duration::ZERO,
            dice: Numbers(Dice::new(seed)),
            slowest,
            jobs: BTreeMap::new(),
            number: 0,
        })))
    }

    /// Runs the computations that end now. Returns whether there was one.
    pub(crate) fn run_due(&self, now: Duration) -> bool {
        let mut inner = self.0.lock().unwrap();
        let inner = &mut *inner;
        inner.now = now;
        let mut any = false;
        while let Some(entry) = inner.jobs.first_entry()
            && entry.key().0 <= now
        {
            any = true;
            let job = entry.remove();
            if !job.is_cancelled() {
                job.run(&mut inner.dice);
            }
        }
        any
    }

    /// When the next one ends.
    pub(crate) fn next_at(&self) -> Option<Duration> {
        let inner = self.0.lock().unwrap();
        inner.jobs.keys().next().map(|(at, _)| *at)
    }

    /// The target crashes.
    pub(crate) fn crash(&self) {
        self.0.lock().unwrap().jobs.clear();
    }
}

impl ComputeWorkers for Workers {
    fn submit(&self, job: ComputeJob) {
        let mut inner = self.0.lock().unwrap();
        let inner = &mut *inner;
        let steps = usize::try_from(inner.slowest.as_micros()).unwrap();
        let takes = inner.dice.0.below(steps + 1);
        let at = inner.now + Duration::from_micros(u64::try_from(takes).unwrap());
        inner.number += 1;
        inner.jobs.insert((at, inner.number), job);
    }
}
