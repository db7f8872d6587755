//! The values of features: what Set Features stores.

use std::collections::BTreeMap;
use std::time::Duration;

use nvmeof_wire::features::{ErrorRecovery, Timestamp};
use nvmeof_wire::reservation::NoticeMask;

use super::warnings::WARNING_TEMPERATURE;

/// Granularity of the Keep Alive Timeout in milliseconds (KAS is 10, in units of 100 ms).
pub(crate) const KEEP_ALIVE_GRANULARITY_MS: u32 = 1000;

/// Current values. A reset restores the defaults.
#[derive(Clone, Debug)]
pub(crate) struct Features {
    pub(crate) arbitration: u32,
    pub(crate) power_management: u32,
    /// Composite temperature above which to warn, in kelvin.
    pub(crate) over_temperature: u16,
    /// Composite temperature below which to warn, in kelvin.
    pub(crate) under_temperature: u16,
    /// By NSID, for namespaces for which it was set.
    pub(crate) error_recovery: BTreeMap<u32, ErrorRecovery>,
    /// Reservation notifications that are not reported, by NSID, for namespaces for which that
    /// was set.
    pub(crate) notice_masks: BTreeMap<u32, NoticeMask>,
    pub(crate) volatile_cache: bool,
    /// I/O queues granted, if the host requested a number; otherwise the maximum.
    pub(crate) io_queues: Option<u16>,
    pub(crate) write_atomicity: u32,
    pub(crate) async_events: u32,
    /// Keep alive timeout in milliseconds, rounded up to the granularity.
    pub(crate) kato_ms: u32,
    /// The first bytes of the host behavior support structure; the others
    /// are reserved.
    pub(crate) host_behavior: [u8; 4],
    pub(crate) clock: HostClock,
}

/// The time as the host counts it (Base 2.1, 5.1.25.1.7, Timestamp).
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct HostClock {
    /// Milliseconds when it was set; `None`: it counts from the reset.
    pub(crate) set_ms: Option<u64>,
    /// When that was, by the clock of the target.
    pub(crate) at: Duration,
}

impl HostClock {
    /// What Get Features returns.
    pub(crate) fn timestamp(&self, now: Duration) -> Timestamp {
        let passed = now.saturating_sub(self.at).as_millis();
        let passed = u64::try_from(passed).unwrap_or(u64::MAX);
        let origin = match self.set_ms {
            Some(_) => Timestamp::ORIGIN_HOST,
            None => Timestamp::ORIGIN_RESET,
        };
        // SYNCH stays 0: the clock does not stop while the controller exists.
        Timestamp::new(self.set_ms.unwrap_or(0).wrapping_add(passed), origin)
    }
}

impl Features {
    /// Default values, and a keep alive timeout.
    pub(crate) fn new(kato_ms: u32) -> Self {
        Self {
            arbitration: 0,
            power_management: 0,
            // Base 2.1, 5.1.25.1.3: of the composite temperature it is WCTEMP and 0h.
            over_temperature: WARNING_TEMPERATURE,
            under_temperature: 0,
            error_recovery: BTreeMap::new(),
            notice_masks: BTreeMap::new(),
            volatile_cache: true,
            io_queues: None,
            write_atomicity: 0,
            async_events: 0,
            kato_ms: rounded(kato_ms),
            host_behavior: [0; 4],
            clock: HostClock::default(),
        }
    }

    /// The value of a namespace. By default, recovery is not limited in time.
    pub(crate) fn error_recovery_of(&self, nsid: u32) -> ErrorRecovery {
        self.error_recovery.get(&nsid).copied().unwrap_or_default()
    }

    /// Reservation notifications of a namespace that are not reported. By default, all are.
    pub(crate) fn notice_mask_of(&self, nsid: u32) -> NoticeMask {
        self.notice_masks.get(&nsid).copied().unwrap_or_default()
    }
}

/// A keep alive timeout "rounded up to the nearest multiple of the
/// granularity" (Base 2.1, 5.1.25.1.8). 0 disables the timer.
pub(crate) fn rounded(kato_ms: u32) -> u32 {
    kato_ms
        .checked_next_multiple_of(KEEP_ALIVE_GRANULARITY_MS)
        .unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timestamp_reports_its_origin_and_advances() {
        let at = Duration::from_secs(100);
        let later = at + Duration::from_millis(1234);
        let since_reset = HostClock { set_ms: None, at };
        let timestamp = since_reset.timestamp(later);
        assert_eq!(
            (timestamp.ms(), timestamp.attributes),
            (1234, Timestamp::ORIGIN_RESET)
        );
        // 48 bits, then it starts again.
        let set_ms = Some((1 << 48) - 1);
        let timestamp = HostClock { set_ms, at }.timestamp(later);
        assert_eq!(
            (timestamp.ms(), timestamp.attributes),
            (1233, Timestamp::ORIGIN_HOST)
        );
    }

    #[test]
    fn keep_alive_is_rounded_up_and_never_wraps() {
        let rounds = [
            (0, 0),
            (1, 1000),
            (1000, 1000),
            (1001, 2000),
            (u32::MAX, u32::MAX),
        ];
        for (asked, given) in rounds {
            assert_eq!(rounded(asked), given);
        }
    }
}
