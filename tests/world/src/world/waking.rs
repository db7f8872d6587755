//! That nobody is left asleep who has something to do. Reactors look after their queues
//! now and then, and hosts after their commands: without these checks a wake-up that is
//! missing would only make a run longer.

use std::time::Duration;

use super::World;
use crate::oracle::Wrong;

impl World {
    /// Before time moves to `until`, or to what arrives before: whoever waits for an
    /// answer waits for somebody.
    pub(super) fn check_under_way(
        &self,
        until: Option<Duration>,
        now: Duration,
    ) -> Result<(), Wrong> {
        if self.reactors.sleep_over_mail() {
            return Err(Wrong("a reactor has mail and sleeps".to_owned()));
        }
        let at_once = until.is_some_and(|until| until <= now);
        let arrives = self.net.next_arrival().is_some();
        if at_once || arrives || self.disks.next_at().is_some() || !self.is_undisturbed(now) {
            return Ok(());
        }
        let waits = self
            .calls
            .values()
            .find(|call| self.hosts[call.host].is_up());
        if let Some(call) = waits {
            return Err(Wrong(format!(
                "nothing is under way, and somebody waits for an answer: {call:?}"
            )));
        }
        Ok(())
    }

    /// Whether nothing gets lost or is late but by somebody's fault.
    fn is_undisturbed(&self, now: Duration) -> bool {
        let hangs = self.hosts.iter().any(|host| now < host.hangs_until);
        let corrupts = self.plan.has_corruption();
        self.reactors.run() && self.draining.is_none() && self.cuts == 0 && !hangs && !corrupts
    }
}
