//! An I/O queue of a controller.

use std::collections::VecDeque;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use nvmeof_initiator_core::dhchap::HostKeys;
use nvmeof_initiator_core::setup::{check_connect, io_connect};
use nvmeof_initiator_core::{
    Ask, Authentication, AuthenticationStep, ControllerInfo, IoLimits, Names, QueueShape,
    SetupError,
};
use nvmeof_memory::{Buf, Pages, Pool, PoolLayout, Region};
use nvmeof_rdma::{Address, Provider, QpOwner, Refused};
use nvmeof_wire::auth::MAX_MESSAGE;
use nvmeof_wire::fabrics::CONNECT_DATA_LEN;

use super::association::Association;
use super::call::{Call, CallTimeout, Done, SubmitError, Work};
use super::computation::Computation;
use super::connection::{Connection, ConnectionConfig};
use super::reauthentication::Reauthentication;
#[cfg(feature = "async")]
use super::transfer::Withdrawn;
#[cfg(feature = "async")]
use crate::error::LostCause;
use crate::error::{Error, MachineError};

/// Configuration of an I/O queue.
#[derive(Clone, Debug)]
pub struct IoConfig {
    /// Host and subsystem, as on the admin queue.
    pub names: Names,
    /// Identifier, from 1 to the number granted; and entries, reduced to the limits of
    /// controller and provider.
    pub queue: QueueShape,
    /// Time-out of commands.
    pub command_timeout: Duration,
    /// Time-out of connecting.
    pub connect_timeout: Duration,
    /// Whether the target is trusted with all buffers of the regions that are passed to
    /// [`IoQueue::register`]: see
    /// [`ConnectOptions::trusts_target`](crate::ConnectOptions::trusts_target).
    pub trusts_target: bool,
}

/// An I/O queue: takes calls, and returns them with their buffers.
#[derive(Debug)]
pub struct IoQueue {
    connection: Connection,
    limits: IoLimits,
    phase: Phase,
    names: Names,
    shape: QueueShape,
    cntlid: u16,
    connect_timeout: Duration,
    /// The buffer for data of Connect and for messages of the authentication; `None` when the
    /// queue is ready.
    message: Option<Pool>,
    /// The authentication, while it is in progress.
    authentication: Option<Box<Authentication>>,
    /// Its computations.
    computation: Computation,
    /// Authentications of the queue after it was ready.
    again: Reauthentication,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// The RDMA connection is not established yet.
    New,
    /// Connect is sent.
    Asked,
    Authenticating,
    Ready,
    /// It is ready, and is being authenticated again.
    Reauthenticating,
}

/// Identifier of commands of this queue itself; those of callers are lower.
const SETUP: u64 = u64::MAX;

impl IoQueue {
    /// Starts to connect an I/O queue to the controller `info`.
    ///
    /// # Errors
    /// When no attempt to connect is possible.
    pub fn connect(
        mut provider: Box<dyn Provider>,
        addr: Address,
        info: &ControllerInfo,
        config: IoConfig,
        now: Duration,
    ) -> Result<Self, Error> {
        let mut shape = config.queue;
        shape.size = shape.size.min(info.max_queue_size);
        let connection_config = ConnectionConfig {
            qid: shape.qid,
            size: shape.size,
            flow_control: shape.flow_control,
            cntlid: info.cntlid,
            command_timeout: config.command_timeout,
            connect_timeout: config.connect_timeout,
            owner: QpOwner::of_host(
                &config.names.hostnqn.to_string(),
                &config.names.subnqn.to_string(),
                shape.qid,
            ),
            trusts_target: config.trusts_target,
        };
        let layout = PoolLayout {
            count: 1,
            stride: match config.names.keys {
                Some(_) => MAX_MESSAGE,
                None => CONNECT_DATA_LEN,
            },
            lead: 0,
        };
        let message = Pool::new(layout, Pages::Normal).map_err(MachineError::pool)?;
        provider
            .register(message.region())
            .map_err(MachineError::register)?;
        let connection = Connection::open(provider, addr, &connection_config, now)?;
        shape.size = connection.size();
        let timeout = config.command_timeout;
        let again = Reauthentication::new(config.names.clone(), shape.qid, SETUP, timeout);
        Ok(Self {
            connection,
            limits: info.limits,
            phase: Phase::New,
            names: config.names,
            shape,
            cntlid: info.cntlid,
            connect_timeout: config.connect_timeout,
            message: Some(message),
            authentication: None,
            computation: Computation::default(),
            again,
        })
    }

    /// Registers the buffers of `region` for calls.
    ///
    /// # Errors
    /// When the region cannot be registered. If the target is trusted and the queue is not
    /// connected yet, the queue fails later instead.
    pub fn register(&mut self, region: &Region) -> Result<(), Error> {
        self.connection.register(region)
    }

    /// Joins the association of the admin queue,
    /// [`AdminQueue::association`](super::AdminQueue::association): calls end as soon as the
    /// admin queue is lost, and not each after its own time-out. A thread that sleeps on
    /// [`wait_fd`](Self::wait_fd) while another thread polls the admin queue must check
    /// [`next_deadline`](Self::next_deadline) at intervals.
    pub fn join(&mut self, association: &Association) {
        self.connection.join(association);
    }

    /// Whether the queue accepts calls.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        matches!(self.phase, Phase::Ready | Phase::Reauthenticating) && self.connection.is_up()
    }

    /// Authenticates the queue again, with `keys` or those of the last time. Calls go on
    /// meanwhile. [`take_reauthentication`](Self::take_reauthentication) has the result. If it
    /// fails, the queue stays connected and keeps its former keys. A request that has not begun is
    /// replaced.
    ///
    /// # Errors
    /// The queue is not connected.
    pub fn reauthenticate(&mut self, keys: Option<Arc<HostKeys>>) -> Result<(), Error> {
        if !self.is_ready() {
            return Err(self.connection.not_ready());
        }
        self.again.request(keys);
        self.phase = Phase::Reauthenticating;
        Ok(())
    }

    /// The result of the last [`reauthenticate`](Self::reauthenticate), once, when it has ended.
    pub fn take_reauthentication(&mut self) -> Option<Result<(), Error>> {
        self.again.take_outcome()
    }

    #[cfg(feature = "async")]
    pub(crate) fn withdraw(&mut self, user: u64) -> Option<Withdrawn> {
        self.connection.withdraw(user)
    }

    #[cfg(feature = "async")]
    pub(crate) fn has_reauthentication(&self) -> bool {
        self.again.has_outcome()
    }

    /// The error that ended the queue, if any.
    #[must_use]
    pub fn error(&self) -> Option<&Error> {
        self.connection.error()
    }

    /// Whether the queue is closed and all calls have ended.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.connection.is_closed()
    }

    /// The underlying connection.
    #[must_use]
    pub fn connection(&self) -> &Connection {
        &self.connection
    }

    /// Maximum commands in flight: entries of the queue, as reduced when it connected, less
    /// one.
    #[must_use]
    pub fn depth(&self) -> usize {
        usize::from(self.connection.size()).saturating_sub(1)
    }

    /// Limits of one command; longer calls are split.
    #[must_use]
    pub fn limits(&self) -> &IoLimits {
        &self.limits
    }

    /// Sets the maximum of in-capsule data; 0 for none. It is never more than the controller
    /// supports.
    pub fn set_in_capsule(&mut self, most: u32) {
        self.limits.in_capsule = self.limits.in_capsule.min(most);
    }

    /// Submits a call. `buf` has the length of `work`; `user` is below 2^63.
    /// [`submit_now`](Self::submit_now) or [`poll`](Self::poll) sends it.
    ///
    /// # Errors
    /// [`SubmitError`] with the call. After [`SubmitError::Full`], poll and retry.
    pub fn submit(
        &mut self,
        work: impl Into<Work>,
        buf: Option<Buf>,
        user: u64,
        now: Duration,
    ) -> Result<(), Refused<Call, SubmitError>> {
        self.submit_call(Call::new(work.into(), buf, user), now)
    }

    /// Submits a call, like [`submit`](Self::submit).
    ///
    /// # Errors
    /// The same.
    pub fn submit_call(
        &mut self,
        call: Call,
        now: Duration,
    ) -> Result<(), Refused<Call, SubmitError>> {
        if self.phase != Phase::Ready
            && let Some(why) = self.refusal()
        {
            return Err(Refused { why, back: call });
        }
        self.connection.submit(call, &self.limits, now)
    }

    /// Why no call is accepted now.
    #[cold]
    fn refusal(&self) -> Option<SubmitError> {
        if self.phase != Phase::Reauthenticating {
            return Some(SubmitError::NotConnected(self.connection.not_ready()));
        }
        let is_held = self.connection.is_up() && self.again.holds_calls(&self.connection);
        is_held.then_some(SubmitError::Full)
    }

    /// Submits calls from the front of `calls` until one is refused or the queue is full, and
    /// sends them. Returns their number. Other calls stay in `calls`.
    ///
    /// # Errors
    /// Why the first remaining call was refused, unless the queue is full. The calls before
    /// it were submitted.
    pub fn submit_batch(
        &mut self,
        calls: &mut VecDeque<Call>,
        now: Duration,
    ) -> Result<usize, SubmitError> {
        let before = calls.len();
        let refused = loop {
            let Some(call) = calls.pop_front() else {
                break None;
            };
            if let Err(Refused { why, back }) = self.submit_call(call, now) {
                calls.push_front(back);
                break Some(why);
            }
        };
        self.submit_now(now);
        match refused {
            None | Some(SubmitError::Full) => Ok(before - calls.len()),
            Some(why) => Err(why),
        }
    }

    /// Sends the commands submitted since the last time.
    pub fn submit_now(&mut self, now: Duration) {
        self.connection.submit_now(now);
    }

    /// Makes progress and appends the calls that ended. Returns whether there was progress.
    /// Never blocks.
    pub fn poll(&mut self, now: Duration, done: &mut Vec<Done>) -> bool {
        let before = done.len();
        let progress = self.connection.poll(now, done);
        match self.phase {
            Phase::Ready if !self.connection.has_refused() => {}
            Phase::Ready | Phase::Reauthenticating => self.authenticate_again(now, before, done),
            _ => self.set_up(now, before, done),
        }
        progress
    }

    /// Closes the queue; calls in flight end with an error.
    pub fn close(&mut self) {
        self.connection.close();
    }

    /// Closes the queue; calls in flight end with `why`.
    pub fn close_because(&mut self, why: Error) {
        self.connection.fail_with(why);
    }

    #[cfg(feature = "async")]
    pub(crate) fn close_without_runtime(&mut self) {
        self.connection.fail(LostCause::RuntimeEnded);
    }

    /// A descriptor that becomes readable when [`poll`](Self::poll) has work; `None` if the
    /// provider has none. Before sleeping on it, poll until there is no progress and call
    /// [`rest`](Self::rest).
    #[must_use]
    pub fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
        self.connection.wait_fd()
    }

    /// The time by which [`poll`](Self::poll) must be called.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Duration> {
        let own = match self.phase {
            Phase::Ready => None,
            _ if !self.connection.is_up() => None,
            Phase::Reauthenticating => self.again.next_deadline(&self.connection),
            _ => self.computation.next_deadline(),
        };
        let times = [self.connection.next_deadline(), own];
        times.into_iter().flatten().min()
    }

    /// Prepares for sleep on [`wait_fd`](Self::wait_fd): until the next poll, events that
    /// polls check for themselves make it readable as well. If
    /// [`next_deadline`](Self::next_deadline) is not later than now after this, there is work
    /// already.
    pub fn rest(&mut self) {
        self.connection.rest();
    }

    /// Sends Connect when the connection is established, then authenticates the queue.
    fn set_up(&mut self, now: Duration, before: usize, done: &mut Vec<Done>) {
        let ours = |call: &Done| call.user == SETUP;
        let ended = done.iter().skip(before).position(ours);
        let ended = ended.map(|at| done.swap_remove(before + at));
        if !self.connection.is_up() {
            if ended.is_some()
                && let Some(authentication) = &self.authentication
            {
                let (qid, error) = (self.shape.qid, authentication.closed());
                self.connection
                    .explain(|addr| Error::setup(addr, qid, error));
            }
            return;
        }
        let stepped = match ended {
            Some(call) => self.on_step_done(&call),
            None => Ok(()),
        };
        if let Err(error) = stepped.and_then(|()| self.advance(now)) {
            let addr = self.connection.addr();
            let error = Error::setup(addr, self.shape.qid, error);
            self.connection.fail_with(error);
        }
        if self.phase == Phase::Ready {
            self.message = None;
            self.again.begin(&mut self.connection);
        }
    }

    /// Authenticates the connected queue again.
    #[cold]
    fn authenticate_again(&mut self, now: Duration, before: usize, done: &mut Vec<Done>) {
        let ours = |call: &Done| call.user == SETUP;
        if let Some(at) = done.iter().skip(before).position(ours) {
            let call = done.swap_remove(before + at);
            self.again.on_done(&call, &mut self.connection, now);
        }
        self.again
            .poll(&mut self.connection, &self.limits, now, done);
        self.connection.submit_now(now);
        // The last message of a lost connection ends when that is closed.
        let is_over = self.again.is_idle() && !self.connection.has_refused();
        self.phase = match is_over && self.connection.is_up() {
            true => Phase::Ready,
            false => Phase::Reauthenticating,
        };
    }

    fn on_step_done(&mut self, call: &Done) -> Result<(), SetupError> {
        let Some(completion) = call.completion() else {
            // The connection is lost, and has the reason.
            return Ok(());
        };
        if let Some(authentication) = &mut self.authentication {
            let data = call.buf.as_deref().unwrap_or_default();
            return authentication.handle_completion(completion, data);
        }
        let connected = check_connect(&self.names, self.shape, completion)?;
        let authentication = Authentication::after_connect(&self.names, self.shape, connected)?;
        self.phase = match authentication {
            Some(_) => Phase::Authenticating,
            None => Phase::Ready,
        };
        self.authentication = authentication.map(Box::new);
        Ok(())
    }

    /// The next command of this queue itself.
    fn advance(&mut self, now: Duration) -> Result<(), SetupError> {
        if self.phase == Phase::New {
            self.phase = Phase::Asked;
            self.ask(io_connect(&self.names, self.shape, self.cntlid), now);
        }
        while let Some(authentication) = &mut self.authentication {
            if let Some(result) = self.computation.take_result(now)? {
                authentication.handle_result(result);
            }
            match authentication.poll()? {
                AuthenticationStep::Send(ask) => self.ask(ask, now),
                AuthenticationStep::Run(work) => self.computation.start(work)?,
                AuthenticationStep::Pending => break,
                AuthenticationStep::Done => {
                    self.authentication = None;
                    self.phase = Phase::Ready;
                }
            }
        }
        Ok(())
    }

    /// Sends a command of this queue itself. There is one at a time.
    fn ask(&mut self, ask: Ask, now: Duration) {
        let len = usize::try_from(ask.command.len()).unwrap_or(usize::MAX);
        let mut buf = self.message.as_ref().and_then(Pool::take);
        if let Some(buf) = &mut buf
            && buf.set_len(len).is_ok()
            && !ask.payload.is_empty()
        {
            buf.copy_from_slice(&ask.payload);
        }
        let name = ask.command.name();
        let call = Call {
            work: ask.command.into(),
            buf,
            user: SETUP,
            timeout: CallTimeout::After(self.connect_timeout),
        };
        if let Err(refused) = self.connection.submit_own(call, now) {
            let error = refused.why.of_own_command(name);
            self.connection.fail_with(error.into());
        }
        self.connection.submit_now(now);
    }
}
