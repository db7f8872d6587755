//! Exchanges that were generated before they are needed, so that a challenge costs no
//! exponentiation. Each is used once.

use std::collections::BTreeMap;

use nvmeof_dhchap::Exchange;
use nvmeof_wire::auth::GroupId;

/// Exchanges that are kept for each group.
pub(super) const KEPT: usize = 4;

/// Prepared exchanges. The exponents are erased when they are dropped.
#[derive(Default)]
pub(super) struct Pairs {
    /// Of each group that was used. There are as many as [`Exchange`] supports.
    groups: BTreeMap<u8, Vec<Exchange>>,
    /// Whether one is being generated: the other workers stay free for jobs.
    is_generating: bool,
}

impl Pairs {
    /// Takes one, if there is any. The group is refilled from now on.
    pub(super) fn take(&mut self, group: GroupId) -> Option<Exchange> {
        self.groups.entry(group.0).or_default().pop()
    }

    /// The group to generate an exchange of, followed by [`generated`](Self::generated).
    pub(super) fn begin(&mut self) -> Option<GroupId> {
        if self.is_generating {
            return None;
        }
        let missing = self.groups.iter().filter(|(_, kept)| kept.len() < KEPT);
        let (group, _) = missing.min_by_key(|(_, kept)| kept.len())?;
        self.is_generating = true;
        Some(GroupId(*group))
    }

    /// The exchange that was begun; `None` if it cannot be generated. Then there is no other
    /// attempt until the group is used again.
    pub(super) fn generated(&mut self, group: GroupId, exchange: Option<Exchange>) {
        self.is_generating = false;
        match exchange {
            Some(exchange) => self.groups.entry(group.0).or_default().push(exchange),
            None => drop(self.groups.remove(&group.0)),
        }
    }

    /// Exchanges of a group.
    #[cfg(test)]
    pub(super) fn count(&self, group: GroupId) -> usize {
        self.groups.get(&group.0).map_or(0, Vec::len)
    }
}

#[cfg(test)]
mod tests {
    use nvmeof_dhchap::SystemRandom;

    use super::*;

    #[test]
    fn only_used_groups_are_filled() {
        let mut pairs = Pairs::default();
        assert_eq!(pairs.begin(), None);
        assert!(pairs.take(GroupId::FFDHE2048).is_none());
        for kept in 0..KEPT {
            assert_eq!(pairs.count(GroupId::FFDHE2048), kept);
            assert_eq!(pairs.begin(), Some(GroupId::FFDHE2048));
            assert_eq!(pairs.begin(), None, "one at a time");
            let exchange = Exchange::generate(GroupId::FFDHE2048, &mut SystemRandom);
            pairs.generated(GroupId::FFDHE2048, exchange.ok());
        }
        assert_eq!(pairs.begin(), None);
    }

    #[test]
    fn exchange_is_taken_once() {
        let mut pairs = Pairs::default();
        let exchange = Exchange::generate(GroupId::FFDHE2048, &mut SystemRandom).unwrap();
        let public = exchange.public().to_vec();
        pairs.generated(GroupId::FFDHE2048, Some(exchange));
        assert!(pairs.take(GroupId::FFDHE3072).is_none());
        let taken = pairs.take(GroupId::FFDHE2048).unwrap();
        assert_eq!(taken.public(), public);
        assert!(pairs.take(GroupId::FFDHE2048).is_none());
    }

    #[test]
    fn group_that_cannot_be_generated_is_not_attempted_again() {
        let mut pairs = Pairs::default();
        assert!(pairs.take(GroupId::FFDHE2048).is_none());
        assert_eq!(pairs.begin(), Some(GroupId::FFDHE2048));
        pairs.generated(GroupId::FFDHE2048, None);
        assert_eq!(pairs.begin(), None);
    }
}
