//! Which of several providers takes the next connection: where there is least
//! to do.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Spreads connections over the members of a group, one for each thread: they
/// are numbered from 0. Clones are the same group.
///
/// A connection goes to the member with the least load; among equals to the one
/// with the fewest connections of that peer, and among those in turn. Providers
/// of several kinds may share one group, so that what counts is all that a
/// thread has.
#[derive(Clone, Debug)]
pub struct Steering {
    table: Arc<Mutex<Table>>,
}

#[derive(Debug, Default)]
struct Table {
    members: Vec<Member>,
    /// Who is asked first, among equals.
    turn: usize,
}

#[derive(Debug, Default)]
struct Member {
    /// Less than nothing for a moment, when a light connection ends.
    load: i64,
    /// Connections of each peer.
    peers: HashMap<IpAddr, u32>,
}

/// A connection of one member: it counts until this is dropped.
#[derive(Debug)]
pub struct Counted {
    steering: Steering,
    member: usize,
    peer: IpAddr,
}

/// Says of a connection that it is [`LIGHT`](Steering::LIGHT), until this is dropped.
#[derive(Debug)]
pub struct Lightened {
    steering: Steering,
    member: usize,
}

impl Steering {
    /// What a connection counts as long as nobody says more about it.
    pub const FULL: i64 = 16;
    /// What one counts over which little is sent.
    pub const LIGHT: i64 = 1;

    /// A group without connections.
    #[must_use]
    pub fn new(members: usize) -> Self {
        let members = std::iter::repeat_with(Member::default).take(members);
        let table = Table {
            members: members.collect(),
            turn: 0,
        };
        Self {
            table: Arc::new(Mutex::new(table)),
        }
    }

    /// How many members there are.
    #[must_use]
    pub fn members(&self) -> usize {
        self.lock().members.len()
    }

    /// Chooses who takes a connection of `peer`, of those members that
    /// `may_take` it. `None` when nobody may.
    #[must_use]
    pub fn choose(&self, peer: IpAddr, may_take: impl Fn(usize) -> bool) -> Option<Counted> {
        let mut table = self.lock();
        let count = table.members.len();
        let (turn, members) = (table.turn, table.members.iter().enumerate());
        let rank = |(at, member): (usize, &Member)| {
            let of_peer = member.peers.get(&peer).copied().unwrap_or(0);
            let turns = (at + count - turn) % count;
            (member.load, of_peer, turns, at)
        };
        let (.., member) = members.filter(|(at, _)| may_take(*at)).map(rank).min()?;
        table.turn = (member + 1) % count;
        table.add(member, peer)?;
        drop(table);
        Some(self.counted(member, peer))
    }

    /// Counts a connection that this very member has; `None` when there is no
    /// such member.
    #[must_use]
    pub fn place(&self, member: usize, peer: IpAddr) -> Option<Counted> {
        self.lock().add(member, peer)?;
        Some(self.counted(member, peer))
    }

    fn counted(&self, member: usize, peer: IpAddr) -> Counted {
        let steering = self.clone();
        Counted {
            steering,
            member,
            peer,
        }
    }

    /// Has one of the member's connections count as [`LIGHT`](Steering::LIGHT).
    #[must_use]
    pub fn lighten(&self, member: usize) -> Lightened {
        if let Some(at) = self.lock().members.get_mut(member) {
            at.load = at.load.saturating_sub(Self::FULL - Self::LIGHT);
        }
        let steering = self.clone();
        Lightened { steering, member }
    }

    /// What the connections of a member count together.
    #[must_use]
    pub fn load(&self, member: usize) -> i64 {
        let table = self.lock();
        table.members.get(member).map_or(0, |member| member.load)
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        // Nothing done under it can leave a mess behind.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Table {
    fn add(&mut self, member: usize, peer: IpAddr) -> Option<()> {
        let member = self.members.get_mut(member)?;
        member.load = member.load.saturating_add(Steering::FULL);
        let of_peer = member.peers.entry(peer).or_insert(0);
        *of_peer = of_peer.saturating_add(1);
        Some(())
    }
}

impl Counted {
    /// Whose it is.
    #[must_use]
    pub fn member(&self) -> usize {
        self.member
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        let mut table = self.steering.lock();
        let Some(member) = table.members.get_mut(self.member) else {
            return;
        };
        member.load = member.load.saturating_sub(Steering::FULL);
        if let Some(of_peer) = member.peers.get_mut(&self.peer) {
            *of_peer = of_peer.saturating_sub(1);
            if *of_peer == 0 {
                member.peers.remove(&self.peer);
            }
        }
    }
}

impl Drop for Lightened {
    fn drop(&mut self) {
        if let Some(member) = self.steering.lock().members.get_mut(self.member) {
            member.load = member.load.saturating_add(Steering::FULL - Steering::LIGHT);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(number: u8) -> IpAddr {
        IpAddr::from([10, 0, 0, number])
    }

    fn all(_: usize) -> bool {
        true
    }

    fn members(places: &[Counted], count: usize) -> Vec<usize> {
        let of = |member| {
            places
                .iter()
                .filter(|place| place.member() == member)
                .count()
        };
        (0..count).map(of).collect()
    }

    #[test]
    fn connections_are_spread_evenly_and_so_are_those_of_each_peer() {
        let steering = Steering::new(4);
        let places: Vec<_> = (0..64u8)
            .map(|n| steering.choose(peer(n % 4), all).unwrap())
            .collect();
        assert_eq!(members(&places, 4), [16; 4]);
        for n in 0..4 {
            let of_peer = places.iter().filter(|place| place.peer == peer(n));
            let mut of_member = [0; 4];
            of_peer.for_each(|place| of_member[place.member()] += 1);
            assert_eq!(of_member, [4; 4], "peer {n}");
        }
        drop(places);
        assert_eq!([0, 1, 2, 3].map(|member| steering.load(member)), [0; 4]);
        let empty = |member: &Member| member.peers.is_empty();
        assert!(steering.lock().members.iter().all(empty));
    }

    #[test]
    fn what_disconnects_leaves_room_that_is_filled_first() {
        let steering = Steering::new(4);
        let mut places: Vec<_> = (0..32)
            .map(|_| steering.choose(peer(1), all).unwrap())
            .collect();
        places.retain(|place| place.member() != 2);
        let again: Vec<_> = (0..8)
            .map(|_| steering.choose(peer(2), all).unwrap())
            .collect();
        assert_eq!(members(&again, 4), [0, 0, 8, 0]);
    }

    #[test]
    fn among_equals_a_peer_goes_where_it_has_least() {
        let steering = Steering::new(2);
        let a = steering.place(0, peer(1)).unwrap();
        let b = steering.place(1, peer(2)).unwrap();
        assert_eq!(steering.choose(peer(1), all).unwrap().member(), 1);
        assert_eq!(steering.choose(peer(2), all).unwrap().member(), 0);
        drop((a, b));
    }

    #[test]
    fn equals_take_turns() {
        let steering = Steering::new(3);
        let chosen: Vec<_> = (0..6)
            .map(|n| steering.choose(peer(n), all).unwrap().member())
            .collect();
        // Each was gone before the next came.
        assert_eq!(chosen, [0, 1, 2, 0, 1, 2]);
    }

    #[test]
    fn light_connections_count_less_until_they_end() {
        let steering = Steering::new(2);
        let light = steering.choose(peer(1), all).unwrap();
        let lightened = steering.lighten(light.member());
        assert_eq!(steering.load(0), Steering::LIGHT);
        let full: Vec<_> = (0..3)
            .map(|_| steering.choose(peer(1), all).unwrap())
            .collect();
        // One light one is not worth leaving the other with two more.
        assert_eq!(members(&full, 2), [1, 2]);
        // The provider may be done with a connection first.
        drop(light);
        drop(lightened);
        assert_eq!(
            [steering.load(0), steering.load(1)],
            [Steering::FULL, 2 * Steering::FULL]
        );
    }

    #[test]
    fn who_may_not_take_connections_gets_none() {
        let steering = Steering::new(4);
        let places: Vec<_> = (0..30)
            .map(|_| steering.choose(peer(1), |at| at != 1).unwrap())
            .collect();
        assert_eq!(members(&places, 4), [10, 0, 10, 10]);
        assert!(steering.choose(peer(1), |_| false).is_none());
        assert!(Steering::new(0).choose(peer(1), all).is_none());
        assert!(steering.place(4, peer(1)).is_none());
    }
}
