//! The thread that tries what was not there at the start again: with pauses that grow,
//! and at once when a file or an address shows up.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::net::IpAddr;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nvmeof_backend_spec::{ANSWERING, NoAnswer, Questions};

use crate::ports;
use crate::served::{Awaits, Manager, Waiting};
use nvmeof_target_config::ConfigError;

/// The first pause; each is twice the one before.
pub const FIRST: Duration = Duration::from_secs(1);
/// The longest pause.
pub const LONGEST: Duration = Duration::from_secs(30);
/// How often it is looked whether a file or an address showed up.
const LOOK: Duration = Duration::from_millis(500);
/// How long the thread may take to end.
const AT_THE_END: Duration = Duration::from_millis(500);

/// A listener that is tried as well. Says whether it listens now.
pub type Listener = Box<dyn FnMut(&Arc<Manager>) -> bool + Send>;

/// Tries until it is dropped, or nothing is waited for any more.
pub struct Retry {
    stop: Option<Sender<()>>,
    /// Gives the listeners back, which listen until they are dropped.
    thread: JoinHandle<Listeners>,
}

/// Listeners by their keys.
pub type Listeners = Vec<(&'static str, Listener)>;

/// When something is tried next.
struct Turn {
    next: Instant,
    pause: Duration,
    sign: Option<Sign>,
    /// Asks for the sign: a file system that hangs holds up nothing else.
    questions: Questions,
}

/// What can be seen of it without trying: when it is another, trying is worth it.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Sign {
    /// A file: device, inode, permissions, and when these changed.
    File(Option<(u64, u64, u32, i64)>),
    /// The addresses of the machine.
    Addresses(Vec<IpAddr>),
}

/// The listener of that key, which `listen` makes. It is there as long as what tries it.
pub fn later<T: Send + 'static>(
    key: &'static str,
    mut listen: impl FnMut() -> Result<Option<T>, ConfigError> + Send + 'static,
) -> (&'static str, Listener) {
    let mut there = None;
    let listener: Listener = Box::new(move |manager| {
        let listening = listen();
        manager.listener_waits(key, listening.as_ref().err());
        if let Ok(listening) = listening {
            there = listening;
        }
        there.is_some()
    });
    (key, listener)
}

impl Retry {
    /// Of what `manager` waits for, and `listeners` by their keys. Logs what that is. After
    /// each change `tell` hears what is served.
    ///
    /// # Errors
    /// When there is no thread for that.
    pub fn start(
        manager: Arc<Manager>,
        listeners: Listeners,
        tell: fn(&str),
    ) -> std::io::Result<Self> {
        for Waiting { what, waits, .. } in manager.waiting() {
            tracing::warn!("waiting for {what}: {}; retrying", waits.why);
        }
        let (stop, stopped) = channel();
        let thread = std::thread::Builder::new()
            .name("retry".to_owned())
            .spawn(move || watch(&manager, listeners, &stopped, tell))?;
        let stop = Some(stop);
        Ok(Self { stop, thread })
    }
}

impl Drop for Retry {
    fn drop(&mut self) {
        self.stop = None;
        // One that waits for storage that hangs is left behind.
        let until = Instant::now() + AT_THE_END;
        while !self.thread.is_finished() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

fn watch(
    manager: &Arc<Manager>,
    mut listeners: Listeners,
    stopped: &Receiver<()>,
    tell: fn(&str),
) -> Listeners {
    let mut turns = BTreeMap::new();
    loop {
        let waiting = manager.waiting();
        if waiting.is_empty() {
            return listeners;
        }
        let due = due(&waiting, &mut turns, Instant::now());
        let mut changed = false;
        if !due.is_empty() {
            changed |= manager.retry(|what| due.contains(what));
            for (key, listener) in &mut listeners {
                changed |= due.contains(&Awaits::Listener(key)) && listener(manager);
            }
        }
        if changed {
            tell(&manager.status());
        }
        if stopped.recv_timeout(LOOK) != Err(RecvTimeoutError::Timeout) {
            return listeners;
        }
    }
}

/// What is to be tried at `now`, and when it will be again.
fn due(waiting: &[Waiting], turns: &mut BTreeMap<Awaits, Turn>, now: Instant) -> BTreeSet<Awaits> {
    let addresses = ports::addresses();
    let mut due = BTreeSet::new();
    for one in waiting {
        let turn = turns.entry(one.what.clone()).or_insert_with(|| Turn {
            next: now + FIRST,
            pause: FIRST,
            sign: None,
            questions: Questions::default(),
        });
        // A try would not be answered either, and leave one more thread behind.
        let Ok(sign) = Sign::of(one, &addresses, &turn.questions) else {
            continue;
        };
        let shows_up = turn.sign.as_ref().is_some_and(|seen| *seen != sign);
        turn.sign = Some(sign);
        if shows_up {
            turn.pause = FIRST / 2;
        }
        if shows_up || now >= turn.next {
            turn.pause = (turn.pause * 2).min(LONGEST);
            turn.next = now + turn.pause;
            due.insert(one.what.clone());
        }
    }
    due
}

impl Sign {
    fn of(
        waiting: &Waiting,
        addresses: &[IpAddr],
        questions: &Questions,
    ) -> Result<Self, NoAnswer> {
        let Some(path) = waiting.path.clone() else {
            return Ok(Self::Addresses(addresses.to_vec()));
        };
        let name = Arc::from(path.display().to_string());
        let seen = questions.ask(&name, ANSWERING, move || fs::metadata(path).ok())?;
        let seen = seen.map(|it| (it.dev(), it.ino(), it.mode(), it.ctime()));
        Ok(Self::File(seen))
    }
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::*;
    use crate::waits::Waits;

    #[test]
    fn pauses_grow_until_something_shows_up() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("disk");
        let waiting = [Waiting {
            what: Awaits::Namespace {
                nqn: "nqn".into(),
                nsid: 1,
            },
            path: Some(path.clone()),
            waits: Waits {
                why: "no such file".into(),
                since: SystemTime::now(),
            },
        }];
        let (start, mut turns) = (Instant::now(), BTreeMap::new());
        let mut tried = Vec::new();
        for second in 0..100 {
            let now = start + Duration::from_secs(second);
            if !due(&waiting, &mut turns, now).is_empty() {
                tried.push(second);
            }
        }
        assert_eq!(tried, [1, 3, 7, 15, 31, 61, 91]);
        fs::write(&path, "").unwrap();
        let now = start + Duration::from_secs(100);
        assert_eq!(due(&waiting, &mut turns, now).len(), 1, "at once");
        let soon = |seconds: u64| start + Duration::from_secs(100 + seconds);
        assert!(due(&waiting, &mut turns, soon(0)).is_empty());
        assert_eq!(
            due(&waiting, &mut turns, soon(1)).len(),
            1,
            "and soon again"
        );
    }
}
