//! Configuration of a gateway: its name, the groups, and times.

use std::time::Duration;

use crate::record::{Facts, MAX_GATEWAYS, MAX_GROUPS, is_name};

/// Time of a call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Time {
    /// For decisions: never goes back, any origin. It includes the time while the machine sleeps
    /// (`CLOCK_BOOTTIME`).
    pub monotonic: Duration,
    /// For administrators only: seconds since 1970.
    pub unix_s: u64,
}

/// Periods and limits in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    /// Period of renewals.
    pub renew: Duration,
    /// A gateway whose counter has not changed for this time is considered failed.
    pub lease: Duration,
    /// A gateway stops serving if its last renewal started more than `lease - margin` ago.
    pub margin: Duration,
    /// A read or write of the record without a result is repeated after this time.
    pub record_timeout: Duration,
    /// `Fence`, `Open` and `Close` fail after this time without a result.
    pub action_timeout: Duration,
    /// First delay after a failure; doubles up to `longest_retry`.
    pub retry: Duration,
    /// Longest delay after a failure.
    pub longest_retry: Duration,
}

impl Default for Timing {
    fn default() -> Self {
        Self {
            renew: Duration::from_millis(500),
            lease: Duration::from_secs(3),
            margin: Duration::from_secs(1),
            record_timeout: Duration::from_secs(1),
            action_timeout: Duration::from_secs(30),
            retry: Duration::from_millis(500),
            longest_retry: Duration::from_secs(8),
        }
    }
}

/// Whether a group returns to a preferred gateway.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Failback {
    /// Only when an administrator moves it.
    #[default]
    Never,
    /// When a preferred gateway has been alive for this time.
    After(Duration),
}

/// An ANA group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupConfig {
    /// ANAGRPID.
    pub id: u32,
    /// Its gateways, the preferred one first.
    pub gateways: Vec<String>,
}

/// Configuration of one gateway.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Its name: unique among the gateways of a record.
    pub name: String,
    /// What must agree between gateways, or be disjoint.
    pub facts: Facts,
    /// The groups.
    pub groups: Vec<GroupConfig>,
    /// Periods.
    pub timing: Timing,
    /// Fail-back policy.
    pub failback: Failback,
}

/// A configuration that is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// A name.
    #[error("gateway {0:?}: a name has 1 to 64 letters, digits, dots, hyphens or underscores")]
    Name(String),
    /// A list that is too long, or empty, or has an entry twice.
    #[error("{what}: {count} entries; between 1 and {most} different ones are permitted")]
    List {
        /// Which list.
        what: String,
        /// Its length.
        count: usize,
        /// The maximum.
        most: usize,
    },
    /// Times that do not fit each other.
    #[error(
        "lease of {lease:?}: it must be longer than the margin of {margin:?} and twice the \
         renewal period of {renew:?} together; increase the lease"
    )]
    Lease {
        /// The lease.
        lease: Duration,
        /// The margin.
        margin: Duration,
        /// The period.
        renew: Duration,
    },
    /// A fact that no record may contain.
    #[error("{0}")]
    Facts(String),
}

impl Config {
    /// Checks it.
    ///
    /// # Errors
    /// [`ConfigError`].
    pub fn check(&self) -> Result<(), ConfigError> {
        let Timing {
            renew,
            lease,
            margin,
            ..
        } = self.timing;
        if lease <= margin.saturating_add(renew.saturating_mul(2)) || renew.is_zero() {
            return Err(ConfigError::Lease {
                lease,
                margin,
                renew,
            });
        }
        self.facts.check().map_err(ConfigError::Facts)?;
        let ids = self.groups.iter().map(|group| group.id);
        check_list("groups", ids, MAX_GROUPS)?;
        for group in &self.groups {
            let what = format!("gateways of group {}", group.id);
            check_list(&what, &group.gateways, MAX_GATEWAYS)?;
        }
        let named = self.groups.iter().flat_map(|group| &group.gateways);
        match [&self.name]
            .into_iter()
            .chain(named)
            .find(|it| !is_name(it))
        {
            Some(name) => Err(ConfigError::Name(name.clone())),
            None => Ok(()),
        }
    }

    /// How long after its start a renewal permits to serve.
    pub(crate) fn validity(&self) -> Duration {
        self.timing.lease.saturating_sub(self.timing.margin)
    }

    /// A gateway that observed nothing for this time restarts its measurements.
    pub(crate) fn longest_gap(&self) -> Duration {
        self.timing.lease / 2
    }
}

fn check_list<T: Ord>(
    what: &str,
    entries: impl IntoIterator<Item = T>,
    most: usize,
) -> Result<(), ConfigError> {
    let mut entries: Vec<T> = entries.into_iter().collect();
    let count = entries.len();
    entries.sort();
    entries.dedup();
    if count == 0 || count > most || entries.len() < count {
        let what = what.to_owned();
        return Err(ConfigError::List { what, count, most });
    }
    Ok(())
}
