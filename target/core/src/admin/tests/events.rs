//! Asynchronous Event Request (Base 2.1, 5.1.2).

use nvmeof_wire::admin::{Cns, GetFeatures, GetLogPage, LogId, Select, SetFeatures, bare};
use nvmeof_wire::aer::AsyncEvent;
use nvmeof_wire::features::{AsyncEventConfig, FeatureId};
use nvmeof_wire::identify::IdentifyController;
use nvmeof_wire::log::smart::CriticalWarning;
use nvmeof_wire::log::{ChangedNamespaces, DiscoveryPage, ErrorEntry, SmartLog};
use nvmeof_wire::nvm::{DatasetManagement, DsmRange};
use nvmeof_wire::opcode::admin::ASYNC_EVENT_REQUEST;
use nvmeof_wire::registers::Cc;
use nvmeof_wire::{Nqn, Sqe, Status};
use zerocopy::{FromBytes, IntoBytes};

use super::discovery;
use crate::controller::notices::MASK_TIME;
use crate::testing::{
    CLOSED, Host, Outcome, SUBNQN, apply, change_a_namespace, closed, connect_data_of, keyed,
    subsystem, target,
};
use crate::{Action, Event, Executed, FollowUps, NamespaceState, Order, Request, Revision, Target};

fn request() -> Sqe {
    bare(ASYNC_EVENT_REQUEST)
}

pub(crate) fn event(host: &mut Host) -> Option<AsyncEvent> {
    match host.queue.poll(host.now)? {
        Order::Respond(response) => {
            assert_eq!(response.cqe.status(), Status::SUCCESS);
            Some(AsyncEvent::from_dword(response.cqe.dw0()))
        }
        other => panic!("{other:?}"),
    }
}

pub(crate) fn changed(page: &[u8]) -> Vec<u32> {
    let page = ChangedNamespaces::read_from_bytes(page).unwrap();
    page.iter().collect()
}

pub(crate) fn enable(host: &mut Host, events: AsyncEventConfig) {
    let set = SetFeatures::new(FeatureId::ASYNC_EVENT_CONFIG, events.bits());
    assert_eq!(host.plain(set.to_sqe()).status(), Status::SUCCESS);
}

pub(crate) fn hold(host: &mut Host) {
    let outcome = host.run(request(), &[], &[]);
    assert!(matches!(outcome, Outcome::Held), "{outcome:?}");
}

#[test]
fn event_requests_are_held_up_to_the_limit() {
    let (mut host, _) = Host::admin(&target());
    for _ in 0..4 {
        hold(&mut host);
    }
    assert_eq!(
        host.plain(request()).status(),
        Status::ASYNC_EVENT_LIMIT_EXCEEDED
    );
    assert!(event(&mut host).is_none());
    // A reset drops them.
    host.set_cc(0);
    host.set_cc(Cc::ENABLE.0);
    hold(&mut host);
}

#[test]
fn changed_namespace_is_reported_once_until_the_log_is_read() {
    let target = target();
    let (mut host, _) = Host::admin(&target);
    enable(&mut host, AsyncEventConfig::NSAN);
    hold(&mut host);
    hold(&mut host);
    // Other subsystems cause no event.
    let mut other = closed();
    other.namespaces[0].blocks += 1;
    let _ = apply(&target, &[subsystem(), other]);
    assert_eq!(event(&mut host), None);
    change_a_namespace(&target);
    change_a_namespace(&target);
    assert_eq!(event(&mut host), Some(AsyncEvent::NAMESPACE_CHANGED));
    change_a_namespace(&target);
    assert_eq!(event(&mut host), None);
    let mut page = GetLogPage::new(LogId::CHANGED_NAMESPACES, 0, 0, 4096);
    page.retain_event = true;
    let completion = host.read(page.to_sqe(), 4096);
    assert_eq!(changed(&completion.data), [1]);
    assert_eq!(event(&mut host), None);
    page.retain_event = false;
    let completion = host.read(page.to_sqe(), 4096);
    assert_eq!(changed(&completion.data), [1]);
    let completion = host.read(page.to_sqe(), 4096);
    assert_eq!(changed(&completion.data), []);
    change_a_namespace(&target);
    assert_eq!(event(&mut host), Some(AsyncEvent::NAMESPACE_CHANGED));
}

#[test]
fn pending_event_completes_the_next_request() {
    let target = target();
    let (mut host, _) = Host::admin(&target);
    enable(&mut host, AsyncEventConfig::NSAN);
    change_a_namespace(&target);
    assert_eq!(event(&mut host), None);
    let _ = host.queue.take_follow_ups();
    hold(&mut host);
    assert!(host.queue.take_follow_ups().contains(FollowUps::POLL));
    assert!(event(&mut host).is_some());
}

#[test]
fn disabled_events_are_not_reported() {
    let target = target();
    let (mut host, _) = Host::admin(&target);
    hold(&mut host);
    change_a_namespace(&target);
    assert_eq!(event(&mut host), None);
}

#[test]
fn crossing_a_temperature_threshold_is_an_event() {
    let (mut host, _) = Host::admin(&target());
    enable(&mut host, AsyncEventConfig::SMART_TEMPERATURE);
    hold(&mut host);
    let set = |kelvin| SetFeatures::new(FeatureId::TEMPERATURE_THRESHOLD, kelvin).to_sqe();
    host.plain(set(400));
    assert_eq!(event(&mut host), None);
    host.plain(set(200));
    assert_eq!(event(&mut host), Some(AsyncEvent::TEMPERATURE));
}

#[test]
fn discovery_log_change_is_an_event() {
    let target = target();
    let mut host = discovery(&target);
    enable(&mut host, AsyncEventConfig::DLPCN | AsyncEventConfig::NSAN);
    hold(&mut host);
    change_a_namespace(&target);
    assert_eq!(event(&mut host), None);
    // A subsystem that only another host may connect to causes none.
    let _ = apply(&target, &[subsystem()]);
    assert_eq!(event(&mut host), None);
    let _ = apply(&target, &[]);
    assert_eq!(event(&mut host), Some(AsyncEvent::DISCOVERY_CHANGED));
}

fn smart(host: &mut Host) -> CriticalWarning {
    let completion = host.read(GetLogPage::new(LogId::SMART, 0, 0, 512).to_sqe(), 512);
    let page = SmartLog::read_from_bytes(&completion.data).unwrap();
    page.critical_warning()
}

fn storage_is(target: &Target, state: NamespaceState) {
    let revision = Revision {
        nqn: Nqn::new(SUBNQN).unwrap(),
        nsid: 1,
        store: 11,
        blocks: 1000,
        preferred: crate::Preferred::default(),
        state,
    };
    let applied = target.apply(target.model().revised(&[revision])).unwrap();
    assert_eq!(applied.changes.len(), 1);
}

/// SMART / Health Information, Critical Warning bit 2: "any internal error that
/// degrades NVM subsystem reliability".
#[test]
fn lost_backing_store_is_a_critical_warning_and_an_event() {
    let target = target();
    let (mut host, _) = Host::admin(&target);
    let (mut deaf, _) = Host::admin(&target);
    let data = connect_data_of("nqn.2026-11.org.example:friend", 0xffff);
    let mut elsewhere = data;
    elsewhere.subnqn = Nqn::new(CLOSED).unwrap().to_field();
    let (mut elsewhere, _) = Host::admin_with(&target, 0, &elsewhere);
    for host in [&mut host, &mut elsewhere] {
        enable(host, AsyncEventConfig::SMART_RELIABILITY);
        hold(host);
    }
    hold(&mut deaf);
    assert_eq!(smart(&mut host), CriticalWarning::empty());
    storage_is(&target, NamespaceState::Faulted);
    assert_eq!(event(&mut host), Some(AsyncEvent::RELIABILITY));
    assert_eq!(smart(&mut host), CriticalWarning::NDR);
    // The event is sent once, when the condition begins.
    hold(&mut host);
    enable(&mut host, AsyncEventConfig::SMART_RELIABILITY);
    assert_eq!(event(&mut host), None);
    assert_eq!((event(&mut deaf), event(&mut elsewhere)), (None, None));
    assert_eq!(smart(&mut elsewhere), CriticalWarning::empty());
    // Enabling the event reports an existing condition.
    enable(&mut deaf, AsyncEventConfig::SMART_RELIABILITY);
    assert_eq!(event(&mut deaf), Some(AsyncEvent::RELIABILITY));
    storage_is(&target, NamespaceState::Ready);
    assert_eq!(smart(&mut host), CriticalWarning::empty());
    assert_eq!(event(&mut host), None);
    storage_is(&target, NamespaceState::Faulted);
    assert_eq!(event(&mut host), Some(AsyncEvent::RELIABILITY));
}

/// Identify Controller, WCTEMP and CCTEMP: "shall report a non-zero value in this field".
/// No temperature warning until a host sets another threshold.
#[test]
fn temperature_is_below_the_warning_threshold() {
    let (mut host, _) = Host::admin(&target());
    let id = host.identify(Cns::CONTROLLER, 0);
    let id = IdentifyController::read_from_bytes(&id.data).ok().unwrap();
    let page = host.read(GetLogPage::new(LogId::SMART, 0, 0, 512).to_sqe(), 512);
    let smart = SmartLog::read_from_bytes(&page.data).unwrap();
    let over = GetFeatures {
        fid: FeatureId::TEMPERATURE_THRESHOLD,
        select: Select::Default,
        cdw11: 0,
        nsid: 0,
    };
    let over = host.plain(over.to_sqe()).result();
    assert_eq!((id.wctemp.get(), over), (0x157, 0x157));
    assert!(smart.ctemp.get() < id.wctemp.get() && id.wctemp.get() < id.cctemp.get());
    assert_eq!(smart.critical_warning(), CriticalWarning::empty());
}

/// "Greater than or equal to an over temperature threshold; or less than or equal
/// to an under temperature threshold" (25 degrees Celsius are 298 K).
#[test]
fn temperature_at_threshold_is_critical() {
    let (mut host, _) = Host::admin(&target());
    let set =
        |sel: u32, kelvin| SetFeatures::new(FeatureId::TEMPERATURE_THRESHOLD, sel << 20 | kelvin);
    // Each row: over or under, the threshold, whether it is critical.
    for (sel, kelvin, critical) in [
        (0, 299, false),
        (0, 298, true),
        (0, 0xffff, false),
        (1, 297, false),
        (1, 298, true),
    ] {
        host.plain(set(sel, kelvin).to_sqe());
        let warned = smart(&mut host) == CriticalWarning::TTC;
        assert_eq!(warned, critical, "{sel} {kelvin}");
    }
}

/// "A transient error occurred that is specific to a particular set of commands
/// and controller operation may continue without a reset".
#[test]
fn internal_error_event_cannot_be_disabled() {
    let (mut host, mut queue) = Host::ready(&target());
    hold(&mut host);
    let mut trim = |outcome| {
        queue.outcomes = vec![outcome];
        let command = DatasetManagement {
            nsid: 1,
            ranges: 1,
            deallocate: true,
        };
        let _ = queue.queue.take_follow_ups();
        let completion = queue.write(command.to_sqe(), DsmRange::new(0, 8).as_bytes());
        (completion.status(), queue.queue.take_follow_ups())
    };
    assert_eq!(trim(Executed::Gone).0, Status::NAMESPACE_NOT_READY);
    assert_eq!(event(&mut host), None);
    let (status, follow_ups) = trim(Executed::Failed);
    assert_eq!(status, Status::INTERNAL_ERROR);
    assert!(follow_ups.contains(FollowUps::CALL));
    assert_eq!(event(&mut host), Some(AsyncEvent::TRANSIENT_ERROR));
    hold(&mut host);
    for _ in 0..2 {
        let follow_ups = trim(Executed::Failed).1;
        assert!(
            !follow_ups.contains(FollowUps::CALL),
            "there is nothing to report"
        );
    }
    assert_eq!(event(&mut host), None, "until the page is read");
    host.read(GetLogPage::new(LogId::ERROR, 0, 0, 64).to_sqe(), 64);
    assert_eq!(event(&mut host), None, "its page covered both");
    assert!(trim(Executed::Failed).1.contains(FollowUps::CALL));
    let again = trim(Executed::Failed).1;
    assert!(!again.contains(FollowUps::CALL), "it is known");
    assert_eq!(event(&mut host), Some(AsyncEvent::TRANSIENT_ERROR));
}

/// A host is notified of changes of its own discovery log only.
#[test]
fn log_change_of_another_host_is_not_reported() {
    let target = target();
    let of = |name: &str| {
        let mut data = connect_data_of(name, 0xffff);
        data.subnqn = Nqn::discovery().to_field();
        let mut host = Host::admin_with(&target, 0, &data).0;
        enable(&mut host, AsyncEventConfig::DLPCN);
        hold(&mut host);
        host
    };
    let read = |host: &mut Host| {
        let page = GetLogPage::new(LogId::DISCOVERY, 0, 0, 4096);
        let completion = host.read(page.to_sqe(), 4096);
        let page = DiscoveryPage::parse(&completion.data).unwrap();
        (page.header.genctr.get(), page.entries.len())
    };
    let mut stranger = of("nqn.2026-11.org.example:stranger");
    let mut friend = of("nqn.2026-11.org.example:friend");
    assert_eq!((read(&mut stranger), read(&mut friend)), ((1, 1), (1, 2)));
    let _ = apply(&target, &[subsystem()]);
    assert_eq!(event(&mut stranger), None);
    assert_eq!(event(&mut friend), Some(AsyncEvent::DISCOVERY_CHANGED));
    assert_eq!((read(&mut stranger), read(&mut friend)), ((1, 1), (2, 1)));
}

/// Base 2.1, 5.1.2: "subsequent events of that event type are automatically masked by the
/// controller until the host clears that event".
#[test]
fn notice_is_sent_after_the_previous_page_is_read() {
    let target = target();
    let (mut host, _) = Host::admin(&target);
    enable(
        &mut host,
        AsyncEventConfig::NSAN | AsyncEventConfig::ANACN | AsyncEventConfig::SMART_RELIABILITY,
    );
    for _ in 0..3 {
        hold(&mut host);
    }
    let change = |target: &Target, group| {
        let mut spec = subsystem();
        spec.namespaces[0].ana_group = group;
        let _ = apply(target, &[spec, closed()]);
    };
    change(&target, 2);
    assert_eq!(event(&mut host), Some(AsyncEvent::NAMESPACE_CHANGED));
    let _ = host.queue.take_follow_ups();
    assert_eq!(event(&mut host), None);
    assert!(host.queue.take_follow_ups().contains(FollowUps::DEADLINE));
    assert_eq!(host.queue.next_deadline(), Some(host.now + MASK_TIME));
    // An event of another type does not wait.
    storage_is(&target, NamespaceState::Faulted);
    assert_eq!(event(&mut host), Some(AsyncEvent::RELIABILITY));
    // Retaining the event clears nothing.
    let mut page = GetLogPage::new(LogId::CHANGED_NAMESPACES, 0, 0, 4096);
    page.retain_event = true;
    host.read(page.to_sqe(), 4096);
    assert_eq!(event(&mut host), None);
    page.retain_event = false;
    let mut sqe = page.to_sqe();
    sqe.dptr = keyed(4096).to_descriptor();
    let mut request = Request::default();
    let sqe = sqe.to_bytes();
    let action = host.queue.begin(host.now, &sqe, &mut request);
    assert!(matches!(action, Action::Produce { .. }), "{action:?}");
    assert_eq!(event(&mut host), None, "it is not read yet");
    let _ = host.queue.take_follow_ups();
    let room = Event::Buffer(&mut [0; 4096]);
    let _ = host.queue.step(host.now, &mut request, room);
    assert!(host.queue.take_follow_ups().contains(FollowUps::POLL));
    assert_eq!(event(&mut host), Some(AsyncEvent::ANA_CHANGED));
    // Its page is not read: it masks others for a while.
    hold(&mut host);
    storage_is(&target, NamespaceState::Ready);
    assert_eq!(event(&mut host), None);
    host.now += MASK_TIME;
    assert_eq!(event(&mut host), Some(AsyncEvent::NAMESPACE_CHANGED));
    // Without a request there is no deadline.
    let page = GetLogPage::new(LogId::CHANGED_NAMESPACES, 0, 0, 4096);
    host.read(page.to_sqe(), 4096);
    change(&target, 1);
    assert_eq!(host.queue.next_deadline(), None);
    hold(&mut host);
    assert_eq!(host.queue.next_deadline(), Some(host.now + MASK_TIME));
}

/// Base 2.1, 3.7.2: a reset ends what was begun; the host enables events anew.
#[test]
fn reset_drops_pending_events() {
    let target = target();
    let (mut host, _) = Host::admin(&target);
    enable(&mut host, AsyncEventConfig::NSAN);
    let mut spec = subsystem();
    spec.namespaces[0].ana_group = 2;
    let _ = apply(&target, &[spec, closed()]);
    host.set_cc(0);
    host.set_cc(Cc::ENABLE.0);
    enable(&mut host, AsyncEventConfig::SMART_RELIABILITY);
    for _ in 0..2 {
        hold(&mut host);
    }
    assert_eq!(event(&mut host), None);
    storage_is(&target, NamespaceState::Faulted);
    assert_eq!(event(&mut host), Some(AsyncEvent::RELIABILITY));
    assert_eq!(event(&mut host), None);
}

/// Base 2.1, 5.1.25.1.5: without Endurance Groups their notice is refused. Others that
/// cannot happen here, and reserved bits, are not enabled.
#[test]
fn impossible_events_are_refused_or_ignored() {
    let (mut host, _) = Host::admin(&target());
    let mut set = |bits: u32| {
        let set = SetFeatures::new(FeatureId::ASYNC_EVENT_CONFIG, bits);
        host.plain(set.to_sqe()).status()
    };
    let groups = AsyncEventConfig::EGEALPCN.bits();
    let kept = AsyncEventConfig::NSAN.bits();
    assert_eq!(set(kept), Status::SUCCESS);
    assert_eq!(
        set(groups | AsyncEventConfig::ANACN.bits()),
        Status::INVALID_FIELD
    );
    let get = GetFeatures {
        fid: FeatureId::ASYNC_EVENT_CONFIG,
        select: Select::Current,
        cdw11: 0,
        nsid: 0,
    };
    assert_eq!(host.plain(get.to_sqe()).result(), kept.into());
    let read = GetLogPage::new(LogId::ERROR, 0, 0, 64).to_sqe();
    let entry = ErrorEntry::read_from_bytes(&host.read(read, 64).data).unwrap();
    assert_eq!(entry.parameter(), Some((45, 6)));
    let all = SetFeatures::new(FeatureId::ASYNC_EVENT_CONFIG, !groups);
    assert_eq!(host.plain(all.to_sqe()).status(), Status::SUCCESS);
    let enabled = host.plain(get.to_sqe()).result();
    assert_eq!(
        enabled, 0x30_091f,
        "SMART, namespaces, asymmetric access, resets and lost hosts"
    );
}
