//! Calls in flight on one image, of one thread.
//!
//! ```text
//!   thread of the queue                     threads of librbd
//!   start: slot ── rbd_aio_* ──────────────► completed(): result in the slot,
//!                                            slot onto the list, wake if it is the
//!                                            last one that a sleep waits for
//!   take_completed: the whole list ◄──────── list
//! ```
//! A slot owns the buffer of its call until it is taken from the list. The list and the slots live
//! until the last call has completed, also if the queue is gone.

use std::cell::{Cell, UnsafeCell};
use std::fmt;
use std::ptr::{NonNull, from_ref, null_mut};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicPtr, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use libc::{c_int, c_void};
use nix::errno::Errno;
use nvmeof_memory::Buf;

use crate::error::errno_of;
use crate::image::Image;
use crate::sys::{CompletionT, THICK_PROVISION};

/// A call. Offsets and lengths are in bytes.
#[derive(Debug)]
pub enum Call {
    /// Read from `offset` on into the view of `buf`.
    Read {
        /// First byte.
        offset: u64,
        /// The destination.
        buf: Buf,
    },
    /// Write the view of `buf` from `offset` on.
    Write {
        /// First byte.
        offset: u64,
        /// The source.
        buf: Buf,
    },
    /// Make `len` bytes from `offset` on read as zero.
    WriteZeroes {
        /// First byte.
        offset: u64,
        /// Number of bytes.
        len: u64,
        /// They are stored as zeroes instead of being deallocated.
        allocate: bool,
    },
    /// Completes when all writes that completed before are on stable storage.
    Flush,
}

/// A call that has completed.
#[derive(Debug)]
pub struct Done {
    /// The tag of the caller.
    pub tag: u64,
    /// The call, with its buffer.
    pub call: Call,
    /// Bytes read, or 0; or the error.
    pub result: Result<u64, Errno>,
}

/// A call was not started.
#[derive(Debug)]
pub struct NotStarted {
    /// Why; `EAGAIN` if as many calls as possible are in flight.
    pub errno: Errno,
    /// The call.
    pub call: Call,
}

/// The calls of one thread on one image.
///
/// Dropping it waits at most 5 s for calls in flight, unless it was abandoned. If the cluster does
/// not respond within that, their buffers stay in use until it does.
pub struct Queue {
    shared: Arc<Shared>,
    is_abandoned: bool,
    /// Slots without a call.
    free: Vec<usize>,
    /// Whether [`may_sleep`](Self::may_sleep) was called since completions were last taken.
    may_be_asleep: Cell<bool>,
}

struct Shared {
    image: Image,
    slots: Box<[Slot]>,
    /// Completed slots, the last one first, linked by `next`.
    completed: AtomicPtr<Slot>,
    /// Completions until the thread is to be woken; 0: it is awake.
    until_wake: AtomicUsize,
    wake: Box<dyn Fn() + Send + Sync>,
}

/// A call with its tag, or room for one.
struct Slot {
    index: usize,
    /// Accessed by the owner of the queue, and by the last owner of `Shared`; not by threads of
    /// librbd.
    call: UnsafeCell<Option<(u64, Call)>>,
    /// While a call is in flight: a reference to `Shared`, which is counted.
    shared: AtomicPtr<Shared>,
    result: AtomicI64,
    next: AtomicPtr<Slot>,
}

// SAFETY: only the owner of the queue accesses `call`, through a `&mut Queue`, and after it the
// last owner of `Shared`. A `Call` may be sent to another thread.
unsafe impl Sync for Slot {}

/// Limit for calls in flight when a queue is dropped.
const DROP_TIMEOUT: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(1);

impl Queue {
    /// A queue for at most `slots` calls at the same time. `wake` is called, by any thread, after
    /// the completion that [`may_sleep`](Self::may_sleep) waits for; it must not block.
    #[must_use]
    pub fn new(image: &Image, slots: usize, wake: Box<dyn Fn() + Send + Sync>) -> Self {
        let slot = |index| Slot {
            index,
            call: UnsafeCell::new(None),
            shared: AtomicPtr::new(null_mut()),
            result: AtomicI64::new(0),
            next: AtomicPtr::new(null_mut()),
        };
        let shared = Shared {
            image: image.clone(),
            slots: (0..slots).map(slot).collect(),
            completed: AtomicPtr::new(null_mut()),
            until_wake: AtomicUsize::new(0),
            wake,
        };
        Self {
            shared: Arc::new(shared),
            is_abandoned: false,
            free: (0..slots).rev().collect(),
            may_be_asleep: Cell::new(false),
        }
    }

    /// The image.
    #[must_use]
    pub fn image(&self) -> &Image {
        &self.shared.image
    }

    /// Calls in flight, and those that were not taken.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.shared.slots.len() - self.free.len()
    }

    /// Whether as many calls as possible are in flight.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.free.is_empty()
    }

    /// Starts a call. Its [`Done`] has `tag`.
    ///
    /// # Errors
    /// [`NotStarted`] with the call.
    pub fn start(&mut self, tag: u64, call: Call) -> Result<(), NotStarted> {
        let free = self.free.pop();
        let Some(slot) = free.and_then(|index| self.shared.slots.get(index)) else {
            let errno = Errno::EAGAIN;
            return Err(NotStarted { errno, call });
        };
        let started = self.start_in(slot, tag, call);
        if started.is_err() {
            self.free.extend(free);
        }
        started
    }

    fn start_in(&self, slot: &Slot, tag: u64, call: Call) -> Result<(), NotStarted> {
        let functions = self.shared.image.functions();
        let argument = from_ref(slot).cast_mut().cast::<c_void>();
        let mut completion = null_mut();
        // SAFETY: the slot lives until the function was called: the call has a reference to
        // `Shared`.
        let made = unsafe {
            (functions.rbd_aio_create_completion)(argument, completed, &raw mut completion)
        };
        if made < 0 {
            let errno = errno_of(made.into());
            return Err(NotStarted { errno, call });
        }
        let reference = Arc::into_raw(Arc::clone(&self.shared)).cast_mut();
        slot.shared.store(reference, Ordering::Relaxed);
        // SAFETY: no call is in flight in this slot, so that only this thread accesses it.
        let (_, call) = unsafe { (*slot.call.get()).insert((tag, call)) };
        // SAFETY: an open image, which `Shared` keeps open. The bytes are those of a buffer that
        // the slot owns until the call has completed.
        let result = unsafe { submit(&self.shared.image, call, completion) };
        if result >= 0 {
            return Ok(());
        }
        // SAFETY: the function is never called, because the call was not started; the completion
        // is released once.
        unsafe { (functions.rbd_aio_release)(completion) };
        // SAFETY: as above, for the reference.
        drop(unsafe { Arc::from_raw(reference) });
        // SAFETY: as above: only this thread accesses the slot.
        let taken = unsafe { (*slot.call.get()).take() };
        let errno = errno_of(result.into());
        let call = taken.map_or(Call::Flush, |(_, call)| call);
        Err(NotStarted { errno, call })
    }

    /// Passes the calls that have completed to `done`. Later ones do not call `wake`.
    pub fn take_completed(&mut self, mut done: impl FnMut(Done)) {
        if self.may_be_asleep.take() {
            // A system call less for the thread of librbd. One that wakes at the same time does no
            // harm.
            self.shared.until_wake.store(0, Ordering::Relaxed);
        }
        let mut next = self.shared.completed.swap(null_mut(), Ordering::AcqRel);
        while let Some(slot) = NonNull::new(next) {
            // SAFETY: a slot of this queue, which lives as long as `shared`.
            let slot = unsafe { slot.as_ref() };
            // SAFETY: its function was called, so that only this thread accesses it.
            let call = unsafe { (*slot.call.get()).take() };
            next = slot.next.load(Ordering::Relaxed);
            let result = slot.result.load(Ordering::Relaxed);
            self.free.push(slot.index);
            if let Some((tag, call)) = call {
                let result = positive(result);
                done(Done { tag, call, result });
            }
        }
    }

    /// Calls in flight are not waited for when it is dropped: the cluster does not respond.
    pub fn abandon(&mut self) {
        self.is_abandoned = true;
    }

    /// Whether no completion waits to be taken. From then on, `wake` is called after `batch`
    /// completions at the latest, and after one if `batch` is 0.
    #[must_use]
    pub fn may_sleep(&self, batch: usize) -> bool {
        self.may_be_asleep.set(true);
        // Both here and in `completed`, SeqCst orders the write before the read. A completion that
        // was taken before may be counted after this: it wakes the thread too early.
        self.shared.until_wake.store(batch.max(1), Ordering::SeqCst);
        self.shared.completed.load(Ordering::SeqCst).is_null()
    }
}

impl Call {
    /// The buffer it owns, if any.
    #[must_use]
    pub fn into_buf(self) -> Option<Buf> {
        match self {
            Self::Read { buf, .. } | Self::Write { buf, .. } => Some(buf),
            Self::WriteZeroes { .. } | Self::Flush => None,
        }
    }
}

fn positive(result: i64) -> Result<u64, Errno> {
    u64::try_from(result).map_err(|_| errno_of(result))
}

/// Passes a call to librbd.
///
/// # Safety
/// The image stays open, and `call` stays where it is, until `completion` has completed.
unsafe fn submit(image: &Image, call: &mut Call, completion: CompletionT) -> c_int {
    let (functions, raw) = (image.functions(), image.raw());
    match call {
        Call::Read { offset, buf } => {
            let (bytes, len) = (buf.as_mut_ptr().cast(), buf.len());
            // SAFETY: by the contract of this function. The length is that of the buffer.
            unsafe { (functions.rbd_aio_read)(raw, *offset, len, bytes, completion) }
        }
        Call::Write { offset, buf } => {
            let (bytes, len) = (buf.as_ptr().cast(), buf.len());
            // SAFETY: as above.
            unsafe { (functions.rbd_aio_write)(raw, *offset, len, bytes, completion) }
        }
        Call::WriteZeroes {
            offset,
            len,
            allocate,
        } => {
            let flags = if *allocate { THICK_PROVISION } else { 0 };
            let Ok(len) = usize::try_from(*len) else {
                return -libc::EINVAL;
            };
            // SAFETY: by the contract of this function.
            unsafe { (functions.rbd_aio_write_zeroes)(raw, *offset, len, completion, flags, 0) }
        }
        // SAFETY: by the contract of this function.
        Call::Flush => unsafe { (functions.rbd_aio_flush)(raw, completion) },
    }
}

/// Called by librbd when a call has completed.
unsafe extern "C" fn completed(completion: CompletionT, argument: *mut c_void) {
    // SAFETY: the slot of the call, which lives as long as `Shared`. The call has a reference to
    // that.
    let slot = unsafe { &*argument.cast::<Slot>() };
    // SAFETY: this function is called once for each call, and takes its reference.
    let shared = unsafe { Arc::from_raw(slot.shared.load(Ordering::Relaxed)) };
    let functions = shared.image.functions();
    // SAFETY: a completion that has completed.
    let result = unsafe { (functions.rbd_aio_get_return_value)(completion) };
    // SAFETY: as above; it is released once.
    unsafe { (functions.rbd_aio_release)(completion) };
    slot.result
        .store(i64::try_from(result).unwrap_or(i64::MAX), Ordering::Relaxed);
    let place = from_ref(slot).cast_mut();
    let mut last = shared.completed.load(Ordering::Relaxed);
    loop {
        slot.next.store(last, Ordering::Relaxed);
        let pushed = shared.completed.compare_exchange_weak(
            last,
            place,
            Ordering::SeqCst,
            Ordering::Relaxed,
        );
        // Once it is pushed, the slot may have the next call.
        match pushed {
            Ok(_) => break,
            Err(other) => last = other,
        }
    }
    let one_less = |count: usize| count.checked_sub(1);
    let before = shared
        .until_wake
        .fetch_update(Ordering::SeqCst, Ordering::SeqCst, one_less);
    if before == Ok(1) {
        (shared.wake)();
    }
    // If this is the last reference, another thread closes the image.
    drop(shared);
}

impl fmt::Debug for Queue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("Queue");
        let debug = debug.field("image", &self.shared.image);
        debug
            .field("in_flight", &self.in_flight())
            .finish_non_exhaustive()
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        self.take_completed(drop);
        if self.is_abandoned {
            return;
        }
        let end = Instant::now() + DROP_TIMEOUT;
        while self.in_flight() > 0 && Instant::now() < end {
            std::thread::sleep(PAUSE);
            self.take_completed(drop);
        }
        if self.in_flight() > 0 {
            tracing::warn!(
                "{}: {} operations abandoned: no response from the cluster",
                self.shared.image.name(),
                self.in_flight()
            );
        }
    }
}
