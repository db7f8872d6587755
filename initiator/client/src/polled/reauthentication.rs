//! Authentication of a connected queue again, while it goes on serving: the controller requires it
//! (Authentication Required, 191h), or the program requests it, such as with a new key.
//!
//! ```text
//!  Idle ── request, refused calls ──► Running ── authenticated ──► refused calls are sent again
//!   ▲                                    │
//!   └────────── failed: the queue stays connected, refused calls end with their status
//! ```

use std::sync::Arc;
use std::time::Duration;

use nvmeof_initiator_core::dhchap::HostKeys;
use nvmeof_initiator_core::{Ask, Authentication, AuthenticationStep, IoLimits, Names};
use nvmeof_memory::{Pages, Pool, PoolLayout};
use nvmeof_rdma::Refused;
use nvmeof_wire::auth::MAX_MESSAGE;

use super::call::{Call, CallTimeout, Done, SubmitError};
use super::computation::Computation;
use super::connection::Connection;
use crate::error::{Error, MachineError};

/// The authentications of one queue after the first one.
#[derive(Debug)]
pub(super) struct Reauthentication {
    names: Names,
    qid: u16,
    /// Identifier of the calls of this type.
    user: u64,
    /// Time-out of each message. When it expires, the queue is closed.
    timeout: Duration,
    /// The transaction in progress.
    running: Option<Box<Running>>,
    /// The last request of the program, until its transaction begins.
    requested: Option<Request>,
    /// The result of the last request.
    outcome: Option<Result<(), Error>>,
    /// Counts transactions.
    round: u8,
    /// The buffer of messages, from the first transaction on: it stays registered.
    message: Option<Pool>,
    /// Refused calls start no transaction before this time.
    pause_until: Duration,
    /// Whether the last transaction failed: until then, refused calls end at once. Otherwise they
    /// wait.
    has_failed: bool,
    /// When to look at refused calls.
    look_at: Option<Duration>,
}

/// A request of the program: the keys to use, or those of the last transaction.
#[derive(Debug)]
struct Request(Option<Arc<HostKeys>>);

#[derive(Debug)]
struct Running {
    transaction: Authentication,
    keys: Option<Arc<HostKeys>>,
    is_requested: bool,
    /// A command for which the queue has no room yet.
    unsent: Option<Ask>,
    computation: Computation,
}

/// The progress of a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Progress {
    Waiting,
    Authenticated,
}

/// Least time-out of a message. A controller completes one when its workers have computed the
/// response, those of other hosts before: that of this project drops it after two minutes. The
/// queue serves meanwhile.
const MESSAGE: Duration = Duration::from_secs(120);

/// After a transaction, refused commands start no other one for this time: each costs both sides
/// exponentiations, and a controller may refuse every command.
const PAUSE: Duration = Duration::from_secs(1);

impl Reauthentication {
    /// For queue `qid`, whose messages have this identifier, and whose commands this time-out.
    pub(super) fn new(names: Names, qid: u16, user: u64, command_timeout: Duration) -> Self {
        Self {
            names,
            qid,
            user,
            timeout: command_timeout.max(MESSAGE),
            running: None,
            requested: None,
            outcome: None,
            round: 0,
            message: None,
            pause_until: Duration::ZERO,
            has_failed: false,
            look_at: None,
        }
    }

    /// The queue is connected: calls that the controller refuses until it is authenticated wait
    /// for that, if this host has a key.
    pub(super) fn begin(&self, connection: &mut Connection) {
        if self.names.keys.is_some() {
            connection.keep_refused();
        }
    }

    /// Requests a transaction, with these keys or those of the last one. A request that has not
    /// begun is replaced.
    pub(super) fn request(&mut self, keys: Option<Arc<HostKeys>>) {
        self.requested = Some(Request(keys));
        self.outcome = None;
    }

    /// The result of the last request, once.
    pub(super) fn take_outcome(&mut self) -> Option<Result<(), Error>> {
        self.outcome.take()
    }

    #[cfg(feature = "async")]
    pub(super) fn has_outcome(&self) -> bool {
        self.outcome.is_some()
    }

    /// Whether there is nothing to do before a call is refused.
    pub(super) fn is_idle(&self) -> bool {
        self.running.is_none() && self.requested.is_none()
    }

    /// Whether new calls have to wait: the controller would refuse them, or a message needs room
    /// in the queue.
    pub(super) fn holds_calls(&self, connection: &Connection) -> bool {
        let running = self.running.as_deref();
        connection.has_refused() || running.is_some_and(|running| running.unsent.is_some())
    }

    /// When [`poll`](Self::poll) must be called.
    pub(super) fn next_deadline(&self, connection: &Connection) -> Option<Duration> {
        match (&self.running, &self.requested) {
            (None, Some(_)) => Some(Duration::ZERO),
            (None, None) if connection.requires_authentication() => Some(self.pause_until),
            (Some(running), _) => running.computation.next_deadline(),
            (None, None) => self.look_at,
        }
    }

    /// A message has completed.
    pub(super) fn on_done(&mut self, call: &Done, connection: &mut Connection, now: Duration) {
        let Some(running) = &mut self.running else {
            return;
        };
        let Some(completion) = call.completion() else {
            // The connection is lost, which `poll` finds.
            return;
        };
        let data = call.buf.as_deref().unwrap_or_default();
        if let Err(error) = running.transaction.handle_completion(completion, data) {
            let error = Error::setup(connection.addr(), self.qid, error);
            self.failed(error, connection, now);
        }
    }

    /// Makes progress. Appends the refused calls that end. Returns true when the queue has been
    /// authenticated.
    pub(super) fn poll(
        &mut self,
        connection: &mut Connection,
        limits: &IoLimits,
        now: Duration,
        done: &mut Vec<Done>,
    ) -> bool {
        if !connection.is_up() {
            self.lost(connection);
            return false;
        }
        let mut is_authenticated = false;
        if self.running.is_none() {
            self.start(connection, now);
        }
        match self.advance(connection, now) {
            Ok(Progress::Waiting) => {}
            Ok(Progress::Authenticated) => {
                self.succeeded(connection, now);
                is_authenticated = true;
            }
            Err(error) => self.failed(error, connection, now),
        }
        if self.is_idle() && self.has_failed && now < self.pause_until {
            connection.end_refused(done);
        }
        connection.send_released(limits, now, done);
        is_authenticated
    }

    fn start(&mut self, connection: &Connection, now: Duration) {
        let request = self.requested.take();
        let is_due = connection.requires_authentication() && now >= self.pause_until;
        if request.is_none() && !is_due {
            return;
        }
        let is_requested = request.is_some();
        let keys = request.and_then(|Request(keys)| keys);
        let names = Names {
            keys: keys.or_else(|| self.names.keys.clone()),
            ..self.names.clone()
        };
        self.round = self.round.wrapping_add(1);
        match Authentication::again(&names, self.qid, self.round) {
            Ok(transaction) => {
                self.running = Some(Box::new(Running {
                    transaction,
                    keys: names.keys,
                    is_requested,
                    unsent: None,
                    computation: Computation::default(),
                }));
            }
            // Without a key, no call is kept: the program requested it.
            Err(error) => {
                self.outcome = Some(Err(Error::setup(connection.addr(), self.qid, error)));
            }
        }
    }

    fn advance(&mut self, connection: &mut Connection, now: Duration) -> Result<Progress, Error> {
        self.look_at = None;
        let (addr, qid) = (connection.addr(), self.qid);
        let setup = |error| Error::setup(addr, qid, error);
        loop {
            let Some(running) = &mut self.running else {
                return Ok(Progress::Waiting);
            };
            if let Some(result) = running.computation.take_result(now).map_err(setup)? {
                running.transaction.handle_result(result);
            }
            if let Some(ask) = running.unsent.take() {
                let unsent = self.send(ask, connection, now)?;
                if let Some(running) = &mut self.running {
                    running.unsent = unsent;
                }
                return Ok(Progress::Waiting);
            }
            match running.transaction.poll().map_err(setup)? {
                AuthenticationStep::Send(ask) => running.unsent = Some(ask),
                AuthenticationStep::Run(work) => running.computation.start(work).map_err(setup)?,
                AuthenticationStep::Pending => return Ok(Progress::Waiting),
                AuthenticationStep::Done => return Ok(Progress::Authenticated),
            }
        }
    }

    /// Sends a command. Returns it if there is no room now.
    fn send(
        &mut self,
        ask: Ask,
        connection: &mut Connection,
        now: Duration,
    ) -> Result<Option<Ask>, Error> {
        let len = usize::try_from(ask.command.len()).unwrap_or(usize::MAX);
        let Some(mut buf) = self.buffers(connection)?.take() else {
            return Ok(Some(ask));
        };
        if buf.set_len(len).is_ok() && !ask.payload.is_empty() {
            buf.copy_from_slice(&ask.payload);
        }
        let call = Call {
            work: ask.command.clone().into(),
            buf: Some(buf),
            user: self.user,
            timeout: CallTimeout::After(self.timeout),
        };
        match connection.submit_own(call, now) {
            Ok(()) => {
                connection.submit_now(now);
                Ok(None)
            }
            Err(Refused {
                why: SubmitError::Full,
                ..
            }) => Ok(Some(ask)),
            Err(Refused { why, .. }) => {
                let text = format!("cannot send {}: {why}", ask.command.name());
                Err(MachineError::Internal(text).into())
            }
        }
    }

    /// The buffer of messages.
    fn buffers(&mut self, connection: &mut Connection) -> Result<&Pool, Error> {
        if self.message.is_none() {
            let layout = PoolLayout {
                count: 1,
                stride: MAX_MESSAGE,
                lead: 0,
            };
            let pool = Pool::new(layout, Pages::Normal).map_err(MachineError::pool)?;
            connection.register_own(pool.region())?;
            self.message = Some(pool);
        }
        let missing = || MachineError::Internal("a queue without a buffer".to_owned());
        Ok(self.message.as_ref().ok_or_else(missing)?)
    }

    fn succeeded(&mut self, connection: &mut Connection, now: Duration) {
        let Some(running) = self.running.take() else {
            return;
        };
        tracing::info!(addr = %connection.addr(), qid = self.qid, "queue re-authenticated");
        self.names.keys = running.keys;
        self.pause_until = now.saturating_add(PAUSE);
        self.has_failed = false;
        connection.keep_refused();
        connection.release_refused();
        if running.is_requested && self.requested.is_none() {
            self.outcome = Some(Ok(()));
        }
    }

    /// The controller keeps the state that the queue had before.
    fn failed(&mut self, error: Error, connection: &Connection, now: Duration) {
        let Some(running) = self.running.take() else {
            return;
        };
        tracing::warn!(
            addr = %connection.addr(),
            qid = self.qid,
            error = error.cause(),
            "re-authentication failed; the queue stays connected"
        );
        if !running.is_requested {
            self.pause_until = now.saturating_add(PAUSE);
            self.has_failed = true;
            return;
        }
        // Calls that were refused meanwhile may need the former keys.
        self.look_at = connection.requires_authentication().then_some(now);
        if self.requested.is_none() {
            self.outcome = Some(Err(error));
        }
    }

    /// The connection is lost: the calls end with it.
    fn lost(&mut self, connection: &Connection) {
        let running = self.running.take();
        let is_requested = self.requested.take().is_some();
        let Some(why) = connection.error() else {
            return;
        };
        let is_requested = is_requested || running.as_ref().is_some_and(|one| one.is_requested);
        if is_requested {
            // Some targets close the connection after a wrong key.
            let why = match (why, &running) {
                (Error::Lost(lost), Some(running)) if lost.cause.is_by_peer() => {
                    let closed = running.transaction.closed();
                    Error::setup(connection.addr(), self.qid, closed)
                }
                _ => why.clone(),
            };
            self.outcome = Some(Err(why));
        }
    }
}
