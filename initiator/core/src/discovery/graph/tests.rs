//! Any referrals end, and the graph follows their changes.

use std::collections::{BTreeMap, BTreeSet};

use nvmeof_wire::Ascii;
use nvmeof_wire::log::discovery::TransportType;
use proptest::prelude::*;

use super::*;

fn unique() -> Nqn {
    Nqn::new("nqn.2026-11.org.example:finder").unwrap()
}

/// An entry whose address is a number.
fn entry(subtype: SubsystemType, addr: u32, subnqn: &Nqn) -> DiscoveryEntry {
    let mut entry = DiscoveryEntry::zeroed();
    entry.subtype = subtype;
    entry.trtype = TransportType::RDMA;
    entry.traddr = Ascii::new(&addr.to_string());
    entry.subnqn = subnqn.to_field();
    entry
}

fn referral(addr: u32) -> DiscoveryEntry {
    entry(SubsystemType::REFERRAL, addr, &Nqn::discovery())
}

fn subsystem(addr: u32) -> DiscoveryEntry {
    let name = format!("nqn.2026-11.org.example:{addr}");
    entry(SubsystemType::NVM, addr, &Nqn::new(&name).unwrap())
}

fn address_of(entry: &DiscoveryEntry) -> Option<u32> {
    entry.traddr.to_string().parse().ok()
}

fn new() -> DiscoveryGraph<u32> {
    DiscoveryGraph::new(0, Nqn::discovery())
}

/// Reads each service once, as `log` has it. Returns the addresses that were read.
fn read_all(graph: &mut DiscoveryGraph<u32>, log: impl Fn(u32) -> Vec<DiscoveryEntry>) -> Vec<u32> {
    let mut read = Vec::new();
    while let Some(step) = graph.poll() {
        let DiscoveryStep::Follow(service) = step else {
            panic!("left {step:?}");
        };
        assert!(read.len() < 1000, "endless");
        read.push(service.addr);
        graph.handle_log(&service.addr, log(service.addr), address_of);
    }
    read
}

fn limits(graph: &mut DiscoveryGraph<u32>) -> Vec<DiscoveryLimit> {
    std::iter::from_fn(|| graph.take_limit()).collect()
}

fn addresses(graph: &DiscoveryGraph<u32>) -> Vec<u32> {
    graph.entries().filter_map(address_of).collect()
}

#[test]
fn cycle_and_self_referral_are_read_once() {
    let mut graph = new();
    let read = read_all(&mut graph, |addr| {
        let current = entry(SubsystemType::CURRENT_DISCOVERY, addr + 100, &unique());
        vec![
            current,
            referral(addr),
            referral((addr + 1) % 3),
            subsystem(addr),
        ]
    });
    assert_eq!(read, [0, 1, 2]);
    assert_eq!(limits(&mut graph), []);
    let subsystems = graph
        .entries()
        .filter(|entry| entry.subtype == SubsystemType::NVM);
    assert_eq!(subsystems.count(), 3);
}

#[test]
fn service_is_the_same_under_both_of_its_names() {
    let mut graph = new();
    let read = read_all(&mut graph, |_| {
        vec![entry(SubsystemType::REFERRAL, 0, &unique())]
    });
    assert_eq!(read, [0]);
}

#[test]
fn endless_chain_ends_with_one_warning() {
    let mut graph = new();
    let read = read_all(&mut graph, |addr| vec![referral(addr + 1), subsystem(addr)]);
    assert_eq!(read, (0..9).collect::<Vec<_>>());
    assert_eq!(limits(&mut graph), [DiscoveryLimit::Depth]);
    // Reading it again is no news.
    graph.handle_log(&8, vec![referral(10), referral(11)], address_of);
    assert_eq!(limits(&mut graph), []);
    assert_eq!(graph.poll(), None);
}

#[test]
fn too_many_referrals_end_with_one_warning() {
    let mut graph = new();
    let read = read_all(&mut graph, |addr| {
        (0..50).map(|n| referral(addr * 50 + n)).collect()
    });
    assert_eq!(read.len(), 64);
    assert_eq!(limits(&mut graph), [DiscoveryLimit::Services]);
}

#[test]
fn entries_are_bounded_and_those_of_near_services_are_kept() {
    let many = |count: u32, first| (first..first + count).map(subsystem).collect::<Vec<_>>();
    let mut graph = new();
    assert!(matches!(graph.poll(), Some(DiscoveryStep::Follow(service))
        if service.max_entries == MAX_ENTRIES));
    let mut log = many(10_000, 0);
    log.push(referral(1));
    graph.handle_log(&0, log, address_of);
    assert!(matches!(graph.poll(), Some(DiscoveryStep::Follow(service))
        if service.max_entries == MAX_ENTRIES / 4));
    graph.handle_log(&1, many(10_000, 20_000), address_of);
    assert_eq!(graph.entries().count(), 16 << 10);
    assert_eq!(limits(&mut graph), [DiscoveryLimit::Entries]);
    let changes = graph.handle_log(&0, many(16 << 10, 0), address_of);
    assert!(addresses(&graph).iter().all(|addr| *addr < 16 << 10));
    assert!(!changes.is_empty());
    assert_eq!(graph.poll(), Some(DiscoveryStep::Leave(1)));
}

#[test]
fn referral_with_another_name_is_connected_again() {
    let mut graph = new();
    graph.poll();
    graph.handle_log(&0, vec![referral(1)], address_of);
    graph.poll();
    graph.handle_log(&1, vec![subsystem(1)], address_of);
    let renamed = entry(SubsystemType::REFERRAL, 1, &unique());
    let changes = graph.handle_log(&0, vec![renamed], address_of);
    assert!(changes.contains(&EntryChange::Removed(Box::new(subsystem(1)))));
    assert_eq!(graph.poll(), Some(DiscoveryStep::Leave(1)));
    assert!(matches!(graph.poll(), Some(DiscoveryStep::Follow(service))
        if service.subnqn == unique()));
}

#[test]
fn invalid_referrals_are_not_followed() {
    let mut unnamed = referral(1);
    unnamed.subnqn = [0; 256];
    let mut elsewhere = referral(1);
    elsewhere.traddr = Ascii::new("over there");
    let mut graph = new();
    let read = read_all(&mut graph, |_| vec![unnamed, elsewhere]);
    assert_eq!(read, [0]);
    assert_eq!(graph.entries().count(), 2, "they are reported");
}

/// The services that can be reached, without limits.
fn reachable(logs: &BTreeMap<u32, Vec<u32>>) -> BTreeSet<u32> {
    let mut found = BTreeSet::from([0]);
    let mut open = vec![0];
    while let Some(addr) = open.pop() {
        for other in logs.get(&addr).into_iter().flatten() {
            if found.insert(*other) {
                open.push(*other);
            }
        }
    }
    found
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// For any graph, each service is read at most once, and their number is bounded.
    #[test]
    fn reading_ends_for_any_referrals(factor in 0u32..200, add in 0u32..200, wide in 0u32..40) {
        let mut graph = new();
        let read = read_all(&mut graph, |addr| {
            let next = |n: u32| addr.wrapping_mul(factor).wrapping_add(add).wrapping_add(n);
            (0..wide).map(|n| referral(next(n))).collect()
        });
        prop_assert!(read.len() <= MAX_SERVICES);
        prop_assert_eq!(read.iter().collect::<BTreeSet<_>>().len(), read.len());
        prop_assert!(limits(&mut graph).len() <= 2);
    }

    /// Whatever log pages change into, the followed services are those that can be reached, the
    /// entries are theirs, and the changes lead from the old entries to the new ones.
    #[test]
    fn followed_services_and_entries_are_those_that_can_be_reached(
        updates in proptest::collection::vec(
            (0u32..8, proptest::collection::vec(0u32..8, 0..4)), 0..40
        ),
    ) {
        let mut graph = new();
        let mut logs = BTreeMap::<u32, Vec<u32>>::new();
        let mut followed = BTreeSet::new();
        let mut known = BTreeSet::new();
        for (addr, referrals) in updates {
            while let Some(step) = graph.poll() {
                let is_new = match step {
                    DiscoveryStep::Follow(service) => followed.insert(service.addr),
                    DiscoveryStep::Leave(addr) => {
                        logs.remove(&addr);
                        followed.remove(&addr)
                    }
                };
                prop_assert!(is_new, "{:?}", step);
            }
            prop_assert_eq!(&followed, &reachable(&logs));
            let log: Vec<_> = referrals.iter().map(|addr| referral(*addr)).collect();
            if followed.contains(&addr) {
                logs.insert(addr, referrals);
            }
            for change in graph.handle_log(&addr, log, address_of) {
                match change {
                    EntryChange::Added(entry) => {
                        prop_assert!(known.insert(address_of(&entry).unwrap()));
                    }
                    EntryChange::Removed(entry) => {
                        prop_assert!(known.remove(&address_of(&entry).unwrap()));
                    }
                    EntryChange::Changed(entry) => prop_assert!(false, "{:?}", entry),
                }
            }
            prop_assert_eq!(&known, &addresses(&graph).into_iter().collect());
            let reached = reachable(&logs);
            let reported = reached.iter().filter_map(|addr| logs.get(addr)).flatten();
            prop_assert_eq!(&known, &reported.copied().collect());
        }
        prop_assert_eq!(limits(&mut graph), []);
    }
}

/// The nearest service that reports an entry counts: what it may name depends on where it is.
#[test]
fn entries_have_the_service_that_reports_them() {
    let mut graph = new();
    read_all(&mut graph, |addr| match addr {
        0 => vec![referral(1), subsystem(7)],
        _ => vec![subsystem(7), subsystem(8)],
    });
    assert_eq!(graph.source_of(&subsystem(7)), Some(&0));
    assert_eq!(graph.source_of(&subsystem(8)), Some(&1));
    assert_eq!(graph.source_of(&subsystem(9)), None);
}

/// A service that repeats referrals, or names more than can be followed, takes no more memory.
#[test]
fn repeated_and_too_many_referrals_are_kept_once_and_up_to_the_limit() {
    let mut graph = new();
    let read = read_all(&mut graph, |addr| match addr {
        0 => (0..1000).map(|at| referral(1 + at % 3)).collect(),
        _ => Vec::new(),
    });
    assert_eq!(read, [0, 1, 2, 3]);
    let mut graph = new();
    let read = read_all(&mut graph, |addr| match addr {
        0 => (1..=1000).map(referral).collect(),
        _ => Vec::new(),
    });
    assert_eq!(read.len(), MAX_SERVICES);
    assert_eq!(limits(&mut graph), [DiscoveryLimit::Services]);
    assert!(
        graph
            .services
            .values()
            .all(|node| node.referrals.len() <= MAX_SERVICES + 1)
    );
}
