//! Requests to queue pairs of other processes, and the answers.
//!
//! The responder executes requests in the order of their numbers. If it has no receive for one,
//! it drops that and all later ones; the requester sends them again once the responder is ready,
//! unless it gives up before.

use crate::links::{self, LinkKey};
use crate::memory::{self, Piece};
use crate::message::{Answer, Message, Request};
use crate::queue::{Entry, PeerQp, Progress, Qp, State, UNKNOWN};
use crate::raw::{event, status};
use crate::responder;
use crate::transfer;
use crate::world::World;

/// Sends the request for an entry of a send queue.
pub(crate) fn send(
    world: &mut World,
    (key, index): (usize, usize),
    link: LinkKey,
    request: Request,
) {
    let Some(qp) = world.qps.get_mut(key) else {
        return;
    };
    let number = qp.next_number;
    qp.next_number += 1;
    if let Some(entry) = qp.sends.get_mut(index) {
        entry.number = number;
    }
    links::send(world, link, &Message::Request(number, request));
}

/// An answer arrived for a queue pair.
pub(crate) fn answered(world: &mut World, key: usize, number: u64, answer: Answer) {
    let Some(qp) = world.qps.get_mut(key) else {
        return;
    };
    let sent = |entry: &Entry| entry.number == number && is_unanswered(entry);
    let Some(index) = qp.sends.iter().position(sent) else {
        // The entry was flushed meanwhile.
        return;
    };
    let Some(entry) = qp.sends.get_mut(index) else {
        return;
    };
    let now = world.devices.get(qp.device);
    let due = now.map_or(0, |one| one.time + u64::from(one.profile.read_delay));
    match answer {
        Answer::Done => entry.progress = Progress::Done(status::IBV_WC_SUCCESS),
        Answer::Data(data) => {
            entry.arrived = Some(data);
            entry.progress = Progress::Reading(due);
        }
        Answer::NotReady => rewind(qp, number),
        Answer::Refused(end) => transfer::refused(world, key, index, end),
    }
    if let Some(qp) = world.qps.get_mut(key).filter(|qp| !qp.not_ready) {
        qp.unanswered = 0;
    }
    transfer::run(world, key);
}

/// Whether the peer has to answer an entry.
fn is_unanswered(entry: &Entry) -> bool {
    matches!(entry.progress, Progress::Sent | Progress::Reading(UNKNOWN))
}

/// The peer executed no request from `number` on: they wait until it is ready.
fn rewind(qp: &mut Qp, number: u64) {
    qp.not_ready = true;
    qp.next_number = number;
    for entry in qp.sends.iter_mut().filter(|entry| is_unanswered(entry)) {
        if entry.progress != Progress::Sent {
            qp.reading = qp.reading.saturating_sub(1);
        }
        entry.progress = Progress::Waiting;
    }
}

/// The peer of a queue pair has a receive again.
pub(crate) fn ready(world: &mut World, key: usize) {
    if let Some(qp) = world.qps.get_mut(key) {
        qp.not_ready = false;
    }
    transfer::run(world, key);
}

/// A request arrived for a queue pair.
pub(crate) fn requested(
    world: &mut World,
    link: LinkKey,
    key: usize,
    (number, request): (u64, Request),
) {
    let state = world.qps.get(key).map(|qp| qp.state);
    if state == Some(State::Init) {
        // Its owner has not seen that the connection is established.
        links::park(world, link, number, request);
    } else if responder::responds(world, key) && links::is_next(world, link, number) {
        respond(world, link, key, (number, request));
    }
}

/// Executes a request.
fn respond(world: &mut World, link: LinkKey, key: usize, (number, request): (u64, Request)) {
    let mut read = None;
    let answer = match request {
        Request::Send {
            data,
            invalidate,
            solicited,
        } => responder::message(world, key, &[Piece::of(&data)], invalidate, solicited),
        Request::Write { data, remote } => {
            responder::write(world, key, &[Piece::of(&data)], remote)
        }
        Request::Read { reading, .. } if !responder::may_read(world, key, reading) => {
            responder::Answer::Refused(status::IBV_WC_REM_INV_REQ_ERR, Some(event::QP_ACCESS_ERR))
        }
        Request::Read { remote, len, .. } => match responder::read(world, key, remote, len) {
            Ok(from) => {
                // SAFETY: the range was checked, and nothing is deregistered meanwhile.
                read = Some(unsafe { memory::bytes(&[from]) });
                responder::Answer::Done
            }
            Err(refused) => refused,
        },
    };
    let said = match (answer, read) {
        (responder::Answer::Done, Some(data)) => Answer::Data(data),
        (responder::Answer::Done, None) => Answer::Done,
        (responder::Answer::NotReady, _) => Answer::NotReady,
        (responder::Answer::Refused(end, _), _) => Answer::Refused(end),
    };
    links::answer(world, link, number, said);
    if let responder::Answer::Refused(_, event) = answer {
        responder::fail(world, key, event);
    }
}

/// A queue pair is ready, or has receives again: its peer may continue.
pub(crate) fn resume(world: &mut World, key: usize) {
    let Some(PeerQp::There(link)) = world.qps.get(key).and_then(|qp| qp.peer) else {
        return;
    };
    for parked in links::take_parked(world, link) {
        requested(world, link, key, parked);
    }
    links::say_ready(world, link);
}
