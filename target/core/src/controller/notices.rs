//! Asynchronous events that wait for a request, and events that are masked until their
//! log page is read.

use std::collections::BTreeSet;
use std::time::Duration;

use bitflags::bitflags;
use nvmeof_wire::admin::LogId;
use nvmeof_wire::aer::{AsyncEvent, EventType};
use nvmeof_wire::log::ChangedNamespaces;
use nvmeof_wire::log::changed::CHANGED_NAMESPACES_MAX;

/// Requests that may be outstanding (AERL, 0's based).
pub(crate) const MAX_REQUESTS: usize = 4;

bitflags! {
    /// Kinds of events, by the bit that enables each in the Asynchronous
    /// Event Configuration feature (Base 2.1, 5.1.25.1.5).
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
    pub(crate) struct Kinds: u32 {
        /// SMART critical warning: temperature.
        const TEMPERATURE = 1 << 1;
        /// SMART critical warning: a backing store of the subsystem is gone.
        const RELIABILITY = 1 << 2;
        /// A namespace changed.
        const NAMESPACE = 1 << 8;
        /// The state or members of an ANA group changed.
        const ANA = 1 << 11;
        /// A Cross-Controller Reset completed.
        const CROSS_CONTROLLER_RESET = 1 << 20;
        /// Another controller lost communication with the host.
        const LOST_HOST_COMMUNICATION = 1 << 21;
        /// The discovery log page changed.
        const DISCOVERY = 1 << 31;
        /// SMART critical warnings that can be enabled and never occur.
        const OTHER_SMART = 0b1_1001;
        /// An internal error failed a command. The feature has no bit for errors (this
        /// one is reserved in it): they are always reported.
        const INTERNAL_ERROR = 1 << 26;
        /// A notification about a reservation. The feature has no bit for it (this one is
        /// reserved in it): another feature masks them.
        const RESERVATION = 1 << 25;
    }
}

/// One asynchronous event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Notice {
    pub(crate) kind: Kinds,
    pub(crate) event: AsyncEvent,
}

pub(crate) const NAMESPACE_CHANGED: Notice = Notice {
    kind: Kinds::NAMESPACE,
    event: AsyncEvent::NAMESPACE_CHANGED,
};
pub(crate) const ANA_CHANGED: Notice = Notice {
    kind: Kinds::ANA,
    event: AsyncEvent::ANA_CHANGED,
};
pub(crate) const DISCOVERY_CHANGED: Notice = Notice {
    kind: Kinds::DISCOVERY,
    event: AsyncEvent::DISCOVERY_CHANGED,
};
pub(crate) const CROSS_CONTROLLER_RESET: Notice = Notice {
    kind: Kinds::CROSS_CONTROLLER_RESET,
    event: AsyncEvent::CROSS_CONTROLLER_RESET,
};
pub(crate) const LOST_HOST_COMMUNICATION: Notice = Notice {
    kind: Kinds::LOST_HOST_COMMUNICATION,
    event: AsyncEvent::LOST_HOST_COMMUNICATION,
};
pub(crate) const RESERVATION: Notice = Notice {
    kind: Kinds::RESERVATION,
    event: AsyncEvent::RESERVATION,
};
pub(crate) const TEMPERATURE: Notice = Notice {
    kind: Kinds::TEMPERATURE,
    event: AsyncEvent::TEMPERATURE,
};

pub(crate) const RELIABILITY: Notice = Notice {
    kind: Kinds::RELIABILITY,
    event: AsyncEvent::RELIABILITY,
};
pub(crate) const INTERNAL_ERROR: Notice = Notice {
    kind: Kinds::INTERNAL_ERROR,
    event: AsyncEvent::TRANSIENT_ERROR,
};

/// In the order of reporting.
const ALL: [Notice; 9] = [
    CROSS_CONTROLLER_RESET,
    LOST_HOST_COMMUNICATION,
    RESERVATION,
    INTERNAL_ERROR,
    RELIABILITY,
    TEMPERATURE,
    NAMESPACE_CHANGED,
    ANA_CHANGED,
    DISCOVERY_CHANGED,
];

/// How long a reported notice masks others of its type while its log page is not read:
/// longer than a host needs to read the page, and short enough for the others.
pub(crate) const MASK_TIME: Duration = Duration::from_millis(500);

impl Notice {
    /// All events that reading its log page clears.
    fn cleared_with(self) -> Kinds {
        let its = ALL.iter().filter(|other| other.event.log == self.event.log);
        its.fold(Kinds::empty(), |kinds, other| kinds | other.kind)
    }
}

/// The events of one controller.
///
/// Base 2.1, 5.1.2: when the controller reports an event, "subsequent events of that event
/// type are automatically masked by the controller until the host clears that event", and
/// "an event is cleared by reading the log page associated with that event". A masked event
/// stays pending and is sent later, unless its own page is read meanwhile.
///
/// Each notice has its own page, and some hosts do not read all of them: Linux enables ANA
/// notices even if it does not use ANA (`nvme_handle_aen_notice`), and reads the page of
/// changed namespaces after the previous scan (`nvme_scan_work`), which may wait for access
/// to a namespace. A notice whose page is not read therefore masks those of other pages for
/// [`MASK_TIME`] only; those of its own page stay masked until the page is read.
#[derive(Debug, Default)]
pub(crate) struct Notices {
    /// Not sent yet.
    pending: Kinds,
    /// Sent, and others that are cleared with it; the log page has not been read since.
    masked: Kinds,
    /// When the last notice was sent.
    sent_at: Duration,
}

impl Notices {
    /// Raises an event, if it is enabled. Returns whether it was neither pending nor
    /// masked before.
    pub(crate) fn raise(&mut self, notice: Notice, enabled: u32) -> bool {
        let always = Kinds::INTERNAL_ERROR | Kinds::RESERVATION;
        if !always.contains(notice.kind) && enabled & notice.kind.bits() == 0 {
            return false;
        }
        let before = self.pending | self.masked;
        self.pending |= notice.kind;
        !before.contains(notice.kind)
    }

    /// The host read a log page without asking to retain the event.
    pub(crate) fn page_read(&mut self, page: LogId) {
        for notice in ALL.iter().filter(|notice| notice.event.log == page) {
            self.masked.remove(notice.kind);
            self.pending.remove(notice.kind);
        }
    }

    /// The next event to send.
    pub(crate) fn next(&mut self, now: Duration) -> Option<Notice> {
        let is_due = |notice: &&Notice| self.due_of(notice).is_some_and(|at| at <= now);
        let next = *ALL.iter().find(is_due)?;
        self.pending.remove(next.kind);
        self.masked.insert(next.cleared_with());
        if next.event.kind == EventType::NOTICE {
            self.sent_at = now;
        }
        Some(next)
    }

    /// When [`next`](Self::next) returns an event, if the host reads no page.
    pub(crate) fn due(&self) -> Option<Duration> {
        ALL.iter().filter_map(|notice| self.due_of(notice)).min()
    }

    fn due_of(&self, notice: &Notice) -> Option<Duration> {
        if !(self.pending - self.masked).contains(notice.kind) {
            return None;
        }
        // The other event types have one page each.
        let sent = ALL.iter().filter(|other| self.masked.contains(other.kind));
        let of_its_type = sent
            .filter(|other| other.event.kind == notice.event.kind)
            .count();
        Some(match of_its_type {
            0 => Duration::ZERO,
            _ => self.sent_at + MASK_TIME,
        })
    }

    /// Whether there is an event to send, now or when it is [`due`](Self::due).
    pub(crate) fn is_ready(&self) -> bool {
        !(self.pending - self.masked).is_empty()
    }

    /// Whether an event of that kind is pending, or the host has not read its log page.
    pub(crate) fn is_unread(&self, kind: Kinds) -> bool {
        (self.pending | self.masked).intersects(kind)
    }

    /// Forgets everything, as a controller reset does.
    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }
}

/// Namespaces that changed since the host last read the log page.
#[derive(Clone, Debug, Default)]
pub(crate) struct ChangedList {
    /// At most one more than fits the page, which suffices to detect the overflow.
    nsids: BTreeSet<u32>,
}

impl ChangedList {
    pub(crate) fn add(&mut self, nsids: &[u32]) {
        for nsid in nsids {
            if self.nsids.len() <= CHANGED_NAMESPACES_MAX {
                self.nsids.insert(*nsid);
            }
        }
    }

    pub(crate) fn to_page(&self) -> ChangedNamespaces {
        ChangedNamespaces::new(self.nsids.iter().copied())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Duration = Duration::from_secs(60);

    #[test]
    fn event_is_sent_once_until_its_page_is_read() {
        let mut notices = Notices::default();
        let enabled = Kinds::NAMESPACE.bits();
        notices.raise(NAMESPACE_CHANGED, enabled);
        assert_eq!(notices.next(NOW), Some(NAMESPACE_CHANGED));
        notices.raise(NAMESPACE_CHANGED, enabled);
        assert!(!notices.is_ready());
        assert_eq!(notices.next(NOW), None);
        notices.page_read(LogId::CHANGED_NAMESPACES);
        notices.raise(NAMESPACE_CHANGED, enabled);
        assert_eq!(notices.next(NOW), Some(NAMESPACE_CHANGED));
    }

    #[test]
    fn event_type_is_masked_until_its_page_is_read() {
        let mut notices = Notices::default();
        let enabled = (Kinds::TEMPERATURE | Kinds::RELIABILITY | Kinds::ANA).bits();
        for notice in [TEMPERATURE, RELIABILITY, ANA_CHANGED] {
            notices.raise(notice, enabled);
        }
        assert_eq!(notices.next(NOW), Some(RELIABILITY));
        assert_eq!(
            notices.next(NOW),
            Some(ANA_CHANGED),
            "it is of another type"
        );
        assert!(!notices.is_ready());
        // The page covered both.
        notices.page_read(LogId::SMART);
        assert!(!notices.is_ready());
        notices.raise(TEMPERATURE, enabled);
        assert_eq!(notices.next(NOW), Some(TEMPERATURE));
    }

    #[test]
    fn notice_waits_for_the_page_of_the_previous_one() {
        let mut notices = Notices::default();
        let enabled = (Kinds::NAMESPACE | Kinds::ANA).bits();
        for notice in [ANA_CHANGED, NAMESPACE_CHANGED] {
            notices.raise(notice, enabled);
        }
        assert_eq!(notices.next(NOW), Some(NAMESPACE_CHANGED));
        assert_eq!((notices.next(NOW), notices.is_ready()), (None, true));
        // Only for a limited time.
        assert_eq!(notices.due(), Some(NOW + MASK_TIME));
        notices.page_read(LogId::CHANGED_NAMESPACES);
        assert_eq!(notices.due(), Some(Duration::ZERO));
        assert_eq!(notices.next(NOW), Some(ANA_CHANGED));
        // The host does not read its page.
        notices.raise(ANA_CHANGED, enabled);
        notices.raise(NAMESPACE_CHANGED, enabled);
        let late = NOW + MASK_TIME;
        let early = late - Duration::from_millis(1);
        assert_eq!(notices.next(early), None);
        assert_eq!(notices.next(late), Some(NAMESPACE_CHANGED));
        assert_eq!((notices.next(late * 2), notices.due()), (None, None));
        // An event of another type meanwhile does not delay it.
        notices.page_read(LogId::CHANGED_NAMESPACES);
        notices.raise(NAMESPACE_CHANGED, enabled);
        notices.raise(TEMPERATURE, Kinds::TEMPERATURE.bits());
        assert_eq!(notices.next(late + MASK_TIME / 2), Some(TEMPERATURE));
        assert_eq!(notices.due(), Some(late + MASK_TIME));
        // Changes covered by its own page are not reported again.
        notices.page_read(LogId::ANA);
        notices.page_read(LogId::CHANGED_NAMESPACES);
        assert!(!notices.is_ready());
    }

    #[test]
    fn reservation_event_is_sent_until_its_page_is_read() {
        let mut notices = Notices::default();
        notices.raise(RESERVATION, 0);
        assert_eq!(notices.next(NOW), Some(RESERVATION));
        notices.raise(RESERVATION, 0);
        assert_eq!(notices.next(NOW), None);
        notices.page_read(LogId::RESERVATION);
        notices.raise(RESERVATION, 0);
        assert_eq!(notices.next(NOW), Some(RESERVATION));
    }

    #[test]
    fn error_event_is_sent_with_all_notices_disabled() {
        let mut notices = Notices::default();
        notices.raise(INTERNAL_ERROR, 0);
        assert_eq!(notices.next(NOW), Some(INTERNAL_ERROR));
    }

    #[test]
    fn changed_namespaces_are_listed_once_until_overflow() {
        let mut changed = ChangedList::default();
        changed.add(&[7, 3]);
        changed.add(&[3]);
        assert_eq!(changed.to_page().iter().collect::<Vec<_>>(), [3, 7]);
        changed.add(&(10..5000).collect::<Vec<_>>());
        assert!(changed.to_page().is_everything());
        assert_eq!(changed.nsids.len(), CHANGED_NAMESPACES_MAX + 1);
    }

    #[test]
    fn disabled_events_do_not_become_pending() {
        let mut notices = Notices::default();
        notices.raise(DISCOVERY_CHANGED, Kinds::NAMESPACE.bits());
        assert!(!notices.is_ready());
    }
}
