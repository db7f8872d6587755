//! Buffers that stalled transfers have while others wait for them: their connections are
//! closed long before they would be otherwise.

use std::time::Duration;

use nvmeof_rdma::Sparingly;
use nvmeof_target_core::Limit;

use super::Reactor;
use crate::queue::{Shortage, Stalled, Standing};
use crate::storage::Storage;
use crate::tag::Place;

/// How long nothing may move of the transfers of a connection that has moved data
/// before, and of one that has not, while others wait for their buffers.
const PROVEN: Duration = Duration::from_millis(500);
const UNPROVEN: Duration = Duration::from_millis(250);
/// The same where so many wait that have shown nothing yet that each of them would get
/// its turn later than after this, in all.
const ALL_IN_TURN: Duration = Duration::from_millis(80);
const LEAST: Duration = Duration::from_millis(10);
/// And of connections that have moved data before, where several stall at the same
/// time: one waits for a packet that was lost, many keep buffers from others.
const LEAST_PROVEN: Duration = Duration::from_millis(80);
/// How often that is looked at while somebody waits.
const LOOK: Duration = Duration::from_millis(5);

/// When transfers that stalled while others wait are looked for.
#[derive(Debug, Default)]
pub(super) struct Relief {
    at: Option<Duration>,
    log: Sparingly,
}

impl Relief {
    pub(super) fn deadline(&self) -> Option<Duration> {
        self.at
    }
}

impl<S: Storage> Reactor<S> {
    /// Somebody may wait for buffers that others have: says when to look at that.
    fn note_shortages(&mut self, now: Duration) {
        self.relief.at = match self.hungry.is_empty() || !self.accounts.are_several() {
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
        let many = all.iter().filter(|(_, one)| one.time >= LEAST_PROVEN);
        let many = u32::try_from(many.count()).unwrap_or(u32::MAX).max(1);
        let proven = (PROVEN / many).max(LEAST_PROVEN);
        for (place, stalled) in all {
            let patience = match stalled.standing {
                Standing::Proven => proven,
                _ => patience,
            };
            if stalled.time < patience {
                continue;
            }
            let Some(at) = short.iter().position(|one| one.is_met_by(&stalled)) else {
                continue;
            };
            short.swap_remove(at);
            self.target.hits().add(Limit::StalledTransfer);
            let left_out = self.relief.log.ask(now);
            self.with_queue(place, now, |edge, io| edge.give_up(&stalled, left_out, io));
        }
    }

    /// What queues wait for that others have, and how long nothing may move of hosts
    /// that have shown nothing yet, or whose address stalled.
    fn shortages(&mut self) -> (Vec<Shortage>, Duration) {
        let (mut short, mut unproven, mut suspect, mut most) = (Vec::new(), 0, 0, 1);
        let waiting: Vec<Place> = self.hungry.iter().copied().collect();
        for place in waiting {
            if let Some(edge) = self.queues.get(place)
                && let Some(shortage) = edge.shortage()
            {
                if shortage.is_of(Standing::Unproven) {
                    unproven += 1;
                    most = edge.most_unproven();
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

    /// Queues with transfers, those of which nothing moved for longest first.
    fn stalled(&mut self, now: Duration) -> Vec<(Place, Stalled)> {
        let mut all = Vec::new();
        for place in self.queues.places() {
            let stalled = self.with_queue(place, now, |edge, io| edge.stalled(io));
            all.extend(stalled.flatten().map(|stalled| (place, stalled)));
        }
        all.sort_by_key(|(_, stalled)| std::cmp::Reverse(stalled.time));
        all
    }
}
