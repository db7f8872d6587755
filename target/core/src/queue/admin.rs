//! The admin queue's own part: its commands, held requests, keep-alive.

use std::sync::Arc;
use std::time::Duration;

use nvmeof_wire::admin::SetFeatures;
use nvmeof_wire::features::{FeatureId, WriteProtection};
use nvmeof_wire::opcode::{self, admin};
use nvmeof_wire::{Sqe, Status};

use super::{FollowUps, Queue, Role};
use crate::admin::{self as commands, Admin, Left};
use crate::controller::Controller;
use crate::controller::notices::MAX_REQUESTS;
use crate::protection::Asked;
use crate::request::{Epoch, Failure, Next, Page, Request, Stage};
use crate::{CloseCause, Event, Executed, Order, Response};

impl Queue {
    /// Its connection ends: with an admin queue nothing more of its I/O queues is begun.
    /// Says whether every reactor has to poll its queues.
    #[must_use]
    pub fn ends(&self) -> bool {
        matches!(&self.role, Role::Admin(controller) if controller.hot.lose())
    }

    pub(super) fn poll_admin(
        &mut self,
        controller: &Arc<Controller>,
        now: Duration,
    ) -> Option<Order> {
        let cntlid = controller.cntlid;
        if controller.hot.is_gone() {
            return self.ordered(CloseCause::ControllerGone { cntlid });
        }
        let by_traffic = self.shared.limits.traffic_keep_alive;
        if controller.has_expired(now, by_traffic) {
            let patience = controller.patience().unwrap_or_default();
            let kato_ms = u32::try_from(patience.as_millis()).unwrap_or(u32::MAX);
            // Base 2.1, 3.9: on expiry the controller sets CSTS.CFS, stops
            // processing commands and breaks the association. It also
            // records Keep Alive Timeout Expired in the Error Information log: the
            // log goes with this controller, so that no host could ever read it (static
            // controllers, which stay, there are none). The line in our log has it.
            controller.lock().registers.fatal();
            let _ = self.leave();
            self.follow_ups |= FollowUps::POLL_ALL;
            return self.ordered(CloseCause::KeepAlive { kato_ms });
        }
        if let Some(order) = self.next_answer(controller) {
            return Some(order);
        }
        if let Some(order) = self.next_abort(controller) {
            return Some(order);
        }
        let cid = *self.event_requests.front()?;
        let Some(notice) = controller.next_event(now) else {
            if controller.hot.has_event() {
                self.follow_ups |= FollowUps::DEADLINE;
            }
            return None;
        };
        self.event_requests.pop_front();
        let cqe = self.completion(cid, Status::SUCCESS, notice.event.to_dword().into());
        Some(Order::Respond(Response {
            push: None,
            cqe,
            invalidate: None,
        }))
    }

    /// When something is due that nobody asks for.
    pub(super) fn admin_deadline(&self, controller: &Controller) -> Option<Duration> {
        let expires = controller.expires(self.shared.limits.traffic_keep_alive);
        let wants_events = !self.event_requests.is_empty();
        let event = wants_events.then(|| controller.event_due()).flatten();
        expires.into_iter().chain(event).min()
    }

    /// A command may be what an event waited for.
    fn look_for_events(&mut self) {
        if let Role::Admin(controller) = &self.role
            && controller.hot.has_event()
            && !self.event_requests.is_empty()
        {
            self.follow_ups |= FollowUps::POLL;
        }
    }

    pub(super) fn begin_admin(
        &mut self,
        now: Duration,
        request: &mut Request,
        sqe: &Sqe,
    ) -> Result<Next, Failure> {
        let Role::Admin(controller) = &self.role else {
            return Err(Status::INTERNAL_ERROR.into());
        };
        let epoch = Epoch::of(controller);
        let next = self.start_admin(now, request, sqe);
        request.stage.begin_in(epoch);
        self.look_for_events();
        next
    }

    fn start_admin(
        &mut self,
        now: Duration,
        request: &mut Request,
        sqe: &Sqe,
    ) -> Result<Next, Failure> {
        if sqe.opcode == opcode::FABRICS {
            return self.fabrics(now, request, sqe);
        }
        let Role::Admin(controller) = &self.role else {
            return Err(Status::INTERNAL_ERROR.into());
        };
        // Base 2.1, 3.5.2: until CSTS.RDY is set only Fabrics commands are
        // processed.
        if !controller.hot.is_ready() {
            return Err(Status::COMMAND_SEQUENCE_ERROR.into());
        }
        match sqe.opcode {
            admin::ASYNC_EVENT_REQUEST => {
                if self.event_requests.len() >= MAX_REQUESTS {
                    return Err(Status::ASYNC_EVENT_LIMIT_EXCEEDED.into());
                }
                self.event_requests.push_back(request.cid);
                Ok(Next::Hold)
            }
            admin::ABORT if !controller.is_discovery() => self.begin_abort(request, sqe),
            admin::SET_FEATURES | admin::KEEP_ALIVE => {
                self.follow_ups |= FollowUps::DEADLINE;
                // A new time-out counts from now on.
                if sqe.opcode == admin::SET_FEATURES
                    && SetFeatures::parse(sqe).fid == FeatureId::KEEP_ALIVE_TIMER
                {
                    controller.hot.arm(now);
                }
                let admin = self.admin_of(controller, now);
                let next = admin.begin(request, sqe);
                let left = admin.left;
                self.see_to(left);
                next
            }
            _ => self.admin_of(controller, now).begin(request, sqe),
        }
    }

    /// Something happened to a command of the admin queue. `None` when that was not
    /// asked for.
    #[cold]
    pub(super) fn step_admin(
        &mut self,
        now: Duration,
        request: &mut Request,
        event: Event<'_>,
    ) -> Option<Result<Next, Failure>> {
        let Role::Admin(controller) = &self.role else {
            return None;
        };
        let outlived = is_outlived(controller, request);
        Some(match (event, request.stage) {
            (Event::Executed { outcome, .. }, Stage::Protect { nsid, asked, .. }) => {
                self.protected(now, request, (nsid, asked), outcome)
            }
            (Event::Executed { .. } | Event::Kept { .. } | Event::Room(_), _) if outlived => {
                Ok(Next::Hold)
            }
            (Event::Executed { .. }, Stage::FlushAll { .. }) => self.shutdown_flushed(request),
            (Event::Kept { kept }, Stage::Keep { nsid, to, .. }) => {
                let kept = commands::kept(kept);
                kept.and_then(|next| self.protect_rest(now, request, next, (nsid, to)))
            }
            (Event::Room(out), Stage::Produce { page, .. }) => {
                self.produce(now, &page, out).map(|()| Next::Done(0))
            }
            _ => return None,
        })
    }

    /// What was written to a namespace before a host protected it is stable, or
    /// cannot be made so.
    fn protected(
        &mut self,
        now: Duration,
        request: &mut Request,
        (nsid, asked): (u32, Asked),
        outcome: Executed,
    ) -> Result<Next, Failure> {
        let Role::Admin(controller) = &self.role else {
            return Err(Status::INTERNAL_ERROR.into());
        };
        let (began, epoch) = (request.stage.epoch(), Epoch::of(controller));
        let admin = self.admin_of(controller, now);
        // Also after a reset: others may count on it.
        let mut next = admin.protected(request, (nsid, asked), outcome);
        if began == Some(epoch) {
            next = next.and_then(|next| admin.protect_rest(request, next, (nsid, asked.to)));
        } else {
            admin.left.keeping.set(None);
            next = Ok(Next::Hold);
        }
        let left = admin.left;
        request.stage.begin_in(epoch);
        self.see_to(left);
        next
    }

    /// That came of one namespace: others follow if all are to be protected.
    fn protect_rest(
        &mut self,
        now: Duration,
        request: &mut Request,
        next: Next,
        done: (u32, WriteProtection),
    ) -> Result<Next, Failure> {
        let Role::Admin(controller) = &self.role else {
            return Err(Status::INTERNAL_ERROR.into());
        };
        let epoch = Epoch::of(controller);
        let admin = self.admin_of(controller, now);
        let next = admin.protect_rest(request, next, done);
        let left = admin.left;
        request.stage.begin_in(epoch);
        self.see_to(left);
        next
    }

    /// Does what a command left to be done. All queues are polled only if their
    /// controllers were told something: a host that asks for what is so already would
    /// have every reactor look after all of them.
    fn see_to(&mut self, left: Left) {
        self.keeping = left.keeping.into_inner();
        if left.told.into_inner() {
            self.follow_ups |= FollowUps::POLL_ALL;
        }
    }

    pub(super) fn admin_of<'a>(&'a self, controller: &'a Controller, now: Duration) -> Admin<'a> {
        Admin {
            now,
            capsule_len: self.bounds.capsule,
            shared: &self.shared,
            controller,
            metrics_registry: self.meter.metrics_registry(),
            local: self.ends.local,
            left: Left::default(),
        }
    }

    fn produce(&mut self, now: Duration, page: &Page, out: &mut [u8]) -> Result<(), Failure> {
        let Role::Admin(controller) = &self.role else {
            return Err(Status::INTERNAL_ERROR.into());
        };
        let produced = self.admin_of(controller, now).produce(page, out);
        self.look_for_events();
        produced
    }
}

/// Whether the controller was reset since that admin command began. Base 2.1, 3.7.2:
/// "the controller stops processing any outstanding Admin or I/O commands", so that it
/// is not answered, and has no effect besides that which it had.
pub(super) fn is_outlived(controller: &Controller, request: &Request) -> bool {
    let began = request.stage.epoch();
    began.is_some_and(|began| began != Epoch::of(controller))
}
