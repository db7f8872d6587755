//! The functions of a context that the libraries call through pointers: posting, polling,
//! arming, memory windows.

use std::hint::black_box;

use libc::c_int;

use crate::calls::{handle, int, none, number, unsigned};
use crate::completion::{Arm, Completion};
use crate::connection;
use crate::faults::Point;
use crate::memory::{Mw, Owner, Remote, Segment};
use crate::queue::{Data, Entry, Fault, Op, Progress, Qp, Receive, State};
use crate::raw::{
    Ptr, ibv_context_ops, ibv_cq, ibv_mw, ibv_mw_type, ibv_pd, ibv_qp, ibv_recv_wr, ibv_send_flags,
    ibv_send_wr, ibv_sge, ibv_srq, ibv_wc, ibv_wc_flags, ibv_wr_opcode as opcode, status, zeroed,
};
use crate::ticker;
use crate::transfer;
use crate::world::{World, lock};

/// The functions of a context, with the names for a `peer` or the others.
pub(crate) fn ops(peer: bool) -> ibv_context_ops {
    // SAFETY: optional functions.
    let mut ops: ibv_context_ops = unsafe { zeroed() };
    ops.alloc_mw = Some(alloc_mw);
    ops.dealloc_mw = Some(dealloc_mw);
    if peer {
        ops.poll_cq = Some(peer_call_poll_cq);
        ops.req_notify_cq = Some(peer_call_req_notify_cq);
        ops.post_srq_recv = Some(peer_call_post_srq_recv);
        ops.post_send = Some(peer_call_post_send);
        ops.post_recv = Some(peer_call_post_recv);
    } else {
        ops.poll_cq = Some(device_call_poll_cq);
        ops.req_notify_cq = Some(device_call_req_notify_cq);
        ops.post_srq_recv = Some(device_call_post_srq_recv);
        ops.post_send = Some(device_call_post_send);
        ops.post_recv = Some(device_call_post_recv);
    }
    ops
}

// The functions that move data are apart from their work, and twice there: `tests/guards` does not
// count what happens in functions with one of these names. Other functions have none of them.
macro_rules! calls {
    ($($name:ident => $work:ident($($argument:ident: $kind:ty),*);)*) => {
        $(#[inline(never)]
        unsafe extern "C" fn $name($($argument: $kind),*) -> c_int {
            // SAFETY: as the caller promises.
            let result = unsafe { $work($($argument),*) };
            // Otherwise the function would end before its work, and its body would be that of
            // another one.
            black_box(stringify!($name));
            result
        })*
    };
}

calls! {
    device_call_post_send => post_send(
        qp: *mut ibv_qp, first: *mut ibv_send_wr, bad: *mut *mut ibv_send_wr
    );
    device_call_post_recv => post_recv(
        qp: *mut ibv_qp, first: *mut ibv_recv_wr, bad: *mut *mut ibv_recv_wr
    );
    device_call_post_srq_recv => post_srq_recv(
        srq: *mut ibv_srq, first: *mut ibv_recv_wr, bad: *mut *mut ibv_recv_wr
    );
    device_call_poll_cq => poll_cq(cq: *mut ibv_cq, room: c_int, to: *mut ibv_wc);
    device_call_req_notify_cq => req_notify_cq(cq: *mut ibv_cq, solicited_only: c_int);
    peer_call_post_send => post_send(
        qp: *mut ibv_qp, first: *mut ibv_send_wr, bad: *mut *mut ibv_send_wr
    );
    peer_call_post_recv => post_recv(
        qp: *mut ibv_qp, first: *mut ibv_recv_wr, bad: *mut *mut ibv_recv_wr
    );
    peer_call_post_srq_recv => post_srq_recv(
        srq: *mut ibv_srq, first: *mut ibv_recv_wr, bad: *mut *mut ibv_recv_wr
    );
    peer_call_poll_cq => poll_cq(cq: *mut ibv_cq, room: c_int, to: *mut ibv_wc);
    peer_call_req_notify_cq => req_notify_cq(cq: *mut ibv_cq, solicited_only: c_int);
}

unsafe extern "C" fn alloc_mw(pd: *mut ibv_pd, kind: ibv_mw_type::Type) -> *mut ibv_mw {
    // SAFETY: the caller passes a domain.
    let pd_key = handle(unsafe { (*pd).handle });
    let mut world = lock();
    let world = &mut *world;
    let Some(domain) = world.memory.pds.get_mut(pd_key) else {
        return none(libc::EINVAL);
    };
    let Some(device) = world.devices.get_mut(domain.device) else {
        return none(libc::EINVAL);
    };
    if !device.profile.windows || kind != ibv_mw_type::IBV_MW_TYPE_2 {
        return none(libc::EOPNOTSUPP);
    }
    if let Some(errno) = device.faults.hit(Point::AllocWindow) {
        return none(errno);
    }
    if device.windows >= device.profile.max_mw || device.removed {
        return none(libc::ENOMEM);
    }
    let slot = world.memory.mws.vacant_entry();
    let index = device.keys.add(Owner::Window(slot.key()));
    // SAFETY: numbers and pointers.
    let mut raw: ibv_mw = unsafe { zeroed() };
    raw.context = device.context.as_ptr();
    raw.pd = pd;
    raw.handle = number(slot.key());
    raw.rkey = index << 8;
    raw.type_ = kind;
    let raw = Ptr::new(raw);
    slot.insert(Mw {
        raw,
        pd: pd_key,
        index,
        last: None,
        bound: None,
    });
    domain.users += 1;
    device.windows += 1;
    device.counters.windows += 1;
    raw.as_ptr()
}

unsafe extern "C" fn dealloc_mw(mw: *mut ibv_mw) -> c_int {
    // SAFETY: the caller passes a window.
    let key = handle(unsafe { (*mw).handle });
    let mut world = lock();
    let world = &mut *world;
    world.memory.unbind(key);
    let Some(window) = world.memory.mws.try_remove(key) else {
        return libc::EINVAL;
    };
    if let Some(pd) = world.memory.pds.get_mut(window.pd) {
        pd.users -= 1;
        if let Some(device) = world.devices.get_mut(pd.device) {
            device.keys.remove(window.index << 8);
            device.windows -= 1;
        }
    }
    // SAFETY: it was in the table, and the caller gives it up.
    unsafe { window.raw.free() };
    0
}

unsafe fn poll_cq(cq: *mut ibv_cq, room: c_int, to: *mut ibv_wc) -> c_int {
    // SAFETY: the caller passes a queue.
    let key = handle(unsafe { (*cq).handle });
    let mut world = lock();
    let Some(device) = world.cqs.get(key).map(|cq| cq.device) else {
        return -1;
    };
    connection::tick(&mut world, device);
    let mut count = 0;
    while count < unsigned(room) {
        let Some(one) = world.take_completion(key) else {
            break;
        };
        // SAFETY: the caller has room for as many.
        let place = unsafe { to.add(count as usize) };
        // SAFETY: as above.
        unsafe { place.write(wc_of(&one)) };
        count += 1;
    }
    if let Some(device) = world.device_mut(device) {
        let counters = &mut device.counters;
        counters.completions += u64::from(count);
        if count > 0 {
            counters.polls += 1;
        } else {
            counters.empty_polls += 1;
        }
    }
    int(count)
}

fn wc_of(one: &Completion) -> ibv_wc {
    // SAFETY: numbers.
    let mut wc: ibv_wc = unsafe { zeroed() };
    wc.wr_id = one.id;
    wc.status = one.status;
    wc.opcode = one.opcode;
    wc.byte_len = one.len;
    wc.qp_num = one.number;
    if let Some(key) = one.invalidated {
        wc.wc_flags = ibv_wc_flags::IBV_WC_WITH_INV.0;
        wc.imm_data_invalidated_rkey_union.invalidated_rkey = key;
    }
    wc
}

unsafe fn req_notify_cq(cq: *mut ibv_cq, solicited_only: c_int) -> c_int {
    // SAFETY: the caller passes a queue.
    let key = handle(unsafe { (*cq).handle });
    let mut world = lock();
    let wanted = if solicited_only == 0 {
        Arm::Any
    } else {
        Arm::Solicited
    };
    let Some(queue) = world.cqs.get_mut(key) else {
        return libc::EINVAL;
    };
    let (before, device) = (queue.arm, queue.device);
    // Asking for less does not revoke what was asked for before.
    queue.arm = before.max(wanted);
    let mut lost = None;
    if let Some(device) = world.device_mut(device) {
        device.counters.arms += 1;
        lost = device.faults.hit(Point::Arm);
    }
    if lost.is_some()
        && let Some(queue) = world.cqs.get_mut(key)
    {
        queue.arm = before;
    }
    connection::tick(&mut world, device);
    lost.unwrap_or_default()
}

/// The segments at `list`. A length of 0 stands for 2^31 bytes, except on iWARP.
///
/// # Safety
/// There are `count` of them.
unsafe fn segments(list: *const ibv_sge, count: u32, iwarp: bool) -> Vec<Segment> {
    let one = |index: u32| {
        // SAFETY: the caller promises it.
        let place = unsafe { list.add(index as usize) };
        // SAFETY: as above.
        let sge = unsafe { place.read() };
        let len = match sge.length {
            0 if !iwarp => 1 << 31,
            length => u64::from(length),
        };
        Segment {
            addr: sge.addr,
            len,
            key: sge.lkey,
        }
    };
    (0..count).map(one).collect()
}

/// The bytes of inline segments.
///
/// # Safety
/// There are `count` segments, which name bytes of this process.
unsafe fn inline_bytes(list: *const ibv_sge, count: u32) -> Box<[u8]> {
    let mut bytes = Vec::new();
    for index in 0..count {
        // SAFETY: the caller promises it.
        let place = unsafe { list.add(index as usize) };
        // SAFETY: as above.
        let sge = unsafe { place.read() };
        let (Ok(addr), len) = (usize::try_from(sge.addr), sge.length as usize) else {
            continue;
        };
        let start = std::ptr::with_exposed_provenance::<u8>(addr);
        // SAFETY: as above.
        bytes.extend_from_slice(unsafe { std::slice::from_raw_parts(start, len) });
    }
    bytes.into_boxed_slice()
}

/// What limits the work requests of a queue pair.
#[derive(Clone, Copy)]
struct Limits {
    segments: u32,
    inline: u32,
    iwarp: bool,
    windows: bool,
}

/// Reads one work request. Errors are those of the drivers: a request that they do not
/// support, or that exceeds the sizes of the queue pair.
///
/// # Safety
/// A work request, and its segments.
unsafe fn parse(wr: &ibv_send_wr, limits: Limits) -> Result<Op, c_int> {
    let count = unsigned(wr.num_sge);
    let inline = wr.send_flags & ibv_send_flags::IBV_SEND_INLINE.0 != 0;
    // SAFETY: both members are numbers.
    let key = unsafe { wr.imm_data_invalidated_rkey_union.invalidated_rkey };
    // SAFETY: all members start with two numbers.
    let rdma = unsafe { wr.wr.rdma };
    let remote = Remote {
        addr: rdma.remote_addr,
        key: rdma.rkey,
    };
    if wr.opcode == opcode::IBV_WR_LOCAL_INV && limits.windows {
        return Ok(Op::Invalidate { key });
    }
    if wr.opcode == opcode::IBV_WR_BIND_MW && limits.windows {
        // SAFETY: the member of this operation.
        let bind = unsafe { wr.bind_mw_tso_union.bind_mw };
        // SAFETY: the caller passes a window.
        let window = handle(unsafe { (*bind.mw).handle });
        // SAFETY: the caller passes a region.
        let region = handle(unsafe { (*bind.bind_info.mr).handle });
        return Ok(Op::Bind {
            window,
            key: bind.rkey,
            region,
            addr: bind.bind_info.addr,
            len: bind.bind_info.length,
            access: bind.bind_info.mw_access_flags,
        });
    }
    if wr.num_sge < 0 || count > limits.segments {
        return Err(libc::EINVAL);
    }
    let invalidates = wr.opcode == opcode::IBV_WR_SEND_WITH_INV;
    if wr.opcode == opcode::IBV_WR_RDMA_READ {
        // An iWARP Read has one destination.
        if inline || (limits.iwarp && count > 1) {
            return Err(libc::EINVAL);
        }
        // SAFETY: the caller passes as many segments.
        let local = unsafe { segments(wr.sg_list, count, limits.iwarp) };
        return Ok(Op::Read { local, remote });
    }
    let data = if inline {
        // SAFETY: as above; inline segments name bytes of this process.
        let bytes = unsafe { inline_bytes(wr.sg_list, count) };
        if bytes.len() > limits.inline as usize || (limits.iwarp && invalidates) {
            return Err(libc::EINVAL);
        }
        Data::Inline(bytes)
    } else {
        // SAFETY: as above.
        Data::Memory(unsafe { segments(wr.sg_list, count, limits.iwarp) })
    };
    match wr.opcode {
        opcode::IBV_WR_RDMA_WRITE => Ok(Op::Write { data, remote }),
        opcode::IBV_WR_SEND | opcode::IBV_WR_SEND_WITH_INV => Ok(Op::Send {
            data,
            invalidate: invalidates.then_some(key),
            solicited: wr.send_flags & ibv_send_flags::IBV_SEND_SOLICITED.0 != 0,
        }),
        _ => Err(libc::EINVAL),
    }
}

fn limits_of(world: &World, qp: &Qp) -> Limits {
    let profile = world.devices.get(qp.device).map(|device| device.profile);
    Limits {
        segments: qp.sizes.send_segments,
        inline: qp.sizes.inline,
        iwarp: profile.is_some_and(|profile| profile.is_iwarp()),
        windows: profile.is_some_and(|profile| profile.windows),
    }
}

unsafe fn post_send(qp: *mut ibv_qp, first: *mut ibv_send_wr, bad: *mut *mut ibv_send_wr) -> c_int {
    // SAFETY: the caller passes a queue pair.
    let key = handle(unsafe { (*qp).handle });
    let mut world = lock();
    let Some((limits, device)) = world
        .qps
        .get(key)
        .map(|qp| (limits_of(&world, qp), qp.device))
    else {
        return libc::EINVAL;
    };
    let mut result = 0;
    if let Some(one) = world.device_mut(device) {
        one.counters.post_send += 1;
        result = one.faults.hit(Point::PostSend).unwrap_or(0);
    }
    let mut next = first;
    while result == 0 && !next.is_null() {
        // SAFETY: the caller links work requests up to a null pointer. The borrow ends before
        // the caller may change it.
        let wr = unsafe { &*next };
        // SAFETY: as above.
        let parsed = unsafe { parse(wr, limits) };
        match parsed.and_then(|op| add(&mut world, key, wr, op)) {
            Ok(()) => next = wr.next,
            Err(errno) => result = errno,
        }
    }
    if result != 0 {
        // SAFETY: the caller passes a place for it.
        unsafe { bad.write(next) };
    }
    transfer::run(&mut world, key);
    connection::settle(&mut world);
    ticker::watch(&world, device);
    result
}

/// Adds an entry to a send queue.
fn add(world: &mut World, key: usize, wr: &ibv_send_wr, op: Op) -> Result<(), c_int> {
    let qp = world.qps.get_mut(key).ok_or(libc::EINVAL)?;
    if qp.state == State::Init {
        return Err(libc::EINVAL);
    }
    if qp.sends_used >= qp.sizes.sends {
        return Err(libc::ENOMEM);
    }
    let device = world.devices.get_mut(qp.device).ok_or(libc::EINVAL)?;
    let signalled = wr.send_flags & ibv_send_flags::IBV_SEND_SIGNALED.0 != 0;
    count(&mut device.counters, wr, &op, signalled);
    let faults = &mut device.faults;
    let fault = if let Some(end) = faults.hit(Point::Send) {
        Some(Fault::Status(end.unsigned_abs()))
    } else if faults.hit(Point::QpFatal).is_some() {
        Some(Fault::QpFatal)
    } else if faults.hit(Point::CqError).is_some() {
        Some(Fault::CqError)
    } else {
        faults.hit(Point::Removal).map(|_| Fault::Removal)
    };
    let mut delay = device.profile.delay;
    if matches!(op, Op::Bind { .. } | Op::Invalidate { .. }) {
        delay += device.profile.local_delay;
    }
    let stopped = qp.state == State::Error;
    qp.sends_used += 1;
    qp.sends.push_back(Entry {
        id: wr.wr_id,
        op,
        signalled,
        due: device.time + u64::from(delay),
        progress: if stopped {
            Progress::Done(status::IBV_WC_WR_FLUSH_ERR)
        } else {
            Progress::Waiting
        },
        fault,
        number: 0,
        arrived: None,
    });
    Ok(())
}

fn count(counters: &mut crate::Counters, wr: &ibv_send_wr, op: &Op, signalled: bool) {
    counters.signalled += u64::from(signalled);
    let data = match op {
        Op::Send {
            data, invalidate, ..
        } => {
            counters.sends += 1;
            counters.sends_with_invalidate += u64::from(invalidate.is_some());
            Some(data)
        }
        Op::Write { data, .. } => {
            counters.writes += 1;
            Some(data)
        }
        Op::Read { .. } => {
            counters.reads += 1;
            counters.segments += u64::from(unsigned(wr.num_sge));
            None
        }
        Op::Bind { .. } => {
            counters.binds += 1;
            None
        }
        Op::Invalidate { .. } => {
            counters.local_invalidates += 1;
            None
        }
    };
    match data {
        Some(Data::Inline(bytes)) => {
            counters.inline += 1;
            counters.inline_bytes += bytes.len() as u64;
        }
        Some(Data::Memory(segments)) => counters.segments += segments.len() as u64,
        None => {}
    }
}

/// Posts a chain of receives by `add`, which returns an errno for one that is refused.
///
/// # Safety
/// Receives that are linked up to a null pointer, and a place for a pointer.
unsafe fn post_receives(
    first: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
    iwarp: bool,
    mut add: impl FnMut(Receive) -> Result<(), c_int>,
) -> c_int {
    let mut next = first;
    while !next.is_null() {
        // SAFETY: the caller promises it.
        let wr = unsafe { next.read() };
        // SAFETY: as above.
        let segments = unsafe { segments(wr.sg_list, unsigned(wr.num_sge), iwarp) };
        let receive = Receive {
            id: wr.wr_id,
            segments,
        };
        if let Err(errno) = add(receive) {
            // SAFETY: as above.
            unsafe { bad.write(next) };
            return errno;
        }
        next = wr.next;
    }
    0
}

unsafe fn post_recv(qp: *mut ibv_qp, first: *mut ibv_recv_wr, bad: *mut *mut ibv_recv_wr) -> c_int {
    // SAFETY: the caller passes a queue pair.
    let key = handle(unsafe { (*qp).handle });
    let mut world = lock();
    let this = &mut *world;
    let Some(pair) = this.qps.get_mut(key) else {
        return libc::EINVAL;
    };
    let Some(device) = this.devices.get_mut(pair.device) else {
        return libc::EINVAL;
    };
    device.counters.post_recv += 1;
    let refused = device.faults.hit(Point::PostRecv);
    let iwarp = device.profile.is_iwarp();
    let add = |receive: Receive| {
        if let Some(errno) = refused {
            return Err(errno);
        }
        let sizes = pair.sizes;
        if pair.srq.is_some() || receive.segments.len() > sizes.receive_segments as usize {
            return Err(libc::EINVAL);
        }
        if pair.receives_used >= sizes.receives {
            return Err(libc::ENOMEM);
        }
        pair.receives_used += 1;
        pair.receives.push_back(receive);
        device.counters.receives += 1;
        Ok(())
    };
    // SAFETY: as the caller of this function promises.
    let result = unsafe { post_receives(first, bad, iwarp, add) };
    if pair.state == State::Error {
        transfer::flush_receives(&mut world, key);
    }
    transfer::run_peer(&mut world, key);
    connection::settle(&mut world);
    result
}

unsafe fn post_srq_recv(
    srq: *mut ibv_srq,
    first: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: the caller passes a queue.
    let key = handle(unsafe { (*srq).handle });
    let mut world = lock();
    let this = &mut *world;
    let Some(queue) = this.srqs.get_mut(key) else {
        return libc::EINVAL;
    };
    let Some(device) = this.devices.get_mut(queue.device) else {
        return libc::EINVAL;
    };
    device.counters.post_srq_recv += 1;
    let refused = device.faults.hit(Point::PostSrqRecv);
    let add = |receive: Receive| {
        if let Some(errno) = refused {
            return Err(errno);
        }
        if receive.segments.len() > queue.max_segments as usize {
            return Err(libc::EINVAL);
        }
        if queue.used >= queue.capacity {
            return Err(libc::ENOMEM);
        }
        queue.used += 1;
        queue.receives.push_back(receive);
        device.counters.receives += 1;
        Ok(())
    };
    // SAFETY: as the caller of this function promises.
    let result = unsafe { post_receives(first, bad, false, add) };
    let users = queue.users.clone();
    for qp in users {
        transfer::run_peer(&mut world, qp);
    }
    connection::settle(&mut world);
    result
}
