//! Admin queues: commands, held requests, Keep Alive.

use std::sync::Arc;
use std::time::Duration;

use nvmeof_wire::admin::SetFeatures;
use nvmeof_wire::features::{FeatureId, WriteProtection};
use nvmeof_wire::opcode::{self, admin};
use nvmeof_wire::{Sqe, Status};

use super::{FollowUps, Queue, Role, cross_reset};
use crate::admin::{self as commands, Admin, Deferred};
use crate::controller::Controller;
use crate::controller::notices::MAX_REQUESTS;
use crate::protection::ProtectionRequest;
use crate::request::{Epoch, Failure, Next, Page, Request, Stage};
use crate::{CloseCause, Event, Executed, Order, Response};

impl Queue {
    /// Its connection ends. After an admin queue ends, its I/O queues begin nothing more.
    pub fn ends(&mut self) {
        if let Role::Admin(controller) = &self.role
            && controller.hot.lose()
        {
            let calls = controller.io_calls();
            self.request_calls(calls);
        }
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
            let timeout = controller.keep_alive_timeout().unwrap_or_default();
            let kato_ms = u32::try_from(timeout.as_millis()).unwrap_or(u32::MAX);
            // Base 2.1, 3.9: on expiry the controller sets CSTS.CFS, stops
            // processing commands and breaks the association. It also records Keep Alive
            // Timeout Expired in the Error Information log, which is omitted: the log ends
            // with this dynamic controller, so that no host could read it. The log of the
            // target has a line.
            controller.lock().registers.fatal();
            self.lost_host = true;
            self.leave();
            return self.ordered(CloseCause::KeepAlive { kato_ms });
        }
        self.expire_authentication(now);
        cross_reset::complete(controller);
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

    /// When the next timeout or event is due.
    pub(super) fn admin_deadline(&self, controller: &Controller) -> Option<Duration> {
        let expires = controller.expires(self.shared.limits.traffic_keep_alive);
        let wants_events = !self.event_requests.is_empty();
        let event = wants_events.then(|| controller.event_due()).flatten();
        let authentication = self.authentication.as_ref();
        let step = authentication.and_then(|authentication| authentication.next_deadline());
        [expires, event, step].into_iter().flatten().min()
    }

    /// A command may have enabled a pending event.
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
            admin::CROSS_CONTROLLER_RESET if !controller.is_discovery() => self.cross_reset(sqe),
            admin::SET_FEATURES | admin::KEEP_ALIVE => {
                self.follow_ups |= FollowUps::DEADLINE;
                // A new timeout starts now.
                if sqe.opcode == admin::SET_FEATURES
                    && SetFeatures::parse(sqe).fid == FeatureId::KEEP_ALIVE_TIMER
                {
                    controller.hot.arm(now);
                }
                let admin = self.admin_of(controller, now);
                let next = admin.begin(request, sqe);
                let deferred = admin.deferred;
                self.run_deferred(deferred);
                next
            }
            _ => self.admin_of(controller, now).begin(request, sqe),
        }
    }

    /// Handles an event of an admin command. `None` if the event was not requested.
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
        let outlived = was_reset_since(controller, request);
        Some(match (event, request.stage) {
            (Event::Executed { outcome, .. }, Stage::Protect { nsid, asked, .. }) => {
                self.protected(now, request, (nsid, asked), outcome)
            }
            (Event::Executed { .. } | Event::Saved { .. } | Event::Buffer(_), _) if outlived => {
                Ok(Next::Hold)
            }
            (Event::Executed { .. }, Stage::FlushAll { .. }) => self.shutdown_flushed(request),
            (Event::Saved { saved }, Stage::Keep { protects, .. }) => {
                let next = commands::kept(saved);
                match protects {
                    Some(its) => next.and_then(|next| self.protect_rest(now, request, next, its)),
                    None => next,
                }
            }
            (Event::Buffer(out), Stage::Produce { page, .. }) => {
                self.produce(now, &page, out).map(|()| Next::Done(0))
            }
            _ => return None,
        })
    }

    /// Writes before the protection of a namespace are stable, or cannot be made so.
    fn protected(
        &mut self,
        now: Duration,
        request: &mut Request,
        (nsid, asked): (u32, ProtectionRequest),
        outcome: Executed,
    ) -> Result<Next, Failure> {
        let Role::Admin(controller) = &self.role else {
            return Err(Status::INTERNAL_ERROR.into());
        };
        let (began, epoch) = (request.stage.epoch(), Epoch::of(controller));
        let admin = self.admin_of(controller, now);
        // Also after a reset: other requests may depend on it.
        let mut next = admin.protected(request, (nsid, asked), outcome);
        if began == Some(epoch) {
            next = next.and_then(|next| admin.protect_rest(request, next, (nsid, asked.to)));
        } else {
            admin.deferred.keeping.set(None);
            next = Ok(Next::Hold);
        }
        let deferred = admin.deferred;
        request.stage.begin_in(epoch);
        self.run_deferred(deferred);
        next
    }

    /// Continues after one namespace: others follow if all are to be protected.
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
        let deferred = admin.deferred;
        request.stage.begin_in(epoch);
        self.run_deferred(deferred);
        next
    }

    /// Does the deferred work of a command. All queues are polled only if controllers were
    /// notified: otherwise a host could make every reactor poll with requests that change
    /// nothing.
    fn run_deferred(&mut self, deferred: Deferred) {
        self.keeping = deferred.keeping.into_inner();
        if deferred.notified.into_inner() {
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
            local: self.endpoints.local,
            deferred: Deferred::default(),
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

/// Whether the controller was reset since this admin command began. Base 2.1, 3.7.2:
/// "the controller stops processing any outstanding Admin or I/O commands": the command
/// gets no response and has no further effect.
pub(super) fn was_reset_since(controller: &Controller, request: &Request) -> bool {
    let began = request.stage.epoch();
    began.is_some_and(|began| began != Epoch::of(controller))
}
