//! The test rig: two providers, time, and waiting for events.

use std::ops::{Index, IndexMut};
use std::time::Duration;

use crate::pattern::check;
use crate::side::{Endpoint, Side};
use crate::{Deviations, Fabric};
use nvmeof_rdma::{
    Address, CloseReason, Completion, ConnectRequest, Event, ListenerId, Outcome, PrivateData,
    Provider, QpConfig, QpId, Received, Tag,
};
use nvmeof_rdma_layers::TraceLog;

/// Maximum number of consecutive iterations without an event while waiting: half a minute if
/// each pause is a millisecond.
const MAX_PAUSES: u32 = 30_000;
/// Maximum number of events just before a side goes to sleep.
const RESTS: u32 = 10;
/// Number of consecutive iterations without an event after which everything is idle.
const QUIET: u32 = 20;
/// Lines of trace that are printed when a case fails.
const TRACE_LINES: usize = 120;

/// Two providers that can connect to each other.
pub struct Rig<'f> {
    fabric: &'f mut dyn Fabric,
    a: Side,
    b: Side,
    log: TraceLog,
    listening: Option<(ListenerId, Address)>,
}

/// An established connection.
#[derive(Clone, Copy, Debug)]
pub struct Link {
    /// The queue pair of the side that connected.
    pub a: QpId,
    /// The queue pair of the side that listened.
    pub b: QpId,
}

impl Link {
    /// The queue pair at `end`.
    #[must_use]
    pub fn at(&self, end: Endpoint) -> QpId {
        match end {
            Endpoint::A => self.a,
            Endpoint::B => self.b,
        }
    }
}

impl Index<Endpoint> for Rig<'_> {
    type Output = Side;

    fn index(&self, end: Endpoint) -> &Side {
        match end {
            Endpoint::A => &self.a,
            Endpoint::B => &self.b,
        }
    }
}

impl IndexMut<Endpoint> for Rig<'_> {
    fn index_mut(&mut self, end: Endpoint) -> &mut Side {
        match end {
            Endpoint::A => &mut self.a,
            Endpoint::B => &mut self.b,
        }
    }
}

/// Private data from text.
pub(super) fn private(text: &str) -> PrivateData {
    PrivateData::new(text.as_bytes()).unwrap()
}

impl<'f> Rig<'f> {
    /// Takes the two providers of `fabric` and registers memory with them.
    pub fn new(fabric: &'f mut dyn Fabric) -> Self {
        let (a, b) = fabric.pair();
        let log = TraceLog::new(TRACE_LINES);
        let in_order = fabric.deviations().opens_in_order;
        let side = |provider, name| Side::new(provider, name, log.clone(), in_order);
        Self {
            a: side(a, "A"),
            b: side(b, "B"),
            fabric,
            log,
            listening: None,
        }
    }

    /// Closes everything and checks that nothing was lost.
    pub fn finish(mut self) {
        for end in [Endpoint::A, Endpoint::B] {
            for qp in self[end].outstanding.open_qps() {
                if self[end].provider_ref().is_some() {
                    self[end].disconnect(qp);
                }
            }
        }
        for end in [Endpoint::A, Endpoint::B] {
            if self[end].provider_ref().is_none() {
                continue;
            }
            self.wait("all queue pairs are closed", |rig| {
                rig[end].outstanding.open_qps().is_empty().then_some(())
            });
        }
        self.settle();
        for end in [Endpoint::A, Endpoint::B] {
            if self[end].provider_ref().is_some() {
                self[end].withdraw_all();
            }
            self[end].assert_all_back();
        }
    }

    /// The time.
    #[must_use]
    pub fn now(&self) -> Duration {
        self.fabric.now()
    }

    /// Deviations of the devices from the contract.
    #[must_use]
    pub fn deviations(&self) -> Deviations {
        self.fabric.deviations()
    }

    /// Whether messages to `end` of `link` may invalidate keys of that side.
    #[must_use]
    pub fn may_invalidate(&self, end: Endpoint, link: Link) -> bool {
        let provider = self[end].provider_ref();
        provider.is_some_and(|provider| provider.peer_may_invalidate(link.at(end)))
    }

    /// Checks that the peer of `end` violated the protocol, not `end`, and that both report
    /// it, as far as their devices do.
    pub(super) fn assert_peer_fault(&mut self, end: Endpoint, link: Link) {
        let silent = self.deviations().silent_faults;
        let good_bye = |reason: &CloseReason| {
            silent && matches!(reason, CloseReason::Peer | CloseReason::Network { .. })
        };
        let reason = self.closed(end, link.at(end));
        let reported = matches!(reason, CloseReason::PeerFault(_)) || good_bye(&reason);
        assert!(reported, "{end:?}: {reason}");
        let other = end.other();
        let reason = self.closed(other, link.at(other));
        let reported = matches!(reason, CloseReason::Terminated(_)) || good_bye(&reason);
        assert!(reported, "{other:?}: {reason}");
    }

    /// Whether the providers serve Unix sockets.
    #[must_use]
    pub fn serves_unix(&self) -> bool {
        self.fabric.serves_unix()
    }

    /// An address the provider at `end` can listen on, with port 0.
    #[must_use]
    pub fn free_addr(&self, end: Endpoint) -> Address {
        self.fabric.addr(end)
    }

    /// Submits and polls on both sides; returns whether there was any progress.
    pub fn poll_once(&mut self) -> bool {
        let a = self.poll_at(Endpoint::A);
        self.poll_at(Endpoint::B) || a
    }

    /// Submits and polls on one side.
    pub fn poll_at(&mut self, end: Endpoint) -> bool {
        let now = self.now();
        self[end].poll_once(now)
    }

    /// Lets time pass; with `timers` also if only a time-out is pending.
    fn pause(&mut self, ends: &[Endpoint], timers: bool) -> bool {
        for end in ends {
            self[*end].rest();
        }
        let sides = ends.iter().map(|end| match end {
            Endpoint::A => &self.a,
            Endpoint::B => &self.b,
        });
        let present: Vec<&dyn Provider> = sides.filter_map(Side::provider_ref).collect();
        let fds: Vec<_> = present.iter().filter_map(|one| one.wait_fd()).collect();
        let due = present.iter().filter_map(|one| one.next_deadline()).min();
        self.fabric.pause(&fds, due.filter(|_| timers))
    }

    /// Whether the descriptor of `end` becomes readable soon. True without a descriptor.
    pub fn wakes(&mut self, end: Endpoint) -> bool {
        let side = match end {
            Endpoint::A => &self.a,
            Endpoint::B => &self.b,
        };
        let Some(fd) = side.provider_ref().and_then(Provider::wait_fd) else {
            return true;
        };
        (0..MAX_PAUSES).any(|_| self.fabric.pause(&[fd], None))
    }

    /// Lets `end` go to sleep as soon as there is nothing to do, without a pause before.
    pub fn goes_to_sleep(&mut self, end: Endpoint) {
        for _ in 0..RESTS {
            while self.poll_at(end) {}
            let now = self.now();
            if self[end].rest().is_none_or(|until| until > now) {
                return;
            }
        }
        panic!("{end:?} always finds something to do");
    }

    /// Whether the descriptor of `end` stays unreadable. True without a descriptor.
    pub fn rests(&mut self, end: Endpoint) -> bool {
        let side = match end {
            Endpoint::A => &self.a,
            Endpoint::B => &self.b,
        };
        let Some(fd) = side.provider_ref().and_then(Provider::wait_fd) else {
            return true;
        };
        !(0..QUIET).any(|_| self.fabric.pause(&[fd], None))
    }

    /// Polls both sides once, or lets time pass if there is nothing to do.
    pub fn step(&mut self) {
        if !self.poll_once() {
            self.pause(&[Endpoint::A, Endpoint::B], true);
        }
    }

    /// Seed of the random numbers of a case.
    #[must_use]
    pub fn seed(&self) -> u64 {
        self.fabric.seed()
    }

    /// Polls both sides until `done` returns a value.
    pub fn wait<T>(&mut self, what: &str, mut done: impl FnMut(&mut Self) -> Option<T>) -> T {
        let mut idle = 0;
        loop {
            let progress = self.poll_once();
            if let Some(found) = done(self) {
                return found;
            }
            if progress {
                idle = 0;
            } else {
                idle += 1;
                self.pause(&[Endpoint::A, Endpoint::B], true);
            }
            assert!(idle < MAX_PAUSES, "timed out waiting until {what}");
        }
    }

    /// Polls both sides until nothing is in flight. Time-outs do not fire.
    pub fn settle(&mut self) {
        self.settle_at(&[Endpoint::A, Endpoint::B]);
    }

    /// Polls some sides until nothing is in flight.
    pub fn settle_at(&mut self, ends: &[Endpoint]) {
        let mut quiet = 0;
        let mut iterations = 0u32;
        while quiet < QUIET {
            let mut progress = false;
            for end in ends {
                progress |= self.poll_at(*end);
            }
            if progress || self.pause(ends, false) {
                quiet = 0;
            } else {
                quiet += 1;
            }
            iterations += 1;
            assert!(iterations < 10_000_000, "it never becomes idle");
        }
    }

    /// Takes the next event at `end`, if there is one.
    pub fn take_event(&mut self, end: Endpoint) -> Option<Event> {
        self[end].inbox.pop_front()
    }

    /// Waits for the first event at `end` that `pick` selects and takes it.
    pub fn event<T>(
        &mut self,
        end: Endpoint,
        what: &str,
        pick: impl Fn(&Event) -> Option<T>,
    ) -> Event {
        let text = format!("{what} at {end:?}");
        self.wait(&text, |rig| {
            let inbox = &mut rig[end].inbox;
            let at = inbox.iter().position(|event| pick(event).is_some())?;
            inbox.remove(at)
        })
    }

    /// Waits for a connection request.
    pub fn request(&mut self, end: Endpoint) -> ConnectRequest {
        let event = self.event(end, "a connect request", |event| {
            matches!(event, Event::ConnectRequest(_)).then_some(())
        });
        let Event::ConnectRequest(request) = event else {
            unreachable!("picked")
        };
        request
    }

    /// Waits until `qp` is established; returns the peer's private data.
    pub fn established(&mut self, end: Endpoint, qp: QpId) -> PrivateData {
        let event = self.event(end, "Established", |event| match event {
            Event::Established { qp: of, .. } => (*of == qp).then_some(()),
            Event::Closed { qp: of, reason } if *of == qp => {
                panic!("{qp:?} at {end:?} closed instead: {reason}")
            }
            _ => None,
        });
        let Event::Established { private_data, .. } = event else {
            unreachable!("picked")
        };
        private_data
    }

    /// Waits until a receive of `qp` returns.
    pub fn received(&mut self, end: Endpoint, qp: QpId) -> Received {
        let event = self.event(end, "a receive", |event| {
            (matches!(event, Event::Received(_)) && event.qp() == qp).then_some(())
        });
        let Event::Received(received) = event else {
            unreachable!("picked")
        };
        received
    }

    /// Waits for a message of `len` bytes of pattern `seed`.
    pub fn message(&mut self, end: Endpoint, qp: QpId, seed: u64, len: usize) -> Received {
        let received = self.received(end, qp);
        assert_eq!(received.outcome, Outcome::Success);
        assert_eq!(received.len, len, "length of message {seed}");
        check(&received.buf[..len], seed);
        received
    }

    /// Waits until work of `qp` returns.
    pub fn completion(&mut self, end: Endpoint, qp: QpId) -> Completion {
        let event = self.event(end, "a completion", |event| {
            (matches!(event, Event::Completion(_)) && event.qp() == qp).then_some(())
        });
        let Event::Completion(completion) = event else {
            unreachable!("picked")
        };
        completion
    }

    /// Waits until work of `qp` is completed successfully.
    pub fn success(&mut self, end: Endpoint, qp: QpId, tag: u64) -> Completion {
        let completion = self.completion(end, qp);
        assert_eq!(completion.outcome, Outcome::Success);
        assert_eq!(completion.tag.0, tag);
        completion
    }

    /// Waits until `qp` is closed.
    pub fn closed(&mut self, end: Endpoint, qp: QpId) -> CloseReason {
        let event = self.event(end, "Closed", |event| {
            (matches!(event, Event::Closed { .. }) && event.qp() == qp).then_some(())
        });
        let Event::Closed { reason, .. } = event else {
            unreachable!("picked")
        };
        reason
    }

    /// Sizes that every provider supports.
    pub fn config(&self) -> QpConfig {
        let limits = self.a.provider_ref().map(Provider::limits);
        let most = limits.map_or(1, |limits| limits.max_reads);
        QpConfig {
            recvs: 64,
            sends: 64,
            reads_out: most.min(4),
            reads_in: most.min(4),
            exposes: 64,
            trusts_peer: false,
        }
    }

    /// The address at which B listens, from the first call on.
    pub fn listening(&mut self) -> Address {
        if let Some((_, addr)) = self.listening {
            return addr;
        }
        let wanted = self.free_addr(Endpoint::B);
        let listening = self.b.provider().listen(wanted).expect("B listens");
        self.listening = Some(listening);
        listening.1
    }

    /// The listener of [`listening`](Self::listening).
    pub fn listener(&mut self) -> ListenerId {
        self.listening();
        self.listening.expect("B listens").0
    }

    /// Starts to connect from `end`.
    pub fn connect(&mut self, end: Endpoint, addr: Address, config: &QpConfig, text: &str) -> QpId {
        let now = self.now();
        let side = &mut self[end];
        let qp = side.provider().connect(addr, config, &private(text), now);
        let qp = qp.expect("connecting is tried");
        side.outstanding.open(qp);
        qp
    }

    /// Starts to connect from A to B.
    pub fn call(&mut self) -> QpId {
        let (addr, config) = (self.listening(), self.config());
        self.connect(Endpoint::A, addr, &config, "")
    }

    /// Prepares and accepts a request at `end`.
    pub fn accept(&mut self, end: Endpoint, qp: QpId, config: &QpConfig, text: &str) {
        self[end].prepare(qp, config);
        let result = self[end].provider().accept(qp, &private(text));
        result.expect("a request is accepted");
    }

    /// Connects A to B.
    pub fn link(&mut self) -> Link {
        let config = self.config();
        self.link_with(&config, &config)
    }

    /// Connects A to B with sizes for each.
    pub fn link_with(&mut self, a: &QpConfig, b: &QpConfig) -> Link {
        let addr = self.listening();
        let active = self.connect(Endpoint::A, addr, a, "");
        let passive = self.request(Endpoint::B).qp;
        self.accept(Endpoint::B, passive, b, "");
        self.established(Endpoint::A, active);
        self.established(Endpoint::B, passive);
        Link {
            a: active,
            b: passive,
        }
    }

    /// Checks that a message goes from A to B. Earlier completions stay.
    pub fn assert_alive(&mut self, link: Link) {
        const TAG: u64 = 0xA11;
        self[Endpoint::B].recv(link.b, TAG, 256);
        self[Endpoint::A].send(link.a, TAG, 200);
        self.message(Endpoint::B, link.b, TAG, 200);
        let own = |event: &Event| match event {
            Event::Completion(one) if (one.qp, one.tag) == (link.a, Tag(TAG)) => Some(()),
            _ => None,
        };
        self.event(Endpoint::A, "the message is sent", own);
    }
}

impl Drop for Rig<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            println!("the last lines of the trace:");
            for line in self.log.lines() {
                println!("{line}");
            }
        }
    }
}
