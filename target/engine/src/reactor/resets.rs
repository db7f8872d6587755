//! Cross-Controller Resets that wait for a backing store: logged with its name. No deadline
//! completes such a reset, so an operator has to know which backing store does not respond.

use std::time::Duration;

use nvmeof_backend::BackingStores;
use nvmeof_target_core::InFlight;

use super::Reactor;
use crate::queue::{Impacted, QueuePair};

/// A reset that waits longer is logged.
const LONGEST: Duration = Duration::from_secs(5);

/// It is logged again after this time.
const AGAIN: Duration = Duration::from_secs(60);

/// When the reset of a queue is logged.
#[derive(Debug, Default)]
pub(super) struct ResetLog {
    /// When it was seen first, and when it is logged next.
    times: Option<(Duration, Duration)>,
}

impl ResetLog {
    /// How long the reset has waited, if it is logged now.
    pub(super) fn due(&mut self, now: Duration) -> Option<Duration> {
        let (since, next) = self.times.get_or_insert((now, now + LONGEST));
        (now >= *next).then(|| {
            *next = now + AGAIN;
            now.saturating_sub(*since)
        })
    }
}

/// A reset that waits for backing stores.
pub(super) struct DelayedReset {
    pub(super) impacted: Impacted,
    /// Operations of the queue that backing stores have.
    pub(super) operations: u32,
    pub(super) waited: Duration,
}

/// A queue that is gone, of which backing stores still have operations.
#[derive(Debug)]
pub(super) struct Departed {
    in_flight: InFlight,
    impacted: Option<Impacted>,
}

impl Departed {
    pub(super) fn of(queue_pair: &mut QueuePair) -> Option<Self> {
        let impacted = queue_pair.association();
        queue_pair.take_in_flight().map(|in_flight| Self {
            in_flight,
            impacted,
        })
    }

    /// Its controller, if that is being reset.
    pub(super) fn impacted(&self) -> Option<Impacted> {
        self.impacted
            .clone()
            .filter(|_| self.in_flight.is_awaited())
    }

    /// Whether its commands used no other backing stores than those that `is_it` accepts.
    pub(super) fn uses_only(&self, is_it: impl Fn(u32) -> bool) -> bool {
        let impacted = self.impacted.as_ref();
        impacted.is_some_and(|it| it.stores.iter().all(|store| is_it(*store)))
    }

    /// Backing stores have nothing of it any more. Returns whether every reactor must poll its
    /// queues.
    pub(super) fn release(self) -> bool {
        self.in_flight.release()
    }
}

impl<S: BackingStores> Reactor<S> {
    /// Logs the resets that wait for long. Returns whether any waits.
    pub(super) fn log_delayed_resets(&mut self, now: Duration) -> bool {
        let (delayed, is_any) = self.queues.delayed_resets(now);
        for DelayedReset {
            impacted,
            operations,
            waited,
        } in delayed
        {
            let Impacted {
                peer,
                host,
                subsystem,
                cntlid,
                stores,
            } = impacted;
            let stores: Vec<_> = stores.iter().map(|one| self.stores.name(*one)).collect();
            let (seconds, stores) = (waited.as_secs(), stores.join(", "));
            let Some(left_out) = self.resources.connect_log.ask(peer, now) else {
                continue;
            };
            tracing::warn!(
                %peer,
                host,
                subsystem,
                cntlid,
                left_out,
                "Cross-Controller Reset incomplete after {seconds} s: {operations} operations \
                 not completed by {stores}; the reset completes when they do"
            );
        }
        is_any
    }
}
