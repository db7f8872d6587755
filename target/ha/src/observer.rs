//! Leases without synchronized clocks: how long a gateway has not changed its counter.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::record::{Incarnation, Record};

/// What one gateway sees of another one, by its own clock.
#[derive(Clone, Copy, Debug)]
struct Observation {
    incarnation: Incarnation,
    heartbeat: u64,
    /// When this counter was first seen: the end of that read.
    since: Duration,
    /// When it was last seen: the start of that read, so that the time between is never too long.
    until: Duration,
    /// When its lease began after it was not alive.
    alive_since: Duration,
    /// Whether the counter has changed since the measurement began.
    has_advanced: bool,
}

/// State of the lease of a gateway.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Liveness {
    /// Its counter advances.
    Alive,
    /// Not observed for long enough.
    Unknown,
    /// The counter has not changed for this time.
    Expired(Duration),
}

/// Observations of all gateways in the record.
#[derive(Clone, Debug)]
pub(crate) struct Observer {
    lease: Duration,
    longest_gap: Duration,
    last_read: Option<Duration>,
    gateways: BTreeMap<String, Observation>,
}

impl Observer {
    pub(crate) fn new(lease: Duration, longest_gap: Duration) -> Self {
        Self {
            lease,
            longest_gap,
            last_read: None,
            gateways: BTreeMap::new(),
        }
    }

    /// A read between `started` and `now` returned `record`.
    pub(crate) fn handle_record(&mut self, record: &Record, started: Duration, now: Duration) {
        let is_late = |last| now.saturating_sub(last) > self.longest_gap;
        if self.last_read.is_some_and(is_late) {
            self.restart(now);
        }
        self.last_read = Some(now);
        self.gateways
            .retain(|name, _| record.gateways.contains_key(name));
        for (name, gateway) in &record.gateways {
            let lease = self.lease;
            let seen = self.gateways.entry(name.clone()).or_insert(Observation {
                incarnation: gateway.incarnation,
                heartbeat: gateway.heartbeat,
                since: now,
                until: now,
                alive_since: now,
                has_advanced: false,
            });
            let is_same = seen.incarnation == gateway.incarnation;
            if is_same && seen.heartbeat == gateway.heartbeat {
                seen.until = seen.until.max(started);
                continue;
            }
            if !is_same || seen.silence() >= lease {
                seen.alive_since = now;
            }
            seen.incarnation = gateway.incarnation;
            seen.heartbeat = gateway.heartbeat;
            (seen.since, seen.until) = (now, now);
            seen.has_advanced = is_same;
        }
    }

    /// Restarts all measurements: this gateway itself was away, or cut off.
    fn restart(&mut self, now: Duration) {
        for seen in self.gateways.values_mut() {
            (seen.since, seen.until, seen.alive_since) = (now, now, now);
            seen.has_advanced = false;
        }
    }

    pub(crate) fn liveness(&self, name: &str) -> Liveness {
        match self.gateways.get(name) {
            Some(seen) if seen.silence() >= self.lease => Liveness::Expired(seen.silence()),
            Some(seen) if seen.has_advanced => Liveness::Alive,
            _ => Liveness::Unknown,
        }
    }

    /// For how long it has been alive.
    pub(crate) fn alive_for(&self, name: &str, now: Duration) -> Duration {
        match (self.liveness(name), self.gateways.get(name)) {
            (Liveness::Alive, Some(seen)) => now.saturating_sub(seen.alive_since),
            _ => Duration::ZERO,
        }
    }
}

impl Observation {
    /// For how long the counter has not changed, at least.
    fn silence(&self) -> Duration {
        self.until.saturating_sub(self.since)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::{ControllerIds, Facts, Gateway};

    const MS: fn(u64) -> Duration = Duration::from_millis;

    fn record(heartbeat: u64) -> Record {
        let mut record = Record::default();
        let gateway = Gateway {
            incarnation: Incarnation(1),
            heartbeat,
            facts: Facts {
                controller_ids: ControllerIds { first: 1, last: 2 },
                shared: BTreeMap::new(),
                has_others: false,
            },
            drained: false,
            stopped: false,
            expired: false,
        };
        record.gateways.insert("a".to_owned(), gateway);
        record
    }

    fn observer() -> Observer {
        Observer::new(MS(3000), MS(1500))
    }

    #[test]
    fn counter_that_does_not_change_for_a_lease_has_expired() {
        let mut observer = observer();
        for at in 0..=6 {
            observer.handle_record(&record(7), MS(at * 500), MS(at * 500 + 10));
        }
        // 2990 ms: the first read ended at 10, the last one started at 3000.
        assert_eq!(observer.liveness("a"), Liveness::Unknown);
        observer.handle_record(&record(7), MS(3500), MS(3510));
        assert_eq!(observer.liveness("a"), Liveness::Expired(MS(3490)));
        observer.handle_record(&record(8), MS(4000), MS(4010));
        assert_eq!(observer.liveness("a"), Liveness::Alive);
        assert_eq!(observer.alive_for("a", MS(5010)), MS(1000));
    }

    #[test]
    fn gap_between_own_reads_restarts_the_measurement() {
        let mut observer = observer();
        for at in 0..6 {
            observer.handle_record(&record(7), MS(at * 500), MS(at * 500));
        }
        observer.handle_record(&record(7), MS(9000), MS(9000));
        assert_eq!(observer.liveness("a"), Liveness::Unknown);
    }

    #[test]
    fn slow_read_does_not_lengthen_the_silence() {
        let mut observer = observer();
        observer.handle_record(&record(7), MS(0), MS(1400));
        observer.handle_record(&record(7), MS(1400), MS(2800));
        observer.handle_record(&record(7), MS(2800), MS(4200));
        assert_eq!(observer.liveness("a"), Liveness::Unknown);
    }
}
