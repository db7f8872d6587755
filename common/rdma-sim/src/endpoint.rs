//! An endpoint of the network: its events and listeners.

use std::collections::VecDeque;
use std::sync::{Arc, Weak};

use nvmeof_rdma::ListenerId;
use nvmeof_rdma_soft::StreamEvent;

use crate::wake_pipe::WakePipe;

/// One endpoint.
#[derive(Debug)]
pub(crate) struct Endpoint {
    /// Events for the next polls.
    events: VecDeque<StreamEvent>,
    /// Readable as long as there are events; shared with the streams of the endpoint.
    wake_pipe: Weak<WakePipe>,
    /// Endpoints with the same number may listen on the same address.
    pub(crate) group: Option<usize>,
}

impl Endpoint {
    /// Creates an endpoint without events, and the pipe that wakes it.
    pub(crate) fn new(group: Option<usize>) -> (Self, Arc<WakePipe>) {
        let wake_pipe = Arc::new(WakePipe::new());
        let endpoint = Self {
            events: VecDeque::new(),
            wake_pipe: Arc::downgrade(&wake_pipe),
            group,
        };
        (endpoint, wake_pipe)
    }

    /// Queues an event for a later poll.
    pub(crate) fn report(&mut self, event: StreamEvent) {
        if self.events.is_empty()
            && let Some(wake_pipe) = self.wake_pipe.upgrade()
        {
            wake_pipe.signal();
        }
        self.events.push_back(event);
    }

    /// Takes the next event for a poll.
    pub(crate) fn take(&mut self) -> Option<StreamEvent> {
        let event = self.events.pop_front()?;
        if self.events.is_empty()
            && let Some(wake_pipe) = self.wake_pipe.upgrade()
        {
            wake_pipe.clear();
        }
        Some(event)
    }
}

/// A listener.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Listener {
    pub(crate) endpoint: usize,
    pub(crate) id: ListenerId,
}
