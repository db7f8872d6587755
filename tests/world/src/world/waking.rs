//! Checks for missing wake-ups. Reactors check their queues at intervals, and hosts their
//! commands: without these checks, a missing wake-up would only make a run longer.

use std::time::Duration;

use super::World;
use crate::oracle::Wrong;

impl World {
    /// Checks before time advances to `until`, or to an earlier event: a pending call
    /// requires work in progress.
    pub(super) fn check_work_in_progress(
        &self,
        until: Option<Duration>,
        now: Duration,
    ) -> Result<(), Wrong> {
        if self.reactors.sleep_over_mail() {
            return Err(Wrong(
                "a reactor sleeps with messages in its mailbox".to_owned(),
            ));
        }
        let at_once = until.is_some_and(|until| until <= now);
        let arrives = self.net.next_arrival().is_some();
        if self.next_save_at().is_some() {
            return Ok(());
        }
        if at_once || arrives || self.disks.next_at().is_some() || !self.is_undisturbed(now) {
            return Ok(());
        }
        let waits = self
            .calls
            .values()
            .find(|call| self.hosts[call.host].is_up());
        if let Some(call) = waits {
            return Err(Wrong(format!(
                "nothing is in progress, and a host waits for a response: {call:?}"
            )));
        }
        Ok(())
    }

    /// Whether no fault explains losses or delays.
    fn is_undisturbed(&self, now: Duration) -> bool {
        let stalled = self.hosts.iter().any(|host| now < host.stalled_until);
        let corrupts = self.plan.has_corruption();
        self.reactors.run() && self.draining.is_none() && self.cuts == 0 && !stalled && !corrupts
    }
}
