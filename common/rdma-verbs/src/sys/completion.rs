//! Completion channels and queues.

use std::io;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use super::raw::{ibv_comp_channel, ibv_cq, ibv_poll_cq, ibv_req_notify_cq, ibv_wc, ibv_wc_flags};
use super::{Context, check, last_error};

/// A descriptor that signals completions of completion queues.
#[derive(Debug)]
pub(crate) struct CompletionChannel {
    raw: NonNull<ibv_comp_channel>,
    context: Arc<Context>,
}

// SAFETY: libibverbs may be called from any thread.
unsafe impl Send for CompletionChannel {}
// SAFETY: as above.
unsafe impl Sync for CompletionChannel {}

impl CompletionChannel {
    pub(crate) fn new(context: &Arc<Context>) -> io::Result<Arc<Self>> {
        // SAFETY: the context is open.
        let raw = unsafe { (context.functions().ibv_create_comp_channel)(context.raw()) };
        let raw = NonNull::new(raw).ok_or_else(last_error)?;
        Ok(Arc::new(Self {
            raw,
            context: Arc::clone(context),
        }))
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the channel exists until this is dropped.
        let fd = unsafe { (*self.raw.as_ptr()).fd };
        // SAFETY: the channel's descriptor is open as long as the channel.
        unsafe { BorrowedFd::borrow_raw(fd) }
    }

    /// Takes the next event: the number of its queue. The descriptor must be non-blocking.
    pub(crate) fn take(&self) -> Option<usize> {
        let mut cq: *mut ibv_cq = std::ptr::null_mut();
        let mut number = std::ptr::null_mut();
        // SAFETY: both are places for pointers; the queue's own pointer is not
        // looked at.
        let result = unsafe {
            (self.context.functions().ibv_get_cq_event)(
                self.raw.as_ptr(),
                &raw mut cq,
                &raw mut number,
            )
        };
        (result == 0).then(|| number.addr())
    }
}

impl Drop for CompletionChannel {
    fn drop(&mut self) {
        // SAFETY: queues made with it hold it, so there are none any more.
        let result =
            unsafe { (self.context.functions().ibv_destroy_comp_channel)(self.raw.as_ptr()) };
        debug_assert!(result == 0, "a completion channel in use: {result}");
    }
}

/// Identifies a completion queue as long as it exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CqKey(pub(super) usize);

/// A completion queue.
#[derive(Debug)]
pub(crate) struct CompletionQueue {
    raw: NonNull<ibv_cq>,
    channel: Arc<CompletionChannel>,
    /// Events taken from the channel and not acknowledged.
    unacknowledged: AtomicU32,
}

// SAFETY: libibverbs may be called from any thread.
unsafe impl Send for CompletionQueue {}
// SAFETY: as above; drivers lock their queues.
unsafe impl Sync for CompletionQueue {}

/// Events are acknowledged in batches, because each call takes a lock.
const ACKNOWLEDGE_AT: u32 = 128;

impl CompletionQueue {
    /// Creates one for at least `size` completions, whose events contain `number`. Its interrupts
    /// use the completion vector `vector`, of as many as the device has.
    pub(crate) fn new(
        channel: &Arc<CompletionChannel>,
        size: u32,
        number: usize,
        vector: usize,
    ) -> io::Result<Arc<Self>> {
        let size = i32::try_from(size).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
        let context = &channel.context;
        let vector = i32::try_from(vector % context.vectors()).unwrap_or(0);
        // SAFETY: context and channel belong together; the number is no
        // pointer that anybody follows.
        let raw = unsafe {
            (context.functions().ibv_create_cq)(
                context.raw(),
                size,
                std::ptr::without_provenance_mut(number),
                channel.raw.as_ptr(),
                vector,
            )
        };
        let raw = NonNull::new(raw).ok_or_else(last_error)?;
        Ok(Arc::new(Self {
            raw,
            channel: Arc::clone(channel),
            unacknowledged: AtomicU32::new(0),
        }))
    }

    pub(super) fn context(&self) -> &Arc<Context> {
        &self.channel.context
    }

    pub(super) fn raw(&self) -> *mut ibv_cq {
        self.raw.as_ptr()
    }

    pub(crate) fn key(&self) -> CqKey {
        CqKey(self.raw.as_ptr().addr())
    }

    /// An event of this queue was taken from its channel.
    pub(crate) fn event_taken(&self) {
        let unacknowledged = self.unacknowledged.fetch_add(1, Ordering::Relaxed) + 1;
        if unacknowledged >= ACKNOWLEDGE_AT {
            self.acknowledge();
        }
    }

    fn acknowledge(&self) {
        let unacknowledged = self.unacknowledged.swap(0, Ordering::Relaxed);
        if unacknowledged > 0 {
            // SAFETY: as many events as were taken.
            unsafe {
                (self.channel.context.functions().ibv_ack_cq_events)(self.raw(), unacknowledged);
            };
        }
    }

    /// Requests an event for the next completion.
    ///
    /// # Errors
    /// If no event will be raised.
    pub(crate) fn arm(&self) -> io::Result<()> {
        // SAFETY: the queue exists.
        check(unsafe { ibv_req_notify_cq(self.raw(), 0) })
    }

    /// Takes completions into `batch`; returns whether there were any. `rxe` says whether they
    /// come from that driver.
    pub(crate) fn poll(&self, batch: &mut Batch, rxe: bool) -> bool {
        let room = i32::try_from(batch.raw.len()).unwrap_or(i32::MAX);
        // SAFETY: there is room for as many completions.
        let count = unsafe { ibv_poll_cq(self.raw(), room, batch.raw.as_mut_ptr()) };
        // Negative if the driver cannot read its queue: then nothing is known, and
        // connections end by their own time-outs.
        batch.filled = usize::try_from(count).unwrap_or(0).min(batch.raw.len());
        batch.with_key = ibv_wc_flags::IBV_WC_WITH_INV.0;
        if rxe {
            batch.with_key |= RXE_WITH_INVALIDATE;
        }
        batch.filled > 0
    }
}

impl Drop for CompletionQueue {
    fn drop(&mut self) {
        // Destroying blocks until all events are acknowledged.
        self.acknowledge();
        // SAFETY: queue pairs made with it hold it, so there are none.
        let _ = unsafe { (self.channel.context.functions().ibv_destroy_cq)(self.raw()) };
    }
}

/// Maximum completions per poll.
const BATCH: usize = 32;

/// Room for completions. The default has none.
#[derive(Default)]
pub(crate) struct Batch {
    raw: Box<[ibv_wc]>,
    filled: usize,
    /// Flags of a completion whose message invalidated a key.
    with_key: libc::c_uint,
}

// SAFETY: completions are numbers.
unsafe impl Send for Batch {}

impl std::fmt::Debug for Batch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Batch")
            .field("filled", &self.filled)
            .finish()
    }
}

/// One completion of a batch. Most of it is read only if the work failed.
#[derive(Clone, Copy)]
pub(crate) struct WorkCompletion<'a> {
    raw: &'a ibv_wc,
    /// Flags of a completion whose message invalidated a key.
    with_key: libc::c_uint,
}

impl WorkCompletion<'_> {
    /// As posted.
    #[inline]
    pub(crate) fn id(self) -> u64 {
        self.raw.wr_id
    }

    /// A number of [`status`](super::status).
    #[inline]
    pub(crate) fn status(self) -> u32 {
        self.raw.status
    }

    /// Vendor specific error code.
    pub(crate) fn vendor_error(self) -> u32 {
        self.raw.vendor_err
    }

    /// Length of a received message.
    #[inline]
    pub(crate) fn len(self) -> usize {
        self.raw.byte_len as usize
    }

    /// The key that a received message invalidated.
    #[inline]
    pub(crate) fn invalidated(self) -> Option<u32> {
        // SAFETY: both members of the union are 32-bit numbers.
        let key = unsafe { self.raw.imm_data_invalidated_rkey_union.invalidated_rkey };
        (self.raw.wc_flags & self.with_key != 0).then_some(key)
    }

    /// Number of the queue pair.
    pub(crate) fn qp(self) -> u32 {
        self.raw.qp_num
    }
}

/// The kernel's own flag for a key that was invalidated, which the driver of
/// `rxe` hands to programs as it is; to them the bit means something else
/// (`IBV_WC_IP_CSUM_OK`), which no RDMA completion carries there.
const RXE_WITH_INVALIDATE: u32 = 1 << 2;

impl Batch {
    pub(crate) fn new() -> Self {
        let raw = (0..BATCH)
            // SAFETY: completions are numbers, for which zero is a value.
            .map(|_| unsafe { std::mem::zeroed() })
            .collect();
        Self {
            raw,
            ..Self::default()
        }
    }

    /// Whether there may be more than fit.
    pub(crate) fn was_full(&self) -> bool {
        self.filled == self.raw.len()
    }

    /// The completions.
    pub(crate) fn iter(&self) -> impl Iterator<Item = WorkCompletion<'_>> {
        let with_key = self.with_key;
        let filled = self.raw.get(..self.filled).unwrap_or_default();
        filled
            .iter()
            .map(move |raw| WorkCompletion { raw, with_key })
    }
}
