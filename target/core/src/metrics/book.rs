//! Whose counters there are on one reactor, and when they are forgotten.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use nvmeof_wire::Nqn;

use super::tally::{Tally, Totals};

/// The counters of one reactor. Clones are the same book.
///
/// A host is forgotten some time after its last queue on that reactor went, and
/// at once when there are too many such; a namespace when it is not served any
/// more.
#[derive(Clone, Debug, Default)]
pub struct Book {
    pages: Arc<Mutex<Pages>>,
}

#[derive(Debug, Default)]
struct Pages {
    namespaces: HashMap<(Nqn, u32), Page>,
    hosts: HashMap<(Nqn, Nqn), Page>,
    /// What was counted for hosts that are forgotten.
    forgotten: Totals,
    /// Counts the pages that were begun: the lowest is the oldest.
    begun: u64,
}

#[derive(Debug)]
struct Page {
    /// Queues that count here have it as well.
    tally: Arc<Tally>,
    begun: u64,
    /// Since when no queue was seen that counts here.
    unused: Option<Duration>,
}

/// Of what something was counted.
#[allow(
    clippy::large_enum_variant,
    reason = "made when somebody asks, and of names alone"
)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Of {
    /// Commands on I/O queues.
    Namespace {
        /// Name of the subsystem.
        subsystem: Nqn,
        /// The namespace; 0 stands for commands that name none of the
        /// subsystem, or all of them.
        nsid: u32,
    },
    /// Commands of all queues.
    Host {
        /// Name of the host.
        host: Nqn,
        /// Name of the subsystem.
        subsystem: Nqn,
        /// Whether it has queues on this reactor.
        connected: bool,
    },
    /// Commands of hosts that are forgotten. With those of all others it is
    /// everything that the reactor did.
    Forgotten,
}

/// What was counted of one thing on one reactor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Counted {
    /// Of what.
    pub of: Of,
    /// How much.
    pub totals: Totals,
}

/// How long a host is remembered that left.
const REMEMBERED: Duration = Duration::from_secs(600);
/// Hosts that left and are remembered, at most.
pub(super) const MOST_UNUSED: usize = 128;

impl Book {
    /// Where commands in a namespace are counted.
    pub(super) fn namespace(&self, subsystem: Nqn, nsid: u32) -> Arc<Tally> {
        let mut pages = self.pages();
        let begun = pages.next();
        let page = pages.namespaces.entry((subsystem, nsid));
        page.or_insert_with(|| Page::new(begun)).take()
    }

    /// Where commands of a host are counted.
    pub(super) fn host(&self, host: Nqn, subsystem: Nqn) -> Arc<Tally> {
        let mut pages = self.pages();
        pages.make_room();
        let begun = pages.next();
        let page = pages.hosts.entry((host, subsystem));
        page.or_insert_with(|| Page::new(begun)).take()
    }

    /// Everything that was counted. `now` is the time of whoever asks; `serves`
    /// says whether a subsystem has a namespace.
    #[must_use]
    pub fn read(&self, now: Duration, serves: &dyn Fn(&Nqn, u32) -> bool) -> Vec<Counted> {
        let mut pages = self.pages();
        pages.forget(now, serves);
        let namespaces = pages.namespaces.iter();
        let namespaces = namespaces
            .filter(|((subsystem, nsid), _)| serves(subsystem, *nsid))
            .map(|((subsystem, nsid), page)| Counted {
                of: Of::Namespace {
                    subsystem: *subsystem,
                    nsid: *nsid,
                },
                totals: Totals::of(&page.tally),
            });
        let hosts = pages.hosts.iter().map(|((host, subsystem), page)| Counted {
            of: Of::Host {
                host: *host,
                subsystem: *subsystem,
                connected: page.is_used(),
            },
            totals: Totals::of(&page.tally),
        });
        let forgotten = Counted {
            of: Of::Forgotten,
            totals: pages.forgotten.clone(),
        };
        namespaces.chain(hosts).chain([forgotten]).collect()
    }

    fn pages(&self) -> MutexGuard<'_, Pages> {
        // Nothing is left half done when a holder panics.
        self.pages.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Pages {
    fn next(&mut self) -> u64 {
        self.begun += 1;
        self.begun
    }

    /// Whatever names hosts give themselves, one after the other, they are few.
    fn make_room(&mut self) {
        let unused = self.hosts.iter().filter(|(_, page)| !page.is_used());
        if unused.clone().count() >= MOST_UNUSED {
            let oldest = unused.min_by_key(|(_, page)| page.begun);
            let oldest = oldest.map(|(names, _)| *names);
            if let Some(page) = oldest.and_then(|names| self.hosts.remove(&names)) {
                self.forgotten.add(&page.tally);
            }
        }
    }

    fn forget(&mut self, now: Duration, serves: &dyn Fn(&Nqn, u32) -> bool) {
        self.namespaces
            .retain(|(subsystem, nsid), page| page.is_used() || serves(subsystem, *nsid));
        let forgotten = &mut self.forgotten;
        self.hosts.retain(|_, page| {
            let remembered = page.is_remembered(now);
            if !remembered {
                forgotten.add(&page.tally);
            }
            remembered
        });
    }
}

impl Page {
    fn new(begun: u64) -> Self {
        Self {
            tally: Arc::default(),
            begun,
            unused: None,
        }
    }

    fn take(&mut self) -> Arc<Tally> {
        self.unused = None;
        Arc::clone(&self.tally)
    }

    /// Whether queues count here: new ones come under the lock of the book.
    fn is_used(&self) -> bool {
        Arc::strong_count(&self.tally) > 1
    }

    fn is_remembered(&mut self, now: Duration) -> bool {
        if self.is_used() {
            self.unused = None;
            return true;
        }
        let since = *self.unused.get_or_insert(now);
        now.saturating_sub(since) < REMEMBERED
    }
}
