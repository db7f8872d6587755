//! Observes that no two gateways serve a group at once.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nvmeof_initiator::multipath::AnaState;
use nvmeof_initiator::{ConnectOptions, Controller};

use crate::fleet::{Fleet, GROUPS, serves, status};
use crate::load::{Client, path};

const LIMIT: Duration = Duration::from_millis(500);
const INTERVAL: Duration = Duration::from_millis(20);

/// For each group: whether a gateway serves it by its own status, and by its ANA log.
type Sample = [[bool; 2]; 2];

/// A thread that asks all gateways.
pub(crate) struct Watch {
    is_over: Arc<AtomicBool>,
    thread: JoinHandle<Overlaps>,
}

/// How long two gateways served a group at once, at most.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Overlaps {
    /// By their own status.
    pub(crate) status: Duration,
    /// By their ANA logs.
    pub(crate) ana: Duration,
    /// Number of samples of each.
    pub(crate) samples: u64,
}

/// A gateway that is asked.
struct Asked {
    socket: PathBuf,
    path: ConnectOptions,
    controller: Option<Controller>,
}

impl Watch {
    pub(crate) fn start(fleet: &Fleet) -> Self {
        let is_over = Arc::new(AtomicBool::new(false));
        let gateways = fleet.gateways.iter().enumerate();
        let asked = gateways.map(|(at, it)| Asked::new(it.socket(), path(fleet, at)));
        let mut asked: Vec<_> = asked.collect();
        let its = Arc::clone(&is_over);
        let thread = std::thread::spawn(move || watch(&mut asked, &its));
        Self { is_over, thread }
    }

    pub(crate) fn end(self) -> Overlaps {
        self.is_over.store(true, Ordering::Relaxed);
        self.thread.join().unwrap()
    }

    /// Ends it, and asserts that no group was served twice.
    pub(crate) fn assert_no_overlap(self) {
        let overlaps = self.end();
        let Overlaps {
            status,
            ana,
            samples,
        } = overlaps;
        assert!(status.is_zero() && ana.is_zero(), "{overlaps:?}");
        assert!(samples > 10, "{overlaps:?}");
    }
}

impl Asked {
    fn new(socket: PathBuf, mut path: ConnectOptions) -> Self {
        path.connect_timeout = LIMIT;
        Self {
            socket,
            path,
            controller: None,
        }
    }

    /// Neither, if it does not respond.
    fn sample(&mut self, client: &Client) -> Sample {
        let status = status(&self.socket);
        let states = client.runtime.block_on(async {
            if self.controller.is_none() {
                let connected = client.host.connect(self.path.clone()).await;
                self.controller = connected.ok();
            }
            let controller = self.controller.as_ref()?;
            let log = tokio::time::timeout(LIMIT, controller.ana_log(true)).await;
            log.ok()?.ok()?
        });
        if states.is_none() {
            self.controller = None;
        }
        GROUPS.map(|id| {
            let by_status = status.as_ref().is_some_and(|it| serves(it, id));
            let mut groups = states.iter().flat_map(|log| &log.groups);
            let by_ana = groups.any(|it| it.id == id && it.state == AnaState::OPTIMIZED);
            [by_status, by_ana]
        })
    }
}

/// A group counts as served twice if a gateway serves it before and after the sample in which
/// another one does.
fn watch(asked: &mut [Asked], is_over: &AtomicBool) -> Overlaps {
    let client = Client::new();
    let mut result = Overlaps::default();
    let mut since = vec![[[None::<Instant>; 2]; 2]; asked.len()];
    let mut samples: Vec<Sample> = asked.iter_mut().map(|it| it.sample(&client)).collect();
    while !is_over.load(Ordering::Relaxed) {
        for at in 0..asked.len() {
            let start = Instant::now();
            let after = asked[at].sample(&client);
            let before = std::mem::replace(&mut samples[at], after);
            for (group, by) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
                // Sampled since `before`.
                let mut others = (0..samples.len()).filter(|other| *other != at);
                let between = others.any(|other| samples[other][group][by]);
                let since = &mut since[at][group][by];
                if !(before[group][by] && between && after[group][by]) {
                    *since = None;
                    continue;
                }
                let lasts = since.get_or_insert(start).elapsed();
                let longest = [&mut result.status, &mut result.ana];
                let [status, ana] = longest;
                let longest = if by == 0 { status } else { ana };
                *longest = lasts.max(*longest);
            }
        }
        result.samples += 1;
        std::thread::sleep(INTERVAL);
    }
    result
}
