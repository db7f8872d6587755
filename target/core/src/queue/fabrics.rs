//! Fabrics commands other than Connect: properties and Disconnect (Base 2.1,
//! 6.4 to 6.6).

use std::sync::Arc;
use std::time::Duration;

use nvmeof_wire::fabrics::{FcType, PropertyAccess};
use nvmeof_wire::registers::{Cc, Property, PropertyValue, Vs};
use nvmeof_wire::{Sqe, Status};

use super::io::flush_next;
use super::{FollowUps, Queue, Role};
use crate::controller::{Controller, lifecycle};
use crate::request::{AfterFlush, Epoch, Failure, Next, Request, Stage};

/// First byte of OFST in Property Get and Set.
const OFST: u16 = 44;
/// Byte of ATTRIB in Property Get and Set.
const ATTRIB: u16 = 40;
/// Byte of FCTYPE.
const FCTYPE: u16 = 4;

impl Queue {
    /// A Fabrics command on a connected queue.
    pub(super) fn fabrics(
        &mut self,
        now: Duration,
        request: &mut Request,
        sqe: &Sqe,
    ) -> Result<Next, Failure> {
        match (FcType::of(sqe), &self.role) {
            (FcType::CONNECT, _) => Err(Status::COMMAND_SEQUENCE_ERROR.into()),
            (FcType::PROPERTY_GET, Role::Admin(controller)) => self.property_get(controller, sqe),
            (FcType::PROPERTY_SET, Role::Admin(controller)) => {
                let controller = Arc::clone(controller);
                self.property_set(now, &controller, request, sqe)
            }
            (FcType::AUTH_SEND | FcType::AUTH_RECEIVE, _) => {
                self.begin_authentication(request, sqe)
            }
            (FcType::DISCONNECT, Role::Io(_)) => {
                // Byte 40: record format.
                if sqe.cdw10.to_bytes().starts_with(&[0, 0]) {
                    self.note_activity(now);
                    return Ok(Next::DoneAndClose);
                }
                Err(Failure::from(Status::CONNECT_INCOMPATIBLE_FORMAT).at(ATTRIB))
            }
            // Base 2.1, 6.4: "if the Disconnect command is submitted on the
            // Admin Queue, then ... Invalid Queue Type".
            (FcType::DISCONNECT, _) => Err(Status::INVALID_QUEUE_TYPE.into()),
            (FcType::PROPERTY_GET | FcType::PROPERTY_SET, _) => {
                Err(Status::INVALID_QUEUE_TYPE.into())
            }
            _ => Err(Failure::field(FCTYPE)),
        }
    }

    fn property_get(&self, controller: &Controller, sqe: &Sqe) -> Result<Next, Failure> {
        let access = PropertyAccess::parse(sqe);
        let registers = controller.lock().registers;
        let value = match access.property {
            Property::CAP => {
                let discovery = controller.is_discovery();
                PropertyValue::Qword(lifecycle::cap(controller.queue_depth, discovery).0)
            }
            Property::VS => PropertyValue::Dword(Vs::V2_0.0),
            Property::CC => PropertyValue::Dword(registers.cc().0),
            Property::CSTS => PropertyValue::Dword(registers.csts().bits()),
            // CAP.NSSRS is 0, so NSSR reads as 0 as a reserved property does.
            Property::NSSR => PropertyValue::Dword(0),
            Property::CRTO => PropertyValue::Dword(lifecycle::CRTO),
            _ => return Err(Failure::field(OFST)),
        };
        check_size(&access, value)?;
        Ok(Next::Done(value.to_u64()))
    }

    fn property_set(
        &mut self,
        now: Duration,
        controller: &Arc<Controller>,
        request: &mut Request,
        sqe: &Sqe,
    ) -> Result<Next, Failure> {
        let access = PropertyAccess::parse(sqe);
        // Base 2.1, 6.6 and figure 35: of the properties that a fabrics host may write, only
        // CC is supported.
        if access.property != Property::CC {
            return Err(Failure::field(OFST));
        }
        check_size(&access, PropertyValue::Dword(0))?;
        let [a, b, c, d, ..] = access.value.to_le_bytes();
        let cc = u32::from_le_bytes([a, b, c, d]);
        // Base 2.1, 3.6.2: a normal shutdown flushes volatile caches first. Only writes of
        // this host matter, by any of its controllers: other hosts shut down by themselves,
        // and stores that this host did not write to do not delay it.
        let flush = controller.lock().registers.starts_shutdown(cc);
        if flush
            && let Some(namespace_view) = controller.namespace_view()
            && let Some(next) = flush_next(
                &namespace_view,
                request,
                0,
                AfterFlush::WriteCc {
                    cc,
                    epoch: Epoch::of(controller),
                },
            )
        {
            return Ok(next);
        }
        // Base 2.1, 3.9: the Keep Alive Timer starts when the controller is
        // enabled.
        if Cc(cc).enabled() && !controller.lock().registers.is_enabled() {
            controller.hot.arm(now);
            controller.lock().features.clock.at = now;
            self.follow_ups |= FollowUps::DEADLINE;
        }
        self.write_cc(controller, cc);
        Ok(Next::Done(0))
    }

    /// A namespace has been flushed, or the flush failed: a failure does not prevent the
    /// shutdown.
    pub(super) fn shutdown_flushed(&mut self, request: &mut Request) -> Result<Next, Failure> {
        let (Role::Admin(controller), Stage::FlushAll { from, then, .. }) =
            (&self.role, request.stage)
        else {
            return Err(Status::INTERNAL_ERROR.into());
        };
        let controller = Arc::clone(controller);
        if let Some(namespace_view) = controller.namespace_view()
            && let Some(next) = flush_next(&namespace_view, request, from, then)
        {
            return Ok(next);
        }
        if let AfterFlush::WriteCc { cc, .. } = then {
            self.write_cc(&controller, cc);
        }
        Ok(Next::Done(0))
    }

    fn write_cc(&mut self, controller: &Controller, cc: u32) {
        let reset = controller.write_cc(cc, &self.shared.incarnations);
        if let Some(calls) = reset {
            // Held commands belong to the time before the reset.
            self.event_requests.clear();
            self.completions.clear();
            self.request_calls(calls);
        }
        let registers = controller.lock().registers;
        if registers.csts().contains(nvmeof_wire::registers::Csts::CFS) {
            self.remark(format!(
                "CC was set to {cc:#010x}, which is invalid: expected 4 KiB pages, round robin, \
                 the NVM command set or all, 64-byte and 16-byte queue entries"
            ));
        }
    }
}

/// Base 2.1, 6.5: ATTRIB has the size of the property.
fn check_size(access: &PropertyAccess, value: PropertyValue) -> Result<(), Failure> {
    let eight = matches!(value, PropertyValue::Qword(_));
    if access.bad_size || access.eight_bytes != eight {
        return Err(Failure::field(ATTRIB));
    }
    Ok(())
}
