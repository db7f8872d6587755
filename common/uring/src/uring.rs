//! One io_uring: starts operations, submits them to the kernel, reaps completions.

use std::fs::File;
use std::marker::PhantomData;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use io_uring::{IoUring, opcode, squeue, types};
use nix::errno::Errno;
use nix::sys::eventfd::{EfdFlags, EventFd};
use nvmeof_memory::{Buf, Region};

use crate::errno::errno_of;
use crate::files::{FileId, FileTableFull, Files, IssuedBy};
use crate::fixed::{Fixed, Registered};
use crate::lent::Lent;
use crate::pieces::NotRegistered;
use crate::slots::{InFlight, Slots};
use crate::start::{Mode, RingConfig, RingError, start};

/// One io_uring with its files, its fixed buffers and its operations in flight.
pub(crate) struct Uring {
    pub(crate) ring: IoUring,
    mode: Mode,
    slots: Slots,
    /// The kernel signals it for each completion while `armed`.
    wake: Arc<EventFd>,
    armed: bool,
    pub(crate) files: Files,
    pub(crate) fixed: Fixed,
    pub(crate) counts: RingCounts,
    /// Polls devices for completions (`IOPOLL`).
    polls: bool,
    /// `SINGLE_ISSUER`: the kernel rejects all other threads.
    one_thread: PhantomData<*const ()>,
}

/// The completion of an operation.
#[derive(Debug)]
pub struct Done {
    /// The tag of the caller.
    pub tag: u64,
    /// The result of the system call of the same name: bytes transferred, or 0.
    pub result: Result<u32, Errno>,
    /// The buffer with its view, if the operation had one.
    pub buf: Option<Buf>,
}

/// Counters of a ring since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RingCounts {
    /// Operations started.
    pub operations: u64,
    /// Those of them whose buffer was not registered, so that the kernel had to map its
    /// pages.
    pub not_fixed: u64,
    /// System calls that submitted operations or polled for completions.
    pub enters: u64,
}

/// Ends the current or the next sleep of the thread of a [`Ring`](crate::Ring).
#[derive(Clone, Debug)]
pub struct Waker(Arc<EventFd>);

impl Waker {
    /// Wakes the thread.
    pub fn wake(&self) {
        // It fails after 2^64 - 2 calls without a read: the eventfd is readable then.
        let _ = self.0.write(1);
    }
}

/// The kernel completed an operation that is not in flight: a bug, here or in the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("io_uring completed operation {user_data:#x}, which is not in flight")]
pub struct UnexpectedCompletion {
    /// The number in the completion.
    pub user_data: u64,
}

/// The number of a cancel operation in completions. No slot has it.
const CANCEL: u64 = u64::MAX;
/// How often the kernel's thread is polled until it has taken all operations.
const HAND_OVER_POLLS: u32 = 1_000_000;

/// Operations that are submitted together. The kernel notifies a device of the first one
/// after it has taken the last one, and each takes some microseconds: with many at once
/// the device would wait for the CPU, and then the CPU for the device. With this number
/// both are busy at the same time, and a system call still submits several operations.
/// `docs/performance.md` has measurements.
const BATCH: usize = 8;

impl Uring {
    /// Makes one in the first of `modes` that the kernel supports. With `polls` it polls
    /// devices for completions.
    pub(crate) fn new(modes: &[Mode], config: RingConfig, polls: bool) -> Result<Self, RingError> {
        let (mut ring, mode) = start(config, modes, polls)?;
        let wake = wake_on(&mut ring).map_err(RingError::EventFd)?;
        let longest = ring.params().cq_entries();
        let in_flight = config.in_flight.clamp(1, longest);
        allow_workers(&ring, in_flight);
        Ok(Self {
            ring,
            mode,
            slots: Slots::new(in_flight),
            wake: Arc::new(wake),
            armed: false,
            files: Files::new(config.files),
            fixed: Fixed::new(config.lent),
            counts: RingCounts::default(),
            polls,
            one_thread: PhantomData,
        })
    }

    pub(crate) fn mode(&self) -> Mode {
        self.mode
    }

    pub(crate) fn register_regions<'a>(
        &mut self,
        regions: impl Iterator<Item = &'a Region>,
    ) -> Registered {
        self.fixed.register(&self.ring.submitter(), regions)
    }

    /// Pieces of lent memory that are registered as fixed buffers.
    pub(crate) fn lent_pieces(&self) -> usize {
        self.fixed.lent().map_or(0, Lent::count)
    }

    /// Why the kernel refused to register more of it.
    pub(crate) fn lent_left_out(&self) -> Option<NotRegistered> {
        self.fixed.lent().and_then(Lent::refused)
    }

    pub(crate) fn add_file(
        &mut self,
        file: File,
        issued_by: IssuedBy,
    ) -> Result<FileId, FileTableFull> {
        self.files.add(&self.ring.submitter(), file, issued_by)
    }

    /// Has the kernel take all started operations, so that a file can be removed.
    pub(crate) fn hand_over(&mut self) -> Result<(), RingError> {
        self.submit()?;
        for _ in 0..HAND_OVER_POLLS {
            // With SQPOLL, the kernel's thread takes them when it runs.
            if self.mode != Mode::Thread || self.ring.submission().is_empty() {
                break;
            }
            std::thread::yield_now();
        }
        if !self.ring.submission().is_empty() {
            return Err(RingError::Enter(Errno::EBUSY));
        }
        Ok(())
    }

    /// Removes a file whose operations were all [handed over](Self::hand_over).
    pub(crate) fn remove_file(&mut self, id: FileId) -> Option<File> {
        self.files.remove(&self.ring.submitter(), id)
    }

    pub(crate) fn in_flight(&self) -> usize {
        self.slots.in_flight()
    }

    /// Whether `submit` and `reap` have nothing to do: nothing is in flight, no notification is
    /// armed, and no lent memory has to be checked.
    #[inline]
    pub(crate) fn is_idle(&self) -> bool {
        self.in_flight() == 0 && !self.armed && self.lent_pieces() == 0
    }

    pub(crate) fn room(&self) -> usize {
        self.slots.free()
    }

    pub(crate) fn submit(&mut self) -> Result<(), RingError> {
        self.disarm();
        if let Some(lent) = self.fixed.lent_mut() {
            lent.check_next(&self.ring.submitter());
        }
        let waits = self.polls && self.slots.in_flight() > 0;
        let queue = self.ring.submission();
        let idle = queue.is_empty() && !queue.taskrun() && !queue.cq_overflow() && !waits;
        drop(queue);
        if idle {
            return Ok(());
        }
        self.enter(0)
    }

    pub(crate) fn reap(&mut self, done: &mut Vec<Done>) -> Result<(), UnexpectedCompletion> {
        let mut stray = Ok(());
        for entry in self.ring.completion() {
            let user_data = entry.user_data();
            if user_data == CANCEL {
                continue;
            }
            match self.slots.remove(user_data) {
                Some(InFlight { tag, buf }) => done.push(Done {
                    tag,
                    result: u32::try_from(entry.result())
                        .map_err(|_| Errno::from_raw(entry.result().saturating_neg())),
                    buf,
                }),
                None => stray = Err(UnexpectedCompletion { user_data }),
            }
        }
        stray
    }

    /// Has the kernel signal completions on the eventfd until the next `submit`. Returns
    /// false when there is work for `submit` or `reap` already.
    pub(crate) fn arm(&mut self) -> bool {
        if !self.armed {
            self.armed = true;
            self.ring.completion().enable_eventfd();
            // The kernel reads the flag after it has published a completion; this thread
            // looks for completions after it has set the flag: one sees the other.
            fence(Ordering::SeqCst);
        }
        let done = !self.ring.completion().is_empty();
        let queue = self.ring.submission();
        !done && queue.is_empty() && !queue.taskrun() && !queue.cq_overflow()
    }

    pub(crate) fn wait_fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }

    pub(crate) fn waker(&self) -> Waker {
        Waker(Arc::clone(&self.wake))
    }

    /// Releases lent memory of processes that have disconnected: a sleep may be long.
    pub(crate) fn release_lent(&mut self) {
        if let Some(lent) = self.fixed.lent_mut() {
            lent.release(&self.ring.submitter(), usize::MAX);
        }
    }

    /// An awake thread looks for completions itself.
    fn disarm(&mut self) {
        if self.armed {
            self.armed = false;
            self.ring.completion().disable_eventfd();
            // Empty when the sleep ended without a completion.
            let _ = self.wake.read();
        }
    }

    /// Starts `entry`, with the number of its slot. Returns `op` when the ring is full.
    ///
    /// # Safety
    /// `entry` must be sound for the kernel for as long as `op` lives: it
    /// names no memory but the view of `op`'s buffer.
    pub(crate) unsafe fn start(
        &mut self,
        op: InFlight,
        entry: squeue::Entry,
    ) -> Result<(), InFlight> {
        if self.ring.submission().is_full() {
            // An error of the ring is reported by the next `submit`.
            let _ = self.enter(0);
            if self.ring.submission().is_full() {
                return Err(op);
            }
        }
        let number = self.slots.insert(op)?;
        let entry = entry.user_data(number);
        // SAFETY: as this function's own; `op` stays in its slot until the
        // kernel completes the entry.
        let pushed = unsafe { self.ring.submission().push(&entry) };
        debug_assert!(pushed.is_ok(), "there is room, see above");
        self.counts.operations += 1;
        if pushed.is_err() {
            return self.slots.remove(number).map_or(Ok(()), Err);
        }
        if self.ring.submission().len() >= BATCH {
            // As above.
            let _ = self.enter(0);
        }
        Ok(())
    }

    fn enter(&mut self, want: usize) -> Result<(), RingError> {
        if want == 0 && self.mode == Mode::Thread && !self.must_wake_thread() {
            return Ok(());
        }
        self.counts.enters += 1;
        match self
            .ring
            .submit_and_wait(want)
            .map_err(|error| errno_of(&error))
        {
            // A transient shortage in the kernel: the next call may succeed.
            Ok(_) | Err(Errno::EINTR | Errno::EAGAIN | Errno::EBUSY) => Ok(()),
            Err(errno) => Err(RingError::Enter(errno)),
        }
    }

    /// Whether the kernel's thread sleeps, or has work that requires a system call.
    fn must_wake_thread(&mut self) -> bool {
        // The kernel's thread sets its flag, then checks the queue once more; this thread
        // adds an entry, then checks the flag: one sees the other.
        fence(Ordering::SeqCst);
        let queue = self.ring.submission();
        queue.need_wakeup() || queue.cq_overflow()
    }

    /// Cancels operations where possible and waits for all in flight.
    fn drain(&mut self) -> Result<(), RingError> {
        let all = types::CancelBuilder::any();
        let cancel = opcode::AsyncCancel2::new(all).build().user_data(CANCEL);
        // The kernel cancels only operations that it has taken.
        self.enter(0)?;
        // SAFETY: cancelling names no memory.
        // Without room for it, the operations complete by themselves.
        let _ = unsafe { self.ring.submission().push(&cancel) };
        let mut done = Vec::new();
        while self.slots.in_flight() > 0 {
            self.enter(1)?;
            // A stray completion does not matter here.
            let _ = self.reap(&mut done);
            done.clear();
        }
        Ok(())
    }
}

impl Drop for Uring {
    fn drop(&mut self) {
        if self.slots.in_flight() > 0 && self.drain().is_err() {
            // The kernel may still write to these buffers, and when it is done cannot be
            // found out: leak them rather than reuse them. The locks of files stay until the
            // kernel has destroyed the ring, because others may wait for its operations.
            self.slots.leak();
            return;
        }
        // The kernel tears a closed ring down some time later. Files must be closed and
        // their locks released now.
        let _ = self.ring.submitter().unregister_files();
    }
}

impl AsFd for Uring {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the descriptor is open as long as the ring, which is borrowed.
        unsafe { BorrowedFd::borrow_raw(self.ring.as_raw_fd()) }
    }
}

/// Allows one worker thread of the kernel for each operation. The default is four for each
/// CPU, for all files of the thread together: a backing store that does not respond would
/// occupy them, and each flush of others would wait. The kernel creates a worker only when
/// all others are blocked, and ends it when it is idle. Source:
/// `io_wq_create()` and `io_wqe_dec_running()` in io_uring/io-wq.c of Linux.
fn allow_workers(ring: &IoUring, in_flight: u32) {
    // Zero keeps the limit of the other kind. Since Linux 5.15.
    let _ = ring
        .submitter()
        .register_iowq_max_workers(&mut [in_flight, 0]);
}

/// Registers an eventfd for completions of `ring`, disabled at first.
fn wake_on(ring: &mut IoUring) -> Result<EventFd, Errno> {
    let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
    let wake = EventFd::from_value_and_flags(0, flags)?;
    ring.completion().disable_eventfd();
    let fd = wake.as_fd().as_raw_fd();
    let registered = ring.submitter().register_eventfd(fd);
    registered.map_err(|error| errno_of(&error))?;
    Ok(wake)
}
