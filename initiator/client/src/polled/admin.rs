//! The admin queue: initializes the controller, keeps it alive, shuts it down.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use nvmeof_initiator_core::dhchap::HostKeys;
use nvmeof_initiator_core::{
    Ask, Command, ControllerEvent, ControllerInfo, Direction, EventQueue, IoLimits, KeepAlive,
    KeepAliveStep, Next, Setup, SetupConfig, SetupError, Shutdown, admin,
};
use nvmeof_memory::{Buf, Pages, Pool, PoolLayout};
use nvmeof_rdma::{Address, Provider, QpOwner, Refused};
use nvmeof_wire::admin::{LogId, NSID_ALL};
use nvmeof_wire::aer::AsyncEvent;
use nvmeof_wire::log::ChangedNamespaces;
use zerocopy::FromBytes;

use super::association::Association;
use super::call::{Call, CallTimeout, Done, SubmitError};
use super::computation::Computation;
use super::connection::{Connection, ConnectionConfig};
use super::reauthentication::Reauthentication;
#[cfg(feature = "async")]
use super::transfer::Withdrawn;
use crate::error::{Error, LostCause, MachineError};

/// Configuration of an admin queue.
#[derive(Clone, Debug)]
pub struct AdminConfig {
    /// The steps of the set-up.
    pub setup: SetupConfig,
    /// Time-out of admin commands.
    pub command_timeout: Duration,
    /// Time-out of connecting.
    pub connect_timeout: Duration,
}

/// The admin queue of a controller. It initializes the controller by itself; then
/// [`info`](Self::info) has the data for I/O queues. It must be polled by
/// [`next_deadline`](Self::next_deadline): otherwise the keep-alive time-out of the
/// controller expires.
#[derive(Debug)]
pub struct AdminQueue {
    connection: Connection,
    phase: Phase,
    info: Option<Arc<ControllerInfo>>,
    keep_alive: KeepAlive,
    keep_alive_timeout: Duration,
    /// When set-up or shutdown has its next step.
    wake_at: Option<Duration>,
    /// Computations of the set-up.
    computation: Computation,
    pages: Pool,
    ended: Vec<Done>,
    events: EventQueue,
    changes: Changes,
    /// Whether the Asynchronous Event Request ended with an error.
    is_deaf: bool,
    /// Authentications of the queue after it was ready.
    again: Reauthentication,
}

#[derive(Debug)]
enum Phase {
    Setup(Box<Setup>),
    Ready,
    Shutdown(Shutdown),
    Over,
}

/// State of the Changed Attached Namespace List.
#[derive(Clone, Copy, Debug)]
enum Changes {
    /// As it was read.
    Read,
    /// It is being read.
    Reading,
    /// It is being read, and an event reported more changes meanwhile.
    Again,
}

/// Entries that are reserved for commands of this queue itself: set-up or shutdown, Keep
/// Alive, Asynchronous Event Request and its log page, authentication.
const RESERVED: usize = 5;

/// Buffers of 4 KiB for data of admin commands.
const PAGES: usize = 32;
/// Length of such a buffer.
const PAGE: usize = 4096;

// Identifiers of commands of this queue itself; those of callers are lower.
const SETUP: u64 = u64::MAX;
const KEEP_ALIVE: u64 = u64::MAX - 1;
const EVENT: u64 = u64::MAX - 2;
const EVENT_LOG: u64 = u64::MAX - 3;
const AGAIN: u64 = u64::MAX - 4;

impl AdminQueue {
    /// Starts to connect to `addr` and to initialize the controller.
    ///
    /// # Errors
    /// When no attempt to connect is possible.
    pub fn connect(
        mut provider: Box<dyn Provider>,
        addr: Address,
        config: AdminConfig,
        now: Duration,
    ) -> Result<Self, Error> {
        let layout = PoolLayout {
            count: PAGES,
            stride: PAGE,
            lead: 0,
        };
        let pages = Pool::new(layout, Pages::Normal).map_err(MachineError::pool)?;
        provider
            .register(pages.region())
            .map_err(MachineError::register)?;
        let names = &config.setup.names;
        let connection_config = ConnectionConfig {
            qid: 0,
            size: config.setup.queue.size,
            flow_control: config.setup.queue.flow_control,
            cntlid: 0,
            command_timeout: config.command_timeout,
            connect_timeout: config.connect_timeout,
            owner: QpOwner::of_host(&names.hostnqn.to_string(), &names.subnqn.to_string(), 0),
            // Admin commands are rare: exposing each buffer costs little.
            trusts_target: false,
        };
        let connection = Connection::open(provider, addr, &connection_config, now)?;
        let keep_alive_timeout = config.setup.keep_alive;
        let names = config.setup.names.clone();
        Ok(Self {
            connection,
            phase: Phase::Setup(Box::new(Setup::new(config.setup))),
            info: None,
            keep_alive: KeepAlive::new(Duration::ZERO, now),
            keep_alive_timeout,
            wake_at: None,
            computation: Computation::default(),
            pages,
            ended: Vec::with_capacity(PAGES),
            events: EventQueue::default(),
            changes: Changes::Read,
            is_deaf: false,
            again: Reauthentication::new(names, 0, AGAIN, config.command_timeout),
        })
    }

    /// The controller, once it is ready.
    #[must_use]
    pub fn info(&self) -> Option<&Arc<ControllerInfo>> {
        self.info.as_ref()
    }

    /// The error that ended the connection, if any.
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

    /// The association for the I/O queues to [join](super::IoQueue::join).
    #[must_use]
    pub fn association(&self) -> &Association {
        self.connection.association()
    }

    /// Authenticates the queue again, with `keys` or those of the last time. Calls go on
    /// meanwhile. [`take_reauthentication`](Self::take_reauthentication) has the result. If it
    /// fails, the queue stays connected and keeps its former keys. A request that has not begun is
    /// replaced. The I/O queues are authenticated for themselves:
    /// [`IoQueue::reauthenticate`](super::IoQueue::reauthenticate).
    ///
    /// # Errors
    /// The controller is not ready, or lost.
    pub fn reauthenticate(&mut self, keys: Option<Arc<HostKeys>>) -> Result<(), Error> {
        if !matches!(self.phase, Phase::Ready) || !self.connection.is_up() {
            return Err(self.connection.not_ready());
        }
        self.again.request(keys);
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

    /// A buffer of up to 4096 bytes for a call; `None` if all are in use.
    #[must_use]
    pub fn page(&self, len: usize) -> Option<Buf> {
        let mut page = self.pages.take()?;
        page.set_len(len).ok()?;
        Some(page)
    }

    /// Submits an admin command, once the controller is ready. `user` is below 2^63.
    ///
    /// # Errors
    /// [`SubmitError`] with the call.
    pub fn submit(&mut self, call: Call, now: Duration) -> Result<(), Refused<Call, SubmitError>> {
        let room = usize::from(self.connection.size()).saturating_sub(1 + RESERVED);
        let why = match &self.phase {
            Phase::Ready if self.again.holds_calls(&self.connection) => SubmitError::Full,
            Phase::Ready if self.connection.in_flight() < room => {
                return self.connection.submit(call, &IoLimits::default(), now);
            }
            Phase::Ready => SubmitError::Full,
            _ => SubmitError::NotConnected(self.connection.not_ready()),
        };
        Err(Refused { why, back: call })
    }

    /// Sends the commands submitted since the last time.
    pub fn submit_now(&mut self, now: Duration) {
        self.connection.submit_now(now);
    }

    /// Makes progress and appends the calls that ended. Returns whether there was progress.
    /// Never blocks.
    pub fn poll(&mut self, now: Duration, done: &mut Vec<Done>) -> bool {
        let mut ended = std::mem::take(&mut self.ended);
        let progress = self.connection.poll(now, &mut ended);
        for call in ended.drain(..) {
            self.sort(call, now, done);
        }
        self.ended = ended;
        self.authenticate_again(now, done);
        if self.connection.is_up() {
            self.advance(now);
            self.keep_alive(now);
            self.connection.submit_now(now);
        }
        progress
    }

    /// Takes the oldest asynchronous event.
    pub fn take_event(&mut self) -> Option<ControllerEvent> {
        self.events.take()
    }

    /// Whether [`take_event`](Self::take_event) has an event.
    #[must_use]
    pub fn has_event(&self) -> bool {
        !self.events.is_empty()
    }

    /// Closes the queue because of `why`: its calls fail with it.
    pub fn close_because(&mut self, why: Error) {
        self.connection.fail_with(why);
    }

    /// Shuts the controller down and closes the queue, within `timeout`. Close the I/O queues
    /// before.
    pub fn shutdown(&mut self, now: Duration, timeout: Duration) {
        match (&self.phase, &self.info) {
            (Phase::Ready, Some(info)) => {
                self.phase = Phase::Shutdown(Shutdown::new(info.cc, now, timeout));
                self.wake_at = Some(now);
            }
            (Phase::Shutdown(_), _) => {}
            _ => self.connection.close(),
        }
    }

    /// Closes the queue without shutting the controller down.
    pub fn close(&mut self) {
        self.connection.close();
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
        let up = self.connection.is_up();
        let keep_alive = self.keep_alive.next_deadline().filter(|_| up);
        let wake_at = self.wake_at.filter(|_| up);
        let again = self.again.next_deadline(&self.connection).filter(|_| up);
        let computation = self.computation.next_deadline().filter(|_| up);
        let connection = self.connection.next_deadline();
        let times = [connection, keep_alive, wake_at, computation, again];
        times.into_iter().flatten().min()
    }

    /// Prepares for sleep on [`wait_fd`](Self::wait_fd): until the next poll, events that
    /// polls check for themselves make it readable as well. If
    /// [`next_deadline`](Self::next_deadline) is not later than now after this, there is work
    /// already.
    pub fn rest(&mut self) {
        self.connection.rest();
    }

    /// Dispatches a call that ended to its originator.
    fn sort(&mut self, call: Done, now: Duration, done: &mut Vec<Done>) {
        match call.user {
            SETUP => self.on_step_done(&call, now),
            KEEP_ALIVE => self.keep_alive.completed(),
            EVENT => self.on_event(&call, now),
            EVENT_LOG => self.on_changes(&call, now),
            AGAIN => self.again.on_done(&call, &mut self.connection, now),
            _ => done.push(call),
        }
    }

    fn on_step_done(&mut self, call: &Done, now: Duration) {
        let Some(completion) = call.completion() else {
            // The connection is lost, and has the reason.
            if let Phase::Setup(setup) = &self.phase
                && let Some(error) = setup.closed()
            {
                self.connection.explain(|addr| Error::setup(addr, 0, error));
            }
            return;
        };
        match &mut self.phase {
            Phase::Setup(setup) => {
                let data = call.buf.as_deref().unwrap_or_default();
                if let Err(error) = setup.handle_completion(now, completion, data) {
                    self.cannot_set_up(error);
                }
            }
            Phase::Shutdown(shutdown) => {
                let result = completion.status.is_success().then_some(completion.result);
                shutdown.handle_completion(now, result);
            }
            Phase::Ready | Phase::Over => {}
        }
    }

    /// The next step of set-up or shutdown.
    fn advance(&mut self, now: Duration) {
        let next = match &mut self.phase {
            Phase::Setup(setup) => match next_of(setup, &mut self.computation, now) {
                Ok(next) => next,
                Err(error) => return self.cannot_set_up(error),
            },
            Phase::Shutdown(shutdown) => shutdown.poll(now),
            Phase::Ready | Phase::Over => return,
        };
        self.wake_at = match (&self.phase, &next) {
            (_, Next::Wait(until)) => Some(*until),
            (Phase::Shutdown(shutdown), _) => Some(shutdown.deadline()),
            _ => None,
        };
        match next {
            Next::Send(ask) => self.ask(ask, SETUP, CallTimeout::Default, now),
            Next::Done => self.step_over(now),
            Next::Run(_) | Next::Pending | Next::Wait(_) => {}
        }
    }

    fn cannot_set_up(&mut self, error: SetupError) {
        let addr = self.connection.addr();
        self.connection.fail_with(Error::setup(addr, 0, error));
    }

    fn step_over(&mut self, now: Duration) {
        self.wake_at = None;
        match std::mem::replace(&mut self.phase, Phase::Over) {
            Phase::Setup(setup) => {
                let Some(info) = setup.into_info() else {
                    return self.connection.close();
                };
                self.info = Some(Arc::new(info));
                self.phase = Phase::Ready;
                self.keep_alive = KeepAlive::new(self.keep_alive_timeout, now);
                self.again.begin(&mut self.connection);
                self.expect_event(now);
            }
            Phase::Shutdown(_) => self.connection.close(),
            Phase::Ready | Phase::Over => {}
        }
    }

    /// Authenticates the connected queue again, if that is requested.
    fn authenticate_again(&mut self, now: Duration, done: &mut Vec<Done>) {
        if self.again.is_idle() && !self.connection.has_refused() {
            return;
        }
        let mut ended = std::mem::take(&mut self.ended);
        let limits = IoLimits::default();
        let again = self
            .again
            .poll(&mut self.connection, &limits, now, &mut ended);
        for call in ended.drain(..) {
            self.sort(call, now, done);
        }
        self.ended = ended;
        if again && std::mem::take(&mut self.is_deaf) && matches!(self.phase, Phase::Ready) {
            self.expect_event(now);
        }
    }

    fn keep_alive(&mut self, now: Duration) {
        match self.keep_alive.poll(now) {
            KeepAliveStep::Wait => {}
            KeepAliveStep::Send => {
                self.keep_alive.sent(now);
                let command = admin::keep_alive().into();
                self.ask(command, KEEP_ALIVE, CallTimeout::Never, now);
            }
            KeepAliveStep::Failed => {
                let cntlid = self.info.as_ref().map_or(0, |info| info.cntlid);
                let timeout = self.keep_alive_timeout;
                self.connection
                    .fail(LostCause::KeepAlive { cntlid, timeout });
            }
        }
    }

    fn expect_event(&mut self, now: Duration) {
        let command = admin::async_event_request().into();
        self.ask(command, EVENT, CallTimeout::Never, now);
    }

    /// An event. Reading its log page enables the next event of its type (NVMe Base 2.0,
    /// section 5.2).
    fn on_event(&mut self, call: &Done, now: Duration) {
        let Ok(result) = call.result else {
            self.is_deaf = true;
            return;
        };
        let dword = u32::try_from(result & 0xffff_ffff).unwrap_or_default();
        match AsyncEvent::from_dword(dword) {
            AsyncEvent::NAMESPACE_CHANGED => match self.changes {
                Changes::Read => self.read_changes(now),
                // One entry of the queue is reserved for the log page.
                Changes::Reading | Changes::Again => self.changes = Changes::Again,
            },
            event => self.events.push(event.into()),
        }
        if matches!(self.phase, Phase::Ready) {
            self.expect_event(now);
        }
    }

    /// Reads the Changed Attached Namespace List.
    fn read_changes(&mut self, now: Duration) {
        self.changes = Changes::Reading;
        let log = admin::log_page(LogId::CHANGED_NAMESPACES, NSID_ALL, 0, 4096);
        self.ask(log.into(), EVENT_LOG, CallTimeout::Default, now);
    }

    /// The Changed Attached Namespace List. A list that the controller does not return, or an
    /// empty one, does not say what changed.
    fn on_changes(&mut self, call: &Done, now: Duration) {
        let list = match (&call.result, &call.buf) {
            (Ok(_), Some(buf)) => ChangedNamespaces::read_from_bytes(buf).ok(),
            (Err(Error::Command(_)), _) => None,
            // The connection is lost.
            _ => return,
        };
        let nsids = list.map(|list| list.iter().collect()).unwrap_or_default();
        self.events.push(ControllerEvent::NamespacesChanged(nsids));
        match self.changes {
            Changes::Again => self.read_changes(now),
            Changes::Read | Changes::Reading => self.changes = Changes::Read,
        }
    }

    /// Sends a command of this queue itself. There is room: entries are reserved.
    fn ask(&mut self, ask: Ask, user: u64, timeout: CallTimeout, now: Duration) {
        let Ask { command, payload } = ask;
        let buf = match self.buffer_for(&command, &payload) {
            Ok(buf) => buf,
            Err(error) => return self.connection.fail_with(error.into()),
        };
        let name = command.name();
        let call = Call {
            work: command.into(),
            buf,
            user,
            timeout,
        };
        let limits = IoLimits::default();
        if let Err(refused) = self.connection.submit(call, &limits, now) {
            let error = refused.why.of_own_command(name);
            self.connection.fail_with(error.into());
        }
    }

    fn buffer_for(&self, command: &Command, payload: &[u8]) -> Result<Option<Buf>, MachineError> {
        if command.is_empty() {
            return Ok(None);
        }
        let len = usize::try_from(command.len()).unwrap_or(usize::MAX);
        let mut page = self.page(len).ok_or_else(|| {
            MachineError::Internal("the admin queue has no buffer left".to_owned())
        })?;
        if command.direction() == Direction::ToController {
            page.copy_from_slice(payload.get(..len).unwrap_or(&[0; PAGE]));
        }
        Ok(Some(page))
    }
}

/// The next step of the set-up that is not a computation.
fn next_of(
    setup: &mut Setup,
    computation: &mut Computation,
    now: Duration,
) -> Result<Next, SetupError> {
    loop {
        if let Some(result) = computation.take_result(now)? {
            setup.handle_result(result);
        }
        match setup.poll(now)? {
            Next::Run(work) => computation.start(work)?,
            next => return Ok(next),
        }
    }
}
