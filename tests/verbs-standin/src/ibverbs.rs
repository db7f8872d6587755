//! The functions of libibverbs.

use std::os::fd::BorrowedFd;

use libc::{c_char, c_int, c_uint, c_void};

use crate::calls::{failed, handle, int, none, number, unsigned};
use crate::completion::{Arm, Channel, Cq};
use crate::connection;
use crate::device::Element;
use crate::faults::Point;
use crate::memory::{Mr, Owner, Pd};
use crate::oracle;
use crate::queue::{Srq, State};
use crate::raw::{
    AsyncElement, AsyncEvent, LINK_LAYER_ETHERNET, Ptr, access, event, ibv_comp_channel,
    ibv_context, ibv_cq, ibv_device, ibv_device_attr, ibv_device_cap_flags, ibv_mr, ibv_mtu,
    ibv_pd, ibv_port_attr, ibv_port_state, ibv_qp, ibv_qp_attr, ibv_qp_attr_mask, ibv_qp_init_attr,
    ibv_qp_state, ibv_srq, ibv_srq_init_attr, zeroed,
};
use crate::signal::{self, Signal};
use crate::transfer;
use crate::world::{World, acknowledged, lock, wait_for_acknowledgements};

/// The device of a context.
fn device_of(world: &World, context: *mut ibv_context) -> Option<usize> {
    let mut devices = world.devices.iter();
    devices.position(|device| device.context.addr() == context.addr())
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_get_device_name(device: *mut ibv_device) -> *const c_char {
    // SAFETY: the caller passes a device.
    let name = unsafe { &raw const (*device).name };
    name.cast()
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_query_device(
    context: *mut ibv_context,
    to: *mut ibv_device_attr,
) -> c_int {
    let world = lock();
    let Some(device) = device_of(&world, context).and_then(|key| world.devices.get(key)) else {
        return libc::EINVAL;
    };
    let profile = &device.profile;
    // SAFETY: numbers.
    let mut attr: ibv_device_attr = unsafe { zeroed() };
    attr.vendor_id = profile.vendor_id;
    attr.max_mr_size = u64::MAX;
    attr.page_size_cap = !4095;
    attr.max_qp = int(profile.max_qp);
    attr.max_qp_wr = int(profile.max_qp_wr);
    attr.max_sge = int(profile.max_sge);
    attr.max_sge_rd = int(if profile.is_iwarp() {
        1
    } else {
        profile.max_sge
    });
    attr.max_cq = int(profile.max_cq);
    attr.max_cqe = int(profile.max_cqe);
    attr.max_pd = int(profile.max_pd);
    attr.max_mr = int(profile.max_mr);
    attr.max_mw = int(profile.max_mw);
    attr.max_srq = int(profile.max_srq);
    attr.max_srq_wr = int(profile.max_srq_wr);
    attr.max_srq_sge = int(profile.max_sge);
    attr.max_qp_rd_atom = int(profile.max_reads);
    attr.max_qp_init_rd_atom = int(profile.max_reads);
    attr.max_res_rd_atom = int(profile.max_reads.saturating_mul(profile.max_qp));
    attr.phys_port_cnt = 1;
    // Send with Invalidate, among others.
    attr.device_cap_flags = ibv_device_cap_flags::IBV_DEVICE_MEM_MGT_EXTENSIONS.0;
    if profile.windows {
        attr.device_cap_flags |= ibv_device_cap_flags::IBV_DEVICE_MEM_WINDOW_TYPE_2B.0;
    }
    // SAFETY: the caller passes a place for it.
    unsafe { to.write(attr) };
    0
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_query_port(
    context: *mut ibv_context,
    port: u8,
    to: *mut ibv_port_attr,
) -> c_int {
    let world = lock();
    let Some(device) = device_of(&world, context).and_then(|key| world.devices.get(key)) else {
        return libc::EINVAL;
    };
    if port != 1 {
        return libc::EINVAL;
    }
    // SAFETY: the caller passes a structure that is at least as long as its older form, which
    // has these members.
    let attr = unsafe { &mut *to };
    attr.state = if device.removed {
        ibv_port_state::IBV_PORT_DOWN
    } else {
        ibv_port_state::IBV_PORT_ACTIVE
    };
    attr.max_mtu = ibv_mtu::IBV_MTU_4096;
    attr.active_mtu = ibv_mtu::IBV_MTU_4096;
    attr.max_msg_sz = device.profile.max_message;
    attr.link_layer = LINK_LAYER_ETHERNET;
    0
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_get_async_event(
    context: *mut ibv_context,
    to: *mut AsyncEvent,
) -> c_int {
    // SAFETY: contexts are never freed.
    let fd = unsafe { (*context).async_fd };
    // SAFETY: the descriptor is open as long as the context.
    let fd = unsafe { BorrowedFd::borrow_raw(fd) };
    if let Err(error) = signal::take(fd) {
        return failed(error.raw_os_error().unwrap_or(libc::EIO));
    }
    let mut world = lock();
    let world = &mut *world;
    let device = device_of(world, context).and_then(|key| world.devices.get_mut(key));
    let Some((element, event)) = device.and_then(|device| device.events.pop_front()) else {
        return failed(libc::EAGAIN);
    };
    let element = match element {
        Element::Qp(key) => world.qps.get_mut(key).map(|qp| {
            qp.unacknowledged += 1;
            AsyncElement {
                qp: qp.raw.as_ptr(),
            }
        }),
        Element::Cq(key) => world.cqs.get_mut(key).map(|cq| {
            cq.unacknowledged_async += 1;
            AsyncElement {
                cq: cq.raw.as_ptr(),
            }
        }),
        Element::Srq(key) => world.srqs.get_mut(key).map(|srq| {
            srq.unacknowledged += 1;
            AsyncElement {
                srq: srq.raw.as_ptr(),
            }
        }),
        Element::Device => Some(AsyncElement { port: 1 }),
    };
    let Some(element) = element else {
        return failed(libc::EAGAIN);
    };
    // SAFETY: the caller passes a place for it.
    unsafe { to.write(AsyncEvent { element, event }) };
    0
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_ack_async_event(of: *mut AsyncEvent) {
    // SAFETY: the caller passes an event that it took.
    let number = unsafe { (*of).event };
    // SAFETY: as above.
    let element = unsafe { &(*of).element };
    let mut world = lock();
    let count = match number {
        event::CQ_ERR => {
            // SAFETY: this event is about a completion queue.
            let cq = unsafe { element.cq };
            // SAFETY: it is not destroyed before the event is acknowledged.
            let cq = world.cqs.get_mut(handle(unsafe { (*cq).handle }));
            cq.map(|cq| &mut cq.unacknowledged_async)
        }
        event::SRQ_LIMIT => {
            // SAFETY: this event is about a shared receive queue.
            let srq = unsafe { element.srq };
            // SAFETY: as above.
            let srq = world.srqs.get_mut(handle(unsafe { (*srq).handle }));
            srq.map(|srq| &mut srq.unacknowledged)
        }
        event::DEVICE_FATAL => None,
        _ => {
            // SAFETY: the others are about a queue pair.
            let qp = unsafe { element.qp };
            // SAFETY: as above.
            let qp = world.qps.get_mut(handle(unsafe { (*qp).handle }));
            qp.map(|qp| &mut qp.unacknowledged)
        }
    };
    if let Some(count) = count {
        *count = count.saturating_sub(1);
    }
    acknowledged();
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_alloc_pd(context: *mut ibv_context) -> *mut ibv_pd {
    let mut world = lock();
    let world = &mut *world;
    let Some(key) = device_of(world, context) else {
        return none(libc::EINVAL);
    };
    let device = world.devices.get(key);
    if device.is_none_or(|device| device.removed) {
        return none(libc::EIO);
    }
    let most = device.map_or(0, |device| device.profile.max_pd) as usize;
    let used = world.memory.pds.iter().filter(|(_, pd)| pd.device == key);
    if used.count() >= most {
        return none(libc::ENOMEM);
    }
    let slot = world.memory.pds.vacant_entry();
    let raw = Ptr::new(ibv_pd {
        context,
        handle: number(slot.key()),
    });
    slot.insert(Pd {
        raw,
        device: key,
        users: 0,
    });
    raw.as_ptr()
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_dealloc_pd(pd: *mut ibv_pd) -> c_int {
    // SAFETY: the caller passes a domain.
    let key = handle(unsafe { (*pd).handle });
    let mut world = lock();
    let Some(domain) = world.memory.pds.get(key) else {
        return libc::EINVAL;
    };
    if domain.users > 0 {
        let text = format!("a protection domain with {} objects is freed", domain.users);
        world.violation(text);
        return libc::EBUSY;
    }
    let domain = world.memory.pds.remove(key);
    // SAFETY: it was in the table, and the caller gives it up.
    unsafe { domain.raw.free() };
    0
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_reg_mr(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    len: usize,
    flags: c_int,
) -> *mut ibv_mr {
    let named = addr.expose_provenance() as u64;
    // SAFETY: as this function's caller promises.
    unsafe { ibv_reg_mr_iova(pd, addr, len, named, flags) }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_reg_mr_iova(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    len: usize,
    named: u64,
    flags: c_int,
) -> *mut ibv_mr {
    // SAFETY: as this function's caller promises.
    unsafe { ibv_reg_mr_iova2(pd, addr, len, named, flags.cast_unsigned()) }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_reg_mr_iova2(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    len: usize,
    named: u64,
    flags: c_uint,
) -> *mut ibv_mr {
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
    if device.removed {
        return none(libc::EIO);
    }
    if let Some(errno) = device.faults.hit(Point::Register) {
        return none(errno);
    }
    // A peer may write only what the device may write (ibv_reg_mr(3)).
    let writes = flags & access::REMOTE_WRITE != 0;
    let binds = flags & access::BIND != 0 && !device.profile.windows;
    if len == 0 || (writes && flags & access::LOCAL_WRITE == 0) || binds {
        return none(libc::EINVAL);
    }
    if device.regions >= device.profile.max_mr {
        return none(libc::ENOMEM);
    }
    // Some iWARP devices have no other I/O addresses than those of the process.
    let addr_number = addr.expose_provenance() as u64;
    let named = if device.profile.is_iwarp() {
        addr_number
    } else {
        named
    };
    let slot = world.memory.mrs.vacant_entry();
    let index = device.keys.add(Owner::Region(slot.key()));
    let key = index << 8 | (index.wrapping_mul(37) & 0xff);
    let raw = Ptr::new(ibv_mr {
        context: device.context.as_ptr(),
        pd,
        addr,
        length: len,
        handle: number(slot.key()),
        lkey: key,
        rkey: key,
    });
    slot.insert(Mr {
        raw,
        pd: pd_key,
        addr: addr_number,
        named,
        len: len as u64,
        access: flags,
        key,
        invalidated: false,
        bound: 0,
    });
    domain.users += 1;
    device.regions += 1;
    device.counters.registrations += 1;
    device.counters.relaxed += u64::from(flags & access::RELAXED_ORDERING != 0);
    raw.as_ptr()
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_dereg_mr(mr: *mut ibv_mr) -> c_int {
    // SAFETY: the caller passes a region.
    let key = handle(unsafe { (*mr).handle });
    let mut world = lock();
    let world = &mut *world;
    let Some(region) = world.memory.mrs.get(key) else {
        return libc::EINVAL;
    };
    if region.bound > 0 {
        return libc::EBUSY;
    }
    let (domain, lkey) = (region.pd, region.key);
    let Some(of) = world.memory.pds.get(domain).map(|pd| pd.device) else {
        return libc::EINVAL;
    };
    let Some(device) = world.devices.get_mut(of) else {
        return libc::EINVAL;
    };
    if let Some(errno) = device.faults.hit(Point::Deregister) {
        return errno;
    }
    if device.audited
        && let Some(user) = oracle::user_of(world, of, lkey)
    {
        world.violation(format!("memory is deregistered under work of {user}"));
    }
    let Some(pd) = world.memory.pds.get_mut(domain) else {
        return libc::EINVAL;
    };
    let Some(device) = world.devices.get_mut(of) else {
        return libc::EINVAL;
    };
    let region = world.memory.mrs.remove(key);
    pd.users -= 1;
    device.keys.remove(region.key);
    device.regions -= 1;
    device.counters.deregistrations += 1;
    // SAFETY: it was in the table, and the caller gives it up.
    unsafe { region.raw.free() };
    0
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_create_comp_channel(
    context: *mut ibv_context,
) -> *mut ibv_comp_channel {
    let mut world = lock();
    let Some(device) = device_of(&world, context) else {
        return none(libc::EINVAL);
    };
    let signal = match Signal::new() {
        Ok(signal) => signal,
        Err(error) => return none(error.raw_os_error().unwrap_or(libc::EMFILE)),
    };
    let slot = world.channels.vacant_entry();
    let raw = Ptr::new(ibv_comp_channel {
        context,
        fd: signal.raw_fd(),
        // The number of the channel. Callers have no use for the member.
        refcnt: int(number(slot.key())),
    });
    slot.insert(Channel {
        raw,
        device,
        signal,
        events: std::collections::VecDeque::new(),
        users: 0,
    });
    raw.as_ptr()
}

fn channel_key(channel: *mut ibv_comp_channel) -> usize {
    // SAFETY: the callers of this crate pass a channel.
    handle(unsigned(unsafe { (*channel).refcnt }))
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_destroy_comp_channel(channel: *mut ibv_comp_channel) -> c_int {
    let key = channel_key(channel);
    let mut world = lock();
    let users = world.channels.get(key).map(|channel| channel.users);
    match users {
        Some(0) => {}
        Some(users) => {
            let text = format!("a completion channel with {users} queues is destroyed");
            world.violation(text);
            return libc::EBUSY;
        }
        None => return libc::EINVAL,
    }
    let channel = world.channels.remove(key);
    // SAFETY: it was in the table, and the caller gives it up.
    unsafe { channel.raw.free() };
    0
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_create_cq(
    context: *mut ibv_context,
    cqe: c_int,
    cq_context: *mut c_void,
    channel: *mut ibv_comp_channel,
    vector: c_int,
) -> *mut ibv_cq {
    let mut world = lock();
    let world = &mut *world;
    let Some(key) = device_of(world, context) else {
        return none(libc::EINVAL);
    };
    let used = world.cqs.iter().filter(|(_, cq)| cq.device == key).count();
    let Some(device) = world.devices.get_mut(key) else {
        return none(libc::EINVAL);
    };
    let profile = device.profile;
    let vector = u32::try_from(vector).unwrap_or(u32::MAX);
    if cqe < 1 || unsigned(cqe) > profile.max_cqe || vector >= profile.vectors {
        return none(libc::EINVAL);
    }
    if let Some(errno) = device.faults.hit(Point::CreateCq) {
        return none(errno);
    }
    if used >= profile.max_cq as usize || device.removed {
        return none(libc::ENOMEM);
    }
    let channel_key = (!channel.is_null()).then(|| channel_key(channel));
    if let Some(channel) = channel_key.and_then(|key| world.channels.get_mut(key)) {
        if channel.device != key {
            return none(libc::EINVAL);
        }
        channel.users += 1;
    }
    let slot = world.cqs.vacant_entry();
    // SAFETY: numbers and pointers.
    let mut raw: ibv_cq = unsafe { zeroed() };
    raw.context = context;
    raw.channel = channel;
    raw.cq_context = cq_context;
    raw.handle = number(slot.key());
    raw.cqe = cqe;
    let raw = Ptr::new(raw);
    device.counters.vectors |= 1 << vector.min(63);
    slot.insert(Cq {
        raw,
        device: key,
        channel: channel_key,
        capacity: unsigned(cqe) as usize,
        entries: std::collections::VecDeque::new(),
        arm: Arm::No,
        failed: false,
        users: 0,
        unacknowledged: 0,
        unacknowledged_async: 0,
    });
    raw.as_ptr()
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_destroy_cq(cq: *mut ibv_cq) -> c_int {
    // SAFETY: the caller passes a queue.
    let key = handle(unsafe { (*cq).handle });
    let world = lock();
    let open = |world: &World| {
        let cq = world.cqs.get(key);
        cq.map_or(0, |cq| cq.unacknowledged + cq.unacknowledged_async)
    };
    let mut world = wait_for_acknowledgements(world, "a completion queue is", open);
    let Some(queue) = world.cqs.get(key) else {
        return libc::EINVAL;
    };
    let (users, channel, device) = (queue.users, queue.channel, queue.device);
    if users > 0 {
        let text = format!("a completion queue with {users} queue pairs is destroyed");
        world.violation(text);
        return libc::EBUSY;
    }
    if let Some(channel) = channel.and_then(|key| world.channels.get_mut(key)) {
        let before = channel.events.len();
        channel.events.retain(|of| *of != key);
        channel.signal.lower(before - channel.events.len());
        channel.users -= 1;
    }
    if let Some(device) = world.device_mut(device) {
        device.forget(Element::Cq(key));
    }
    let queue = world.cqs.remove(key);
    // SAFETY: it was in the table, and the caller gives it up.
    unsafe { queue.raw.free() };
    0
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_get_cq_event(
    channel: *mut ibv_comp_channel,
    to: *mut *mut ibv_cq,
    context_to: *mut *mut c_void,
) -> c_int {
    // SAFETY: the caller passes a channel.
    let fd = unsafe { (*channel).fd };
    // SAFETY: the descriptor is open as long as the channel.
    let fd = unsafe { BorrowedFd::borrow_raw(fd) };
    if let Err(error) = signal::take(fd) {
        return failed(error.raw_os_error().unwrap_or(libc::EIO));
    }
    let key = channel_key(channel);
    let mut world = lock();
    let event = world.channels.get_mut(key);
    let Some(cq) = event.and_then(|channel| channel.events.pop_front()) else {
        return failed(libc::EAGAIN);
    };
    let Some(queue) = world.cqs.get_mut(cq) else {
        return failed(libc::EAGAIN);
    };
    queue.unacknowledged += 1;
    let (raw, device) = (queue.raw, queue.device);
    if let Some(device) = world.device_mut(device) {
        device.counters.events_taken += 1;
    }
    // SAFETY: the queue is not destroyed before the event is acknowledged.
    let context = unsafe { (*raw.as_ptr()).cq_context };
    // SAFETY: the caller passes places for both.
    unsafe { to.write(raw.as_ptr()) };
    // SAFETY: as above.
    unsafe { context_to.write(context) };
    0
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_ack_cq_events(cq: *mut ibv_cq, count: c_uint) {
    // SAFETY: the caller passes a queue.
    let key = handle(unsafe { (*cq).handle });
    let mut world = lock();
    let Some(queue) = world.cqs.get_mut(key) else {
        return;
    };
    let open = queue.unacknowledged;
    queue.unacknowledged = open.saturating_sub(count);
    if count > open {
        let text = format!("{count} events of a completion queue are acknowledged, of {open}");
        world.violation(text);
    }
    acknowledged();
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_create_srq(
    pd: *mut ibv_pd,
    init: *mut ibv_srq_init_attr,
) -> *mut ibv_srq {
    // SAFETY: the caller passes a domain.
    let pd_key = handle(unsafe { (*pd).handle });
    // SAFETY: the caller passes the attributes.
    let place = unsafe { &raw const (*init).attr };
    // SAFETY: as above.
    let attr = unsafe { place.read() };
    let mut world = lock();
    let world = &mut *world;
    let Some(domain) = world.memory.pds.get_mut(pd_key) else {
        return none(libc::EINVAL);
    };
    let Some(device) = world.devices.get_mut(domain.device) else {
        return none(libc::EINVAL);
    };
    let profile = device.profile;
    if attr.max_wr == 0 || attr.max_wr > profile.max_srq_wr || attr.max_sge > profile.max_sge {
        return none(libc::EINVAL);
    }
    if let Some(errno) = device.faults.hit(Point::CreateSrq) {
        return none(errno);
    }
    if world.srqs.len() >= profile.max_srq as usize || device.removed {
        return none(libc::ENOMEM);
    }
    let slot = world.srqs.vacant_entry();
    // SAFETY: numbers and pointers.
    let mut raw: ibv_srq = unsafe { zeroed() };
    raw.context = device.context.as_ptr();
    raw.pd = pd;
    raw.handle = number(slot.key());
    let raw = Ptr::new(raw);
    slot.insert(Srq {
        raw,
        device: domain.device,
        pd: pd_key,
        capacity: attr.max_wr,
        max_segments: attr.max_sge,
        receives: std::collections::VecDeque::new(),
        used: 0,
        limit: attr.srq_limit,
        users: Vec::new(),
        unacknowledged: 0,
    });
    domain.users += 1;
    raw.as_ptr()
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_destroy_srq(srq: *mut ibv_srq) -> c_int {
    // SAFETY: the caller passes a queue.
    let key = handle(unsafe { (*srq).handle });
    let world = lock();
    let open = |world: &World| world.srqs.get(key).map_or(0, |srq| srq.unacknowledged);
    let mut world = wait_for_acknowledgements(world, "a shared receive queue is", open);
    let Some(queue) = world.srqs.get(key) else {
        return libc::EINVAL;
    };
    if !queue.users.is_empty() {
        return libc::EBUSY;
    }
    let queue = world.srqs.remove(key);
    if let Some(pd) = world.memory.pds.get_mut(queue.pd) {
        pd.users -= 1;
    }
    if let Some(device) = world.device_mut(queue.device) {
        device.forget(Element::Srq(key));
    }
    // SAFETY: it was in the table, and the caller gives it up.
    unsafe { queue.raw.free() };
    0
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_modify_qp(
    qp: *mut ibv_qp,
    attr: *mut ibv_qp_attr,
    mask: c_int,
) -> c_int {
    // SAFETY: the caller passes a queue pair.
    let key = handle(unsafe { (*qp).handle });
    // SAFETY: the caller passes the attributes that the mask names.
    let wanted = unsafe { (*attr).qp_state };
    let mut world = lock();
    let Some(pair) = world.qps.get(key) else {
        return libc::EINVAL;
    };
    let (state, device) = (pair.state, pair.device);
    let removed = world.devices.get(device);
    if removed.is_none_or(|device| device.removed) {
        return libc::EIO;
    }
    if mask.cast_unsigned() & ibv_qp_attr_mask::IBV_QP_STATE.0 == 0 {
        return 0;
    }
    match wanted {
        ibv_qp_state::IBV_QPS_ERR => {
            transfer::stop(&mut world, key);
            connection::settle(&mut world);
            0
        }
        ibv_qp_state::IBV_QPS_RTS if state == State::Ready => 0,
        _ => libc::EINVAL,
    }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_query_qp(
    qp: *mut ibv_qp,
    attr: *mut ibv_qp_attr,
    _mask: c_int,
    _init: *mut ibv_qp_init_attr,
) -> c_int {
    // SAFETY: the caller passes a queue pair.
    let key = handle(unsafe { (*qp).handle });
    let world = lock();
    let Some(pair) = world.qps.get(key) else {
        return libc::EINVAL;
    };
    let state = match pair.state {
        State::Init => ibv_qp_state::IBV_QPS_INIT,
        State::Ready => ibv_qp_state::IBV_QPS_RTS,
        State::Error => ibv_qp_state::IBV_QPS_ERR,
    };
    // SAFETY: the caller passes a place for the attributes.
    let place = unsafe { &raw mut (*attr).qp_state };
    // SAFETY: as above.
    unsafe { place.write(state) };
    0
}
