//! One queue pair: commands in, actions out.
//!
//! ```text
//!  Unconnected ── Connect, queue 0 ──► Admin ──┐
//!     │ └──────── Connect, others ───► Io ─────┤ Disconnect, expiry, reset
//!     │ no Connect in time                     ▼
//!     └─────────────────────────────────────► closing
//!
//!  A host with a key proves it after its Connect, before the queue joins: see `authentication`.
//! ```

mod abort;
mod act;
mod admin;
mod authentication;
mod commit;
mod connect;
mod copy;
mod counting;
mod cross_reset;
mod endpoints;
mod executed;
mod fabrics;
mod fused;
mod io;
mod keep_alive;
mod meter;
pub(crate) mod reserve;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use nvmeof_wire::{Cqe, Nqn, Sqe, Status, opcode};

use crate::controller::{Controller, ControllerKind};
use crate::model::PortAddress;
use crate::request::{Bounds, Failure, Next, Request, Reserving, Stage, bit};
use crate::shared::Shared;
use crate::{
    Action, Call, CloseCause, Data, DisconnectReason, Disconnected, Event, InFlight, Order,
    PendingSave, Remote,
};
use abort::{HeldAnswer, Home};
use authentication::Authentication;
use endpoints::Endpoints;
use fused::FirstHalf;
use io::{Joined, ranges};
use keep_alive::note_admin_command;
use meter::Meter;

bitflags::bitflags! {
    /// What the engine has to do after a call, besides the action.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
    #[must_use]
    pub struct FollowUps: u8 {
        /// Call [`Queue::poll`] of this queue until it has no more orders.
        const POLL = 1;
        /// Several controllers may have changed: every reactor calls
        /// [`Queue::poll`] of all its queues.
        const POLL_ALL = 1 << 1;
        /// [`Queue::next_deadline`] may be earlier than it was.
        const DEADLINE = 1 << 2;
        /// [`Queue::take_remark`] has a line for the log.
        const REMARK = 1 << 3;
        /// [`Queue::take_calls`] has calls to deliver.
        const CALL = 1 << 4;
        /// With `REMARK`: the line is a warning.
        const WARNING = 1 << 5;
    }
}

/// One queue pair. Dropping it leaves its controller, which ends with its admin queue.
#[derive(Debug)]
pub struct Queue {
    shared: Arc<Shared>,
    qid: u16,
    /// Number of commands for which the connection was accepted.
    entries: u16,
    role: Role,
    /// Whether it has left its controller.
    left: bool,
    /// Counts at its controller while it has commands in flight.
    in_flight: Option<InFlight>,
    /// Whether the host did not end the connection: it broke, or the host was silent.
    lost_host: bool,
    home: Home,
    endpoints: Endpoints,
    /// Bounds of command capsules.
    bounds: Bounds,
    /// The port of the host, if it is known.
    port: Option<PortAddress>,
    /// Why the engine has no buffers for the queue, if it has none.
    no_room: Option<String>,
    /// Hosts and ports for which the engine has no buffers.
    exhausted: ExhaustedQuotas,
    sq: SubmissionQueue,
    meter: Meter,
    /// Pending Asynchronous Event Requests, oldest first.
    event_requests: VecDeque<u16>,
    /// Responses to commands that were held, in order.
    completions: VecDeque<HeldAnswer>,
    /// The state of a first half of a fused operation, if it was the last command.
    first_half: FirstHalf,
    /// The status of a first half without a second one.
    unfused: Option<Status>,
    closing: Option<CloseCause>,
    follow_ups: FollowUps,
    remark: Option<String>,
    /// The save that the present command waits for, until the engine has it.
    keeping: Option<PendingSave>,
    /// Its authentication, if its host has or had to authenticate itself, or did so.
    authentication: Option<Box<Authentication>>,
}

/// Hosts and port that have exhausted their quota of buffers, or would use what is
/// reserved for others.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExhaustedQuotas {
    /// These hosts.
    pub hosts: Vec<Nqn>,
    /// Whether the port of the queue has.
    pub port: bool,
}

/// The role of a queue.
#[derive(Debug)]
enum Role {
    Unconnected {
        /// When it last advanced: see [`Queue::last_progress`].
        since: Duration,
        /// Whether a command is in progress: Connect, or one of the authentication.
        is_busy: bool,
    },
    Admin(Arc<Controller>),
    Io(Joined),
}

/// The submission queue of the host, for the SQ Head Pointer (SQHD) of completions.
#[derive(Clone, Copy, Debug)]
struct SubmissionQueue {
    head: u16,
    entries: u16,
    /// Whether the host disabled SQ flow control.
    no_flow_control: bool,
}

impl SubmissionQueue {
    /// The value of SQHD.
    fn now(&self) -> u16 {
        if self.no_flow_control {
            return u16::MAX;
        }
        self.head
    }

    /// Moves the head past a completed command, and returns the value of SQHD. The entry is
    /// free only now, because its receive was in use until the completion.
    fn advance(&mut self) -> u16 {
        if self.no_flow_control {
            return u16::MAX;
        }
        self.head = if self.head + 1 >= self.entries {
            0
        } else {
            self.head + 1
        };
        self.head
    }
}

impl Queue {
    pub(crate) fn new(shared: Arc<Shared>, qid: u16, entries: u16, now: Duration) -> Self {
        Self {
            qid,
            entries,
            role: Role::Unconnected {
                since: now,
                is_busy: false,
            },
            left: false,
            in_flight: None,
            lost_host: false,
            home: Home::default(),
            endpoints: Endpoints::default(),
            bounds: Bounds::of(&shared.limits, shared.limits.in_capsule),
            port: None,
            no_room: None,
            exhausted: ExhaustedQuotas::default(),
            sq: SubmissionQueue {
                head: 0,
                entries,
                no_flow_control: false,
            },
            meter: Meter::default(),
            event_requests: VecDeque::new(),
            completions: VecDeque::new(),
            first_half: FirstHalf::None,
            unfused: None,
            closing: None,
            follow_ups: FollowUps::DEADLINE,
            remark: None,
            keeping: None,
            authentication: None,
            shared,
        }
    }

    /// Queue identifier: 0 for an admin queue.
    #[must_use]
    pub fn qid(&self) -> u16 {
        self.qid
    }

    /// Commands that the host may have outstanding: the number of receives to post.
    #[must_use]
    pub fn entries(&self) -> u16 {
        self.entries
    }

    /// Host NQN, subsystem NQN and controller identifier, once connected.
    #[must_use]
    pub fn association(&self) -> Option<(&str, &str, u16)> {
        let controller = self.controller()?;
        let subnqn = match &controller.kind {
            ControllerKind::Discovery => nvmeof_wire::nqn::DISCOVERY,
            ControllerKind::Nvm(live) => live.nqn.as_str(),
        };
        Some((controller.hostnqn.as_str(), subnqn, controller.cntlid))
    }

    /// The NQN of its host, once connected.
    #[must_use]
    pub fn hostnqn(&self) -> Option<Nqn> {
        self.controller().map(|controller| controller.hostnqn)
    }

    /// Describes the disconnection of its controller. `None` if it is not a connected admin
    /// queue.
    #[must_use]
    pub fn lost(&self, reason: DisconnectReason) -> Option<Disconnected> {
        match &self.role {
            Role::Admin(controller) => Some(Disconnected::of(controller, reason)),
            Role::Unconnected { .. } | Role::Io(_) => None,
        }
    }

    /// Whether a Connect succeeded.
    #[must_use]
    pub fn is_connected(&self) -> bool {
        !matches!(self.role, Role::Unconnected { .. })
    }

    /// Sets whether there are buffers for a Connect, and if not, cause and remedy for the
    /// log. The default is that there are.
    pub fn set_room(&mut self, room: Result<(), String>) {
        self.no_room = room.err();
    }

    /// Sets which hosts get no further I/O queue, and whether the port gets no queue.
    pub fn set_exhausted(&mut self, exhausted: ExhaustedQuotas) {
        self.exhausted = exhausted;
    }

    /// Sets the port of the host, which determines the ANA states and the in-capsule data
    /// size. Without a port, all groups are optimized and the size is the limit.
    pub fn set_port(&mut self, port: PortAddress) {
        let in_capsule = self.shared.served().model.in_capsule_at(&port);
        self.bounds = Bounds::of(&self.shared.limits, in_capsule);
        self.port = Some(port);
    }

    /// The port of the host, if it is known.
    #[must_use]
    pub fn port(&self) -> Option<&PortAddress> {
        self.port.as_ref()
    }

    /// Maximum length of a command capsule in bytes (IOCCSZ), which the receives of the
    /// queue must hold.
    #[must_use]
    pub fn capsule_len(&self) -> u32 {
        self.bounds.capsule
    }

    /// Whether [`take_follow_ups`](Self::take_follow_ups) has any.
    #[inline]
    #[must_use]
    pub fn has_follow_ups(&self) -> bool {
        !self.follow_ups.is_empty()
    }

    /// Takes the work that has to be done besides the last action.
    pub fn take_follow_ups(&mut self) -> FollowUps {
        std::mem::take(&mut self.follow_ups)
    }

    /// Takes a line for the log, such as the outcome of a Connect.
    pub fn take_remark(&mut self) -> Option<String> {
        self.remark.take()
    }

    /// Begins the command of a capsule: initializes `request` for it, whatever it was
    /// before, and returns the first action.
    pub fn begin(&mut self, now: Duration, capsule: &[u8], request: &mut Request) -> Action {
        let Some(sqe) = Sqe::in_capsule(capsule) else {
            *request = Request::default();
            return self.close_now(CloseCause::BadCapsule {
                len: capsule.len(),
                expected: "64 bytes or more",
            });
        };
        request.start(sqe, capsule, self.bounds);
        // The queue is about to be closed, and serves no more commands.
        if let Some(cause) = &self.closing {
            return Action::Close(cause.clone());
        }
        let next = match &mut self.role {
            Role::Io(joined) => {
                // Read before `lost`: see `HotState::lose`. A controller that is reset or lost
                // closes its queues. A failed completion would be final for the host, which
                // has to retry.
                let ready = joined.is_ready();
                if let Some(cause) = joined.lost() {
                    return self.close_now(cause);
                }
                joined.refresh_view();
                joined.note_activity(now);
                request.is_outstanding = true;
                joined.counting.began(now);
                // Almost all commands take the last branch.
                if sqe.is_fused() || !matches!(self.first_half, FirstHalf::None) {
                    self.begin_fused(now, request, sqe, ready)
                } else if sqe.opcode == opcode::FABRICS {
                    common_checks(sqe).and_then(|()| self.fabrics(now, request, sqe))
                } else {
                    common_checks(sqe).and_then(|()| joined.begin(request, sqe, ready))
                }
            }
            Role::Admin(controller) => {
                if controller.hot.is_gone() {
                    let cntlid = controller.cntlid;
                    return self.close_now(CloseCause::ControllerGone { cntlid });
                }
                note_admin_command(controller, &self.shared.limits, sqe.opcode, now);
                common_checks(sqe).and_then(|()| self.begin_admin(now, request, sqe))
            }
            Role::Unconnected { .. } => match self.out_of_turn() {
                Some(cause) => return self.close_now(cause),
                None => self.begin_unconnected(now, request, sqe),
            },
        };
        let next = match next {
            Ok(Next::Data) => match request.data.clone() {
                Data::Remote(remote) => return pull(request, remote),
                Data::List { .. } => return pull(request, request.whole()),
                Data::Capsule(range) => {
                    let data = capsule.get(range).unwrap_or_default();
                    self.pulled(now, request, data)
                }
                Data::None => self.pulled(now, request, &[]),
            },
            next => next,
        };
        self.act(request, next)
    }

    /// Handles an event of a request, and returns the next action.
    pub fn step(&mut self, now: Duration, request: &mut Request, event: Event<'_>) -> Action {
        let next = match (&mut self.role, event) {
            (Role::Io(joined), Event::Executed { outcome, data }) => {
                joined.counting.is_at(now);
                joined.executed(request, outcome, data, &mut self.meter)
            }
            (_, Event::Pulled(data)) => self.pulled(now, request, data),
            (_, Event::Execute) => return self.execute_half(request),
            (Role::Io(_), Event::Saved { saved }) => {
                let Stage::Reserve(reserving) = request.stage else {
                    return self.unexpected_event(request);
                };
                reserve::saved(request, reserving, saved)
            }
            (Role::Io(joined), Event::Buffer(out))
                if let Stage::Report { nsid } = request.stage =>
            {
                joined.report(nsid, out)
            }
            (_, Event::Buffer(out)) if matches!(request.stage, Stage::AuthReceive { .. }) => {
                return self.fetch_message(now, request, out);
            }
            (_, Event::Computed(result)) if matches!(request.stage, Stage::AuthSend { .. }) => {
                self.computed(now, request, result)
            }
            (_, event) => match self.step_admin(now, request, event) {
                Some(next) => next,
                None => return self.unexpected_event(request),
            },
        };
        self.act(request, next)
    }

    /// The next action that does not follow an event of a request. Call it until it returns
    /// `None`: at [`next_deadline`](Self::next_deadline), and when [`FollowUps`] require it.
    pub fn poll(&mut self, now: Duration) -> Option<Order> {
        if let Some(cause) = self.closing.clone() {
            return Some(Order::Close(cause));
        }
        match &self.role {
            Role::Unconnected { .. } if self.authentication.is_some() => self.poll_unproven(now),
            Role::Unconnected { since, .. } => {
                let timeout = self.shared.limits.connect_timeout_of(self.qid);
                if now.saturating_sub(*since) < timeout {
                    return None;
                }
                let seconds = timeout.as_secs();
                self.ordered(CloseCause::NoConnect { seconds })
            }
            Role::Io(joined) => match joined.lost() {
                Some(cause) => self.ordered(cause),
                None => {
                    let order = self.next_abort(joined.controller());
                    self.expire_authentication(now);
                    order
                }
            },
            Role::Admin(controller) => {
                let controller = Arc::clone(controller);
                self.poll_admin(&controller, now)
            }
        }
    }

    /// When [`poll`](Self::poll) has to be called at the latest.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Duration> {
        let authentication = self.authentication.as_ref();
        match &self.role {
            _ if self.closing.is_some() => None,
            Role::Unconnected { since, .. } => match authentication {
                Some(authentication) => authentication.next_deadline(),
                None => Some(*since + self.shared.limits.connect_timeout_of(self.qid)),
            },
            Role::Admin(controller) => self.admin_deadline(controller),
            Role::Io(_) => authentication?.next_deadline(),
        }
    }

    /// Updates SQHD of a response that is sent later than it was made.
    pub fn renew(&self, cqe: &mut Cqe) {
        cqe.sqhd = self.sq.now().into();
    }

    /// Whether other queues depend on this one: I/O queues are lost with their admin queue,
    /// so it is closed last.
    #[must_use]
    pub fn is_needed(&self) -> bool {
        match &self.role {
            Role::Admin(controller) => !controller.lock().queues.is_empty(),
            Role::Unconnected { .. } | Role::Io(_) => false,
        }
    }

    /// Leaves the controller. Returns what the engine has to do, with the calls.
    pub fn close(mut self) -> (FollowUps, Vec<Call>) {
        self.leave();
        self.quiesced();
        let calls = self.take_calls();
        (self.take_follow_ups(), calls)
    }

    /// What it may still have in flight at backing stores, which is to be kept until they have
    /// nothing of it.
    #[must_use]
    pub fn take_in_flight(&mut self) -> Option<InFlight> {
        self.in_flight.take()
    }

    /// The data that the request waits for have arrived.
    fn pulled(
        &mut self,
        now: Duration,
        request: &mut Request,
        data: &[u8],
    ) -> Result<Next, Failure> {
        if let (Role::Io(joined), true) = (&mut self.role, request.awaits_check()) {
            joined.check_again(request)?;
        }
        match request.stage {
            Stage::Connect(connect) => self.connect(now, &connect, data),
            Stage::Feature { fid, .. } => match &self.role {
                Role::Admin(controller) if admin::was_reset_since(controller, request) => {
                    Ok(Next::Hold)
                }
                Role::Admin(controller) => self.admin_of(controller, now).set_data(fid, data),
                _ => Err(Status::INTERNAL_ERROR.into()),
            },
            Stage::Fusing(_) => Ok(request.placed()),
            Stage::Transfer(op) => {
                request.stage = Stage::Executing(op);
                Ok(Next::Execute(op))
            }
            Stage::Commit(op) => Ok(commit::first(request, op)),
            Stage::Copy(copying) => copy::ranges(request, copying, data),
            Stage::Ranges(command, extent) => ranges(request, command, extent, data),
            Stage::AuthSend { .. } => self.message_sent(now, request, data),
            Stage::Reserve(reserving) => self.reserve(request, reserving, data),
            _ => Err(Status::INTERNAL_ERROR.into()),
        }
    }

    /// The data of a command that changes reservations have arrived.
    #[cold]
    fn reserve(
        &mut self,
        request: &mut Request,
        reserving: Reserving,
        data: &[u8],
    ) -> Result<Next, Failure> {
        let Role::Io(joined) = &mut self.role else {
            return Err(Status::INTERNAL_ERROR.into());
        };
        joined.refresh_view();
        let (next, pending) = joined.reserve(&self.shared, request, reserving, data)?;
        self.keeping = pending;
        Ok(next)
    }

    /// The identifier of its controller, if it has one.
    #[must_use]
    pub fn cntlid(&self) -> Option<u16> {
        self.controller().map(|controller| controller.cntlid)
    }

    fn controller(&self) -> Option<&Arc<Controller>> {
        match &self.role {
            Role::Unconnected { .. } => None,
            Role::Admin(controller) => Some(controller),
            Role::Io(joined) => Some(joined.controller()),
        }
    }

    #[cold]
    fn close_now(&mut self, cause: CloseCause) -> Action {
        self.closing = Some(cause.clone());
        Action::Close(cause)
    }

    // An `Option`, as `poll` returns one.
    #[allow(clippy::unnecessary_wraps, reason = "what poll returns")]
    fn ordered(&mut self, cause: CloseCause) -> Option<Order> {
        self.closing = Some(cause.clone());
        Some(Order::Close(cause))
    }

    /// The engine reported an event that was not requested: a bug, not caused by a peer.
    #[cold]
    fn unexpected_event(&mut self, request: &mut Request) -> Action {
        debug_assert!(false, "out of step: {request:?}");
        request.stage = Stage::Over;
        self.close_now(CloseCause::Internal {
            what: "a command's step came out of order",
        })
    }

    fn leave(&mut self) {
        // Only once: a later queue may have the same identifiers.
        if std::mem::replace(&mut self.left, true) {
            return;
        }
        match &self.role {
            Role::Unconnected { .. } => {}
            // The admin queue may wait for it: to complete Abort commands, or to be closed.
            Role::Io(joined) => {
                let call = joined.controller().home_call();
                let was_joined = joined.leave(self.qid);
                self.request_calls(was_joined.then_some(call));
            }
            Role::Admin(controller) => {
                let controller = Arc::clone(controller);
                self.shared.registry.remove(&controller);
                if self.lost_host {
                    let calls = self.shared.host_lost(&controller);
                    self.request_calls(calls);
                }
                if crate::admin::cancel_requests(&self.shared, &controller, |_| true) {
                    self.follow_ups |= FollowUps::POLL_ALL;
                }
                self.ends();
            }
        }
    }
}

fn pull(request: &Request, remote: Remote) -> Action {
    if request.is_fusing() {
        return Action::PullBehind { remote };
    }
    let spare = request.spare();
    Action::Pull { remote, spare }
}

/// PSDT, the kind of the data pointer: bits 7:6 of byte 1.
pub(super) const PSDT: u16 = bit(1, 6);

/// Checks of every command.
fn common_checks(sqe: &Sqe) -> Result<(), Failure> {
    // Identify Controller, FUSES: only I/O commands can be fused, see `fused`.
    if sqe.is_fused() {
        return Err(Failure::field(1));
    }
    // Base 2.1, 4.1.1, PSDT: "NVMe over Fabrics ... SGLs shall be used".
    if !sqe.uses_sgl() {
        return Err(Failure::field(PSDT));
    }
    Ok(())
}

impl Drop for Queue {
    fn drop(&mut self) {
        self.leave();
    }
}
