//! Asymmetric namespace access (Base 2.2, 8.1.1): groups of namespaces, and in
//! which state a port reaches each of them.

use nvmeof_wire::log::ana::AnaState;

use super::build::wrong;
use super::{Location, ModelError, Namespace, NamespaceState, Port};

/// Highest configurable group, as in Linux' target.
pub(crate) const MAX_GROUP: u32 = 128;

/// The group of namespaces whose backing store was not available when the target started.
/// It is not configurable, so that configured groups keep their states. Base 2.2, 8.1.1.2:
/// a controller reports each namespace in one group. This group is in state Inaccessible on
/// every port, in which a host waits for the namespace. When its backing store opens, the
/// namespace moves to its configured group.
pub(crate) const ABSENT_GROUP: u32 = MAX_GROUP + 1;

/// The default group.
pub const DEFAULT_ANA_GROUP: u32 = 1;

/// The state of an ANA group on a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AnaGroup {
    /// Its number, from 1.
    pub id: u32,
    /// Its state.
    pub state: AnaState,
}

impl Port {
    /// The state of a group on this port.
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
    /// The group that is reported at present.
    #[must_use]
    pub fn group(&self) -> u32 {
        match self.state {
            NamespaceState::Absent => ABSENT_GROUP,
            _ => self.ana_group,
        }
    }
}

/// Checks the groups of port `at`, and sorts them.
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
pub(super) fn check(location: Location, key: &'static str, group: u32) -> Result<u32, ModelError> {
    if (1..=MAX_GROUP).contains(&group) {
        return Ok(group);
    }
    let why = format!("must be 1 to {MAX_GROUP}");
    Err(wrong(location, key, group, &why))
}
