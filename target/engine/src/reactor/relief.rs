//! Relief for commands that wait for buffers of stalled transfers: closes the connections
//! of these transfers long before their ordinary time limit.

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::time::Duration;

use nvmeof_backend::BackingStores;
use nvmeof_rdma::RateLimiter;
use nvmeof_target_core::Limit;

use super::Reactor;
use crate::fair_queue::HostId;
use crate::queue::{KINDS, Shortage, Stalled, TrustLevel};
use crate::tag::SlotId;

/// How long the transfers of a connection may make no progress while others wait for
/// their buffers, if its host has moved data before, and if it has not. The first is
/// longer than TCP waits for two segments lost one after the other: at least 200 ms, then
/// twice as long (RFC 6298, section 5; Linux has the 200 ms).
const PROVEN: Duration = Duration::from_millis(800);
const UNPROVEN: Duration = Duration::from_millis(250);
/// A shorter time if so many hosts without a record wait that all of them together could
/// not be served within this time.
const ALL_SERVED_WITHIN: Duration = Duration::from_millis(80);
const LEAST: Duration = Duration::from_millis(10);
/// A shorter time if transfers without progress for that long hold so many buffers of a
/// kind that too few are left for those with progress.
const QUIET: Duration = Duration::from_millis(20);
/// How often to check while commands wait.
const RELIEF_INTERVAL: Duration = Duration::from_millis(5);

/// When to look for stalled transfers that others wait for.
#[derive(Debug, Default)]
pub(super) struct Relief {
    at: Option<Duration>,
    log: RateLimiter,
}

/// Hosts with transfers without progress. A host that has moved data before may have lost
/// a segment, and keeps its buffers for some time. So does the host that has moved the
/// most data, whatever it holds, and others as long as these hold a quarter of a kind and
/// all of them together one half.
#[derive(Debug, Default)]
struct StalledHosts {
    hosts: BTreeSet<HostId>,
    kept: BTreeSet<HostId>,
    kinds: [StalledKind; KINDS],
}

/// Buffers of one kind in such transfers.
#[derive(Clone, Copy, Debug, Default)]
struct StalledKind {
    /// Without those that are given up.
    held: u32,
    /// Whether less than a quarter is left for transfers with progress.
    is_short: bool,
}

impl Relief {
    pub(super) fn deadline(&self) -> Option<Duration> {
        self.at
    }
}

impl<S: BackingStores> Reactor<S> {
    /// Sets the time of the next check if commands may wait for buffers that others hold.
    fn note_shortages(&mut self, now: Duration) {
        self.relief.at =
            match !self.resources.awaiting.has_queues() || !self.resources.accounts.are_several() {
                true => None,
                false => self.relief.at.or(Some(now + RELIEF_INTERVAL)),
            };
    }

    /// Closes connections with stalled transfers, no more of them than are needed for the
    /// commands that wait.
    pub(super) fn relieve(&mut self, now: Duration) {
        self.note_shortages(now);
        if self.relief.at.is_none_or(|at| at > now) {
            return;
        }
        self.relief.at = Some(now + RELIEF_INTERVAL);
        let (mut short, time_limit) = self.shortages();
        if short.is_empty() {
            return;
        }
        let all = self.stalled(now);
        let stalled_hosts = StalledHosts::of(&all);
        for one in short
            .iter_mut()
            .filter(|one| stalled_hosts.hosts.contains(&one.host))
        {
            one.exclude_proven();
        }
        for (id, stalled) in all {
            let gives = stalled_hosts.gives(&stalled);
            let time_limit = match stalled.has_moved() {
                true => PROVEN,
                false => time_limit,
            };
            let time_limit = match gives {
                true => time_limit.min(QUIET),
                false => time_limit,
            };
            if stalled.time < time_limit {
                continue;
            }
            let Some(at) = short.iter().position(|one| one.is_relieved_by(&stalled)) else {
                continue;
            };
            if !gives {
                short.swap_remove(at);
            }
            self.target.limit_counters().add(Limit::StalledTransfer);
            let left_out = self.relief.log.ask(now);
            self.with_queue(id, now, |queue_pair, io| {
                queue_pair.give_up(&stalled, left_out, io);
            });
        }
    }

    /// The buffers that queues wait for and others hold, and how long transfers of hosts
    /// without a record, or of a suspect address, may make no progress.
    fn shortages(&mut self) -> (Vec<Shortage>, Duration) {
        let (mut short, mut unproven, mut suspect, mut most) = (Vec::new(), 0, 0, 1);
        let waiting: Vec<SlotId> = self.resources.awaiting.iter().copied().collect();
        for id in waiting {
            if let Some(queue_pair) = self.queues.get(id)
                && let Some(shortage) = queue_pair.shortage()
            {
                if shortage.is_of(TrustLevel::Unproven) {
                    unproven += 1;
                    most = queue_pair.most_unproven();
                }
                suspect += u32::from(shortage.is_of(TrustLevel::Suspect));
                short.push(shortage);
            }
        }
        // At least one buffer is for hosts that move data.
        let each = ALL_SERVED_WITHIN.saturating_mul(most) / unproven.max(1);
        let each = each.min(ALL_SERVED_WITHIN.saturating_mul(3) / suspect.max(1));
        (short, each.clamp(LEAST, UNPROVEN))
    }

    /// Queues with transfers, in the order in which stalled ones are closed. The more data
    /// a host has moved, the later its queues come.
    fn stalled(&mut self, now: Duration) -> Vec<(SlotId, Stalled)> {
        let mut all = Vec::new();
        for id in self.queues.ids() {
            let stalled = self.with_queue(id, now, |queue_pair, io| queue_pair.stalled(io));
            all.extend(stalled.flatten().map(|stalled| (id, stalled)));
        }
        all.sort_by_key(|(_, one)| (one.trust, one.moved, Reverse(one.time)));
        all
    }
}

impl StalledHosts {
    /// From transfers in the order in which they are given up.
    fn of(all: &[(SlotId, Stalled)]) -> Self {
        let mut stalled_hosts = Self::default();
        let mut others = [0; KINDS];
        // Those of the host that has moved the most data come first.
        for (_, one) in all.iter().rev().filter(|(_, one)| one.time >= QUIET) {
            let is_new = stalled_hosts.hosts.insert(one.host);
            let Some(at) = one.kind.filter(|at| is_new && *at < KINDS) else {
                continue;
            };
            let (Some(kind), Some(others)) = (stalled_hosts.kinds.get_mut(at), others.get_mut(at))
            else {
                continue;
            };
            let part = (one.of / 4).max(1);
            let all = kind.held.saturating_add(one.held);
            kind.is_short |= all > one.of.saturating_sub(part);
            if !one.has_moved() {
                kind.held = all;
            } else if kind.held == 0 {
                stalled_hosts.kept.insert(one.host);
                kind.held = all;
            } else if *others < part && all <= one.of / 2 {
                stalled_hosts.kept.insert(one.host);
                kind.held = all;
                *others += one.held;
            }
        }
        stalled_hosts
    }

    /// Whether a transfer is given up early, for those with progress.
    fn gives(&self, stalled: &Stalled) -> bool {
        let kind = stalled.kind.and_then(|kind| self.kinds.get(kind));
        match stalled.has_moved() {
            true => stalled.kind.is_some() && !self.kept.contains(&stalled.host),
            false => kind.is_some_and(|kind| kind.is_short),
        }
    }
}
