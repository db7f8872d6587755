//! How other threads reach a reactor: a few flags and a descriptor that wakes
//! it up.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use nix::sys::eventfd::{EfdFlags, EventFd};

bitflags::bitflags! {
    /// What a reactor is told.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
    pub struct Mail: u8 {
        /// A controller changed: look after the queues of it.
        const POLL = 1;
        /// Accept no more, finish what was begun, close.
        const DRAIN = 1 << 1;
        /// Nothing is to be done: that the mail is taken is the answer.
        const ARE_YOU_THERE = 1 << 2;
        /// Locks on ranges of disks changed.
        const LOCKS = 1 << 3;
    }
}

/// The mailbox of one reactor. Clones are the same mailbox.
#[derive(Clone, Debug)]
pub struct Mailbox {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    mail: AtomicU8,
    bell: EventFd,
}

impl Mailbox {
    /// An empty mailbox.
    ///
    /// # Errors
    /// When the kernel gives no eventfd.
    pub fn new() -> io::Result<Self> {
        let flags = EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC;
        let bell = EventFd::from_value_and_flags(0, flags)?;
        let mail = AtomicU8::new(0);
        Ok(Self {
            inner: Arc::new(Inner { mail, bell }),
        })
    }

    /// Puts `mail` in and wakes the reactor up.
    pub fn send(&self, mail: Mail) {
        self.inner.mail.fetch_or(mail.bits(), Ordering::AcqRel);
        // It fails when the counter is full: then the bell rings already.
        let _ = self.inner.bell.write(1);
    }

    /// Whether any of `mail` was not taken yet.
    #[must_use]
    pub fn holds(&self, mail: Mail) -> bool {
        let there = Mail::from_bits_truncate(self.inner.mail.load(Ordering::Acquire));
        there.intersects(mail)
    }

    /// Takes everything out.
    #[must_use]
    pub fn take(&self) -> Mail {
        // A plain load first: this is asked in every turn.
        if self.inner.mail.load(Ordering::Relaxed) == 0 {
            return Mail::empty();
        }
        // Silence the bell before looking: mail that comes in between rings
        // again.
        self.silence();
        Mail::from_bits_truncate(self.inner.mail.swap(0, Ordering::AcqRel))
    }

    /// Ends the ringing, whether there is mail or not: call it after sleeping
    /// on [`wait_fd`](Self::wait_fd).
    pub fn silence(&self) {
        // It fails when it does not ring.
        let _ = self.inner.bell.read();
    }

    /// Becomes readable when there is mail.
    #[must_use]
    pub fn wait_fd(&self) -> BorrowedFd<'_> {
        self.inner.bell.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mail_is_taken_once_and_adds_up() {
        let mailbox = Mailbox::new().unwrap();
        assert_eq!(mailbox.take(), Mail::empty());
        let sender = mailbox.clone();
        sender.send(Mail::POLL);
        sender.send(Mail::DRAIN);
        assert!(sender.holds(Mail::POLL) && !sender.holds(Mail::ARE_YOU_THERE));
        assert_eq!(mailbox.take(), Mail::POLL | Mail::DRAIN);
        assert_eq!(mailbox.take(), Mail::empty());
        assert!(!sender.holds(Mail::all()));
        assert!(mailbox.inner.bell.read().is_err(), "the bell is silent");
    }
}
