//! Records every call and every event as a line of text.

use std::collections::VecDeque;
use std::fmt::{self, Display};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use nvmeof_memory::{Buf, Region};

use nvmeof_rdma::{
    Address, ConnectError, Event, ExposeError, Inline, ListenError, ListenerId, PostError, Posted,
    PrivateData, Provider, QpConfig, QpId, Refused, RegionExposure, RemoteKey, RemoteSlice, Rights,
    SharedReceives, SrqId, Tag, Work, WriteAndSend,
};

/// The last lines of a trace. Clones share them.
#[derive(Clone, Debug)]
pub struct TraceLog {
    lines: Arc<Mutex<VecDeque<String>>>,
    capacity: usize,
}

impl TraceLog {
    /// Keeps the last `capacity` lines.
    #[must_use]
    pub fn new(capacity: usize) -> Self {
        Self {
            lines: Arc::default(),
            capacity,
        }
    }

    /// The recorded lines, oldest first.
    #[must_use]
    pub fn lines(&self) -> Vec<String> {
        let lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        lines.iter().cloned().collect()
    }

    fn write(&self, line: String) {
        let mut lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        while lines.len() >= self.capacity.max(1) {
            lines.pop_front();
        }
        lines.push_back(line);
    }
}

/// A provider that records every call and every event of the inner provider. Lines contain no
/// memory addresses: two runs that do the same yield the same lines.
#[derive(Debug)]
pub struct Trace<P> {
    inner: P,
    name: String,
    log: TraceLog,
    now: Duration,
}

impl<P: Provider> Trace<P> {
    /// Traces `inner`; every line goes to `log` and contains `name`.
    pub fn new(inner: P, name: impl Into<String>, log: TraceLog) -> Self {
        Self {
            inner,
            name: name.into(),
            log,
            now: Duration::ZERO,
        }
    }

    /// The inner provider.
    pub fn inner(&self) -> &P {
        &self.inner
    }

    /// The inner provider, to change its behavior.
    pub fn inner_mut(&mut self) -> &mut P {
        &mut self.inner
    }

    fn line(&self, text: fmt::Arguments<'_>) {
        let (at, name) = (self.now.as_nanos(), &self.name);
        self.log.write(format!("{at:>12} {name} {text}"));
    }

    fn result<T, E: Display>(&self, call: fmt::Arguments<'_>, result: &Result<T, E>) {
        match result {
            Ok(_) => self.line(format_args!("{call}")),
            Err(error) => self.line(format_args!("{call} refused: {error}")),
        }
    }
}

impl<P: Provider> Provider for Trace<P> {
    crate::forward!(inner: limits name set_owner local_addr peer_may_invalidate
        peer_works_in_place map_remote progress wait_fd next_deadline rest);

    fn register(&mut self, region: &Region) -> Result<(), std::io::Error> {
        let result = self.inner.register(region);
        self.result(format_args!("register {} bytes", region.len()), &result);
        result
    }

    fn listen(&mut self, addr: Address) -> Result<(ListenerId, Address), ListenError> {
        let result = self.inner.listen(addr);
        self.result(format_args!("listen {addr}"), &result);
        result
    }

    fn unlisten(&mut self, listener: ListenerId) {
        self.line(format_args!("unlisten {:#x}", listener.0));
        self.inner.unlisten(listener);
    }

    fn connect(
        &mut self,
        addr: Address,
        config: &QpConfig,
        private_data: &PrivateData,
        now: Duration,
    ) -> Result<QpId, ConnectError> {
        self.now = now;
        let result = self.inner.connect(addr, config, private_data, now);
        let qp = result.as_ref().map_or(0, |qp| qp.0);
        let private = private_data.len();
        self.result(
            format_args!("qp {qp:#x} connect {addr} {config:?} private {private}"),
            &result,
        );
        result
    }

    fn prepare(&mut self, qp: QpId, config: &QpConfig) -> Result<(), PostError> {
        let result = self.inner.prepare(qp, config);
        self.result(format_args!("qp {:#x} prepare {config:?}", qp.0), &result);
        result
    }

    fn accept(&mut self, qp: QpId, private_data: &PrivateData) -> Result<(), PostError> {
        let result = self.inner.accept(qp, private_data);
        let private = private_data.len();
        self.result(
            format_args!("qp {:#x} accept private {private}", qp.0),
            &result,
        );
        result
    }

    fn reject(&mut self, qp: QpId, private_data: &PrivateData) -> Result<(), PostError> {
        let result = self.inner.reject(qp, private_data);
        let private = private_data.len();
        self.result(
            format_args!("qp {:#x} reject private {private}", qp.0),
            &result,
        );
        result
    }

    fn post_recv(&mut self, qp: QpId, tag: Tag, buf: Buf) -> Result<(), Refused<Buf>> {
        let len = buf.len();
        let result = self.inner.post_recv(qp, tag, buf);
        self.result(
            format_args!("qp {:#x} tag {:#x} post_recv {len}", qp.0, tag.0),
            &result,
        );
        result
    }

    fn share_receives(&mut self, qp: QpId, recvs: u32, entries: u32) -> Option<SharedReceives> {
        let shared = self.inner.share_receives(qp, recvs, entries);
        self.line(format_args!(
            "qp {:#x} share_receives {recvs} of {entries}: {shared:?}",
            qp.0
        ));
        shared
    }

    fn post_shared_recv(&mut self, srq: SrqId, tag: Tag, buf: Buf) -> Result<(), Refused<Buf>> {
        let len = buf.len();
        let result = self.inner.post_shared_recv(srq, tag, buf);
        self.result(
            format_args!("srq {:#x} tag {:#x} post_shared_recv {len}", srq.0, tag.0),
            &result,
        );
        result
    }

    fn post(&mut self, qp: QpId, tag: Tag, work: Work) -> Result<(), Refused<Work>> {
        let text = describe(&work);
        let result = self.inner.post(qp, tag, work);
        self.result(
            format_args!("qp {:#x} tag {:#x} post {text}", qp.0, tag.0),
            &result,
        );
        result
    }

    fn post_message(
        &mut self,
        qp: QpId,
        tag: Tag,
        head: &Inline,
        invalidate: Option<RemoteKey>,
    ) -> Result<Posted, PostError> {
        let result = self.inner.post_message(qp, tag, head, invalidate);
        let outcome = result.as_ref().map_or("", |posted| match posted {
            Posted::Done => ": done",
            Posted::Pending => "",
        });
        self.result(
            format_args!(
                "qp {:#x} tag {:#x} post Message {} invalidate {invalidate:?}{outcome}",
                qp.0,
                tag.0,
                head.len()
            ),
            &result,
        );
        result
    }

    fn post_response(&mut self, qp: QpId, tag: Tag, answer: WriteAndSend) -> Result<(), PostError> {
        let WriteAndSend { local, remote, .. } = &answer;
        let text = format!(
            "Answer {}+{} to {:?}+{} invalidate {:?}",
            answer.head.len(),
            local.len(),
            remote.key,
            remote.len,
            answer.invalidate
        );
        let result = self.inner.post_response(qp, tag, answer);
        self.result(
            format_args!("qp {:#x} tag {:#x} post {text}", qp.0, tag.0),
            &result,
        );
        result
    }

    fn expose(
        &mut self,
        qp: QpId,
        buf: Buf,
        rights: Rights,
    ) -> Result<RemoteSlice, Refused<Buf, ExposeError>> {
        let len = buf.len();
        let result = self.inner.expose(qp, buf, rights);
        let key = result.as_ref().map_or(0, |slice| slice.key.0);
        self.result(
            format_args!("qp {:#x} expose {len} {rights:?} by {key:#010x}", qp.0),
            &result,
        );
        result
    }

    fn expose_region(
        &mut self,
        qp: QpId,
        region: &Region,
    ) -> Result<Option<RegionExposure>, std::io::Error> {
        let result = self.inner.expose_region(qp, region);
        let key = result.as_ref().ok().copied().flatten().map(|it| it.key.0);
        let len = region.len();
        self.result(
            format_args!("qp {:#x} expose region of {len} by {key:#010x?}", qp.0),
            &result,
        );
        result
    }

    fn withdraw(&mut self, key: RemoteKey) -> Result<Option<Buf>, ExposeError> {
        let result = self.inner.withdraw(key);
        self.result(format_args!("withdraw {:#010x}", key.0), &result);
        result
    }

    fn disconnect(&mut self, qp: QpId) {
        self.line(format_args!("qp {:#x} disconnect", qp.0));
        self.inner.disconnect(qp);
    }

    fn submit(&mut self, now: Duration) {
        self.now = now;
        self.inner.submit(now);
    }

    fn poll(&mut self, now: Duration, events: &mut Vec<Event>) -> bool {
        self.now = now;
        let known = events.len();
        let progress = self.inner.poll(now, events);
        for event in events.iter().skip(known) {
            self.line(format_args!("{}", EventLine(event)));
        }
        progress
    }
}

fn describe(work: &Work) -> String {
    match work {
        Work::Send {
            head,
            body,
            invalidate,
            solicited,
        } => {
            let body = body.as_ref().map_or(0, |body| body.len());
            format!(
                "Send {}+{body} invalidate {invalidate:?} solicited {solicited}",
                head.len()
            )
        }
        Work::Write { local, remote } => {
            format!("Write {} to {:?}+{}", local.len(), remote.key, remote.len)
        }
        Work::Read { local, remote } => {
            format!("Read {} from {:?}+{}", local.len(), remote.key, remote.len)
        }
    }
}

/// An event as one line without addresses.
struct EventLine<'e>(&'e Event);

impl Display for EventLine<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "qp {:#x} ", self.0.qp().0)?;
        match self.0 {
            Event::ConnectRequest(request) => write!(
                f,
                "=> ConnectRequest from {} private {} reads in {} out {}",
                request.peer,
                request.private_data.len(),
                request.reads_in,
                request.reads_out
            ),
            Event::Established { private_data, .. } => {
                write!(f, "=> Established private {}", private_data.len())
            }
            Event::Rejected { private_data, .. } => {
                write!(f, "=> Rejected private {}", private_data.len())
            }
            Event::Received(received) => write!(
                f,
                "tag {:#x} => Received {} invalidated {:?} {:?}",
                received.tag.0, received.len, received.invalidated, received.outcome
            ),
            Event::Completion(completion) => write!(
                f,
                "tag {:#x} => {:?} {:?}",
                completion.tag.0, completion.kind, completion.outcome
            ),
            Event::Withdrawn { key, .. } => write!(f, "=> Withdrawn {:#010x}", key.0),
            Event::Ending { .. } => write!(f, "=> Ending"),
            Event::Closed { reason, .. } => write!(f, "=> Closed: {reason}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stub::{QP, Stub, pool};
    use nvmeof_rdma::{CloseReason, Inline};

    #[test]
    fn calls_refusals_and_events_are_recorded() {
        let log = TraceLog::new(100);
        let mut traced = Trace::new(Stub::default(), "a", log.clone());
        let pool = pool();
        let work = Work::Send {
            head: Inline::new(&[1; 64]).unwrap(),
            body: pool.take(),
            invalidate: None,
            solicited: false,
        };
        traced.post(QP, Tag(7), work).unwrap();
        traced.withdraw(RemoteKey(9)).unwrap_err();
        traced.inner_mut().events.push(Event::Closed {
            qp: QP,
            reason: CloseReason::Peer,
        });
        let mut events = Vec::new();
        traced.poll(Duration::from_nanos(5), &mut events);
        let lines = log.lines();
        let expected = [
            "qp 0x1 tag 0x7 post Send 64+4096",
            "withdraw 0x00000009 refused: no memory is exposed by this key",
            "qp 0x1 tag 0x7 => Send Success",
            "qp 0x1 => Closed: closed by the peer",
        ];
        assert_eq!(lines.len(), expected.len(), "{lines:?}");
        for (line, expected) in lines.iter().zip(expected) {
            assert!(line.contains(expected), "{line} should contain {expected}");
        }
    }

    #[test]
    fn only_last_lines_are_kept() {
        let log = TraceLog::new(3);
        let mut traced = Trace::new(Stub::default(), "a", log.clone());
        for qp in 0..10 {
            traced.disconnect(QpId(qp));
        }
        let lines = log.lines();
        assert_eq!(lines.len(), 3);
        assert!(lines[2].ends_with("qp 0x9 disconnect"), "{lines:?}");
    }
}
