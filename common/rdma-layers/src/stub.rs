//! A provider for the tests of the wrappers: everything succeeds immediately.

use std::os::fd::BorrowedFd;
use std::time::Duration;

use nvmeof_memory::{Buf, Pages, Pool, PoolLayout, Region};

use nvmeof_rdma::{
    Address, Completion, ConnectError, Event, ExposeError, Limits, ListenError, ListenerId,
    Outcome, PostError, PrivateData, Provider, QpConfig, QpId, Refused, RemoteKey, RemoteSlice,
    Rights, Tag, Work,
};

/// The only queue pair.
pub(super) const QP: QpId = QpId(1);

/// Completes each work request in the next poll.
#[derive(Debug)]
pub(super) struct Stub {
    limits: Limits,
    /// Events for the next poll.
    pub(super) events: Vec<Event>,
    /// Queue pairs that were disconnected.
    pub(super) disconnected: Vec<QpId>,
    /// Regions that were registered.
    pub(super) registered: usize,
    /// Buffers that were exposed or posted to receive.
    pub(super) held: Vec<Buf>,
}

impl Default for Stub {
    fn default() -> Self {
        Self {
            limits: Limits {
                max_recvs: 16,
                max_sends: 16,
                max_reads: 1,
                max_message: 1 << 20,
                max_exposed: 16,
                max_pending: 4,
                max_qps: 1,
            },
            events: Vec::new(),
            disconnected: Vec::new(),
            registered: 0,
            held: Vec::new(),
        }
    }
}

/// A few buffers of 4096 bytes.
pub(super) fn pool() -> Pool {
    let layout = PoolLayout {
        count: 64,
        stride: 4096,
        lead: 0,
    };
    Pool::new(layout, Pages::Normal).unwrap()
}

impl Provider for Stub {
    fn limits(&self) -> &Limits {
        &self.limits
    }

    fn name(&self) -> &'static str {
        "stub"
    }

    fn register(&mut self, _region: &Region) -> Result<(), std::io::Error> {
        self.registered += 1;
        Ok(())
    }

    fn listen(&mut self, addr: Address) -> Result<(ListenerId, Address), ListenError> {
        Ok((ListenerId(1), addr))
    }

    fn unlisten(&mut self, _listener: ListenerId) {}

    fn connect(
        &mut self,
        _addr: Address,
        _config: &QpConfig,
        _private_data: &PrivateData,
        _now: Duration,
    ) -> Result<QpId, ConnectError> {
        Ok(QP)
    }

    fn prepare(&mut self, _qp: QpId, _config: &QpConfig) -> Result<(), PostError> {
        Ok(())
    }

    fn accept(&mut self, _qp: QpId, _private_data: &PrivateData) -> Result<(), PostError> {
        Ok(())
    }

    fn reject(&mut self, _qp: QpId, _private_data: &PrivateData) -> Result<(), PostError> {
        Ok(())
    }

    fn post_recv(&mut self, _qp: QpId, _tag: Tag, buf: Buf) -> Result<(), Refused<Buf>> {
        self.held.push(buf);
        Ok(())
    }

    fn post(&mut self, qp: QpId, tag: Tag, work: Work) -> Result<(), Refused<Work>> {
        let kind = work.kind();
        self.events.push(Event::Completion(Completion {
            qp,
            tag,
            kind,
            buf: work.into_buf(),
            outcome: Outcome::Success,
        }));
        Ok(())
    }

    fn expose(
        &mut self,
        _qp: QpId,
        buf: Buf,
        _rights: Rights,
    ) -> Result<RemoteSlice, Refused<Buf, ExposeError>> {
        let len = u32::try_from(buf.len()).unwrap();
        self.held.push(buf);
        Ok(RemoteSlice {
            key: RemoteKey(1),
            addr: 0,
            len,
        })
    }

    fn withdraw(&mut self, _key: RemoteKey) -> Result<Option<Buf>, ExposeError> {
        self.held.pop().map(Some).ok_or(ExposeError::UnknownKey)
    }

    fn disconnect(&mut self, qp: QpId) {
        self.disconnected.push(qp);
    }

    fn submit(&mut self, _now: Duration) {}

    fn poll(&mut self, _now: Duration, events: &mut Vec<Event>) -> bool {
        let any = !self.events.is_empty();
        events.append(&mut self.events);
        any
    }

    fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn next_deadline(&self) -> Option<Duration> {
        None
    }
}
