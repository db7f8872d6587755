//! Discovery services that refer to others, change, or violate the protocol.
#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "tests"
)]

use std::time::Duration;

use crate::fake::{SUBNQN, refused};
use crate::host::{Target, host};
use nvmeof_initiator::discovery::{
    ConnectAllOptions, DiscoveryChange, DiscoveryOptions, DiscoveryWatch, EntryOutcome,
};
use nvmeof_initiator::multipath::ReconnectOptions;
use nvmeof_initiator::{Address, Error, Nqn};
use nvmeof_wire::aer::AsyncEvent;
use nvmeof_wire::cm::RejectStatus;
use nvmeof_wire::fabrics::InvalidParameter;
use nvmeof_wire::identify::ControllerType;
use nvmeof_wire::log::DiscoveryEntry;
use nvmeof_wire::log::discovery::{
    AddressFamily, RdmaProviderType, RdmaTsas, SubsystemType, TransportType,
};
use nvmeof_wire::{Ascii, Status};

const SECOND: Duration = Duration::from_secs(1);
/// No test takes longer.
const TIMEOUT: Duration = Duration::from_secs(60);

fn entry(subtype: SubsystemType, addr: Address, subnqn: &str) -> DiscoveryEntry {
    let addr = addr.socket_addr().unwrap();
    let mut entry = DiscoveryEntry::zeroed();
    entry.trtype = TransportType::RDMA;
    entry.adrfam = AddressFamily::IPV4;
    entry.subtype = subtype;
    entry.traddr = Ascii::new(&addr.ip().to_string());
    entry.trsvcid = Ascii::new(&addr.port().to_string());
    entry.subnqn = Nqn::new(subnqn).unwrap().to_field();
    entry.tsas = RdmaTsas::connected(RdmaProviderType::IWARP);
    entry
}

fn referral(addr: Address) -> DiscoveryEntry {
    let name = Nqn::discovery();
    entry(SubsystemType::REFERRAL, addr, name.as_str())
}

fn subsystem(addr: Address, subnqn: &str) -> DiscoveryEntry {
    entry(SubsystemType::NVM, addr, subnqn)
}

/// A target whose discovery log page has these entries and reports its changes.
fn service(entries: Vec<DiscoveryEntry>) -> Target {
    let target = Target::start();
    set(&target, entries);
    target.change(|fake| fake.discovery.notifies = true);
    target
}

fn set(target: &Target, entries: Vec<DiscoveryEntry>) {
    target.change(move |fake| {
        fake.discovery.generation += 1;
        fake.discovery.entries = entries;
    });
}

fn notify(target: &Target) {
    assert!(target.change(|fake| fake.notify(AsyncEvent::DISCOVERY_CHANGED)));
}

fn reads(target: &Target) -> usize {
    target.change(|fake| fake.discovery.reads)
}

async fn watch(target: &Target) -> DiscoveryWatch {
    let options = DiscoveryOptions::default();
    host().watch_discovery(target.addr, options).await.unwrap()
}

async fn next(watch: &mut DiscoveryWatch) -> DiscoveryChange {
    let next = tokio::time::timeout(TIMEOUT, watch.next()).await;
    next.unwrap().unwrap()
}

async fn assert_added(watch: &mut DiscoveryWatch, expected: &DiscoveryEntry) {
    match next(watch).await {
        DiscoveryChange::Added(entry) => assert_eq!(*entry, *expected),
        other => panic!("{other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn referrals_in_a_cycle_are_read_once_and_merged() {
    let [first, second] = [service(Vec::new()), service(Vec::new())];
    let shared = subsystem(first.addr, SUBNQN);
    let own = subsystem(second.addr, "nqn.2026-11.org.example:other");
    let refers = [referral(first.addr), referral(second.addr)];
    set(&first, [refers.as_slice(), &[shared]].concat());
    set(&second, [refers.as_slice(), &[shared, own]].concat());
    let found = host()
        .discover_all(first.addr, &DiscoveryOptions::default())
        .await
        .unwrap();
    let addrs: Vec<_> = found.services.iter().map(|one| one.addr).collect();
    assert_eq!(addrs, [first.addr, second.addr]);
    assert!(found.services.iter().all(|one| one.generation.is_ok()));
    let of = |subtype| {
        found
            .entries
            .iter()
            .filter(move |one| one.subtype == subtype)
    };
    assert_eq!(of(SubsystemType::NVM).count(), 2);
    assert_eq!(of(SubsystemType::REFERRAL).count(), 2);

    let alone = DiscoveryOptions {
        follows_referrals: false,
        ..DiscoveryOptions::default()
    };
    let found = host().discover_all(first.addr, &alone).await.unwrap();
    assert_eq!(found.services.len(), 1);
}

/// Each service refers to the next one.
#[tokio::test(flavor = "multi_thread")]
async fn long_chain_of_referrals_is_cut() {
    let services: Vec<_> = (0..12).map(|_| service(Vec::new())).collect();
    for pair in services.windows(2) {
        set(&pair[0], vec![referral(pair[1].addr)]);
    }
    let options = DiscoveryOptions::default();
    let found = host().discover_all(services[0].addr, &options).await;
    assert_eq!(found.unwrap().services.len(), 9);
}

#[tokio::test(flavor = "multi_thread")]
async fn unusable_referrals_do_not_fail_the_others() {
    let absent = Target::start().addr;
    let refusing = service(Vec::new());
    refusing.change(|fake| fake.manners.connect = refused(InvalidParameter::InData(256)));
    let mut tcp = referral(refusing.addr);
    tcp.trtype = TransportType::TCP;
    let named = entry(
        SubsystemType::REFERRAL,
        refusing.addr,
        "nqn.2026-11.org.example:finder",
    );
    let root = service(vec![tcp, referral(absent), named]);
    let found = host()
        .discover_all(root.addr, &DiscoveryOptions::default())
        .await
        .unwrap();
    let error = |addr| {
        let service = found.services.iter().find(|one| one.addr == addr);
        service.unwrap().generation.clone().unwrap_err().to_string()
    };
    assert!(error(absent).contains("nothing listens"));
    let text = error(refusing.addr);
    assert!(
        text.contains("no subsystem `nqn.2026-11.org.example:finder`"),
        "{text}"
    );
    assert_eq!((found.services.len(), found.entries.len()), (3, 3));

    let error = host()
        .discover_all(absent, &DiscoveryOptions::default())
        .await;
    assert!(error.is_err(), "the service that was asked for");
}

#[tokio::test(flavor = "multi_thread")]
async fn watch_reports_changes_after_a_notice() {
    let target = service(Vec::new());
    let [first, second] =
        [SUBNQN, "nqn.2026-11.org.example:other"].map(|name| subsystem(target.addr, name));
    set(&target, vec![first]);
    let mut watch = watch(&target).await;
    assert_added(&mut watch, &first).await;
    set(&target, vec![second]);
    notify(&target);
    match next(&mut watch).await {
        DiscoveryChange::Removed(entry) => assert_eq!(*entry, first),
        other => panic!("{other:?}"),
    }
    assert_added(&mut watch, &second).await;
    let mut moved = second;
    moved.portid = 7.into();
    set(&target, vec![moved]);
    notify(&target);
    match next(&mut watch).await {
        DiscoveryChange::Changed(entry) => assert_eq!(*entry, moved),
        other => panic!("{other:?}"),
    }
    assert_eq!(watch.entries().count(), 1);
}

/// The page is read again, and nothing is reported.
#[tokio::test(flavor = "multi_thread")]
async fn notice_without_a_change_is_no_change() {
    let target = service(vec![]);
    let mut watch = watch(&target).await;
    let before = reads(&target);
    notify(&target);
    let silence = tokio::time::timeout(TIMEOUT, async {
        tokio::select! {
            change = watch.next() => panic!("{change:?}"),
            () = until(|| reads(&target) > before) => {}
        }
    });
    silence.await.unwrap();
    let added = subsystem(target.addr, SUBNQN);
    set(&target, vec![added]);
    notify(&target);
    assert_added(&mut watch, &added).await;
}

/// Waits until the condition holds; the time limit is that of the test.
async fn until(mut condition: impl FnMut() -> bool) {
    while !condition() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn watch_follows_and_leaves_referrals() {
    let other = service(Vec::new());
    let disk = subsystem(other.addr, SUBNQN);
    set(&other, vec![disk]);
    let refers = referral(other.addr);
    let root = service(vec![refers]);
    let mut watch = watch(&root).await;
    assert_added(&mut watch, &refers).await;
    assert_added(&mut watch, &disk).await;
    assert_eq!(watch.services().count(), 2);
    set(&root, Vec::new());
    notify(&root);
    for _ in 0..2 {
        assert!(matches!(
            next(&mut watch).await,
            DiscoveryChange::Removed(_)
        ));
    }
    assert_eq!(watch.services().collect::<Vec<_>>(), [root.addr]);
    let closed = until(|| other.change(|fake| fake.connections()) == 0);
    tokio::time::timeout(TIMEOUT, closed).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn lost_service_keeps_its_entries_and_missed_changes_follow() {
    let target = service(Vec::new());
    let [first, second] =
        [SUBNQN, "nqn.2026-11.org.example:other"].map(|name| subsystem(target.addr, name));
    set(&target, vec![first]);
    let mut watch = watch(&target).await;
    assert_added(&mut watch, &first).await;
    let full = Some((0, RejectStatus::NO_RESOURCES));
    target.change(move |fake| {
        fake.manners.reject = full;
        fake.hang_up();
    });
    match next(&mut watch).await {
        DiscoveryChange::ServiceLost { addr, .. } => assert_eq!(addr, target.addr),
        other => panic!("{other:?}"),
    }
    assert_eq!(watch.entries().count(), 1);
    set(&target, vec![first, second]);
    target.change(|fake| fake.manners.reject = None);
    let recovered = next(&mut watch).await;
    assert!(matches!(
        recovered,
        DiscoveryChange::ServiceRecovered { .. }
    ));
    assert_added(&mut watch, &second).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn referral_to_a_subsystem_with_namespaces_is_given_up() {
    let other = service(Vec::new());
    other.change(|fake| fake.discovery.cntrltype = ControllerType::IO);
    let refers = entry(SubsystemType::REFERRAL, other.addr, SUBNQN);
    let root = service(vec![refers]);
    let mut watch = watch(&root).await;
    assert_added(&mut watch, &refers).await;
    let lost = next(&mut watch).await;
    assert!(
        matches!(&lost, DiscoveryChange::ServiceLost { error, .. }
        if error.to_string().contains("not a discovery subsystem")),
        "{lost:?}"
    );
    let given_up = next(&mut watch).await;
    assert!(
        matches!(given_up, DiscoveryChange::ServiceGivenUp { addr, .. }
        if addr == other.addr)
    );
    // The other service is still watched.
    set(&root, Vec::new());
    notify(&root);
    let removed = next(&mut watch).await;
    assert!(
        matches!(removed, DiscoveryChange::Removed(_)),
        "{removed:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn watch_ends_when_all_services_are_given_up() {
    let target = service(Vec::new());
    let options = DiscoveryOptions {
        reconnect: ReconnectOptions {
            ctrl_loss: Some(SECOND / 5),
            ..ReconnectOptions::default()
        },
        ..DiscoveryOptions::default()
    };
    let addr = target.addr;
    let mut watch = host().watch_discovery(addr, options).await.unwrap();
    drop(target);
    let lost = next(&mut watch).await;
    assert!(
        matches!(lost, DiscoveryChange::ServiceLost { .. }),
        "{lost:?}"
    );
    let given_up = next(&mut watch).await;
    assert!(matches!(given_up, DiscoveryChange::ServiceGivenUp { .. }));
    assert!(watch.next().await.is_none());

    let error = host()
        .watch_discovery(addr, DiscoveryOptions::default())
        .await
        .unwrap_err();
    assert!(matches!(error, Error::Lost(_)), "{error}");
}

/// The generation counter changes with each command. The service is read at a low rate, and its
/// changes are reported when it is stable.
#[tokio::test(flavor = "multi_thread")]
async fn log_that_changes_on_every_read_neither_spins_nor_ends_the_watch() {
    let target = service(Vec::new());
    let mut watch = watch(&target).await;
    let disk = subsystem(target.addr, SUBNQN);
    set(&target, vec![disk]);
    let before = reads(&target);
    target.change(|fake| fake.discovery.is_restless = true);
    notify(&target);
    // Two attempts with ten tries of three commands each.
    let reading = tokio::time::timeout(TIMEOUT, async {
        tokio::select! {
            change = watch.next() => panic!("{change:?}"),
            () = until(|| reads(&target) >= before + 31) => {}
        }
    });
    let start = std::time::Instant::now();
    reading.await.unwrap();
    assert!(start.elapsed() >= SECOND, "{:?}", start.elapsed());
    target.change(|fake| fake.discovery.is_restless = false);
    assert_added(&mut watch, &disk).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn cancelled_wait_loses_no_change() {
    let target = service(Vec::new());
    let mut watch = watch(&target).await;
    let disk = subsystem(target.addr, SUBNQN);
    set(&target, vec![disk]);
    notify(&target);
    let added = async {
        loop {
            // Shorter than the read.
            let wait = tokio::time::timeout(Duration::from_micros(10), watch.next());
            if let Ok(change) = wait.await {
                return change;
            }
        }
    };
    let change = tokio::time::timeout(TIMEOUT, added).await.unwrap();
    assert!(matches!(change, Some(DiscoveryChange::Added(entry)) if *entry == disk));
}

#[tokio::test(flavor = "multi_thread")]
async fn dropped_watch_disconnects() {
    let target = service(Vec::new());
    let watch = watch(&target).await;
    assert_eq!(target.change(|fake| fake.connections()), 1);
    drop(watch);
    let closed = until(|| target.change(|fake| fake.connections()) == 0);
    tokio::time::timeout(TIMEOUT, closed).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn service_without_notices_is_read_at_intervals() {
    let target = service(Vec::new());
    target.change(|fake| fake.discovery.notifies = false);
    let options = DiscoveryOptions {
        interval: SECOND,
        ..DiscoveryOptions::default()
    };
    let mut watch = host().watch_discovery(target.addr, options).await.unwrap();
    let disk = subsystem(target.addr, SUBNQN);
    set(&target, vec![disk]);
    assert_added(&mut watch, &disk).await;
}

/// Its entries are followed, although it has no persistent controllers.
#[tokio::test(flavor = "multi_thread")]
async fn service_that_refuses_a_keep_alive_timeout_is_read_at_intervals() {
    let of_nvmet = (Status::INVALID_FIELD.with_dnr(), 0);
    let named = refused(InvalidParameter::InCommand(48)).unwrap();
    for refusal in [of_nvmet, named] {
        let target = service(Vec::new());
        target.change(move |fake| fake.manners.keep_alive = Some(refusal));
        let options = DiscoveryOptions {
            interval: SECOND,
            ..DiscoveryOptions::default()
        };
        let mut watch = host().watch_discovery(target.addr, options).await.unwrap();
        let disk = subsystem(target.addr, SUBNQN);
        set(&target, vec![disk]);
        assert_added(&mut watch, &disk).await;
        let full = Some((0, RejectStatus::NO_RESOURCES));
        target.change(move |fake| fake.manners.reject = full);
        let lost = next(&mut watch).await;
        assert!(
            matches!(lost, DiscoveryChange::ServiceLost { .. }),
            "{lost:?}"
        );
        target.change(|fake| fake.manners.reject = None);
        let recovered = next(&mut watch).await;
        assert!(
            matches!(recovered, DiscoveryChange::ServiceRecovered { .. }),
            "{recovered:?}"
        );
    }
}

/// Another refusal does not lead to reads without a Keep Alive Timeout.
#[tokio::test(flavor = "multi_thread")]
async fn service_that_refuses_the_host_is_not_watched() {
    let target = service(Vec::new());
    let refusal = (Status::CONNECT_INVALID_HOST.with_dnr(), 0);
    target.change(move |fake| fake.manners.keep_alive = Some(refusal));
    let options = DiscoveryOptions::default();
    let error = host().watch_discovery(target.addr, options).await;
    let error = error.unwrap_err().to_string();
    assert!(error.contains("is not allowed"), "{error}");
    assert_eq!(reads(&target), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn connect_all_uses_all_paths_and_names_the_others() {
    let second = Target::start();
    second.change(|fake| fake.persona.cntlid = 2);
    let absent = Target::start().addr;
    let lonely = "nqn.2026-11.org.example:lonely";
    let root = service(Vec::new());
    let mut tcp = subsystem(root.addr, SUBNQN);
    tcp.trtype = TransportType::TCP;
    let entries = vec![
        subsystem(root.addr, SUBNQN),
        subsystem(second.addr, SUBNQN),
        subsystem(absent, SUBNQN),
        tcp,
        subsystem(absent, lonely),
        referral(second.addr),
    ];
    set(&root, entries);
    second.change(|fake| fake.discovery.entries.clear());
    let options = ConnectAllOptions::default();
    let all = host().connect_all(root.addr, &options).await.unwrap();
    let [disk, other] = all.subsystems.as_slice() else {
        panic!("{:?}", all.subsystems);
    };
    assert_eq!(
        (disk.subnqn.as_str(), other.subnqn.as_str()),
        (SUBNQN, lonely)
    );
    let outcome = |addr| {
        let mut entries = disk.entries.iter().map(|entry| &entry.outcome);
        entries.find(|outcome| match outcome {
            EntryOutcome::Connected(at) | EntryOutcome::Failed(at, _) => *at == addr,
            EntryOutcome::Skipped(_) => false,
        })
    };
    for addr in [root.addr, second.addr] {
        assert!(matches!(outcome(addr), Some(EntryOutcome::Connected(_))));
    }
    assert!(
        matches!(outcome(absent), Some(EntryOutcome::Failed(_, error))
        if error.to_string().contains("nothing listens"))
    );
    let skipped = |entry: &&nvmeof_initiator::discovery::SubsystemEntry| {
        matches!(entry.outcome, EntryOutcome::Skipped(_))
    };
    assert_eq!(disk.entries.iter().filter(skipped).count(), 1);
    let paths = disk.multipath.as_ref().unwrap().paths();
    assert_eq!(paths.iter().filter(|path| path.is_live).count(), 2);
    assert!(other.multipath.is_none());
    assert!(matches!(other.entries[0].outcome, EntryOutcome::Failed(..)));
    assert_eq!(all.services.len(), 2);
}
