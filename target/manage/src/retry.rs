//! The thread that retries backing stores, addresses and key files that were not available: with
//! increasing pauses, and immediately when a file or an address appears.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::net::IpAddr;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nvmeof_backend_spec::{QUERY_TIMEOUT, Queries, QueryTimeout};

use crate::ports;
use crate::served::{Manager, Waiting, WaitingObject};
use nvmeof_target_config::ConfigError;

/// The first pause; each is twice the one before.
pub const FIRST: Duration = Duration::from_secs(1);
/// The longest pause.
pub const LONGEST: Duration = Duration::from_secs(30);
/// Interval of checks whether a file or an address appeared.
const CHECK_INTERVAL: Duration = Duration::from_millis(500);
/// How long a drop waits for the thread to end.
const JOIN_TIMEOUT: Duration = Duration::from_millis(500);

/// Tries to start another listener. Returns whether it listens now.
pub type Listener = Box<dyn FnMut(&Arc<Manager>) -> bool + Send>;

/// Retries until it is dropped, or nothing is missing any more.
pub struct Retry {
    stop: Option<Sender<()>>,
    /// Returns the listeners, which listen until they are dropped.
    thread: JoinHandle<Listeners>,
}

/// Listeners by their keys.
pub type Listeners = Vec<(&'static str, Listener)>;

/// When something is retried next.
struct Schedule {
    next: Instant,
    pause: Duration,
    observed: Option<Observed>,
    /// Queries of `observed`: an unresponsive file system blocks nothing else.
    questions: Queries,
}

/// What can be observed without a retry: if it changes, a retry may succeed.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Observed {
    /// A file: device, inode, permissions, and time of their last change.
    File(Option<(u64, u64, u32, i64)>),
    /// The addresses of the machine.
    Addresses(Vec<IpAddr>),
}

/// The listener of that key, which `listen` creates. It exists as long as the returned one.
pub fn later<T: Send + 'static>(
    key: &'static str,
    mut listen: impl FnMut() -> Result<Option<T>, ConfigError> + Send + 'static,
) -> (&'static str, Listener) {
    let mut running = None;
    let listener: Listener = Box::new(move |manager| {
        let listening = listen();
        manager.listener_waits(key, listening.as_ref().err());
        if let Ok(listening) = listening {
            running = listening;
        }
        running.is_some()
    });
    (key, listener)
}

impl Retry {
    /// Retries and logs what `manager` waits for, and `listeners` by their keys. After each change,
    /// `notify` gets the status of the target.
    ///
    /// # Errors
    /// If the thread cannot be started.
    pub fn start(
        manager: Arc<Manager>,
        listeners: Listeners,
        notify: fn(&str),
    ) -> std::io::Result<Self> {
        for Waiting { what, waits, .. } in manager.waiting() {
            match what {
                // Its host cannot connect meanwhile.
                WaitingObject::HostKey { .. } => {
                    tracing::error!("waiting for {what}: {}; retrying", waits.why);
                }
                _ => tracing::warn!("waiting for {what}: {}; retrying", waits.why),
            }
        }
        let (stop, stopped) = channel();
        let thread = std::thread::Builder::new()
            .name("retry".to_owned())
            .spawn(move || watch(&manager, listeners, &stopped, notify))?;
        let stop = Some(stop);
        Ok(Self { stop, thread })
    }
}

impl Drop for Retry {
    fn drop(&mut self) {
        self.stop = None;
        // A thread that is blocked by an unresponsive backing store is abandoned.
        let until = Instant::now() + JOIN_TIMEOUT;
        while !self.thread.is_finished() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

fn watch(
    manager: &Arc<Manager>,
    mut listeners: Listeners,
    stopped: &Receiver<()>,
    notify: fn(&str),
) -> Listeners {
    let mut schedules = BTreeMap::new();
    loop {
        let waiting = manager.waiting();
        // A takeover may find an image that cannot be opened.
        if waiting.is_empty() && manager.ha().is_none() {
            return listeners;
        }
        let due = due(&waiting, &mut schedules, Instant::now());
        let mut changed = false;
        if !due.is_empty() {
            changed |= manager.retry(|what| due.contains(what));
            for (key, listener) in &mut listeners {
                changed |= due.contains(&WaitingObject::Listener(key)) && listener(manager);
            }
        }
        if changed {
            notify(&manager.status());
        }
        if stopped.recv_timeout(CHECK_INTERVAL) != Err(RecvTimeoutError::Timeout) {
            return listeners;
        }
    }
}

/// What is to be retried at `now`; schedules the next retry of it.
fn due(
    waiting: &[Waiting],
    schedules: &mut BTreeMap<WaitingObject, Schedule>,
    now: Instant,
) -> BTreeSet<WaitingObject> {
    let addresses = ports::addresses();
    let mut due = BTreeSet::new();
    for one in waiting {
        let schedule = schedules
            .entry(one.what.clone())
            .or_insert_with(|| Schedule {
                next: now + FIRST,
                pause: FIRST,
                observed: None,
                questions: Queries::default(),
            });
        // A retry would get no response either, and abandon one more thread.
        let Ok(observed) = Observed::of(one, &addresses, &schedule.questions) else {
            continue;
        };
        let before = schedule.observed.as_ref();
        let has_changed = before.is_some_and(|before| *before != observed);
        schedule.observed = Some(observed);
        if has_changed {
            schedule.pause = FIRST / 2;
        }
        if has_changed || now >= schedule.next {
            schedule.pause = (schedule.pause * 2).min(LONGEST);
            schedule.next = now + schedule.pause;
            due.insert(one.what.clone());
        }
    }
    due
}

impl Observed {
    fn of(
        waiting: &Waiting,
        addresses: &[IpAddr],
        questions: &Queries,
    ) -> Result<Self, QueryTimeout> {
        let Some(path) = waiting.path.clone() else {
            return Ok(Self::Addresses(addresses.to_vec()));
        };
        let name = Arc::from(path.display().to_string());
        let metadata = questions.ask(&name, QUERY_TIMEOUT, move || fs::metadata(path).ok())?;
        let metadata = metadata.map(|it| (it.dev(), it.ino(), it.mode(), it.ctime()));
        Ok(Self::File(metadata))
    }
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::*;
    use crate::waits::WaitReason;

    #[test]
    fn pauses_grow_until_file_appears() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("disk");
        let waiting = [Waiting {
            what: WaitingObject::Namespace {
                nqn: "nqn".into(),
                nsid: 1,
            },
            path: Some(path.clone()),
            waits: WaitReason {
                why: "no such file".into(),
                since: SystemTime::now(),
            },
        }];
        let (start, mut schedules) = (Instant::now(), BTreeMap::new());
        let mut tried = Vec::new();
        for second in 0..100 {
            let now = start + Duration::from_secs(second);
            if !due(&waiting, &mut schedules, now).is_empty() {
                tried.push(second);
            }
        }
        assert_eq!(tried, [1, 3, 7, 15, 31, 61, 91]);
        fs::write(&path, "").unwrap();
        let now = start + Duration::from_secs(100);
        assert_eq!(due(&waiting, &mut schedules, now).len(), 1, "immediately");
        let soon = |seconds: u64| start + Duration::from_secs(100 + seconds);
        assert!(due(&waiting, &mut schedules, soon(0)).is_empty());
        assert_eq!(
            due(&waiting, &mut schedules, soon(1)).len(),
            1,
            "and soon again"
        );
    }
}
