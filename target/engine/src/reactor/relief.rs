//! Buffers that stalled transfers have while others wait for them: their connections are
//! closed long before they would be otherwise.

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::time::Duration;

use nvmeof_backend::Storage;
use nvmeof_rdma::RateLimiter;
use nvmeof_target_core::Limit;

use super::Reactor;
use crate::fair_queue::HostId;
use crate::queue::{KINDS, Shortage, Stalled, Standing};
use crate::tag::SlotId;

/// How long nothing may move of the transfers of a connection that has moved data
/// before, and of one that has not, while others wait for their buffers. The first is
/// longer than TCP waits for two segments that were lost one after the other: at least
/// 200 ms, then twice as long (RFC 6298, section 5; Linux has the 200 ms).
const PROVEN: Duration = Duration::from_millis(800);
const UNPROVEN: Duration = Duration::from_millis(250);
/// The same where so many wait that have shown nothing yet that each of them would get
/// its turn later than after this, in all.
const ALL_IN_TURN: Duration = Duration::from_millis(80);
const LEAST: Duration = Duration::from_millis(10);
/// And where so many of a kind are in transfers of which nothing moves for that long that
/// too few are left for those that move.
const QUIET: Duration = Duration::from_millis(20);
/// How often that is looked at while somebody waits.
const LOOK: Duration = Duration::from_millis(5);

/// When transfers that stalled while others wait are looked for.
#[derive(Debug, Default)]
pub(super) struct Relief {
    at: Option<Duration>,
    log: RateLimiter,
}

/// Hosts with transfers of which nothing moves. One that has moved data before may have
/// lost a segment on the way, and keeps its buffers for a while: so does the one that has
/// moved most, whatever it has, and others as long as these have a quarter of a kind and
/// all of them a half.
#[derive(Debug, Default)]
struct Quiet {
    hosts: BTreeSet<HostId>,
    kept: BTreeSet<HostId>,
    kinds: [QuietKind; KINDS],
}

/// Buffers of one kind in such transfers.
#[derive(Clone, Copy, Debug, Default)]
struct QuietKind {
    /// But for those that are given up.
    held: u32,
    /// Whether less than a quarter is left for those that move.
    is_short: bool,
}

impl Relief {
    pub(super) fn deadline(&self) -> Option<Duration> {
        self.at
    }
}

impl<S: Storage> Reactor<S> {
    /// Somebody may wait for buffers that others have: says when to look at that.
    fn note_shortages(&mut self, now: Duration) {
        self.relief.at =
            match !self.resources.awaiting.has_queues() || !self.resources.accounts.are_several() {
                true => None,
                false => self.relief.at.or(Some(now + LOOK)),
            };
    }

    /// Closes connections whose transfers stalled, no more of them than wait for what
    /// these have.
    pub(super) fn relieve(&mut self, now: Duration) {
        self.note_shortages(now);
        if self.relief.at.is_none_or(|at| at > now) {
            return;
        }
        self.relief.at = Some(now + LOOK);
        let (mut short, patience) = self.shortages();
        if short.is_empty() {
            return;
        }
        let all = self.stalled(now);
        let quiet = Quiet::of(&all);
        for one in short
            .iter_mut()
            .filter(|one| quiet.hosts.contains(&one.host))
        {
            one.spare_proven();
        }
        for (place, stalled) in all {
            let gives = quiet.gives(&stalled);
            let patience = match stalled.has_moved() {
                true => PROVEN,
                false => patience,
            };
            let patience = match gives {
                true => patience.min(QUIET),
                false => patience,
            };
            if stalled.time < patience {
                continue;
            }
            let Some(at) = short.iter().position(|one| one.is_met_by(&stalled)) else {
                continue;
            };
            if !gives {
                short.swap_remove(at);
            }
            self.target.limit_counters().add(Limit::StalledTransfer);
            let left_out = self.relief.log.ask(now);
            self.with_queue(place, now, |queue_pair, io| {
                queue_pair.give_up(&stalled, left_out, io);
            });
        }
    }

    /// What queues wait for that others have, and how long nothing may move of hosts
    /// that have shown nothing yet, or whose address stalled.
    fn shortages(&mut self) -> (Vec<Shortage>, Duration) {
        let (mut short, mut unproven, mut suspect, mut most) = (Vec::new(), 0, 0, 1);
        let waiting: Vec<SlotId> = self.resources.awaiting.iter().copied().collect();
        for place in waiting {
            if let Some(queue_pair) = self.queues.get(place)
                && let Some(shortage) = queue_pair.shortage()
            {
                if shortage.is_of(Standing::Unproven) {
                    unproven += 1;
                    most = queue_pair.most_unproven();
                }
                suspect += u32::from(shortage.is_of(Standing::Suspect));
                short.push(shortage);
            }
        }
        // One buffer at least is for those that move data.
        let each = ALL_IN_TURN.saturating_mul(most) / unproven.max(1);
        let each = each.min(ALL_IN_TURN.saturating_mul(3) / suspect.max(1));
        (short, each.clamp(LEAST, UNPROVEN))
    }

    /// Queues with transfers: first those that others can do without. The more its host
    /// has moved the later comes one that stalls.
    fn stalled(&mut self, now: Duration) -> Vec<(SlotId, Stalled)> {
        let mut all = Vec::new();
        for place in self.queues.places() {
            let stalled = self.with_queue(place, now, |queue_pair, io| queue_pair.stalled(io));
            all.extend(stalled.flatten().map(|stalled| (place, stalled)));
        }
        all.sort_by_key(|(_, one)| (one.standing, one.moved, Reverse(one.time)));
        all
    }
}

impl Quiet {
    /// Of transfers in the order in which they are given up.
    fn of(all: &[(SlotId, Stalled)]) -> Self {
        let mut quiet = Self::default();
        let mut others = [0; KINDS];
        // Those of the host that has moved most come first.
        for (_, one) in all.iter().rev().filter(|(_, one)| one.time >= QUIET) {
            let is_new = quiet.hosts.insert(one.host);
            let Some(at) = one.kind.filter(|at| is_new && *at < KINDS) else {
                continue;
            };
            let (Some(kind), Some(others)) = (quiet.kinds.get_mut(at), others.get_mut(at)) else {
                continue;
            };
            let part = (one.of / 4).max(1);
            let all = kind.held.saturating_add(one.held);
            kind.is_short |= all > one.of.saturating_sub(part);
            if !one.has_moved() {
                kind.held = all;
            } else if kind.held == 0 {
                quiet.kept.insert(one.host);
                kind.held = all;
            } else if *others < part && all <= one.of / 2 {
                quiet.kept.insert(one.host);
                kind.held = all;
                *others += one.held;
            }
        }
        quiet
    }

    /// Whether a transfer is given up early, for those that move.
    fn gives(&self, stalled: &Stalled) -> bool {
        let kind = stalled.kind.and_then(|kind| self.kinds.get(kind));
        match stalled.has_moved() {
            true => stalled.kind.is_some() && !self.kept.contains(&stalled.host),
            false => kind.is_some_and(|kind| kind.is_short),
        }
    }
}
