//! Connection management: event channels, ids, and the queue pairs of ids.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::Arc;

use libc::{c_void, sockaddr, sockaddr_in, sockaddr_in6, sockaddr_storage};
use nvmeof_rdma::PrivateData;

use super::library::{Functions, functions};
use super::raw::{
    self, ibv_qp, ibv_qp_attr, ibv_qp_attr_mask, ibv_qp_cap, ibv_qp_init_attr, ibv_qp_state,
    ibv_qp_type, rdma_cm_event, rdma_cm_event_type, rdma_cm_id, rdma_conn_param,
    rdma_event_channel, rdma_port_space,
};
use super::{CompletionQueue, ContextKey, Drawn, ProtectionDomain, check, last_error};

/// Where the events of ids arrive. Never waits.
#[derive(Debug)]
pub(crate) struct EventChannel {
    raw: NonNull<rdma_event_channel>,
    functions: &'static Functions,
}

// SAFETY: librdmacm may be called from any thread.
unsafe impl Send for EventChannel {}
// SAFETY: as above.
unsafe impl Sync for EventChannel {}

/// What happened to an id.
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
    /// Nothing that concerns connections.
    Other,
}

/// Which id: equal as long as it exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct CmIdKey(usize);

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
    /// RDMA Reads and atomics the peer wants to have in flight towards us.
    pub(crate) reads_in: u8,
    /// RDMA Reads and atomics the peer answers at once.
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

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the channel exists until this is dropped.
        let fields = unsafe { self.raw.as_ref() };
        // SAFETY: its descriptor is open as long.
        unsafe { BorrowedFd::borrow_raw(fields.fd) }
    }

    /// Takes the next event, if the descriptor does not wait. Only one thread
    /// at a time may take events of a channel and destroy ids of it.
    pub(crate) fn take(self: &Arc<Self>) -> io::Result<Option<CmEvent>> {
        let mut raw: *mut rdma_cm_event = std::ptr::null_mut();
        // SAFETY: a place for a pointer.
        let result = unsafe { (self.functions.rdma_get_cm_event)(self.raw.as_ptr(), &raw mut raw) };
        if let Err(error) = check(result) {
            return match error.kind() {
                io::ErrorKind::WouldBlock => Ok(None),
                _ => Err(error),
            };
        }
        // SAFETY: the library returned an event, which exists until it is
        // acknowledged.
        let event = unsafe { &*raw };
        let event = self.read(event);
        // SAFETY: the event from above, once. Acknowledged at once, so that
        // destroying an id never waits.
        unsafe { (self.functions.rdma_ack_cm_event)(raw) };
        Ok(Some(event))
    }

    fn read(self: &Arc<Self>, event: &rdma_cm_event) -> CmEvent {
        let kind = kind_of(event.event);
        let (id, request) = if kind == CmEventKind::ConnectRequest {
            let request = NonNull::new(event.id).map(|raw| CmId {
                raw,
                channel: Arc::clone(self),
                functions: self.functions,
                qp: None,
            });
            (event.listen_id, request)
        } else {
            (event.id, None)
        };
        // SAFETY: an event names an id that exists: this channel's ids are
        // destroyed by the thread that takes its events.
        let fields = unsafe { &*id };
        let mut read = CmEvent {
            kind,
            id: CmIdKey(id.addr()),
            token: fields.context.addr() as u64,
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
            // What is beyond is padding: nobody says more.
            let bytes = bytes.get(..MOST_PRIVATE).unwrap_or(bytes);
            read.private_data = PrivateData::new(bytes).unwrap_or_default();
        }
        read
    }
}

/// Private data that the contract carries at most.
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

/// An id: a connection to be, a connection, or a listener, and its queue pair
/// if it has one.
#[derive(Debug)]
pub(crate) struct CmId {
    raw: NonNull<rdma_cm_id>,
    channel: Arc<EventChannel>,
    functions: &'static Functions,
    /// What its queue pair was made from.
    qp: Option<(Arc<ProtectionDomain>, Arc<CompletionQueue>, Option<Drawn>)>,
}

// SAFETY: librdmacm may be called from any thread.
unsafe impl Send for CmId {}

/// Sizes of a queue pair.
#[derive(Clone, Copy, Debug)]
pub(crate) struct QpSizes {
    pub(crate) sends: u32,
    pub(crate) recvs: u32,
    pub(crate) send_segments: u32,
    pub(crate) inline: u32,
}

/// What is said when a connection is made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ConnectParams<'a> {
    pub(crate) private_data: &'a [u8],
    pub(crate) reads_in: u8,
    pub(crate) reads_out: u8,
}

/// Try again this often when there is no answer: the most there is.
const RETRIES: u8 = 7;
/// Try for ever when the peer has no receive posted (InfiniBand Architecture,
/// 9.7.5.2.8).
const RNR_FOR_EVER: u8 = 7;
/// 0.64 ms (InfiniBand Architecture, table 45): how long a peer should wait
/// before it sends again what found no receive.
const RNR_TIMER: u8 = 12;

impl CmId {
    pub(crate) fn new(channel: &Arc<EventChannel>, token: u64) -> io::Result<Self> {
        let functions = channel.functions;
        let mut raw = std::ptr::null_mut();
        let token = as_context(token);
        // SAFETY: the channel exists; the token is no pointer that anybody
        // follows.
        let result = unsafe {
            (functions.rdma_create_id)(
                channel.raw.as_ptr(),
                &raw mut raw,
                token,
                rdma_port_space::RDMA_PS_TCP,
            )
        };
        check(result)?;
        let raw = NonNull::new(raw).ok_or_else(last_error)?;
        Ok(Self {
            raw,
            channel: Arc::clone(channel),
            functions,
            qp: None,
        })
    }

    fn fields(&self) -> &rdma_cm_id {
        // SAFETY: the id exists until this is dropped.
        unsafe { self.raw.as_ref() }
    }

    pub(crate) fn key(&self) -> CmIdKey {
        CmIdKey(self.raw.as_ptr().addr())
    }

    /// Sets the token that events of this id carry.
    pub(crate) fn set_token(&mut self, token: u64) {
        // SAFETY: as in `fields`; borrowed mutably.
        let fields = unsafe { self.raw.as_mut() };
        fields.context = as_context(token);
    }

    /// The device, once the address or the route decided.
    pub(crate) fn context(&self) -> Option<ContextKey> {
        let raw = self.fields().verbs;
        (!raw.is_null()).then(|| ContextKey(raw.addr()))
    }

    pub(crate) fn port(&self) -> u8 {
        self.fields().port_num
    }

    pub(crate) fn local_addr(&self) -> Option<SocketAddr> {
        let addr = &self.fields().route.addr;
        // SAFETY: every member of the union starts like an address, and the
        // library keeps one there or zeroes.
        from_raw(unsafe { &addr.src_addr_union.src_storage })
    }

    pub(crate) fn peer_addr(&self) -> Option<SocketAddr> {
        let addr = &self.fields().route.addr;
        // SAFETY: as in `local_addr`.
        from_raw(unsafe { &addr.dst_addr_union.dst_storage })
    }

    pub(crate) fn bind(&self, addr: SocketAddr) -> io::Result<()> {
        let mut raw = to_raw(addr);
        let place = (&raw mut raw).cast::<sockaddr>();
        // SAFETY: an address with its family.
        check(unsafe { (self.functions.rdma_bind_addr)(self.raw.as_ptr(), place) })
    }

    pub(crate) fn listen(&self, backlog: u32) -> io::Result<()> {
        let backlog = i32::try_from(backlog).unwrap_or(i32::MAX);
        // SAFETY: the id exists.
        check(unsafe { (self.functions.rdma_listen)(self.raw.as_ptr(), backlog) })
    }

    pub(crate) fn resolve_addr(&self, addr: SocketAddr, timeout_ms: i32) -> io::Result<()> {
        let mut raw = to_raw(addr);
        let place = (&raw mut raw).cast::<sockaddr>();
        let none = std::ptr::null_mut();
        // SAFETY: an address with its family; the source may be null.
        let result = unsafe {
            (self.functions.rdma_resolve_addr)(self.raw.as_ptr(), none, place, timeout_ms)
        };
        check(result)
    }

    pub(crate) fn resolve_route(&self, timeout_ms: i32) -> io::Result<()> {
        // SAFETY: the id exists.
        check(unsafe { (self.functions.rdma_resolve_route)(self.raw.as_ptr(), timeout_ms) })
    }

    pub(crate) fn set_type_of_service(&self, mut value: u8) -> io::Result<()> {
        self.set_option(raw::OPTION_ID_TOS, (&raw mut value).cast(), 1)
    }

    pub(crate) fn set_ack_timeout(&self, mut value: u8) -> io::Result<()> {
        self.set_option(raw::OPTION_ID_ACK_TIMEOUT, (&raw mut value).cast(), 1)
    }

    /// Lets the address be bound although connections of a listener that is
    /// gone still have it.
    pub(crate) fn set_reuse_addr(&self) -> io::Result<()> {
        let mut on: libc::c_int = 1;
        let len = size_of::<libc::c_int>();
        self.set_option(raw::OPTION_ID_REUSEADDR, (&raw mut on).cast(), len)
    }

    fn set_option(&self, name: i32, value: *mut c_void, len: usize) -> io::Result<()> {
        // SAFETY: `value` points to `len` bytes of the caller.
        let result = unsafe {
            (self.functions.rdma_set_option)(self.raw.as_ptr(), raw::OPTION_ID, name, value, len)
        };
        check(result)
    }

    /// Has the events of this id arrive at another channel.
    pub(crate) fn migrate(&mut self, channel: &Arc<EventChannel>) -> io::Result<()> {
        // SAFETY: both exist; no event of the id is taken and unacknowledged,
        // which it would wait for.
        let result =
            unsafe { (self.functions.rdma_migrate_id)(self.raw.as_ptr(), channel.raw.as_ptr()) };
        check(result)?;
        self.channel = Arc::clone(channel);
        Ok(())
    }

    /// Makes the queue pair. Returns how many bytes a send may carry in
    /// itself.
    pub(crate) fn create_qp(
        &mut self,
        pd: &Arc<ProtectionDomain>,
        cq: &Arc<CompletionQueue>,
        sizes: QpSizes,
        drawn: Option<&Drawn>,
    ) -> io::Result<u32> {
        let mut attr = ibv_qp_init_attr {
            qp_context: std::ptr::null_mut(),
            send_cq: cq.raw(),
            recv_cq: drawn.map_or(cq, |drawn| &drawn.cq).raw(),
            srq: drawn.map_or(std::ptr::null_mut(), |drawn| drawn.srq.raw()),
            cap: ibv_qp_cap {
                max_send_wr: sizes.sends,
                max_recv_wr: sizes.recvs,
                max_send_sge: sizes.send_segments,
                max_recv_sge: u32::from(drawn.is_none()),
                max_inline_data: sizes.inline,
            },
            qp_type: ibv_qp_type::IBV_QPT_RC,
            sq_sig_all: 0,
        };
        // SAFETY: domain and queues exist and are kept below; the library
        // checks that they are of the id's device.
        let result =
            unsafe { (self.functions.rdma_create_qp)(self.raw.as_ptr(), pd.raw(), &raw mut attr) };
        check(result)?;
        self.qp = Some((Arc::clone(pd), Arc::clone(cq), drawn.cloned()));
        Ok(attr.cap.max_inline_data)
    }

    /// Destroys the queue pair: from then on the device touches no memory for
    /// it.
    pub(crate) fn destroy_qp(&mut self) {
        if self.qp.take().is_some() {
            // SAFETY: the queue pair was made by `create_qp`.
            unsafe { (self.functions.rdma_destroy_qp)(self.raw.as_ptr()) };
        }
    }

    /// Number of the queue pair, 0 when there is none.
    pub(crate) fn qp_number(&self) -> u32 {
        self.with_qp(|qp| {
            // SAFETY: the queue pair exists.
            let fields = unsafe { &*qp };
            fields.qp_num
        })
        .unwrap_or(0)
    }

    pub(super) fn with_qp<R>(&self, work: impl FnOnce(*mut ibv_qp) -> R) -> io::Result<R> {
        let qp = self.fields().qp;
        if self.qp.is_none() || qp.is_null() {
            return Err(io::ErrorKind::NotConnected.into());
        }
        Ok(work(qp))
    }

    /// Whether the queue pair is in the error state.
    pub(crate) fn qp_failed(&self) -> bool {
        // SAFETY: the structure is numbers, for which zero is a value.
        let mut attr: ibv_qp_attr = unsafe { std::mem::zeroed() };
        // SAFETY: as above, and null pointers.
        let mut init: ibv_qp_init_attr = unsafe { std::mem::zeroed() };
        let mask = ibv_qp_attr_mask::IBV_QP_STATE.0.cast_signed();
        let result = self.with_qp(|qp| {
            // SAFETY: the queue pair exists; both structures are filled.
            unsafe { (self.functions.ibv_query_qp)(qp, &raw mut attr, mask, &raw mut init) }
        });
        result.and_then(check).is_ok() && attr.qp_state == ibv_qp_state::IBV_QPS_ERR
    }

    /// Has the queue pair tell peers to wait a short time when no receive is
    /// posted: the kernel's choice is 0.65 seconds.
    pub(crate) fn shorten_rnr_timer(&self) -> io::Result<()> {
        // SAFETY: as in `qp_failed`.
        let mut attr: ibv_qp_attr = unsafe { std::mem::zeroed() };
        attr.qp_state = ibv_qp_state::IBV_QPS_RTS;
        attr.min_rnr_timer = RNR_TIMER;
        let mask = ibv_qp_attr_mask::IBV_QP_STATE.0 | ibv_qp_attr_mask::IBV_QP_MIN_RNR_TIMER.0;
        self.modify(&mut attr, mask)
    }

    /// Stops the queue pair: nothing of the peer is done any more, and what is
    /// posted is flushed.
    pub(crate) fn stop_qp(&self) -> io::Result<()> {
        // SAFETY: as in `qp_failed`.
        let mut attr: ibv_qp_attr = unsafe { std::mem::zeroed() };
        attr.qp_state = ibv_qp_state::IBV_QPS_ERR;
        self.modify(&mut attr, ibv_qp_attr_mask::IBV_QP_STATE.0)
    }

    fn modify(&self, attr: &mut ibv_qp_attr, mask: libc::c_uint) -> io::Result<()> {
        let result = self.with_qp(|qp| {
            // SAFETY: the queue pair exists; the mask names what is set.
            unsafe { (self.functions.ibv_modify_qp)(qp, attr, mask.cast_signed()) }
        });
        result.and_then(check)
    }

    pub(crate) fn connect(&self, params: ConnectParams<'_>) -> io::Result<()> {
        let mut params = conn_param(params)?;
        // SAFETY: the private data lives as long as the call.
        check(unsafe { (self.functions.rdma_connect)(self.raw.as_ptr(), &raw mut params) })
    }

    pub(crate) fn accept(&self, params: ConnectParams<'_>) -> io::Result<()> {
        let mut params = conn_param(params)?;
        // SAFETY: as in `connect`.
        check(unsafe { (self.functions.rdma_accept)(self.raw.as_ptr(), &raw mut params) })
    }

    pub(crate) fn reject(&self, private_data: &[u8]) -> io::Result<()> {
        let len = private_len(private_data)?;
        let data = private_data.as_ptr().cast();
        // SAFETY: as many bytes as said.
        check(unsafe { (self.functions.rdma_reject)(self.raw.as_ptr(), data, len) })
    }

    pub(crate) fn disconnect(&self) -> io::Result<()> {
        // SAFETY: the id exists.
        check(unsafe { (self.functions.rdma_disconnect)(self.raw.as_ptr()) })
    }

    /// Tells connection management that the peer's first message came before
    /// its last word of the set-up.
    pub(crate) fn notify_established(&self) -> io::Result<()> {
        let event = raw::event::COMM_EST;
        // SAFETY: the id exists; the event is one that the function knows.
        check(unsafe { (self.functions.rdma_notify)(self.raw.as_ptr(), event) })
    }
}

impl Drop for CmId {
    fn drop(&mut self) {
        self.destroy_qp();
        // SAFETY: the id exists, and has no queue pair any more. All events
        // taken were acknowledged, so this does not wait.
        let _ = unsafe { (self.functions.rdma_destroy_id)(self.raw.as_ptr()) };
    }
}

fn as_context(token: u64) -> *mut c_void {
    std::ptr::without_provenance_mut(usize::try_from(token).unwrap_or(0))
}

fn private_len(data: &[u8]) -> io::Result<u8> {
    u8::try_from(data.len()).map_err(|_| io::ErrorKind::InvalidInput.into())
}

fn conn_param(params: ConnectParams<'_>) -> io::Result<rdma_conn_param> {
    Ok(rdma_conn_param {
        private_data: params.private_data.as_ptr().cast(),
        private_data_len: private_len(params.private_data)?,
        responder_resources: params.reads_in,
        initiator_depth: params.reads_out,
        flow_control: 1,
        retry_count: RETRIES,
        rnr_retry_count: RNR_FOR_EVER,
        srq: 0,
        qp_num: 0,
    })
}

fn to_raw(addr: SocketAddr) -> sockaddr_storage {
    // SAFETY: an address is numbers, for which zero is a value.
    let mut raw: sockaddr_storage = unsafe { std::mem::zeroed() };
    let place = &raw mut raw;
    match addr {
        SocketAddr::V4(addr) => {
            let v4 = sockaddr_in {
                sin_family: libc::sa_family_t::try_from(libc::AF_INET).unwrap_or_default(),
                sin_port: addr.port().to_be(),
                sin_addr: libc::in_addr {
                    s_addr: u32::from_ne_bytes(addr.ip().octets()),
                },
                sin_zero: [0; 8],
            };
            // SAFETY: the storage is as large and aligned as any address.
            unsafe { place.cast::<sockaddr_in>().write(v4) };
        }
        SocketAddr::V6(addr) => {
            let v6 = sockaddr_in6 {
                sin6_family: libc::sa_family_t::try_from(libc::AF_INET6).unwrap_or_default(),
                sin6_port: addr.port().to_be(),
                sin6_flowinfo: addr.flowinfo(),
                sin6_addr: libc::in6_addr {
                    s6_addr: addr.ip().octets(),
                },
                sin6_scope_id: addr.scope_id(),
            };
            // SAFETY: as above.
            unsafe { place.cast::<sockaddr_in6>().write(v6) };
        }
    }
    raw
}

fn from_raw(raw: &sockaddr_storage) -> Option<SocketAddr> {
    let place = &raw const *raw;
    match i32::from(raw.ss_family) {
        libc::AF_INET => {
            // SAFETY: the family says which address the storage holds.
            let v4 = unsafe { place.cast::<sockaddr_in>().read() };
            let ip = Ipv4Addr::from(v4.sin_addr.s_addr.to_ne_bytes());
            Some(SocketAddrV4::new(ip, u16::from_be(v4.sin_port)).into())
        }
        libc::AF_INET6 => {
            // SAFETY: as above.
            let v6 = unsafe { place.cast::<sockaddr_in6>().read() };
            let ip = Ipv6Addr::from(v6.sin6_addr.s6_addr);
            let port = u16::from_be(v6.sin6_port);
            Some(SocketAddrV6::new(ip, port, v6.sin6_flowinfo, v6.sin6_scope_id).into())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_survive_the_way_to_c_and_back() {
        for text in [
            "10.1.2.3:4420",
            "[fd00::1]:4421",
            "0.0.0.0:0",
            "[fe80::2%7]:1",
        ] {
            let addr: SocketAddr = text.parse().unwrap();
            assert_eq!(from_raw(&to_raw(addr)), Some(addr));
        }
        // SAFETY: numbers.
        let none: sockaddr_storage = unsafe { std::mem::zeroed() };
        assert_eq!(from_raw(&none), None);
    }
}
