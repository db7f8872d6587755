//! A provider that keeps what became of sends to itself for a while: as when a host
//! does not acknowledge what it gets.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use nvmeof_memory::{Buf, Region};
use nvmeof_rdma::{
    Address, ConnectError, Event, ExposeError, Limits, ListenError, ListenerId, PostError,
    PrivateData, Provider, QpConfig, QpId, Refused, RemoteKey, RemoteSlice, Rights, Tag, Work,
    WorkKind,
};
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
    fn limits(&self) -> &Limits {
        self.inner.limits()
    }

    fn name(&self) -> &'static str {
        self.inner.name()
    }

    fn register(&mut self, region: &Region) -> Result<(), std::io::Error> {
        self.inner.register(region)
    }

    fn listen(&mut self, addr: Address) -> Result<(ListenerId, Address), ListenError> {
        self.inner.listen(addr)
    }

    fn unlisten(&mut self, listener: ListenerId) {
        self.inner.unlisten(listener);
    }

    fn connect(
        &mut self,
        addr: Address,
        config: &QpConfig,
        private_data: &PrivateData,
        now: Duration,
    ) -> Result<QpId, ConnectError> {
        self.inner.connect(addr, config, private_data, now)
    }

    fn prepare(&mut self, qp: QpId, config: &QpConfig) -> Result<(), PostError> {
        self.inner.prepare(qp, config)
    }

    fn accept(&mut self, qp: QpId, private_data: &PrivateData) -> Result<(), PostError> {
        self.inner.accept(qp, private_data)
    }

    fn reject(&mut self, qp: QpId, private_data: &PrivateData) -> Result<(), PostError> {
        self.inner.reject(qp, private_data)
    }

    fn post_recv(&mut self, qp: QpId, tag: Tag, buf: Buf) -> Result<(), Refused<Buf>> {
        self.inner.post_recv(qp, tag, buf)
    }

    fn post(&mut self, qp: QpId, tag: Tag, work: Work) -> Result<(), Refused<Work>> {
        self.inner.post(qp, tag, work)
    }

    fn expose(
        &mut self,
        qp: QpId,
        buf: Buf,
        rights: Rights,
    ) -> Result<RemoteSlice, Refused<Buf, ExposeError>> {
        self.inner.expose(qp, buf, rights)
    }

    fn withdraw(&mut self, key: RemoteKey) -> Result<Buf, ExposeError> {
        self.inner.withdraw(key)
    }

    fn disconnect(&mut self, qp: QpId) {
        self.inner.disconnect(qp);
    }

    fn submit(&mut self, now: Duration) {
        self.inner.submit(now);
    }

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

    fn peer_may_invalidate(&self, qp: QpId) -> bool {
        self.inner.peer_may_invalidate(qp)
    }

    fn local_addr(&self, qp: QpId) -> Option<Address> {
        self.inner.local_addr(qp)
    }

    fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
        self.inner.wait_fd()
    }

    fn next_deadline(&self) -> Option<Duration> {
        self.inner.next_deadline()
    }
}
