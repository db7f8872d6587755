//! Fault injection: makes calls fail and disconnects queue pairs, at random or by script.

use std::io;
use std::time::Duration;

use nvmeof_memory::{Buf, Region};

use crate::{Dice, Faults, Injected, OneIn};
use nvmeof_rdma::{
    Address, ConnectError, Event, ExposeError, Inline, PostError, Posted, PrivateData, Provider,
    QpConfig, QpId, Refused, RemoteKey, RemoteSlice, Rights, SrqId, Tag, Work, WriteAndSend,
};

/// A provider that injects faults within the contract, which its user must handle.
#[derive(Debug)]
pub struct Faulty<P> {
    inner: P,
    faults: Faults,
    dice: Dice,
    /// Calls counted for the script.
    calls: u64,
    /// Delayed events, in order, and the remaining number of polls.
    held: Vec<Event>,
    hold_polls: u32,
    now: Duration,
}

impl<P: Provider> Faulty<P> {
    /// Injects `faults` into `inner`. [`Faults::default`] has none.
    pub fn new(inner: P, faults: Faults) -> Self {
        Self {
            inner,
            dice: Dice::new(faults.seed),
            faults,
            calls: 0,
            held: Vec::new(),
            hold_polls: 0,
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

    /// Changes the faults from now on; random numbers and count continue.
    pub fn set_faults(&mut self, faults: Faults) {
        self.faults = faults;
    }

    /// Counts a call and selects its fault.
    fn fault(&mut self, refuse: OneIn, disconnect: OneIn) -> Option<Injected> {
        let number = self.calls;
        self.calls += 1;
        let scripted = self.faults.script.iter().find(|(at, _)| *at == number);
        if let Some((_, injected)) = scripted {
            return Some(*injected);
        }
        if self.dice.happens(refuse) {
            Some(Injected::Refuse)
        } else if self.dice.happens(disconnect) {
            Some(Injected::Disconnect)
        } else {
            None
        }
    }

    fn then_disconnect(&mut self, fault: Option<Injected>, qp: QpId) {
        if fault == Some(Injected::Disconnect) {
            self.inner.disconnect(qp);
        }
    }
}

impl<P: Provider> Provider for Faulty<P> {
    crate::forward!(inner: limits name listen unlisten set_owner local_addr peer_may_invalidate
        peer_works_in_place prepare accept reject share_receives expose_region withdraw disconnect
        abort progress wait_fd rest);

    fn register(&mut self, region: &Region) -> Result<(), io::Error> {
        match self.fault(self.faults.refuse_register, OneIn(0)) {
            Some(Injected::Refuse) => Err(io::Error::new(
                io::ErrorKind::OutOfMemory,
                "registration refused by fault injection",
            )),
            _ => self.inner.register(region),
        }
    }

    fn connect(
        &mut self,
        addr: Address,
        config: &QpConfig,
        private_data: &PrivateData,
        now: Duration,
    ) -> Result<QpId, ConnectError> {
        self.now = now;
        self.inner.connect(addr, config, private_data, now)
    }

    fn post_recv(&mut self, qp: QpId, tag: Tag, buf: Buf) -> Result<(), Refused<Buf>> {
        let fault = self.fault(self.faults.refuse_recv, self.faults.disconnect);
        if fault == Some(Injected::Refuse) {
            let depth = self.inner.limits().max_recvs;
            let why = PostError::QueueFull { depth };
            return Err(Refused { why, back: buf });
        }
        let result = self.inner.post_recv(qp, tag, buf);
        self.then_disconnect(fault, qp);
        result
    }

    fn post_shared_recv(&mut self, srq: SrqId, tag: Tag, buf: Buf) -> Result<(), Refused<Buf>> {
        if self.fault(self.faults.refuse_recv, OneIn(0)) == Some(Injected::Refuse) {
            let depth = self.inner.limits().max_recvs;
            let why = PostError::QueueFull { depth };
            return Err(Refused { why, back: buf });
        }
        self.inner.post_shared_recv(srq, tag, buf)
    }

    fn post(&mut self, qp: QpId, tag: Tag, work: Work) -> Result<(), Refused<Work>> {
        let fault = self.fault(self.faults.refuse_post, self.faults.disconnect);
        if fault == Some(Injected::Refuse) {
            let depth = self.inner.limits().max_sends;
            let why = PostError::QueueFull { depth };
            return Err(Refused { why, back: work });
        }
        let result = self.inner.post(qp, tag, work);
        self.then_disconnect(fault, qp);
        result
    }

    fn post_message(
        &mut self,
        qp: QpId,
        tag: Tag,
        head: &Inline,
        invalidate: Option<RemoteKey>,
    ) -> Result<Posted, PostError> {
        let fault = self.fault(self.faults.refuse_post, self.faults.disconnect);
        if fault == Some(Injected::Refuse) {
            let depth = self.inner.limits().max_sends;
            return Err(PostError::QueueFull { depth });
        }
        let result = self.inner.post_message(qp, tag, head, invalidate);
        self.then_disconnect(fault, qp);
        result
    }

    fn post_response(&mut self, qp: QpId, tag: Tag, answer: WriteAndSend) -> Result<(), PostError> {
        let fault = self.fault(self.faults.refuse_post, self.faults.disconnect);
        if fault == Some(Injected::Refuse) {
            let depth = self.inner.limits().max_sends;
            return Err(PostError::QueueFull { depth });
        }
        let result = self.inner.post_response(qp, tag, answer);
        self.then_disconnect(fault, qp);
        result
    }

    fn expose(
        &mut self,
        qp: QpId,
        buf: Buf,
        rights: Rights,
    ) -> Result<RemoteSlice, Refused<Buf, ExposeError>> {
        let fault = self.fault(self.faults.refuse_expose, OneIn(0));
        if fault == Some(Injected::Refuse) {
            let max = self.inner.limits().max_exposed;
            let why = ExposeError::Full { max };
            return Err(Refused { why, back: buf });
        }
        let result = self.inner.expose(qp, buf, rights);
        self.then_disconnect(fault, qp);
        result
    }

    fn submit(&mut self, now: Duration) {
        self.now = now;
        self.inner.submit(now);
    }

    fn poll(&mut self, now: Duration, events: &mut Vec<Event>) -> bool {
        self.now = now;
        let progress = self.inner.poll(now, &mut self.held);
        if self.held.is_empty() {
            return progress;
        }
        if self.hold_polls > 0 {
            self.hold_polls -= 1;
        } else if self.dice.happens(self.faults.delay) {
            let most = self.faults.delay_polls.max(1);
            self.hold_polls = u32::try_from(self.dice.below(most as usize)).unwrap_or(0);
        } else {
            events.append(&mut self.held);
        }
        true
    }

    fn map_remote(&mut self, qp: QpId, remote: RemoteSlice, rights: Rights) -> Option<Buf> {
        let fault = self.fault(self.faults.refuse_map, OneIn(0));
        if fault == Some(Injected::Refuse) {
            return None;
        }
        let buf = self.inner.map_remote(qp, remote, rights);
        self.then_disconnect(fault, qp);
        buf
    }

    fn next_deadline(&self) -> Option<Duration> {
        if self.held.is_empty() {
            self.inner.next_deadline()
        } else {
            Some(self.now)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stub::{QP, Stub, pool};
    use nvmeof_rdma::Inline;

    fn message() -> Work {
        Work::Send {
            head: Inline::empty(),
            body: None,
            invalidate: None,
            solicited: false,
        }
    }

    fn faulty(faults: Faults) -> Faulty<Stub> {
        Faulty::new(Stub::default(), faults)
    }

    #[test]
    fn without_faults_calls_are_forwarded() {
        let mut provider = faulty(Faults::default());
        for tag in 0..1000 {
            provider.post(QP, Tag(tag), message()).unwrap();
        }
        let mut events = Vec::new();
        assert!(provider.poll(Duration::ZERO, &mut events));
        assert_eq!(events.len(), 1000);
        assert!(!provider.poll(Duration::ZERO, &mut events));
    }

    #[test]
    fn script_applies_to_named_call() {
        let mut provider = faulty(Faults {
            script: vec![(1, Injected::Refuse), (3, Injected::Disconnect)],
            ..Faults::default()
        });
        let pool = pool();
        provider.post(QP, Tag(0), message()).unwrap();
        let refused = provider.post_recv(QP, Tag(1), pool.take().unwrap());
        let refused = refused.unwrap_err();
        assert_eq!(refused.why, PostError::QueueFull { depth: 16 });
        provider.post_recv(QP, Tag(1), refused.back).unwrap();
        assert!(provider.inner().disconnected.is_empty());
        provider.post(QP, Tag(2), message()).unwrap();
        assert_eq!(provider.inner().disconnected, [QP]);
    }

    #[test]
    fn refused_call_returns_argument() {
        let mut provider = faulty(Faults {
            refuse_expose: OneIn(1),
            refuse_register: OneIn(1),
            ..Faults::default()
        });
        let pool = pool();
        assert!(provider.register(pool.region()).is_err());
        let mut buf = pool.take().unwrap();
        buf.set_view(10..20).unwrap();
        let refused = provider.expose(QP, buf, Rights::REMOTE_READ).unwrap_err();
        assert_eq!(refused.why, ExposeError::Full { max: 16 });
        assert_eq!(refused.back.view(), 10..20);
        assert_eq!(provider.inner().registered, 0);
    }

    #[test]
    fn delayed_events_keep_order_and_set_deadline() {
        let mut provider = faulty(Faults {
            delay: OneIn(2),
            delay_polls: 5,
            ..Faults::default()
        });
        let mut seen = Vec::new();
        let mut delayed = false;
        for tag in 0..200 {
            provider.post(QP, Tag(tag), message()).unwrap();
            let mut events = Vec::new();
            provider.poll(Duration::from_secs(tag), &mut events);
            if events.is_empty() {
                delayed = true;
                assert_eq!(provider.next_deadline(), Some(Duration::from_secs(tag)));
            }
            seen.append(&mut events);
        }
        while provider.poll(Duration::ZERO, &mut seen) {}
        let tags = seen.iter().map(|event| match event {
            Event::Completion(completion) => completion.tag.0,
            other => panic!("unexpected {other:?}"),
        });
        assert!(tags.eq(0..200));
        assert!(delayed && provider.next_deadline().is_none());
    }

    #[test]
    fn same_seed_yields_same_faults() {
        let run = |seed| {
            let mut provider = faulty(Faults {
                seed,
                refuse_post: OneIn(3),
                ..Faults::default()
            });
            let posts = (0..64).map(|tag| provider.post(QP, Tag(tag), message()).is_ok());
            posts.collect::<Vec<_>>()
        };
        assert_eq!(run(1), run(1));
        assert_ne!(run(1), run(2));
    }
}
