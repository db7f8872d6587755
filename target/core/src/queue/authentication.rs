//! In-band authentication of a queue (Base 2.1, 6.1, 6.2 and 8.3.4): its commands, the queue before
//! its host has proved its key, and what follows when it has.
//!
//! ```text
//!  Connect of a host with a key: success, ATR
//!     ▼                 the host proves its key
//!  unproven ──────────────────────────────────────────────► Admin, Io ◄─┐
//!     │ wrong key or message, timeout, 8 other commands           └─────┘
//!     ▼                                                     Negotiate, again
//!  closing
//! ```
//!
//! An unproven queue is unconnected: it has no controller, no quota and no queue identifier, so
//! that a name that anybody can send takes nothing from the host that has it. A failure ends that
//! queue alone. A connected queue serves commands while its host authenticates itself again, and
//! also if that fails.

use std::fmt;
use std::time::Duration;

use nvmeof_dhchap::{AuthFailure, ControllerAuth, Expected, Proof, Received, Work, WorkResult};
use nvmeof_wire::auth::{AuthCommand, MAX_MESSAGE};
use nvmeof_wire::fabrics::FcType;
use nvmeof_wire::{Nqn, Sqe, Status, opcode};

use super::admin::was_reset_since;
use super::connect::Candidate;
use super::{FollowUps, Queue, Role, common_checks};
use crate::request::{Epoch, Failure, Next, Request, Stage};
use crate::{Action, Authenticated, AuthenticationOutcome, CloseCause, Data, Order, Remote};

/// First byte of SPSP0, SPSP1 and SECP.
const SECURITY_FIELDS: u16 = 41;
/// First byte of TL and AL.
const LENGTH: u16 = 44;
/// First byte of the data pointer.
const DPTR: u16 = 24;
/// Bytes of the longest message.
const LONGEST: u32 = 4096;
const _: () = assert!(MAX_MESSAGE == 4096);

/// Commands of an unproven queue that are refused before it is closed. Hosts send none: Linux
/// authenticates a queue within its Connect.
const MAX_REFUSALS: u8 = 8;

/// How long a queue remains open after the last response, so that its host receives that first. A
/// host that lost the connection instead would take it for a fault and connect again.
const LINGER: Duration = Duration::from_millis(100);

/// The authentication of one queue, which exists from the first time on.
#[derive(Debug)]
pub(super) struct Authentication {
    auth: ControllerAuth,
    /// What joins a controller when the host has proved its key; `None` once it has joined.
    candidate: Option<Candidate>,
    /// The computation that the present command waits for, until the engine has it.
    work: Option<Work>,
    /// Whether a command waits for a computation, perhaps of an earlier transaction.
    is_computing: bool,
    /// Commands that were refused before the host had proved its key.
    refusals: u8,
    /// When and why the queue is to be closed, if it is.
    ends: Option<(Duration, CloseCause)>,
}

impl Authentication {
    /// Of a queue whose host has to prove its key before `candidate` joins a controller.
    pub(super) fn required(auth: ControllerAuth, candidate: Candidate) -> Self {
        Self {
            auth,
            candidate: Some(candidate),
            work: None,
            is_computing: false,
            refusals: 0,
            ends: None,
        }
    }

    /// Of a connected queue.
    fn optional(auth: ControllerAuth) -> Self {
        Self {
            auth,
            candidate: None,
            work: None,
            is_computing: false,
            refusals: 0,
            ends: None,
        }
    }

    /// The computation of [`Next::Compute`].
    pub(super) fn take_work(&mut self) -> Option<Work> {
        self.work.take()
    }

    /// When it has to be polled at the latest.
    pub(super) fn next_deadline(&self) -> Option<Duration> {
        match &self.ends {
            Some((at, _)) => Some(*at),
            None => self.auth.next_deadline(),
        }
    }
}

/// Whether it is an Authentication Send or Receive.
fn is_authentication(sqe: &Sqe) -> bool {
    let fctype = FcType::of(sqe);
    sqe.opcode == opcode::FABRICS && (fctype == FcType::AUTH_SEND || fctype == FcType::AUTH_RECEIVE)
}

impl Queue {
    /// Host and subsystem of a Connect whose host has not proved its key yet: for log lines only,
    /// since a peer can send any names.
    #[must_use]
    pub fn claimed(&self) -> Option<(&str, &str)> {
        let candidate = self.authentication.as_ref()?.candidate.as_ref()?;
        Some(candidate.names())
    }

    /// When a queue without a controller last advanced to get one: the connection was accepted,
    /// Connect succeeded, or the host did the next step of its authentication. `None` if it is
    /// connected.
    #[must_use]
    pub fn last_progress(&self) -> Option<Duration> {
        match &self.role {
            Role::Unconnected { since, .. } => Some(*since),
            Role::Admin(_) | Role::Io(_) => None,
        }
    }

    /// Whether its authentication waits for [`Event::Computed`](crate::Event::Computed), and not
    /// for the host.
    #[cfg(test)]
    pub(crate) fn awaits_worker(&self) -> bool {
        let authentication = self.authentication.as_ref();
        authentication.is_some_and(|it| it.auth.expected() == Expected::Work)
    }

    /// A command on a queue whose host has not proved its key yet. Base 2.1, 8.3.4: a command other
    /// than Authentication Send and Receive is aborted with Authentication Required. The
    /// specification leaves DNR open. It is cleared, because Linux authenticates a queue again on
    /// this status only without DNR (`nvme_decide_disposition`). Property Get and Set are refused
    /// too: no host needs them before, since there is no controller yet.
    pub(super) fn begin_unproven(
        &mut self,
        now: Duration,
        request: &mut Request,
        sqe: &Sqe,
    ) -> Result<Next, Failure> {
        let begun = match is_authentication(sqe) {
            true => common_checks(sqe).and_then(|()| begin(request, sqe)),
            false => Err(Failure::transient(Status::AUTHENTICATION_REQUIRED)),
        };
        match &begun {
            Ok(_) => self.set_busy(true),
            Err(_) => self.refused_unproven(now),
        }
        begun
    }

    /// Why an unconnected queue is closed when a command arrives now, if it is: it is about to be
    /// closed, or has a command in progress.
    pub(super) fn out_of_turn(&self) -> Option<CloseCause> {
        let is_busy = matches!(self.role, Role::Unconnected { is_busy: true, .. });
        let Some(authentication) = &self.authentication else {
            return is_busy.then_some(CloseCause::NotConnected);
        };
        if let Some((_, cause)) = &authentication.ends {
            return Some(cause.clone());
        }
        if is_busy {
            self.count_authentication(AuthenticationOutcome::Protocol);
        }
        is_busy.then_some(CloseCause::NotAuthenticated)
    }

    /// A command of an unproven queue was refused.
    fn refused_unproven(&mut self, now: Duration) {
        let Some(authentication) = &mut self.authentication else {
            return;
        };
        authentication.refusals = authentication.refusals.saturating_add(1);
        if authentication.refusals == MAX_REFUSALS {
            self.count_authentication(AuthenticationOutcome::Protocol);
            self.report_failure(format_args!("{MAX_REFUSALS} commands were refused"));
            self.end_soon(now, CloseCause::NotAuthenticated);
        }
    }

    /// An Authentication Send or Receive on a connected queue.
    #[cold]
    pub(super) fn begin_authentication(
        &mut self,
        request: &mut Request,
        sqe: &Sqe,
    ) -> Result<Next, Failure> {
        begin(request, sqe)
    }

    /// The message of an Authentication Send has arrived.
    #[cold]
    pub(super) fn message_sent(
        &mut self,
        now: Duration,
        request: &Request,
        message: &[u8],
    ) -> Result<Next, Failure> {
        if self.was_reset(request) {
            return Ok(Next::Hold);
        }
        let Some((host, subsystem)) = self.names() else {
            return Err(Status::INTERNAL_ERROR.into());
        };
        let policy = self.shared.served().model.policy_or_none(&host, &subsystem);
        let keep_alive = self.keep_alive();
        let authentication = self.authentication.get_or_insert_with(|| {
            let policy = policy.clone();
            let auth = ControllerAuth::optional(host, subsystem, policy, keep_alive);
            Box::new(Authentication::optional(auth))
        });
        // One computation of each queue: otherwise a host could have as many as commands.
        if authentication.is_computing {
            return Err(Failure::transient(Status::COMMAND_SEQUENCE_ERROR));
        }
        // The host has to fetch the failure. Until then, nothing else is served.
        if authentication.auth.has_failed() {
            self.set_busy(false);
            if !self.is_connected() {
                self.refused_unproven(now);
            }
            return Err(Failure::transient(Status::COMMAND_SEQUENCE_ERROR));
        }
        authentication.auth.set_policy(policy);
        match authentication.auth.send(now, message) {
            Ok(Some(work)) => {
                authentication.work = Some(work);
                authentication.is_computing = true;
                self.advanced(now);
                return Ok(Next::Compute);
            }
            Ok(None) => {}
            Err(failure) => self.authentication_failed(&failure),
        }
        self.set_busy(false);
        self.conclude(now)?;
        Ok(Next::Done(0))
    }

    /// The computation of an Authentication Send has ended.
    #[cold]
    pub(super) fn computed(
        &mut self,
        now: Duration,
        request: &Request,
        result: WorkResult,
    ) -> Result<Next, Failure> {
        let Some(authentication) = &mut self.authentication else {
            return Err(Status::INTERNAL_ERROR.into());
        };
        authentication.is_computing = false;
        match authentication.auth.finish(now, result) {
            Ok(()) => self.advanced(now),
            Err(failure) => self.authentication_failed(&failure),
        }
        self.set_busy(false);
        // After the result, which the next transaction depends on.
        if self.was_reset(request) {
            return Ok(Next::Hold);
        }
        self.conclude(now)?;
        Ok(Next::Done(0))
    }

    /// A buffer for the message of an Authentication Receive.
    #[cold]
    pub(super) fn fetch_message(
        &mut self,
        now: Duration,
        request: &mut Request,
        out: &mut [u8],
    ) -> Action {
        if self.was_reset(request) {
            request.stage = Stage::Over;
            return Action::Hold;
        }
        self.set_busy(false);
        match self.fetched(now, request, out) {
            Ok(push) => self.respond(request, Some(push), Status::SUCCESS, 0),
            Err(failure) => {
                if !self.is_connected() {
                    self.refused_unproven(now);
                }
                self.failed(request, failure)
            }
        }
    }

    /// Writes the message for the host to `out`. Returns where it goes.
    fn fetched(
        &mut self,
        now: Duration,
        request: &Request,
        out: &mut [u8],
    ) -> Result<Remote, Failure> {
        let Data::Remote(remote) = request.data else {
            return Err(Status::INTERNAL_ERROR.into());
        };
        let Some(authentication) = &mut self.authentication else {
            return Err(Status::COMMAND_SEQUENCE_ERROR.into());
        };
        let len = match authentication.auth.receive(now, out) {
            Received::Message(len) => len,
            Received::TooShort => return Err(Failure::field(LENGTH)),
            Received::Later => return Err(Failure::transient(Status::COMMAND_SEQUENCE_ERROR)),
            Received::Nothing => return Err(Status::COMMAND_SEQUENCE_ERROR.into()),
        };
        self.advanced(now);
        self.conclude(now)?;
        let len = u32::try_from(len).unwrap_or(LONGEST);
        Ok(Remote { len, ..remote })
    }

    /// After a step: a host that has proved its key gets a controller, and a queue whose host has
    /// failed to is closed.
    fn conclude(&mut self, now: Duration) -> Result<(), Failure> {
        self.follow_ups |= FollowUps::DEADLINE;
        let Some(authentication) = &mut self.authentication else {
            return Ok(());
        };
        if let Some(proof) = authentication.auth.take_proof() {
            return self.proved(now, proof);
        }
        if authentication.auth.expected() == Expected::Close {
            self.end_soon(now, CloseCause::AuthenticationFailed);
        }
        Ok(())
    }

    /// The host has proved its key.
    fn proved(&mut self, now: Duration, proof: Proof) -> Result<(), Failure> {
        self.count_authentication(AuthenticationOutcome::Success);
        let candidate = self
            .authentication
            .as_mut()
            .and_then(|it| it.candidate.take());
        let Some(candidate) = candidate else {
            self.proved_again(proof);
            return Ok(());
        };
        let Err(refused) = self.join(now, &candidate, Some(proof)) else {
            return Ok(());
        };
        let failure = self.report_refusal(refused, "");
        if let Some(authentication) = &mut self.authentication {
            authentication.candidate = Some(candidate);
        }
        self.end_soon(now, CloseCause::NotJoined);
        Err(failure)
    }

    /// The host has proved its key on a connected queue.
    fn proved_again(&mut self, proof: Proof) {
        let Role::Admin(controller) = &self.role else {
            return;
        };
        let (host, subsystem) = (controller.hostnqn, controller.subnqn());
        let policy = self.shared.served().model.policy(&host, &subsystem);
        let authenticated = Authenticated::of(&proof, policy.as_deref());
        controller.lock().proof = Some(proof);
        self.remark(format!("re-authenticated: {authenticated}"));
    }

    /// Counts and reports a failed authentication.
    fn authentication_failed(&mut self, failure: &AuthFailure) {
        self.count_authentication(failure.into());
        self.report_failure(format_args!("{failure}"));
    }

    // The line has the names of host and subsystem: see `claimed`.
    fn report_failure(&mut self, why: fmt::Arguments<'_>) {
        let consequence = match self.is_connected() {
            true => "; the queue remains connected",
            false => "",
        };
        self.remark(format!("authentication failed: {why}{consequence}"));
        self.follow_ups |= FollowUps::WARNING;
    }

    fn count_authentication(&self, outcome: AuthenticationOutcome) {
        let Some((host, _)) = self.names() else {
            return;
        };
        // Held meanwhile: afterwards, `apply` may forget the host.
        let served = self.shared.served();
        let has_key = served.model.authentication().hosts.contains_key(&host);
        let host = Some(&host).filter(|_| has_key);
        self.shared.authentications.count(outcome, host);
    }

    /// Fails an authentication that the host does not continue. Returns why the queue is to be
    /// closed, if it is.
    pub(super) fn expire_authentication(&mut self, now: Duration) -> Option<CloseCause> {
        let authentication = self.authentication.as_mut()?;
        if let Some((at, cause)) = &authentication.ends {
            return (now >= *at).then(|| cause.clone());
        }
        let failure = authentication.auth.expire(now);
        let is_over = authentication.auth.expected() == Expected::Close;
        if let Some(failure) = &failure {
            self.authentication_failed(failure);
        }
        let cause = match failure {
            Some(AuthFailure::Timeout(timeout)) => CloseCause::AuthenticationTimeout {
                seconds: timeout.as_secs(),
            },
            _ => CloseCause::AuthenticationFailed,
        };
        is_over.then_some(cause)
    }

    /// As [`poll`](Self::poll), for a queue whose host has not proved its key.
    pub(super) fn poll_unproven(&mut self, now: Duration) -> Option<Order> {
        let cause = self.expire_authentication(now)?;
        self.ordered(cause)
    }

    /// Closes the queue when its host has the response.
    fn end_soon(&mut self, now: Duration, cause: CloseCause) {
        if let Some(authentication) = &mut self.authentication {
            let at = now.saturating_add(LINGER);
            authentication.ends.get_or_insert((at, cause));
            self.follow_ups |= FollowUps::DEADLINE;
        }
    }

    /// The host did its next step, or the target did.
    fn advanced(&mut self, now: Duration) {
        self.follow_ups |= FollowUps::DEADLINE;
        if let Role::Unconnected { since, .. } = &mut self.role {
            *since = now;
        }
    }

    /// Sets whether an unconnected queue has a command in progress.
    fn set_busy(&mut self, busy: bool) {
        if let Role::Unconnected { is_busy, .. } = &mut self.role {
            *is_busy = busy;
        }
    }

    /// Host and subsystem, as the host sent them.
    fn names(&self) -> Option<(Nqn, Nqn)> {
        let candidate = self
            .authentication
            .as_ref()
            .and_then(|it| it.candidate.as_ref());
        match candidate {
            Some(candidate) => Some(candidate.nqns()),
            None => {
                let controller = self.controller()?;
                Some((controller.hostnqn, controller.subnqn()))
            }
        }
    }

    /// The Keep Alive Timeout of the controller; 0 if there is none.
    fn keep_alive(&self) -> Duration {
        let controller = self.controller();
        let timeout = controller.and_then(|controller| controller.keep_alive_timeout());
        timeout.unwrap_or_default()
    }

    /// Whether the controller of this admin queue was reset since the command began.
    fn was_reset(&self, request: &Request) -> bool {
        match &self.role {
            Role::Admin(controller) => was_reset_since(controller, request),
            Role::Unconnected { .. } | Role::Io(_) => false,
        }
    }
}

/// An Authentication Send or Receive with valid fields.
fn begin(request: &mut Request, sqe: &Sqe) -> Result<Next, Failure> {
    let command = AuthCommand::parse(sqe);
    if !command.is_authentication() {
        return Err(Failure::field(SECURITY_FIELDS));
    }
    let len = command.len.get();
    if len == 0 {
        return Err(Failure::field(LENGTH));
    }
    let epoch = Epoch::default();
    // Base 2.1, 6.1 and 6.2: the length of the descriptor is that of the field.
    let wrong = |failure: Failure| match failure.status.is(Status::DATA_SGL_LENGTH_INVALID) {
        true => Failure::field(LENGTH),
        false => failure,
    };
    let next = match command.fctype {
        FcType::AUTH_SEND if len > LONGEST => return Err(Failure::field(LENGTH)),
        FcType::AUTH_SEND => {
            request.takes(len).map_err(wrong)?;
            request.stage = Stage::AuthSend { epoch };
            Next::Data
        }
        _ => {
            request.gives(len).map_err(wrong)?;
            request.stage = Stage::AuthReceive { epoch };
            Next::Produce(len.min(LONGEST))
        }
    };
    // One descriptor: a message is short.
    if let Data::List { .. } = request.data {
        request.stage = Stage::Over;
        return Err(Failure::field(DPTR));
    }
    Ok(next)
}
