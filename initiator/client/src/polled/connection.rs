//! One queue pair with its provider: the states of the connection, and events.

use std::os::fd::BorrowedFd;
use std::time::Duration;

use nvmeof_initiator_core::{Cid, Queue, Response, cm};
use nvmeof_memory::{Buf, Pages, Pool, PoolLayout, Region};
use nvmeof_rdma::{
    Address, CloseReason, Completion, Event, Outcome, PrivateData, Provider, QpConfig, QpId,
    QpOwner, Received, RemoteKey, Tag,
};

use super::association::Association;
use super::call::Done;
use super::pools::Pools;
use super::transfer::{InFlightCommand, Transfers};
use crate::error::{Error, Lost, LostCause, MachineError};

/// Sizes and times of a connection.
#[derive(Clone, Debug)]
pub struct ConnectionConfig {
    /// Queue identifier: 0 is the admin queue.
    pub qid: u16,
    /// Entries of the submission queue; one less is the maximum of commands in flight.
    /// Reduced to the limits of the provider.
    pub size: u16,
    /// Whether to request SQ flow control; without it, the submission queue head of responses
    /// is ignored.
    pub flow_control: bool,
    /// Controller of an I/O queue, if known.
    pub cntlid: u16,
    /// Time-out of commands, unless the call has its own.
    pub command_timeout: Duration,
    /// Time-out of connecting.
    pub connect_timeout: Duration,
    /// Host, subsystem and queue, for the log.
    pub owner: QpOwner,
    /// Whether the target may access all registered buffers at any time:
    /// [`ConnectOptions::trusts_target`](crate::ConnectOptions::trusts_target).
    pub trusts_target: bool,
}

/// A queue pair to a controller: sends commands, receives responses, exposes memory and
/// invalidates its keys. It does not interpret commands.
///
/// ```text
///  open() ──► Connecting ──Established──► Up
///                 │                        │ fault, time-out, close()
///                 │ rejected, failed       ▼
///                 ├─────────────────────► Closing ──Closed──► Closed
/// ```
///
/// All calls with commands in flight end with the same error when the queue pair is closed, not
/// before: only then can the target not access their memory any more. If that takes longer than 10
/// seconds, because a target on the same machine is stopped, or its backing store is stalled
/// with this memory, the calls end without their buffers.
pub struct Connection {
    /// Dropped first, and closes the queue pair: other fields contain memory that a trusted
    /// target can access until then.
    provider: Box<dyn Provider>,
    qp: QpId,
    addr: Address,
    qid: u16,
    state: State,
    queue: Queue<InFlightCommand>,
    transfers: Transfers,
    pools: Pools,
    /// Buffer for events of the provider, kept between polls.
    events: Vec<Event>,
    command_timeout: Duration,
    /// The admin queue ends it; an I/O queue ends with it.
    association: Association,
    /// Whether something was posted since the last submit.
    posted: bool,
}

#[derive(Debug)]
enum State {
    Connecting {
        deadline: Duration,
    },
    Up,
    Closing {
        why: Error,
        /// When calls in flight end without their memory, once known.
        give_up_at: Option<Duration>,
    },
    Closed {
        why: Error,
    },
}

/// A response capsule has 16 bytes (NVMe RDMA transport: the response capsule has no
/// in-capsule data, IORCSZ 1); each has a cache line of its own.
const REPLY_STRIDE: usize = 64;

impl Connection {
    /// Starts to connect to `addr`. The regions of payload buffers are registered with the
    /// provider already, or later with [`register`](Self::register). A trusted target can access
    /// only those registered later.
    ///
    /// # Errors
    /// When no attempt to connect is possible: invalid sizes, memory, no such network.
    pub fn open(
        mut provider: Box<dyn Provider>,
        addr: Address,
        config: &ConnectionConfig,
        now: Duration,
    ) -> Result<Self, Error> {
        let limits = provider.limits().clone();
        let most = limits.max_recvs.min(limits.max_sends);
        let size = config.size.min(u16::try_from(most).unwrap_or(u16::MAX));
        let queue = Queue::new(size, config.flow_control).map_err(MachineError::Slots)?;

        let layout = PoolLayout {
            count: usize::from(size),
            stride: REPLY_STRIDE,
            lead: 0,
        };
        let replies = Pool::new(layout, Pages::Normal).map_err(MachineError::pool)?;
        provider
            .register(replies.region())
            .map_err(MachineError::register)?;

        let private_data = cm::request(config.qid, size, config.cntlid);
        let private_data = PrivateData::new(&private_data).map_err(MachineError::internal)?;
        let qp_config = QpConfig {
            recvs: u32::from(size),
            sends: u32::from(size),
            // The target accesses memory of this host, not the reverse.
            reads_out: 0,
            reads_in: limits.max_reads.min(READS_IN),
            // One key for each command.
            exposes: u32::from(size),
            trusts_peer: config.trusts_target,
        };
        let qp = provider
            .connect(addr, &qp_config, &private_data, now)
            .map_err(|error| Error::cannot_connect(addr, &error))?;
        provider.set_owner(qp, config.owner.clone());
        for number in 0..u64::from(size) {
            let Some(buf) = replies.take() else { break };
            provider
                .post_recv(qp, Tag(number), buf)
                .map_err(|refused| MachineError::post(&refused.why))?;
        }
        Ok(Self {
            provider,
            qp,
            addr,
            qid: config.qid,
            state: State::Connecting {
                deadline: now + config.connect_timeout,
            },
            queue,
            transfers: Transfers::new(usize::from(size)),
            pools: Pools::new(config.trusts_target),
            events: Vec::with_capacity(2 * usize::from(size)),
            command_timeout: config.command_timeout,
            association: Association::default(),
            posted: false,
        })
    }

    /// Registers the buffers of `region` for calls.
    ///
    /// # Errors
    /// When the region cannot be registered. If the target is trusted and the connection is not
    /// established yet, the connection fails later instead.
    pub fn register(&mut self, region: &Region) -> Result<(), Error> {
        let is_up = self.is_up();
        let registered = self.pools.add(region, &mut *self.provider, self.qp, is_up);
        Ok(registered.map_err(MachineError::register)?)
    }

    /// Registers buffers for messages of this queue, which a trusted target accesses only during
    /// a command.
    pub(super) fn register_own(&mut self, region: &Region) -> Result<(), Error> {
        let registered = self.provider.register(region);
        Ok(registered.map_err(MachineError::register)?)
    }

    /// Makes progress: handles events, appends the calls that ended, sends pending commands.
    /// Returns whether there was progress. Never blocks.
    pub fn poll(&mut self, now: Duration, done: &mut Vec<Done>) -> bool {
        self.submit_now(now);
        let mut events = std::mem::take(&mut self.events);
        let progress = self.provider.poll(now, &mut events);
        for event in events.drain(..) {
            self.handle(event, done);
        }
        self.events = events;
        self.continue_transfers(now);
        let expired = self.check_time(now, done);
        self.submit_now(now);
        progress || expired
    }

    /// Sends the commands submitted since the last time.
    pub fn submit_now(&mut self, now: Duration) {
        if std::mem::take(&mut self.posted) {
            self.provider.submit(now);
        }
    }

    /// Closes the queue pair. Calls in flight end with an error; [`is_closed`](Self::is_closed)
    /// is true when all have.
    pub fn close(&mut self) {
        self.fail(LostCause::Local);
    }

    /// Closes the queue pair because of `cause`.
    pub(crate) fn fail(&mut self, cause: LostCause) {
        self.fail_with(self.lost_because(cause).into());
    }

    /// Its loss because of `cause`.
    pub(crate) fn lost_because(&self, cause: LostCause) -> Lost {
        Lost {
            addr: self.addr,
            qid: self.qid,
            provider: self.provider.name(),
            established: matches!(self.state, State::Up),
            cause,
        }
    }

    /// Closes the queue pair because of `why`. Only the first reason is kept.
    pub(crate) fn fail_with(&mut self, why: Error) {
        if matches!(self.state, State::Connecting { .. } | State::Up) {
            if self.qid == 0 {
                self.association.end(&why);
            }
            let give_up_at = None;
            self.state = State::Closing { why, give_up_at };
            self.provider.disconnect(self.qp);
        }
    }

    /// The reason of the peer to close the queue pair is known: `why` replaces a bare end of the
    /// connection.
    pub(super) fn explain(&mut self, known: impl FnOnce(Address) -> Error) {
        let (State::Closing { why, .. } | State::Closed { why }) = &mut self.state else {
            return;
        };
        if matches!(why, Error::Lost(lost) if lost.cause.is_by_peer()) {
            *why = known(self.addr);
        }
    }

    /// The association of its controller.
    #[must_use]
    pub fn association(&self) -> &Association {
        &self.association
    }

    pub(super) fn join(&mut self, association: &Association) {
        self.association = association.clone();
    }

    /// Whether the queue accepts calls.
    #[must_use]
    pub fn is_up(&self) -> bool {
        matches!(self.state, State::Up)
    }

    /// Whether the queue is closed and all calls have ended.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        matches!(self.state, State::Closed { .. })
    }

    /// The error, once the connection has failed or is closed.
    #[must_use]
    pub fn error(&self) -> Option<&Error> {
        match &self.state {
            State::Closing { why, .. } | State::Closed { why } => Some(why),
            State::Connecting { .. } | State::Up => None,
        }
    }

    /// The target's address.
    #[must_use]
    pub fn addr(&self) -> Address {
        self.addr
    }

    /// Queue identifier.
    #[must_use]
    pub fn qid(&self) -> u16 {
        self.qid
    }

    /// Entries of the submission queue.
    #[must_use]
    pub fn size(&self) -> u16 {
        self.queue.size()
    }

    /// Calls that have not ended.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.transfers.len()
    }

    /// Whether calls wait to be sent again, because the controller refused them with
    /// Authentication Required.
    pub(super) fn has_refused(&self) -> bool {
        self.transfers.has_refused()
    }

    /// Whether calls wait until the queue is authenticated again.
    pub(super) fn requires_authentication(&self) -> bool {
        self.transfers.requires_authentication()
    }

    /// A descriptor that becomes readable when [`poll`](Self::poll) has work; `None` if the
    /// provider has none. Before sleeping on it, poll until there is no progress and call
    /// [`rest`](Self::rest).
    #[must_use]
    pub fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
        self.provider.wait_fd()
    }

    /// The time by which [`poll`](Self::poll) must be called.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Duration> {
        let ours = match self.state {
            State::Connecting { .. } | State::Up if self.association.error().is_some() => {
                Some(Duration::ZERO)
            }
            State::Connecting { deadline } => Some(deadline),
            State::Up => self.queue.next_deadline(),
            State::Closing { give_up_at, .. } => give_up_at,
            State::Closed { .. } => None,
        };
        [ours, self.provider.next_deadline()]
            .into_iter()
            .flatten()
            .min()
    }

    /// Prepares for sleep on [`wait_fd`](Self::wait_fd): [`Provider::rest`].
    pub fn rest(&mut self) {
        self.provider.rest();
    }

    pub(super) fn parts(&mut self) -> SendContext<'_> {
        SendContext {
            provider: &mut *self.provider,
            qp: self.qp,
            queue: &mut self.queue,
            transfers: &mut self.transfers,
            pools: &self.pools,
            command_timeout: self.command_timeout,
            posted: &mut self.posted,
        }
    }

    /// The error for calls while the queue does not accept them.
    pub(super) fn not_ready(&self) -> Error {
        match &self.state {
            State::Closing { why, .. } | State::Closed { why } => why.clone(),
            State::Connecting { .. } | State::Up => Lost {
                addr: self.addr,
                qid: self.qid,
                provider: self.provider.name(),
                established: false,
                cause: LostCause::NotConnected,
            }
            .into(),
        }
    }

    fn handle(&mut self, event: Event, done: &mut Vec<Done>) {
        // Taken apart, because events are large.
        match event {
            Event::Received(Received {
                qp,
                tag,
                buf,
                len,
                invalidated,
                outcome,
                ..
            }) if qp == self.qp && outcome.is_success() && self.is_up() => {
                self.on_received(tag, buf, len, invalidated, done);
            }
            Event::Completion(Completion {
                qp,
                tag,
                buf,
                outcome,
                ..
            }) if qp == self.qp => self.on_completion(tag, buf, outcome, done),
            rare if rare.qp() == self.qp => self.handle_rare(rare, done),
            _ => {}
        }
    }

    /// Events that most commands do without.
    #[cold]
    fn handle_rare(&mut self, event: Event, done: &mut Vec<Done>) {
        match event {
            Event::Established { private_data, .. } => self.on_established(&private_data),
            Event::Rejected { private_data, .. } => {
                let refused = Error::rejected(self.addr, self.qid, &private_data);
                self.fail_with(refused);
            }
            Event::Withdrawn { key, buf, .. } => self.transfers.buffer_returned(key, buf, done),
            Event::Closed { reason, .. } => self.on_closed(reason, done),
            Event::Received(_)
            | Event::Completion(_)
            | Event::ConnectRequest(_)
            | Event::Ending { .. } => {}
        }
    }

    fn on_established(&mut self, private_data: &[u8]) {
        if !matches!(self.state, State::Connecting { .. }) {
            return;
        }
        match cm::check_accept(private_data) {
            Ok(()) => {
                self.state = State::Up;
                let opened = self.pools.open(&mut *self.provider, self.qp);
                if let Err(error) = opened {
                    self.fail_with(MachineError::register(error).into());
                }
            }
            Err(text) => self.fail(LostCause::Protocol(text)),
        }
    }

    /// A response. The receive is posted again immediately, so that there is one for each
    /// later command.
    fn on_received(
        &mut self,
        tag: Tag,
        buf: Buf,
        len: usize,
        invalidated: Option<RemoteKey>,
        done: &mut Vec<Done>,
    ) {
        let response = Response::parse(buf.get(..len).unwrap_or_default());
        if self.provider.post_recv(self.qp, tag, buf).is_err() {
            // Fails only while the queue pair is closing: Closed follows.
            return;
        }
        let response = match response {
            Ok(response) => response,
            Err(error) => return self.fail(LostCause::Protocol(error.to_string())),
        };
        let flight = match self.queue.record_response(response.cid, response.sqhd) {
            Ok(flight) => flight,
            Err(fault) => return self.fail(LostCause::Protocol(fault.to_string())),
        };
        if let Some(key) = invalidated
            && flight.key != Some(key)
        {
            let text = "a response invalidates a memory key that is not its command's";
            return self.fail(LostCause::Protocol(text.to_owned()));
        }
        flight.completion = Some(response.completion);
        if flight.sent {
            self.finish(response.cid, done);
        }
    }

    /// The send of a command completed or failed.
    fn on_completion(
        &mut self,
        tag: Tag,
        buf: Option<Buf>,
        outcome: Outcome,
        done: &mut Vec<Done>,
    ) {
        let Ok(number) = u16::try_from(tag.0) else {
            return;
        };
        let cid = Cid(number);
        let Ok(flight) = self.queue.get_mut(cid) else {
            return;
        };
        flight.sent = true;
        let answered = flight.completion.is_some();
        if let Some(buf) = buf {
            let transfer = flight.transfer;
            self.transfers.give_back(transfer, buf);
        }
        if let Outcome::Failed(reason) = outcome {
            self.fail(LostCause::Network(*reason));
        } else if answered && self.is_up() {
            self.finish(cid, done);
        }
    }

    /// Completes a command that was sent and has its response.
    fn finish(&mut self, cid: Cid, done: &mut Vec<Done>) {
        let Ok(flight) = self.queue.release(cid) else {
            return;
        };
        let ended = self.transfers.part_done(&flight, &mut *self.provider, done);
        if let Err(text) = ended {
            self.fail(LostCause::Protocol(text.to_owned()));
        }
    }

    /// The target cannot access the memory any more: all calls end.
    fn on_closed(&mut self, reason: CloseReason, done: &mut Vec<Done>) {
        self.fail(LostCause::Network(reason));
        self.transfers.queue_pair_closed();
        self.end_all(done);
    }

    /// Ends the calls in flight, with the memory that the target does not use.
    fn end_all(&mut self, done: &mut Vec<Done>) {
        let State::Closing { why, .. } = &self.state else {
            return;
        };
        let why = why.clone();
        self.transfers.end_all(&mut *self.provider, &why, done);
        self.state = State::Closed { why };
    }

    /// Ends what takes too long. Returns whether anything did.
    fn check_time(&mut self, now: Duration, done: &mut Vec<Done>) -> bool {
        let mut changed = false;
        if let State::Connecting { .. } | State::Up = self.state
            && let Some(why) = self.association.error()
        {
            let why = why.clone();
            self.fail_with(why);
            changed = true;
        }
        match &mut self.state {
            State::Connecting { deadline } if now >= *deadline => {
                self.fail(LostCause::Timeout {
                    what: "the connection",
                });
                true
            }
            State::Up => {
                let Some(cid) = self.queue.expired(now) else {
                    return changed;
                };
                let Ok(flight) = self.queue.get_mut(cid) else {
                    return changed;
                };
                let what = self.transfers.name(flight);
                self.fail(LostCause::Timeout { what });
                true
            }
            State::Closing { give_up_at, .. } => {
                let is_late = now >= *give_up_at.get_or_insert(now.saturating_add(CLOSING));
                if is_late {
                    self.end_all(done);
                }
                changed || is_late
            }
            State::Connecting { .. } | State::Closed { .. } => changed,
        }
    }
}

/// How long a queue pair may take to close.
const CLOSING: Duration = Duration::from_secs(10);

/// RDMA Reads the target may have in flight towards us, as many as the Linux
/// host offers.
const READS_IN: u32 = 128;

/// What sending commands needs of a connection.
pub(super) struct SendContext<'a> {
    pub(super) provider: &'a mut dyn Provider,
    pub(super) qp: QpId,
    pub(super) queue: &'a mut Queue<InFlightCommand>,
    pub(super) transfers: &'a mut Transfers,
    pub(super) pools: &'a Pools,
    pub(super) command_timeout: Duration,
    pub(super) posted: &'a mut bool,
}

impl std::fmt::Debug for Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connection")
            .field("addr", &self.addr)
            .field("qid", &self.qid)
            .field("state", &self.state)
            .field("in_flight", &self.in_flight())
            .finish_non_exhaustive()
    }
}
