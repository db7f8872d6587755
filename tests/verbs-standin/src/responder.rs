//! What a queue pair does with the requests of its peer: its own keys and receives decide,
//! wherever the peer is.

use crate::completion::{Completion, Frees};
use crate::device::Element;
use crate::faults::Point;
use crate::ids::IdState;
use crate::memory::{self, Piece, Reach, Remote};
use crate::queue::{Receive, State};
use crate::raw::{access, event, ibv_wc_opcode as opcode, status};
use crate::transfer::{self, invalidate, local};
use crate::world::World;

/// Answer to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    Done,
    /// There is no receive for the message.
    NotReady,
    /// The status for the requester, and the event at the responder.
    Refused(u32, Option<i32>),
}

/// The answer to an access that a key does not allow.
const NO_ACCESS: Answer =
    Answer::Refused(status::IBV_WC_REM_ACCESS_ERR, Some(event::QP_ACCESS_ERR));

/// Whether a queue pair handles requests.
pub(crate) fn responds(world: &World, key: usize) -> bool {
    let Some(qp) = world.qps.get(key) else {
        return false;
    };
    let removed = world.devices.get(qp.device);
    qp.state == State::Ready && removed.is_some_and(|device| !device.removed)
}

/// A queue pair refused a request: it stops.
pub(crate) fn fail(world: &mut World, key: usize, event: Option<i32>) {
    let of = world.qps.get(key).map(|qp| qp.device);
    let device = of.and_then(|device| world.devices.get_mut(device));
    if let (Some(device), Some(event)) = (device, event) {
        device.report(Element::Qp(key), event);
    }
    transfer::stop(world, key);
}

/// Writes to memory that a queue pair opened.
pub(crate) fn write(world: &mut World, key: usize, from: &[Piece], to: Remote) -> Answer {
    let len = memory::total(from);
    if len == 0 {
        return Answer::Done;
    }
    let Some(target) = opened(world, key, to, len, access::REMOTE_WRITE) else {
        return NO_ACCESS;
    };
    // SAFETY: both were checked, and nothing is deregistered meanwhile.
    unsafe { memory::copy(from, &[target]) };
    Answer::Done
}

/// Memory that a queue pair opened to its peer.
fn opened(world: &World, key: usize, remote: Remote, len: u64, wanted: u32) -> Option<Piece> {
    let qp = world.qps.get(key)?;
    let keys = &world.devices.get(qp.device)?.keys;
    let of = Reach {
        pd: qp.pd,
        qp: qp.number,
    };
    world.memory.remote(keys, of, remote, len, wanted)
}

/// Whether a queue pair takes one more Read while so many are in flight.
pub(crate) fn may_read(world: &World, key: usize, reading: u32) -> bool {
    world.qps.get(key).is_some_and(|qp| reading < qp.reads_in)
}

/// The bytes that the peer of a queue pair reads.
pub(crate) fn read(world: &World, key: usize, from: Remote, len: u64) -> Result<Piece, Answer> {
    if len == 0 {
        return Ok(Piece { addr: 0, len });
    }
    opened(world, key, from, len, access::REMOTE_READ).ok_or(NO_ACCESS)
}

/// A received message.
pub(crate) struct Message {
    pub(crate) len: u64,
    pub(crate) invalidated: Option<u32>,
    pub(crate) solicited: bool,
}

impl Message {
    pub(crate) const NONE: Self = Self {
        len: 0,
        invalidated: None,
        solicited: false,
    };
}

/// Receives a message, which may invalidate the key `old`.
pub(crate) fn message(
    world: &mut World,
    peer: usize,
    from: &[Piece],
    old: Option<u32>,
    solicited: bool,
) -> Answer {
    let len = memory::total(from);
    let Some((receive, frees)) = take_receive(world, peer) else {
        let device = world.qps.get(peer).map(|peer| peer.device);
        let device = device.and_then(|device| world.devices.get(device));
        if device.is_some_and(|device| device.profile.is_iwarp()) {
            return Answer::Refused(status::IBV_WC_SUCCESS, Some(event::QP_FATAL));
        }
        return Answer::NotReady;
    };
    let (own, refused) = deliver(world, peer, &receive, from, old);
    let message = if own == status::IBV_WC_SUCCESS {
        Message {
            len,
            invalidated: old,
            solicited,
        }
    } else {
        Message::NONE
    };
    received(world, peer, receive.id, frees, own, &message);
    match refused {
        Some(end) => Answer::Refused(end, None),
        None => {
            report_early(world, peer);
            Answer::Done
        }
    }
}

/// Takes the receive for the next message to a queue pair.
fn take_receive(world: &mut World, peer: usize) -> Option<(Receive, Frees)> {
    let qp = world.qps.get_mut(peer)?;
    let Some(shared) = qp.srq else {
        return Some((qp.receives.pop_front()?, Frees::Receive));
    };
    let srq = world.srqs.get_mut(shared)?;
    let receive = srq.receives.pop_front()?;
    if srq.receives.len() < srq.limit as usize {
        srq.limit = 0;
        if let Some(device) = world.devices.get_mut(srq.device) {
            device.report(Element::Srq(shared), event::SRQ_LIMIT);
        }
    }
    Some((receive, Frees::Shared(shared)))
}

/// Places a message. Returns the status of its receive, and that of the sender if it failed.
fn deliver(
    world: &mut World,
    peer: usize,
    receive: &Receive,
    from: &[Piece],
    old: Option<u32>,
) -> (u32, Option<u32>) {
    let device = world.qps.get(peer).map(|peer| peer.device);
    let device = device.and_then(|device| world.devices.get_mut(device));
    if let Some(end) = device.and_then(|device| device.faults.hit(Point::Receive)) {
        return (end.unsigned_abs(), Some(status::IBV_WC_REM_OP_ERR));
    }
    let room: u64 = receive.segments.iter().map(|segment| segment.len).sum();
    if memory::total(from) > room {
        let refused = status::IBV_WC_REM_INV_REQ_ERR;
        return (status::IBV_WC_LOC_LEN_ERR, Some(refused));
    }
    let Some(pieces) = local(world, peer, &receive.segments, access::LOCAL_WRITE) else {
        return (status::IBV_WC_LOC_PROT_ERR, Some(status::IBV_WC_REM_OP_ERR));
    };
    // SAFETY: as in `write`.
    unsafe { memory::copy(from, &pieces) };
    if old.is_some_and(|old| !invalidate(world, peer, old, false)) {
        let refused = status::IBV_WC_REM_ACCESS_ERR;
        return (status::IBV_WC_REM_INV_REQ_ERR, Some(refused));
    }
    (status::IBV_WC_SUCCESS, None)
}

/// Completes a receive.
pub(crate) fn received(
    world: &mut World,
    key: usize,
    id: u64,
    frees: Frees,
    end: u32,
    message: &Message,
) {
    let Some(qp) = world.qps.get(key) else { return };
    let completion = Completion {
        id,
        status: end,
        opcode: opcode::IBV_WC_RECV,
        len: u32::try_from(message.len).unwrap_or(u32::MAX),
        invalidated: message.invalidated,
        qp: key,
        number: qp.number,
        solicited: message.solicited,
        frees,
    };
    let cq = qp.recv_cq;
    world.complete(cq, completion);
}

/// Reports the first message on a connection whose set-up is not complete.
fn report_early(world: &mut World, key: usize) {
    let Some(qp) = world.qps.get_mut(key) else {
        return;
    };
    let id = world.ids.ids.get(&qp.id);
    let early = id.is_some_and(|id| id.state == IdState::Accepted);
    if early && !std::mem::replace(&mut qp.reported_early, true) {
        let device = qp.device;
        if let Some(device) = world.devices.get_mut(device) {
            device.report(Element::Qp(key), event::COMM_EST);
        }
    }
}
