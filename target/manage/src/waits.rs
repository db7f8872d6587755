//! Why a configured object is not served yet, and since when.

use std::fmt::Display;
use std::time::SystemTime;

use nvmeof_target_config::ConfigError;

/// Why an object is not served yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WaitReason {
    /// Cause and remedy, from the last attempt.
    pub why: String,
    /// Since when.
    pub since: SystemTime,
}

impl WaitReason {
    /// Waits from now on because of `error`.
    pub(crate) fn of(error: &ConfigError) -> Self {
        Self {
            why: error.what().to_owned(),
            since: SystemTime::now(),
        }
    }

    /// Another attempt for `what` failed. Logs the reason if it is a new one.
    pub(crate) fn still(&mut self, what: &dyn Display, why: &str) {
        if self.why != why {
            tracing::warn!("still waiting for {what}: {why}; retrying");
            why.clone_into(&mut self.why);
        }
    }
}
