//! The namespace of a command over the paths of its subsystem. Paths that are lost or recovered are
//! reported on standard error.

use std::io::{self, Write};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use indicatif::ProgressBar;
use nvmeof_initiator::multipath::PathStatus;
use nvmeof_initiator::{ConnectOptions, Host, Multipath, MultipathNamespace};
use nvmeof_wire::text::Lines;
use tokio::task::JoinHandle;

use crate::args;
use crate::failure::Failure;

/// A namespace over its paths. The first connection fails like that of one controller; paths that
/// are lost later are connected again.
pub(crate) struct Disk {
    host: Host,
    namespace: MultipathNamespace,
    reports: Reports,
}

impl Disk {
    /// Connects `host` to the namespace of `io`. Reports are printed above `bar`.
    pub(crate) async fn open(host: Host, io: &args::Io, bar: ProgressBar) -> Result<Self, Failure> {
        let wanted = (&io.queues, io.namespace_id);
        Self::connect(host, &io.paths()?, &io.reconnects, wanted, bar).await
    }

    /// Connects `host` over `paths`, with at least these I/O queues, to this namespace.
    pub(crate) async fn connect(
        host: Host,
        paths: &[ConnectOptions],
        reconnects: &args::Reconnects,
        wanted: (&args::IoQueues, u32),
        bar: ProgressBar,
    ) -> Result<Self, Failure> {
        let multipath = Multipath::connect(&host, paths, reconnects.options()).await?;
        let reports = Reports::start(multipath, reconnects.is_enabled(), bar);
        match opened(&reports.paths.multipath, wanted).await {
            Ok(namespace) => Ok(Self {
                host,
                namespace,
                reports,
            }),
            Err(failure) => {
                reports.end().await;
                Err(failure)
            }
        }
    }

    /// The namespace.
    pub(crate) fn namespace(&self) -> &MultipathNamespace {
        &self.namespace
    }

    /// The host with the buffers.
    pub(crate) fn host(&self) -> &Host {
        &self.host
    }

    /// Disconnects, whatever the result was.
    pub(crate) async fn close(self, result: Result<(), Failure>) -> Result<(), Failure> {
        self.reports.end().await;
        result
    }
}

/// Opens the namespace. Like an absent target, one that no path can access is an error at first.
async fn opened(
    multipath: &Multipath,
    (queues, nsid): (&args::IoQueues, u32),
) -> Result<MultipathNamespace, Failure> {
    let paths = multipath.paths();
    if let Some(fewest) = paths.iter().filter_map(|path| path.io_queues).min() {
        queues.check(fewest)?;
    }
    let namespace = multipath.namespace(nsid).await?;
    namespace.ready().await?;
    Ok(namespace)
}

/// Paths that are followed until the end of the command.
struct Reports {
    paths: Arc<Followed>,
    task: JoinHandle<()>,
}

impl Reports {
    fn start(multipath: Multipath, reconnects: bool, bar: ProgressBar) -> Self {
        let paths = Arc::new(Followed {
            multipath,
            known: Mutex::default(),
            reconnects,
            bar,
        });
        let followed = Arc::clone(&paths);
        let task = tokio::spawn(async move {
            let mut changes = followed.multipath.changes();
            loop {
                followed.report();
                if !changes.changed().await {
                    return;
                }
            }
        });
        Self { paths, task }
    }

    /// Reports the last changes, and disconnects.
    async fn end(self) {
        self.task.abort();
        self.paths.report();
        self.paths.multipath.clone().disconnect().await;
    }
}

/// Paths, and what was reported of them.
struct Followed {
    multipath: Multipath,
    known: Mutex<Vec<Known>>,
    reconnects: bool,
    bar: ProgressBar,
}

impl Followed {
    /// Prints a line for each change since the last call.
    fn report(&self) {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let paths = self.multipath.paths();
        known.resize_with(paths.len(), Known::default);
        for (known, path) in known.iter_mut().zip(&paths) {
            for line in known.follow(&Seen::of(path), self.reconnects, Instant::now()) {
                let line = format!("nvmeof: path {} {line}\n", path.addr);
                // A write error has no other place to be reported.
                self.bar.suspend(|| {
                    let _ = io::stderr().write_all(Lines(&line).to_string().as_bytes());
                });
            }
        }
    }
}

/// What a report needs of the status of a path.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    pub(crate) is_live: bool,
    pub(crate) is_given_up: bool,
    pub(crate) losses: u64,
    pub(crate) cause: Option<String>,
}

impl Seen {
    fn of(path: &PathStatus) -> Self {
        Self {
            is_live: path.is_live,
            is_given_up: path.is_given_up,
            losses: path.losses,
            cause: path.last_error.as_ref().map(|error| error.cause()),
        }
    }
}

/// What was reported of a path.
#[derive(Debug, Default)]
pub(crate) struct Known {
    losses: u64,
    /// When it was reported that the path is not connected, if it still is not.
    down_since: Option<Instant>,
    is_given_up: bool,
}

impl Known {
    /// The lines to print for a path with status `seen` at `now`.
    pub(crate) fn follow(&mut self, seen: &Seen, reconnects: bool, now: Instant) -> Vec<String> {
        let mut lines = Vec::new();
        let because = match &seen.cause {
            Some(cause) => format!(": {cause}"),
            None => String::new(),
        };
        let then = if reconnects { "; reconnecting" } else { "" };
        if seen.losses > self.losses && self.down_since.is_none() {
            lines.push(format!("lost{because}{then}"));
            self.down_since = Some(now);
        }
        self.losses = seen.losses;
        let has_failed = !seen.is_live && seen.cause.is_some();
        if has_failed && self.down_since.is_none() && !self.is_given_up {
            lines.push(format!("not connected{because}{then}"));
            self.down_since = Some(now);
        }
        if seen.is_given_up && !self.is_given_up {
            self.is_given_up = true;
            lines.push(format!("given up{because}"));
        }
        if seen.is_live
            && let Some(since) = self.down_since.take()
        {
            let down = now.saturating_duration_since(since);
            lines.push(format!("recovered after {} s", seconds(down)));
        }
        lines
    }
}

/// Seconds with one decimal.
fn seconds(time: Duration) -> String {
    format!("{:.1}", time.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(is_live: bool, losses: u64, cause: &str) -> Seen {
        Seen {
            is_live,
            is_given_up: false,
            losses,
            cause: (!cause.is_empty()).then(|| cause.to_owned()),
        }
    }

    #[test]
    fn each_loss_and_recovery_is_reported_once() {
        let start = Instant::now();
        let mut known = Known::default();
        let mut follow = |seen: Seen, after: u64| {
            known.follow(&seen, true, start + Duration::from_millis(after))
        };
        let none: [&str; 0] = [];
        assert_eq!(follow(seen(true, 0, ""), 0), none);
        assert_eq!(
            follow(seen(false, 1, "cut"), 10),
            ["lost: cut; reconnecting"]
        );
        // Failed attempts are not reported.
        assert_eq!(follow(seen(false, 1, "refused"), 20), none);
        assert_eq!(follow(seen(true, 1, ""), 1210), ["recovered after 1.2 s"]);
        assert_eq!(follow(seen(true, 1, ""), 1300), none);
        // Lost and connected again between two looks.
        assert_eq!(
            follow(seen(true, 2, ""), 1400),
            ["lost; reconnecting", "recovered after 0.0 s"]
        );
    }

    #[test]
    fn path_that_is_not_connected_at_first_is_reported() {
        let (start, mut known) = (Instant::now(), Known::default());
        // Before its first attempt has ended, nothing is known.
        assert!(known.follow(&seen(false, 0, ""), true, start).is_empty());
        let refused = known.follow(&seen(false, 0, "refused"), true, start);
        assert_eq!(refused, ["not connected: refused; reconnecting"]);
        assert!(
            known
                .follow(&seen(false, 0, "refused"), true, start)
                .is_empty()
        );
        let live = known.follow(&seen(true, 0, ""), true, start);
        assert_eq!(live, ["recovered after 0.0 s"]);
    }

    #[test]
    fn path_that_is_given_up_is_reported() {
        let (start, mut known) = (Instant::now(), Known::default());
        let lost = known.follow(&seen(false, 1, "cut"), false, start);
        assert_eq!(lost, ["lost: cut"]);
        let given_up = Seen {
            is_given_up: true,
            ..seen(false, 1, "cut")
        };
        assert_eq!(known.follow(&given_up, false, start), ["given up: cut"]);
        assert!(known.follow(&given_up, false, start).is_empty());
    }
}
