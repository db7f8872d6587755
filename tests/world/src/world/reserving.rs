//! Reservations of hosts: their commands, the saves of the target, and the end of a run.

use std::time::Duration;

use nvmeof_initiator::Error;
use nvmeof_initiator::polled::Done;
use nvmeof_initiator_core::ReservationReport;
use nvmeof_target_core::PendingSave;
use nvmeof_target_engine::Mail;
use nvmeof_wire::Status;

use super::keeper::{self, Keeper};
use super::{SETTLED_AFTER, World};
use crate::oracle::{Ending, OpId, Wrong};
use crate::plan::ReservationPlan;
use crate::reservations::{Answer, Refusal, Request, Reservations, Rights};
use crate::workload::{Ask, Kind, Met, Pending, Presence, reserving};

/// Requests per disk that may be applied in any order.
const MOST_OUTSTANDING: usize = 5;

/// Reservations of one run.
pub(super) struct Reserving {
    plan: ReservationPlan,
    known: Reservations,
    pub(super) keeper: Keeper,
    /// Removals by an administrator at the end: disk, number, and outcome.
    clears: Vec<(usize, OpId, PendingSave)>,
}

impl Reserving {
    pub(super) fn new(plan: ReservationPlan, disks: usize, hosts: usize, seed: u64) -> Self {
        Self {
            keeper: Keeper::new(&plan, seed),
            known: Reservations::new(disks, hosts),
            plan,
            clears: Vec::new(),
        }
    }
}

impl World {
    /// Runs the keeper. Returns whether it did something.
    pub(super) fn keep_settings(&mut self, now: Duration) -> Result<bool, Wrong> {
        let mut any = false;
        while let Some(reserving) = &mut self.reserving {
            if let Some(ended) = reserving.keeper.take_due(now) {
                let is_saved = ended.is_saved;
                match is_saved {
                    true => reserving.known.saved(&ended.save, &mut self.oracle)?,
                    false => reserving.known.save_failed(&ended.save, &mut self.oracle),
                }
                ended.finish();
                self.reactors.send(Mail::POLL);
                self.say_reservations(is_saved);
            } else if self.reactors.run()
                && let Some(nsid) = reserving.keeper.begin(&self.target, now)
            {
                reserving.known.save_begins(nsid);
            } else {
                break;
            }
            any = true;
        }
        Ok(any)
    }

    fn say_reservations(&mut self, is_saved: bool) {
        let Some(reserving) = &self.reserving else {
            return;
        };
        let all = 0..self.plan.disks.len();
        let all: Vec<_> = all.map(|ns| reserving.known.present(ns).clone()).collect();
        match is_saved {
            true => self.say(format_args!("reservations are saved: {all:?}")),
            false => self.say(format_args!(
                "reservations were not saved, as before: {all:?}"
            )),
        }
    }

    /// When the save in progress ends.
    pub(super) fn next_save_at(&self) -> Option<Duration> {
        self.reserving.as_ref()?.keeper.next_at()
    }

    /// Whether there are requests without a response.
    pub(super) fn has_lost_requests(&self) -> bool {
        let reserving = self.reserving.as_ref();
        reserving.is_some_and(|reserving| reserving.known.is_unsettled())
    }

    /// Requests without a response cannot be applied any more once the target has released their
    /// queues and saves nothing.
    pub(super) fn settle_requests(&mut self, now: Duration) {
        let settled = now >= self.stable.0 + SETTLED_AFTER
            && self.draining.is_none()
            && self.has_only_settled_queue_pairs();
        if let Some(reserving) = &mut self.reserving
            && settled
            && reserving.known.is_unsettled()
            && reserving.keeper.is_idle()
        {
            reserving.known.settle();
        }
    }

    /// Checks that no backing store executes a write of an excluded host. Otherwise only a later
    /// read would show it.
    pub(super) fn check_excluded(&self) -> Result<(), Wrong> {
        if self.reserving.is_none() {
            return Ok(());
        }
        let writes = self.disks.writes_in_flight();
        match writes.iter().find(|id| self.oracle.is_excluded(**id)) {
            None => Ok(()),
            Some(id) => Err(Wrong(format!(
                "a host is excluded by a reservation, but its call {id} is still executed"
            ))),
        }
    }

    /// The target lost power.
    pub(super) fn lose_reservations(&mut self) -> Result<(), Wrong> {
        let Some(reserving) = &mut self.reserving else {
            return Ok(());
        };
        if let Some(save) = reserving.keeper.crash() {
            reserving.known.saved(&save, &mut self.oracle)?;
        }
        reserving.known.crash(&mut self.oracle);
        self.say_reservations(true);
        Ok(())
    }

    /// Draws a reservation command of `host`, for some of its calls.
    pub(super) fn draw_reservation(&mut self, host: usize) -> Option<Ask> {
        let reserving = self.reserving.as_ref()?;
        let dice = &mut self.hosts[host].dice;
        if !dice.happens(reserving.plan.calls) {
            return None;
        }
        let ns = dice.below(self.plan.disks.len());
        if reserving.known.outstanding(ns) >= MOST_OUTSTANDING {
            return None;
        }
        let state = reserving.known.present(ns);
        Some(reserving::draw(
            dice,
            host,
            self.plan.hosts.len(),
            ns,
            state,
        ))
    }

    /// A call was sent.
    pub(super) fn request_sent(&mut self, id: OpId, pending: &Pending) {
        if let (Kind::Reserve(command), Some(reserving)) = (pending.kind, &mut self.reserving) {
            let request = Request::Command(pending.host, command);
            reserving.known.begin(pending.ns, id, request);
        }
    }

    /// The host of a call has crashed.
    pub(super) fn request_lost(&mut self, id: OpId, pending: &Pending) -> Result<(), Wrong> {
        if let (Kind::Reserve(_), Some(reserving)) = (pending.kind, &mut self.reserving) {
            let at = (pending.ns, id);
            reserving.known.end(at, Answer::Lost, &mut self.oracle)?;
        }
        Ok(())
    }

    /// What a call could do.
    pub(super) fn rights(&self, id: OpId, pending: &Pending) -> Rights {
        let Some(reserving) = &self.reserving else {
            return Rights::ALL;
        };
        let access = reserving::access_of(pending.kind);
        reserving.known.rights(pending.ns, pending.host, access, id)
    }

    /// A call of [`reserving`] ended.
    pub(super) fn reserved(
        &mut self,
        id: OpId,
        pending: &Pending,
        done: &Done,
        met: Met,
    ) -> Result<(), Wrong> {
        crate::workload::check_buffer(id, pending, done)?;
        let answer = answer_of(done, met)
            .ok_or_else(|| Wrong(format!("request {id}: unexpected {:?}", done.result)))?;
        self.oracle.end(id, Ending::Failed)?;
        let Some(reserving) = &mut self.reserving else {
            return Err(Wrong(format!("request {id} was never made")));
        };
        match (pending.kind, answer) {
            (Kind::Reserve(_), _) => {
                self.reservations_changed += u64::from(answer == Answer::Done);
                let at = (pending.ns, id);
                reserving.known.end(at, answer, &mut self.oracle)
            }
            (_, Answer::Done) => {
                let report = done.buf.as_deref().and_then(ReservationReport::parse);
                let report = report.ok_or_else(|| Wrong("no report".to_owned()))?;
                reserving.known.reported(pending.ns, id, &report)
            }
            (_, Answer::Lost | Answer::NotReached) => Ok(()),
            (_, answer) => Err(Wrong(format!("report {id} ended with {answer:?}"))),
        }
    }

    /// Removes all reservations, as an administrator does, so that every host may read everything.
    /// Returns whether there are none.
    pub(super) fn clear_reservations(&mut self) -> Result<bool, Wrong> {
        let Some(reserving) = &mut self.reserving else {
            return Ok(true);
        };
        reserving.keeper.behave();
        if !reserving.keeper.is_idle() || reserving.known.is_unsettled() {
            return Ok(false);
        }
        for (ns, id, save) in std::mem::take(&mut reserving.clears) {
            match save.outcome() {
                Some(Ok(())) => {
                    reserving
                        .known
                        .end((ns, id), Answer::Done, &mut self.oracle)?;
                }
                // One that was requested before saves stopped failing.
                Some(Err(_)) => {
                    let answer = Answer::NotSaved;
                    reserving.known.end((ns, id), answer, &mut self.oracle)?;
                }
                None => return Err(Wrong(format!("the keeper is idle, but {save:?}"))),
            }
        }
        let mut any = false;
        for ns in 0..self.plan.disks.len() {
            if reserving.known.present(ns).is_clear() {
                continue;
            }
            any = true;
            let id = self.oracle.tick();
            reserving.known.begin(ns, id, Request::Clear);
            let nsid = u32::try_from(ns).unwrap() + 1;
            let save = self
                .target
                .clear_reservations(&keeper::subsystem(), nsid)
                .ok_or_else(|| Wrong(format!("disk {ns} has no registrants to remove")))?;
            reserving.clears.push((ns, id, save));
        }
        if any {
            self.say(format_args!("an administrator removes all reservations"));
        }
        Ok(!any)
    }
}

/// How a request ended; `None`: as none may.
fn answer_of(done: &Done, met: Met) -> Option<Answer> {
    let error = match &done.result {
        Ok(_) if [met.there, met.reached].contains(&Presence::Never) => return None,
        Ok(_) => return Some(Answer::Done),
        Err(Error::Lost(_)) => return Some(Answer::Lost),
        Err(Error::Command(error)) => error,
        Err(_) => return None,
    };
    match error.status.kind() {
        Status::INVALID_FIELD if met.there != Presence::Always => Some(Answer::NotReached),
        Status::ANA_INACCESSIBLE if met.reached != Presence::Always => Some(Answer::NotReached),
        Status::INVALID_FIELD => Some(Answer::Refused(Refusal::Field)),
        Status::RESERVATION_CONFLICT => Some(Answer::Refused(Refusal::Conflict)),
        Status::INTERNAL_ERROR => Some(Answer::NotSaved),
        _ => None,
    }
}
