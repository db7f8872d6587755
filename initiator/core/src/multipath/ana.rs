//! The ANA states that a path reports.

use std::collections::BTreeMap;

use nvmeof_wire::log::ana::AnaState;

use super::AnaLog;

/// The state of each ANA group, as a controller reports it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AnaGroups {
    /// Change count of the page.
    changes: u64,
    states: BTreeMap<u32, AnaState>,
}

impl AnaGroups {
    /// The states of a page.
    #[must_use]
    pub fn of(log: &AnaLog) -> Self {
        let states = log.groups.iter().map(|group| (group.id, group.state));
        Self {
            changes: log.changes,
            states: states.collect(),
        }
    }

    /// Change count of the page.
    #[must_use]
    pub fn changes(&self) -> u64 {
        self.changes
    }

    /// A command was refused because of the state of `group`, which the page does not have yet:
    /// the group counts as in state Change until the page is read again.
    pub fn refused(&mut self, group: u32) {
        if group != 0 {
            self.states.insert(group, AnaState::CHANGE);
        }
    }

    /// Whether namespaces of every group can be accessed.
    #[must_use]
    pub fn is_all_accessible(&self) -> bool {
        self.states.values().all(|state| state.is_accessible())
    }

    /// The state of namespaces in `group`; optimized for 0, the group of a namespace of a
    /// controller without ANA. A group that the page does not have is inaccessible.
    #[must_use]
    pub fn state(&self, group: u32) -> AnaState {
        match group {
            0 => AnaState::OPTIMIZED,
            group => {
                let state = self.states.get(&group).copied();
                state.unwrap_or(AnaState::INACCESSIBLE)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::multipath::AnaLogGroup;

    #[test]
    fn states_are_found_by_group() {
        let groups = [(1, AnaState::OPTIMIZED), (7, AnaState::CHANGE)].map(|(id, state)| {
            let nsids = Vec::new();
            AnaLogGroup {
                id,
                changes: 8,
                state,
                nsids,
            }
        });
        let parsed = AnaGroups::of(&AnaLog {
            changes: 9,
            groups: groups.to_vec(),
        });
        assert_eq!(parsed.changes(), 9);
        assert_eq!(parsed.state(1), AnaState::OPTIMIZED);
        assert_eq!(parsed.state(7), AnaState::CHANGE);
        assert_eq!(parsed.state(0), AnaState::OPTIMIZED);
        assert_eq!(parsed.state(2), AnaState::INACCESSIBLE);
        let mut refused = parsed;
        refused.refused(1);
        assert_eq!(refused.state(1), AnaState::CHANGE);
        assert!(!refused.is_all_accessible());
    }
}
