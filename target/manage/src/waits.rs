//! Why something that is configured is not served yet, and since when.

use std::time::SystemTime;

use nvmeof_target_config::ConfigError;

/// Why something is not served yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waits {
    /// Cause and remedy, of the last try.
    pub why: String,
    /// Since when.
    pub since: SystemTime,
}

impl Waits {
    /// Since now, for that reason.
    pub(crate) fn of(error: &ConfigError) -> Self {
        Self {
            why: error.what().to_owned(),
            since: SystemTime::now(),
        }
    }

    /// The next try failed as well. A reason that is new is logged.
    pub(crate) fn still(&mut self, why: &str) {
        if self.why != why {
            tracing::warn!("still waiting: {why}");
            why.clone_into(&mut self.why);
        }
    }
}
