//! What one endpoint of the network has: its news, and who listens there.

use std::collections::VecDeque;

use nvmeof_rdma::ListenerId;
use nvmeof_rdma_soft::StreamEvent;

/// One endpoint.
#[derive(Debug, Default)]
pub(crate) struct Endpoint {
    /// What the next polls report.
    pub(crate) news: VecDeque<StreamEvent>,
    /// Those with the same number may listen on the same address.
    pub(crate) group: Option<usize>,
}

/// Somebody who listens.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Listener {
    pub(crate) endpoint: usize,
    pub(crate) id: ListenerId,
}
