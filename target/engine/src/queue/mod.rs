//! The edge of one queue pair: moves bytes as the core says.

mod abort;
mod account;
mod audit;
mod charged;
mod disk;
mod due;
mod fused;
mod in_place;
mod lingering;
mod losses;
mod parts;
mod quiesce;
mod receives;
mod room;
mod second;
mod sight;
mod slots;
mod stalled;
mod steps;
mod telling;
mod transfer;
mod trust;
mod waits;

use std::collections::VecDeque;
use std::time::Duration;

use nvmeof_memory::{Buf, Pool};
use nvmeof_rdma::{
    CloseReason, Completion, ListenerId, Peer, PostError, Provider, QpId, Received, Sparingly,
    Tag as RdmaTag, WorkKind,
};
use nvmeof_target_core::{
    Action, CloseCause, Data, Disconnected, Limit, LockMember, News, Order, PortSeat,
    Queue as Core, Response, Why, Writers,
};

use crate::failures::Failures;
use crate::peer_log::PeerLog;
use crate::reactor::{AwaitingBuffers, Backlog};
use crate::stock::Stock;
use crate::storage::Storage;
use crate::tag::{Place, Tag};
use crate::turns::Turns;
use account::{Account, Provided, provide};
pub(crate) use account::{Accounts, KINDS, Left};
use fused::Pair;
pub(crate) use lingering::Lingering;
use losses::Written;
pub(crate) use quiesce::Waiting;
pub(crate) use receives::{Receives, SharedQueues};
pub(crate) use second::Seconds;
use slots::{Lacks, Slots};
use stalled::Watch;
pub(crate) use stalled::{Shortage, Stalled};
use transfer::Transfer;
pub(crate) use trust::{Source, Standing};

/// What queues work with during a turn.
pub(crate) struct Io<'a> {
    pub(crate) now: Duration,
    pub(crate) provider: &'a mut dyn Provider,
    pub(crate) storage: &'a mut dyn Storage,
    pub(crate) buffers: &'a mut Stock,
    /// What hosts hold of them.
    pub(crate) accounts: &'a mut Accounts,
    /// Where capsules of I/O queues are received, and those of admin queues.
    pub(crate) capsules: &'a Pool,
    pub(crate) admin_capsules: &'a Pool,
    /// Receives that queues draw from.
    pub(crate) shared: &'a mut SharedQueues,
    /// Commands that wait for a buffer.
    pub(crate) hungry: &'a mut AwaitingBuffers,
    /// Queues with commands that wait to be begun, each once.
    pub(crate) due: &'a mut Turns<Place>,
    /// How many commands may still be begun in this turn before hosts and queues take turns.
    pub(crate) at_once: &'a mut u32,
    /// Disk operations that found no room.
    pub(crate) backlog: &'a mut Backlog,
    /// Who is to be told of what disks lose.
    pub(crate) writers: &'a Writers,
    /// Locks on ranges of disks, and commands that wait for those of others.
    pub(crate) locks: &'a LockMember,
    pub(crate) waiting: &'a mut Waiting,
    /// What the reactor has to do after the call.
    pub(crate) news: &'a mut News,
    /// Reactors that are to look after their queues, by their places.
    pub(crate) calls: &'a mut Vec<u16>,
    /// When the reactor polls its queues next.
    pub(crate) timer: &'a mut Option<Duration>,
    /// Whoever looks after disks that fail.
    pub(crate) failures: Option<&'a Failures>,
    pub(crate) disk_log: &'a mut Sparingly,
    /// For commands that wait long.
    pub(crate) wait_log: &'a mut Sparingly,
    /// For what anybody can cause who reaches us.
    pub(crate) connect_log: &'a mut PeerLog,
}

/// The connection that a queue pair is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Link {
    pub(crate) qp: QpId,
    /// Which of the reactor's providers it is of.
    pub(crate) provider: usize,
    /// By which it came.
    pub(crate) listener: ListenerId,
    pub(crate) peer: Peer,
    /// Bytes of a capsule, in-capsule data included.
    pub(crate) capsule_len: usize,
    /// RDMA Reads that may be in flight.
    pub(crate) reads: u32,
}

/// One queue pair.
pub(crate) struct Edge {
    place: Place,
    pub(crate) qp: QpId,
    /// Which of the reactor's providers it is of.
    pub(crate) provider: usize,
    /// By which it came.
    pub(crate) listener: ListenerId,
    peer: Peer,
    core: Core,
    /// Bytes of a capsule, in-capsule data included.
    capsule_len: usize,
    pub(crate) receives: Receives,
    slots: Slots,
    /// RDMA Reads that may be begun besides those in flight.
    reads_left: u32,
    /// Slots that wait for one of them, in order.
    pulls: VecDeque<Place>,
    /// Slots that wait for a buffer, in order.
    hungry: VecDeque<Place>,
    /// Whether the reactor knows that there are any.
    listed: bool,
    /// Whether the reactor is to have it begin commands that wait.
    due: bool,
    /// When a Keep Alive was last begun although it was not its host's turn.
    kept_alive: Option<Duration>,
    /// The limit that the first of them waits for, once that was counted.
    full: Option<Limit>,
    watch: Watch,
    /// Operations that disks have of this queue.
    pub(crate) on_disk: u32,
    /// Capsules that came while no slot was free, or while it was the turn of others.
    waiting: VecDeque<Capsule>,
    /// Answers to commands that were held, waiting for a slot.
    parked: VecDeque<Response>,
    /// Fused operations in work, oldest first.
    pairs: Vec<Pair>,
    /// Disks that its host is known to write to.
    written: Written,
    /// Writes that newer ones wait for.
    lingering: Lingering,
    /// Data that go to or come from several places of the host's memory.
    transfers: Vec<Transfer>,
    state: State,
    /// What its host holds, once that is known.
    account: Option<Account>,
    /// Capsules of its receives, as far as they count there.
    capsules: u32,
    /// Its place at its port.
    _seat: PortSeat,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Open,
    /// No new command is begun.
    Draining,
    /// Only waiting for the provider to say that it is closed.
    Closing,
}

/// A command as it came.
#[derive(Debug)]
struct Capsule {
    buf: Buf,
    len: usize,
    came: Duration,
}

/// Commands that a host may send before its Connect is answered, which is one
/// (Base 2.0, 6.3), and another for who does not know that. The receives and
/// slots for all the others are taken when a Connect succeeds.
pub(crate) const FIRST: u16 = 2;

/// The slot that receives are posted under: they belong to none.
const RECEIVE: Place = Place {
    index: u16::MAX,
    generation: 0,
};

/// Work requests that one command has outstanding at most: a write and a send.
pub const SENDS_PER_COMMAND: u32 = 2;

/// A line in the log about a connected queue: it names who is at the other end,
/// by address and by name, and what they are connected to.
macro_rules! of_peer {
    ($level:ident, $edge:expr, $($text:tt)+) => {{
        let (host, subsystem, cntlid) = $edge.core.association().unwrap_or_default();
        let (peer, queue) = ($edge.peer, $edge.core.qid());
        tracing::$level!(%peer, host, subsystem, cntlid, queue, $($text)+);
    }};
}
use of_peer;
use telling::limited;

impl Edge {
    pub(crate) fn new(place: Place, link: Link, core: Core, seat: PortSeat) -> Self {
        Self {
            place,
            qp: link.qp,
            provider: link.provider,
            listener: link.listener,
            peer: link.peer,
            core,
            capsule_len: link.capsule_len,
            receives: Receives::Own,
            slots: Slots::new(FIRST),
            reads_left: link.reads,
            pulls: VecDeque::new(),
            hungry: VecDeque::new(),
            listed: false,
            due: false,
            kept_alive: None,
            full: None,
            watch: Watch::default(),
            on_disk: 0,
            waiting: VecDeque::new(),
            parked: VecDeque::new(),
            pairs: Vec::new(),
            written: Written::default(),
            lingering: Lingering::default(),
            transfers: Vec::new(),
            state: State::Open,
            account: None,
            capsules: 0,
            _seat: seat,
        }
    }

    /// Draws its receives, which have that length, from `receives` instead of
    /// having its own.
    pub(crate) fn share(&mut self, receives: Receives, len: usize, shared: &mut SharedQueues) {
        self.receives = receives;
        self.capsule_len = len;
        self.receives.grow(FIRST, shared);
    }

    /// Gives a buffer to the provider for the next command.
    // With each answer: it is short.
    #[inline(always)]
    pub(crate) fn post_recv(
        &mut self,
        mut buf: Buf,
        provider: &mut dyn Provider,
        shared: &mut SharedQueues,
    ) -> Result<(), PostError> {
        if buf.set_len(self.capsule_len).is_err() {
            return Err(PostError::TooLong {
                len: self.capsule_len,
                max: buf.capacity(),
            });
        }
        let (qp, tag) = (self.qp, self.tag(RECEIVE));
        self.receives.post(buf, provider, shared, |provider, buf| {
            let posted = provider.post_recv(qp, tag, buf);
            posted.map_err(|refused| refused.why)
        })
    }

    /// A receive came back.
    #[inline]
    pub(crate) fn received(&mut self, received: Received, io: &mut Io<'_>) {
        let Received {
            buf, len, outcome, ..
        } = received;
        // After a failure the provider says that the queue pair is closed.
        if !outcome.is_success() || self.state == State::Closing {
            return self.received_nothing(buf, io);
        }
        let came = io.now;
        let capsule = Capsule { buf, len, came };
        if let Err(why) = self.receives.draw(io.shared) {
            self.waiting.push_back(capsule);
            return self.abandon(&why, io);
        }
        // Almost always nothing waits.
        if self.state == State::Open && self.begins_at_once() && !self.takes_turns(io) {
            self.begin(capsule, io);
        } else {
            self.put_off(capsule, io);
        }
        self.settle(io);
    }

    #[cold]
    fn received_nothing(&mut self, buf: Buf, io: &mut Io<'_>) {
        // Other queues may need what it took.
        if matches!(self.receives, Receives::Shared(_)) {
            self.post_again(buf, io);
        }
    }

    /// Whether a command that comes now is the next to be begun.
    fn begins_at_once(&self) -> bool {
        self.waiting.is_empty() && self.parked.is_empty() && !self.slots.is_full()
    }

    /// A send, write or read came back.
    #[inline]
    pub(crate) fn completed(&mut self, completion: Completion, io: &mut Io<'_>) {
        let slot = Tag::from_bits(completion.tag.0).slot;
        if !completion.outcome.is_success() || self.state == State::Closing {
            return self.returned(slot, completion.buf.is_some());
        }
        match completion.kind {
            WorkKind::Send => {
                self.answered(slot, io);
                let account = self.account.as_ref();
                self.slots.answered(slot, account, completion.buf.is_some());
                io.buffers.put_back(completion.buf);
            }
            WorkKind::Write if self.transfers.is_empty() => self.pushed(slot, completion.buf, io),
            WorkKind::Write => self.written(slot, completion.buf, io),
            WorkKind::Read if self.transfers.is_empty() => self.pulled(slot, completion.buf, io),
            WorkKind::Read => self.read(slot, completion.buf, io),
        }
        self.settle(io);
    }

    /// It is this queue's turn: there may be a buffer for the command of it
    /// that waits longest. False when there is not.
    pub(crate) fn feed(&mut self, io: &mut Io<'_>) -> bool {
        self.listed = false;
        if self.state == State::Closing {
            self.hungry.clear();
        }
        let fed = self.feed_first(io);
        self.list(io);
        fed
    }

    fn feed_first(&mut self, io: &mut Io<'_>) -> bool {
        let Some(slot) = self.hungry.front().copied() else {
            return false;
        };
        if let Some(job) = self.slots.get(slot)
            && let Some(action) = job.hungry.take()
        {
            let lacks = job.lacks(&action);
            let account = self.account.as_ref();
            let mut provided = provide(job, lacks, account, io);
            if provided != Provided::Yes && lacks.both() {
                // One at a time: those that take one each would go before it for ever.
                let first = Lacks {
                    spare: None,
                    ..lacks
                };
                provided = provide(job, first, account, io);
            }
            if provided != Provided::Yes {
                job.hungry = Some(action);
                self.note_full(provided, io);
                self.note_shortage(provided, lacks, io);
                return false;
            }
            self.full = None;
            self.note_shortage(provided, lacks, io);
            self.hungry.pop_front();
            self.perform(slot, action, io);
            self.settle(io);
        } else {
            self.hungry.pop_front();
        }
        true
    }

    /// Ends the command in `slot`.
    #[inline]
    fn free(&mut self, slot: Place) {
        self.slots.free(slot, self.account.as_ref());
    }

    /// Asks the core what it wants without having been asked.
    pub(crate) fn poll(&mut self, io: &mut Io<'_>) {
        while self.state != State::Closing
            && let Some(order) = self.core.poll(io.now)
        {
            match order {
                Order::Respond(response) => self.parked.push_back(response),
                Order::Abort { cid } => self.abort(cid, io),
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

    /// Whether it is an admin queue.
    pub(crate) fn is_admin(&self) -> bool {
        self.core.qid() == 0
    }

    /// Its controller, of which it is told that its host lost it. `None` if it is no
    /// admin queue that is connected.
    pub(crate) fn lost(&self, why: Why) -> Option<Disconnected> {
        self.core.lost(why)
    }

    /// Its connection ended with an error.
    pub(crate) fn broke(&self) {
        self.core.broke();
    }

    /// Whether a command in work was begun for that disk.
    pub(crate) fn uses(&self, disk: u32) -> bool {
        self.slots.uses(disk)
    }

    /// Begins no new command, and closes when those in work are done.
    pub(crate) fn drain(&mut self, io: &mut Io<'_>) {
        if self.state == State::Open {
            self.state = State::Draining;
            self.no_second_half(io);
        }
        self.settle(io);
    }

    /// Whether a host connected it to a controller.
    pub(crate) fn is_connected(&self) -> bool {
        self.core.is_connected()
    }

    /// Whether it only waits for the provider.
    pub(crate) fn is_closing(&self) -> bool {
        self.state == State::Closing
    }

    /// Closes now.
    pub(crate) fn abandon(&mut self, why: &str, io: &mut Io<'_>) {
        if self.state != State::Closing {
            if self.core.is_connected() {
                limited!(warn, self, io.connect_log, io.now, "closing: {why}");
            } else {
                self.tell_of_stranger(format_args!("closing: {why}"), io.now, io.connect_log);
            }
            self.shut(io);
        }
    }

    fn shut(&mut self, io: &mut Io<'_>) {
        // Before its host can know.
        self.end(io);
        io.provider.disconnect(self.qp);
    }

    /// It was not accepted: nothing is left but to wait for the provider.
    pub(crate) fn turn_away(&mut self) {
        self.state = State::Closing;
    }

    /// The queue pair is gone. Says whether every reactor has to poll its
    /// queues.
    pub(crate) fn closed(self, reason: &CloseReason, now: Duration, log: &mut PeerLog) -> bool {
        // A host that takes a queue down lives. That we do says nothing.
        if *reason == CloseReason::Peer {
            self.core.hear(now);
        }
        if !self.core.is_connected() {
            self.tell_of_stranger(format_args!("{reason}"), now, log);
            return self.core.close();
        }
        match reason {
            CloseReason::Local | CloseReason::Peer | CloseReason::Rejected => {
                limited!(info, self, log, now, "disconnected: {reason}");
            }
            _ => limited!(warn, self, log, now, "connection lost: {reason}"),
        }
        self.core.close()
    }

    fn tag(&self, slot: Place) -> RdmaTag {
        let queue = self.place;
        RdmaTag(Tag { queue, slot }.to_bits())
    }

    /// Begins what waits for a slot, and does what the core wants besides.
    #[inline]
    fn settle(&mut self, io: &mut Io<'_>) {
        let nothing = self.state == State::Open
            && self.waiting.is_empty()
            && self.parked.is_empty()
            && !self.core.has_news();
        if !nothing {
            self.settle_all(io);
        }
    }

    fn settle_all(&mut self, io: &mut Io<'_>) {
        while self.state != State::Closing && !self.slots.is_full() {
            if let Some(response) = self.parked.pop_front() {
                self.answer_held(&response, io);
            } else if self.state == State::Open
                && !self.waits_for_turn(io)
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
            self.shut(io);
        }
    }

    fn begin(&mut self, capsule: Capsule, io: &mut Io<'_>) {
        let Capsule { buf, len, .. } = capsule;
        let room = self.make_room(io);
        let Some((slot, job)) = self.slots.take() else {
            return self.bug("a command was begun without a slot", io);
        };
        let bytes = buf.get(..len).unwrap_or_default();
        job.began = io.now;
        let action = self.core.begin(io.now, bytes, &mut job.request);
        if let (Action::Execute(op), Data::Capsule(range)) = (&action, job.request.data()) {
            let alignment = io.storage.buffer_alignment(op.disk);
            let start = buf.addr().wrapping_add(range.start as u64);
            job.misaligned = !in_place::is_aligned(start, alignment);
        }
        let fusing = job.request.is_fusing();
        job.capsule = Some(buf);
        self.take_room(room, io);
        if fusing || !self.pairs.is_empty() {
            self.begin_beside_pairs(slot, fusing, io);
        }
        self.perform(slot, action, io);
    }

    fn answer_held(&mut self, response: &Response, io: &mut Io<'_>) {
        match self.slots.take() {
            Some((slot, _nothing)) => self.give(slot, response, false, io),
            None => self.bug("an answer was begun without a slot", io),
        }
    }

    /// The provider refused work though its queues were sized for it. What was
    /// agreed with the peer has a part in that, so it ends this connection.
    #[cold]
    fn refused(&mut self, why: &PostError, io: &mut Io<'_>) {
        self.abandon(&format!("work was refused: {why}"), io);
    }

    fn close(&mut self, cause: &CloseCause, io: &mut Io<'_>) {
        if self.state == State::Closing {
            return;
        }
        match cause {
            _ if !self.core.is_connected() => {
                self.tell_of_stranger(format_args!("closing: {cause}"), io.now, io.connect_log);
            }
            CloseCause::Disconnected | CloseCause::ControllerGone { .. } => {
                limited!(info, self, io.connect_log, io.now, "closing: {cause}");
            }
            _ => limited!(warn, self, io.connect_log, io.now, "closing: {cause}"),
        }
        self.shut(io);
    }

    /// Our own mistake: ends this connection and nothing else.
    fn bug(&mut self, what: &'static str, io: &mut Io<'_>) {
        debug_assert!(false, "{what}");
        self.close(&CloseCause::Internal { what }, io);
    }
}
