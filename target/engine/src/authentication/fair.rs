//! The fair queue of jobs: deficit round robin, by the cost of exponentiations.
//!
//! Each port has two rings: one of unproven peers, by address, and one of hosts with a
//! controller, by Host NQN. Any peer can start authentications, from many addresses and with many
//! names: these delay hosts with a controller, and peers of other ports, by no more than the turn
//! of their ring.

use std::collections::{BTreeMap, VecDeque};

use nvmeof_target_core::PortAddress;
use nvmeof_wire::auth::GroupId;

use super::{ComputeJob, JobPeer, JobSource};

/// Cost of a turn: at least that of the most expensive job.
const TURN: u32 = 256;
/// Jobs below which cancelled ones are not looked for.
const FEW: usize = 64;

/// Cost of an exponentiation, in units of about 0.1 ms.
fn cost(group: GroupId) -> u32 {
    match group {
        GroupId::FFDHE2048 => 6,
        GroupId::FFDHE3072 => 17,
        GroupId::FFDHE4096 => 36,
        GroupId::FFDHE6144 => 95,
        GroupId::FFDHE8192 => 230,
        // A few hashes.
        _ => 1,
    }
}

/// Jobs that wait for a worker.
#[derive(Default)]
pub(super) struct JobQueue {
    rings: Ring<(Option<PortAddress>, bool), Ring<JobPeer, Jobs>>,
    len: usize,
    /// Jobs at which cancelled ones are removed.
    purge_at: usize,
}

impl JobQueue {
    /// Appends a job to those of its source.
    pub(super) fn push(&mut self, job: ComputeJob) {
        if self.len >= self.purge_at.max(FEW) {
            self.len = self.rings.purge();
            // Each purge removes at least as many as it keeps, or it is as long until the next
            // one: a push costs constant time on average.
            self.purge_at = 2 * self.len;
        }
        let JobSource { port, peer } = job.source.clone();
        let is_host = matches!(peer, JobPeer::Host(_));
        let sources = self.rings.get((port, is_host));
        sources.get(peer).0.push_back(job);
        self.len += 1;
    }

    /// The next job.
    pub(super) fn pop(&mut self) -> Option<ComputeJob> {
        while let Some(job) = self.rings.pop() {
            self.len = self.len.saturating_sub(1);
            if !job.is_cancelled() {
                return Some(job);
            }
        }
        None
    }

    /// Jobs, with cancelled ones that were not removed yet.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.len
    }
}

/// What a ring serves: other rings, or jobs.
trait Served: Default {
    /// Cost of the next job; `None` if there is none.
    fn next_cost(&mut self) -> Option<u32>;

    /// Removes the next job.
    fn pop(&mut self) -> Option<ComputeJob>;

    /// Removes cancelled jobs. Returns the number of those left.
    fn purge(&mut self) -> usize;
}

/// Jobs of one source, oldest first.
#[derive(Default)]
struct Jobs(VecDeque<ComputeJob>);

impl Served for Jobs {
    fn next_cost(&mut self) -> Option<u32> {
        let next = self.0.front()?;
        // A worker drops it at once.
        Some(if next.is_cancelled() {
            0
        } else {
            cost(next.group)
        })
    }

    fn pop(&mut self) -> Option<ComputeJob> {
        self.0.pop_front()
    }

    fn purge(&mut self) -> usize {
        self.0.retain(|job| !job.is_cancelled());
        self.0.len()
    }
}

/// Deficit round robin over members that have jobs.
struct Ring<K, M> {
    members: BTreeMap<K, Member<M>>,
    /// The keys of all members, in the order in which they are served.
    order: VecDeque<K>,
}

#[derive(Default)]
struct Member<M> {
    /// Cost that is left in its turn.
    left: u32,
    served: M,
}

impl<K, M> Default for Ring<K, M> {
    fn default() -> Self {
        Self {
            members: BTreeMap::new(),
            order: VecDeque::new(),
        }
    }
}

impl<K: Clone + Ord, M: Served> Ring<K, M> {
    /// The member with that key. A new one comes last.
    fn get(&mut self, key: K) -> &mut M {
        let order = &mut self.order;
        let member = self.members.entry(key).or_insert_with_key(|key| {
            order.push_back(key.clone());
            Member {
                left: TURN,
                served: M::default(),
            }
        });
        &mut member.served
    }
}

impl<K: Clone + Ord, M: Served> Served for Ring<K, M> {
    fn next_cost(&mut self) -> Option<u32> {
        loop {
            let key = self.order.front()?;
            let Some(member) = self.members.get_mut(key) else {
                self.order.pop_front();
                continue;
            };
            match member.served.next_cost() {
                Some(cost) if cost <= member.left => return Some(cost),
                Some(_) => {
                    // No cost exceeds a turn, so this ends after one round.
                    member.left = member.left.saturating_add(TURN);
                    self.order.rotate_left(1);
                }
                None => {
                    self.members.remove(key);
                    self.order.pop_front();
                }
            }
        }
    }

    fn pop(&mut self) -> Option<ComputeJob> {
        let cost = self.next_cost()?;
        let key = self.order.front()?;
        let member = self.members.get_mut(key)?;
        member.left = member.left.saturating_sub(cost);
        let job = member.served.pop();
        // A turn that is over ends now, so that newcomers come behind it.
        let _ = self.next_cost();
        job
    }

    fn purge(&mut self) -> usize {
        let mut left = 0;
        self.members.retain(|_, member| {
            let jobs = member.served.purge();
            left += jobs;
            jobs > 0
        });
        let members = &self.members;
        self.order.retain(|key| members.contains_key(key));
        left
    }
}

#[cfg(test)]
mod tests {
    use super::super::PendingJob;
    use super::super::testing::{host, job, port, unproven};
    use super::*;
    use crate::Mailbox;
    use nvmeof_target_core::Source;

    /// Jobs that are numbered as they are pushed.
    struct Queued {
        mailbox: Mailbox,
        queue: JobQueue,
        pending: Vec<PendingJob>,
    }

    impl Queued {
        fn new() -> Self {
            Self {
                mailbox: Mailbox::new().unwrap(),
                queue: JobQueue::default(),
                pending: Vec::new(),
            }
        }

        fn push(&mut self, group: GroupId, source: JobSource) {
            let number = u16::try_from(self.pending.len()).unwrap();
            let (job, pending) = job(group, source, &self.mailbox, number);
            self.queue.push(job);
            self.pending.push(pending);
        }

        /// The sources of the next jobs.
        fn next(&mut self, count: usize) -> Vec<JobSource> {
            let jobs = (0..count).map_while(|_| self.queue.pop());
            jobs.map(|job| job.source.clone()).collect()
        }
    }

    #[test]
    fn sources_are_served_round_robin() {
        let mut all = Queued::new();
        for source in [1, 1, 1, 2, 2, 3] {
            all.push(GroupId::FFDHE8192, unproven(source));
        }
        let expected = [1, 2, 3, 1, 2, 1].map(unproven);
        assert_eq!(all.next(10), expected);
        assert_eq!(all.queue.len(), 0);
    }

    #[test]
    fn shares_are_equal_by_cost_not_by_number() {
        let mut all = Queued::new();
        for _ in 0..200 {
            all.push(GroupId::FFDHE8192, unproven(1));
            all.push(GroupId::FFDHE4096, unproven(2));
        }
        let served = all.next(100);
        let expensive = served.iter().filter(|its| **its == unproven(1)).count();
        // 230 to 36.
        assert!((12..=16).contains(&expensive), "{expensive}");
    }

    /// However many newcomers there are, a source that waits is served.
    #[test]
    fn endless_newcomers_do_not_starve_a_source() {
        let mut all = Queued::new();
        for source in 0..10 {
            all.push(GroupId::FFDHE8192, unproven(source));
        }
        all.push(GroupId::FFDHE8192, unproven(0));
        let mut served = Vec::new();
        for newcomer in 10..=255 {
            served.extend(all.next(1));
            all.push(GroupId::FFDHE8192, unproven(newcomer));
        }
        let mut second = served
            .iter()
            .zip(1..)
            .filter(|(its, _)| **its == unproven(0));
        assert_eq!(second.nth(1).map(|(_, at)| at), Some(11), "one round");
    }

    /// A flood of unproven peers leaves half of the workers to hosts, and to another port.
    #[test]
    fn unproven_peers_share_one_ring_of_their_port() {
        let mut all = Queued::new();
        let other_port = JobSource {
            port: Some(port(4421)),
            ..unproven(250)
        };
        for source in 0..200 {
            all.push(GroupId::FFDHE8192, unproven(source));
        }
        for number in 0..4 {
            all.push(GroupId::FFDHE8192, host(number));
            all.push(GroupId::FFDHE8192, other_port.clone());
        }
        let served = all.next(12);
        let hosts = served
            .iter()
            .filter(|its| matches!(its.peer, JobPeer::Host(_)));
        assert_eq!(hosts.count(), 4);
        let others = served.iter().filter(|its| **its == other_port);
        assert_eq!(others.count(), 4);
    }

    #[test]
    fn cancelled_jobs_are_neither_served_nor_kept() {
        let mut all = Queued::new();
        for round in 0..1000_u16 {
            // A peer that starts, closes, and comes back from other addresses.
            let [one, other] = round.to_be_bytes();
            let source = Source::Ip([10, 1, one, other].into());
            all.push(
                GroupId::NULL,
                JobSource {
                    peer: JobPeer::Unproven(source),
                    ..unproven(1)
                },
            );
            all.pending.clear();
            assert!(all.queue.len() <= FEW + 1, "{}", all.queue.len());
        }
        all.push(GroupId::NULL, unproven(7));
        assert_eq!(all.next(10), [unproven(7)]);
        assert_eq!(all.queue.len(), 0);
        assert!(all.queue.rings.members.is_empty() && all.queue.rings.order.is_empty());
    }
}
