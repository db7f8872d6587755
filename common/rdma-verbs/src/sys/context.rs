//! Open devices: their attributes and asynchronous events.

use std::ffi::CStr;
use std::io;
use std::os::fd::{BorrowedFd, RawFd};
use std::ptr::NonNull;
use std::sync::Arc;

use super::library::{Functions, functions};
use super::raw::{
    self, AsyncEvent, ibv_context, ibv_context_ops, ibv_device, ibv_device_attr,
    ibv_device_cap_flags, ibv_port_attr, ibv_port_state, ibv_transport_type,
};
use super::{CqKey, SrqKey, check, event};

/// Identifies an open device as long as one of its owners exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct ContextKey(pub(super) usize);

/// An open device. librdmacm opens each device once for the whole process and counts its
/// users; this is one reference.
#[derive(Debug)]
pub(crate) struct Context {
    raw: NonNull<ibv_context>,
    functions: &'static Functions,
}

// SAFETY: libibverbs and librdmacm may be called from any thread.
unsafe impl Send for Context {}
// SAFETY: as above: they lock what threads share.
unsafe impl Sync for Context {}

/// Attributes of a device.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DeviceAttr {
    pub(crate) vendor_id: u32,
    pub(crate) max_qp: u32,
    pub(crate) max_qp_wr: u32,
    pub(crate) max_sge: u32,
    pub(crate) max_cqe: u32,
    /// Receives that a shared receive queue has room for; 0 without such
    /// queues.
    pub(crate) max_srq_wr: u32,
    pub(crate) max_mr: u32,
    pub(crate) max_mw: u32,
    /// RDMA Reads and atomics of the peer that a queue pair answers at once.
    pub(crate) max_reads_in: u32,
    /// RDMA Reads and atomics a queue pair may have in flight.
    pub(crate) max_reads_out: u32,
    /// Whether memory windows can be bound to queue pairs by work requests, as
    /// exposures need it. Those of iWARP devices are not used.
    pub(crate) windows: bool,
    pub(crate) iwarp: bool,
    pub(crate) ports: u8,
}

/// Attributes of a port.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PortAttr {
    pub(crate) active: bool,
    pub(crate) ethernet: bool,
    pub(crate) max_message: u32,
}

/// An asynchronous event of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DeviceEvent {
    /// A number of [`event`](super::event).
    pub(crate) event: i32,
    /// Number of the queue pair, for its events.
    pub(crate) qp: Option<u32>,
    /// The completion queue, for its events.
    pub(crate) cq: Option<CqKey>,
    /// The port, for its events.
    pub(crate) port: Option<i32>,
    /// The shared receive queue, for its events.
    pub(crate) srq: Option<SrqKey>,
}

impl Context {
    /// Opens all devices, and detects removed ones.
    pub(crate) fn all() -> io::Result<Vec<Arc<Self>>> {
        let functions = functions().map_err(|_| io::Error::from(io::ErrorKind::NotFound))?;
        let mut count = 0;
        // SAFETY: `count` is an int for the number of devices.
        let list = unsafe { (functions.rdma_get_devices)(&raw mut count) };
        if list.is_null() {
            return Err(super::last_error());
        }
        let mut all = Vec::new();
        for index in 0..usize::try_from(count).unwrap_or(0) {
            // SAFETY: the list has `count` entries.
            let place = unsafe { list.add(index) };
            // SAFETY: inside the list, as above.
            let raw = unsafe { place.read() };
            let Some(raw) = NonNull::new(raw) else { break };
            all.push(Arc::new(Self { raw, functions }));
        }
        // SAFETY: librdmacm allocated the list with malloc, and nothing uses it any more. The
        // references in it stay: each context releases its own.
        unsafe { libc::free(list.cast()) };
        Ok(all)
    }

    /// An invalid device, for tests that replace the functions which would access it.
    ///
    /// # Safety
    /// `raw` is an open device, or none of `functions` looks at it.
    #[cfg(test)]
    pub(super) unsafe fn with_functions(
        raw: NonNull<ibv_context>,
        functions: &'static Functions,
    ) -> Self {
        Self { raw, functions }
    }

    /// Takes a reference to the device of `key`, which must be open.
    pub(crate) fn of(key: ContextKey) -> io::Result<Arc<Self>> {
        let found = Self::all()?.into_iter().find(|one| one.key() == key);
        found.ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))
    }

    pub(crate) fn key(&self) -> ContextKey {
        ContextKey(self.raw.as_ptr().addr())
    }

    pub(super) fn raw(&self) -> *mut ibv_context {
        self.raw.as_ptr()
    }

    pub(super) fn functions(&self) -> &'static Functions {
        self.functions
    }

    /// Functions of the driver that are called without the library.
    pub(super) fn ops(&self) -> ibv_context_ops {
        // SAFETY: librdmacm keeps the device open as long as it is used. Nothing but this field
        // is read: other threads take the lock that is in the structure.
        unsafe { (*self.raw()).ops }
    }

    fn device(&self) -> *mut ibv_device {
        // SAFETY: as in `ops`.
        unsafe { (*self.raw()).device }
    }

    /// Name of the device, as `rdma link` shows it.
    pub(crate) fn name(&self) -> String {
        // SAFETY: an open device has a description.
        let name = unsafe { (self.functions.ibv_get_device_name)(self.device().cast()) };
        if name.is_null() {
            return String::new();
        }
        // SAFETY: the name is a string inside the description.
        let name = unsafe { CStr::from_ptr(name) };
        name.to_string_lossy().into_owned()
    }

    pub(crate) fn attr(&self) -> io::Result<DeviceAttr> {
        // SAFETY: the structure is numbers, for which zero is a value.
        let mut attr: ibv_device_attr = unsafe { std::mem::zeroed() };
        // SAFETY: the structure is the one that the function fills.
        let result = unsafe { (self.functions.ibv_query_device)(self.raw(), &raw mut attr) };
        check(result)?;
        // SAFETY: as in `name`.
        let transport = unsafe { (*self.device()).transport_type };
        let iwarp = transport == ibv_transport_type::IBV_TRANSPORT_IWARP;
        let window = ibv_device_cap_flags::IBV_DEVICE_MEM_WINDOW_TYPE_2B.0;
        let count = |number: libc::c_int| u32::try_from(number).unwrap_or(0);
        Ok(DeviceAttr {
            vendor_id: attr.vendor_id,
            max_qp: count(attr.max_qp),
            max_qp_wr: count(attr.max_qp_wr),
            max_sge: count(attr.max_sge),
            max_cqe: count(attr.max_cqe),
            max_srq_wr: if attr.max_srq > 0 {
                count(attr.max_srq_wr)
            } else {
                0
            },
            max_mr: count(attr.max_mr),
            max_mw: count(attr.max_mw),
            // Connection management has a byte for each.
            max_reads_in: count(attr.max_qp_rd_atom).min(255),
            max_reads_out: count(attr.max_qp_init_rd_atom).min(255),
            windows: attr.device_cap_flags & window != 0 && !iwarp,
            iwarp,
            ports: attr.phys_port_cnt,
        })
    }

    pub(crate) fn port(&self, port: u8) -> io::Result<PortAttr> {
        // The function of the library fills the older, shorter form of the
        // structure: what it leaves must be zero.
        // SAFETY: the structure is numbers, for which zero is a value.
        let mut attr: ibv_port_attr = unsafe { std::mem::zeroed() };
        // SAFETY: the structure is at least as long as what is filled.
        let result = unsafe { (self.functions.ibv_query_port)(self.raw(), port, &raw mut attr) };
        check(result)?;
        Ok(PortAttr {
            active: attr.state == ibv_port_state::IBV_PORT_ACTIVE,
            ethernet: attr.link_layer == raw::LINK_LAYER_ETHERNET,
            max_message: attr.max_msg_sz,
        })
    }

    /// The longest message in bytes that every one of `ports` takes.
    pub(crate) fn max_message(&self, ports: u8) -> io::Result<u32> {
        (1..=ports).try_fold(u32::MAX, |most, port| {
            Ok(most.min(self.port(port)?.max_message))
        })
    }

    /// Number of completion vectors, at least 1.
    pub(super) fn vectors(&self) -> usize {
        // SAFETY: as in `ops`.
        let vectors = unsafe { (*self.raw()).num_comp_vectors };
        usize::try_from(vectors).unwrap_or(0).max(1)
    }

    fn async_raw_fd(&self) -> RawFd {
        // SAFETY: as in `ops`.
        unsafe { (*self.raw()).async_fd }
    }

    /// Readable when there are asynchronous events. All users of the device share it, so each
    /// of them may take events of others.
    pub(crate) fn async_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the descriptor is open as long as the device is.
        unsafe { BorrowedFd::borrow_raw(self.async_raw_fd()) }
    }

    /// Takes the next asynchronous event. The descriptor must be non-blocking.
    pub(crate) fn take_async_event(&self) -> Option<DeviceEvent> {
        let mut raw = AsyncEvent {
            element: raw::AsyncElement { port: 0 },
            event: 0,
        };
        // SAFETY: the structure has the layout the function fills.
        let result = unsafe { (self.functions.ibv_get_async_event)(self.raw(), &raw mut raw) };
        if result != 0 {
            return None;
        }
        let qp = match raw.event {
            event::QP_FATAL
            | event::QP_REQ_ERR
            | event::QP_ACCESS_ERR
            | event::COMM_EST
            | event::SQ_DRAINED
            | event::PATH_MIG
            | event::PATH_MIG_ERR
            | event::LAST_WQE => {
                // SAFETY: these events are about a queue pair.
                let qp = unsafe { raw.element.qp };
                // SAFETY: destroying a queue pair waits until its events are
                // acknowledged, which is below. The field alone: the queue pair
                // may be another thread's, which changes its state.
                Some(unsafe { (*qp).qp_num })
            }
            _ => None,
        };
        let cq = (raw.event == event::CQ_ERR).then(|| {
            // SAFETY: this event is about a completion queue, which is not
            // looked at.
            CqKey(unsafe { raw.element.cq }.addr())
        });
        let port = match raw.event {
            event::PORT_ACTIVE | event::PORT_ERR => {
                // SAFETY: these events are about a port.
                Some(unsafe { raw.element.port })
            }
            _ => None,
        };
        let srq = match raw.event {
            event::SRQ_ERR => {
                // SAFETY: this event is about a shared receive queue.
                let srq = unsafe { raw.element.srq };
                Some(SrqKey(srq.addr()))
            }
            _ => None,
        };
        // SAFETY: as it was filled above.
        unsafe { (self.functions.ibv_ack_async_event)(&raw mut raw) };
        Some(DeviceEvent {
            event: raw.event,
            qp,
            cq,
            port,
            srq,
        })
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        let size = 2 * size_of::<*mut ibv_context>();
        // SAFETY: plain memory of two pointers, freed by the call below.
        let list = unsafe { libc::calloc(1, size) }.cast::<*mut ibv_context>();
        if list.is_null() {
            // The only effect is that the device stays open.
            return;
        }
        // The second entry is null and ends the list.
        // SAFETY: the first of two entries.
        unsafe { list.write(self.raw()) };
        // SAFETY: a list of devices as `rdma_get_devices` returns it, with one
        // of those that this context was made from; the list is freed.
        unsafe { (self.functions.rdma_free_devices)(list) };
    }
}
