//! The registry of counters, and when entries are removed.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use nvmeof_wire::Nqn;

use super::tally::{Tally, Totals};

/// The counters of all reactors of a target. Clones share their state.
///
/// A host is removed some time after its last queue on any reactor was closed, or
/// immediately if there are too many such hosts: the one that left first. A namespace is
/// removed when it is no longer served. Either is removed for all reactors at the same
/// time, so that a sum over reactors increases or restarts from zero, and never loses the
/// part of one reactor.
#[derive(Clone, Debug)]
pub struct MetricsRegistry {
    state: Arc<Mutex<State>>,
}

/// The counters of one reactor. Clones share their state.
#[derive(Clone, Debug)]
pub struct ReactorMetrics {
    metrics_registry: MetricsRegistry,
    reactor: usize,
}

#[derive(Debug)]
struct State {
    namespaces: HashMap<(Nqn, u32), Entry>,
    hosts: HashMap<(Nqn, Nqn), Entry>,
    /// Sums of removed hosts for each reactor, by subsystem; `None` for all subsystems
    /// that are no longer served.
    forgotten: HashMap<Option<Nqn>, Vec<Totals>>,
    reactors: usize,
    /// Limit of hosts without queues that are kept.
    most_unused: usize,
    /// Counts uses of entries: the lowest value is the oldest use.
    clock: u64,
}

#[derive(Debug, Default)]
struct Entry {
    /// By reactor. Queues that count here hold a reference.
    tallies: Vec<Option<Arc<Tally>>>,
    /// When a queue was last added or closed.
    touched: u64,
    /// Since when no queue counts here.
    unused: Option<Duration>,
}

/// The subject of counters.
#[allow(
    clippy::large_enum_variant,
    reason = "created only when counters are read"
)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subject {
    /// Commands on I/O queues.
    Namespace {
        /// NQN of the subsystem.
        subsystem: Nqn,
        /// The namespace; 0 stands for commands with an NSID that the subsystem does not
        /// have, or with FFFFFFFFh.
        nsid: u32,
    },
    /// Commands of all queues.
    Host {
        /// NQN of the host.
        host: Nqn,
        /// NQN of the subsystem.
        subsystem: Nqn,
        /// Whether it has queues on any reactor.
        connected: bool,
    },
    /// Commands of removed hosts. Together with those of all other hosts, these are all
    /// commands of the reactor.
    Forgotten {
        /// NQN of the subsystem; `None` for all that are no longer served.
        subsystem: Option<Nqn>,
    },
}

/// The counters of one subject on one reactor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SubjectCounters {
    /// The subject.
    pub subject: Subject,
    /// The reactor.
    pub reactor: usize,
    /// The values.
    pub totals: Totals,
}

/// How long a host without queues is kept.
const REMEMBERED: Duration = Duration::from_secs(600);
/// Limit of hosts without queues that are kept.
pub(super) const MOST_UNUSED: usize = 128;

impl Default for MetricsRegistry {
    fn default() -> Self {
        Self::remembering(MOST_UNUSED)
    }
}

impl MetricsRegistry {
    /// A registry that keeps this many hosts without queues.
    pub(super) fn remembering(most_unused: usize) -> Self {
        let state = State {
            namespaces: HashMap::new(),
            hosts: HashMap::new(),
            forgotten: HashMap::new(),
            reactors: 0,
            most_unused,
            clock: 0,
        };
        Self {
            state: Arc::new(Mutex::new(state)),
        }
    }

    /// The counters of a reactor.
    #[must_use]
    pub fn reactor_metrics(&self, reactor: usize) -> ReactorMetrics {
        let reactors = &mut self.state().reactors;
        *reactors = reactor.saturating_add(1).max(*reactors);
        ReactorMetrics {
            metrics_registry: self.clone(),
            reactor,
        }
    }

    /// A snapshot of all counters of all reactors. `now` is the time of the caller;
    /// `serves` returns whether a subsystem has a namespace.
    #[must_use]
    pub fn read(&self, now: Duration, serves: &dyn Fn(&Nqn, u32) -> bool) -> Vec<SubjectCounters> {
        let mut state = self.state();
        state.forget(now, serves);
        let namespaces = state.namespaces.iter();
        let namespaces = namespaces
            .filter(|((subsystem, nsid), _)| serves(subsystem, *nsid))
            .flat_map(|((subsystem, nsid), entry)| {
                entry.counted(Subject::Namespace {
                    subsystem: *subsystem,
                    nsid: *nsid,
                })
            });
        let hosts = state.hosts.iter().flat_map(|((host, subsystem), entry)| {
            entry.counted(Subject::Host {
                host: *host,
                subsystem: *subsystem,
                connected: entry.is_used(),
            })
        });
        let forgotten = state.forgotten.iter().flat_map(|(subsystem, each)| {
            let each = each.iter().enumerate();
            each.map(|(reactor, totals)| SubjectCounters {
                subject: Subject::Forgotten {
                    subsystem: *subsystem,
                },
                reactor,
                totals: totals.clone(),
            })
        });
        namespaces.chain(hosts).chain(forgotten).collect()
    }

    /// The sum of all reactors for one namespace; zero if no queue used it.
    pub(crate) fn namespace(&self, subsystem: &Nqn, nsid: u32) -> Totals {
        let state = self.state();
        let mut totals = Totals::default();
        if let Some(entry) = state.namespaces.get(&(*subsystem, nsid)) {
            for (_, tally) in entry.tallies() {
                totals.add(tally);
            }
        }
        totals
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // A panic leaves no change half done.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Default for ReactorMetrics {
    /// For a single reactor.
    fn default() -> Self {
        MetricsRegistry::default().reactor_metrics(0)
    }
}

impl ReactorMetrics {
    /// Its registry.
    #[must_use]
    pub fn metrics_registry(&self) -> &MetricsRegistry {
        &self.metrics_registry
    }

    /// The counters of a namespace.
    pub(crate) fn namespace(&self, subsystem: Nqn, nsid: u32) -> Arc<Tally> {
        let mut state = self.metrics_registry.state();
        let at = state.tick();
        let entry = state.namespaces.entry((subsystem, nsid)).or_default();
        entry.take(self.reactor, at)
    }

    /// The counters of a host.
    pub(crate) fn host(&self, host: Nqn, subsystem: Nqn) -> Arc<Tally> {
        let mut state = self.metrics_registry.state();
        state.make_room(&(host, subsystem));
        let at = state.tick();
        let entry = state.hosts.entry((host, subsystem)).or_default();
        entry.take(self.reactor, at)
    }

    /// A queue of a host was closed.
    pub(crate) fn left(&self, host: Nqn, subsystem: Nqn) {
        let mut state = self.metrics_registry.state();
        let at = state.tick();
        if let Some(entry) = state.hosts.get_mut(&(host, subsystem)) {
            entry.touched = at;
        }
    }
}

impl State {
    fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    /// Makes room for a host. The number of hosts without queues is bounded, whatever names
    /// hosts use one after the other.
    fn make_room(&mut self, comes: &(Nqn, Nqn)) {
        if self.hosts.contains_key(comes) {
            return;
        }
        let unused = self.hosts.iter().filter(|(_, entry)| !entry.is_used());
        if unused.clone().count() >= self.most_unused {
            let longest = unused.min_by_key(|(_, entry)| entry.touched);
            let longest = longest.map(|(names, _)| *names);
            let gone = longest.and_then(|names| self.hosts.remove_entry(&names));
            if let Some(((_, subsystem), entry)) = gone {
                entry.add_to(sums(&mut self.forgotten, Some(subsystem), self.reactors));
            }
        }
    }

    fn forget(&mut self, now: Duration, serves: &dyn Fn(&Nqn, u32) -> bool) {
        self.namespaces
            .retain(|(subsystem, nsid), entry| entry.is_used() || serves(subsystem, *nsid));
        let forgotten = &mut self.forgotten;
        let reactors = self.reactors;
        self.hosts.retain(|(_, subsystem), entry| {
            let remembered = entry.is_remembered(now);
            if !remembered {
                entry.add_to(sums(forgotten, Some(*subsystem), reactors));
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

/// The sums of removed hosts of a subsystem.
fn sums(
    forgotten: &mut HashMap<Option<Nqn>, Vec<Totals>>,
    subsystem: Option<Nqn>,
    reactors: usize,
) -> &mut [Totals] {
    let each = forgotten.entry(subsystem).or_default();
    each.resize(reactors.max(each.len()), Totals::default());
    each
}

impl Entry {
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

    /// The counters of each reactor that counted here.
    fn tallies(&self) -> impl Iterator<Item = (usize, &Arc<Tally>)> {
        let all = self.tallies.iter().enumerate();
        all.filter_map(|(reactor, tally)| Some((reactor, tally.as_ref()?)))
    }

    fn counted(&self, subject: Subject) -> impl Iterator<Item = SubjectCounters> {
        self.tallies().map(move |(reactor, tally)| SubjectCounters {
            subject,
            reactor,
            totals: Totals::of(tally),
        })
    }

    /// Adds the values of each reactor to `sums`.
    fn add_to(&self, sums: &mut [Totals]) {
        for (reactor, tally) in self.tallies() {
            if let Some(sum) = sums.get_mut(reactor) {
                sum.add(tally);
            }
        }
    }

    /// Whether queues count here. New ones are added under the lock of the registry.
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
