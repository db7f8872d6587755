//! A target that invalidates no keys of its hosts.

use std::time::Duration;

use nvmeof_rdma::{Event, Provider, QpId, Refused, Tag, Work};

/// A provider whose Sends invalidate nothing.
#[derive(Debug)]
pub(super) struct Keeping<P> {
    pub(super) inner: P,
}

impl<P: Provider> Provider for Keeping<P> {
    nvmeof_rdma_layers::forward!(inner: limits name register listen unlisten connect set_owner
        local_addr peer_may_invalidate peer_works_in_place map_remote prepare accept reject
        post_recv share_receives post_shared_recv expose withdraw disconnect abort progress
        submit wait_fd next_deadline rest);

    fn post(&mut self, qp: QpId, tag: Tag, mut work: Work) -> Result<(), Refused<Work>> {
        if let Work::Send { invalidate, .. } = &mut work {
            *invalidate = None;
        }
        self.inner.post(qp, tag, work)
    }

    fn poll(&mut self, now: Duration, events: &mut Vec<Event>) -> bool {
        self.inner.poll(now, events)
    }
}
