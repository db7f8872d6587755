//! How other threads reach a reactor: a few flags and a descriptor that wakes
//! it up.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use nix::sys::eventfd::{EfdFlags, EventFd};
use nvmeof_backend::{Claim, OpenError};
use nvmeof_rdma::{Address, ListenError, ListenerId, Provider};
use nvmeof_target_core::Disconnected;

use crate::snapshot::ReactorSnapshot;

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
        /// There are [`Order`]s.
        const ORDERS = 1 << 4;
    }
}

/// Something a reactor is to do, with the way to answer. Of a reactor that hangs
/// no answer comes: wait for a bounded time. One that ended drops it.
pub enum Order {
    /// Opens disks, all of them or none.
    Open {
        /// Their numbers, and what they are.
        disks: Vec<(u32, Claim)>,
        /// Hears whether they are open, and if not, which one is to blame.
        answer: Sender<Result<(), (u32, OpenError)>>,
    },
    /// Closes disks that no command begins on any more, each when the last
    /// command that was begun on it has ended.
    Close {
        /// Their numbers, and what they are: that stays locked until it is
        /// closed.
        disks: Vec<(u32, Claim)>,
        /// Hears the number of each that is closed.
        answer: Sender<u32>,
    },
    /// Serves over one more provider, which gets the next number.
    Add {
        /// Made for this reactor, whose memory is registered with it.
        provider: Box<dyn Provider>,
        /// Hears that it is there.
        reply: Reply<()>,
    },
    /// Does without a provider that was added, as another reactor does not have
    /// it. It is the last one, and nothing listens over it.
    TakeBack {
        /// The number of the provider.
        provider: usize,
    },
    /// Listens on one more address.
    Listen {
        /// The number of the provider.
        provider: usize,
        /// Where.
        address: Address,
        /// Hears the address in use.
        reply: Reply<Result<(ListenerId, Address), ListenError>>,
    },
    /// Stops listening on an address and closes the connections that came by
    /// it.
    Unlisten {
        /// The number of the provider.
        provider: usize,
        /// The address in use.
        address: Address,
        /// Hears who was connected.
        answer: Sender<Vec<Disconnected>>,
    },
    /// Says how it is at this moment.
    Look {
        /// Hears it.
        answer: Sender<ReactorSnapshot>,
    },
    /// Listens nowhere and takes no connection any more, until it is told to
    /// listen again; commands in flight finish, then all connections are closed.
    Detach {
        /// Hears when there is none.
        answer: Sender<()>,
    },
}

/// The way to answer somebody who may not wait any more: then what was done is
/// undone. Exactly one of both decides which it is.
pub struct Reply<T> {
    answer: Sender<T>,
    /// Whoever sets it first decides.
    settled: Arc<AtomicBool>,
}

/// Who waits for a [`Reply`].
pub struct Awaited<T> {
    hears: Receiver<T>,
    settled: Arc<AtomicBool>,
}

impl<T> Reply<T> {
    /// A way to answer, and who waits for that.
    #[must_use]
    pub fn new() -> (Self, Awaited<T>) {
        let (answer, hears) = channel();
        let settled = Arc::new(AtomicBool::new(false));
        let reply = Self {
            answer,
            settled: Arc::clone(&settled),
        };
        (reply, Awaited { hears, settled })
    }

    /// Answers.
    ///
    /// # Errors
    /// The answer, when nobody waits for it any more.
    pub fn give(self, answer: T) -> Result<(), T> {
        if self.settled.swap(true, Ordering::AcqRel) {
            return Err(answer);
        }
        self.answer.send(answer).map_err(|unheard| unheard.0)
    }
}

impl<T> Awaited<T> {
    /// The answer, if it comes in time; otherwise it comes to nothing.
    #[must_use]
    pub fn within(self, patience: Duration) -> Option<T> {
        match self.hears.recv_timeout(patience) {
            // It is given in this very moment.
            Err(_) if self.settled.swap(true, Ordering::AcqRel) => self.hears.recv().ok(),
            heard => heard.ok(),
        }
    }
}

/// The mailbox of one reactor. Clones are the same mailbox.
#[derive(Clone, Debug)]
pub struct Mailbox {
    inner: Arc<Inner>,
}

struct Inner {
    mail: AtomicU8,
    wakeup: EventFd,
    orders: Mutex<Orders>,
}

#[derive(Default)]
struct Orders {
    waiting: Vec<Order>,
    /// Nobody takes orders any more.
    closed: bool,
}

impl Inner {
    fn orders(&self) -> MutexGuard<'_, Orders> {
        // Nothing is left half done when a holder panics.
        self.orders.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl std::fmt::Debug for Inner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Mailbox")
            .field("mail", &self.mail)
            .field("orders", &self.orders().waiting.len())
            .finish_non_exhaustive()
    }
}

impl Mailbox {
    /// An empty mailbox.
    ///
    /// # Errors
    /// When the kernel gives no eventfd.
    pub fn new() -> io::Result<Self> {
        let flags = EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC;
        let wakeup = EventFd::from_value_and_flags(0, flags)?;
        Ok(Self {
            inner: Arc::new(Inner {
                mail: AtomicU8::new(0),
                wakeup,
                orders: Mutex::default(),
            }),
        })
    }

    /// Puts an order behind those that are there and wakes the reactor up. Of a
    /// reactor that ended it is dropped, so that who waits for the answer does
    /// not wait in vain.
    pub fn order(&self, order: Order) {
        let mut orders = self.inner.orders();
        if orders.closed {
            return;
        }
        orders.waiting.push(order);
        drop(orders);
        self.send(Mail::ORDERS);
    }

    /// The reactor ended: nobody answers orders any more.
    pub fn close(&self) {
        let mut orders = self.inner.orders();
        orders.closed = true;
        orders.waiting.clear();
    }

    /// Takes the orders out, oldest first. [`Mail::ORDERS`] says that there are
    /// some.
    #[must_use]
    pub fn take_orders(&self) -> Vec<Order> {
        std::mem::take(&mut self.inner.orders().waiting)
    }

    /// Whether it is the same mailbox.
    #[must_use]
    pub fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }

    /// Puts `mail` in and wakes the reactor up.
    pub fn send(&self, mail: Mail) {
        self.inner.mail.fetch_or(mail.bits(), Ordering::AcqRel);
        // It fails when the counter is full: the eventfd is signalled already.
        let _ = self.inner.wakeup.write(1);
    }

    /// Puts `mail` into each of `all`.
    pub fn send_all(all: &[Self], mail: Mail) {
        for mailbox in all {
            mailbox.send(mail);
        }
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
        // Drain the eventfd before looking: mail that comes in between signals
        // again.
        self.silence();
        Mail::from_bits_truncate(self.inner.mail.swap(0, Ordering::AcqRel))
    }

    /// Ends the ringing, whether there is mail or not: call it after sleeping
    /// on [`wait_fd`](Self::wait_fd).
    pub fn silence(&self) {
        // It fails when it does not ring.
        let _ = self.inner.wakeup.read();
    }

    /// Becomes readable when there is mail.
    #[must_use]
    pub fn wait_fd(&self) -> BorrowedFd<'_> {
        self.inner.wakeup.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_wait_in_turn() {
        let mailbox = Mailbox::new().unwrap();
        let (answer, _hears) = channel();
        let claim = Claim::take(&"null:1M".parse().unwrap(), None).unwrap();
        for disks in [vec![1], vec![2, 3]] {
            let disks = disks.into_iter().map(|disk| (disk, claim.clone()));
            mailbox.order(Order::Close {
                disks: disks.collect(),
                answer: answer.clone(),
            });
        }
        assert_eq!(mailbox.take(), Mail::ORDERS);
        let told = |order| match order {
            Order::Close { disks, .. } => disks.into_iter().map(|(disk, _)| disk).collect(),
            _ => Vec::new(),
        };
        let orders = mailbox.take_orders().into_iter().map(told);
        assert_eq!(orders.collect::<Vec<_>>(), [vec![1], vec![2, 3]]);
        assert!(mailbox.take_orders().is_empty());
    }

    #[test]
    fn who_waits_for_a_reactor_that_ended_hears_so() {
        let mailbox = Mailbox::new().unwrap();
        let order = || {
            let (answer, hears) = channel();
            let disks = Vec::new();
            mailbox.order(Order::Open { disks, answer });
            hears
        };
        let before = order();
        mailbox.close();
        let ended = Err(std::sync::mpsc::TryRecvError::Disconnected);
        assert!(before.try_recv().map(drop) == ended);
        assert!(order().try_recv().map(drop) == ended);
        assert!(mailbox.take_orders().is_empty());
    }

    #[test]
    fn an_answer_that_comes_too_late_is_to_be_undone() {
        let (reply, awaited) = Reply::new();
        assert_eq!(reply.give(7), Ok(()));
        assert_eq!(awaited.within(Duration::ZERO), Some(7));
        let (reply, awaited) = Reply::new();
        assert_eq!(awaited.within(Duration::ZERO), None);
        assert_eq!(reply.give(7), Err(7));
        let (reply, awaited) = Reply::<u32>::new();
        drop(reply);
        assert_eq!(awaited.within(Duration::from_secs(60)), None, "it ended");
    }

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
        assert!(
            mailbox.inner.wakeup.read().is_err(),
            "the eventfd is not signalled"
        );
    }
}
