//! One queue pair: moves bytes as the core says. The way of a command is in `path`.

mod abort;
mod account;
mod arrivals;
mod audit;
mod awaiting;
mod charged;
mod disk;
mod fused;
mod in_place;
mod lingering;
mod losses;
mod parts;
mod path;
mod quiesce;
mod receives;
mod room;
mod second;
mod slots;
mod snapshot;
mod stalled;
mod telling;
mod transfer;
mod trust;
mod waits;

use std::collections::VecDeque;
use std::time::Duration;

use nvmeof_backend::Storage;
use nvmeof_memory::{Buf, Pool};
use nvmeof_rdma::{CloseReason, ListenerId, Peer, PostError, Provider, QpId, RateLimiter};
use nvmeof_target_core::{
    CloseCause, DisconnectReason, Disconnected, FollowUps, Order, PortQuotaGuard, Queue as Core,
    Writers,
};

use crate::awaiting_buffers::AwaitingBuffers;
use crate::backlog::Backlog;
use crate::data_buffers::DataBuffers;
use crate::failures::Failures;
use crate::fair_queue::FairQueue;
use crate::peer_log::PeerLog;
use crate::tag::SlotId;
use account::Account;
pub(crate) use account::{Accounts, KINDS, Left};
use arrivals::Arrivals;
use awaiting::Awaiting;
use fused::Pair;
pub(crate) use lingering::Lingering;
use losses::Written;
pub(crate) use quiesce::{Locked, Waiting};
pub(crate) use receives::{Receives, SharedQueues};
pub(crate) use room::all_admin_capsules;
use slots::{Lent, Slots};
use stalled::Watch;
pub(crate) use stalled::{Shortage, Stalled};
use transfer::Transfer;
pub(crate) use trust::{Source, Standing};

/// What queue pairs work with during a turn.
pub(crate) struct Io<'a> {
    pub(crate) now: Duration,
    /// Of the queue pair, or of the queue pairs that are called one after the other.
    pub(crate) provider: &'a mut dyn Provider,
    pub(crate) storage: &'a mut dyn Storage,
    pub(crate) resources: &'a mut Resources,
}

/// What the queue pairs of one reactor share.
pub(crate) struct Resources {
    pub(crate) buffers: DataBuffers,
    /// What hosts hold of them.
    pub(crate) accounts: Accounts,
    /// Where capsules of I/O queues are received.
    pub(crate) capsules: Pool,
    /// Those of admin queues, which I/O queues do not touch.
    pub(crate) admin_capsules: Pool,
    /// Receives that queues draw from.
    pub(crate) shared: SharedQueues,
    /// Commands that wait for a buffer.
    pub(crate) awaiting: AwaitingBuffers,
    /// Queues with commands that wait for their host's turn, each once. Some may be gone.
    pub(crate) due: FairQueue<SlotId>,
    /// How many commands may still be begun in this turn before hosts and queues take turns.
    pub(crate) at_once: u32,
    /// Operations that found no room on their backing store.
    pub(crate) backlog: Backlog,
    /// Which hosts have to be told of what backing stores lose.
    pub(crate) writers: Writers,
    /// Locks on ranges of backing stores, and commands that wait for those of others.
    pub(crate) locked: Locked,
    /// What the reactor has to do after the call.
    pub(crate) follow_ups: FollowUps,
    /// Reactors that are to look after their queues, by their places.
    pub(crate) calls: Vec<u16>,
    /// When queues are to be polled next. Earlier than needed does no harm.
    pub(crate) timer: Option<Duration>,
    /// Where backing stores that fail are reported.
    pub(crate) failures: Option<Failures>,
    pub(crate) disk_log: RateLimiter,
    /// For commands that wait long.
    pub(crate) wait_log: RateLimiter,
    /// For what anybody can cause who reaches us.
    pub(crate) connect_log: PeerLog,
}

impl Resources {
    /// Polls queues at `deadline` at the latest, if there is one.
    pub(crate) fn poll_by(&mut self, deadline: Option<Duration>) {
        self.timer = self.timer.into_iter().chain(deadline).min();
    }
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
pub(crate) struct QueuePair {
    place: SlotId,
    pub(crate) link: Link,
    core: Core,
    state: State,
    pub(crate) receives: Receives,
    slots: Slots,
    /// Commands that did not begin yet.
    arrivals: Arrivals,
    reads: Reads,
    /// Commands that wait for a buffer.
    awaiting: Awaiting,
    /// Operations that backing stores have of this queue.
    pub(crate) on_disk: u32,
    /// Backing stores that its host is known to write to.
    written: Written,
    rare: Rare,
    watch: Watch,
    /// What its host holds, once that is known.
    account: Option<Account>,
    /// Capsules of its receives, as far as they count there.
    capsules: u32,
    /// Its place at its port.
    _quota: PortQuotaGuard,
}

/// RDMA Reads of a queue pair.
#[derive(Debug)]
struct Reads {
    /// Those that may be posted besides those in flight.
    left: u32,
    /// Slots that wait for one, in order.
    waiting: VecDeque<SlotId>,
}

/// What few commands need.
#[derive(Debug, Default)]
struct Rare {
    /// Fused operations in progress, oldest first.
    pairs: Vec<Pair>,
    /// Data that go to or come from several places of the host's memory.
    transfers: Vec<Transfer>,
    /// Writes that newer ones wait for.
    lingering: Lingering,
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
const RECEIVE: SlotId = SlotId {
    index: u16::MAX,
    generation: 0,
};

/// Work requests that one command has outstanding at most: a write and a send.
pub const SENDS_PER_COMMAND: u32 = 2;

/// A line in the log about a connected queue: it names who is at the other end,
/// by address and by name, and what they are connected to.
macro_rules! of_peer {
    ($level:ident, $queue_pair:expr, $($text:tt)+) => {{
        let (host, subsystem, cntlid) = $queue_pair.core.association().unwrap_or_default();
        let (peer, queue) = ($queue_pair.link.peer, $queue_pair.core.qid());
        tracing::$level!(%peer, host, subsystem, cntlid, queue, $($text)+);
    }};
}
use of_peer;
use telling::limited;

impl QueuePair {
    pub(crate) fn new(place: SlotId, link: Link, core: Core, quota: PortQuotaGuard) -> Self {
        Self {
            place,
            core,
            state: State::Open,
            receives: Receives::Own,
            slots: Slots::new(FIRST),
            arrivals: Arrivals::default(),
            reads: Reads {
                left: link.reads,
                waiting: VecDeque::new(),
            },
            link,
            awaiting: Awaiting::default(),
            on_disk: 0,
            written: Written::default(),
            rare: Rare::default(),
            watch: Watch::default(),
            account: None,
            capsules: 0,
            _quota: quota,
        }
    }

    /// Draws its receives, which have that length, from `receives` instead of
    /// having its own.
    pub(crate) fn share(&mut self, receives: Receives, len: usize, shared: &mut SharedQueues) {
        self.receives = receives;
        self.link.capsule_len = len;
        self.receives.grow(FIRST, shared);
    }

    #[cold]
    fn received_nothing(&mut self, buf: Buf, io: &mut Io<'_>) {
        // Other queues may need what it took.
        if matches!(self.receives, Receives::Shared(_)) {
            self.post_again(buf, io);
        }
    }

    /// Ends the command in `slot`.
    #[inline]
    fn free(&mut self, slot: SlotId) {
        self.slots.free(slot, self.account.as_ref());
    }

    /// Asks the core what it wants without having been asked.
    pub(crate) fn poll(&mut self, io: &mut Io<'_>) {
        while self.state != State::Closing
            && let Some(order) = self.core.poll(io.now)
        {
            match order {
                Order::Respond(response) => self.arrivals.responses.push_back(response),
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
    pub(crate) fn lost(&self, reason: DisconnectReason) -> Option<Disconnected> {
        self.core.lost(reason)
    }

    /// Its connection ended with an error.
    pub(crate) fn broke(&self) {
        self.core.broke();
    }

    /// Whether a command in flight was begun for that disk.
    pub(crate) fn uses(&self, disk: u32) -> bool {
        self.slots.uses(disk)
    }

    /// Begins no new command, and closes when those in flight are done.
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
                limited!(
                    warn,
                    self,
                    &mut io.resources.connect_log,
                    io.now,
                    "closing: {why}"
                );
            } else {
                self.log_unconnected(
                    format_args!("closing: {why}"),
                    io.now,
                    &mut io.resources.connect_log,
                );
            }
            self.shut(io);
        }
    }

    fn shut(&mut self, io: &mut Io<'_>) {
        // Before its host can know.
        self.end(io);
        io.provider.disconnect(self.link.qp);
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
            self.log_unconnected(format_args!("{reason}"), now, log);
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
                self.log_unconnected(
                    format_args!("closing: {cause}"),
                    io.now,
                    &mut io.resources.connect_log,
                );
            }
            CloseCause::Disconnected | CloseCause::ControllerGone { .. } => {
                limited!(
                    info,
                    self,
                    &mut io.resources.connect_log,
                    io.now,
                    "closing: {cause}"
                );
            }
            _ => limited!(
                warn,
                self,
                &mut io.resources.connect_log,
                io.now,
                "closing: {cause}"
            ),
        }
        self.shut(io);
    }

    /// Our own mistake: ends this connection and nothing else.
    fn bug(&mut self, what: &'static str, io: &mut Io<'_>) {
        debug_assert!(false, "{what}");
        self.close(&CloseCause::Internal { what }, io);
    }

    /// Nothing comes of work on a queue that closes. The buffer that the provider had,
    /// if it had one, is back.
    #[cold]
    pub(super) fn returned(&mut self, slot: SlotId, had_buffer: bool) {
        if had_buffer
            && let Some(command) = self.slots.get(slot)
            && command.lent != Lent::Capsule
        {
            command.data.end(self.account.as_ref());
        }
    }
}
