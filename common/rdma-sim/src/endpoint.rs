//! What one endpoint of the network has: its news, and who listens there.

use std::collections::VecDeque;
use std::sync::{Arc, Weak};

use nvmeof_rdma::ListenerId;
use nvmeof_rdma_soft::StreamEvent;

use crate::bell::Bell;

/// One endpoint.
#[derive(Debug)]
pub(crate) struct Endpoint {
    /// What the next polls report.
    news: VecDeque<StreamEvent>,
    /// Rings as long as there are news; whoever has the endpoint keeps it.
    bell: Weak<Bell>,
    /// Those with the same number may listen on the same address.
    pub(crate) group: Option<usize>,
}

impl Endpoint {
    /// An endpoint without news, and its bell.
    pub(crate) fn new(group: Option<usize>) -> (Self, Arc<Bell>) {
        let bell = Arc::new(Bell::new());
        let endpoint = Self {
            news: VecDeque::new(),
            bell: Arc::downgrade(&bell),
            group,
        };
        (endpoint, bell)
    }

    /// What a later poll reports.
    pub(crate) fn tell(&mut self, event: StreamEvent) {
        if self.news.is_empty()
            && let Some(bell) = self.bell.upgrade()
        {
            bell.ring();
        }
        self.news.push_back(event);
    }

    /// The next that a poll reports.
    pub(crate) fn take(&mut self) -> Option<StreamEvent> {
        let event = self.news.pop_front()?;
        if self.news.is_empty()
            && let Some(bell) = self.bell.upgrade()
        {
            bell.silence();
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
