//! Functions that other programs need besides those that the provider uses: those of
//! rdma-core, and SPDK. Queue pairs without an id are not supported.

use std::ffi::{CStr, c_char};

use libc::{c_int, c_void, sockaddr, socklen_t};

use crate::calls::{failed, handle, none, set_errno};
use crate::control;
use crate::raw::{
    cm_event, event, ibv_context, ibv_cq, ibv_device, ibv_pd, ibv_qp, ibv_qp_attr,
    ibv_qp_init_attr, list_of, rdma_cm_id, status, zeroed,
};
use crate::rdmacm::rdma_destroy_qp;
use crate::world::lock;

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_get_device_list(count: *mut c_int) -> *mut *mut ibv_device {
    control::read_environment();
    let world = lock();
    let present = world.devices.iter().filter(|device| !device.removed);
    let devices = present.map(|device| {
        // SAFETY: contexts are never freed.
        unsafe { (*device.context.as_ptr()).device }
    });
    let devices: Vec<_> = devices.collect();
    // SAFETY: the caller passes a place for the number, or null.
    unsafe { list_of(&devices, count) }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_free_device_list(list: *mut *mut ibv_device) {
    // SAFETY: a list that `ibv_get_device_list` returned.
    unsafe { libc::free(list.cast()) };
}

/// The context of a device, the same for each call.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_open_device(device: *mut ibv_device) -> *mut ibv_context {
    let world = lock();
    let found = world.devices.iter().find(|one| {
        // SAFETY: contexts are never freed.
        let of = unsafe { (*one.context.as_ptr()).device };
        of.addr() == device.addr() && !one.removed
    });
    found.map_or_else(|| none(libc::ENODEV), |one| one.context.as_ptr())
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn ibv_close_device(_: *mut ibv_context) -> c_int {
    0
}

/// The name of an asynchronous event of a device.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn ibv_event_type_str(number: c_int) -> *const c_char {
    let text: &CStr = match number {
        event::CQ_ERR => c"CQ error",
        event::QP_FATAL => c"local work queue catastrophic error",
        event::QP_ACCESS_ERR => c"local access violation work queue error",
        event::COMM_EST => c"communication established",
        event::DEVICE_FATAL => c"local catastrophic error",
        event::SRQ_LIMIT => c"SRQ limit reached",
        event::LAST_WQE => c"last WQE reached",
        _ => c"unknown",
    };
    text.as_ptr()
}

/// The name of the status of a completion.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn ibv_wc_status_str(number: status::Type) -> *const c_char {
    let text: &CStr = match number {
        status::IBV_WC_SUCCESS => c"success",
        status::IBV_WC_LOC_LEN_ERR => c"local length error",
        status::IBV_WC_LOC_QP_OP_ERR => c"local QP operation error",
        status::IBV_WC_LOC_PROT_ERR => c"local protection error",
        status::IBV_WC_WR_FLUSH_ERR => c"Work Request Flushed Error",
        status::IBV_WC_MW_BIND_ERR => c"memory bind operation error",
        status::IBV_WC_REM_INV_REQ_ERR => c"remote invalid request error",
        status::IBV_WC_REM_ACCESS_ERR => c"remote access error",
        status::IBV_WC_REM_OP_ERR => c"remote operation error",
        status::IBV_WC_RETRY_EXC_ERR => c"transport retry counter exceeded",
        status::IBV_WC_RNR_RETRY_EXC_ERR => c"RNR retry counter exceeded",
        _ => c"unknown",
    };
    text.as_ptr()
}

/// Devices without resizing return this.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn ibv_resize_cq(_: *mut ibv_cq, _: c_int) -> c_int {
    set_errno(libc::ENOSYS);
    libc::ENOSYS
}

/// The port of an id in network byte order, 0 without an address.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_get_src_port(id: *mut rdma_cm_id) -> u16 {
    let local = lock().ids.ids.get(&id.addr()).and_then(|id| id.local);
    local.map_or(0, |addr| addr.port().to_be())
}

/// The same of its peer.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_get_dst_port(id: *mut rdma_cm_id) -> u16 {
    let remote = lock().ids.ids.get(&id.addr()).and_then(|id| id.remote);
    remote.map_or(0, |addr| addr.port().to_be())
}

/// The name of an event of connection management.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn rdma_event_str(event: cm_event::Type) -> *const c_char {
    let text: &CStr = match event {
        cm_event::RDMA_CM_EVENT_ADDR_RESOLVED => c"RDMA_CM_EVENT_ADDR_RESOLVED",
        cm_event::RDMA_CM_EVENT_ADDR_ERROR => c"RDMA_CM_EVENT_ADDR_ERROR",
        cm_event::RDMA_CM_EVENT_ROUTE_RESOLVED => c"RDMA_CM_EVENT_ROUTE_RESOLVED",
        cm_event::RDMA_CM_EVENT_CONNECT_REQUEST => c"RDMA_CM_EVENT_CONNECT_REQUEST",
        cm_event::RDMA_CM_EVENT_REJECTED => c"RDMA_CM_EVENT_REJECTED",
        cm_event::RDMA_CM_EVENT_ESTABLISHED => c"RDMA_CM_EVENT_ESTABLISHED",
        cm_event::RDMA_CM_EVENT_DISCONNECTED => c"RDMA_CM_EVENT_DISCONNECTED",
        cm_event::RDMA_CM_EVENT_DEVICE_REMOVAL => c"RDMA_CM_EVENT_DEVICE_REMOVAL",
        cm_event::RDMA_CM_EVENT_TIMEWAIT_EXIT => c"RDMA_CM_EVENT_TIMEWAIT_EXIT",
        _ => c"UNKNOWN EVENT",
    };
    text.as_ptr()
}

/// A result of [`rdma_getaddrinfo`], with the list that the system returned.
#[repr(C)]
struct Found {
    info: rdma_sys::rdma_addrinfo,
    list: *mut libc::addrinfo,
}

/// `RAI_PASSIVE`
const PASSIVE: c_int = 1;

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_getaddrinfo(
    node: *const c_char,
    service: *const c_char,
    hints: *const rdma_sys::rdma_addrinfo,
    to: *mut *mut rdma_sys::rdma_addrinfo,
) -> c_int {
    // SAFETY: numbers and pointers.
    let mut wanted: libc::addrinfo = unsafe { zeroed() };
    wanted.ai_socktype = libc::SOCK_STREAM;
    let mut passive = false;
    if !hints.is_null() {
        // SAFETY: the caller passes hints, or null.
        passive = unsafe { (*hints).ai_flags } & PASSIVE != 0;
    }
    if passive {
        wanted.ai_flags = libc::AI_PASSIVE;
    }
    let mut list = std::ptr::null_mut();
    // SAFETY: strings or null, as the caller promises, and a place for the list.
    let result = unsafe { libc::getaddrinfo(node, service, &raw const wanted, &raw mut list) };
    if result != 0 {
        return failed(libc::ENODATA);
    }
    // SAFETY: a list has one entry at least.
    let first: libc::addrinfo = unsafe { list.read() };
    let (addr, len): (*mut sockaddr, socklen_t) = (first.ai_addr, first.ai_addrlen);
    // SAFETY: numbers and pointers.
    let mut info: rdma_sys::rdma_addrinfo = unsafe { zeroed() };
    if passive {
        (info.ai_src_addr, info.ai_src_len) = (addr, len);
    } else {
        (info.ai_dst_addr, info.ai_dst_len) = (addr, len);
    }
    let found = Box::into_raw(Box::new(Found { info, list }));
    // SAFETY: the caller passes a place for it.
    unsafe { to.write(found.cast()) };
    0
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_freeaddrinfo(info: *mut rdma_sys::rdma_addrinfo) {
    // SAFETY: `rdma_getaddrinfo` made it, and the caller gives it up.
    let found = unsafe { Box::from_raw(info.cast::<Found>()) };
    // SAFETY: as above.
    unsafe { libc::freeaddrinfo(found.list) };
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn ibv_create_qp(_: *mut ibv_pd, _: *mut ibv_qp_init_attr) -> *mut ibv_qp {
    none(libc::ENOSYS)
}

/// Some programs destroy the queue pair of an id this way.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_destroy_qp(qp: *mut ibv_qp) -> c_int {
    // SAFETY: the caller passes a queue pair.
    let key = handle(unsafe { (*qp).handle });
    let id = lock().qps.get(key).map(|qp| qp.id);
    let id = id.and_then(|id| lock().ids.ids.get(&id).map(|id| id.raw));
    let Some(id) = id else {
        return libc::EINVAL;
    };
    // SAFETY: the id of this queue pair.
    unsafe { rdma_destroy_qp(id.as_ptr()) };
    0
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn rdma_establish(_: *mut rdma_cm_id) -> c_int {
    failed(libc::ENOSYS)
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn rdma_init_qp_attr(
    _: *mut rdma_cm_id,
    _: *mut ibv_qp_attr,
    _: *mut c_void,
) -> c_int {
    failed(libc::ENOSYS)
}

/// Of rsockets: descriptors of this library are those of the system.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rpoll(
    fds: *mut libc::pollfd,
    count: libc::nfds_t,
    timeout_ms: c_int,
) -> c_int {
    // SAFETY: as the caller promises.
    unsafe { libc::poll(fds, count, timeout_ms) }
}
