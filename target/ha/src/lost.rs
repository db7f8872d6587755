//! Controllers of other gateways that hosts lost: when their commands can take effect no more.
//!
//! A host asks one gateway about a controller of another one (Cross-Controller Reset). The answer
//! follows from records that were read after the host asked:
//!
//! - The gateway of the controller owned no group any more, and nothing was left to fence. No
//!   operation that it had begun can take effect.
//! - It was marked as expired or stopped, or another process had joined under its name. It
//!   disconnects all hosts before it serves a group again, so that it begins none of the commands
//!   that it still receives.

use std::time::Duration;

use crate::record::{Incarnation, Owner, Record};

/// How long it is asked for, at most.
const LONGEST: Duration = Duration::from_secs(60);
/// A gateway that has renewed its lease so often meanwhile is alive.
const RENEWALS: u64 = 3;

/// A controller of another gateway that a host has lost.
#[derive(Clone, Debug)]
pub struct LostController {
    gateway: String,
    asked: Duration,
    /// Process and heartbeat of the gateway in the first record that was read since.
    first: Option<(Incarnation, u64)>,
    /// Whether the process has to disconnect its hosts before it serves a group again.
    is_out: bool,
}

/// What is known of a [`LostController`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LostState {
    /// Not known yet.
    Pending,
    /// Its commands can take effect no more.
    Ended,
    /// This gateway cannot know it: the host has to wait.
    Unknown,
}

impl LostController {
    /// Of the gateway that assigns `cntlid`, if another one than `me` does.
    pub(crate) fn of(record: &Record, me: &str, cntlid: u16, now: Duration) -> Option<Self> {
        let mut gateways = record.gateways.iter();
        let (name, _) = gateways.find(|(name, gateway)| {
            let ids = gateway.facts.controller_ids;
            *name != me && cntlid != 0 && (ids.first..=ids.last).contains(&cntlid)
        })?;
        Some(Self {
            gateway: name.clone(),
            asked: now,
            first: None,
            is_out: false,
        })
    }

    /// What `record` says, which an operation read or wrote that began at `begun`.
    pub(crate) fn judge(&mut self, record: &Record, begun: Duration, now: Duration) -> LostState {
        if begun <= self.asked {
            return match now.saturating_sub(self.asked) > LONGEST {
                true => LostState::Unknown,
                false => LostState::Pending,
            };
        }
        let entry = record.gateways.get(&self.gateway);
        let Some(entry) = entry.filter(|entry| !entry.facts.has_others) else {
            return LostState::Unknown;
        };
        let (incarnation, heartbeat) = *self
            .first
            .get_or_insert((entry.incarnation, entry.heartbeat));
        self.is_out |= entry.expired || entry.stopped || entry.incarnation != incarnation;
        let owner = Owner {
            gateway: self.gateway.clone(),
            incarnation,
        };
        let mut groups = record.groups.values();
        let may_take_effect =
            groups.any(|group| group.owner.as_ref() == Some(&owner) || !group.to_fence.is_empty());
        let is_alive = entry.heartbeat >= heartbeat.saturating_add(RENEWALS);
        match (self.is_out, may_take_effect) {
            (true, false) => LostState::Ended,
            (false, _) if is_alive => LostState::Unknown,
            _ if now.saturating_sub(self.asked) > LONGEST => LostState::Unknown,
            _ => LostState::Pending,
        }
    }
}
