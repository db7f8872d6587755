//! The reservation commands (Base 2.1, 7.5 to 7.8): their fields, their data, and their steps.
//!
//! ```text
//!  data ──► the change is saved ──► in force ──► accesses that it ends have ended ──► response
//! ```

use nvmeof_target_reservations::{Change, Refused, Reservations, Rules};
use nvmeof_wire::reservation::{Keys, Report};
use nvmeof_wire::{Sqe, Status};
use zerocopy::FromBytes;
use zerocopy::little_endian::U64;

use super::io::Joined;
use crate::live::NotReserved;
use crate::persist::PendingSave;
use crate::request::{
    Failure, Next, Request, ReservationCommand, Reserving, ReservingStep, Stage, bit,
};
use crate::shared::Shared;
use crate::{IoKind, IoOp, Limit};

/// First byte of the action and the flags.
const CDW10: u16 = 40;
/// EDS: bit 0 of dword 11.
const EDS: u16 = bit(44, 0);

impl Joined {
    pub(super) fn begin_reservation(
        &self,
        request: &mut Request,
        sqe: &Sqe,
    ) -> Result<Next, Failure> {
        let nsid = sqe.nsid.get();
        let store = self.namespace(nsid)?.store;
        let Some(command) = ReservationCommand::parse(sqe) else {
            return report(request, sqe, self.max_transfer());
        };
        let len = u32::try_from(command.data_len()).unwrap_or(u32::MAX);
        // Linux sends 16 bytes for each of them.
        request.takes_at_most(len)?;
        let step = ReservingStep::Data(command);
        request.stage = Stage::Reserve(Reserving { nsid, store, step });
        Ok(Next::Data)
    }

    /// The data have arrived. Returns what the request waits for.
    pub(super) fn reserve(
        &self,
        shared: &Shared,
        request: &mut Request,
        reserving: Reserving,
        data: &[u8],
    ) -> Result<(Next, Option<PendingSave>), Failure> {
        let ReservingStep::Data(command) = reserving.step else {
            return Err(Status::INTERNAL_ERROR.into());
        };
        // The namespace may be another one by now, or not be accessible any more.
        let namespace = self.namespace(reserving.nsid)?;
        let controller = self.controller();
        let host = (controller.hostid, controller.hostnqn);
        let limits = &shared.limits;
        let rules = Rules {
            most_registrants: limits.registrants,
            replace_with_zero_unregisters: limits.zero_key_unregisters,
        };
        let change = |present: &Reservations| change(present, host.0, command, data, &rules);
        let granted = self
            .live()
            .reserve(&shared.save_queue, namespace.nsid, host, change);
        let granted = granted.map_err(|why| match why {
            NotReserved::Now(_) => Failure::not_ready(),
            NotReserved::Refused(refused) => {
                if refused == Refused::Full {
                    shared.limit_counters.add(Limit::Registrants);
                }
                failure_of(refused)
            }
        })?;
        let step = ReservingStep::Save {
            reads: granted.ends.reads,
            writes: granted.ends.writes,
        };
        let store = namespace.store;
        let reserving = Reserving {
            step,
            store,
            ..reserving
        };
        request.stage = Stage::Reserve(reserving);
        if granted.pending.is_none() {
            return Ok((saved(request, reserving, true)?, None));
        }
        Ok((Next::Keep, Some(granted.pending)))
    }
}

impl Joined {
    /// A buffer for a report, of which `out` may be the beginning.
    #[cold]
    pub(super) fn report(&mut self, nsid: u32, out: &mut [u8]) -> Result<Next, Failure> {
        self.refresh_view();
        let namespace = self.namespace(nsid)?;
        let none = Reservations::default();
        let its = self.namespace_view().reservations().of(namespace);
        let report = its.unwrap_or(&none).report();
        let padded = report.iter().chain(std::iter::repeat(&0));
        for (to, from) in out.iter_mut().zip(padded) {
            *to = *from;
        }
        Ok(Next::Done(0))
    }
}

/// The save has ended.
#[cold]
pub(super) fn saved(
    request: &mut Request,
    reserving: Reserving,
    saved: bool,
) -> Result<Next, Failure> {
    let ReservingStep::Save { reads, writes } = reserving.step else {
        return Err(Status::INTERNAL_ERROR.into());
    };
    if !saved {
        // Nothing changed.
        return Err(Failure::transient(Status::INTERNAL_ERROR));
    }
    if !reads && !writes {
        return Ok(Next::Done(0));
    }
    let step = ReservingStep::Commands;
    request.stage = Stage::Reserve(Reserving { step, ..reserving });
    Ok(Next::Execute(IoOp {
        kind: IoKind::Await { reads },
        ..IoOp::flush(reserving.store)
    }))
}

fn change(
    present: &Reservations,
    host: [u8; 16],
    command: ReservationCommand,
    data: &[u8],
    rules: &Rules,
) -> Result<Change, Refused> {
    let keys = || {
        let keys = Keys::read_from_prefix(data).map(|(keys, _)| keys);
        keys.map_or((0, 0), |keys| (keys.current.get(), keys.other.get()))
    };
    match command {
        ReservationCommand::Register(command) => present.register(host, &command, keys(), rules),
        ReservationCommand::Acquire(command) => present.acquire(host, &command, keys()),
        ReservationCommand::Release(command) => {
            let key = U64::read_from_prefix(data).map_or(0, |(key, _)| key.get());
            present.release(host, &command, key)
        }
    }
}

fn failure_of(refused: Refused) -> Failure {
    let failure = Failure::from(refused.status());
    match refused {
        Refused::Field(_) => failure.at(CDW10),
        Refused::Conflict | Refused::Full => failure,
    }
}

/// Base 2.1, 7.8: the format without EDS has 64-bit host identifiers. Hosts on fabrics have
/// 128-bit ones, so that it is refused with Host Identifier Inconsistent Format. Linux then
/// asks for the other one.
fn report(request: &mut Request, sqe: &Sqe, most: u32) -> Result<Next, Failure> {
    let command = Report::parse(sqe);
    if !command.is_extended {
        return Err(Failure::from(Status::HOST_ID_INCONSISTENT).at(EDS));
    }
    let len = u32::try_from(command.len).ok().filter(|len| *len <= most);
    let len = len.ok_or(Failure::field(CDW10))?;
    request.gives(len)?;
    request.stage = Stage::Report { nsid: command.nsid };
    Ok(Next::Produce(len))
}
