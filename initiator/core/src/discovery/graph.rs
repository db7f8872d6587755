//! Discovery services that refer to each other: which of them to read, and their entries.
//!
//! Base 2.1, 5.1.12.3.1: an entry of subtype 01h refers to another discovery service. One of
//! subtype 03h is the service that returned the page, perhaps at another address: it is not
//! followed. Services may refer to each other, to themselves, or to ever new ones.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;

use nvmeof_wire::Nqn;
use nvmeof_wire::log::DiscoveryEntry;
use nvmeof_wire::log::discovery::SubsystemType;

use super::entries::{EntryChange, EntryId, EntrySet};
use super::reader::MAX_ENTRIES;

/// A discovery service at an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiscoveryService<A> {
    /// Its address.
    pub addr: A,
    /// Its NQN, which a referral may name.
    pub subnqn: Nqn,
    /// Maximum number of entries of its log page.
    pub max_entries: u64,
}

/// What to do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(
    clippy::large_enum_variant,
    reason = "a step is moved once; most are of the large variant"
)]
pub enum DiscoveryStep<A> {
    /// Read the log page of this service, and pass it to [`DiscoveryGraph::handle_log`].
    Follow(DiscoveryService<A>),
    /// No service refers to the one at this address any more: read it no longer.
    Leave(A),
}

/// A limit that referrals exceed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum DiscoveryLimit {
    /// The length of a chain of referrals.
    Depth,
    /// The number of services.
    Services,
    /// The number of entries of all log pages.
    Entries,
}

/// The discovery services that can be reached from one of them. `A` is the type of addresses.
/// A service is identified by its address alone: the well-known NQN and a unique NQN may be those
/// of the same service.
#[derive(Clone, Debug)]
pub struct DiscoveryGraph<A> {
    root: (A, Nqn),
    /// All of them can be reached.
    services: BTreeMap<A, Node<A>>,
    /// Of all services; of duplicates that of the service with the fewest referrals before it.
    entries: EntrySet,
    /// The service that reports each of them.
    sources: BTreeMap<EntryId, A>,
    steps: VecDeque<DiscoveryStep<A>>,
    /// Exceeded limits, and those of them that were not taken yet.
    exceeded: BTreeSet<DiscoveryLimit>,
    warnings: VecDeque<DiscoveryLimit>,
}

#[derive(Clone, Debug)]
struct Node<A> {
    subnqn: Nqn,
    log: Vec<DiscoveryEntry>,
    referrals: Vec<(A, Nqn)>,
}

/// The longest chain of referrals: sites have a central service or two that refer to targets.
const MAX_DEPTH: usize = 8;
/// Most services: each that is followed takes a connection and its memory.
const MAX_SERVICES: usize = 64;
/// Most entries of a service that was found by referral: a host trusts it less than the one that
/// it was given, and may read many at a time.
const MAX_REFERRED: u64 = MAX_ENTRIES / 4;

impl<A: Clone + Ord> DiscoveryGraph<A> {
    /// Starts with the service at `addr`.
    #[must_use]
    pub fn new(addr: A, subnqn: Nqn) -> Self {
        let mut graph = Self {
            root: (addr, subnqn),
            services: BTreeMap::new(),
            entries: EntrySet::default(),
            sources: BTreeMap::new(),
            steps: VecDeque::new(),
            exceeded: BTreeSet::new(),
            warnings: VecDeque::new(),
        };
        graph.walk();
        graph
    }

    /// The next step, in the order in which they are to be taken.
    pub fn poll(&mut self) -> Option<DiscoveryStep<A>> {
        self.steps.pop_front()
    }

    /// Takes the entries of the log page of the service at `addr`, which replace earlier ones.
    /// `address_of` returns the address of a referral, or `None` if it cannot be followed.
    /// Returns what changed in the entries of all services.
    pub fn handle_log(
        &mut self,
        addr: &A,
        log: Vec<DiscoveryEntry>,
        address_of: impl Fn(&DiscoveryEntry) -> Option<A>,
    ) -> Vec<EntryChange> {
        // A log page may arrive after the last referral to its service is gone.
        let Some(node) = self.services.get_mut(addr) else {
            return Vec::new();
        };
        let referrals = log
            .iter()
            .filter(|entry| entry.subtype == SubsystemType::REFERRAL);
        // One more than can be followed, so that the limit is reported.
        let (mut seen, mut followed) = (BTreeSet::new(), Vec::new());
        for entry in referrals {
            if let Ok(subnqn) = Nqn::from_field(&entry.subnqn)
                && let Some(addr) = address_of(entry)
                && seen.insert(addr.clone())
            {
                followed.push((addr, subnqn));
            }
            if followed.len() > MAX_SERVICES {
                break;
            }
        }
        node.referrals = followed;
        node.log = log;
        let nearest_first = self.walk();
        self.merge(&nearest_first)
    }

    /// The entries of all services, without duplicates. Those of a subsystem are consecutive.
    pub fn entries(&self) -> impl Iterator<Item = &DiscoveryEntry> {
        self.entries.iter()
    }

    /// The address of the service that reports `entry`: the nearest one, if several do.
    #[must_use]
    pub fn source_of(&self, entry: &DiscoveryEntry) -> Option<&A> {
        self.sources.get(&EntryId::of(entry))
    }

    /// A limit that was exceeded for the first time: further services or entries are left out.
    pub fn take_limit(&mut self) -> Option<DiscoveryLimit> {
        self.warnings.pop_front()
    }

    /// Determines which services can be reached. Returns their addresses, those with the fewest
    /// referrals before them first.
    fn walk(&mut self) -> Vec<A> {
        let mut before = std::mem::take(&mut self.services);
        let mut order = Vec::new();
        let (root, subnqn) = self.root.clone();
        let mut queue = VecDeque::from([(root, subnqn, 0)]);
        while let Some((addr, subnqn, depth)) = queue.pop_front() {
            if self.services.contains_key(&addr) {
                continue;
            }
            if depth > MAX_DEPTH {
                self.exceeds(DiscoveryLimit::Depth);
                continue;
            }
            if self.services.len() >= MAX_SERVICES {
                self.exceeds(DiscoveryLimit::Services);
                break;
            }
            let known = before.remove(&addr).filter(|node| {
                let is_same = node.subnqn == subnqn;
                if !is_same {
                    self.steps.push_back(DiscoveryStep::Leave(addr.clone()));
                }
                is_same
            });
            let node = known.unwrap_or_else(|| {
                let max_entries = if depth == 0 {
                    MAX_ENTRIES
                } else {
                    MAX_REFERRED
                };
                self.steps
                    .push_back(DiscoveryStep::Follow(DiscoveryService {
                        addr: addr.clone(),
                        subnqn,
                        max_entries,
                    }));
                Node {
                    subnqn,
                    log: Vec::new(),
                    referrals: Vec::new(),
                }
            });
            let referrals = node.referrals.iter().cloned();
            queue.extend(referrals.map(|(addr, subnqn)| (addr, subnqn, depth + 1)));
            order.push(addr.clone());
            self.services.insert(addr, node);
        }
        self.steps
            .extend(before.into_keys().map(DiscoveryStep::Leave));
        order
    }

    /// Merges the log pages of the services in that order.
    fn merge(&mut self, order: &[A]) -> Vec<EntryChange> {
        let mut merged = EntrySet::default();
        let mut sources = BTreeMap::new();
        let mut room = usize::try_from(MAX_ENTRIES).unwrap_or(usize::MAX);
        for addr in order {
            let Some(node) = self.services.get_mut(addr) else {
                continue;
            };
            let is_cut = node.log.len() > room;
            node.log.truncate(room);
            room -= node.log.len();
            for entry in &node.log {
                merged.insert(entry);
                let source = sources.entry(EntryId::of(entry));
                source.or_insert_with(|| addr.clone());
            }
            if is_cut {
                self.exceeds(DiscoveryLimit::Entries);
            }
        }
        let changes = self.entries.changes_to(&merged);
        self.entries = merged;
        self.sources = sources;
        changes
    }

    fn exceeds(&mut self, limit: DiscoveryLimit) {
        if self.exceeded.insert(limit) {
            self.warnings.push_back(limit);
        }
    }
}

impl fmt::Display for DiscoveryLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Depth => write!(
                f,
                "a chain of referrals has more than {MAX_DEPTH} discovery services; the others \
                 are left out"
            ),
            Self::Services => write!(
                f,
                "referrals name more than {MAX_SERVICES} discovery services; the others are left \
                 out"
            ),
            Self::Entries => write!(
                f,
                "the discovery log pages have more than {MAX_ENTRIES} entries in total; the \
                 others are left out"
            ),
        }
    }
}

#[cfg(test)]
mod tests;
