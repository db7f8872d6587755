//! Whose counters there are, and when they are forgotten.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use nvmeof_wire::Nqn;

use super::tally::{Tally, Totals};

/// What all reactors of a target counted. Clones are the same ledger.
///
/// A host is forgotten some time after its last queue went, wherever it was, and
/// at once when there are too many such: those first that left the longest ago. A
/// namespace is forgotten when it is not served any more. Either is forgotten on
/// all reactors at the same time, so that the sum over them goes up, or begins
/// again from zero, and never loses a part.
#[derive(Clone, Debug)]
pub struct MetricsRegistry {
    pages: Arc<Mutex<Pages>>,
}

/// The counters of one reactor. Clones are the same book.
#[derive(Clone, Debug)]
pub struct ReactorMetrics {
    metrics_registry: MetricsRegistry,
    reactor: usize,
}

#[derive(Debug)]
struct Pages {
    namespaces: HashMap<(Nqn, u32), Page>,
    hosts: HashMap<(Nqn, Nqn), Page>,
    /// What each reactor counted for hosts that are forgotten, by subsystem; together
    /// for those that are not served any more.
    forgotten: HashMap<Option<Nqn>, Vec<Totals>>,
    reactors: usize,
    /// Hosts that left and are remembered, at most.
    most_unused: usize,
    /// Counts what happens to pages, so that the lowest is the longest ago.
    clock: u64,
}

#[derive(Debug, Default)]
struct Page {
    /// Of each reactor, where it counts here. Its queues that do have it as well.
    tallies: Vec<Option<Arc<Tally>>>,
    /// When a queue came or went the last time.
    touched: u64,
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
        /// Whether it has queues, on whatever reactor.
        connected: bool,
    },
    /// Commands of hosts that are forgotten. With those of all others it is
    /// everything that the reactor did.
    Forgotten {
        /// Name of the subsystem; `None` stands for all that are not served any more.
        subsystem: Option<Nqn>,
    },
}

/// What was counted of one thing on one reactor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Counted {
    /// Of what.
    pub of: Of,
    /// On which reactor.
    pub reactor: usize,
    /// How much.
    pub totals: Totals,
}

/// How long a host is remembered that left.
const REMEMBERED: Duration = Duration::from_secs(600);
/// Hosts that left and are remembered, at most.
pub(super) const MOST_UNUSED: usize = 128;

impl Default for MetricsRegistry {
    fn default() -> Self {
        Self::remembering(MOST_UNUSED)
    }
}

impl MetricsRegistry {
    /// That remembers so many hosts that left.
    pub(super) fn remembering(most_unused: usize) -> Self {
        let pages = Pages {
            namespaces: HashMap::new(),
            hosts: HashMap::new(),
            forgotten: HashMap::new(),
            reactors: 0,
            most_unused,
            clock: 0,
        };
        Self {
            pages: Arc::new(Mutex::new(pages)),
        }
    }

    /// The book of a reactor.
    #[must_use]
    pub fn reactor_metrics(&self, reactor: usize) -> ReactorMetrics {
        let reactors = &mut self.pages().reactors;
        *reactors = reactor.saturating_add(1).max(*reactors);
        ReactorMetrics {
            metrics_registry: self.clone(),
            reactor,
        }
    }

    /// Everything that was counted, at one moment on all reactors. `now` is the
    /// time of whoever asks; `serves` says whether a subsystem has a namespace.
    #[must_use]
    pub fn read(&self, now: Duration, serves: &dyn Fn(&Nqn, u32) -> bool) -> Vec<Counted> {
        let mut pages = self.pages();
        pages.forget(now, serves);
        let namespaces = pages.namespaces.iter();
        let namespaces = namespaces
            .filter(|((subsystem, nsid), _)| serves(subsystem, *nsid))
            .flat_map(|((subsystem, nsid), page)| {
                page.counted(Of::Namespace {
                    subsystem: *subsystem,
                    nsid: *nsid,
                })
            });
        let hosts = pages.hosts.iter().flat_map(|((host, subsystem), page)| {
            page.counted(Of::Host {
                host: *host,
                subsystem: *subsystem,
                connected: page.is_used(),
            })
        });
        let forgotten = pages.forgotten.iter().flat_map(|(subsystem, each)| {
            let each = each.iter().enumerate();
            each.map(|(reactor, totals)| Counted {
                of: Of::Forgotten {
                    subsystem: *subsystem,
                },
                reactor,
                totals: totals.clone(),
            })
        });
        namespaces.chain(hosts).chain(forgotten).collect()
    }

    /// What all reactors counted of one namespace; nothing when no queue used it.
    pub(crate) fn namespace(&self, subsystem: &Nqn, nsid: u32) -> Totals {
        let pages = self.pages();
        let mut totals = Totals::default();
        if let Some(page) = pages.namespaces.get(&(*subsystem, nsid)) {
            for (_, tally) in page.tallies() {
                totals.add(tally);
            }
        }
        totals
    }

    fn pages(&self) -> MutexGuard<'_, Pages> {
        // Nothing is left half done when a holder panics.
        self.pages.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Default for ReactorMetrics {
    /// Of a reactor that is alone.
    fn default() -> Self {
        MetricsRegistry::default().reactor_metrics(0)
    }
}

impl ReactorMetrics {
    /// What it is a part of.
    #[must_use]
    pub fn metrics_registry(&self) -> &MetricsRegistry {
        &self.metrics_registry
    }

    /// Where commands in a namespace are counted.
    pub(crate) fn namespace(&self, subsystem: Nqn, nsid: u32) -> Arc<Tally> {
        let mut pages = self.metrics_registry.pages();
        let at = pages.tick();
        let page = pages.namespaces.entry((subsystem, nsid)).or_default();
        page.take(self.reactor, at)
    }

    /// Where commands of a host are counted.
    pub(crate) fn host(&self, host: Nqn, subsystem: Nqn) -> Arc<Tally> {
        let mut pages = self.metrics_registry.pages();
        pages.make_room(&(host, subsystem));
        let at = pages.tick();
        let page = pages.hosts.entry((host, subsystem)).or_default();
        page.take(self.reactor, at)
    }

    /// A queue of a host goes.
    pub(crate) fn left(&self, host: Nqn, subsystem: Nqn) {
        let mut pages = self.metrics_registry.pages();
        let at = pages.tick();
        if let Some(page) = pages.hosts.get_mut(&(host, subsystem)) {
            page.touched = at;
        }
    }
}

impl Pages {
    fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    /// Makes room for a host. Whatever names hosts give themselves, one after the
    /// other, they are few.
    fn make_room(&mut self, comes: &(Nqn, Nqn)) {
        if self.hosts.contains_key(comes) {
            return;
        }
        let unused = self.hosts.iter().filter(|(_, page)| !page.is_used());
        if unused.clone().count() >= self.most_unused {
            let longest = unused.min_by_key(|(_, page)| page.touched);
            let longest = longest.map(|(names, _)| *names);
            let gone = longest.and_then(|names| self.hosts.remove_entry(&names));
            if let Some(((_, subsystem), page)) = gone {
                page.add_to(sums(&mut self.forgotten, Some(subsystem), self.reactors));
            }
        }
    }

    fn forget(&mut self, now: Duration, serves: &dyn Fn(&Nqn, u32) -> bool) {
        self.namespaces
            .retain(|(subsystem, nsid), page| page.is_used() || serves(subsystem, *nsid));
        let forgotten = &mut self.forgotten;
        let reactors = self.reactors;
        self.hosts.retain(|(_, subsystem), page| {
            let remembered = page.is_remembered(now);
            if !remembered {
                page.add_to(sums(forgotten, Some(*subsystem), reactors));
            }
            remembered
        });
        let is_gone = |subsystem: &Option<Nqn>, _: &mut Vec<Totals>| {
            subsystem.is_some_and(|subsystem| !serves(&subsystem, 0))
        };
        let gone: Vec<_> = forgotten.extract_if(is_gone).collect();
        for (_, each) in gone {
            let together = sums(forgotten, None, reactors);
            for (sum, totals) in together.iter_mut().zip(each) {
                sum.merge(&totals);
            }
        }
    }
}

/// Where what hosts of a subsystem did is kept.
fn sums(
    forgotten: &mut HashMap<Option<Nqn>, Vec<Totals>>,
    subsystem: Option<Nqn>,
    reactors: usize,
) -> &mut [Totals] {
    let each = forgotten.entry(subsystem).or_default();
    each.resize(reactors.max(each.len()), Totals::default());
    each
}

impl Page {
    fn take(&mut self, reactor: usize, at: u64) -> Arc<Tally> {
        self.unused = None;
        self.touched = at;
        if self.tallies.len() <= reactor {
            self.tallies.resize(reactor.saturating_add(1), None);
        }
        let place = self.tallies.get_mut(reactor);
        place.map_or_else(Arc::default, |place| {
            Arc::clone(place.get_or_insert_default())
        })
    }

    /// The reactors that counted here, and what.
    fn tallies(&self) -> impl Iterator<Item = (usize, &Arc<Tally>)> {
        let all = self.tallies.iter().enumerate();
        all.filter_map(|(reactor, tally)| Some((reactor, tally.as_ref()?)))
    }

    fn counted(&self, of: Of) -> impl Iterator<Item = Counted> {
        self.tallies().map(move |(reactor, tally)| Counted {
            of,
            reactor,
            totals: Totals::of(tally),
        })
    }

    /// Adds what each reactor counted to what it has.
    fn add_to(&self, sums: &mut [Totals]) {
        for (reactor, tally) in self.tallies() {
            if let Some(sum) = sums.get_mut(reactor) {
                sum.add(tally);
            }
        }
    }

    /// Whether queues count here: new ones come under the lock of the ledger.
    fn is_used(&self) -> bool {
        self.tallies()
            .any(|(_, tally)| Arc::strong_count(tally) > 1)
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
