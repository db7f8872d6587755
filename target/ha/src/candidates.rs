//! Candidates for a group: the gateways that may own it, the best one first.

use std::time::Duration;

use crate::config::GroupConfig;
use crate::observer::Liveness;
use crate::record::Group;
use crate::view::View;

/// Why a gateway is no candidate for any group.
pub(crate) fn exclusion(view: &View<'_>, name: &str) -> Option<String> {
    let Some(gateway) = view.record.gateways.get(name) else {
        return Some("not started".to_owned());
    };
    if gateway.drained {
        return Some("drained".to_owned());
    }
    if gateway.stopped || (view.is_me(name) && view.is_stopping) {
        return Some("stopped".to_owned());
    }
    if view.is_me(name) {
        return (!view.is_valid).then(|| "its own lease has lapsed".to_owned());
    }
    match view.observer.liveness(name) {
        Liveness::Expired(silence) => Some(expired(silence)),
        Liveness::Alive | Liveness::Unknown => {
            gateway.expired.then(|| "its lease has expired".to_owned())
        }
    }
}

/// Why a group needs another owner; `None` if its owner is alive.
pub(crate) fn vacancy(view: &View<'_>, group: &Group) -> Option<String> {
    let Some(owner) = &group.owner else {
        return Some("no owner".to_owned());
    };
    let name = &owner.gateway;
    let Some(gateway) = view.record.gateways.get(name) else {
        return Some(format!("gateway {name} was removed"));
    };
    if gateway.incarnation != owner.incarnation {
        return Some(format!("gateway {name} was restarted"));
    }
    if gateway.stopped {
        return Some(format!("gateway {name} was stopped"));
    }
    match view.observer.liveness(name) {
        Liveness::Expired(silence) if !view.is_me(name) => {
            Some(format!("gateway {name}: {}", expired(silence)))
        }
        _ => None,
    }
}

fn expired(silence: Duration) -> String {
    format!("no renewal for {:.1} s", silence.as_secs_f64())
}

/// How often this process of the gateway gave the group up.
pub(crate) fn failures(view: &View<'_>, group: &Group, name: &str) -> u32 {
    let present = view.record.gateways.get(name);
    match (group.failures.get(name), present) {
        (Some(failure), Some(gateway)) if failure.incarnation == gateway.incarnation => {
            failure.times
        }
        _ => 0,
    }
}

/// The candidates: the wished one, then by failures, then by priority.
pub(crate) fn ranked<'a>(view: &View<'_>, config: &'a GroupConfig, group: &Group) -> Vec<&'a str> {
    let names = config.gateways.iter().map(String::as_str);
    let mut names: Vec<&str> = names
        .filter(|name| exclusion(view, name).is_none())
        .collect();
    let is_wished = |name: &str| group.wish.as_ref().is_some_and(|it| it.gateway == name);
    names.sort_by_key(|name| (!is_wished(name), failures(view, group, name)));
    names
}
