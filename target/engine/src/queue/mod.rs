//! One queue pair: executes the actions of the core. The steps of a command are in
//! `path`.

mod abort;
mod account;
mod arrivals;
mod audit;
mod awaiting;
mod backing_store;
mod charged;
mod computing;
mod follow_ups;
mod fused;
mod holder_limits;
mod in_place;
mod lingering;
mod losses;
mod messages;
mod path;
mod quiesce;
mod receives;
mod room;
mod second;
mod slots;
mod snapshot;
mod stalled;
mod transfer;
mod trust;
mod waits;

use std::collections::VecDeque;
use std::time::Duration;

use nvmeof_backend::BackingStores;
use nvmeof_memory::{Buf, Pool};
use nvmeof_rdma::{CloseReason, ListenerId, Peer, PostError, Provider, QpId, RateLimiter};
use nvmeof_target_core::{
    Call, CloseCause, DisconnectReason, Disconnected, FollowUps, Order, PortQuotaGuard,
    Queue as Core, Writers,
};

use crate::authentication::PendingJob;
use crate::awaiting_buffers::AwaitingBuffers;
use crate::backlog::Backlog;
use crate::data_buffers::DataBuffers;
use crate::failures::Failures;
use crate::fair_queue::FairQueue;
use crate::peer_log::PeerLog;
use crate::tag::SlotId;
use account::Account;
pub(crate) use account::{Accounts, KINDS, UnreturnedBuffers};
use arrivals::Arrivals;
use awaiting::BufferWaits;
pub(crate) use computing::Workers;
use fused::Pair;
pub(crate) use lingering::{Impacted, Lingering};
use losses::WrittenStores;
pub(crate) use messages::{MOST_UNCONNECTED, MessageBuffers};
pub(crate) use quiesce::{Locked, Waiting};
pub(crate) use receives::{Receives, SharedQueues};
pub(crate) use room::all_admin_capsules;
use slots::{Lent, Slots};
use stalled::Watch;
pub(crate) use stalled::{Shortage, Stalled};
use transfer::Transfer;
pub(crate) use trust::TrustLevel;

/// What queue pairs use during an iteration.
pub(crate) struct Io<'a> {
    pub(crate) now: Duration,
    /// The provider of the queue pair, or of all queue pairs that are called in a row.
    pub(crate) provider: &'a mut dyn Provider,
    pub(crate) stores: &'a mut dyn BackingStores,
    pub(crate) resources: &'a mut Resources,
}

/// Resources that the queue pairs of one reactor share.
pub(crate) struct Resources {
    pub(crate) buffers: DataBuffers,
    /// What hosts hold of these resources.
    pub(crate) accounts: Accounts,
    /// Capsule buffers of I/O queues.
    pub(crate) capsules: Pool,
    /// Capsule buffers of admin queues, which I/O queues do not use.
    pub(crate) admin_capsules: Pool,
    /// Buffers for the messages of queues without a controller.
    pub(crate) messages: MessageBuffers,
    /// Where computations of authentications run, if there are any workers.
    pub(crate) workers: Option<Workers>,
    /// Shared receive queues.
    pub(crate) shared: SharedQueues,
    /// Commands that wait for a buffer.
    pub(crate) awaiting: AwaitingBuffers,
    /// Queues with commands that wait for the fair queue, each listed once. Some may be
    /// closed.
    pub(crate) due: FairQueue<SlotId>,
    /// How many commands may still start in this iteration before the fair queue applies.
    pub(crate) start_budget: u32,
    /// Operations that wait for a free slot of their backing store.
    pub(crate) backlog: Backlog,
    /// Hosts to which the loss of writes has to be reported.
    pub(crate) writers: Writers,
    /// Range locks of backing stores, and commands that wait for other locks.
    pub(crate) locked: Locked,
    /// What the reactor has to do after the call.
    pub(crate) follow_ups: FollowUps,
    /// Calls to deliver.
    pub(crate) calls: Vec<Call>,
    /// When to poll queues next. Earlier than necessary is harmless.
    pub(crate) timer: Option<Duration>,
    /// Where backing stores that fail are reported.
    pub(crate) failures: Option<Failures>,
    pub(crate) store_log: RateLimiter,
    /// Rate limit for log lines about commands that wait long.
    pub(crate) wait_log: RateLimiter,
    /// Rate limit for log lines that any peer can cause.
    pub(crate) connect_log: PeerLog,
}

impl Resources {
    /// Polls queues at `deadline` at the latest, if there is one.
    pub(crate) fn poll_by(&mut self, deadline: Option<Duration>) {
        self.timer = self.timer.into_iter().chain(deadline).min();
    }
}

/// The connection of a queue pair.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Link {
    pub(crate) qp: QpId,
    /// The index of its provider.
    pub(crate) provider: usize,
    /// The listener that accepted it.
    pub(crate) listener: ListenerId,
    pub(crate) peer: Peer,
    /// Bytes of a capsule, in-capsule data included.
    pub(crate) capsule_len: usize,
    /// RDMA Reads that may be in flight.
    pub(crate) reads: u32,
}

/// One queue pair.
pub(crate) struct QueuePair {
    id: SlotId,
    pub(crate) link: Link,
    core: Core,
    state: State,
    pub(crate) receives: Receives,
    slots: Slots,
    /// Commands that have not started.
    arrivals: Arrivals,
    reads: Reads,
    /// Commands that wait for a buffer.
    awaiting: BufferWaits,
    /// Operations of this queue that backing stores have.
    pub(crate) store_ops: u32,
    /// Backing stores to which its host is known to write.
    written: WrittenStores,
    cold: ColdState,
    watch: Watch,
    /// The account of its host, after a Connect.
    account: Option<Account>,
    /// Capsules of its receives that are charged to the account.
    capsules: u32,
    /// Its slot in the quota of its port.
    _quota: PortQuotaGuard,
}

/// RDMA Reads of a queue pair.
#[derive(Debug)]
struct Reads {
    /// Reads that may be posted in addition to those in flight.
    left: u32,
    /// Slots that wait for one, in order.
    waiting: VecDeque<SlotId>,
}

/// State that few commands need.
#[derive(Debug, Default)]
struct ColdState {
    /// Fused operations in progress, oldest first.
    pairs: Vec<Pair>,
    /// Transfers with several ranges of host memory.
    transfers: Vec<Transfer>,
    /// Writes that newer ones wait for.
    lingering: Lingering,
    /// Commands that wait for a computation.
    computing: Vec<(SlotId, PendingJob)>,
    /// Commands that took a message buffer before the queue had a controller. Some may have
    /// ended.
    messages: Vec<SlotId>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Open,
    /// No new command starts.
    Draining,
    /// Waits only for the provider to report that it is closed.
    Closing,
}

/// A command as received.
#[derive(Debug)]
struct Capsule {
    buf: Buf,
    len: usize,
    arrived: Duration,
}

/// Commands that a host may send before the response to its Connect: one (Base 2.0, 6.3),
/// and another for a host that ignores this. Receives and slots for all others are
/// allocated when a Connect succeeds.
pub(crate) const FIRST: u16 = 2;

/// The slot in the tags of receives, which belong to no command.
const RECEIVE: SlotId = SlotId {
    index: u16::MAX,
    generation: 0,
};

/// Maximum number of outstanding work requests of one command: a write and a send.
pub const SENDS_PER_COMMAND: u32 = 2;

/// A log line about a connected queue, with the address and the name of the host, and its
/// subsystem.
macro_rules! log_peer {
    ($level:ident, $queue_pair:expr, $($text:tt)+) => {{
        let (host, subsystem, cntlid) = $queue_pair.core.association().unwrap_or_default();
        let (peer, queue) = ($queue_pair.link.peer, $queue_pair.core.qid());
        tracing::$level!(%peer, host, subsystem, cntlid, queue, $($text)+);
    }};
}
use follow_ups::limited;
use log_peer;

impl QueuePair {
    pub(crate) fn new(id: SlotId, link: Link, core: Core, quota: PortQuotaGuard) -> Self {
        Self {
            id,
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
            awaiting: BufferWaits::default(),
            store_ops: 0,
            written: WrittenStores::default(),
            cold: ColdState::default(),
            watch: Watch::default(),
            account: None,
            capsules: 0,
            _quota: quota,
        }
    }

    /// Uses `receives`, which have that length, instead of receives of its own.
    pub(crate) fn share(&mut self, receives: Receives, len: usize, shared: &mut SharedQueues) {
        self.receives = receives;
        self.link.capsule_len = len;
        self.receives.grow(FIRST, shared);
    }

    #[cold]
    fn received_nothing(&mut self, buf: Buf, io: &mut Io<'_>) {
        // Other queues may need its receives.
        if matches!(self.receives, Receives::Shared(_)) {
            self.post_again(buf, io);
        }
    }

    /// Ends the command in `slot`.
    #[inline]
    fn free(&mut self, slot: SlotId) {
        self.slots.free(slot, self.account.as_ref());
    }

    /// The identifier of its controller, if it has one.
    pub(crate) fn cntlid(&self) -> Option<u16> {
        self.core.cntlid()
    }

    /// Lets the core start actions without a command.
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

    /// Since when the oldest transfer waits for the host.
    pub(crate) fn longest_on_wire(&self) -> Option<Duration> {
        self.slots.longest_on_wire()
    }

    /// Whether it is an admin queue.
    pub(crate) fn is_admin(&self) -> bool {
        self.core.qid() == 0
    }

    /// Its controller, which learns that its host was disconnected. `None` if it is not a
    /// connected admin queue.
    pub(crate) fn lost(&self, reason: DisconnectReason) -> Option<Disconnected> {
        self.core.lost(reason)
    }

    /// Its connection ended by an error.
    pub(crate) fn record_connection_error(&mut self) {
        self.core.count_connection_error();
    }

    /// Whether a command in flight started on `store`.
    pub(crate) fn uses(&self, store: u32) -> bool {
        self.slots.uses(store)
    }

    /// Starts no new command, and closes after those in flight.
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

    /// When its peer made progress towards a controller last.
    pub(crate) fn last_progress(&self) -> Duration {
        self.core.last_progress().unwrap_or_default()
    }

    /// Whether it only waits for the provider.
    pub(crate) fn is_closing(&self) -> bool {
        self.state == State::Closing
    }

    /// Closes the connection now.
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
        // Before its host can detect it.
        self.end(io);
        io.provider.disconnect(self.link.qp);
    }

    /// The connection was not accepted: only waits for the provider.
    pub(crate) fn mark_rejected(&mut self) {
        self.state = State::Closing;
    }

    /// The queue pair is closed. Returns what the reactor has to do, and the calls to deliver.
    pub(crate) fn closed(
        self,
        reason: &CloseReason,
        now: Duration,
        log: &mut PeerLog,
    ) -> (FollowUps, Vec<Call>) {
        // A host that disconnects a queue is alive. Closing by the target says nothing
        // about the host.
        if *reason == CloseReason::Peer {
            self.core.note_activity(now);
        }
        if !self.core.is_connected() {
            match reason {
                CloseReason::Peer if self.core.claimed().is_some() => {
                    self.log_unconnected(
                        format_args!("{reason} before it authenticated"),
                        now,
                        log,
                    );
                }
                _ => self.log_unconnected(format_args!("{reason}"), now, log),
            }
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

    /// The provider refused a work request although its queues are large enough. The
    /// peer's parameters may be a cause, so only this connection ends.
    #[cold]
    fn refused(&mut self, why: &PostError, io: &mut Io<'_>) {
        self.abandon(&format!("the provider refused a work request: {why}"), io);
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

    /// An internal error: ends this connection only.
    fn bug(&mut self, what: &'static str, io: &mut Io<'_>) {
        debug_assert!(false, "{what}");
        self.close(&CloseCause::Internal { what }, io);
    }

    /// Drops the result of a work request on a queue that is closing. The buffer that the
    /// provider had, if any, is returned.
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
