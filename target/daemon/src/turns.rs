//! Who is next: what hosts wait for is given to them in turn, whatever number
//! of queues each of them has.

use std::collections::VecDeque;

/// A host: the number of its account, or zero before it said who it is.
pub(crate) type HostId = u64;

/// Things that wait, of several hosts. What one host has keeps its order.
#[derive(Debug)]
pub(crate) struct Turns<T> {
    /// The first one's turn it is. Others have something.
    hosts: VecDeque<(HostId, VecDeque<T>)>,
    /// Things of all.
    len: usize,
    /// Empty ones, kept for their memory.
    spare: Vec<VecDeque<T>>,
}

impl<T> Default for Turns<T> {
    fn default() -> Self {
        Self {
            hosts: VecDeque::new(),
            len: 0,
            spare: Vec::new(),
        }
    }
}

impl<T> Turns<T> {
    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Things of all hosts.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Hosts that have something.
    pub(crate) fn hosts(&self) -> usize {
        self.hosts.len()
    }

    /// Behind what `host` has already. One that had nothing comes last.
    pub(crate) fn push(&mut self, host: HostId, thing: T) {
        self.len += 1;
        // Those that have to wait: few, or none would be served well.
        match self.hosts.iter_mut().find(|(one, _)| *one == host) {
            Some((_, things)) => things.push_back(thing),
            None => {
                let mut things = self.spare.pop().unwrap_or_default();
                things.push_back(thing);
                self.hosts.push_back((host, things));
            }
        }
    }

    /// Everything there is.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        self.hosts.iter().flat_map(|(_, things)| things)
    }

    /// How much the host has whose turn it is.
    pub(crate) fn of_first(&self) -> usize {
        self.hosts.front().map_or(0, |(_, things)| things.len())
    }

    /// The first thing of the host whose turn it is, which it stays until
    /// [`pass`](Self::pass).
    pub(crate) fn pop(&mut self) -> Option<T> {
        let thing = self.hosts.front_mut()?.1.pop_front()?;
        self.len -= 1;
        Some(thing)
    }

    /// Takes back what was popped last.
    pub(crate) fn put_back(&mut self, thing: T) {
        if let Some((_, things)) = self.hosts.front_mut() {
            things.push_front(thing);
            self.len += 1;
        }
    }

    /// Takes the first thing of `host` that `wanted` says yes to out of the
    /// row.
    pub(crate) fn remove(&mut self, host: HostId, wanted: impl Fn(&T) -> bool) -> Option<T> {
        let place = self.hosts.iter().position(|(one, _)| *one == host)?;
        let (_, things) = self.hosts.get_mut(place)?;
        let at = things.iter().position(wanted)?;
        let thing = things.remove(at)?;
        self.len -= 1;
        if things.is_empty()
            && let Some((_, things)) = self.hosts.remove(place)
        {
            self.spare.push(things);
        }
        Some(thing)
    }

    /// Takes all things of `host` that `wanted` says yes to out of the row.
    pub(crate) fn remove_all(&mut self, host: HostId, wanted: impl Fn(&T) -> bool) -> VecDeque<T> {
        let Some(place) = self.hosts.iter().position(|(one, _)| *one == host) else {
            return VecDeque::new();
        };
        let Some((host, things)) = self.hosts.remove(place) else {
            return VecDeque::new();
        };
        let (out, left): (VecDeque<T>, VecDeque<T>) = things.into_iter().partition(wanted);
        self.len -= out.len();
        if !left.is_empty() {
            self.hosts.insert(place, (host, left));
        }
        out
    }

    /// It is the next host's turn.
    pub(crate) fn pass(&mut self) {
        let Some((host, things)) = self.hosts.pop_front() else {
            return;
        };
        if things.is_empty() {
            self.spare.push(things);
        } else {
            self.hosts.push_back((host, things));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: HostId = 1;
    const B: HostId = 2;

    /// Everything, one for each turn.
    fn served(turns: &mut Turns<u32>) -> Vec<u32> {
        let mut all = Vec::new();
        while let Some(thing) = turns.pop() {
            all.push(thing);
            turns.pass();
        }
        all
    }

    #[test]
    fn hosts_take_turns_and_keep_their_order() {
        let mut turns = Turns::default();
        for thing in 0..4 {
            turns.push(A, thing);
        }
        turns.push(B, 10);
        turns.push(3, 20);
        turns.push(B, 11);
        assert_eq!(turns.hosts(), 3);
        let mut all: Vec<_> = turns.iter().copied().collect();
        all.sort_unstable();
        assert_eq!(all, [0, 1, 2, 3, 10, 11, 20]);
        assert_eq!(served(&mut turns), [0, 10, 20, 1, 11, 2, 3]);
        assert!(turns.is_empty());
        assert_eq!(turns.hosts(), 0);
    }

    #[test]
    fn what_is_put_back_is_next() {
        let mut turns = Turns::default();
        turns.push(A, 1);
        turns.push(B, 2);
        let first = turns.pop().unwrap();
        assert!(!turns.is_empty());
        turns.put_back(first);
        assert_eq!((turns.of_first(), served(&mut turns)), (1, vec![1, 2]));
    }

    #[test]
    fn what_is_removed_is_never_served() {
        let mut turns = Turns::default();
        for thing in 0..3 {
            turns.push(A, thing);
        }
        turns.push(B, 1);
        assert_eq!(turns.remove(A, |thing| *thing == 1), Some(1));
        assert_eq!(turns.remove(A, |thing| *thing == 1), None);
        assert_eq!(turns.remove(3, |_| true), None);
        assert_eq!(turns.remove(B, |_| true), Some(1));
        assert_eq!(served(&mut turns), [0, 2]);
        assert!(turns.is_empty());
        for thing in 0..6 {
            turns.push(A, thing);
            turns.push(B, thing);
        }
        assert_eq!(turns.remove_all(A, |thing| *thing % 2 == 0), [0, 2, 4]);
        assert_eq!(turns.remove_all(B, |_| true).len(), 6);
        assert!(turns.remove_all(B, |_| true).is_empty());
        assert_eq!((turns.len(), turns.hosts()), (3, 1));
        assert_eq!(served(&mut turns), [1, 3, 5]);
    }

    #[test]
    fn a_host_keeps_its_turn_until_it_passes() {
        let mut turns = Turns::default();
        turns.push(A, 1);
        turns.push(B, 2);
        assert_eq!((turns.pop(), turns.pop()), (Some(1), None));
        turns.push(A, 3);
        assert_eq!((turns.of_first(), turns.pop()), (1, Some(3)));
        turns.pass();
        assert_eq!(served(&mut turns), [2]);
    }
}
