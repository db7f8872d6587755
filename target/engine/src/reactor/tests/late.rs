//! A provider that keeps what became of sends to itself for a while: as when a host
//! does not acknowledge what it gets.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use nvmeof_rdma::{Event, Provider, WorkKind};
use nvmeof_rdma_sim::Sim;

pub(super) struct Late {
    inner: Sim,
    /// Whether it keeps them now.
    keeps: Arc<AtomicBool>,
    kept: Vec<Event>,
}

impl Late {
    pub(super) fn new(inner: Sim, keeps: &Arc<AtomicBool>) -> Self {
        Self {
            inner,
            keeps: Arc::clone(keeps),
            kept: Vec::new(),
        }
    }
}

impl Provider for Late {
    nvmeof_rdma_layers::forward!(inner: limits name register listen unlisten connect set_whose
        local_addr peer_may_invalidate prepare accept reject post_recv post expose withdraw
        disconnect submit wait_fd next_deadline rest);

    fn poll(&mut self, now: Duration, events: &mut Vec<Event>) -> bool {
        let mut found = Vec::new();
        let busy = self.inner.poll(now, &mut found);
        self.kept.append(&mut found);
        let keeps = self.keeps.load(Ordering::Relaxed);
        let is_send =
            |event: &Event| matches!(event, Event::Completion(one) if one.kind == WorkKind::Send);
        let all = std::mem::take(&mut self.kept);
        let (later, now): (Vec<_>, Vec<_>) =
            all.into_iter().partition(|event| keeps && is_send(event));
        self.kept = later;
        events.extend(now);
        busy
    }
}
