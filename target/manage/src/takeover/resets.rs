//! Cross-Controller Resets of controllers of other gateways, which hosts have lost.

use std::sync::Arc;

use nvmeof_target_core::RemoteReset;
use nvmeof_target_ha::{LostController, LostState, Machine, Time};

/// Resets in progress, at most. Hosts wait if one more fails.
const MOST: usize = 1024;

/// Those in progress. Each ends in a bounded time.
#[derive(Default)]
pub(super) struct Resets {
    pending: Vec<(LostController, Arc<RemoteReset>)>,
    /// Whether one has ended since they were judged.
    has_ended: bool,
}

impl Resets {
    pub(super) fn begin(
        &mut self,
        machine: &Machine,
        now: Time,
        cntlid: u16,
        reset: Arc<RemoteReset>,
    ) {
        // Of those whose controller was reset itself, nobody asks.
        self.pending
            .retain(|(_, reset)| Arc::strong_count(reset) > 1);
        let lost = machine.ask_lost(now, cntlid);
        match lost.filter(|_| self.pending.len() < MOST) {
            Some(lost) => self.pending.push((lost, reset)),
            None => {
                reset.end(false);
                self.has_ended = true;
            }
        }
    }

    /// Ends those of which the outcome is known by now. Returns whether there are any.
    pub(super) fn judge(&mut self, machine: &Machine, now: Time) -> bool {
        let mut has_ended = std::mem::take(&mut self.has_ended);
        self.pending.retain_mut(|(lost, reset)| {
            let state = machine.judge_lost(now, lost);
            if state != LostState::Pending {
                reset.end(state == LostState::Ended);
                has_ended = true;
            }
            state == LostState::Pending
        });
        has_ended
    }
}
