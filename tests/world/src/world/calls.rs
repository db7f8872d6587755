//! Calls of hosts, and checks of their results.

use std::time::Duration;

use nvmeof_initiator::polled::Done;
use nvmeof_initiator::{Error, LostCause};
use nvmeof_rdma::{CloseReason, Refused};
use nvmeof_wire::Status;

use super::{Phase, World};
use crate::oracle::Wrong;
use crate::workload::{self, Kind, Prepared};

impl World {
    /// Polls one host: handles results, makes calls.
    pub(super) fn poll_host(&mut self, at: usize, now: Duration) -> Result<bool, Wrong> {
        let mut done = std::mem::take(&mut self.done);
        let changes = self.hosts[at].changes;
        let progress = self.hosts[at].poll(now, &mut done);
        for call in done.drain(..) {
            self.call_ended(&call)?;
        }
        self.done = done;
        let mut progress = progress.map_err(Wrong)?;
        if let Some(refusal) = self.hosts[at].refusal.take() {
            return Err(Wrong(format!("host {at} has its key, but {refusal}")));
        }
        if self.hosts[at].changes != changes {
            let state = self.hosts[at].phase();
            let why = self
                .medium
                .without_place(&std::mem::take(&mut self.hosts[at].why));
            let why = without_addresses(&why);
            self.say(format_args!("host {at} is {state} {why}"));
            self.check_lost_host(at, &why)?;
            self.connected_after_losses(at);
        }
        if self.hosts[at].is_up() {
            self.up_at[at] = now;
        }
        if self.phase == Phase::Work {
            progress |= self.make_calls(at, now)?;
        }
        Ok(progress)
    }

    fn make_calls(&mut self, at: usize, now: Duration) -> Result<bool, Wrong> {
        let mut any = false;
        while now >= self.hosts[at].stalled_until
            && self.hosts[at].is_up()
            && self.made[at] < self.hosts[at].shape.calls
            && self.in_flight(at) < self.hosts[at].shape.at_once
        {
            let ask = self.draw_reservation(at);
            let host = &mut self.hosts[at];
            let ask = ask.unwrap_or_else(|| workload::draw(&mut host.dice, &self.plan.disks));
            let shape = &self.plan.disks[ask.ns];
            let take = |len| host.buffers.take(len);
            let prepared = workload::prepare(ask, at, shape, &mut self.oracle, take, now);
            let Some(prepared) = prepared else {
                break;
            };
            if !self.submit(prepared, now)? {
                break;
            }
            self.made[at] += 1;
            any = true;
        }
        Ok(any)
    }

    pub(super) fn in_flight(&self, host: usize) -> usize {
        self.calls.values().filter(|call| call.host == host).count()
    }

    /// Submits one call on any queue. Returns false if it was refused.
    pub(super) fn submit(&mut self, prepared: Prepared, now: Duration) -> Result<bool, Wrong> {
        let Prepared {
            id,
            work,
            buf,
            pending,
        } = prepared;
        let len = buf.as_ref().map(|buf| buf.len());
        let host = &mut self.hosts[pending.host];
        let queue = host.dice.below(host.queues());
        match host.submit(queue, work, buf, id, now) {
            Ok(()) => {
                let (host, kind, ns) = (pending.host, pending.kind, pending.ns);
                let range = pending.range.clone();
                self.say(format_args!(
                    "host {host} queue {queue} call {id}: {kind:?} disk {ns} blocks {range:?}"
                ));
                self.request_sent(id, &pending);
                self.calls.insert(id, pending);
                Ok(true)
            }
            Err(Refused { why, back }) => {
                workload::check_refusal(&why)?;
                if back.buf.as_ref().map(|buf| buf.len()) != len || back.user != id {
                    return Err(Wrong(format!(
                        "call {id} was refused and returned with changes"
                    )));
                }
                self.oracle.cancel(id);
                self.say(format_args!("call {id} refused: {why}"));
                Ok(false)
            }
        }
    }

    pub(super) fn look_for_losses(&mut self, ns: usize) {
        if self.disks.lost(ns) > 0 {
            self.oracle.lose(ns);
        }
    }

    fn call_ended(&mut self, done: &Done) -> Result<(), Wrong> {
        let id = done.user;
        let Some(pending) = self.calls.remove(&id) else {
            return Err(Wrong(format!(
                "call {id} completed twice or was never made"
            )));
        };
        match &done.result {
            Ok(_) => self.say(format_args!("call {id} completed")),
            Err(error) => {
                let error = without_addresses(&self.medium.without_place(&error.to_string()));
                self.say(format_args!("call {id} failed: {error}"));
            }
        }
        self.ended += 1;
        self.check_loss(id, done)?;
        let block = self.plan.disks[pending.ns].block_size;
        let port = super::port_of(&self.plan, pending.host);
        let mut met = self.away.met(pending.ns, port, pending.since);
        if let Kind::Reserve(_) | Kind::Report = pending.kind {
            let checked = self.reserved(id, &pending, done, met);
            return checked.map_err(|Wrong(what)| Wrong(format!("{what} ({pending:?})")));
        }
        met.rights = self.rights(id, &pending);
        self.count_denied(done);
        self.look_for_losses(pending.ns);
        let checked = workload::check(
            id,
            &pending,
            done,
            (block, met),
            &mut self.oracle,
            &mut self.errors,
        );
        if done.result.is_ok() {
            self.piece_verified(pending.ns, pending.range.end);
        }
        checked.map_err(|Wrong(what)| Wrong(format!("{what} ({pending:?})")))
    }
}

impl World {
    fn count_denied(&mut self, done: &Done) {
        if let Err(Error::Command(error)) = &done.result
            && error.status.kind() == Status::RESERVATION_CONFLICT
        {
            self.denied += 1;
        }
    }

    /// Without faults, no host that proves its key loses its connections, whatever imposters do.
    fn check_lost_host(&self, at: usize, why: &str) -> Result<(), Wrong> {
        let may_leave = self.keys.is_none() || self.phase != Phase::Work;
        if may_leave || !self.plan.is_peaceful() || !self.hosts[at].is_closing() {
            return Ok(());
        }
        Err(Wrong(format!(
            "host {at} was lost without a disturbance: {why}"
        )))
    }
}

/// RFC 5044, section 8: the stream ended unexpectedly, as after the crash of a process.
const STREAM_ENDED: (&str, u16) = ("MPA", 0x2001);

impl World {
    /// Checks whether a connection may have been lost, and with this cause.
    fn check_loss(&self, id: u64, done: &Done) -> Result<(), Wrong> {
        let Err(Error::Lost(lost)) = &done.result else {
            return Ok(());
        };
        let text = &lost.cause;
        if self.plan.is_peaceful() && self.phase == Phase::Work {
            return Err(Wrong(format!(
                "the connection of call {id} was lost without a disturbance: {text:?}"
            )));
        }
        // Only corrupted bits may look like a violation of the protocol.
        let broken = match &lost.cause {
            LostCause::Protocol(_) => true,
            LostCause::Network(CloseReason::PeerFault(fault) | CloseReason::Terminated(fault)) => {
                (fault.layer, fault.code) != STREAM_ENDED
            }
            _ => false,
        };
        if broken && !self.plan.has_corruption() {
            return Err(Wrong(format!(
                "protocol violation during call {id}: {text:?}"
            )));
        }
        Ok(())
    }
}

/// Addresses of memory differ between runs, and with them the checksums of commands that
/// contain them.
fn without_addresses(text: &str) -> String {
    let words = text.split(' ').map(|word| match word.strip_prefix("0x") {
        Some(number) if number.len() >= 8 => "(differs)",
        _ => word,
    });
    words.collect::<Vec<_>>().join(" ")
}
