//! The edge of one queue pair: moves bytes as the core says.

mod disk;
mod slots;
mod steps;

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::Duration;

use nvmeof_backend::Request as DiskRequest;
use nvmeof_memory::{Buf, Classes};
use nvmeof_rdma::{
    CloseReason, Completion, PostError, Provider, QpId, Received, Tag as RdmaTag, WorkKind,
};
use nvmeof_target_core::{Action, CloseCause, Data, News, Order, Queue as Core, Response};

use crate::logs::Sparingly;
use crate::storage::Storage;
use crate::tag::{Place, Tag};
use slots::{Job, Slots};

/// What queues work with during a turn.
pub(crate) struct Io<'a> {
    pub(crate) now: Duration,
    pub(crate) provider: &'a mut dyn Provider,
    pub(crate) storage: &'a mut dyn Storage,
    pub(crate) buffers: &'a Classes,
    /// Commands that wait for a buffer, over all queues, in the order they
    /// came.
    pub(crate) hungry: &'a mut VecDeque<Tag>,
    /// Disk operations that found no room.
    pub(crate) backlog: &'a mut VecDeque<(u32, DiskRequest)>,
    /// What the reactor has to do after the call.
    pub(crate) news: &'a mut News,
    pub(crate) disk_log: &'a mut Sparingly,
}

/// One queue pair.
pub(crate) struct Edge {
    place: Place,
    pub(crate) qp: QpId,
    /// Which of the reactor's providers it is of.
    pub(crate) provider: usize,
    peer: SocketAddr,
    core: Core,
    /// Bytes of a capsule, in-capsule data included.
    capsule_len: usize,
    slots: Slots,
    /// Capsules that came while no slot was free.
    waiting: VecDeque<Capsule>,
    /// Answers to commands that were held, waiting for a slot.
    parked: VecDeque<Response>,
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Open,
    /// No new command is begun.
    Draining,
    /// Only waiting for the provider to say that it is closed.
    Closing,
}

#[derive(Debug)]
struct Capsule {
    buf: Buf,
    len: usize,
}

/// The slot that receives are posted under: they belong to none.
const RECEIVE: Place = Place {
    index: u16::MAX,
    generation: 0,
};

/// Work requests that one command has outstanding at most: a write and a send.
pub(crate) const SENDS_PER_COMMAND: u32 = 2;

impl Edge {
    pub(crate) fn new(
        place: Place,
        qp: QpId,
        provider: usize,
        peer: SocketAddr,
        core: Core,
        capsule_len: usize,
    ) -> Self {
        let entries = core.entries();
        Self {
            place,
            qp,
            provider,
            peer,
            core,
            capsule_len,
            slots: Slots::new(entries),
            waiting: VecDeque::with_capacity(entries.into()),
            parked: VecDeque::new(),
            state: State::Open,
        }
    }

    /// Gives a buffer to the provider for the next command.
    pub(crate) fn post_recv(
        &mut self,
        mut buf: Buf,
        provider: &mut dyn Provider,
    ) -> Result<(), PostError> {
        if buf.set_len(self.capsule_len).is_err() {
            return Err(PostError::TooLong {
                len: self.capsule_len,
                max: buf.capacity(),
            });
        }
        let tag = self.tag(RECEIVE);
        let posted = provider.post_recv(self.qp, tag, buf);
        posted.map_err(|refused| refused.why)
    }

    /// A receive came back.
    pub(crate) fn received(&mut self, received: Received, io: &mut Io<'_>) {
        // After a failure the provider says that the queue pair is closed.
        if !received.outcome.is_success() || self.state == State::Closing {
            return;
        }
        let Received { buf, len, .. } = received;
        self.waiting.push_back(Capsule { buf, len });
        self.settle(io);
    }

    /// A send, write or read came back.
    pub(crate) fn completed(&mut self, completion: Completion, io: &mut Io<'_>) {
        if !completion.outcome.is_success() || self.state == State::Closing {
            return;
        }
        let slot = Tag::from_bits(completion.tag.0).slot;
        match completion.kind {
            WorkKind::Send => {
                self.slots.remove(slot);
            }
            WorkKind::Write => {}
            WorkKind::Read => self.pulled(slot, completion.buf, io),
        }
        self.settle(io);
    }

    /// There may be a buffer for a command that waits for one. False when
    /// there is not.
    pub(crate) fn feed(&mut self, slot: Place, io: &mut Io<'_>) -> bool {
        let Some(job) = self.slots.get(slot) else {
            return true;
        };
        let Some(action) = job.hungry.take() else {
            return true;
        };
        if !job.provide(&action, io.buffers) {
            job.hungry = Some(action);
            return false;
        }
        self.perform(slot, action, io);
        self.settle(io);
        true
    }

    /// Asks the core what it wants without having been asked.
    pub(crate) fn poll(&mut self, io: &mut Io<'_>) {
        while self.state != State::Closing
            && let Some(order) = self.core.poll(io.now)
        {
            match order {
                Order::Respond(response) => self.parked.push_back(response),
                Order::Close(cause) => self.close(&cause, io),
            }
        }
        self.settle(io);
    }

    /// When [`poll`](Self::poll) has to be called at the latest.
    pub(crate) fn next_deadline(&self) -> Option<Duration> {
        match self.state {
            State::Closing => None,
            State::Open | State::Draining => self.core.next_deadline(),
        }
    }

    /// Since when a command waits for the host to take or give data.
    pub(crate) fn longest_on_wire(&self) -> Option<Duration> {
        self.slots.longest_on_wire()
    }

    /// Begins no new command, and closes when those in work are done.
    pub(crate) fn drain(&mut self, io: &mut Io<'_>) {
        if self.state == State::Open {
            self.state = State::Draining;
        }
        self.settle(io);
    }

    /// Closes now.
    pub(crate) fn abandon(&mut self, why: &str, io: &mut Io<'_>) {
        if self.state != State::Closing {
            tracing::warn!(peer = %self.peer, queue = self.core.qid(), "closing: {why}");
            self.state = State::Closing;
            io.provider.disconnect(self.qp);
        }
    }

    /// The queue pair is gone. Says whether every reactor has to poll its
    /// queues.
    pub(crate) fn closed(self, reason: &CloseReason) -> bool {
        let (peer, queue) = (self.peer, self.core.qid());
        let (host, subsystem, cntlid) = self.core.association().unwrap_or_default();
        match reason {
            CloseReason::Local | CloseReason::Peer | CloseReason::Rejected => {
                tracing::info!(%peer, host, subsystem, cntlid, queue, "disconnected: {reason}");
            }
            _ => {
                tracing::warn!(%peer, host, subsystem, cntlid, queue, "connection lost: {reason}");
            }
        }
        self.core.close()
    }

    fn tag(&self, slot: Place) -> RdmaTag {
        let queue = self.place;
        RdmaTag(Tag { queue, slot }.to_bits())
    }

    /// Begins what waits for a slot, and does what the core wants besides.
    fn settle(&mut self, io: &mut Io<'_>) {
        while self.state != State::Closing && !self.slots.is_full() {
            if let Some(response) = self.parked.pop_front() {
                self.answer_held(response, io);
            } else if self.state == State::Open
                && let Some(capsule) = self.waiting.pop_front()
            {
                self.begin(capsule, io);
            } else {
                break;
            }
        }
        let news = self.core.take_news();
        if !news.is_empty() {
            self.tell(news, io);
        }
        if self.state == State::Draining && self.slots.in_use() == 0 && !self.core.is_needed() {
            self.state = State::Closing;
            io.provider.disconnect(self.qp);
        }
    }

    fn tell(&mut self, news: News, io: &mut Io<'_>) {
        if news.contains(News::REMARK)
            && let Some(remark) = self.core.take_remark()
        {
            let (peer, queue) = (self.peer, self.core.qid());
            if self.core.association().is_some() {
                tracing::info!(%peer, queue, "{remark}");
            } else {
                tracing::warn!(%peer, queue, "{remark}");
            }
        }
        *io.news |= news;
        if news.contains(News::POLL) {
            self.poll(io);
        }
    }

    fn begin(&mut self, capsule: Capsule, io: &mut Io<'_>) {
        let Capsule { buf, len } = capsule;
        let bytes = buf.get(..len).unwrap_or_default();
        let (request, action) = self.core.begin(io.now, bytes);
        let misaligned = match (&action, request.data()) {
            (Action::Execute(op), Data::Capsule(range)) => {
                let alignment = io.storage.buffer_alignment(op.disk);
                let start = usize::try_from(buf.addr()).unwrap_or(0) + range.start;
                !start.is_multiple_of(usize::try_from(alignment).unwrap_or(1))
            }
            _ => false,
        };
        let job = Job {
            request: Some(request),
            misaligned,
            capsule: Some(buf),
            ..Job::default()
        };
        match self.slots.insert(job) {
            Some(slot) => self.perform(slot, action, io),
            None => self.bug("a command was begun without a slot", io),
        }
    }

    fn answer_held(&mut self, response: Response, io: &mut Io<'_>) {
        match self.slots.insert(Job::default()) {
            Some(slot) => self.respond(slot, response, io),
            None => self.bug("an answer was begun without a slot", io),
        }
    }

    /// The provider refused work though its queues were sized for it.
    fn refused(&mut self, why: &PostError, io: &mut Io<'_>) {
        tracing::error!(peer = %self.peer, queue = self.core.qid(), "work was refused: {why}");
        self.bug("work was refused", io);
    }

    fn close(&mut self, cause: &CloseCause, io: &mut Io<'_>) {
        if self.state == State::Closing {
            return;
        }
        let (peer, queue) = (self.peer, self.core.qid());
        let (host, subsystem, cntlid) = self.core.association().unwrap_or_default();
        match cause {
            CloseCause::Disconnected | CloseCause::ControllerGone { .. } => {
                tracing::info!(%peer, host, subsystem, cntlid, queue, "closing: {cause}");
            }
            _ => tracing::warn!(%peer, host, subsystem, cntlid, queue, "closing: {cause}"),
        }
        self.state = State::Closing;
        io.provider.disconnect(self.qp);
    }

    /// Our own mistake: ends this connection and nothing else.
    fn bug(&mut self, what: &'static str, io: &mut Io<'_>) {
        debug_assert!(false, "{what}");
        self.close(&CloseCause::Internal { what }, io);
    }
}
