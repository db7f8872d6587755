//! Reservation commands: hosts register, and take the reservation from each other.

use std::time::Duration;

use nvmeof_initiator::polled::Work;
use nvmeof_initiator_core::reservation::report_len;
use nvmeof_initiator_core::{
    ReservationAcquire, ReservationCommand, ReservationRegister, ReservationRelease,
};
use nvmeof_memory::Buf;
use nvmeof_rdma_layers::{Dice, OneIn};
use nvmeof_wire::reservation::{PersistChange, ReservationType};

use super::{Ask, Kind, Pending, Prepared};
use crate::oracle::Oracle;
use crate::reservations::{Access, Held, State};

/// The key of some registrants is the same, so that one command preempts several.
const SHARED_KEY: u64 = 99;
/// No host has it.
const WRONG_KEY: u64 = 7777;
/// Registrants of which a report has room for all.
const REGISTRANTS: u16 = 8;

/// The access of a kind of call that reservations may deny.
pub(crate) fn access_of(kind: Kind) -> Access {
    match kind {
        Kind::Read | Kind::Compare | Kind::Beyond => Access::Read,
        Kind::Scratch(kind) if !kind.changes() => Access::Read,
        _ => Access::Write,
    }
}

/// Draws a command of `host`, of which it expects a success mostly.
pub(crate) fn draw(dice: &mut Dice, host: usize, hosts: usize, ns: usize, state: &State) -> Ask {
    let kind = match dice.below(10) {
        0 => Kind::Report,
        1 => Kind::Reserve(any(dice, host, hosts, state)),
        _ => Kind::Reserve(useful(dice, host, hosts, state)),
    };
    Ask {
        kind,
        ns,
        ranges: std::iter::once(0..0).collect(),
        spoil: None,
    }
}

/// A command that makes sense in this state.
fn useful(dice: &mut Dice, host: usize, hosts: usize, state: &State) -> ReservationCommand {
    let Some(key) = state.key(host) else {
        return register(dice, host).into();
    };
    let other = state.key(dice.below(hosts)).unwrap_or(key);
    let kind = any_kind(dice);
    let preempt = |dice: &mut Dice, preempted| match dice.below(2) {
        0 => ReservationAcquire::preempt(kind, key, preempted),
        _ => ReservationAcquire::preempt_and_abort(kind, key, preempted),
    };
    match (state.held(), dice.below(20)) {
        (_, 0) => unregister(dice, key).into(),
        (_, 1) => replace(dice, host, key).into(),
        (_, 2) => ReservationRelease::clear(key).into(),
        (_, 3 | 4) => preempt(dice, other).into(),
        (None, _) => ReservationAcquire::acquire(kind, key).into(),
        (Some(Held { kind, .. }), 5..15) if state.is_holder(host) => {
            ReservationRelease::release(kind, key).into()
        }
        (Some(Held { kind, .. }), 15) if state.is_holder(host) => {
            ReservationAcquire::acquire(kind, key).into()
        }
        (Some(Held { holder: None, .. }), _) => preempt(dice, 0).into(),
        (
            Some(Held {
                holder: Some(holder),
                ..
            }),
            _,
        ) => preempt(dice, state.key(holder).unwrap_or(other)).into(),
    }
}

/// A command that may be refused.
fn any(dice: &mut Dice, host: usize, hosts: usize, state: &State) -> ReservationCommand {
    let mut key = || match dice.below(3) {
        0 => WRONG_KEY,
        1 => state.key(host).unwrap_or(WRONG_KEY),
        _ => state.key(dice.below(hosts)).unwrap_or_default(),
    };
    let (key, preempted) = (key(), key());
    let kind = any_kind(dice);
    match dice.below(8) {
        0 => register(dice, host).into(),
        1 => unregister(dice, key).into(),
        2 => replace(dice, host, key).into(),
        3 => ReservationAcquire::acquire(kind, key).into(),
        4 => ReservationAcquire::preempt(kind, key, preempted).into(),
        5 => ReservationAcquire::preempt_and_abort(kind, key, preempted).into(),
        6 => ReservationRelease::release(kind, key).into(),
        _ => ReservationRelease::clear(key).into(),
    }
}

fn any_kind(dice: &mut Dice) -> ReservationType {
    ReservationType::ALL[dice.below(6)]
}

fn new_key(dice: &mut Dice, host: usize) -> u64 {
    match dice.below(6) {
        0 => SHARED_KEY,
        1 => 100 + host as u64,
        _ => 1 + host as u64,
    }
}

fn with_flags(dice: &mut Dice, it: ReservationRegister) -> ReservationRegister {
    let it = it.with_persistence(match dice.below(12) {
        0 => PersistChange::CLEAR,
        1..5 => PersistChange::KEEP,
        _ => PersistChange::SET,
    });
    match dice.happens(OneIn(4)) {
        true => it.ignoring_key(),
        false => it,
    }
}

fn register(dice: &mut Dice, host: usize) -> ReservationRegister {
    let key = new_key(dice, host);
    with_flags(dice, ReservationRegister::register(key))
}

fn unregister(dice: &mut Dice, key: u64) -> ReservationRegister {
    with_flags(dice, ReservationRegister::unregister(key))
}

fn replace(dice: &mut Dice, host: usize, key: u64) -> ReservationRegister {
    let new = new_key(dice, host);
    with_flags(dice, ReservationRegister::replace(key, new))
}

/// Makes it ready.
pub(super) fn prepare(
    ask: &Ask,
    host: usize,
    oracle: &mut Oracle,
    take: impl FnOnce(usize) -> Option<Buf>,
    now: Duration,
) -> Option<Prepared> {
    let nsid = u32::try_from(ask.ns).unwrap() + 1;
    let (buf, work) = match ask.kind {
        Kind::Reserve(command) => {
            let mut buf = take(command.payload_len())?;
            let work = Work::reservation(nsid, &command, &mut buf).unwrap();
            (buf, work)
        }
        _ => {
            let mut buf = take(report_len(REGISTRANTS))?;
            let work = Work::reservation_report(nsid, &mut buf).unwrap();
            (buf, work)
        }
    };
    oracle.sent_by(Some(host));
    let pending = Pending {
        host,
        kind: ask.kind,
        ns: ask.ns,
        range: 0..0,
        sent: Vec::new(),
        has_buf: true,
        since: now,
    };
    Some(Prepared {
        id: oracle.begin_nothing(ask.ns),
        work,
        buf: Some(buf),
        pending,
    })
}
