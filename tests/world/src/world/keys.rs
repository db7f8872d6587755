//! Authentication of connected hosts again, and rotation of their keys.

use std::time::Duration;

use nvmeof_target_core::{AuthenticationOutcome, Change, KeyState, Subject};
use nvmeof_target_engine::Mail;

use super::{World, model};
use crate::imposter;
use crate::oracle::Wrong;
use crate::plan::KeyStep;

/// A step of a rotation that follows later.
#[derive(Clone, Copy, Debug)]
pub(super) enum KeyChange {
    /// The host gets the new key. The target accepts the old one for this time.
    Take { host: usize, then: Duration },
    /// The target accepts the old key no more.
    Remove(usize),
}

/// Until a rotation is continued whose host may still use the old key.
const LATER: Duration = Duration::from_millis(5);

impl World {
    /// Starts the changes of keys that are due. Returns whether there was one.
    pub(super) fn change_keys(&mut self, now: Duration) -> Result<bool, Wrong> {
        let mut any = false;
        while let Some((after, step)) = self.next_key_step()
            && self.ended >= after
        {
            self.key_steps += 1;
            any = true;
            self.say(format_args!("{step:?}"));
            match step {
                KeyStep::Reauthenticate(host) => self.reauthenticate(host),
                KeyStep::Rotate { host, after } => self.rotate(host, after, now)?,
            }
        }
        Ok(any)
    }

    fn next_key_step(&self) -> Option<(u64, KeyStep)> {
        let plan = self.plan.authentication.as_ref()?;
        plan.steps.get(self.key_steps).copied()
    }

    /// Whether the plan has no more changes of keys.
    pub(super) fn keys_are_done(&self) -> bool {
        self.next_key_step().is_none()
    }

    /// Continues rotations. Returns whether there was one.
    pub(super) fn continue_rotations(&mut self, now: Duration) -> Result<bool, Wrong> {
        let mut any = false;
        while let Some(entry) = self.key_changes.first_entry()
            && entry.key().0 <= now
        {
            any = true;
            match entry.remove() {
                KeyChange::Take { host, then } => {
                    self.say(format_args!("host {host} gets its new key"));
                    self.keys.as_mut().unwrap().take(host);
                    self.reauthenticate(host);
                    self.key_change(now + then, KeyChange::Remove(host));
                }
                KeyChange::Remove(host) if self.hosts[host].may_use_old_key() => {
                    self.key_change(now + LATER, KeyChange::Remove(host));
                }
                KeyChange::Remove(host) => {
                    self.say(format_args!("the old key of host {host} is removed"));
                    self.keys.as_mut().unwrap().remove_old(host);
                    self.apply_keys()?;
                }
            }
        }
        Ok(any)
    }

    fn key_change(&mut self, when: Duration, change: KeyChange) {
        self.undone += 1;
        self.key_changes.insert((when, self.undone), change);
    }

    /// The queues of a connected host are authenticated again, with the key that it has now.
    fn reauthenticate(&mut self, host: usize) {
        let keys = self.keys.as_ref().map(|keys| keys.of(host));
        self.hosts[host].set_keys(keys);
        self.hosts[host].reauthenticate();
    }

    fn rotate(&mut self, host: usize, after: [Duration; 2], now: Duration) -> Result<(), Wrong> {
        let keys = self.keys.as_mut().unwrap();
        if keys.is_rotating(host) {
            return Ok(());
        }
        keys.rotate(host);
        let [take, then] = after;
        self.key_change(now + take, KeyChange::Take { host, then });
        self.apply_keys()
    }

    /// Applies the keys to the target, which disconnects nobody. A stopped target applies them
    /// when it starts.
    fn apply_keys(&mut self) -> Result<(), Wrong> {
        if !self.reactors.run() {
            return Ok(());
        }
        self.reactors.send(Mail::POLL);
        let model = model(&self.plan, &self.away, self.keys.as_ref());
        let applied = self.target.apply(model);
        let applied = applied.map_err(|error| Wrong(error.to_string()))?;
        let is_key = |change: &Change| matches!(change.subject, Subject::HostKey { .. });
        let only_keys = !applied.changes.is_empty() && applied.changes.iter().all(is_key);
        if !only_keys || !applied.disconnected.is_empty() {
            return Err(Wrong(format!(
                "the keys of one host changed, but the plan is {applied:?}"
            )));
        }
        Ok(())
    }

    /// Checks that all controllers are of hosts that proved a key, from their own addresses.
    pub(super) fn check_controllers(&self) -> Result<(), Wrong> {
        if self.keys.is_none() {
            return Ok(());
        }
        for one in self.target.connected() {
            if one.authentication.is_none() {
                return Err(Wrong(format!("a host did not prove its key: {one:?}")));
            }
            if one.peer.contains(&imposter::IP.to_string()) {
                return Err(Wrong(format!("a peer without the key has {one:?}")));
            }
        }
        Ok(())
    }

    /// Without faults, every authentication succeeds, so that rotations are over.
    pub(super) fn check_keys_are_current(&self) -> Result<(), Wrong> {
        if !self.plan.is_peaceful() {
            return Ok(());
        }
        let old = self.target.connected().into_iter().find(|one| {
            let authentication = one.authentication.as_ref();
            authentication.is_some_and(|it| it.key != KeyState::Current)
        });
        match old {
            Some(one) => Err(Wrong(format!("the key was rotated, but {one:?}"))),
            None => Ok(()),
        }
    }

    /// Counts the authentications of the target, which ends.
    pub(super) fn count_authentications(&mut self) {
        let report = self.target.authentication_report();
        self.authenticated += report.all.get(AuthenticationOutcome::Success);
    }
}
