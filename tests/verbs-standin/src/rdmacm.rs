//! The functions of librdmacm.

use std::os::fd::BorrowedFd;

use libc::{c_int, c_uint, c_void, sockaddr};

use crate::address::{from_raw, set_qp};
use crate::calls::{failed, handle, none, number, result, set_errno};
use crate::completion::Frees;
use crate::connection::{self, Offer};
use crate::control;
use crate::device::Element;
use crate::faults::Point;
use crate::ids::{CmChannel, CmEvent, Params};
use crate::queue::{Qp, Sizes, State};
use crate::raw::{
    Ptr, ibv_context, ibv_cq, ibv_pd, ibv_qp, ibv_qp_init_attr, ibv_srq, list_of, rdma_cm_event,
    rdma_cm_id, rdma_conn_param, rdma_event_channel, zeroed,
};
use crate::signal::{self, Signal};
use crate::world::{World, acknowledged, lock, wait_for_acknowledgements};

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_get_devices(count: *mut c_int) -> *mut *mut ibv_context {
    control::read_environment();
    let world = lock();
    let present = world.devices.iter().filter(|device| !device.removed);
    let contexts: Vec<_> = present.map(|device| device.context.as_ptr()).collect();
    // SAFETY: the caller passes a place for the number, or null.
    unsafe { list_of(&contexts, count) }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_free_devices(list: *mut *mut ibv_context) {
    // SAFETY: a list that `rdma_get_devices` returned, or one like it.
    unsafe { libc::free(list.cast()) };
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_create_event_channel() -> *mut rdma_event_channel {
    control::read_environment();
    let signal = match Signal::new() {
        Ok(signal) => signal,
        Err(error) => return none(error.raw_os_error().unwrap_or(libc::EMFILE)),
    };
    let raw = Ptr::new(rdma_event_channel {
        fd: signal.raw_fd(),
    });
    let channel = CmChannel {
        raw,
        signal,
        events: std::collections::VecDeque::new(),
    };
    lock().ids.channels.insert(raw.addr(), channel);
    raw.as_ptr()
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_destroy_event_channel(channel: *mut rdma_event_channel) {
    let mut world = lock();
    let key = channel.addr();
    let users = world.ids.ids.values().filter(|id| id.channel == key);
    let users = users.count();
    if users > 0 {
        world.violation(format!("an event channel with {users} ids is destroyed"));
    }
    if let Some(channel) = world.ids.channels.remove(&key) {
        // SAFETY: it was in the table, and the caller gives it up.
        unsafe { channel.raw.free() };
    }
}

/// An event with its private data.
#[repr(C)]
struct Event {
    raw: rdma_cm_event,
    private_data: Vec<u8>,
    /// Address of the id that waits for the acknowledgement.
    of: usize,
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_get_cm_event(
    channel: *mut rdma_event_channel,
    to: *mut *mut rdma_cm_event,
) -> c_int {
    // SAFETY: the caller passes a channel.
    let fd = unsafe { (*channel).fd };
    // SAFETY: the descriptor is open as long as the channel.
    let fd = unsafe { BorrowedFd::borrow_raw(fd) };
    if let Err(error) = signal::take(fd) {
        return failed(error.raw_os_error().unwrap_or(libc::EIO));
    }
    let mut world = lock();
    let channel = world.ids.channels.get_mut(&channel.addr());
    let Some(event) = channel.and_then(|channel| channel.events.pop_front()) else {
        return failed(libc::EAGAIN);
    };
    connection::taken(&mut world, &event);
    connection::settle(&mut world);
    let Some(raw) = event_of(&mut world, event) else {
        return failed(libc::EAGAIN);
    };
    // SAFETY: the caller passes a place for it.
    unsafe { to.write(raw.as_ptr().cast()) };
    0
}

/// The structure of an event.
fn event_of(world: &mut World, event: CmEvent) -> Option<Ptr<Event>> {
    let of = event.listener.unwrap_or(event.id);
    let listener = event.listener.and_then(|key| world.ids.ids.get(&key));
    let listener = listener.map(|id| id.raw);
    let id = world.ids.ids.get(&event.id)?.raw;
    world.ids.ids.get_mut(&of)?.unacknowledged += 1;
    // SAFETY: numbers and pointers.
    let mut raw: rdma_cm_event = unsafe { zeroed() };
    raw.id = id.as_ptr();
    raw.listen_id = listener.map_or(std::ptr::null_mut(), Ptr::as_ptr);
    raw.event = event.kind;
    raw.status = event.status;
    // SAFETY: numbers and pointers.
    let mut param: rdma_conn_param = unsafe { zeroed() };
    param.responder_resources = event.params.reads_in;
    param.initiator_depth = event.params.reads_out;
    param.private_data_len = u8::try_from(event.private_data.len()).unwrap_or(u8::MAX);
    if !event.private_data.is_empty() {
        // A vector keeps its bytes where they are when it moves.
        param.private_data = event.private_data.as_ptr().cast();
    }
    raw.param.conn = param;
    Some(Ptr::new(Event {
        raw,
        private_data: event.private_data,
        of,
    }))
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_ack_cm_event(event: *mut rdma_cm_event) -> c_int {
    // SAFETY: `rdma_get_cm_event` made it, and the caller gives it up.
    let event = unsafe { Box::from_raw(event.cast::<Event>()) };
    let mut world = lock();
    if let Some(id) = world.ids.ids.get_mut(&event.of) {
        id.unacknowledged = id.unacknowledged.saturating_sub(1);
    }
    drop(event.private_data);
    acknowledged();
    0
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_create_id(
    channel: *mut rdma_event_channel,
    to: *mut *mut rdma_cm_id,
    context: *mut c_void,
    _port_space: c_uint,
) -> c_int {
    let mut world = lock();
    if !world.ids.channels.contains_key(&channel.addr()) {
        return failed(libc::EINVAL);
    }
    let id = connection::create_id(&mut world, channel.addr(), context.addr());
    let Some(id) = world.ids.ids.get(&id) else {
        return failed(libc::ENOMEM);
    };
    // SAFETY: the caller passes a place for it.
    unsafe { to.write(id.raw.as_ptr()) };
    0
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_destroy_id(id: *mut rdma_cm_id) -> c_int {
    let key = id.addr();
    let world = lock();
    let open = |world: &World| world.ids.ids.get(&key).map_or(0, |id| id.unacknowledged);
    let mut world = wait_for_acknowledgements(world, "an id is", open);
    let Some(one) = world.ids.ids.get(&key) else {
        return failed(libc::EINVAL);
    };
    if one.qp.is_some() {
        world.violation("an id is destroyed before its queue pair".to_owned());
        return failed(libc::EBUSY);
    }
    connection::leave(&mut world, key);
    0
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_bind_addr(id: *mut rdma_cm_id, addr: *mut sockaddr) -> c_int {
    // SAFETY: the caller passes an address.
    let Some(addr) = (unsafe { from_raw(addr) }) else {
        return failed(libc::EAFNOSUPPORT);
    };
    result(connection::bind(&mut lock(), id.addr(), addr))
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_listen(id: *mut rdma_cm_id, _backlog: c_int) -> c_int {
    result(connection::listen(&mut lock(), id.addr()))
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_resolve_addr(
    id: *mut rdma_cm_id,
    from: *mut sockaddr,
    to: *mut sockaddr,
    _timeout_ms: c_int,
) -> c_int {
    // SAFETY: the caller passes an address.
    let Some(to) = (unsafe { from_raw(to) }) else {
        return failed(libc::EAFNOSUPPORT);
    };
    // SAFETY: the caller passes an address or null.
    let from = unsafe { from_raw(from) };
    let mut world = lock();
    if let Some(from) = from
        && let Err(errno) = connection::bind(&mut world, id.addr(), from)
    {
        return failed(errno);
    }
    result(connection::resolve_addr(&mut world, id.addr(), to))
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_resolve_route(id: *mut rdma_cm_id, _ms: c_int) -> c_int {
    result(connection::resolve_route(&mut lock(), id.addr()))
}

/// The parts of a queue pair to create, by number, and its sizes.
struct Parts {
    pd: usize,
    send_cq: usize,
    recv_cq: usize,
    srq: Option<usize>,
    sizes: Sizes,
}

fn cq_key(cq: *mut ibv_cq) -> usize {
    // SAFETY: the callers of this crate pass a queue.
    handle(unsafe { (*cq).handle })
}

fn srq_key(srq: *mut ibv_srq) -> Option<usize> {
    // SAFETY: the callers of this crate pass a queue, or null.
    (!srq.is_null()).then(|| handle(unsafe { (*srq).handle }))
}

/// Checks the parts of a queue pair against its device.
fn check(world: &World, device: usize, parts: &Parts) -> Result<(), c_int> {
    let one = world.devices.get(device).ok_or(libc::EINVAL)?;
    let profile = &one.profile;
    let sizes = parts.sizes;
    let cq = |key: usize| world.cqs.get(key).map(|cq| cq.device);
    let pd = world.memory.pds.get(parts.pd).map(|pd| pd.device);
    let srq = parts.srq.and_then(|key| world.srqs.get(key));
    let same = [cq(parts.send_cq), cq(parts.recv_cq), pd];
    if same.iter().any(|of| *of != Some(device))
        || srq.is_some_and(|srq| srq.device != device)
        || parts.srq.is_some() != srq.is_some()
        || sizes.sends > profile.max_qp_wr
        || sizes.receives > profile.max_qp_wr
        || sizes.send_segments > profile.max_sge
        || sizes.receive_segments > profile.max_sge
        || sizes.inline > profile.max_inline
    {
        return Err(libc::EINVAL);
    }
    let used = world.qps.iter().filter(|(_, qp)| qp.device == device);
    if one.removed {
        return Err(libc::EIO);
    }
    if used.count() >= profile.max_qp as usize {
        return Err(libc::ENOMEM);
    }
    Ok(())
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_create_qp(
    id: *mut rdma_cm_id,
    pd: *mut ibv_pd,
    init: *mut ibv_qp_init_attr,
) -> c_int {
    // SAFETY: the caller passes the attributes.
    let attr = unsafe { init.read() };
    // SAFETY: the caller passes a domain.
    let pd_key = handle(unsafe { (*pd).handle });
    let parts = Parts {
        pd: pd_key,
        send_cq: cq_key(attr.send_cq),
        recv_cq: cq_key(attr.recv_cq),
        srq: srq_key(attr.srq),
        sizes: Sizes {
            sends: attr.cap.max_send_wr,
            receives: attr.cap.max_recv_wr,
            send_segments: attr.cap.max_send_sge,
            receive_segments: attr.cap.max_recv_sge,
            inline: attr.cap.max_inline_data,
        },
    };
    let mut world = lock();
    let one = world.ids.ids.get(&id.addr());
    let Some(device) = one
        .filter(|one| one.qp.is_none())
        .and_then(|one| one.device)
    else {
        return failed(libc::EINVAL);
    };
    if let Err(errno) = check(&world, device, &parts) {
        return failed(errno);
    }
    let planned = world
        .device_mut(device)
        .and_then(|one| one.faults.hit(Point::CreateQp));
    if let Some(errno) = planned {
        return failed(errno);
    }
    add_qp(&mut world, id.addr(), device, &parts, &attr, pd);
    0
}

/// Creates a queue pair, whose parts were checked.
fn add_qp(
    world: &mut World,
    id: usize,
    device: usize,
    parts: &Parts,
    attr: &ibv_qp_init_attr,
    pd: *mut ibv_pd,
) {
    world.last_qp_number += 1;
    let qp_number = world.last_qp_number;
    let context = world.devices.get(device).map(|device| device.context);
    let slot = world.qps.vacant_entry();
    let key = slot.key();
    // SAFETY: numbers and pointers.
    let mut raw: ibv_qp = unsafe { zeroed() };
    raw.context = context.map_or(std::ptr::null_mut(), Ptr::as_ptr);
    raw.pd = pd;
    raw.send_cq = attr.send_cq;
    raw.recv_cq = attr.recv_cq;
    raw.srq = attr.srq;
    raw.handle = number(key);
    raw.qp_num = qp_number;
    raw.qp_type = attr.qp_type;
    let raw = Ptr::new(raw);
    slot.insert(Qp {
        raw,
        number: qp_number,
        device,
        pd: parts.pd,
        send_cq: parts.send_cq,
        recv_cq: parts.recv_cq,
        srq: parts.srq,
        state: State::Init,
        sizes: parts.sizes,
        id,
        peer: None,
        sends: std::collections::VecDeque::new(),
        sends_used: 0,
        silent: 0,
        receives: std::collections::VecDeque::new(),
        receives_used: 0,
        reading: 0,
        reads_out: 0,
        reads_in: 0,
        rnr_retry: 0,
        unanswered: 0,
        next_number: 0,
        not_ready: false,
        reported_early: false,
        unacknowledged: 0,
    });
    if let Some(pd) = world.memory.pds.get_mut(parts.pd) {
        pd.users += 1;
    }
    for cq in [parts.send_cq, parts.recv_cq] {
        if let Some(cq) = world.cqs.get_mut(cq) {
            cq.users += 1;
        }
    }
    if let Some(srq) = parts.srq.and_then(|srq| world.srqs.get_mut(srq)) {
        srq.users.push(key);
    }
    if let Some(one) = world.ids.ids.get_mut(&id) {
        one.qp = Some(key);
        set_qp(one.raw, raw.as_ptr());
    }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_destroy_qp(id: *mut rdma_cm_id) {
    let world = lock();
    let Some(key) = world.ids.ids.get(&id.addr()).and_then(|id| id.qp) else {
        return;
    };
    let open = |world: &World| world.qps.get(key).map_or(0, |qp| qp.unacknowledged);
    let mut world = wait_for_acknowledgements(world, "a queue pair is", open);
    let world = &mut *world;
    if let Some(id) = world.ids.ids.get_mut(&id.addr()) {
        id.qp = None;
        set_qp(id.raw, std::ptr::null_mut());
    }
    let Some(qp) = world.qps.try_remove(key) else {
        return;
    };
    forget_completions(world, key, &qp);
    if let Some(device) = world.device_mut(qp.device) {
        device.forget(Element::Qp(key));
        device.active.remove(&key);
    }
    if let Some(pd) = world.memory.pds.get_mut(qp.pd) {
        pd.users -= 1;
    }
    for cq in [qp.send_cq, qp.recv_cq] {
        if let Some(cq) = world.cqs.get_mut(cq) {
            cq.users -= 1;
        }
    }
    if let Some(srq) = qp.srq.and_then(|srq| world.srqs.get_mut(srq)) {
        srq.users.retain(|user| *user != key);
    }
    world.broken.retain(|broken| *broken != key);
    // SAFETY: it was in the table, and the caller gives it up.
    unsafe { qp.raw.free() };
}

/// Removes the completions of a destroyed queue pair, as most drivers do. Those of shared
/// receives are lost: their owner should have waited for the last one.
fn forget_completions(world: &mut World, key: usize, qp: &Qp) {
    let mut lost = 0;
    for cq in [qp.send_cq, qp.recv_cq] {
        let Some(cq) = world.cqs.get_mut(cq) else {
            continue;
        };
        cq.entries.retain(|one| {
            let own = one.qp == key && one.number == qp.number;
            if own && let Frees::Shared(srq) = one.frees {
                lost += 1;
                if let Some(srq) = world.srqs.get_mut(srq) {
                    srq.used -= 1;
                }
            }
            !own
        });
    }
    if let Some(device) = world.device_mut(qp.device) {
        device.counters.lost_receives += lost;
    }
}

/// What an id offers its peer.
///
/// # Safety
/// Parameters with their private data, or null.
unsafe fn offer(id: *mut rdma_cm_id, param: *const rdma_conn_param) -> Offer {
    if param.is_null() {
        return connection::default_offer(&lock(), id.addr());
    }
    // SAFETY: the caller promises it.
    let param = unsafe { param.read() };
    let (data, len) = (param.private_data, usize::from(param.private_data_len));
    let private_data = if data.is_null() || len == 0 {
        Vec::new()
    } else {
        // SAFETY: as above.
        unsafe { std::slice::from_raw_parts(data.cast::<u8>(), len) }.to_vec()
    };
    Offer {
        private_data,
        params: Params {
            reads_in: param.responder_resources,
            reads_out: param.initiator_depth,
            rnr_retry: param.rnr_retry_count.min(7),
        },
    }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_connect(
    id: *mut rdma_cm_id,
    param: *mut rdma_conn_param,
) -> c_int {
    // SAFETY: as the caller promises.
    let offer = unsafe { offer(id, param) };
    result(connection::connect(&mut lock(), id.addr(), &offer))
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_accept(
    id: *mut rdma_cm_id,
    param: *mut rdma_conn_param,
) -> c_int {
    // SAFETY: as the caller promises.
    let offer = unsafe { offer(id, param) };
    result(connection::accept(&mut lock(), id.addr(), &offer))
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_reject(
    id: *mut rdma_cm_id,
    data: *const c_void,
    len: u8,
) -> c_int {
    let data = if data.is_null() || len == 0 {
        &[]
    } else {
        // SAFETY: the caller passes as many bytes.
        unsafe { std::slice::from_raw_parts(data.cast::<u8>(), usize::from(len)) }
    };
    result(connection::reject(&mut lock(), id.addr(), data))
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_disconnect(id: *mut rdma_cm_id) -> c_int {
    result(connection::disconnect(&mut lock(), id.addr()))
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_notify(id: *mut rdma_cm_id, _event: c_int) -> c_int {
    result(connection::notify(&mut lock(), id.addr()))
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_migrate_id(
    id: *mut rdma_cm_id,
    channel: *mut rdma_event_channel,
) -> c_int {
    let key = id.addr();
    let world = lock();
    let open = |world: &World| world.ids.ids.get(&key).map_or(0, |id| id.unacknowledged);
    let mut world = wait_for_acknowledgements(world, "an id is", open);
    let events = world.ids.take_events(key);
    let Some(one) = world.ids.ids.get_mut(&key) else {
        return failed(libc::EINVAL);
    };
    one.channel = channel.addr();
    // SAFETY: an id that exists; the library writes this member.
    let place = unsafe { &raw mut (*one.raw.as_ptr()).channel };
    // SAFETY: as above.
    unsafe { place.write(channel) };
    for event in events {
        world.ids.report(event);
    }
    0
}

/// `RDMA_OPTION_ID` and its options.
const OPTION_ID: c_int = 0;
const OPTION_REUSEADDR: c_int = 1;
const OPTION_ACK_TIMEOUT: c_int = 3;

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_set_option(
    id: *mut rdma_cm_id,
    level: c_int,
    name: c_int,
    _value: *mut c_void,
    _len: usize,
) -> c_int {
    let mut world = lock();
    let key = id.addr();
    let device = world.ids.ids.get(&key).and_then(|id| id.device);
    let device = device.and_then(|device| world.devices.get(device));
    let iwarp = device.is_some_and(|device| device.profile.is_iwarp());
    let Some(one) = world.ids.ids.get_mut(&key) else {
        return failed(libc::EINVAL);
    };
    if level != OPTION_ID || (name == OPTION_ACK_TIMEOUT && iwarp) {
        return failed(libc::ENOSYS);
    }
    one.reuse |= name == OPTION_REUSEADDR;
    set_errno(0);
    0
}
