//! Events of the paths, for programs that report or record them.

use nvmeof_initiator_core::FenceMethod;
use nvmeof_rdma::Address;
use nvmeof_wire::log::ana::AnaState;
use tokio::sync::broadcast;
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::watch;

use crate::error::Error;

/// A change of a path or of a namespace. `path` is the index of the path in
/// [`Multipath::connect`](super::Multipath::connect), `addr` its address.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum PathEvent {
    /// A path is connected.
    Connected {
        /// The path.
        path: usize,
        /// Its address.
        addr: Address,
    },
    /// An attempt to connect a path failed.
    AttemptFailed {
        /// The path.
        path: usize,
        /// Its address.
        addr: Address,
        /// The reason.
        error: Error,
    },
    /// A path is lost.
    Lost {
        /// The path.
        path: usize,
        /// Its address.
        addr: Address,
        /// The reason.
        error: Error,
    },
    /// A path is not connected again.
    GivenUp {
        /// The path.
        path: usize,
        /// Its address.
        addr: Address,
        /// Why the last attempt failed.
        error: Option<Error>,
    },
    /// A lost controller of a path is fenced.
    Fenced {
        /// The path.
        path: usize,
        /// Its address.
        addr: Address,
        /// How.
        method: FenceMethod,
    },
    /// The ANA group of a namespace, or the state of that group, changed over a path.
    AnaChanged {
        /// The path.
        path: usize,
        /// Its address.
        addr: Address,
        /// The namespace.
        nsid: u32,
        /// Its ANA group.
        group: u32,
        /// The state of that group.
        state: AnaState,
    },
    /// All paths report that a namespace has grown.
    SizeChanged {
        /// The namespace.
        nsid: u32,
        /// Its number of blocks.
        blocks: u64,
    },
    /// The caller was too slow: this many of the oldest events were dropped.
    Missed(u64),
}

/// Most events that are kept for a caller that does not take them.
const KEPT: usize = 256;

/// Where events come from.
pub(super) type Sender = broadcast::Sender<PathEvent>;

/// A source of events without a receiver.
pub(super) fn channel() -> Sender {
    broadcast::Sender::new(KEPT)
}

/// Changes of the paths: see [`Multipath::changes`](super::Multipath::changes). A clone has the
/// events from then on.
#[derive(Debug)]
pub struct PathChanges {
    changes: watch::Receiver<u64>,
    events: broadcast::Receiver<PathEvent>,
}

impl PathChanges {
    pub(super) fn new(mut changes: watch::Receiver<u64>, events: &Sender) -> Self {
        changes.borrow_and_update();
        let events = events.subscribe();
        Self { changes, events }
    }

    /// Waits for a change since the last call. A change is that a path is connected, lost or given
    /// up, that an attempt to connect it fails, or that its access to a namespace may have
    /// changed. Returns false when the last [`Multipath`](super::Multipath) and
    /// [`MultipathNamespace`](super::MultipathNamespace) are dropped.
    pub async fn changed(&mut self) -> bool {
        self.changes.changed().await.is_ok()
    }

    /// Waits for the next event. Returns `None` when the last [`Multipath`](super::Multipath) and
    /// [`MultipathNamespace`](super::MultipathNamespace) are dropped. At most 256 events are kept;
    /// [`PathEvent::Missed`] replaces the oldest beyond that. If the future is dropped, no event is
    /// lost.
    pub async fn next(&mut self) -> Option<PathEvent> {
        match self.events.recv().await {
            Ok(event) => Some(event),
            Err(RecvError::Lagged(missed)) => Some(PathEvent::Missed(missed)),
            Err(RecvError::Closed) => None,
        }
    }
}

impl Clone for PathChanges {
    fn clone(&self) -> Self {
        Self {
            changes: self.changes.clone(),
            events: self.events.resubscribe(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn size(blocks: u64) -> PathEvent {
        PathEvent::SizeChanged { nsid: 1, blocks }
    }

    #[tokio::test]
    async fn oldest_events_are_dropped_with_a_marker() {
        let (sender, (changes, receiver)) = (channel(), watch::channel(0));
        let mut events = PathChanges::new(receiver, &sender);
        let count = u64::try_from(KEPT).unwrap() + 3;
        for blocks in 0..count {
            sender.send(size(blocks)).unwrap();
        }
        let first = events.next().await;
        assert!(matches!(first, Some(PathEvent::Missed(3))), "{first:?}");
        for expected in 3..count {
            let next = events.next().await;
            let Some(PathEvent::SizeChanged { blocks, .. }) = next else {
                panic!("{next:?}");
            };
            assert_eq!(blocks, expected);
        }
        drop((sender, changes));
        assert!(events.next().await.is_none());
        assert!(!events.changed().await);
    }
}
