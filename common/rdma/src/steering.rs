//! Selects which of several providers takes the next connection: the one with the lowest
//! load.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Spreads connections over the members of a group, one per thread. Members are numbered from
/// 0. Clones are the same group.
///
/// A connection goes to the member with the lowest load, then to the one with the fewest
/// connections of that peer, then round robin. Providers of several kinds may share one
/// group, so that the load covers all connections of a thread.
#[derive(Clone, Debug)]
pub struct Steering {
    table: Arc<Mutex<Table>>,
}

#[derive(Debug, Default)]
struct Table {
    members: Vec<Member>,
    /// The member that is first in the next round robin.
    next: usize,
}

#[derive(Debug, Default)]
struct Member {
    /// Briefly negative when a light connection ends.
    load: i64,
    /// Connections of each peer.
    peers: HashMap<IpAddr, u32>,
}

/// Counts a connection of one member until it is dropped.
#[derive(Debug)]
pub struct ConnectionGuard {
    steering: Steering,
    member: usize,
    peer: IpAddr,
}

/// Makes a connection count as [`LIGHT`](Steering::LIGHT) until it is dropped.
#[derive(Debug)]
pub struct LightGuard {
    steering: Steering,
    member: usize,
}

impl Steering {
    /// Load of a connection by default.
    pub const FULL: i64 = 16;
    /// Load of a connection with little traffic, such as an admin queue.
    pub const LIGHT: i64 = 1;

    /// A group without connections.
    #[must_use]
    pub fn new(members: usize) -> Self {
        let members = std::iter::repeat_with(Member::default).take(members);
        let table = Table {
            members: members.collect(),
            next: 0,
        };
        Self {
            table: Arc::new(Mutex::new(table)),
        }
    }

    /// Number of members.
    #[must_use]
    pub fn members(&self) -> usize {
        self.lock().members.len()
    }

    /// Chooses the member for a connection of `peer`, among those for which `may_take`
    /// returns true. `None` if there is none.
    #[must_use]
    pub fn choose(
        &self,
        peer: IpAddr,
        may_take: impl Fn(usize) -> bool,
    ) -> Option<ConnectionGuard> {
        let mut table = self.lock();
        let count = table.members.len();
        let (next, members) = (table.next, table.members.iter().enumerate());
        let rank = |(at, member): (usize, &Member)| {
            let peer_count = member.peers.get(&peer).copied().unwrap_or(0);
            let distance = (at + count - next) % count;
            (member.load, peer_count, distance, at)
        };
        let (.., member) = members.filter(|(at, _)| may_take(*at)).map(rank).min()?;
        table.next = (member + 1) % count;
        table.add(member, peer)?;
        drop(table);
        Some(self.guard(member, peer))
    }

    /// Counts a connection of this member; `None` if the member does not exist.
    #[must_use]
    pub fn add(&self, member: usize, peer: IpAddr) -> Option<ConnectionGuard> {
        self.lock().add(member, peer)?;
        Some(self.guard(member, peer))
    }

    fn guard(&self, member: usize, peer: IpAddr) -> ConnectionGuard {
        let steering = self.clone();
        ConnectionGuard {
            steering,
            member,
            peer,
        }
    }

    /// Makes one of the member's connections count as [`LIGHT`](Steering::LIGHT).
    #[must_use]
    pub fn lighten(&self, member: usize) -> LightGuard {
        if let Some(at) = self.lock().members.get_mut(member) {
            at.load = at.load.saturating_sub(Self::FULL - Self::LIGHT);
        }
        let steering = self.clone();
        LightGuard { steering, member }
    }

    /// Total load of a member's connections.
    #[must_use]
    pub fn load(&self, member: usize) -> i64 {
        let table = self.lock();
        table.members.get(member).map_or(0, |member| member.load)
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        // No operation under this lock leaves the table inconsistent when it panics.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Table {
    fn add(&mut self, member: usize, peer: IpAddr) -> Option<()> {
        let member = self.members.get_mut(member)?;
        member.load = member.load.saturating_add(Steering::FULL);
        let peer_count = member.peers.entry(peer).or_insert(0);
        *peer_count = peer_count.saturating_add(1);
        Some(())
    }
}

impl ConnectionGuard {
    /// The member that has the connection.
    #[must_use]
    pub fn member(&self) -> usize {
        self.member
    }
}

impl Drop for ConnectionGuard {
    fn drop(&mut self) {
        let mut table = self.steering.lock();
        let Some(member) = table.members.get_mut(self.member) else {
            return;
        };
        member.load = member.load.saturating_sub(Steering::FULL);
        if let Some(peer_count) = member.peers.get_mut(&self.peer) {
            *peer_count = peer_count.saturating_sub(1);
            if *peer_count == 0 {
                member.peers.remove(&self.peer);
            }
        }
    }
}

impl Drop for LightGuard {
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

    fn members(places: &[ConnectionGuard], count: usize) -> Vec<usize> {
        let of = |member| {
            places
                .iter()
                .filter(|place| place.member() == member)
                .count()
        };
        (0..count).map(of).collect()
    }

    #[test]
    fn connections_are_spread_evenly_in_all_and_per_peer() {
        let steering = Steering::new(4);
        let places: Vec<_> = (0..64u8)
            .map(|n| steering.choose(peer(n % 4), all).unwrap())
            .collect();
        assert_eq!(members(&places, 4), [16; 4]);
        for n in 0..4 {
            let peer_count = places.iter().filter(|place| place.peer == peer(n));
            let mut of_member = [0; 4];
            peer_count.for_each(|place| of_member[place.member()] += 1);
            assert_eq!(of_member, [4; 4], "peer {n}");
        }
        drop(places);
        assert_eq!([0, 1, 2, 3].map(|member| steering.load(member)), [0; 4]);
        let empty = |member: &Member| member.peers.is_empty();
        assert!(steering.lock().members.iter().all(empty));
    }

    #[test]
    fn member_with_closed_connections_is_filled_first() {
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
    fn equal_load_selects_member_with_fewest_of_peer() {
        let steering = Steering::new(2);
        let a = steering.add(0, peer(1)).unwrap();
        let b = steering.add(1, peer(2)).unwrap();
        assert_eq!(steering.choose(peer(1), all).unwrap().member(), 1);
        assert_eq!(steering.choose(peer(2), all).unwrap().member(), 0);
        drop((a, b));
    }

    #[test]
    fn equal_members_are_selected_round_robin() {
        let steering = Steering::new(3);
        let chosen: Vec<_> = (0..6)
            .map(|n| steering.choose(peer(n), all).unwrap().member())
            .collect();
        // Each was closed before the next arrived.
        assert_eq!(chosen, [0, 1, 2, 0, 1, 2]);
    }

    #[test]
    fn light_connection_counts_less_until_it_ends() {
        let steering = Steering::new(2);
        let light = steering.choose(peer(1), all).unwrap();
        let lightened = steering.lighten(light.member());
        assert_eq!(steering.load(0), Steering::LIGHT);
        let full: Vec<_> = (0..3)
            .map(|_| steering.choose(peer(1), all).unwrap())
            .collect();
        // A light connection alone does not leave the other member with two more.
        assert_eq!(members(&full, 2), [1, 2]);
        // The provider may release a connection first.
        drop(light);
        drop(lightened);
        assert_eq!(
            [steering.load(0), steering.load(1)],
            [Steering::FULL, 2 * Steering::FULL]
        );
    }

    #[test]
    fn excluded_member_gets_no_connection() {
        let steering = Steering::new(4);
        let places: Vec<_> = (0..30)
            .map(|_| steering.choose(peer(1), |at| at != 1).unwrap())
            .collect();
        assert_eq!(members(&places, 4), [10, 0, 10, 10]);
        assert!(steering.choose(peer(1), |_| false).is_none());
        assert!(Steering::new(0).choose(peer(1), all).is_none());
        assert!(steering.add(4, peer(1)).is_none());
    }
}
