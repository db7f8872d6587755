//! Asymmetric namespace access (Base 2.2, 8.1.1): groups of namespaces, and in
//! which state a port reaches each of them.

use nvmeof_wire::log::ana::AnaState;

use super::build::wrong;
use super::{Location, ModelError, Namespace, NamespaceState, Port};

/// Highest number of a group that a configuration may name. It is what Linux' own
/// target has.
pub(crate) const MAX_GROUP: u32 = 128;

/// The group of namespaces whose storage was not there when the target started: one
/// that no configuration names, so that those it does name keep their states. Base 2.2,
/// 8.1.1.2: a controller reports each namespace in one group. Every port reaches this
/// one in state Inaccessible, in which a host waits for the namespace; when its storage
/// opens the namespace goes to the group that it was given.
pub(crate) const ABSENT_GROUP: u32 = MAX_GROUP + 1;

/// The group of namespaces that were given none.
pub const DEFAULT_ANA_GROUP: u32 = 1;

/// A group of namespaces as a port reaches it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AnaGroup {
    /// Its number, from 1.
    pub id: u32,
    /// Its state.
    pub state: AnaState,
}

impl Port {
    /// In which state it reaches the group of that number.
    #[must_use]
    pub fn ana_state(&self, group: u32) -> AnaState {
        if group == ABSENT_GROUP {
            return AnaState::INACCESSIBLE;
        }
        let mut groups = self.ana_groups.iter();
        groups
            .find(|one| one.id == group)
            .map_or(AnaState::OPTIMIZED, |one| one.state)
    }
}

impl Namespace {
    /// The group in which hosts find it at the moment.
    #[must_use]
    pub fn group(&self) -> u32 {
        match self.state {
            NamespaceState::Absent => ABSENT_GROUP,
            _ => self.ana_group,
        }
    }
}

/// Checks the groups of port number `at`, and orders them by number.
pub(super) fn groups(at: usize, given: &[AnaGroup]) -> Result<Vec<AnaGroup>, ModelError> {
    for (n, one) in given.iter().enumerate() {
        check(Location::Port(at), "ana_group", one.id)?;
        if given.iter().take(n).any(|other| other.id == one.id) {
            let why = "the port has this group already";
            return Err(wrong(Location::Port(at), "ana_group", one.id, why));
        }
    }
    let mut groups = given.to_vec();
    groups.sort_by_key(|one| one.id);
    Ok(groups)
}

/// Base 2.2, 8.1.1.2: "a valid ANA Group Identifier is a non-zero value that is
/// less than or equal to ANAGRPMAX".
pub(super) fn check(place: Location, key: &'static str, group: u32) -> Result<u32, ModelError> {
    if (1..=MAX_GROUP).contains(&group) {
        return Ok(group);
    }
    let why = format!("must be 1 to {MAX_GROUP}");
    Err(wrong(place, key, group, &why))
}
