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
    /// Whether it withholds those of writes, with their buffers, as well.
    writes: bool,
    withheld: Vec<Event>,
}

impl Late {
    pub(super) fn new(inner: Sim, withholds: &Arc<AtomicBool>) -> Self {
        Self {
            inner,
            withholds: Arc::clone(withholds),
            writes: false,
            withheld: Vec::new(),
        }
    }

    /// Withholds completions of writes as well.
    pub(super) fn with_writes(self) -> Self {
        Self {
            writes: true,
            ..self
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
        let writes = self.writes;
        let is_late = |event: &Event| match event {
            Event::Completion(one) if one.kind == WorkKind::Send => true,
            Event::Completion(one) => writes && one.kind == WorkKind::Write,
            _ => false,
        };
        let all = std::mem::take(&mut self.withheld);
        let (later, now): (Vec<_>, Vec<_>) = all
            .into_iter()
            .partition(|event| withholds && is_late(event));
        self.withheld = later;
        events.extend(now);
        busy
    }
}
