//! A provider that withholds completions of sends for some time, as if the host did not
//! acknowledge what it receives.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use nvmeof_rdma::{Event, Provider, WorkKind};
use nvmeof_rdma_sim::Sim;

pub(super) struct Late {
    inner: Sim,
    /// Whether it withholds them now.
    withholds: Arc<AtomicBool>,
    withheld: Vec<Event>,
}

impl Late {
    pub(super) fn new(inner: Sim, withholds: &Arc<AtomicBool>) -> Self {
        Self {
            inner,
            withholds: Arc::clone(withholds),
            withheld: Vec::new(),
        }
    }
}

impl Provider for Late {
    nvmeof_rdma_layers::forward!(inner: limits name register listen unlisten connect set_owner
        local_addr peer_may_invalidate prepare accept reject post_recv post expose withdraw
        disconnect submit wait_fd next_deadline rest);

    fn poll(&mut self, now: Duration, events: &mut Vec<Event>) -> bool {
        let mut found = Vec::new();
        let busy = self.inner.poll(now, &mut found);
        self.withheld.append(&mut found);
        let withholds = self.withholds.load(Ordering::Relaxed);
        let is_send =
            |event: &Event| matches!(event, Event::Completion(one) if one.kind == WorkKind::Send);
        let all = std::mem::take(&mut self.withheld);
        let (later, now): (Vec<_>, Vec<_>) = all
            .into_iter()
            .partition(|event| withholds && is_send(event));
        self.withheld = later;
        events.extend(now);
        busy
    }
}
