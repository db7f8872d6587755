//! One queue pair: commands in, actions out.
//!
//! ```text
//!  Waiting ── Connect, queue 0 ──► Admin ──┐
//!     │ └──── Connect, others ───► Io ─────┤ Disconnect, expiry, reset
//!     │ no Connect in time                 ▼
//!     └─────────────────────────────────► closing
//! ```

mod abort;
mod act;
mod admin;
mod commit;
mod connect;
mod copy;
mod counting;
mod ends;
mod executed;
mod fabrics;
mod fused;
mod hearing;
mod io;
mod meter;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use nvmeof_wire::{Cqe, Nqn, Sqe, Status, opcode};

use crate::controller::{Controller, Serves};
use crate::model::PortAddress;
use crate::request::{Bounds, Failure, Next, Request, Stage, bit};
use crate::shared::Shared;
use crate::{
    Action, CloseCause, Data, DisconnectReason, Disconnected, Event, Keeping, Order, Remote,
};
use abort::{HeldAnswer, Home};
use ends::Ends;
use fused::FirstHalf;
use hearing::heard_by;
use io::{Joined, ranges};
use meter::Meter;

bitflags::bitflags! {
    /// What the edge has to do after a call besides the action.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
    #[must_use]
    pub struct FollowUps: u8 {
        /// Call [`Queue::poll`] of this queue until it has no more orders.
        const POLL = 1;
        /// A controller changed: every reactor calls [`Queue::poll`] of all
        /// its queues.
        const POLL_ALL = 1 << 1;
        /// [`Queue::next_deadline`] may be earlier than it was.
        const DEADLINE = 1 << 2;
        /// There is a [`Queue::take_remark`] for the log.
        const REMARK = 1 << 3;
        /// Those of [`Queue::take_calls`] have to poll their queues.
        const CALL = 1 << 4;
    }
}

/// One queue pair. Dropping it leaves its controller: that of an admin queue
/// is gone with it.
#[derive(Debug)]
pub struct Queue {
    shared: Arc<Shared>,
    qid: u16,
    /// As many commands as the connection was accepted for.
    entries: u16,
    role: Role,
    /// Whether the controller was left already.
    left: bool,
    home: Home,
    ends: Ends,
    /// What the capsules of its commands may be.
    bounds: Bounds,
    /// The port that the host came by, if it is known.
    port: Option<PortAddress>,
    /// Why the edge has no room for the queue, if it has none.
    no_room: Option<String>,
    /// For whom the edge has no room.
    scarce: Scarce,
    sq: SubmissionQueue,
    meter: Meter,
    /// Asynchronous Event Requests that wait, oldest first.
    event_requests: VecDeque<u16>,
    /// Answers to commands that were held, in order.
    answers: VecDeque<HeldAnswer>,
    /// The first half of a fused operation, if one came last.
    first_half: FirstHalf,
    /// What the first half is answered with that has no partner.
    unfused: Option<Status>,
    closing: Option<CloseCause>,
    follow_ups: FollowUps,
    remark: Option<String>,
    /// The place of the present command in what is to be kept, until the edge has it.
    keeping: Option<Keeping>,
}

/// Who has their part of the room, or would take what is left for those who have
/// none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Scarce {
    /// Such hosts.
    pub hosts: Vec<Nqn>,
    /// Whether all that came by the queue's port do, together.
    pub port: bool,
}

/// What the queue is connected to.
#[derive(Debug)]
enum Role {
    Waiting {
        since: Duration,
        /// Whether a Connect was begun and is not answered yet.
        connecting: bool,
    },
    Admin(Arc<Controller>),
    Io(Joined),
}

/// Where the host's submission queue is, as completions tell it.
#[derive(Clone, Copy, Debug)]
struct SubmissionQueue {
    head: u16,
    entries: u16,
    /// Whether the host asked not to be told.
    no_flow_control: bool,
}

impl SubmissionQueue {
    /// What SQHD says.
    fn now(&self) -> u16 {
        if self.no_flow_control {
            return u16::MAX;
        }
        self.head
    }

    /// Moves the head past one command, which is now answered, and returns
    /// what SQHD says. The place is free again only now, since the receive
    /// the command came in was in use until then.
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
            role: Role::Waiting {
                since: now,
                connecting: false,
            },
            left: false,
            home: Home::default(),
            ends: Ends::default(),
            bounds: Bounds::of(&shared.limits, shared.limits.in_capsule),
            port: None,
            no_room: None,
            scarce: Scarce::default(),
            sq: SubmissionQueue {
                head: 0,
                entries,
                no_flow_control: false,
            },
            meter: Meter::default(),
            event_requests: VecDeque::new(),
            answers: VecDeque::new(),
            first_half: FirstHalf::None,
            unfused: None,
            closing: None,
            follow_ups: FollowUps::DEADLINE,
            remark: None,
            keeping: None,
            shared,
        }
    }

    /// Queue identifier: 0 for an admin queue.
    #[must_use]
    pub fn qid(&self) -> u16 {
        self.qid
    }

    /// Commands the host may have outstanding: receives that must be posted.
    #[must_use]
    pub fn entries(&self) -> u16 {
        self.entries
    }

    /// Host NQN, subsystem NQN and controller identifier, once connected.
    #[must_use]
    pub fn association(&self) -> Option<(&str, &str, u16)> {
        let controller = self.controller()?;
        let subnqn = match &controller.serves {
            Serves::Discovery => nvmeof_wire::nqn::DISCOVERY,
            Serves::Nvm(live) => live.nqn.as_str(),
        };
        Some((controller.hostnqn.as_str(), subnqn, controller.cntlid))
    }

    /// The name of its host, once connected.
    #[must_use]
    pub fn hostnqn(&self) -> Option<Nqn> {
        self.controller().map(|controller| controller.hostnqn)
    }

    /// Its controller, of which it is told that its host lost it. `None` if it is no
    /// admin queue that is connected.
    #[must_use]
    pub fn lost(&self, reason: DisconnectReason) -> Option<Disconnected> {
        match &self.role {
            Role::Admin(controller) => Some(Disconnected::of(controller, reason)),
            Role::Waiting { .. } | Role::Io(_) => None,
        }
    }

    /// Whether a Connect succeeded.
    #[must_use]
    pub fn is_connected(&self) -> bool {
        !matches!(self.role, Role::Waiting { .. })
    }

    /// Tells whether a Connect may succeed now, and if not, what is missing:
    /// cause and remedy for the log. Without being told the queue takes it
    /// that there is room.
    pub fn set_room(&mut self, room: Result<(), String>) {
        self.no_room = room.err();
    }

    /// Tells who gets no other queue: hosts no I/O queue, a port none at all.
    pub fn set_scarce(&mut self, scarce: Scarce) {
        self.scarce = scarce;
    }

    /// The port that the host came by, which decides how its controller reaches
    /// namespaces, and how much data its commands may carry. Without being told
    /// it reaches all alike, and those carry what the limits say.
    pub fn set_port(&mut self, port: PortAddress) {
        let in_capsule = self.shared.served().model.in_capsule_at(&port);
        self.bounds = Bounds::of(&self.shared.limits, in_capsule);
        self.port = Some(port);
    }

    /// The port that the host came by, as far as it was told.
    #[must_use]
    pub fn port(&self) -> Option<&PortAddress> {
        self.port.as_ref()
    }

    /// Bytes that the capsule of a command may have (IOCCSZ): what the receives
    /// of the queue have room for.
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

    /// What has to be done besides the last action. Empty until the next call.
    pub fn take_follow_ups(&mut self) -> FollowUps {
        std::mem::take(&mut self.follow_ups)
    }

    /// Something for the log: a Connect and how it went, a refusal.
    pub fn take_remark(&mut self) -> Option<String> {
        self.remark.take()
    }

    /// A capsule came: makes `request` the one that stands for the command,
    /// whatever it was before, and says what to do first.
    pub fn begin(&mut self, now: Duration, capsule: &[u8], request: &mut Request) -> Action {
        let Some(sqe) = Sqe::in_capsule(capsule) else {
            *request = Request::default();
            return self.close_now(CloseCause::BadCapsule {
                len: capsule.len(),
                expected: "64 bytes or more",
            });
        };
        request.start(sqe, capsule, self.bounds);
        // It is about to be closed, and the host is not to be served any more.
        if let Some(cause) = &self.closing {
            return Action::Close(cause.clone());
        }
        let next = match &mut self.role {
            Role::Io(joined) => {
                // First this, then whether it is lost: see `Hot::lose`. A
                // controller that is reset or lost closes its queues; an
                // answer would be final for the host, which must try again.
                let ready = joined.is_ready();
                if let Some(cause) = joined.lost() {
                    return self.close_now(cause);
                }
                joined.catch_up();
                joined.hear(now);
                request.is_outstanding = true;
                joined.counting.began(now);
                // Almost every command ends here.
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
                heard_by(controller, &self.shared.limits, sqe.opcode, now);
                common_checks(sqe).and_then(|()| self.begin_admin(now, request, sqe))
            }
            Role::Waiting {
                connecting: true, ..
            } => return self.close_now(CloseCause::NotConnected),
            Role::Waiting { .. } => self.begin_waiting(request, sqe),
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

    /// Something happened to a request.
    pub fn step(&mut self, now: Duration, request: &mut Request, event: Event<'_>) -> Action {
        let next = match (&mut self.role, event) {
            (Role::Io(joined), Event::Executed { outcome, data }) => {
                joined.counting.is_at(now);
                joined.executed(request, outcome, data, &mut self.meter)
            }
            (_, Event::Pulled(data)) => self.pulled(now, request, data),
            (_, Event::Turn) => return self.turn(request),
            (_, event) => match self.step_admin(now, request, event) {
                Some(next) => next,
                None => return self.out_of_step(request),
            },
        };
        self.act(request, next)
    }

    /// What the queue wants without having been asked. Call it until it gives
    /// nothing: at [`next_deadline`](Self::next_deadline), and when
    /// [`FollowUps`] say so.
    pub fn poll(&mut self, now: Duration) -> Option<Order> {
        if let Some(cause) = self.closing.clone() {
            return Some(Order::Close(cause));
        }
        match &self.role {
            Role::Waiting { since, .. } => {
                let patience = self.shared.limits.connect_patience(self.qid);
                if now.saturating_sub(*since) < patience {
                    return None;
                }
                let seconds = patience.as_secs();
                self.ordered(CloseCause::NoConnect { seconds })
            }
            Role::Io(joined) => match joined.lost() {
                Some(cause) => self.ordered(cause),
                None => self.next_abort(joined.controller()),
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
        match &self.role {
            _ if self.closing.is_some() => None,
            Role::Waiting { since, .. } => {
                Some(*since + self.shared.limits.connect_patience(self.qid))
            }
            Role::Admin(controller) => self.admin_deadline(controller),
            Role::Io(_) => None,
        }
    }

    /// Says in an answer that goes out later than it was made where the
    /// submission queue is by now.
    pub fn renew(&self, cqe: &mut Cqe) {
        cqe.sqhd = self.sq.now().into();
    }

    /// Whether other queues depend on this one: I/O queues are lost with
    /// their admin queue, so it goes last.
    #[must_use]
    pub fn is_needed(&self) -> bool {
        match &self.role {
            Role::Admin(controller) => !controller.lock().queues.is_empty(),
            Role::Waiting { .. } | Role::Io(_) => false,
        }
    }

    /// Leaves the controller. Says whether every reactor has to poll its
    /// queues.
    #[must_use]
    pub fn close(mut self) -> bool {
        self.leave()
    }

    /// The data that the request's stage waits for are there.
    fn pulled(
        &mut self,
        now: Duration,
        request: &mut Request,
        data: &[u8],
    ) -> Result<Next, Failure> {
        match request.stage {
            Stage::Connect(connect) => self.connect(now, &connect, data),
            Stage::Feature { fid, .. } => match &self.role {
                Role::Admin(controller) if admin::is_outlived(controller, request) => {
                    Ok(Next::Hold)
                }
                Role::Admin(controller) => self.admin_of(controller, now).set_data(fid, data),
                _ => Err(Status::INTERNAL_ERROR.into()),
            },
            Stage::Fusing(_) => Ok(request.placed()),
            Stage::Transfer(op) => {
                request.stage = Stage::Disk(op);
                Ok(Next::Execute(op))
            }
            Stage::Commit(op) => Ok(commit::first(request, op)),
            Stage::Copy(copying) => copy::ranges(request, copying, data),
            Stage::Ranges(command, extent) => ranges(request, command, extent, data),
            _ => Err(Status::INTERNAL_ERROR.into()),
        }
    }

    fn controller(&self) -> Option<&Arc<Controller>> {
        match &self.role {
            Role::Waiting { .. } => None,
            Role::Admin(controller) => Some(controller),
            Role::Io(joined) => Some(joined.controller()),
        }
    }

    #[cold]
    fn close_now(&mut self, cause: CloseCause) -> Action {
        self.closing = Some(cause.clone());
        Action::Close(cause)
    }

    // Not an `Option` by necessity: `poll` returns one.
    #[allow(clippy::unnecessary_wraps, reason = "what poll returns")]
    fn ordered(&mut self, cause: CloseCause) -> Option<Order> {
        self.closing = Some(cause.clone());
        Some(Order::Close(cause))
    }

    /// The edge did what it was not asked to. A bug, not a peer's doing.
    #[cold]
    fn out_of_step(&mut self, request: &mut Request) -> Action {
        debug_assert!(false, "out of step: {request:?}");
        request.stage = Stage::Over;
        self.close_now(CloseCause::Internal {
            what: "a command's step came out of order",
        })
    }

    fn leave(&mut self) -> bool {
        // Once: what comes later may have the same names.
        if std::mem::replace(&mut self.left, true) {
            return false;
        }
        match &self.role {
            Role::Waiting { .. } => false,
            Role::Io(joined) => joined.leave(self.qid),
            Role::Admin(controller) => {
                self.shared.registry.remove(controller);
                let told = crate::admin::give_up(&self.shared, controller, |_| true);
                controller.hot.lose() | told
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

/// Where a command says how its data are described: bits 7:6 of byte 1.
pub(super) const PSDT: u16 = bit(1, 6);

/// What every command must have, whatever it is.
fn common_checks(sqe: &Sqe) -> Result<(), Failure> {
    // Identify Controller, FUSES: of I/O commands some can be, see `fused`.
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
