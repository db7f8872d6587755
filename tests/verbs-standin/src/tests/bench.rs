//! Two connected queue pairs and what they need.

use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU16, Ordering};

use libc::{c_int, sockaddr_in};

use crate::control::configure;
use crate::ibverbs::{
    ibv_ack_async_event, ibv_ack_cq_events, ibv_alloc_pd, ibv_create_comp_channel, ibv_create_cq,
    ibv_create_srq, ibv_dealloc_pd, ibv_dereg_mr, ibv_destroy_comp_channel, ibv_destroy_cq,
    ibv_destroy_srq, ibv_get_async_event, ibv_get_cq_event, ibv_reg_mr,
};
use crate::raw::{
    AsyncElement, AsyncEvent, cm_event, ibv_comp_channel, ibv_context, ibv_cq, ibv_mr, ibv_pd,
    ibv_qp_init_attr, ibv_recv_wr, ibv_send_flags, ibv_send_wr, ibv_sge, ibv_srq,
    ibv_srq_init_attr, ibv_wc, ibv_wr_opcode as opcode, rdma_cm_event, rdma_cm_id, rdma_conn_param,
    rdma_event_channel, zeroed,
};
use crate::rdmacm::{
    rdma_accept, rdma_ack_cm_event, rdma_bind_addr, rdma_connect, rdma_create_event_channel,
    rdma_create_id, rdma_create_qp, rdma_destroy_event_channel, rdma_destroy_id, rdma_destroy_qp,
    rdma_get_cm_event, rdma_get_devices, rdma_listen, rdma_resolve_addr, rdma_resolve_route,
};

/// Everything that one side needs. The functions get only its own pointers.
pub(super) struct End {
    pub(super) context: *mut ibv_context,
    pub(super) pd: *mut ibv_pd,
    pub(super) channel: *mut ibv_comp_channel,
    pub(super) cq: *mut ibv_cq,
    pub(super) srq: *mut ibv_srq,
    pub(super) events: *mut rdma_event_channel,
    pub(super) id: *mut rdma_cm_id,
    pub(super) memory: Box<[u8]>,
    pub(super) mr: *mut ibv_mr,
}

/// Two connected ends.
pub(super) struct Bench {
    pub(super) device: String,
    pub(super) a: End,
    pub(super) b: End,
    listener: *mut rdma_cm_id,
}

/// Sizes of the ends.
#[derive(Clone, Copy)]
pub(super) struct Shape {
    pub(super) sends: u32,
    pub(super) receives: u32,
    pub(super) cqe: c_int,
    /// Entries of the shared receive queue of B, and its limit; 0: none.
    pub(super) shared: u32,
    pub(super) limit: u32,
    pub(super) rnr_retry: u8,
    pub(super) reads: u8,
    /// Access to the memory.
    pub(super) access: u32,
}

impl Default for Shape {
    fn default() -> Self {
        Self {
            sends: 8,
            receives: 8,
            cqe: 32,
            shared: 0,
            limit: 0,
            rnr_retry: 7,
            reads: 4,
            access: 1 | 2 | 4,
        }
    }
}

pub(super) const MEMORY: usize = 4096;

/// Adds a device; returns its name, address and context.
fn device(settings: &str) -> (String, [u8; 4], *mut ibv_context) {
    static COUNT: AtomicU16 = AtomicU16::new(1);
    let [high, low] = COUNT.fetch_add(1, Ordering::Relaxed).to_be_bytes();
    let (name, addr) = (format!("unit{high}.{low}"), [10, 60 + high, low, 1]);
    let [a, b, c, d] = addr;
    configure(&format!("{name} {settings} addr={a}.{b}.{c}.{d}")).unwrap();
    let mut count = 0;
    // SAFETY: a place for the number.
    let list = unsafe { rdma_get_devices(&raw mut count) };
    let mut found = None;
    for index in 0..usize::try_from(count).unwrap() {
        // SAFETY: one of `count` entries.
        let place = unsafe { list.add(index) };
        // SAFETY: as above.
        let context = unsafe { place.read() };
        // SAFETY: a device of the list.
        let description = unsafe { (*context).device };
        // SAFETY: as above.
        let own = unsafe { (*description).name };
        let own: Vec<u8> = own.iter().map(|byte| byte.to_ne_bytes()[0]).collect();
        if own.starts_with(name.as_bytes()) && own[name.len()] == 0 {
            found = Some(context);
        }
    }
    (name, addr, found.unwrap())
}

fn socket_addr(addr: [u8; 4], port: u16) -> sockaddr_in {
    sockaddr_in {
        sin_family: libc::sa_family_t::try_from(libc::AF_INET).unwrap(),
        sin_port: port.to_be(),
        sin_addr: libc::in_addr {
            s_addr: u32::from_ne_bytes(addr),
        },
        sin_zero: [0; 8],
    }
}

fn nonblocking(fd: c_int) {
    // SAFETY: an open descriptor.
    let fd = unsafe { BorrowedFd::borrow_raw(fd) };
    let flags = nix::fcntl::FcntlArg::F_SETFL(nix::fcntl::OFlag::O_NONBLOCK);
    nix::fcntl::fcntl(fd, flags).unwrap();
}

fn id_on(channel: *mut rdma_event_channel) -> *mut rdma_cm_id {
    let mut id = std::ptr::null_mut();
    // SAFETY: a channel, and a place for the id.
    let made = unsafe { rdma_create_id(channel, &raw mut id, std::ptr::null_mut(), 0) };
    assert_eq!(made, 0);
    id
}

/// The next event of a channel: its kind, status and id.
pub(super) fn event(
    channel: *mut rdma_event_channel,
) -> Option<(cm_event::Type, c_int, *mut rdma_cm_id)> {
    let mut event: *mut rdma_cm_event = std::ptr::null_mut();
    // SAFETY: a channel of the bench.
    let result = unsafe { rdma_get_cm_event(channel, &raw mut event) };
    if result != 0 {
        return None;
    }
    // SAFETY: an event that was taken.
    let kind = unsafe { (*event).event };
    // SAFETY: as above.
    let status = unsafe { (*event).status };
    // SAFETY: as above.
    let id = unsafe { (*event).id };
    // SAFETY: as above.
    unsafe { rdma_ack_cm_event(event) };
    Some((kind, status, id))
}

fn expect(channel: *mut rdma_event_channel, kind: cm_event::Type) -> *mut rdma_cm_id {
    let (found, status, id) = event(channel).unwrap();
    assert_eq!((found, status), (kind, 0));
    id
}

fn params(shape: Shape) -> rdma_conn_param {
    // SAFETY: numbers and pointers.
    let mut params: rdma_conn_param = unsafe { zeroed() };
    params.responder_resources = shape.reads;
    params.initiator_depth = shape.reads;
    params.rnr_retry_count = shape.rnr_retry;
    params
}

impl End {
    fn new(context: *mut ibv_context, shape: Shape) -> Self {
        // SAFETY: an open device.
        let pd = unsafe { ibv_alloc_pd(context) };
        // SAFETY: as above.
        let channel = unsafe { ibv_create_comp_channel(context) };
        // SAFETY: as above.
        let cq = unsafe { ibv_create_cq(context, shape.cqe, std::ptr::null_mut(), channel, 0) };
        // SAFETY: takes nothing.
        let events = unsafe { rdma_create_event_channel() };
        // SAFETY: made above.
        nonblocking(unsafe { (*channel).fd });
        // SAFETY: made above.
        nonblocking(unsafe { (*events).fd });
        // SAFETY: an open device.
        nonblocking(unsafe { (*context).async_fd });
        let mut memory = vec![0; MEMORY].into_boxed_slice();
        let place = memory.as_mut_ptr().cast();
        let access = shape.access.cast_signed();
        // SAFETY: memory that lives as long as the region.
        let mr = unsafe { ibv_reg_mr(pd, place, MEMORY, access) };
        assert!(!mr.is_null() && !cq.is_null());
        Self {
            context,
            pd,
            channel,
            cq,
            srq: std::ptr::null_mut(),
            events,
            id: std::ptr::null_mut(),
            memory,
            mr,
        }
    }

    fn share(&mut self, shape: Shape) {
        // SAFETY: numbers and pointers.
        let mut init: ibv_srq_init_attr = unsafe { zeroed() };
        init.attr.max_wr = shape.shared;
        init.attr.max_sge = 1;
        init.attr.srq_limit = shape.limit;
        // SAFETY: a domain and attributes.
        self.srq = unsafe { ibv_create_srq(self.pd, &raw mut init) };
        assert!(!self.srq.is_null());
    }

    fn make_qp(&mut self, shape: Shape) {
        // SAFETY: numbers and pointers.
        let mut init: ibv_qp_init_attr = unsafe { zeroed() };
        init.send_cq = self.cq;
        init.recv_cq = self.cq;
        init.srq = self.srq;
        init.cap.max_send_wr = shape.sends;
        init.cap.max_recv_wr = shape.receives;
        init.cap.max_send_sge = 2;
        init.cap.max_recv_sge = 1;
        init.cap.max_inline_data = 32;
        // SAFETY: an id with a device, and parts of that device.
        let made = unsafe { rdma_create_qp(self.id, self.pd, &raw mut init) };
        assert_eq!(made, 0);
    }

    /// A segment of its memory.
    pub(super) fn segment(&self, start: usize, len: u32) -> ibv_sge {
        // SAFETY: a region of the bench.
        let lkey = unsafe { (*self.mr).lkey };
        ibv_sge {
            addr: (self.memory.as_ptr().addr() + start) as u64,
            length: len,
            lkey,
        }
    }

    /// Its memory from `start`, as the peer names it.
    pub(super) fn remote(&self, start: usize) -> (u64, u32) {
        // SAFETY: a region of the bench.
        let key = unsafe { (*self.mr).rkey };
        ((self.memory.as_ptr().addr() + start) as u64, key)
    }

    /// Posts a work request of one segment, or inline.
    pub(super) fn post(&self, request: Request) -> c_int {
        // SAFETY: numbers and pointers.
        let mut wr: ibv_send_wr = unsafe { zeroed() };
        let mut segment = request.segment;
        wr.wr_id = request.id;
        wr.opcode = request.opcode;
        wr.send_flags = request.flags;
        if let Some(segment) = &mut segment {
            wr.sg_list = &raw mut *segment;
            wr.num_sge = 1;
        }
        wr.imm_data_invalidated_rkey_union.invalidated_rkey = request.key;
        (wr.wr.rdma.remote_addr, wr.wr.rdma.rkey) = request.remote;
        if let Some(bind) = request.bind {
            wr.bind_mw_tso_union.bind_mw = bind;
        }
        let mut bad = std::ptr::null_mut();
        // SAFETY: an id of the bench.
        let qp = unsafe { (*self.id).qp };
        // SAFETY: a device of the bench.
        let post = unsafe { (*self.context).ops.post_send };
        // SAFETY: a queue pair, and a work request that lives until the call returns.
        let result = unsafe { post.unwrap()(qp, &raw mut wr, &raw mut bad) };
        assert_eq!(result != 0, bad == &raw mut wr, "{result}");
        result
    }

    /// Posts a receive into its memory.
    pub(super) fn receive(&self, id: u64, start: usize, len: u32) -> c_int {
        let mut segment = self.segment(start, len);
        let mut wr = ibv_recv_wr {
            wr_id: id,
            next: std::ptr::null_mut(),
            sg_list: &raw mut segment,
            num_sge: 1,
        };
        let mut bad = std::ptr::null_mut();
        // SAFETY: a device of the bench.
        let ops = unsafe { (*self.context).ops };
        if !self.srq.is_null() {
            // SAFETY: a queue, and a work request that lives until the call returns.
            return unsafe { ops.post_srq_recv.unwrap()(self.srq, &raw mut wr, &raw mut bad) };
        }
        // SAFETY: an id of the bench.
        let qp = unsafe { (*self.id).qp };
        // SAFETY: as above.
        unsafe { ops.post_recv.unwrap()(qp, &raw mut wr, &raw mut bad) }
    }

    /// Takes at most `most` completions: their identifiers and statuses.
    pub(super) fn poll(&self, most: usize) -> Vec<(u64, u32)> {
        // SAFETY: numbers.
        let one = || -> ibv_wc { unsafe { zeroed() } };
        let mut room: Vec<ibv_wc> = (0..most).map(|_| one()).collect();
        // SAFETY: a device of the bench.
        let poll = unsafe { (*self.context).ops.poll_cq };
        let len = c_int::try_from(most).unwrap();
        // SAFETY: a queue, and room for as many.
        let count = unsafe { poll.unwrap()(self.cq, len, room.as_mut_ptr()) };
        let taken = room.iter().take(usize::try_from(count).unwrap());
        taken.map(|wc| (wc.wr_id, wc.status)).collect()
    }

    pub(super) fn arm(&self, solicited: bool) {
        // SAFETY: a device of the bench.
        let arm = unsafe { (*self.context).ops.req_notify_cq };
        // SAFETY: a queue.
        let result = unsafe { arm.unwrap()(self.cq, c_int::from(solicited)) };
        assert_eq!(result, 0);
    }

    /// Takes and acknowledges the events of its completion queue; returns how many.
    pub(super) fn wake_ups(&self) -> u32 {
        let mut count = 0;
        let (mut cq, mut context) = (std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: a channel, and places for both.
        while unsafe { ibv_get_cq_event(self.channel, &raw mut cq, &raw mut context) } == 0 {
            assert_eq!(cq, self.cq);
            count += 1;
        }
        // SAFETY: as many as were taken.
        unsafe { ibv_ack_cq_events(self.cq, count) };
        count
    }

    /// The asynchronous events of its device.
    pub(super) fn device_events(&self) -> Vec<c_int> {
        let mut events = Vec::new();
        let mut event = AsyncEvent {
            element: AsyncElement { port: 0 },
            event: 0,
        };
        // SAFETY: a device, and a place for the event.
        while unsafe { ibv_get_async_event(self.context, &raw mut event) } == 0 {
            events.push(event.event);
            // SAFETY: an event that was taken.
            unsafe { ibv_ack_async_event(&raw mut event) };
        }
        events
    }

    /// Destroys the queue pair.
    pub(super) fn destroy_qp(&self) {
        // SAFETY: an id of the bench.
        unsafe { rdma_destroy_qp(self.id) };
    }

    /// Destroys everything. Returns the results of the calls that have one.
    pub(super) fn destroy(self) -> [c_int; 5] {
        self.destroy_qp();
        // SAFETY: nothing uses it any more, here and below.
        let id = unsafe { rdma_destroy_id(self.id) };
        // SAFETY: as above.
        let mr = unsafe { ibv_dereg_mr(self.mr) };
        if !self.srq.is_null() {
            // SAFETY: as above.
            assert_eq!(unsafe { ibv_destroy_srq(self.srq) }, 0);
        }
        // SAFETY: as above.
        let cq = unsafe { ibv_destroy_cq(self.cq) };
        // SAFETY: as above.
        let channel = unsafe { ibv_destroy_comp_channel(self.channel) };
        // SAFETY: as above.
        let pd = unsafe { ibv_dealloc_pd(self.pd) };
        // SAFETY: as above.
        unsafe { rdma_destroy_event_channel(self.events) };
        [id, mr, cq, channel, pd]
    }
}

/// A work request.
#[derive(Clone, Copy)]
pub(super) struct Request {
    pub(super) id: u64,
    pub(super) opcode: u32,
    pub(super) flags: u32,
    pub(super) segment: Option<ibv_sge>,
    pub(super) remote: (u64, u32),
    pub(super) key: u32,
    pub(super) bind: Option<rdma_sys::bind_mw_t>,
}

pub(super) const SIGNALLED: u32 = ibv_send_flags::IBV_SEND_SIGNALED.0;
pub(super) const SOLICITED: u32 = ibv_send_flags::IBV_SEND_SOLICITED.0;
pub(super) const INLINE: u32 = ibv_send_flags::IBV_SEND_INLINE.0;

impl Request {
    /// A signaled send.
    pub(super) fn send(id: u64, segment: ibv_sge) -> Self {
        Self {
            id,
            opcode: opcode::IBV_WR_SEND,
            flags: SIGNALLED,
            segment: Some(segment),
            remote: (0, 0),
            key: 0,
            bind: None,
        }
    }

    pub(super) fn flags(self, flags: u32) -> Self {
        Self { flags, ..self }
    }

    pub(super) fn write(id: u64, segment: ibv_sge, remote: (u64, u32)) -> Self {
        Self {
            opcode: opcode::IBV_WR_RDMA_WRITE,
            remote,
            ..Self::send(id, segment)
        }
    }

    pub(super) fn read(id: u64, segment: ibv_sge, remote: (u64, u32)) -> Self {
        Self {
            opcode: opcode::IBV_WR_RDMA_READ,
            ..Self::write(id, segment, remote)
        }
    }
}

impl Bench {
    /// Connects two ends on a device of their own.
    pub(super) fn new(settings: &str, shape: Shape) -> Self {
        let (device, addr, context) = device(settings);
        let [mut a, b] = [(); 2].map(|()| End::new(context, shape));
        a.id = id_on(a.events);
        let listener = id_on(b.events);
        Self {
            device,
            a,
            b,
            listener,
        }
        .connected(addr, shape)
    }

    fn connected(mut self, addr: [u8; 4], shape: Shape) -> Self {
        let mut at = socket_addr(addr, 4420);
        let place = (&raw mut at).cast();
        // SAFETY: an id and an address.
        assert_eq!(unsafe { rdma_bind_addr(self.listener, place) }, 0);
        // SAFETY: an id.
        assert_eq!(unsafe { rdma_listen(self.listener, 8) }, 0);
        let (a, none) = (self.a.id, std::ptr::null_mut());
        // SAFETY: an id and an address.
        assert_eq!(unsafe { rdma_resolve_addr(a, none, place, 100) }, 0);
        expect(self.a.events, cm_event::RDMA_CM_EVENT_ADDR_RESOLVED);
        // SAFETY: an id.
        assert_eq!(unsafe { rdma_resolve_route(a, 100) }, 0);
        expect(self.a.events, cm_event::RDMA_CM_EVENT_ROUTE_RESOLVED);
        self.a.make_qp(shape);
        let mut offered = params(shape);
        // SAFETY: an id with a queue pair, and parameters.
        assert_eq!(unsafe { rdma_connect(a, &raw mut offered) }, 0);
        self.b.id = expect(self.b.events, cm_event::RDMA_CM_EVENT_CONNECT_REQUEST);
        if shape.shared > 0 {
            self.b.share(shape);
        }
        self.b.make_qp(shape);
        // SAFETY: as above.
        assert_eq!(unsafe { rdma_accept(self.b.id, &raw mut offered) }, 0);
        expect(self.a.events, cm_event::RDMA_CM_EVENT_ESTABLISHED);
        expect(self.b.events, cm_event::RDMA_CM_EVENT_ESTABLISHED);
        self
    }

    /// Changes the device.
    pub(super) fn set(&self, settings: &str) {
        configure(&format!("{} {settings}", self.device)).unwrap();
    }

    /// Destroys everything, which must succeed.
    pub(super) fn finish(self) {
        // SAFETY: the listener of the bench, which nothing uses any more.
        unsafe { rdma_destroy_id(self.listener) };
        assert_eq!(self.a.destroy(), [0; 5]);
        assert_eq!(self.b.destroy(), [0; 5]);
    }
}
