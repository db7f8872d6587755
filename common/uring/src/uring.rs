//! One io_uring: takes operations, hands them to the kernel, brings them back.

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
use crate::files::{Begins, FileId, FileTableFull, Files};
use crate::fixed::{Fixed, Registered};
use crate::lent::Lent;
use crate::pieces::LeftOut;
use crate::slots::{InFlight, Slots};
use crate::start::{Mode, RingConfig, RingError, start};

/// One io_uring with its files, its fixed buffers and what it has in flight.
pub(crate) struct Uring {
    pub(crate) ring: IoUring,
    mode: Mode,
    slots: Slots,
    /// Told by the kernel when something is done, while `armed`.
    wake: Arc<EventFd>,
    armed: bool,
    pub(crate) files: Files,
    pub(crate) fixed: Fixed,
    pub(crate) counts: RingCounts,
    /// Asks devices for what is done: they do not tell.
    polls: bool,
    /// `SINGLE_ISSUER`: the kernel refuses every other thread.
    one_thread: PhantomData<*const ()>,
}

/// What became of an operation.
#[derive(Debug)]
pub struct Done {
    /// The caller's name for it.
    pub tag: u64,
    /// What the system call of the same name returns: bytes moved, or 0.
    pub result: Result<u32, Errno>,
    /// The buffer, with the view it was given with, if there was one.
    pub buf: Option<Buf>,
}

/// What a ring did since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RingCounts {
    /// Operations started.
    pub operations: u64,
    /// Those of them whose buffer was not registered with the kernel, which has
    /// to look up its pages then.
    pub not_fixed: u64,
    /// System calls that handed operations over or asked for what is done.
    pub enters: u64,
}

/// Ends a sleep of the thread of a [`Ring`](crate::Ring), or its next one.
#[derive(Clone, Debug)]
pub struct Waker(Arc<EventFd>);

impl Waker {
    /// Has it look what there is to do.
    pub fn wake(&self) {
        // It fails when it was called 2^64 - 2 times in vain: it is readable then.
        let _ = self.0.write(1);
    }
}

/// The kernel completed something that is not in flight: a bug, here or there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("io_uring completed operation {user_data:#x}, which is not in flight")]
pub struct Stray {
    /// The number that came with it.
    pub user_data: u64,
}

/// Stands for cancelling in completions. No slot has this number.
const CANCEL: u64 = u64::MAX;
/// How often we look whether the kernel's thread took what it has to take.
const HAND_OVERS: u32 = 1_000_000;

/// Operations that are handed over together. The kernel tells a device of the
/// first after it took the last, and each takes it some microseconds: with many
/// at once the device would wait for us, and then we for it. With so many they
/// work at the same time, and a system call is still shared by many.
/// `docs/performance.md` has what it was measured to be worth.
const TOGETHER: usize = 8;

impl Uring {
    /// Makes one of the first of `modes` that the kernel knows. With `polls` it asks
    /// devices for what is done.
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

    /// Pieces of memory of other processes that are fixed buffers now.
    pub(crate) fn lent_pieces(&self) -> usize {
        self.fixed.lent().map_or(0, Lent::count)
    }

    /// Why the kernel took no further piece of such memory.
    pub(crate) fn lent_left_out(&self) -> Option<LeftOut> {
        self.fixed.lent().and_then(Lent::refused)
    }

    pub(crate) fn add_file(&mut self, file: File, begins: Begins) -> Result<FileId, FileTableFull> {
        self.files.add(&self.ring.submitter(), file, begins)
    }

    /// Has the kernel take everything started, so that a file can go.
    pub(crate) fn hand_over(&mut self) -> Result<(), RingError> {
        self.submit()?;
        for _ in 0..HAND_OVERS {
            // The kernel's thread, if there is one, takes them when it runs.
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

    /// Takes out a file whose operations were all [handed over](Self::hand_over).
    pub(crate) fn remove_file(&mut self, id: FileId) -> Option<File> {
        self.files.remove(&self.ring.submitter(), id)
    }

    pub(crate) fn in_flight(&self) -> usize {
        self.slots.in_flight()
    }

    pub(crate) fn room(&self) -> usize {
        self.slots.free()
    }

    pub(crate) fn submit(&mut self) -> Result<(), RingError> {
        self.disarm();
        if let Some(lent) = self.fixed.lent_mut() {
            lent.look(&self.ring.submitter());
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

    pub(crate) fn reap(&mut self, done: &mut Vec<Done>) -> Result<(), Stray> {
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
                None => stray = Err(Stray { user_data }),
            }
        }
        stray
    }

    /// Has the kernel tell the eventfd from now on until the next `submit`. False when
    /// something is waiting for `submit` or `reap` already.
    pub(crate) fn arm(&mut self) -> bool {
        if !self.armed {
            self.armed = true;
            self.ring.completion().enable_eventfd();
            // The kernel looks at the switch after it published what is done,
            // we look for what is done after we set the switch: one sees it.
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

    /// A sleep may be long, and memory of those who left is to be free.
    pub(crate) fn let_go_of_lent(&mut self) {
        if let Some(lent) = self.fixed.lent_mut() {
            lent.let_go(&self.ring.submitter(), usize::MAX);
        }
    }

    /// While awake we look ourselves, and the kernel need not tell.
    fn disarm(&mut self) {
        if self.armed {
            self.armed = false;
            self.ring.completion().disable_eventfd();
            // Empty when it was not the ring that ended the sleep.
            let _ = self.wake.read();
        }
    }

    /// Starts `entry`, whose number is filled in here. Gives `op` back when
    /// the ring is full.
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
            // What is wrong with the ring, the turn's own submit will tell.
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
        debug_assert!(pushed.is_ok(), "room was made above");
        self.counts.operations += 1;
        if pushed.is_err() {
            return self.slots.remove(number).map_or(Ok(()), Err);
        }
        if self.ring.submission().len() >= TOGETHER {
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
            // The kernel is short of something that the next turn may have.
            Ok(_) | Err(Errno::EINTR | Errno::EAGAIN | Errno::EBUSY) => Ok(()),
            Err(errno) => Err(RingError::Enter(errno)),
        }
    }

    /// Whether the kernel's thread sleeps, or has something to do that it does
    /// only when it is told.
    fn must_wake_thread(&mut self) -> bool {
        // It says that it sleeps, then looks once more; we put something there,
        // then look whether it sleeps: one sees the other.
        fence(Ordering::SeqCst);
        let queue = self.ring.submission();
        queue.need_wakeup() || queue.cq_overflow()
    }

    /// Cancels what can be cancelled and waits for everything in flight.
    fn drain(&mut self) -> Result<(), RingError> {
        let all = types::CancelBuilder::any();
        let cancel = opcode::AsyncCancel2::new(all).build().user_data(CANCEL);
        // Not before the kernel has all of them: it cancels what it has.
        self.enter(0)?;
        // SAFETY: cancelling names no memory.
        // Without room for it we wait for the operations to end by themselves.
        let _ = unsafe { self.ring.submission().push(&cancel) };
        let mut done = Vec::new();
        while self.slots.in_flight() > 0 {
            self.enter(1)?;
            // A stray completion is nothing to wait for.
            let _ = self.reap(&mut done);
            done.clear();
        }
        Ok(())
    }
}

impl Drop for Uring {
    fn drop(&mut self) {
        if self.slots.in_flight() > 0 && self.drain().is_err() {
            // The kernel may still write to these buffers and we cannot learn
            // when it is done: better lost than given to somebody else.
            self.slots.leak();
        }
        // The kernel takes a closed ring apart some time later. Files are to
        // be closed, and their locks gone, now.
        let _ = self.ring.submitter().unregister_files();
    }
}

impl AsFd for Uring {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the descriptor is open as long as the ring, which is borrowed.
        unsafe { BorrowedFd::borrow_raw(self.ring.as_raw_fd()) }
    }
}

/// Has the kernel give a worker thread to each operation that waits in one, if it comes
/// to that. The default is four for each CPU, for all files of the thread together:
/// a disk that does not answer would take them, and every flush of others would wait. The
/// kernel makes one only when all it has are waiting, and ends it when it is idle. Source:
/// `io_wq_create()` and `io_wqe_dec_running()` in io_uring/io-wq.c of Linux.
fn allow_workers(ring: &IoUring, in_flight: u32) {
    // Zero leaves the other kind as it is. Linux 5.15 was the first to have it.
    let _ = ring
        .submitter()
        .register_iowq_max_workers(&mut [in_flight, 0]);
}

/// Has `ring` tell an eventfd when something is done, switched off at first.
fn wake_on(ring: &mut IoUring) -> Result<EventFd, Errno> {
    let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
    let wake = EventFd::from_value_and_flags(0, flags)?;
    ring.completion().disable_eventfd();
    let fd = wake.as_fd().as_raw_fd();
    let registered = ring.submitter().register_eventfd(fd);
    registered.map_err(|error| errno_of(&error))?;
    Ok(wake)
}
