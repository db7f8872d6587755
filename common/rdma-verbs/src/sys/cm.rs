//! Connection management: ids, and the queue pairs of ids.

use std::io;
use std::net::SocketAddr;
use std::ptr::NonNull;
use std::sync::Arc;

use libc::{c_void, sockaddr, sockaddr_storage};

use super::address::{from_raw, to_raw};
use super::channel::EventChannel;
use super::library::Functions;
use super::raw::{
    self, ibv_qp, ibv_qp_attr, ibv_qp_attr_mask, ibv_qp_cap, ibv_qp_init_attr, ibv_qp_state,
    ibv_qp_type, rdma_cm_id, rdma_conn_param, rdma_port_space,
};
use super::{CompletionQueue, ContextKey, ProtectionDomain, SrqHandle, check, last_error};

/// Objects from which a queue pair is created.
#[derive(Clone, Debug)]
pub(crate) struct QpParts {
    pub(crate) pd: Arc<ProtectionDomain>,
    pub(crate) cq: Arc<CompletionQueue>,
    /// The shared receive queue, if it uses one.
    pub(crate) drawn: Option<SrqHandle>,
}

/// Identifies an id as long as it exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct CmIdKey(usize);

impl CmIdKey {
    pub(super) fn of(raw: *mut rdma_cm_id) -> Self {
        Self(raw.addr())
    }
}

/// An id: a future connection, a connection, or a listener, and its queue pair if it has one.
#[derive(Debug)]
pub(crate) struct CmId {
    /// Never borrowed as a whole: another thread may be in a call (`connect_elsewhere`) that
    /// writes fields which are not read or written here.
    raw: NonNull<rdma_cm_id>,
    channel: Arc<EventChannel>,
    functions: &'static Functions,
    /// Objects from which its queue pair was created.
    qp: Option<QpParts>,
    /// Shared with a call that another thread makes: id and queue pair exist until it
    /// returns.
    lent: Arc<()>,
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

/// Parameters of a connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ConnectParams<'a> {
    pub(crate) private_data: &'a [u8],
    pub(crate) reads_in: u8,
    pub(crate) reads_out: u8,
}

/// Number of retries without an acknowledgement: the maximum.
const RETRIES: u8 = 7;
/// Unlimited retries if the peer has no receive posted (InfiniBand Architecture, 9.7.5.2.8).
const RNR_FOR_EVER: u8 = 7;
/// 0.64 ms (InfiniBand Architecture, table 45): how long a peer should wait before it retries
/// a message that found no receive.
const RNR_TIMER: u8 = 12;

impl CmId {
    pub(crate) fn new(channel: &Arc<EventChannel>, token: u64) -> io::Result<Self> {
        let functions = channel.functions;
        let mut raw = std::ptr::null_mut();
        let token = as_context(token);
        // SAFETY: the channel exists; the token is not a pointer that is dereferenced.
        let result = unsafe {
            (functions.rdma_create_id)(
                channel.raw(),
                &raw mut raw,
                token,
                rdma_port_space::RDMA_PS_TCP,
            )
        };
        check(result)?;
        let raw = NonNull::new(raw).ok_or_else(last_error)?;
        // SAFETY: made above.
        Ok(unsafe { Self::of(raw, channel) })
    }

    /// Takes ownership of an id that the library created.
    ///
    /// # Safety
    /// The id exists, belongs to `channel`, and has no other owner.
    pub(super) unsafe fn of(raw: NonNull<rdma_cm_id>, channel: &Arc<EventChannel>) -> Self {
        Self {
            raw,
            channel: Arc::clone(channel),
            functions: channel.functions,
            qp: None,
            lent: Arc::default(),
        }
    }

    pub(crate) fn key(&self) -> CmIdKey {
        CmIdKey::of(self.raw.as_ptr())
    }

    /// Sets the token that events of this id carry.
    pub(crate) fn set_token(&mut self, token: u64) {
        // SAFETY: the id exists until this is dropped. The field alone, as said at `raw`.
        let place = unsafe { &raw mut (*self.raw.as_ptr()).context };
        // SAFETY: as above; borrowed mutably.
        unsafe { place.write(as_context(token)) };
    }

    /// The device, once the address or the route has determined it.
    pub(crate) fn context(&self) -> Option<ContextKey> {
        // SAFETY: the id exists; the field alone, as said at `raw`.
        let raw = unsafe { (*self.raw.as_ptr()).verbs };
        (!raw.is_null()).then(|| ContextKey(raw.addr()))
    }

    pub(crate) fn port(&self) -> u8 {
        // SAFETY: as in `context`.
        unsafe { (*self.raw.as_ptr()).port_num }
    }

    pub(crate) fn local_addr(&self) -> Option<SocketAddr> {
        // SAFETY: as in `context`.
        let place = unsafe { &raw const (*self.raw.as_ptr()).route.addr.src_addr_union };
        // SAFETY: the union has room for any address, and the library keeps one there or
        // zeroes.
        from_raw(&unsafe { place.cast::<sockaddr_storage>().read() })
    }

    pub(crate) fn peer_addr(&self) -> Option<SocketAddr> {
        // SAFETY: as in `context`.
        let place = unsafe { &raw const (*self.raw.as_ptr()).route.addr.dst_addr_union };
        // SAFETY: as in `local_addr`.
        from_raw(&unsafe { place.cast::<sockaddr_storage>().read() })
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

    /// Allows binding the address although connections of a closed listener still use it.
    pub(crate) fn set_reuse_addr(&self) -> io::Result<()> {
        self.enable_option(raw::OPTION_ID_REUSEADDR)
    }

    /// Restricts an IPv6 address to IPv6, whatever `net.ipv6.bindv6only` says.
    pub(crate) fn set_only_v6(&self) -> io::Result<()> {
        self.enable_option(raw::OPTION_ID_AFONLY)
    }

    fn enable_option(&self, name: i32) -> io::Result<()> {
        let mut on: libc::c_int = 1;
        let len = size_of::<libc::c_int>();
        self.set_option(name, (&raw mut on).cast(), len)
    }

    fn set_option(&self, name: i32, value: *mut c_void, len: usize) -> io::Result<()> {
        // SAFETY: `value` points to `len` bytes of the caller.
        let result = unsafe {
            (self.functions.rdma_set_option)(self.raw.as_ptr(), raw::OPTION_ID, name, value, len)
        };
        check(result)
    }

    /// Moves the events of this id to another channel.
    pub(crate) fn migrate(&mut self, channel: &Arc<EventChannel>) -> io::Result<()> {
        // SAFETY: both exist; no event of the id is taken and unacknowledged,
        // which it would wait for.
        let result = unsafe { (self.functions.rdma_migrate_id)(self.raw.as_ptr(), channel.raw()) };
        check(result)?;
        self.channel = Arc::clone(channel);
        Ok(())
    }

    /// Creates the queue pair. Returns its maximum inline data in bytes.
    pub(crate) fn create_qp(&mut self, parts: &QpParts, sizes: QpSizes) -> io::Result<u32> {
        let QpParts { pd, cq, drawn } = parts;
        let drawn = drawn.as_ref();
        // The library checks only the domain, and drivers rely on the rest.
        let device = pd.context().key();
        let is_other = |key: ContextKey| key != device;
        let drawn_of = drawn.map(|drawn| [drawn.cq.context().key(), drawn.srq.context().key()]);
        if is_other(cq.context().key()) || drawn_of.into_iter().flatten().any(is_other) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
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
        // SAFETY: domain and queues exist, are of one device and are kept
        // below; the library checks that the domain is of the id's device.
        let result =
            unsafe { (self.functions.rdma_create_qp)(self.raw.as_ptr(), pd.raw(), &raw mut attr) };
        check(result)?;
        self.qp = Some(parts.clone());
        Ok(attr.cap.max_inline_data)
    }

    /// Destroys the queue pair: from then on the device accesses no memory for it.
    pub(crate) fn destroy_qp(&mut self) {
        if self.is_lent() {
            debug_assert!(false, "a queue pair is destroyed under a call");
            return;
        }
        if let Some(made_from) = self.qp.take() {
            // SAFETY: the queue pair was made by `create_qp`.
            unsafe { (self.functions.rdma_destroy_qp)(self.raw.as_ptr()) };
            // Not before: this may be the last reference to them.
            drop(made_from);
        }
    }

    /// Number of the queue pair, 0 when there is none.
    pub(crate) fn qp_number(&self) -> u32 {
        // SAFETY: the queue pair exists. The field alone: a call that another thread makes
        // writes the state.
        self.with_qp(|qp| unsafe { (*qp).qp_num }).unwrap_or(0)
    }

    pub(super) fn with_qp<R>(&self, work: impl FnOnce(*mut ibv_qp) -> R) -> io::Result<R> {
        // SAFETY: as in `context`.
        let qp = unsafe { (*self.raw.as_ptr()).qp };
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

    /// Sets a short RNR timer, for which peers wait if no receive is posted: the kernel's
    /// default is 0.65 seconds.
    pub(crate) fn shorten_rnr_timer(&self) -> io::Result<()> {
        // SAFETY: as in `qp_failed`.
        let mut attr: ibv_qp_attr = unsafe { std::mem::zeroed() };
        attr.qp_state = ibv_qp_state::IBV_QPS_RTS;
        attr.min_rnr_timer = RNR_TIMER;
        let mask = ibv_qp_attr_mask::IBV_QP_STATE.0 | ibv_qp_attr_mask::IBV_QP_MIN_RNR_TIMER.0;
        self.modify(&mut attr, mask)
    }

    /// Stops the queue pair: requests of the peer are not executed any more, and posted work
    /// is flushed.
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

    /// As [`connect`](Self::connect), for another thread to call.
    pub(crate) fn connect_elsewhere(&self, params: ConnectParams<'_>) -> ConnectCall {
        ConnectCall {
            id: self.raw,
            functions: self.functions,
            private_data: params.private_data.into(),
            reads: (params.reads_in, params.reads_out),
            _lent: Arc::clone(&self.lent),
        }
    }

    /// Whether another thread may be in a call with it.
    fn is_lent(&mut self) -> bool {
        Arc::get_mut(&mut self.lent).is_none()
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

    /// Notifies connection management that the peer's first message arrived before the last
    /// message of the set-up.
    pub(crate) fn notify_established(&self) -> io::Result<()> {
        let event = raw::event::COMM_EST;
        // SAFETY: the id exists; the event is one that the function knows.
        check(unsafe { (self.functions.rdma_notify)(self.raw.as_ptr(), event) })
    }
}

/// A pending connect call. As long as this exists its id and queue pair are not destroyed.
#[derive(Debug)]
pub(crate) struct ConnectCall {
    id: NonNull<rdma_cm_id>,
    functions: &'static Functions,
    private_data: Box<[u8]>,
    /// Towards this side, towards the peer.
    reads: (u8, u8),
    _lent: Arc<()>,
}

// SAFETY: librdmacm may be called from any thread, and the id is not destroyed
// under the call.
unsafe impl Send for ConnectCall {}

impl ConnectCall {
    /// Connects, however long the kernel takes for it.
    pub(crate) fn make(self) -> io::Result<()> {
        let mut params = conn_param(ConnectParams {
            private_data: &self.private_data,
            reads_in: self.reads.0,
            reads_out: self.reads.1,
        })?;
        // SAFETY: the id is lent, so it exists, and so does its queue pair;
        // the private data lives as long as the call.
        check(unsafe { (self.functions.rdma_connect)(self.id.as_ptr(), &raw mut params) })
    }
}

impl Drop for CmId {
    fn drop(&mut self) {
        if self.is_lent() {
            // Its owner waits for the call, so this does not happen. If it did, the objects
            // of the call would be leaked.
            debug_assert!(false, "an id is destroyed under a call");
            std::mem::forget((self.qp.take(), Arc::clone(&self.channel)));
            return;
        }
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

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::super::library::functions;
    use super::super::raw::{ibv_context, rdma_event_channel};
    use super::*;

    /// The test has read the fields during the call.
    static READ: AtomicBool = AtomicBool::new(false);

    unsafe extern "C" fn destroy_channel(_: *mut rdma_event_channel) {}

    unsafe extern "C" fn destroy_id(_: *mut rdma_cm_id) -> libc::c_int {
        0
    }

    /// Writes what `rdma_connect` may write of an id.
    unsafe extern "C" fn connect(id: *mut rdma_cm_id, _: *mut rdma_conn_param) -> libc::c_int {
        while !READ.load(Ordering::Acquire) {
            // SAFETY: the id of the test.
            unsafe { (*id).event = std::ptr::null_mut() };
        }
        0
    }

    /// `None` without the libraries.
    fn channel() -> Option<Arc<EventChannel>> {
        let functions = Functions {
            rdma_destroy_event_channel: destroy_channel,
            rdma_destroy_id: destroy_id,
            rdma_connect: connect,
            ..*functions().ok()?
        };
        // SAFETY: the functions that would look at it are replaced.
        Some(unsafe { EventChannel::with_functions(Box::leak(Box::new(functions))) })
    }

    #[test]
    fn fields_of_an_id_are_read_beside_a_call_of_another_thread() {
        let Some(channel) = channel() else { return };
        let local: SocketAddr = "192.0.2.1:4420".parse().unwrap();
        let peer: SocketAddr = "[2001:db8::1]:4421".parse().unwrap();
        let device: *mut ibv_context = std::ptr::without_provenance_mut(64);
        // SAFETY: numbers and pointers, for which zero is a value.
        let mut id: rdma_cm_id = unsafe { std::mem::zeroed() };
        id.verbs = device;
        id.port_num = 2;
        id.route.addr.src_addr_union.src_storage = to_raw(local);
        id.route.addr.dst_addr_union.dst_storage = to_raw(peer);
        // SAFETY: it lives longer than its owner, which the functions above destroy.
        let mut id = unsafe { CmId::of(NonNull::from(&mut id), &channel) };
        let params = ConnectParams {
            private_data: &[],
            reads_in: 1,
            reads_out: 1,
        };
        let call = id.connect_elsewhere(params);
        std::thread::scope(|scope| {
            let call = scope.spawn(|| call.make());
            for token in 0..1000 {
                id.set_token(token);
                assert_eq!(id.context(), Some(ContextKey(device.addr())));
                assert_eq!(id.port(), 2);
                assert_eq!(id.local_addr(), Some(local));
                assert_eq!(id.peer_addr(), Some(peer));
            }
            READ.store(true, Ordering::Release);
            call.join().unwrap().unwrap();
        });
    }
}
