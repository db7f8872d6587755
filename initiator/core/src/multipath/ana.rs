//! The ANA states that a path reports.

use std::collections::BTreeMap;

use nvmeof_wire::log::ana::{ANA_GROUP_LEN, ANA_HEADER_LEN, AnaGroup, AnaHeader, AnaState};
use zerocopy::FromBytes;

/// The state of each ANA group, as a controller reports it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AnaGroups {
    /// Change count of the page.
    changes: u64,
    states: BTreeMap<u32, AnaState>,
}

/// A page that contradicts itself.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AnaError {
    /// It ends before its last group.
    #[error("the ANA log page of {len} bytes ends before the last of its {groups} groups")]
    Truncated {
        /// Bytes of the page.
        len: usize,
        /// Groups of its header.
        groups: u16,
    },
    /// One group twice.
    #[error("the ANA log page has group {0} twice")]
    Twice(u32),
    /// Group 0, which is reserved.
    #[error("the ANA log page has group 0, which no namespace can be in")]
    Zero,
}

impl AnaGroups {
    /// Bytes of a page with `groups` groups without their namespaces.
    #[must_use]
    pub fn page_len(groups: u16) -> usize {
        ANA_HEADER_LEN + usize::from(groups) * ANA_GROUP_LEN
    }

    /// Number of groups and change count, from the first bytes of a page. `None` if they are too
    /// few.
    #[must_use]
    pub fn header(page: &[u8]) -> Option<(u16, u64)> {
        let (header, _) = AnaHeader::read_from_prefix(page).ok()?;
        Some((header.ngrps.get(), header.chgcnt.get()))
    }

    /// Parses a page that was read without namespaces (RGO).
    ///
    /// # Errors
    /// [`AnaError`] if the page contradicts itself.
    pub fn parse(page: &[u8]) -> Result<Self, AnaError> {
        let (groups, changes) = Self::header(page).unwrap_or_default();
        let truncated = AnaError::Truncated {
            len: page.len(),
            groups,
        };
        let mut rest = page.get(ANA_HEADER_LEN..).ok_or(truncated.clone())?;
        let mut states = BTreeMap::new();
        for _ in 0..groups {
            let (group, after) = AnaGroup::read_from_prefix(rest).map_err(|_| truncated.clone())?;
            rest = after;
            let id = group.agid.get();
            if id == 0 {
                return Err(AnaError::Zero);
            }
            if states.insert(id, group.state).is_some() {
                return Err(AnaError::Twice(id));
            }
        }
        Ok(Self { changes, states })
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
    use proptest::prelude::*;
    use zerocopy::IntoBytes;

    use super::*;

    fn page(groups: &[(u32, AnaState)]) -> Vec<u8> {
        let count = u16::try_from(groups.len()).unwrap();
        let mut page = AnaHeader::new(9, count).as_bytes().to_vec();
        for (id, state) in groups {
            page.extend_from_slice(AnaGroup::new(*id, 0, 9, *state).as_bytes());
        }
        page
    }

    #[test]
    fn states_are_found_by_group() {
        let groups = [(1, AnaState::OPTIMIZED), (7, AnaState::CHANGE)];
        let page = page(&groups);
        assert_eq!(AnaGroups::header(&page), Some((2, 9)));
        assert_eq!(AnaGroups::page_len(2), page.len());
        let parsed = AnaGroups::parse(&page).unwrap();
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

    #[test]
    fn contradictory_pages_are_refused() {
        let twice = page(&[(1, AnaState::OPTIMIZED), (1, AnaState::INACCESSIBLE)]);
        assert_eq!(AnaGroups::parse(&twice), Err(AnaError::Twice(1)));
        let zero = page(&[(0, AnaState::OPTIMIZED)]);
        assert_eq!(AnaGroups::parse(&zero), Err(AnaError::Zero));
        let whole = page(&[(1, AnaState::OPTIMIZED)]);
        for len in 0..whole.len() {
            let parsed = AnaGroups::parse(&whole[..len]);
            assert!(matches!(parsed, Err(AnaError::Truncated { .. })), "{len}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_parsed_or_refused(page in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = AnaGroups::parse(&page);
        }
    }
}
