//! The host that is the polled multipath interface of the initiator: it fences, chooses paths and
//! sends commands again by itself.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use nvmeof_initiator::Error;
use nvmeof_initiator::polled::{
    Call, Done, MultipathAdmin, MultipathConfig, MultipathIo, PathChange, PathConfig, SubmitError,
    Wakers, Work, connect_paths,
};
use nvmeof_initiator_core::FenceMethod;
use nvmeof_initiator_core::multipath::ReconnectOptions;
use nvmeof_memory::{Buf, Classes};
use nvmeof_rdma::{Provider, Refused};
use nvmeof_rdma_layers::{Dice, Faults, Faulty, OneIn};

use super::Report;
use super::multipath::NSID;
use super::plan::Plan;
use crate::host::{BUFFERS, Host};
use crate::medium::Medium;

/// The two halves of the interface.
pub(super) struct Initiator {
    admin: MultipathAdmin<Providers>,
    io: MultipathIo,
    pub(super) buffers: Classes,
    /// Two threads drive the halves, in any order. Otherwise one does, without wakers.
    has_threads: bool,
    /// Whether one half woke the thread of the other.
    is_woken: Arc<AtomicBool>,
    dice: Dice,
    departure: Departure,
}

/// Stages of a disconnect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Departure {
    None,
    /// The I/O queues are closing.
    Closing,
    /// The controllers shut down.
    Shutdown,
}

type Providers = Box<dyn FnMut(usize) -> Result<Box<dyn Provider>, Error>>;

/// How long a controller may take to shut down.
const SHUTDOWN: Duration = Duration::from_secs(10);

impl Initiator {
    /// A host with the addresses and options of `paths`.
    pub(super) fn new(paths: &[Host], plan: &Plan, medium: &Medium, seed: u64) -> Self {
        let mut dice = Dice::new(seed);
        let config = |path: &Host| PathConfig {
            addr: path.target,
            admin: path.admin_config(),
            trusts_target: false,
        };
        let config = MultipathConfig {
            paths: paths.iter().map(config).collect(),
            nsid: NSID,
            queue_size: plan.paths[0].queues[0],
            waiting_calls: 64,
            policy: plan.policy,
            reconnect: ReconnectOptions {
                ctrl_loss: None,
                ..ReconnectOptions::default()
            },
            quiesce: None,
            seed: dice.roll(),
        };
        let is_woken = Arc::new(AtomicBool::new(false));
        let wakers = match plan.has_threads {
            true => wakers(&is_woken),
            false => Wakers::default(),
        };
        let now = Duration::ZERO;
        let providers = providers(paths, medium, dice.roll());
        let (admin, mut io) = connect_paths(config, providers, wakers, now).unwrap();
        let buffers = Classes::new(&BUFFERS, medium.pages()).unwrap();
        for region in buffers.regions() {
            io.register(region, now).unwrap();
        }
        Self {
            admin,
            io,
            buffers,
            has_threads: plan.has_threads,
            is_woken,
            dice,
            departure: Departure::None,
        }
    }

    /// Polls both halves. Returns whether there was progress.
    pub(super) fn poll(&mut self, now: Duration, done: &mut Vec<Done>) -> bool {
        let is_io_first = self.has_threads && self.dice.happens(OneIn(2));
        let mut progress = is_io_first && self.io.poll(now, done);
        progress |= self.admin.poll(now);
        if !is_io_first {
            progress |= self.io.poll(now, done);
        }
        progress | self.is_woken.swap(false, Ordering::Relaxed)
    }

    /// The next change of a path, in words; counts it.
    pub(super) fn take_change(&mut self, report: &mut Report) -> Option<String> {
        let event = self.io.take_event()?;
        match &event.change {
            PathChange::Lost(_) => report.losses += 1,
            PathChange::Fenced(FenceMethod::CrossControllerReset) => report.reset += 1,
            PathChange::Fenced(_) => report.waited += 1,
            _ => {}
        }
        Some(match &event.change {
            PathChange::Lost(why) => format!("path {} is lost: {}", event.path, why.cause()),
            PathChange::Failed(why) => format!("path {} failed: {}", event.path, why.cause()),
            change => format!("path {}: {change:?}", event.path),
        })
    }

    pub(super) fn submit(
        &mut self,
        work: Work,
        buf: Option<Buf>,
        user: u64,
        now: Duration,
    ) -> Result<(), Refused<Call, SubmitError>> {
        self.io.submit_call(Call::new(work, buf, user), now)
    }

    /// Whether all paths can be used, and no call waits for a fence.
    pub(super) fn is_calm(&self) -> bool {
        self.io.paths().iter().all(|path| path.is_accessible) && self.io.awaiting_fence() == 0
    }

    /// A path in detail, for a failure.
    pub(super) fn state(&self, at: usize) -> String {
        let waiting = self.io.awaiting_fence();
        format!("{:?}, {waiting} calls await a fence", self.io.paths()[at])
    }

    /// The time by which it must be polled.
    pub(super) fn next_deadline(&self, now: Duration) -> Option<Duration> {
        let deadlines = [self.admin.next_deadline(), self.io.next_deadline(now)];
        deadlines.into_iter().flatten().min()
    }

    /// The next step of a disconnect. Returns whether there was one.
    pub(super) fn leave(&mut self, now: Duration) -> bool {
        match self.departure {
            Departure::None => {
                self.io.close();
                self.departure = Departure::Closing;
            }
            Departure::Closing if self.io.is_closed() => {
                self.admin.shutdown(now, SHUTDOWN);
                self.departure = Departure::Shutdown;
            }
            Departure::Closing | Departure::Shutdown => return false,
        }
        true
    }

    /// Whether all queues are closed.
    pub(super) fn has_left(&self) -> bool {
        self.departure == Departure::Shutdown && self.admin.is_closed()
    }
}

/// Wakers that record that they were called.
fn wakers(is_woken: &Arc<AtomicBool>) -> Wakers {
    let waker = || {
        let is_woken = Arc::clone(is_woken);
        let wake: Arc<dyn Fn() + Send + Sync> =
            Arc::new(move || is_woken.store(true, Ordering::Relaxed));
        Some(wake)
    };
    Wakers {
        admin: waker(),
        io: waker(),
    }
}

/// Providers with the faults of each path.
fn providers(paths: &[Host], medium: &Medium, seed: u64) -> Providers {
    let mut dice = Dice::new(seed);
    let medium = medium.clone();
    let paths = paths
        .iter()
        .map(|path| (path.ip, path.shape.faults.clone()));
    let paths: Vec<_> = paths.collect();
    Box::new(move |path| {
        let (ip, faults) = &paths[path];
        let endpoint = medium.provider(*ip);
        if *faults == Faults::default() {
            return Ok(endpoint);
        }
        let seed = dice.roll();
        Ok(Box::new(Faulty::new(
            endpoint,
            Faults {
                seed,
                ..faults.clone()
            },
        )))
    })
}
