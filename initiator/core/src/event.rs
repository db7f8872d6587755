//! Asynchronous events of a controller: what they mean to the host, and those that it has not
//! taken yet.

use std::collections::VecDeque;

use nvmeof_wire::aer::{AsyncEvent, EventType};

/// An asynchronous event of a controller (NVMe Base 2.1, section 5.1.2). An event names what
/// changed, and not the new state: read that after the event.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ControllerEvent {
    /// Namespaces were added, removed or changed, for example in size. Empty if the controller
    /// does not list them: each may have changed then.
    NamespacesChanged(Vec<u32>),
    /// The state of an ANA group changed. Reading the ANA log page enables the next such event.
    AnaChanged,
    /// A Cross-Controller Reset completed. Reading its log page enables the next such event.
    CrossControllerReset,
    /// Another controller lost communication with this host. Reading its log page enables the
    /// next such event.
    LostHostCommunication,
    /// Another host or an administrator changed reservations of this host. Reading the Reservation
    /// Notification log page returns what happened, and enables the next such event.
    ReservationNotification,
    /// The discovery log page changed. Reading it enables the next such event.
    DiscoveryChanged,
    /// An error. Reading the error log page enables the next such event.
    Error(AsyncEvent),
    /// SMART or health status, if the host has enabled it with Set Features. Reading the SMART
    /// log page enables the next such event.
    Smart(AsyncEvent),
    /// Another event.
    Other(AsyncEvent),
    /// Events were lost, because more were pending than the host keeps. Any state may have
    /// changed.
    Lost,
}

impl From<AsyncEvent> for ControllerEvent {
    fn from(event: AsyncEvent) -> Self {
        match event {
            AsyncEvent::NAMESPACE_CHANGED => Self::NamespacesChanged(Vec::new()),
            AsyncEvent::ANA_CHANGED => Self::AnaChanged,
            AsyncEvent::CROSS_CONTROLLER_RESET => Self::CrossControllerReset,
            AsyncEvent::LOST_HOST_COMMUNICATION => Self::LostHostCommunication,
            AsyncEvent::RESERVATION => Self::ReservationNotification,
            AsyncEvent::DISCOVERY_CHANGED => Self::DiscoveryChanged,
            event if event.kind == EventType::ERROR => Self::Error(event),
            event if event.kind == EventType::SMART => Self::Smart(event),
            event => Self::Other(event),
        }
    }
}

/// Events that the host has not taken yet, the oldest first. Equal events are kept once, because
/// the host reads the state after the event.
#[derive(Debug, Default)]
pub struct EventQueue {
    pending: VecDeque<ControllerEvent>,
}

/// Most pending events, without [`ControllerEvent::Lost`]. A correct controller has fewer kinds.
const MAX_EVENTS: usize = 64;

/// Most namespaces of an event: those of one Changed Attached Namespace List.
const MAX_NAMESPACES: usize = 1024;

impl EventQueue {
    /// Adds an event.
    pub fn push(&mut self, event: ControllerEvent) {
        if let ControllerEvent::NamespacesChanged(more) = &event
            && let Some(nsids) = self.pending.iter_mut().find_map(namespaces)
        {
            return merge(nsids, more);
        }
        if self.pending.contains(&event) {
            return;
        }
        if self.pending.len() < MAX_EVENTS {
            self.pending.push_back(event);
        } else if self.pending.len() == MAX_EVENTS {
            self.pending.push_back(ControllerEvent::Lost);
        }
    }

    /// Takes the oldest event.
    pub fn take(&mut self) -> Option<ControllerEvent> {
        self.pending.pop_front()
    }

    /// Whether no event is pending.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.pending.is_empty()
    }
}

fn namespaces(event: &mut ControllerEvent) -> Option<&mut Vec<u32>> {
    match event {
        ControllerEvent::NamespacesChanged(nsids) => Some(nsids),
        _ => None,
    }
}

/// Adds `more` namespaces to `nsids`. No namespaces stand for all.
fn merge(nsids: &mut Vec<u32>, more: &[u32]) {
    if nsids.is_empty() {
        return;
    }
    nsids.extend_from_slice(more);
    nsids.sort_unstable();
    nsids.dedup();
    if more.is_empty() || nsids.len() > MAX_NAMESPACES {
        nsids.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn other(info: u8) -> ControllerEvent {
        let [_, _, log, _] = AsyncEvent::FIRMWARE_ACTIVATION.to_dword().to_le_bytes();
        AsyncEvent::from_dword(u32::from_le_bytes([7, info, log, 0])).into()
    }

    fn changed(nsids: impl IntoIterator<Item = u32>) -> ControllerEvent {
        ControllerEvent::NamespacesChanged(nsids.into_iter().collect())
    }

    fn queue(events: impl IntoIterator<Item = ControllerEvent>) -> Vec<ControllerEvent> {
        let mut queue = EventQueue::default();
        for event in events {
            queue.push(event);
        }
        std::iter::from_fn(|| queue.take()).collect()
    }

    #[test]
    fn equal_events_are_kept_once_in_order() {
        let (ana, discovery) = (
            ControllerEvent::AnaChanged,
            ControllerEvent::DiscoveryChanged,
        );
        let events = [
            ana.clone(),
            discovery.clone(),
            ana.clone(),
            other(1),
            other(2),
        ];
        assert_eq!(queue(events), [ana, discovery, other(1), other(2)]);
    }

    #[test]
    fn changed_namespaces_are_merged_and_none_stand_for_all() {
        let merged = queue([changed([3, 7]), other(0), changed([1, 3])]);
        assert_eq!(merged, [changed([1, 3, 7]), other(0)]);
        assert_eq!(queue([changed([3]), changed([])]), [changed([])]);
        assert_eq!(queue([changed([]), changed([3])]), [changed([])]);
        let most = u32::try_from(MAX_NAMESPACES).unwrap();
        assert_eq!(
            queue([changed(1..=most), changed([1])]),
            [changed(1..=most)]
        );
        let too_many = [changed(1..=most), changed([most + 1])];
        assert_eq!(queue(too_many), [changed([])]);
    }

    #[test]
    fn events_beyond_the_most_are_reported_as_lost_once() {
        let events = queue((0..=u8::MAX).map(other));
        assert_eq!(events.len(), MAX_EVENTS + 1);
        assert_eq!(events.last(), Some(&ControllerEvent::Lost));
        assert_eq!(events[MAX_EVENTS - 1], other(63));
    }

    #[test]
    fn event_has_the_type_that_the_controller_gave() {
        let of = |dword| ControllerEvent::from(AsyncEvent::from_dword(dword));
        assert_eq!(of(0x000c_0302), ControllerEvent::AnaChanged);
        assert_eq!(of(0x0004_0002), changed([]));
        assert!(matches!(of(0x0001_0300), ControllerEvent::Error(_)));
        assert!(matches!(of(0x0002_0201), ControllerEvent::Smart(_)));
        assert!(matches!(of(0x0003_0102), ControllerEvent::Other(_)));
    }
}
