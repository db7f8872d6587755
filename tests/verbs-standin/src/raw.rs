//! Structures of C, their owners, and their numbers.

use std::ptr::NonNull;

use libc::c_int;

pub(crate) use rdma_sys::{
    ibv_comp_channel, ibv_context, ibv_context_ops, ibv_cq, ibv_device, ibv_device_attr,
    ibv_device_cap_flags, ibv_mr, ibv_mtu, ibv_mw, ibv_mw_type, ibv_node_type, ibv_pd,
    ibv_port_attr, ibv_port_state, ibv_qp, ibv_qp_attr, ibv_qp_attr_mask, ibv_qp_init_attr,
    ibv_qp_state, ibv_recv_wr, ibv_send_flags, ibv_send_wr, ibv_sge, ibv_srq, ibv_srq_init_attr,
    ibv_transport_type, ibv_wc, ibv_wc_flags, ibv_wc_opcode, ibv_wc_status as status,
    ibv_wr_opcode, rdma_cm_event, rdma_cm_event_type as cm_event, rdma_cm_id, rdma_conn_param,
    rdma_event_channel, rdma_port_space,
};

use crate::calls::{int, none, number};

/// `IBV_LINK_LAYER_ETHERNET`, an anonymous enum in C.
pub(crate) const LINK_LAYER_ETHERNET: u8 = 2;

/// Numbers of `enum ibv_event_type`.
pub(crate) mod event {
    use rdma_sys::ibv_event_type as raw;

    pub(crate) const CQ_ERR: i32 = raw::IBV_EVENT_CQ_ERR as i32;
    pub(crate) const QP_FATAL: i32 = raw::IBV_EVENT_QP_FATAL as i32;
    pub(crate) const QP_ACCESS_ERR: i32 = raw::IBV_EVENT_QP_ACCESS_ERR as i32;
    pub(crate) const COMM_EST: i32 = raw::IBV_EVENT_COMM_EST as i32;
    pub(crate) const DEVICE_FATAL: i32 = raw::IBV_EVENT_DEVICE_FATAL as i32;
    pub(crate) const SRQ_LIMIT: i32 = raw::IBV_EVENT_SRQ_LIMIT_REACHED as i32;
    pub(crate) const LAST_WQE: i32 = raw::IBV_EVENT_QP_LAST_WQE_REACHED as i32;
}

/// Access to memory, as in `enum ibv_access_flags`.
pub(crate) mod access {
    use rdma_sys::ibv_access_flags as raw;

    pub(crate) const LOCAL_WRITE: u32 = raw::IBV_ACCESS_LOCAL_WRITE.0;
    pub(crate) const REMOTE_WRITE: u32 = raw::IBV_ACCESS_REMOTE_WRITE.0;
    pub(crate) const REMOTE_READ: u32 = raw::IBV_ACCESS_REMOTE_READ.0;
    /// `IBV_ACCESS_RELAXED_ORDERING`, which `rdma-sys` lacks.
    pub(crate) const RELAXED_ORDERING: u32 = 1 << 20;
    pub(crate) const BIND: u32 = raw::IBV_ACCESS_MW_BIND.0;
}

/// `struct ibv_async_event` with the event as a number: `rdma-sys` has a Rust enum there.
#[repr(C)]
pub(crate) struct AsyncEvent {
    pub(crate) element: AsyncElement,
    pub(crate) event: c_int,
}

/// What an asynchronous event is about.
#[repr(C)]
pub(crate) union AsyncElement {
    pub(crate) qp: *mut ibv_qp,
    pub(crate) cq: *mut ibv_cq,
    pub(crate) srq: *mut ibv_srq,
    pub(crate) port: c_int,
}

const _: () = assert!(size_of::<AsyncEvent>() == size_of::<rdma_sys::ibv_async_event>());

/// A structure of C that this crate allocated.
pub(crate) struct Ptr<T>(NonNull<T>);

impl<T> Clone for Ptr<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Ptr<T> {}

impl<T> std::fmt::Debug for Ptr<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:#x}", self.addr())
    }
}

// SAFETY: the structures are accessed under the lock of the world, or as the manual pages of
// the libraries allow their callers.
unsafe impl<T> Send for Ptr<T> {}

impl<T> Ptr<T> {
    pub(crate) fn new(value: T) -> Self {
        Self(NonNull::from(Box::leak(Box::new(value))))
    }

    pub(crate) fn as_ptr(self) -> *mut T {
        self.0.as_ptr()
    }

    pub(crate) fn addr(self) -> usize {
        self.0.as_ptr().addr()
    }

    /// Frees the structure.
    ///
    /// # Safety
    /// It was not freed yet, and nothing uses it any more.
    pub(crate) unsafe fn free(self) {
        // SAFETY: `new` leaked it, and the caller promises the rest.
        drop(unsafe { Box::from_raw(self.0.as_ptr()) });
    }
}

/// A list that ends with null, which is freed with `free`, and its length at `count`.
///
/// # Safety
/// A place for a number, or null.
pub(crate) unsafe fn list_of<T>(all: &[*mut T], count: *mut c_int) -> *mut *mut T {
    // SAFETY: plain memory; the last entry stays null.
    let list = unsafe { libc::calloc(all.len() + 1, size_of::<*mut T>()) }.cast::<*mut T>();
    if list.is_null() {
        return none(libc::ENOMEM);
    }
    for (index, one) in all.iter().enumerate() {
        // SAFETY: the list has as many entries.
        let place = unsafe { list.add(index) };
        // SAFETY: as above.
        unsafe { place.write(*one) };
    }
    if !count.is_null() {
        // SAFETY: as the caller promises.
        unsafe { count.write(int(number(all.len()))) };
    }
    list
}

/// A structure of C, all zero.
///
/// # Safety
/// Zero is a value of each of its fields: a number, a pointer, or an optional function.
pub(crate) unsafe fn zeroed<T>() -> T {
    // SAFETY: the caller promises it.
    unsafe { std::mem::zeroed() }
}
