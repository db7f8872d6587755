//! Cross-Controller Reset (NVMe Base 2.3, 5.4.3 and 8.3.3): a host that lost the path to one
//! of its controllers has another one of the same subsystem end it, and learns when nothing of
//! it can change media any more.

use std::sync::Arc;

use nvmeof_wire::admin::CrossControllerReset;
use nvmeof_wire::{Sqe, Status};

use super::{FollowUps, Queue, Role};
use crate::admin::CDW10;
use crate::controller::Controller;
use crate::controller::in_flight::InFlight;
use crate::controller::resets::PendingReset;
use crate::registry::Incarnation;
use crate::request::{Failure, Next};

/// First byte of CIU.
const CIU: u16 = 42;

impl Queue {
    /// Ends the controller that the command names. The command completes at once: with
    /// Immediate Reset Successful when nothing of that controller is in flight, else log page
    /// 1Eh and an event report when that is so.
    pub(super) fn cross_reset(&mut self, sqe: &Sqe) -> Result<Next, Failure> {
        let Role::Admin(controller) = &self.role else {
            return Err(Status::INTERNAL_ERROR.into());
        };
        let named = CrossControllerReset::parse(sqe);
        // The identifier may be that of a controller of this process by now, even its own.
        let (subnqn, cntlid) = (controller.subnqn(), controller.cntlid);
        let identity = controller.identity(&subnqn, 0).named(&named);
        if self
            .shared
            .incarnations
            .is_of_predecessor(named.cirn, &identity)
        {
            let icid = named.icid;
            self.remark(format!(
                "controller {icid} of a previous process reset by controller {cntlid} of the same \
                 host (Cross-Controller Reset): nothing of it is in flight"
            ));
            return Ok(Next::Done(CrossControllerReset::IMMEDIATE.into()));
        }
        if named.icid == controller.cntlid {
            return Err(Failure::field(CDW10));
        }
        // Only of the same host and subsystem. An incarnation that is not known any more is
        // refused: the identifier may be another controller's by now.
        let Some(incarnation) = self.shared.registry.incarnation(controller, &named) else {
            return self.reset_elsewhere(&named);
        };
        let in_flight = match &incarnation {
            Incarnation::Connected(impacted) => Arc::clone(&impacted.in_flight),
            Incarnation::Departed(in_flight) => Arc::clone(in_flight),
        };
        if let Incarnation::Departed(_) = incarnation
            && in_flight.is_quiet()
        {
            return Ok(Next::Done(CrossControllerReset::IMMEDIATE.into()));
        }
        let mut cold = controller.lock();
        let room = cold.resets.check_room();
        room.map_err(Failure::transient)?;
        if !in_flight.begin_reset() {
            return Err(Failure::transient(Status::CROSS_RESET_IN_PROGRESS));
        }
        // From here on its queues begin nothing.
        if let Incarnation::Connected(impacted) = &incarnation {
            impacted.hot.lose();
        }
        let pending = PendingReset::Local(in_flight);
        cold.resets.begin(named.icid, named.ciu, pending);
        controller.hot.set_resets(true);
        drop(cold);
        let (icid, cntlid) = (named.icid, controller.cntlid);
        self.remark(format!(
            "controller {icid} reset by controller {cntlid} of the same host (Cross-Controller \
             Reset)"
        ));
        self.follow_ups |= FollowUps::POLL_ALL;
        Ok(Next::Done(0))
    }

    /// Resets a controller of another gateway: the command completes at once, and the reset when
    /// that gateway can no longer execute what was sent to the controller.
    fn reset_elsewhere(&mut self, named: &CrossControllerReset) -> Result<Next, Failure> {
        let (Role::Admin(controller), Some(gateways)) =
            (&self.role, self.shared.other_gateways.get())
        else {
            return Err(Failure::field(CIU));
        };
        let mut cold = controller.lock();
        let room = cold.resets.check_room();
        room.map_err(Failure::transient)?;
        let reset = gateways.reset(&controller.subnqn(), named.icid);
        let reset = reset.ok_or(Failure::field(CIU))?;
        let pending = PendingReset::Remote(reset);
        cold.resets.begin(named.icid, named.ciu, pending);
        controller.hot.set_resets(true);
        drop(cold);
        let (icid, cntlid) = (named.icid, controller.cntlid);
        self.remark(format!(
            "Cross-Controller Reset of controller {icid} of another gateway, by controller \
             {cntlid} of the same host: waiting until that gateway is fenced"
        ));
        Ok(Next::Done(0))
    }

    /// Whether a Cross-Controller Reset waits for what it has in flight.
    #[must_use]
    pub fn is_reset(&self) -> bool {
        self.in_flight.as_ref().is_some_and(InFlight::is_awaited)
    }

    /// It ends, and backing stores have nothing of it any more.
    pub fn quiesced(&mut self) {
        if let Some(in_flight) = self.in_flight.take()
            && in_flight.release()
        {
            self.follow_ups |= FollowUps::POLL_ALL;
        }
    }
}

/// Completes resets of which nothing is in flight any more, and reports them.
pub(super) fn complete(controller: &Controller) {
    if !controller.hot.has_resets() {
        return;
    }
    let mut cold = controller.lock();
    if cold.resets.complete() {
        controller.raise(
            &mut cold,
            crate::controller::notices::CROSS_CONTROLLER_RESET,
        );
    }
    controller.hot.set_resets(cold.resets.is_pending());
}
