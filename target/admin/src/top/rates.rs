//! Rates per second between two snapshots.

use std::time::Duration;

use serde::Serialize;

use nvmeof_target_api::{Counts, ReactorState, Snapshot};

/// The rates between two snapshots of a target.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct Rates {
    /// Seconds between them.
    pub(super) seconds: f64,
    pub(super) version: String,
    /// Seconds since the start of the target.
    pub(super) uptime: f64,
    pub(super) controllers: usize,
    pub(super) queues: usize,
    pub(super) total: Row,
    pub(super) reactors: Vec<Reactor>,
    pub(super) namespaces: Vec<Row>,
    pub(super) hosts: Vec<Row>,
}

/// The rates of a namespace or host.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(super) struct Row {
    /// Of a namespace: subsystem and namespace ID. Of a host: its NQN.
    pub(super) name: String,
    /// I/O commands.
    pub(super) iops: f64,
    /// Bytes to hosts.
    pub(super) read: f64,
    /// Bytes from hosts.
    pub(super) written: f64,
    /// Commands that failed.
    pub(super) errors: f64,
    /// Median latency in seconds.
    pub(super) p50: Option<f64>,
    /// 99th percentile of the latency in seconds.
    pub(super) p99: Option<f64>,
    /// Commands in flight.
    pub(super) commands: usize,
    /// Whether its backing store is faulted.
    pub(super) faulted: bool,
}

/// One reactor.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(super) struct Reactor {
    pub(super) reactor: usize,
    pub(super) answered: bool,
    /// Shares of its time, 0 to 1.
    pub(super) working: f64,
    pub(super) polling: f64,
    pub(super) queues: usize,
    pub(super) commands: usize,
    pub(super) iops: f64,
    /// Queues that wait for buffers, and operations that wait for backing stores.
    pub(super) waiting: usize,
}

impl Rates {
    /// The rates from one snapshot to a later one.
    pub(super) fn between(before: &Snapshot, now: &Snapshot) -> Self {
        // A restarted target starts at 0.
        let zero = Snapshot::default();
        let before = if now.is_same_run_as(before) {
            before
        } else {
            &zero
        };
        let seconds = (now.uptime - before.uptime).max(f64::MIN_POSITIVE);
        let since = Interval { seconds };
        let total = since.row(String::new(), &before.totals(), &now.totals(), 0);
        let namespaces = now.namespaces.iter().map(|one| {
            let same = |it: &&nvmeof_target_api::NamespaceState| {
                it.nsid == one.nsid && it.subsystem == one.subsystem
            };
            let earlier = before.namespaces.iter().find(same);
            let earlier = earlier.map(|it| it.counts.clone()).unwrap_or_default();
            let name = match one.nsid {
                0 => format!("{} (none)", one.subsystem),
                nsid if one.is_ready() => format!("{} {nsid}", one.subsystem),
                nsid => format!("{} {nsid} ({})", one.subsystem, one.state),
            };
            Row {
                faulted: one.is_faulted(),
                ..since.row(name, &earlier, &one.counts, one.commands)
            }
        });
        let hosts = now.hosts.iter().map(|one| {
            let same = |it: &&nvmeof_target_api::HostState| {
                it.host == one.host && it.subsystem == one.subsystem
            };
            let earlier = before.hosts.iter().find(same);
            let earlier = earlier.map(|it| it.counts.clone()).unwrap_or_default();
            let left = if one.connected { "" } else { " (left)" };
            let name = format!("{}{left}", one.host);
            since.row(name, &earlier, &one.counts, one.commands)
        });
        let reactors = now.reactors.iter().map(|one| {
            let earlier = before.reactors.iter().find(|it| it.reactor == one.reactor);
            since.reactor(earlier.unwrap_or(&ReactorState::default()), one)
        });
        Self {
            seconds,
            version: now.version.clone(),
            uptime: now.uptime,
            controllers: now.controllers,
            queues: now.queues.len(),
            total: Row {
                commands: now.reactors.iter().map(|one| one.commands).sum(),
                ..total
            },
            reactors: reactors.collect(),
            namespaces: namespaces.collect(),
            hosts: hosts.collect(),
        }
    }
}

/// An interval.
struct Interval {
    seconds: f64,
}

impl Interval {
    fn row(&self, name: String, before: &Counts, now: &Counts, commands: usize) -> Row {
        let times = now.all_times().since(&before.all_times());
        let quantile = |part| {
            times
                .quantile(part)
                .map(|time: Duration| time.as_secs_f64())
        };
        Row {
            name,
            iops: self.rate(before.io(), now.io()),
            read: self.rate(before.bytes_read, now.bytes_read),
            written: self.rate(before.bytes_written, now.bytes_written),
            errors: self.rate(before.failed(), now.failed()),
            p50: quantile(0.5),
            p99: quantile(0.99),
            commands,
            faulted: false,
        }
    }

    fn reactor(&self, before: &ReactorState, now: &ReactorState) -> Reactor {
        let share = |what: &str| {
            let seconds = |state: &ReactorState| state.seconds.get(what).copied().unwrap_or(0.0);
            ((seconds(now) - seconds(before)) / self.seconds).clamp(0.0, 1.0)
        };
        Reactor {
            reactor: now.reactor,
            answered: now.answered,
            working: share("working"),
            polling: share("polling"),
            queues: now.queues.values().sum(),
            commands: now.commands,
            iops: self.rate(before.counts.io(), now.counts.io()),
            waiting: now.waiting_for_buffers + now.waiting_for_disks,
        }
    }

    #[allow(clippy::cast_precision_loss, reason = "what is shown has three digits")]
    fn rate(&self, before: u64, now: u64) -> f64 {
        now.saturating_sub(before) as f64 / self.seconds
    }
}
