//! Reasons why a gateway may not join the others.

use crate::config::Config;
use crate::observer::{Liveness, Observer};
use crate::record::{ControllerIds, Gateway, Incarnation, MAX_GATEWAYS, Record, RecordError};

/// Why a gateway serves nothing. It names the object, the value, the rule and the remedy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// Another process has the same name and is alive.
    #[error(
        "gateway {name}: another process with this name is alive (incarnation {other}); names \
         must be unique; change one of them or stop the other process"
    )]
    Name {
        /// The name of both.
        name: String,
        /// The other process.
        other: Incarnation,
    },
    /// A later process with the same name has replaced this one.
    #[error(
        "gateway {name}: a later process with this name has replaced this one (incarnation \
         {other}); names must be unique; change one of them, then restart"
    )]
    Replaced {
        /// The name of both.
        name: String,
        /// The other process.
        other: Incarnation,
    },
    /// Ranges of controller identifiers overlap.
    #[error(
        "gateway {name}: controller identifiers {}-{} overlap with {}-{} of gateway {other}; \
         ranges must be disjoint; change the range of one of them",
        own.first, own.last, theirs.first, theirs.last
    )]
    ControllerIds {
        /// This gateway.
        name: String,
        /// Its range.
        own: ControllerIds,
        /// The other one.
        other: String,
        /// The range of the other one.
        theirs: ControllerIds,
    },
    /// A fact that must agree differs.
    #[error(
        "gateway {name}: {fact} {own:?} differs from {theirs:?} of gateway {other}; both must \
         agree; correct the configuration of one of them"
    )]
    Fact {
        /// This gateway.
        name: String,
        /// The name of the fact.
        fact: String,
        /// Its value; empty if it has none.
        own: String,
        /// The other gateway.
        other: String,
        /// The value of the other one.
        theirs: String,
    },
    /// No room.
    #[error(
        "gateway {0}: the record has {MAX_GATEWAYS} gateways, the maximum; remove one that no \
         longer exists"
    )]
    Full(String),
    /// The object was removed while gateways were running.
    #[error(
        "record was removed: its list of clients to fence is lost; stop all gateways, then start \
         them again"
    )]
    Removed,
    /// Contents that are no record.
    #[error(transparent)]
    Record(#[from] RecordError),
}

/// Why a gateway with this configuration may not join now.
pub(crate) fn refusal(config: &Config, record: &Record, observer: &Observer) -> Option<Refusal> {
    let name = &config.name;
    let is_present = |it: &str, gateway: &Gateway| {
        !gateway.stopped && !matches!(observer.liveness(it), Liveness::Expired(_))
    };
    if let Some(gateway) = record.gateways.get(name) {
        if is_present(name, gateway) && observer.liveness(name) == Liveness::Alive {
            let other = gateway.incarnation;
            let name = name.clone();
            return Some(Refusal::Name { name, other });
        }
    } else if record.gateways.len() >= MAX_GATEWAYS {
        return Some(Refusal::Full(name.clone()));
    }
    let others = record.gateways.iter();
    let mut others = others.filter(|(it, gateway)| *it != name && is_present(it, gateway));
    others.find_map(|(other, gateway)| conflict(config, other, gateway))
}

fn conflict(config: &Config, other: &str, gateway: &Gateway) -> Option<Refusal> {
    let (own, theirs) = (config.facts.controller_ids, gateway.facts.controller_ids);
    // 0 is no controller identifier (Base 2.1, 3.1.2).
    let first = own.first.max(theirs.first);
    if first > 0 && own.first <= theirs.last && theirs.first <= own.last {
        return Some(Refusal::ControllerIds {
            name: config.name.clone(),
            own,
            other: other.to_owned(),
            theirs,
        });
    }
    let (own, theirs) = (&config.facts.shared, &gateway.facts.shared);
    let fact = own
        .keys()
        .chain(theirs.keys())
        .find(|fact| own.get(*fact) != theirs.get(*fact))?;
    let value =
        |of: &std::collections::BTreeMap<String, String>| of.get(fact).cloned().unwrap_or_default();
    Some(Refusal::Fact {
        name: config.name.clone(),
        fact: fact.clone(),
        own: value(own),
        other: other.to_owned(),
        theirs: value(theirs),
    })
}
