//! Event channels: events of connection management about ids.

use std::io;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::Arc;

use nvmeof_rdma::PrivateData;

use super::cm::{CmId, CmIdKey};
use super::library::{Functions, functions};
use super::raw::{rdma_cm_event, rdma_cm_event_type, rdma_event_channel};
use super::{check, last_error};

/// Receives the events of ids. Never blocks.
#[derive(Debug)]
pub(crate) struct EventChannel {
    raw: NonNull<rdma_event_channel>,
    pub(super) functions: &'static Functions,
}

// SAFETY: librdmacm may be called from any thread.
unsafe impl Send for EventChannel {}
// SAFETY: as above.
unsafe impl Sync for EventChannel {}

/// Kind of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CmEventKind {
    AddrResolved,
    AddrError,
    RouteResolved,
    RouteError,
    ConnectRequest,
    ConnectError,
    Unreachable,
    Rejected,
    Established,
    Disconnected,
    DeviceRemoval,
    AddrChange,
    TimewaitExit,
    /// Not about connections.
    Other,
}

impl CmEventKind {
    /// Whether there are no more events about a connect call.
    pub(crate) fn ends_connect(self) -> bool {
        matches!(
            self,
            Self::ConnectError
                | Self::Unreachable
                | Self::Rejected
                | Self::Established
                | Self::Disconnected
        )
    }
}

/// An event of connection management.
#[derive(Debug)]
pub(crate) struct CmEvent {
    pub(crate) kind: CmEventKind,
    /// The id it is about; for a request the listening one.
    pub(crate) id: CmIdKey,
    /// The token of that id.
    pub(crate) token: u64,
    /// The new id of a request.
    pub(crate) request: Option<CmId>,
    /// 0, a negative errno, or a reason of the protocol.
    pub(crate) status: i32,
    pub(crate) private_data: PrivateData,
    /// RDMA Reads and atomics that the peer wants to have in flight towards this side.
    pub(crate) reads_in: u8,
    /// RDMA Reads and atomics that the peer processes at once.
    pub(crate) reads_out: u8,
}

impl EventChannel {
    pub(crate) fn new() -> io::Result<Arc<Self>> {
        let functions = functions().map_err(|_| io::Error::from(io::ErrorKind::NotFound))?;
        // SAFETY: takes nothing.
        let raw = unsafe { (functions.rdma_create_event_channel)() };
        let raw = NonNull::new(raw).ok_or_else(last_error)?;
        Ok(Arc::new(Self { raw, functions }))
    }

    /// An invalid channel, for tests that replace the functions which would access it.
    ///
    /// # Safety
    /// None of `functions` accesses it.
    #[cfg(test)]
    pub(super) unsafe fn with_functions(functions: &'static Functions) -> Arc<Self> {
        let raw = NonNull::dangling();
        Arc::new(Self { raw, functions })
    }

    pub(super) fn raw(&self) -> *mut rdma_event_channel {
        self.raw.as_ptr()
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the channel exists until this is dropped.
        let fd = unsafe { (*self.raw()).fd };
        // SAFETY: its descriptor is open as long.
        unsafe { BorrowedFd::borrow_raw(fd) }
    }

    /// Takes the next event. The descriptor must be non-blocking.
    ///
    /// # Safety
    /// No other thread takes events of this channel meanwhile, or destroys queue pairs of its
    /// ids: the library handles an event with the id's queue pair.
    pub(crate) unsafe fn take(self: &Arc<Self>) -> io::Result<Option<CmEvent>> {
        let mut raw: *mut rdma_cm_event = std::ptr::null_mut();
        // SAFETY: a place for a pointer.
        let result = unsafe { (self.functions.rdma_get_cm_event)(self.raw(), &raw mut raw) };
        if let Err(error) = check(result) {
            return match error.kind() {
                io::ErrorKind::WouldBlock => Ok(None),
                _ => Err(error),
            };
        }
        // SAFETY: the library returned an event, which exists until it is
        // acknowledged, and with it all that it names.
        let event = unsafe { raw.read() };
        let event = self.read(&event);
        // SAFETY: the event from above, once. Acknowledged at once, so that
        // destroying an id never waits.
        unsafe { (self.functions.rdma_ack_cm_event)(raw) };
        Ok(Some(event))
    }

    fn read(self: &Arc<Self>, event: &rdma_cm_event) -> CmEvent {
        let kind = kind_of(event.event);
        let (id, request) = if kind == CmEventKind::ConnectRequest {
            let request = NonNull::new(event.id);
            // SAFETY: the library created the id for this event, and it has no other owner.
            let request = request.map(|raw| unsafe { CmId::of(raw, self) });
            (event.listen_id, request)
        } else {
            (event.id, None)
        };
        // SAFETY: an event names an id that exists until the event is acknowledged,
        // which destroying the id waits for (rdma_ack_cm_event(3)). The field alone, since the
        // id may be in a call of another thread (`CmId::connect_elsewhere`).
        let token = unsafe { (*id).context };
        let mut read = CmEvent {
            kind,
            id: CmIdKey::of(id),
            token: token.addr() as u64,
            request,
            status: event.status,
            private_data: PrivateData::empty(),
            reads_in: 0,
            reads_out: 0,
        };
        // SAFETY: ids of the TCP port space have this member.
        let param = unsafe { &event.param.conn };
        read.reads_in = param.responder_resources;
        read.reads_out = param.initiator_depth;
        if !param.private_data.is_null() {
            let len = usize::from(param.private_data_len);
            // SAFETY: the event carries as many bytes.
            let bytes = unsafe { std::slice::from_raw_parts(param.private_data.cast(), len) };
            // The rest is padding: no peer sends more.
            let bytes = bytes.get(..MOST_PRIVATE).unwrap_or(bytes);
            read.private_data = PrivateData::new(bytes).unwrap_or_default();
        }
        read
    }
}

/// Maximum private data of the contract.
const MOST_PRIVATE: usize = 196;

fn kind_of(number: rdma_cm_event_type::Type) -> CmEventKind {
    use rdma_cm_event_type as raw;
    match number {
        raw::RDMA_CM_EVENT_ADDR_RESOLVED => CmEventKind::AddrResolved,
        raw::RDMA_CM_EVENT_ADDR_ERROR => CmEventKind::AddrError,
        raw::RDMA_CM_EVENT_ROUTE_RESOLVED => CmEventKind::RouteResolved,
        raw::RDMA_CM_EVENT_ROUTE_ERROR => CmEventKind::RouteError,
        raw::RDMA_CM_EVENT_CONNECT_REQUEST => CmEventKind::ConnectRequest,
        raw::RDMA_CM_EVENT_CONNECT_ERROR => CmEventKind::ConnectError,
        raw::RDMA_CM_EVENT_UNREACHABLE => CmEventKind::Unreachable,
        raw::RDMA_CM_EVENT_REJECTED => CmEventKind::Rejected,
        raw::RDMA_CM_EVENT_ESTABLISHED => CmEventKind::Established,
        raw::RDMA_CM_EVENT_DISCONNECTED => CmEventKind::Disconnected,
        raw::RDMA_CM_EVENT_DEVICE_REMOVAL => CmEventKind::DeviceRemoval,
        raw::RDMA_CM_EVENT_ADDR_CHANGE => CmEventKind::AddrChange,
        raw::RDMA_CM_EVENT_TIMEWAIT_EXIT => CmEventKind::TimewaitExit,
        _ => CmEventKind::Other,
    }
}

impl Drop for EventChannel {
    fn drop(&mut self) {
        // SAFETY: ids hold their channel, so there are none any more.
        unsafe { (self.functions.rdma_destroy_event_channel)(self.raw.as_ptr()) };
    }
}
