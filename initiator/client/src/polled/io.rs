//! An I/O queue of a controller.

use std::collections::VecDeque;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use nvmeof_initiator_core::setup::{check_connect, io_connect};
use nvmeof_initiator_core::{Answer, ControllerInfo, IoLimits, Names, QueueShape};
use nvmeof_memory::{Buf, Pages, Pool, PoolLayout, Region};
use nvmeof_rdma::{Address, Provider, Refused, Whose};
use nvmeof_wire::Status;

use super::association::Association;
use super::call::{Call, Done, Patience, SubmitError, Work};
use super::connection::{Connection, ConnectionConfig};
use crate::error::{Error, LostCause, MachineError};

/// What an I/O queue is to be.
#[derive(Clone, Debug)]
pub struct IoConfig {
    /// Who connects to what, as on the admin queue.
    pub names: Names,
    /// Identifier, from 1 to the number granted; and entries, lowered to what
    /// controller and provider can do.
    pub queue: QueueShape,
    /// How long a command may take.
    pub command_timeout: Duration,
    /// How long the connection may take to stand.
    pub connect_timeout: Duration,
}

/// An I/O queue: calls go in, and come back with their buffers.
#[derive(Debug)]
pub struct IoQueue {
    connection: Connection,
    limits: IoLimits,
    phase: Phase,
    names: Names,
    shape: QueueShape,
    cntlid: u16,
    connect_timeout: Duration,
    /// The connect data, until it is sent.
    connect_data: Option<Buf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// The RDMA connection does not stand yet.
    New,
    /// Connect is sent.
    Asked,
    Ready,
}

/// Name of our own Connect command; a caller's are below.
const CONNECT: u64 = u64::MAX;

impl IoQueue {
    /// Starts to connect an I/O queue to the controller `info`.
    ///
    /// # Errors
    /// When it cannot even be tried.
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
            whose: Whose::of_host(
                &config.names.hostnqn.to_string(),
                &config.names.subnqn.to_string(),
                shape.qid,
            ),
        };
        let ask = io_connect(&config.names, shape, info.cntlid);
        let layout = PoolLayout {
            count: 1,
            stride: ask.payload.len(),
            lead: 0,
        };
        let pool = Pool::new(layout, Pages::Normal).map_err(MachineError::pool)?;
        provider
            .register(pool.region())
            .map_err(MachineError::register)?;
        let mut connect_data = pool.take();
        if let Some(data) = &mut connect_data {
            data.copy_from_slice(&ask.payload);
        }
        let connection = Connection::open(provider, addr, &connection_config, now)?;
        shape.size = connection.size();
        Ok(Self {
            connection,
            limits: info.limits,
            phase: Phase::New,
            names: config.names,
            shape,
            cntlid: info.cntlid,
            connect_timeout: config.connect_timeout,
            connect_data,
        })
    }

    /// Makes the buffers of `region` usable for calls.
    ///
    /// # Errors
    /// When the machine does not let the region be registered.
    pub fn register(&mut self, region: &Region) -> Result<(), Error> {
        self.connection.register(region)
    }

    /// Ends with the admin queue of its controller: with
    /// [`AdminQueue::association`](super::AdminQueue::association), calls end as soon as
    /// the admin queue is lost, and not each after its own time-out. Who sleeps
    /// on [`wait_fd`](Self::wait_fd) while another thread polls the admin queue
    /// has to look at [`next_deadline`](Self::next_deadline) now and then.
    pub fn join(&mut self, association: &Association) {
        self.connection.join(association);
    }

    /// Whether calls are taken.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.phase == Phase::Ready && self.connection.is_up()
    }

    /// Why the queue is of no use any more.
    #[must_use]
    pub fn error(&self) -> Option<&Error> {
        self.connection.error()
    }

    /// Whether all is over: every call has ended.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.connection.is_closed()
    }

    /// The connection below.
    #[must_use]
    pub fn connection(&self) -> &Connection {
        &self.connection
    }

    /// Most commands in flight at once.
    #[must_use]
    pub fn depth(&self) -> usize {
        usize::from(self.connection.size()).saturating_sub(1)
    }

    /// Limits of one command; longer calls are cut.
    #[must_use]
    pub fn limits(&self) -> &IoLimits {
        &self.limits
    }

    /// Changes the most bytes that a write puts into its capsule; 0 for none.
    /// Never more than the controller takes.
    pub fn set_in_capsule(&mut self, most: u32) {
        self.limits.in_capsule = self.limits.in_capsule.min(most);
    }

    /// Takes a call: `buf` is as long as `work` says. `user` is below 2^63.
    /// Nothing goes out before [`submit_now`](Self::submit_now) or
    /// [`poll`](Self::poll).
    ///
    /// # Errors
    /// [`SubmitError`] with the call; [`SubmitError::Full`] means to poll and
    /// try again.
    pub fn submit(
        &mut self,
        work: impl Into<Work>,
        buf: Option<Buf>,
        user: u64,
        now: Duration,
    ) -> Result<(), Refused<Call, SubmitError>> {
        self.submit_call(Call::new(work.into(), buf, user), now)
    }

    /// Takes a call, as [`submit`](Self::submit) does.
    ///
    /// # Errors
    /// The same.
    pub fn submit_call(
        &mut self,
        call: Call,
        now: Duration,
    ) -> Result<(), Refused<Call, SubmitError>> {
        if self.phase != Phase::Ready {
            let why = SubmitError::NotConnected(self.connection.not_ready());
            return Err(Refused { why, back: call });
        }
        self.connection.submit(call, &self.limits, now)
    }

    /// Takes calls from the front of `calls` until one is not taken, and sends
    /// off all that were. Returns how many that is. Those that wait for room
    /// stay in `calls`, as does one that is refused.
    ///
    /// # Errors
    /// Why the first call that is left was refused, unless it is only for want
    /// of room. Those before it were taken.
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

    /// Sends off what was submitted since the last time.
    pub fn submit_now(&mut self, now: Duration) {
        self.connection.submit_now(now);
    }

    /// Makes progress and appends the calls that ended. Returns whether
    /// anything happened. Never waits.
    pub fn poll(&mut self, now: Duration, done: &mut Vec<Done>) -> bool {
        let before = done.len();
        let progress = self.connection.poll(now, done);
        if self.phase != Phase::Ready {
            self.set_up(now, before, done);
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

    pub(crate) fn close_undriven(&mut self) {
        self.connection.fail(LostCause::Undriven);
    }

    /// A descriptor that becomes readable when [`poll`](Self::poll) has
    /// something to do; `None` where nobody ever sleeps. Poll until nothing
    /// happens and call [`rest`](Self::rest) before sleeping on it.
    #[must_use]
    pub fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
        self.connection.wait_fd()
    }

    /// When [`poll`](Self::poll) has to be called at the latest.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Duration> {
        self.connection.next_deadline()
    }

    /// Gets ready for sleeping on [`wait_fd`](Self::wait_fd): what polls looked at by
    /// themselves makes it readable from now on, until the next poll. If
    /// [`next_deadline`](Self::next_deadline) is not later than now after this, there is
    /// something to do already.
    pub fn rest(&mut self) {
        self.connection.rest();
    }

    /// Sends Connect when the connection stands, takes its answer.
    fn set_up(&mut self, now: Duration, before: usize, done: &mut Vec<Done>) {
        let ours = |call: &Done| call.user == CONNECT;
        if let Some(at) = done.iter().skip(before).position(ours) {
            let call = done.swap_remove(before + at);
            self.on_connect_done(&call);
        } else if self.phase == Phase::New && self.connection.is_up() {
            self.phase = Phase::Asked;
            let ask = io_connect(&self.names, self.shape, self.cntlid);
            let call = Call {
                work: ask.command.into(),
                buf: self.connect_data.take(),
                user: CONNECT,
                patience: Patience::For(self.connect_timeout),
            };
            // In-capsule data is for I/O commands alone here.
            let limits = IoLimits::default();
            if let Err(refused) = self.connection.submit(call, &limits, now) {
                let text = format!("Connect could not be sent: {}", refused.why);
                self.connection
                    .fail_with(MachineError::Internal(text).into());
            }
            self.connection.submit_now(now);
        }
    }

    fn on_connect_done(&mut self, call: &Done) {
        let answer = match &call.result {
            Ok(result) => Answer {
                status: Status::SUCCESS,
                result: *result,
            },
            Err(Error::Command(error)) => Answer {
                status: error.status,
                result: error.result,
            },
            // The connection is gone, and has the reason.
            Err(_) => return,
        };
        match check_connect(&self.names, self.shape, answer) {
            Ok(_cntlid) => self.phase = Phase::Ready,
            Err(error) => {
                let addr = self.connection.addr();
                let error = Error::setup(addr, self.shape.qid, error);
                self.connection.fail_with(error);
            }
        }
    }
}
