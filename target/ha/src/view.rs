//! What a gateway knows at one moment: the record, its lease, the leases of others.

use std::time::Duration;

use crate::config::{Config, Time};
use crate::observer::Observer;
use crate::record::{Gateway, Owner, Record};

/// The basis of a decision.
#[derive(Clone, Copy, Debug)]
pub(crate) struct View<'a> {
    pub(crate) now: Time,
    pub(crate) config: &'a Config,
    /// This gateway.
    pub(crate) me: &'a Owner,
    pub(crate) record: &'a Record,
    pub(crate) observer: &'a Observer,
    /// Whether the record contains this process.
    pub(crate) is_member: bool,
    /// Whether it is a member and its last renewal is recent enough to serve and to decide.
    pub(crate) is_valid: bool,
    /// Whether it must close its images: it cannot renew its lease, and has not been valid for one
    /// lease, or stops.
    pub(crate) has_lapsed: bool,
    /// Whether it releases all groups and stops.
    pub(crate) is_stopping: bool,
    /// When it became a member.
    pub(crate) joined_at: Duration,
}

impl View<'_> {
    pub(crate) fn is_me(&self, name: &str) -> bool {
        self.me.gateway == name
    }

    /// This gateway in the record.
    pub(crate) fn entry(&self) -> Option<&Gateway> {
        self.record.gateways.get(&self.me.gateway)
    }
}
