//! Shared receive queues on top of a provider without them, for tests and simulations:
//! messages are received into memory of the wrapper and copied to the next shared receive.

use std::collections::{HashMap, HashSet, VecDeque};
use std::io;
use std::time::Duration;

use nvmeof_memory::{Buf, Pages, Pool, PoolLayout, Region, RegionId};

use nvmeof_rdma::{
    CloseReason, Event, Fault, Outcome, PostError, Provider, QpConfig, QpId, Received, Refused,
    SharedReceives, SrqId, Tag,
};

/// A provider whose queue pairs can use one shared receive queue. A message that finds it
/// empty waits as on InfiniBand, but in memory of this wrapper and not at its sender.
#[derive(Debug)]
pub struct Sharing<P> {
    inner: P,
    /// The memory into which messages are received.
    own: Pool,
    regions: Vec<RegionId>,
    /// Requests that are not prepared yet.
    requested: HashSet<QpId>,
    /// Queue pairs that use the shared queue, and the reason of their failure, if any.
    drawing: HashMap<QpId, Option<CloseReason>>,
    queue: Option<Queue>,
    /// Number of queues created so far.
    made: u64,
    /// Messages that wait for a shared receive, in memory of `own`.
    waiting: VecDeque<Received>,
    /// Empty between calls.
    seen: Vec<Event>,
}

#[derive(Debug)]
struct Queue {
    id: SrqId,
    entries: u32,
    posted: VecDeque<(Tag, Buf)>,
}

/// Maximum number of waiting messages beyond the size of a queue pair, to detect peers that
/// send more than their protocol allows.
const BEYOND: u32 = 8;

impl<P: Provider> Sharing<P> {
    /// Adds a shared receive queue to `inner`, with `count` buffers of `len` bytes for
    /// waiting messages.
    ///
    /// # Errors
    /// When there is not enough memory.
    pub fn new(mut inner: P, count: usize, len: usize) -> io::Result<Self> {
        let layout = PoolLayout {
            count,
            stride: len.next_multiple_of(4096),
            lead: 0,
        };
        let own = Pool::new(layout, Pages::Normal).map_err(io::Error::other)?;
        inner.register(own.region())?;
        Ok(Self {
            inner,
            own,
            regions: Vec::new(),
            requested: HashSet::new(),
            drawing: HashMap::new(),
            queue: None,
            made: 0,
            waiting: VecDeque::new(),
            seen: Vec::new(),
        })
    }

    /// The inner provider.
    pub fn inner(&self) -> &P {
        &self.inner
    }

    /// The inner provider, to change its behavior.
    pub fn inner_mut(&mut self) -> &mut P {
        &mut self.inner
    }

    fn prepare_drawing(&mut self, qp: QpId, config: &QpConfig) -> Result<(), PostError> {
        let most = self.inner.limits().max_recvs;
        let recvs = config.recvs.saturating_add(BEYOND).min(most);
        self.inner.prepare(qp, &QpConfig { recvs, ..*config })?;
        for _ in 0..recvs {
            let Some(buf) = self.own.take() else { break };
            let posted = self.inner.post_recv(qp, Tag(0), buf);
            posted.map_err(|refused| refused.why)?;
        }
        Ok(())
    }

    /// Passes on an event of the inner provider.
    fn pass(&mut self, event: Event, events: &mut Vec<Event>) {
        match event {
            Event::ConnectRequest(request) => {
                self.requested.insert(request.qp);
                events.push(Event::ConnectRequest(request));
            }
            Event::Received(received) if self.drawing.contains_key(&received.qp) => {
                if received.outcome.is_success() {
                    self.waiting.push_back(received);
                    self.deliver(events);
                }
            }
            Event::Closed { qp, reason } => {
                let reason = self.leave(qp).unwrap_or(reason);
                events.push(Event::Closed { qp, reason });
            }
            other => events.push(other),
        }
    }

    /// Removes a closed queue pair. Returns the reason, if it was found here.
    fn leave(&mut self, qp: QpId) -> Option<CloseReason> {
        self.requested.remove(&qp);
        let fault = self.drawing.remove(&qp)?;
        self.waiting.retain(|message| message.qp != qp);
        if self.drawing.is_empty() {
            self.queue = None;
        }
        fault
    }

    /// Copies messages to shared receives, as far as there are both.
    fn deliver(&mut self, events: &mut Vec<Event>) -> bool {
        let before = events.len();
        while !self.waiting.is_empty()
            && let Some((tag, mut buf)) = self.queue.as_mut().and_then(|one| one.posted.pop_front())
            && let Some(message) = self.waiting.pop_front()
        {
            let (qp, len) = (message.qp, message.len);
            let bytes = message.buf.get(..len).unwrap_or_default();
            let outcome = match buf.get_mut(..len) {
                Some(place) => {
                    place.copy_from_slice(bytes);
                    let mut free = message.buf;
                    free.reset_view();
                    // Refused when the queue pair ends.
                    let _ = self.inner.post_recv(qp, Tag(0), free);
                    Outcome::Success
                }
                None => self.fail(qp, len, buf.len()),
            };
            let done = outcome.is_success();
            events.push(Event::Received(Received {
                qp,
                tag,
                buf,
                len: if done { len } else { 0 },
                invalidated: message.invalidated.filter(|_| done),
                solicited: message.solicited && done,
                outcome,
            }));
        }
        events.len() > before
    }

    /// A message is too long for its receive: ends the connection.
    fn fail(&mut self, qp: QpId, len: usize, room: usize) -> Outcome {
        let reason = CloseReason::PeerFault(Fault {
            layer: "transport",
            code: 0,
            text: format!("a message of {len} bytes arrived for a receive of {room}"),
        });
        self.waiting.retain(|message| message.qp != qp);
        self.drawing.insert(qp, Some(reason.clone()));
        self.inner.disconnect(qp);
        Outcome::Failed(Box::new(reason))
    }

    fn check_shared(&self, srq: SrqId, buf: &Buf) -> Result<(), PostError> {
        let queue = self.queue.as_ref().filter(|queue| queue.id == srq);
        let queue = queue.ok_or(PostError::Closed)?;
        let depth = queue.entries;
        if queue.posted.len() >= depth as usize {
            return Err(PostError::QueueFull { depth });
        }
        if !self.regions.contains(&buf.region()) {
            return Err(PostError::NotRegistered);
        }
        Ok(())
    }
}

impl<P: Provider> Provider for Sharing<P> {
    crate::forward!(inner: limits name listen unlisten connect set_owner local_addr
        peer_may_invalidate peer_works_in_place map_remote accept reject post expose
        withdraw disconnect abort progress submit wait_fd rest);

    fn register(&mut self, region: &Region) -> Result<(), io::Error> {
        self.inner.register(region)?;
        self.regions.push(region.id());
        Ok(())
    }

    fn prepare(&mut self, qp: QpId, config: &QpConfig) -> Result<(), PostError> {
        let result = if self.drawing.contains_key(&qp) && self.requested.contains(&qp) {
            self.prepare_drawing(qp, config)
        } else {
            self.inner.prepare(qp, config)
        };
        if result.is_ok() {
            self.requested.remove(&qp);
        }
        result
    }

    fn post_recv(&mut self, qp: QpId, tag: Tag, buf: Buf) -> Result<(), Refused<Buf>> {
        if self.drawing.contains_key(&qp) {
            let state = "drawing from a shared receive queue";
            let why = PostError::WrongState { state };
            return Err(Refused { why, back: buf });
        }
        self.inner.post_recv(qp, tag, buf)
    }

    fn share_receives(&mut self, qp: QpId, _recvs: u32, entries: u32) -> Option<SharedReceives> {
        if !self.requested.contains(&qp) || self.drawing.contains_key(&qp) {
            return None;
        }
        let queue = self.queue.get_or_insert_with(|| {
            self.made += 1;
            Queue {
                id: SrqId(self.made),
                entries: entries.max(1),
                posted: VecDeque::new(),
            }
        });
        self.drawing.insert(qp, None);
        Some(SharedReceives {
            srq: queue.id,
            entries: queue.entries,
        })
    }

    fn post_shared_recv(&mut self, srq: SrqId, tag: Tag, buf: Buf) -> Result<(), Refused<Buf>> {
        if let Err(why) = self.check_shared(srq, &buf) {
            return Err(Refused { why, back: buf });
        }
        if let Some(queue) = &mut self.queue {
            queue.posted.push_back((tag, buf));
        }
        Ok(())
    }

    fn poll(&mut self, now: Duration, events: &mut Vec<Event>) -> bool {
        let mut worked = self.deliver(events);
        let mut seen = std::mem::take(&mut self.seen);
        worked |= self.inner.poll(now, &mut seen);
        for event in seen.drain(..) {
            self.pass(event, events);
        }
        self.seen = seen;
        worked
    }

    fn next_deadline(&self) -> Option<Duration> {
        let posted = self
            .queue
            .as_ref()
            .is_some_and(|one| !one.posted.is_empty());
        if posted && !self.waiting.is_empty() {
            return Some(Duration::ZERO);
        }
        self.inner.next_deadline()
    }
}
