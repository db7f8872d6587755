//! Asynchronous Event Request (Base 2.0, 5.2).

use nvmeof_wire::admin::{GetLogPage, LogId, SetFeatures, bare};
use nvmeof_wire::aer::AsyncEvent;
use nvmeof_wire::features::{AsyncEventConfig, FeatureId};
use nvmeof_wire::log::ChangedNamespaces;
use nvmeof_wire::opcode::admin::ASYNC_EVENT_REQUEST;
use nvmeof_wire::registers::Cc;
use nvmeof_wire::{Sqe, Status};
use zerocopy::FromBytes;

use super::discovery;
use crate::testing::{Host, Outcome, apply, change_a_namespace, closed, subsystem, target};
use crate::{News, Order};

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
fn requests_wait_up_to_the_limit() {
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
fn a_changed_namespace_is_told_once_until_the_log_is_read() {
    let target = target();
    let (mut host, _) = Host::admin(&target);
    enable(&mut host, AsyncEventConfig::NSAN);
    hold(&mut host);
    hold(&mut host);
    // Of another subsystem it hears nothing.
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
    let answer = host.read(page.to_sqe(), 4096);
    assert_eq!(changed(&answer.data), [1]);
    assert_eq!(event(&mut host), None);
    page.retain_event = false;
    let answer = host.read(page.to_sqe(), 4096);
    assert_eq!(changed(&answer.data), [1]);
    let answer = host.read(page.to_sqe(), 4096);
    assert_eq!(changed(&answer.data), []);
    change_a_namespace(&target);
    assert_eq!(event(&mut host), Some(AsyncEvent::NAMESPACE_CHANGED));
}

#[test]
fn an_event_that_came_first_answers_the_next_request() {
    let target = target();
    let (mut host, _) = Host::admin(&target);
    enable(&mut host, AsyncEventConfig::NSAN);
    change_a_namespace(&target);
    assert_eq!(event(&mut host), None);
    let _ = host.queue.take_news();
    hold(&mut host);
    assert!(host.queue.take_news().contains(News::POLL));
    assert!(event(&mut host).is_some());
}

#[test]
fn events_that_were_not_asked_for_are_not_told() {
    let target = target();
    let (mut host, _) = Host::admin(&target);
    hold(&mut host);
    change_a_namespace(&target);
    assert_eq!(event(&mut host), None);
}

#[test]
fn a_temperature_threshold_that_is_passed_is_an_event() {
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
fn discovery_controllers_tell_of_the_log() {
    let target = target();
    let mut host = discovery(&target);
    enable(&mut host, AsyncEventConfig::DLPCN | AsyncEventConfig::NSAN);
    hold(&mut host);
    change_a_namespace(&target);
    assert_eq!(event(&mut host), None);
    let _ = apply(&target, &[subsystem()]);
    assert_eq!(event(&mut host), Some(AsyncEvent::DISCOVERY_CHANGED));
}
