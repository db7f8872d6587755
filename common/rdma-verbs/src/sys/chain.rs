//! Chains of work requests: filled one by one, posted with one call.

use std::io;
use std::ops::Range;
use std::sync::Arc;

use nvmeof_rdma::Rights;

use super::memory::window_access;
use super::raw::{
    bind_mw_t, ibv_mw_bind_info, ibv_post_recv, ibv_post_send, ibv_post_srq_recv, ibv_recv_wr,
    ibv_send_flags, ibv_send_wr, ibv_sge, ibv_wr_opcode, rdma_t,
};
use super::{CmId, MemoryRegion, MemoryWindow, SharedReceiveQueue, check};

/// Maximum inline data of a request in bytes.
pub(crate) const INLINE: usize = 64;

/// Bytes of a completion queue entry.
const ENTRY: usize = 16;

/// Maximum work requests of one chain.
const CHAIN: usize = 32;

/// Bytes in registered memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Segment {
    /// I/O address.
    pub(crate) addr: u64,
    pub(crate) len: u32,
    /// Local key.
    pub(crate) key: u32,
}

impl Segment {
    fn raw(self) -> ibv_sge {
        ibv_sge {
            addr: self.addr,
            length: self.len,
            lkey: self.key,
        }
    }
}

/// Location of a message.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Payload<'a> {
    /// The first `len` bytes, copied into the request.
    Inline { bytes: &'a [u8; INLINE], len: u32 },
    /// A completion queue entry, copied into the request.
    Entry(&'a [u8; ENTRY]),
    /// In registered memory, in this order.
    Memory([Option<Segment>; 2]),
}

impl Payload<'_> {
    /// No bytes, and no segment.
    pub(crate) const NOTHING: Self = Self::Inline {
        bytes: &[0; INLINE],
        len: 0,
    };
}

/// Operation of a request.
#[derive(Debug)]
pub(crate) enum SendOp<'a> {
    Send {
        payload: Payload<'a>,
        invalidate: Option<u32>,
        solicited: bool,
    },
    Write {
        payload: Payload<'a>,
        addr: u64,
        key: u32,
    },
    Read {
        local: Option<Segment>,
        addr: u64,
        key: u32,
    },
    Bind {
        window: Arc<MemoryWindow>,
        /// Its new key.
        key: u32,
        region: &'a Arc<MemoryRegion>,
        /// Keep the region until the request is posted. Others exist for longer.
        keeps: bool,
        addr: u64,
        len: u64,
        rights: Rights,
    },
    Invalidate {
        key: u32,
    },
}

impl SendOp<'_> {
    /// Whether it sends bytes from registered memory.
    pub(crate) fn sends_memory(&self) -> bool {
        match self {
            Self::Send { payload, .. } | Self::Write { payload, .. } => {
                matches!(payload, Payload::Memory(parts) if parts.iter().any(Option::is_some))
            }
            Self::Read { .. } | Self::Bind { .. } | Self::Invalidate { .. } => false,
        }
    }
}

/// One work request for a send queue.
#[derive(Debug)]
pub(crate) struct SendRequest<'a> {
    pub(crate) id: u64,
    pub(crate) signalled: bool,
    pub(crate) op: SendOp<'a>,
}

/// A work request, and what it points to.
struct SendSlot {
    raw: ibv_send_wr,
    segments: [ibv_sge; 2],
    inline: [u8; INLINE],
}

/// Work requests for a send queue.
pub(crate) struct SendChain {
    slots: Box<[SendSlot]>,
    count: usize,
    /// Objects to which the requests have pointers, and the window's new key.
    named: Vec<(Arc<MemoryWindow>, Option<Arc<MemoryRegion>>, u32)>,
}

// SAFETY: the pointers in the requests are used only by `post`, on the thread that then owns
// the chain. They name the slots, as `post` sets them, windows and regions in `named`, and what
// the caller of `post` vouches for.
unsafe impl Send for SendChain {}

impl std::fmt::Debug for SendChain {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SendChain")
            .field("count", &self.count)
            .finish_non_exhaustive()
    }
}

const NO_SEGMENT: ibv_sge = ibv_sge {
    addr: 0,
    length: 0,
    lkey: 0,
};

impl SendChain {
    pub(crate) fn new() -> Self {
        let slots = (0..CHAIN).map(|_| SendSlot {
            // SAFETY: a work request is numbers and pointers, for which zero is a value.
            raw: unsafe { std::mem::zeroed() },
            segments: [NO_SEGMENT; 2],
            inline: [0; INLINE],
        });
        Self {
            slots: slots.collect(),
            count: 0,
            named: Vec::new(),
        }
    }

    /// Whether there is no room for `count` more requests.
    pub(crate) fn is_full_for(&self, count: usize) -> bool {
        self.count + count > CHAIN
    }

    /// Adds a request. The chain must not be full. Inlined, because callers know the operation.
    #[inline(always)]
    pub(crate) fn push(&mut self, request: SendRequest<'_>) {
        let Some(slot) = self.slots.get_mut(self.count) else {
            debug_assert!(false, "the chain is full");
            return;
        };
        let SendSlot {
            raw,
            segments,
            inline,
        } = slot;
        self.count += 1;
        raw.wr_id = request.id;
        let mut flags = 0;
        if request.signalled {
            flags |= ibv_send_flags::IBV_SEND_SIGNALED.0;
        }
        raw.num_sge = 0;
        // Left from an earlier request: drivers refuse some requests with it.
        raw.imm_data_invalidated_rkey_union.invalidated_rkey = 0;
        match request.op {
            SendOp::Send {
                payload,
                invalidate,
                solicited,
            } => {
                raw.opcode = ibv_wr_opcode::IBV_WR_SEND;
                if let Some(key) = invalidate {
                    raw.opcode = ibv_wr_opcode::IBV_WR_SEND_WITH_INV;
                    raw.imm_data_invalidated_rkey_union.invalidated_rkey = key;
                    // libsiw takes the key from here.
                    raw.wr.rdma = remote(0, key);
                }
                if solicited {
                    flags |= ibv_send_flags::IBV_SEND_SOLICITED.0;
                }
                flags |= place(raw, segments, inline, payload);
            }
            SendOp::Write { payload, addr, key } => {
                raw.opcode = ibv_wr_opcode::IBV_WR_RDMA_WRITE;
                flags |= place(raw, segments, inline, payload);
                raw.wr.rdma = remote(addr, key);
            }
            SendOp::Read { local, addr, key } => {
                raw.opcode = ibv_wr_opcode::IBV_WR_RDMA_READ;
                raw.num_sge = put(segments, [local, None]);
                raw.wr.rdma = remote(addr, key);
            }
            SendOp::Bind {
                window,
                key,
                region,
                keeps,
                addr,
                len,
                rights,
            } => {
                bind(raw, &window, key, region, addr..addr + len, rights);
                let kept = keeps.then(|| Arc::clone(region));
                self.named.push((window, kept, key));
            }
            SendOp::Invalidate { key } => {
                raw.opcode = ibv_wr_opcode::IBV_WR_LOCAL_INV;
                raw.imm_data_invalidated_rkey_union.invalidated_rkey = key;
            }
        }
        raw.send_flags = flags;
    }

    /// Makes the last request signaled.
    pub(crate) fn signal_last(&mut self) {
        let last = self.count.checked_sub(1);
        if let Some(last) = last.and_then(|last| self.slots.get_mut(last)) {
            last.raw.send_flags |= ibv_send_flags::IBV_SEND_SIGNALED.0;
        }
    }

    /// Posts the chain, which is empty then.
    ///
    /// # Safety
    /// Until each request completes, or the queue pair is destroyed:
    /// * no reference exists to the memory that its segments name, and nothing else writes it;
    /// * memory that a bind opens is the peer's, until its key is invalidated;
    /// * regions of binds that the chain does not keep still exist;
    /// * no other chain has a bind of the same window meanwhile.
    pub(crate) unsafe fn post(&mut self, id: &CmId) -> io::Result<()> {
        let count = std::mem::take(&mut self.count);
        if count == 0 {
            return Ok(());
        }
        let mut first = std::ptr::null_mut();
        for slot in linked(&mut self.slots, count) {
            let SendSlot {
                raw,
                segments,
                inline,
            } = slot;
            if raw.send_flags & ibv_send_flags::IBV_SEND_INLINE.0 != 0 {
                // Inline bytes are named by their address in this process. It is taken here,
                // because it is valid only until the slots are used again.
                let [first_segment, _] = segments;
                first_segment.addr = inline.as_ptr().expose_provenance() as u64;
            }
            (raw.sg_list, raw.next) = (segments.as_mut_ptr(), first);
            first = raw;
        }
        let mut bad = std::ptr::null_mut();
        let result = id.with_qp(|qp| {
            // SAFETY: the queue pair exists; the requests are linked up to the
            // last, whose successor is null; segments, inline bytes and
            // windows they name are owned by this chain; regions they name
            // exist, and what the segments name is the device's, as the
            // caller promises.
            unsafe { ibv_post_send(qp, first, &raw mut bad) }
        });
        for (window, _, key) in self.named.drain(..) {
            window.set_key(key);
        }
        result.and_then(check)
    }
}

/// Makes a request bind `window`, with the new key `key`, to a range of `region`.
fn bind(
    raw: &mut ibv_send_wr,
    window: &MemoryWindow,
    key: u32,
    region: &MemoryRegion,
    range: Range<u64>,
    rights: Rights,
) {
    raw.opcode = ibv_wr_opcode::IBV_WR_BIND_MW;
    raw.bind_mw_tso_union.bind_mw = bind_mw_t {
        mw: window.raw(),
        rkey: key,
        bind_info: ibv_mw_bind_info {
            mr: region.raw(),
            addr: range.start,
            length: range.end - range.start,
            mw_access_flags: window_access(rights),
        },
    };
}

/// Makes a request send `payload`; returns the flags it needs for that.
#[inline(always)]
fn place(
    raw: &mut ibv_send_wr,
    segments: &mut [ibv_sge; 2],
    inline: &mut [u8; INLINE],
    payload: Payload<'_>,
) -> libc::c_uint {
    match payload {
        Payload::Inline { bytes, len } => {
            // A copy of fixed size is cheap.
            *inline = *bytes;
            raw.num_sge = put(segments, [inline_segment(len), None]);
            ibv_send_flags::IBV_SEND_INLINE.0
        }
        Payload::Entry(bytes) => {
            if let Some(room) = inline.first_chunk_mut() {
                *room = *bytes;
            }
            let len = u32::try_from(bytes.len()).unwrap_or(0);
            raw.num_sge = put(segments, [inline_segment(len), None]);
            ibv_send_flags::IBV_SEND_INLINE.0
        }
        Payload::Memory(parts) => {
            raw.num_sge = put(segments, parts);
            0
        }
    }
}

/// The first `count` requests, the last one first. (`take(count).rev()` visits the others too.)
fn linked<T>(slots: &mut [T], count: usize) -> impl Iterator<Item = &mut T> {
    slots.get_mut(..count).unwrap_or_default().iter_mut().rev()
}

fn remote(addr: u64, key: u32) -> rdma_t {
    rdma_t {
        remote_addr: addr,
        rkey: key,
    }
}

/// Inline bytes, whose address `post` adds. They have no key.
fn inline_segment(len: u32) -> Option<Segment> {
    (len > 0).then_some(Segment {
        addr: 0,
        len,
        key: 0,
    })
}

#[inline(always)]
fn put(room: &mut [ibv_sge; 2], parts: [Option<Segment>; 2]) -> libc::c_int {
    let [first, second] = room;
    match parts {
        [None, None] => 0,
        [Some(only), None] | [None, Some(only)] => {
            *first = only.raw();
            1
        }
        [Some(one), Some(other)] => {
            *first = one.raw();
            *second = other.raw();
            2
        }
    }
}

/// A receive, and what it points to.
struct RecvSlot {
    raw: ibv_recv_wr,
    segments: [ibv_sge; 2],
}

/// Work requests for a receive queue.
pub(crate) struct RecvChain {
    slots: Box<[RecvSlot]>,
    count: usize,
}

// SAFETY: as for `SendChain`.
unsafe impl Send for RecvChain {}

impl std::fmt::Debug for RecvChain {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RecvChain")
            .field("count", &self.count)
            .finish_non_exhaustive()
    }
}

impl RecvChain {
    pub(crate) fn new() -> Self {
        let slots = (0..CHAIN).map(|_| RecvSlot {
            // SAFETY: as for `SendChain`.
            raw: unsafe { std::mem::zeroed() },
            segments: [NO_SEGMENT; 2],
        });
        Self {
            slots: slots.collect(),
            count: 0,
        }
    }

    pub(crate) fn is_full(&self) -> bool {
        self.count == CHAIN
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Adds a receive into `room`. The chain must not be full.
    #[inline]
    pub(crate) fn push(&mut self, id: u64, room: Option<Segment>) {
        let Some(slot) = self.slots.get_mut(self.count) else {
            debug_assert!(false, "the chain is full");
            return;
        };
        self.count += 1;
        slot.raw.wr_id = id;
        slot.raw.num_sge = put(&mut slot.segments, [room, None]);
    }

    /// Posts the chain, which is empty then.
    ///
    /// # Safety
    /// Until each receive completes, or the queue pair is destroyed, no reference exists to
    /// the memory that its segment names, and nothing else writes it.
    pub(crate) unsafe fn post(&mut self, id: &CmId) -> io::Result<()> {
        self.hand_over(|first, bad| {
            id.with_qp(|qp| {
                // SAFETY: as in `SendChain::post`.
                unsafe { ibv_post_recv(qp, first, bad) }
            })
        })
    }

    /// Posts the chain to a shared queue.
    ///
    /// # Safety
    /// As of [`post`](Self::post), until the shared queue is destroyed.
    pub(crate) unsafe fn post_shared(&mut self, srq: &SharedReceiveQueue) -> io::Result<()> {
        self.hand_over(|first, bad| {
            // SAFETY: as in `SendChain::post`; the queue exists.
            Ok(unsafe { ibv_post_srq_recv(srq.raw(), first, bad) })
        })
    }

    fn hand_over(
        &mut self,
        post: impl FnOnce(*mut ibv_recv_wr, *mut *mut ibv_recv_wr) -> io::Result<libc::c_int>,
    ) -> io::Result<()> {
        let count = std::mem::take(&mut self.count);
        if count == 0 {
            return Ok(());
        }
        let mut first = std::ptr::null_mut();
        for RecvSlot { raw, segments } in linked(&mut self.slots, count) {
            (raw.sg_list, raw.next) = (segments.as_mut_ptr(), first);
            first = raw;
        }
        let mut bad = std::ptr::null_mut();
        post(first, &raw mut bad).and_then(check)
    }
}
