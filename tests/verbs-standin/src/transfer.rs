//! Execution of work requests of a send queue. If the peer is in this process, everything
//! happens in the thread that posts or polls. Otherwise [`remote`] sends requests and gets the
//! answers.

use crate::completion::{Completion, Frees};
use crate::device::Element;
use crate::faults::Point;
use crate::memory::{self, Binding, Invalidation, Piece, Reach, Remote, Segment};
use crate::message::Request;
use crate::queue::{Data, Entry, Fault, Op, PeerQp, Progress, Qp, State, UNKNOWN};
use crate::raw::{access, event, ibv_wc_opcode as opcode, status};
use crate::remote;
use crate::responder::{self, Answer, Message, received};
use crate::world::World;

/// Result of an attempt to execute a work request.
enum Step {
    /// It is done.
    Done,
    /// A Read whose data arrive at this time.
    Reading(u64),
    /// A peer of another process will answer.
    Sent,
    /// To be tried again.
    Blocked(Blocked),
    /// It failed, with this status of its own.
    Failed(u32),
    /// The peer refused it: the status on this side, and the event on the other.
    Refused(u32, Option<i32>),
}

impl From<Answer> for Step {
    fn from(answer: Answer) -> Self {
        match answer {
            Answer::Done => Self::Done,
            Answer::NotReady => Self::Blocked(Blocked::NoReceive),
            Answer::Refused(end, event) => Self::Refused(end, event),
        }
    }
}

/// Why a work request waits.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Blocked {
    /// The peer does not acknowledge.
    Silent,
    /// The peer has no receive posted.
    NoReceive,
    /// As many Reads are in flight as the connection allows.
    Reads,
}

/// Retries without a limit (InfiniBand Architecture, 9.7.5.2.8).
const FOR_EVER: u8 = 7;

/// Lets time pass on a device: executes what is due.
pub(crate) fn tick(world: &mut World, device: usize) {
    let Some(one) = world.device_mut(device) else {
        return;
    };
    one.time += 1;
    let active: Vec<usize> = one.active.iter().copied().collect();
    for qp in active {
        execute(world, qp, true);
    }
}

/// Executes what is due of a queue pair.
pub(crate) fn run(world: &mut World, qp: usize) {
    execute(world, qp, false);
}

/// Executes what waits for a queue pair to receive.
pub(crate) fn run_peer(world: &mut World, qp: usize) {
    let peer = world.qps.get(qp).and_then(|qp| world.peer_of(qp));
    match peer {
        Some(peer) => run(world, peer),
        None => remote::resume(world, qp),
    }
}

fn execute(world: &mut World, key: usize, ticked: bool) {
    while let Some((index, now)) = next(world, key) {
        let step = attempt(world, key, index, now);
        let Some(qp) = world.qps.get_mut(key) else {
            return;
        };
        let waits = matches!(step, Step::Blocked(_) | Step::Sent | Step::Reading(UNKNOWN));
        if !waits {
            qp.unanswered = 0;
        }
        match step {
            Step::Done => mark(qp, index, Progress::Done(status::IBV_WC_SUCCESS)),
            Step::Reading(until) => {
                qp.reading += 1;
                mark(qp, index, Progress::Reading(until));
            }
            Step::Sent => mark(qp, index, Progress::Sent),
            Step::Blocked(why) => {
                if let Some(end) = give_up(world, key, why, ticked) {
                    fail(world, key, index, end);
                }
                break;
            }
            Step::Failed(end) => fail(world, key, index, end),
            Step::Refused(end, event) => refuse(world, key, index, end, event),
        }
    }
    finish_reads(world, key, false);
    if ticked {
        give_up_sent(world, key);
    }
    retire(world, key);
    note_active(world, key);
}

/// Fails the first request that a peer of another process does not answer, after its time.
fn give_up_sent(world: &mut World, key: usize) {
    let sent =
        |entry: &Entry| matches!(entry.progress, Progress::Sent | Progress::Reading(UNKNOWN));
    let qp = world.qps.get(key);
    let Some(index) = qp.and_then(|qp| qp.sends.iter().position(sent)) else {
        return;
    };
    if let Some(end) = give_up(world, key, Blocked::Silent, true) {
        fail(world, key, index, end);
    }
}

/// The next entry to execute, and the time.
fn next(world: &World, key: usize) -> Option<(usize, u64)> {
    let qp = world.qps.get(key)?;
    if qp.state != State::Ready {
        return None;
    }
    let now = world.devices.get(qp.device)?.time;
    let waits = |entry: &Entry| entry.progress == Progress::Waiting;
    let index = qp.sends.iter().position(waits)?;
    (qp.sends.get(index)?.due <= now).then_some((index, now))
}

fn mark(qp: &mut Qp, index: usize, progress: Progress) {
    if let Some(entry) = qp.sends.get_mut(index) {
        entry.progress = progress;
    }
}

fn note_active(world: &mut World, key: usize) {
    let Some(qp) = world.qps.get(key) else { return };
    let open = |entry: &Entry| !matches!(entry.progress, Progress::Done(_));
    let active = qp.sends.iter().any(open);
    if let Some(device) = world.devices.get_mut(qp.device) {
        if active {
            device.active.insert(key);
        } else {
            device.active.remove(&key);
        }
    }
}

/// The status of work that was tried too often.
fn give_up(world: &mut World, key: usize, why: Blocked, ticked: bool) -> Option<u32> {
    let qp = world.qps.get_mut(key)?;
    let first = qp.unanswered == 0;
    if first || ticked {
        qp.unanswered += 1;
    }
    let (unanswered, rnr_retry) = (qp.unanswered, qp.rnr_retry);
    let device = world.devices.get_mut(qp.device)?;
    match why {
        Blocked::Reads => None,
        Blocked::NoReceive => {
            device.counters.receiver_not_ready += u64::from(first);
            let over = rnr_retry < FOR_EVER && unanswered > u32::from(rnr_retry) + 1;
            over.then_some(status::IBV_WC_RNR_RETRY_EXC_ERR)
        }
        Blocked::Silent => {
            let most = device.profile.retry_polls;
            (most > 0 && unanswered > most).then_some(status::IBV_WC_RETRY_EXC_ERR)
        }
    }
}

/// An entry failed: its queue pair stops.
fn fail(world: &mut World, key: usize, index: usize, end: u32) {
    finish_reads(world, key, true);
    let Some(qp) = world.qps.get_mut(key) else {
        return;
    };
    if qp.state == State::Ready {
        mark(qp, index, Progress::Done(end));
        stop(world, key);
    }
}

/// The peer refused an entry: both queue pairs stop.
fn refuse(world: &mut World, key: usize, index: usize, end: u32, event: Option<i32>) {
    // The peer answers in order.
    finish_reads(world, key, true);
    let ready = |qp: &&Qp| qp.state == State::Ready;
    let Some(qp) = world.qps.get(key).filter(ready) else {
        return;
    };
    if let Some(peer) = world.peer_of(qp) {
        responder::fail(world, peer, event);
    }
    refused(world, key, index, end);
}

/// The peer refused an entry, and stopped its own queue pair.
pub(crate) fn refused(world: &mut World, key: usize, index: usize, end: u32) {
    let Some(qp) = world.qps.get(key) else { return };
    let iwarp = world.devices.get(qp.device);
    let iwarp = iwarp.is_some_and(|device| device.profile.is_iwarp());
    let reads = qp
        .sends
        .get(index)
        .is_some_and(|entry| matches!(entry.op, Op::Read { .. }));
    // A stream carries no answer to Sends and Writes, which are complete when they are sent.
    let end = match (iwarp, reads) {
        (false, _) => end,
        (true, false) => status::IBV_WC_SUCCESS,
        (true, true) => status::IBV_WC_WR_FLUSH_ERR,
    };
    fail(world, key, index, end);
}

/// Moves a queue pair to the error state: everything outstanding is flushed, in order.
pub(crate) fn stop(world: &mut World, key: usize) {
    let Some(qp) = world.qps.get_mut(key) else {
        return;
    };
    if qp.state == State::Error {
        return;
    }
    qp.state = State::Error;
    qp.reading = 0;
    for entry in &mut qp.sends {
        if !matches!(entry.progress, Progress::Done(_)) {
            entry.progress = Progress::Done(status::IBV_WC_WR_FLUSH_ERR);
        }
    }
    let (device, shared) = (qp.device, qp.srq.is_some());
    retire(world, key);
    flush_receives(world, key);
    note_active(world, key);
    let Some(device) = world.devices.get_mut(device) else {
        return;
    };
    if shared && device.faults.hit(Point::LastReceive).is_none() {
        device.report(Element::Qp(key), event::LAST_WQE);
    }
    if device.profile.is_iwarp() {
        world.broken.push(key);
    }
}

/// Flushes the receives of a queue pair in the error state.
pub(crate) fn flush_receives(world: &mut World, key: usize) {
    while let Some(receive) = world
        .qps
        .get_mut(key)
        .and_then(|qp| qp.receives.pop_front())
    {
        let end = status::IBV_WC_WR_FLUSH_ERR;
        received(world, key, receive.id, Frees::Receive, end, &Message::NONE);
    }
}

/// Completes entries of a send queue: in order, or before Reads where the device does that.
pub(crate) fn retire(world: &mut World, key: usize) {
    loop {
        let Some(qp) = world.qps.get_mut(key) else {
            return;
        };
        let device = world.devices.get(qp.device);
        let unordered = device.is_some_and(|device| device.profile.unordered_reads);
        let done = |entry: &Entry| matches!(entry.progress, Progress::Done(_));
        let skips = |entry: &Entry| !matches!(entry.progress, Progress::Reading(_));
        let index = if unordered {
            qp.sends.iter().position(skips)
        } else {
            Some(0)
        };
        let Some(index) = index.filter(|index| qp.sends.get(*index).is_some_and(done)) else {
            return;
        };
        let Some(entry) = qp.sends.remove(index) else {
            return;
        };
        let Progress::Done(end) = entry.progress else {
            return;
        };
        if end == status::IBV_WC_SUCCESS && !entry.signalled {
            qp.silent += 1;
            continue;
        }
        let frees = Frees::Sends(std::mem::take(&mut qp.silent) + 1);
        let completion = Completion {
            id: entry.id,
            status: end,
            opcode: opcode_of(&entry.op),
            len: 0,
            invalidated: None,
            qp: key,
            number: qp.number,
            solicited: false,
            frees,
        };
        let cq = qp.send_cq;
        world.complete(cq, completion);
    }
}

fn opcode_of(op: &Op) -> u32 {
    match op {
        Op::Send { .. } => opcode::IBV_WC_SEND,
        Op::Write { .. } => opcode::IBV_WC_RDMA_WRITE,
        Op::Read { .. } => opcode::IBV_WC_RDMA_READ,
        Op::Bind { .. } => opcode::IBV_WC_BIND_MW,
        Op::Invalidate { .. } => opcode::IBV_WC_LOCAL_INV,
    }
}

/// Copies the data of Reads that are due, or of all.
fn finish_reads(world: &mut World, key: usize, all: bool) {
    loop {
        let Some(qp) = world.qps.get(key) else { return };
        let now = world.devices.get(qp.device).map_or(0, |device| device.time);
        let due = |entry: &Entry| match entry.progress {
            Progress::Reading(UNKNOWN) => false,
            Progress::Reading(until) => all || until <= now,
            _ => false,
        };
        let Some(index) = qp.sends.iter().position(due) else {
            return;
        };
        let Some((local, remote)) = qp.sends.get(index).and_then(|entry| match &entry.op {
            Op::Read { local, remote } => Some((local.clone(), *remote)),
            _ => None,
        }) else {
            return;
        };
        let mut arrived = None;
        if let Some(qp) = world.qps.get_mut(key) {
            qp.reading = qp.reading.saturating_sub(1);
            mark(qp, index, Progress::Waiting);
            let entry = qp.sends.get_mut(index);
            arrived = entry.and_then(|entry| entry.arrived.take());
        }
        let step = match arrived {
            Some(data) => place(world, key, &local, &data),
            None => read_now(world, key, &local, remote),
        };
        match step {
            Step::Failed(end) => fail(world, key, index, end),
            Step::Refused(end, event) => refuse(world, key, index, end, event),
            // The peer is gone: the Read is repeated, and not answered.
            Step::Blocked(_) | Step::Reading(_) | Step::Sent => {}
            Step::Done => {
                if let Some(qp) = world.qps.get_mut(key) {
                    mark(qp, index, Progress::Done(status::IBV_WC_SUCCESS));
                }
            }
        }
    }
}

/// Executes an entry, if it can be executed now.
fn attempt(world: &mut World, key: usize, index: usize, now: u64) -> Step {
    let Some(entry) = world.qps.get(key).and_then(|qp| qp.sends.get(index)) else {
        return Step::Blocked(Blocked::Silent);
    };
    let (op, fault) = (entry.op.clone(), entry.fault);
    match fault {
        Some(Fault::Status(end)) => return Step::Failed(end),
        Some(fault) => {
            happen(world, key, fault);
            // A device whose completions get lost continues to work.
            if fault != Fault::CqError {
                return Step::Failed(status::IBV_WC_WR_FLUSH_ERR);
            }
        }
        None => {}
    }
    match op {
        Op::Send {
            data,
            invalidate,
            solicited,
        } => {
            let request = |data| Request::Send {
                data,
                invalidate,
                solicited,
            };
            let arrive = |world: &mut World, peer, from: &[Piece]| {
                responder::message(world, peer, from, invalidate, solicited)
            };
            put(world, (key, index), &data, request, arrive)
        }
        Op::Write { data, remote } => {
            let request = |data| Request::Write { data, remote };
            let arrive = |world: &mut World, peer, from: &[Piece]| {
                responder::write(world, peer, from, remote)
            };
            put(world, (key, index), &data, request, arrive)
        }
        Op::Read { local, remote } => read(world, (key, index), &local, remote, now),
        Op::Bind {
            window,
            key: new,
            region,
            addr,
            len,
            access,
        } => {
            let bind = |qp: &Qp| Binding {
                qp: qp.number,
                key: new,
                mr: region,
                addr,
                len,
                access,
            };
            let qp = world.qps.get(key).map(|qp| (qp.pd, bind(qp)));
            match qp {
                Some((pd, bind)) if world.memory.bind(pd, window, bind) => Step::Done,
                _ => Step::Failed(status::IBV_WC_MW_BIND_ERR),
            }
        }
        Op::Invalidate { key: old } => {
            if invalidate(world, key, old, true) {
                Step::Done
            } else {
                Step::Failed(status::IBV_WC_LOC_QP_OP_ERR)
            }
        }
    }
}

/// A planned fault of a queue pair, its completion queue or its device.
fn happen(world: &mut World, key: usize, fault: Fault) {
    let Some(qp) = world.qps.get(key) else {
        return;
    };
    let (device, cq) = (qp.device, qp.send_cq);
    match fault {
        Fault::Status(_) => {}
        Fault::QpFatal => {
            if let Some(device) = world.devices.get_mut(device) {
                device.report(Element::Qp(key), event::QP_FATAL);
            }
        }
        Fault::CqError => {
            let queue = world.cqs.get_mut(cq);
            let failed = queue.map(|queue| std::mem::replace(&mut queue.failed, true));
            if failed == Some(false)
                && let Some(device) = world.devices.get_mut(device)
            {
                device.report(Element::Cq(cq), event::CQ_ERR);
            }
        }
        Fault::Removal => world.removals.push(device),
    }
}

/// Invalidates a key for the peer of a queue pair, or for its owner.
pub(crate) fn invalidate(world: &mut World, key: usize, old: u32, local: bool) -> bool {
    let Some(qp) = world.qps.get(key) else {
        return false;
    };
    let Some(device) = world.devices.get(qp.device) else {
        return false;
    };
    let kind = Invalidation {
        regions: device.profile.is_iwarp(),
        again: local,
    };
    let memory = &mut world.memory;
    let of = Reach {
        pd: qp.pd,
        qp: qp.number,
    };
    memory.invalidate(&device.keys, of, old, kind)
}

/// The bytes of a message. `None` if a segment does not allow the access.
fn gather(world: &World, key: usize, data: &Data) -> Option<Vec<Piece>> {
    match data {
        Data::Inline(bytes) => Some(vec![Piece::of(bytes)]),
        Data::Memory(segments) => local(world, key, segments, 0),
    }
}

pub(crate) fn local(
    world: &World,
    key: usize,
    segments: &[Segment],
    wanted: u32,
) -> Option<Vec<Piece>> {
    let qp = world.qps.get(key)?;
    let keys = &world.devices.get(qp.device)?.keys;
    let piece = |segment: &Segment| world.memory.local(keys, qp.pd, *segment, wanted);
    segments.iter().map(piece).collect()
}

/// Where requests of a queue pair arrive: a queue pair of this process, if it responds, or
/// another process.
fn destination(world: &World, key: usize) -> Option<PeerQp> {
    let qp = world.qps.get(key)?;
    if let Some(PeerQp::There(_)) = qp.peer {
        return qp.peer;
    }
    let peer = world.peer_of(qp)?;
    responder::responds(world, peer).then_some(qp.peer?)
}

fn is_too_long(world: &World, key: usize, len: u64) -> bool {
    let device = world.qps.get(key).map(|qp| qp.device);
    let device = device.and_then(|device| world.devices.get(device));
    device.is_some_and(|device| len > u64::from(device.profile.max_message))
}

/// Executes a Send or Write: the bytes `arrive` at a queue pair of this process, or are part of
/// a `request` to another one.
fn put(
    world: &mut World,
    (key, index): (usize, usize),
    data: &Data,
    request: impl FnOnce(Vec<u8>) -> Request,
    arrive: impl FnOnce(&mut World, usize, &[Piece]) -> Answer,
) -> Step {
    let Some(from) = gather(world, key, data) else {
        return Step::Failed(status::IBV_WC_LOC_PROT_ERR);
    };
    if is_too_long(world, key, memory::total(&from)) {
        return Step::Failed(status::IBV_WC_LOC_LEN_ERR);
    }
    match destination(world, key) {
        None => Step::Blocked(Blocked::Silent),
        Some(PeerQp::Here(peer, _)) => arrive(world, peer, &from).into(),
        Some(PeerQp::There(_)) if is_not_ready(world, key) => Step::Blocked(Blocked::NoReceive),
        Some(PeerQp::There(link)) => {
            // SAFETY: the pieces were checked above, and nothing is deregistered meanwhile.
            let data = unsafe { memory::bytes(&from) };
            remote::send(world, (key, index), link, request(data));
            Step::Sent
        }
    }
}

/// Whether a peer of another process has no receive.
fn is_not_ready(world: &World, key: usize) -> bool {
    world.qps.get(key).is_some_and(|qp| qp.not_ready)
}

fn read(
    world: &mut World,
    (key, index): (usize, usize),
    to: &[Segment],
    remote: Remote,
    now: u64,
) -> Step {
    let Some(qp) = world.qps.get(key) else {
        return Step::Done;
    };
    let Some(device) = world.devices.get(qp.device) else {
        return Step::Done;
    };
    let (reading, reads_out) = (qp.reading, qp.reads_out);
    let delay = device.profile.read_delay;
    let Some(pieces) = local(world, key, to, sink_access(world, key)) else {
        return Step::Failed(status::IBV_WC_LOC_PROT_ERR);
    };
    let len = memory::total(&pieces);
    if is_too_long(world, key, len) {
        return Step::Failed(status::IBV_WC_LOC_LEN_ERR);
    }
    let Some(peer) = destination(world, key) else {
        return Step::Blocked(Blocked::Silent);
    };
    if reading >= reads_out {
        return Step::Blocked(Blocked::Reads);
    }
    let peer = match peer {
        PeerQp::Here(peer, _) => peer,
        PeerQp::There(_) if is_not_ready(world, key) => return Step::Blocked(Blocked::NoReceive),
        PeerQp::There(link) => {
            let request = Request::Read {
                remote,
                len,
                reading,
            };
            remote::send(world, (key, index), link, request);
            return Step::Reading(UNKNOWN);
        }
    };
    if !responder::may_read(world, peer, reading) {
        return Step::Refused(status::IBV_WC_REM_INV_REQ_ERR, Some(event::QP_ACCESS_ERR));
    }
    if delay > 0 {
        return Step::Reading(now + u64::from(delay));
    }
    read_now(world, key, to, remote)
}

/// Places the data of a Read that came from another process.
fn place(world: &mut World, key: usize, to: &[Segment], data: &[u8]) -> Step {
    let Some(pieces) = local(world, key, to, sink_access(world, key)) else {
        return Step::Failed(status::IBV_WC_LOC_PROT_ERR);
    };
    // SAFETY: both were checked above, and nothing is deregistered meanwhile.
    unsafe { memory::copy(&[Piece::of(data)], &pieces) };
    Step::Done
}

/// Access that the destination of a Read needs: on iWARP the peer writes to it (RFC 5040,
/// section 4.4).
fn sink_access(world: &World, key: usize) -> u32 {
    let device = world.qps.get(key).map(|qp| qp.device);
    let device = device.and_then(|device| world.devices.get(device));
    if device.is_some_and(|device| device.profile.is_iwarp()) {
        access::LOCAL_WRITE | access::REMOTE_WRITE
    } else {
        access::LOCAL_WRITE
    }
}

fn read_now(world: &mut World, key: usize, to: &[Segment], remote: Remote) -> Step {
    let Some(pieces) = local(world, key, to, sink_access(world, key)) else {
        return Step::Failed(status::IBV_WC_LOC_PROT_ERR);
    };
    let Some(PeerQp::Here(peer, _)) = destination(world, key) else {
        return Step::Blocked(Blocked::Silent);
    };
    match responder::read(world, peer, remote, memory::total(&pieces)) {
        Ok(from) => {
            // SAFETY: both were checked above, and nothing is deregistered meanwhile.
            unsafe { memory::copy(&[from], &pieces) };
            Step::Done
        }
        Err(refused) => refused.into(),
    }
}
