//! What one endpoint of the network has: its news, and who listens there.

use std::collections::VecDeque;
use std::sync::{Arc, Weak};

use nvmeof_rdma::ListenerId;
use nvmeof_rdma_soft::StreamEvent;

use crate::wake_pipe::WakePipe;

/// One endpoint.
#[derive(Debug)]
pub(crate) struct Endpoint {
    /// What the next polls report.
    news: VecDeque<StreamEvent>,
    /// Rings as long as there are news; whoever has the endpoint keeps it.
    wake_pipe: Weak<WakePipe>,
    /// Those with the same number may listen on the same address.
    pub(crate) group: Option<usize>,
}

impl Endpoint {
    /// An endpoint without news, and the pipe that wakes it.
    pub(crate) fn new(group: Option<usize>) -> (Self, Arc<WakePipe>) {
        let wake_pipe = Arc::new(WakePipe::new());
        let endpoint = Self {
            news: VecDeque::new(),
            wake_pipe: Arc::downgrade(&wake_pipe),
            group,
        };
        (endpoint, wake_pipe)
    }

    /// What a later poll reports.
    pub(crate) fn tell(&mut self, event: StreamEvent) {
        if self.news.is_empty()
            && let Some(wake_pipe) = self.wake_pipe.upgrade()
        {
            wake_pipe.ring();
        }
        self.news.push_back(event);
    }

    /// The next that a poll reports.
    pub(crate) fn take(&mut self) -> Option<StreamEvent> {
        let event = self.news.pop_front()?;
        if self.news.is_empty()
            && let Some(wake_pipe) = self.wake_pipe.upgrade()
        {
            wake_pipe.silence();
        }
        Some(event)
    }
}

/// Somebody who listens.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Listener {
    pub(crate) endpoint: usize,
    pub(crate) id: ListenerId,
}
