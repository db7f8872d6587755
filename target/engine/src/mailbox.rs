//! How other threads reach a reactor: flags, orders, and an eventfd that wakes it.

use std::collections::BTreeSet;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use nix::sys::eventfd::{EfdFlags, EventFd};
use nvmeof_backend::{Claim, OpenError};
use nvmeof_rdma::{Address, ListenError, ListenerId, Provider};
use nvmeof_target_core::Disconnected;

use crate::computed::Computed;
use crate::snapshot::ReactorSnapshot;

bitflags::bitflags! {
    /// Flags for a reactor.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
    pub struct Mail: u8 {
        /// Several controllers may have changed: poll all queues of the reactor.
        const POLL = 1;
        /// Accept no more connections, finish the commands in flight, close.
        const DRAIN = 1 << 1;
        /// A liveness check: taking the mail is the response.
        const LIVENESS_CHECK = 1 << 2;
        /// Range locks changed.
        const LOCKS = 1 << 3;
        /// [`Order`]s are pending.
        const ORDERS = 1 << 4;
        /// Controllers changed: poll those of their queues that the reactor has.
        const CALLS = 1 << 5;
    }
}

/// A request to a reactor, with a channel for the response. A stalled reactor does not
/// respond: wait for a bounded time. A reactor that ended drops the request.
pub enum Order {
    /// Opens backing stores, all of them or none.
    Open {
        /// Their numbers and specifications.
        stores: Vec<(u32, Claim)>,
        /// Gets the result; an error names the backing store that failed.
        reply: Sender<Result<(), (u32, OpenError)>>,
    },
    /// Closes backing stores that are no longer used by new commands, each when the last
    /// command that started on it has ended.
    Close {
        /// Their numbers and claims. Each stays locked until it is closed.
        stores: Vec<(u32, Claim)>,
        /// Gets the number of each that was closed.
        reply: Sender<u32>,
    },
    /// Operations of backing stores that are being closed do not end, and their results no longer
    /// matter: nobody uses the storage again before it refuses these operations. Closes the
    /// connections with commands on them, and waits for none of the operations: neither when the
    /// target stops nor for a Cross-Controller Reset.
    Abandon {
        /// Their numbers.
        stores: Vec<u32>,
    },
    /// Adds a provider, which gets the next number.
    Add {
        /// Created for this reactor, which registers its memory with it.
        provider: Box<dyn Provider>,
        /// Gets the confirmation.
        reply: Reply<()>,
    },
    /// Removes a provider that was added, because another reactor could not add its own.
    /// It is the last one, and has no listener.
    TakeBack {
        /// The number of the provider.
        provider: usize,
    },
    /// Listens on one more address.
    Listen {
        /// The number of the provider.
        provider: usize,
        /// The address.
        address: Address,
        /// Gets the address in use.
        reply: Reply<Result<(ListenerId, Address), ListenError>>,
    },
    /// Stops listening on an address and closes the connections that were accepted on it.
    Unlisten {
        /// The number of the provider.
        provider: usize,
        /// The address in use.
        address: Address,
        /// Gets the hosts that were disconnected.
        reply: Sender<Vec<Disconnected>>,
    },
    /// Takes a snapshot.
    Snapshot {
        /// Gets the snapshot.
        reply: Sender<ReactorSnapshot>,
    },
    /// Closes all listeners and accepts no connection until an order to listen arrives.
    /// Commands in flight finish, then all connections are closed.
    Detach {
        /// Gets a message when no connection is left.
        reply: Sender<()>,
    },
    /// Passes the result of a computation to the command that waits for it.
    Computed(Computed),
}

/// The way to respond to a caller that may have timed out. In that case, what was done is
/// undone. Exactly one of the two sides decides which it is.
pub struct Reply<T> {
    reply: Sender<T>,
    /// The side that sets it first decides.
    settled: Arc<AtomicBool>,
}

/// The receiving side of a [`Reply`].
pub struct ReplyReceiver<T> {
    receiver: Receiver<T>,
    settled: Arc<AtomicBool>,
}

impl<T> Reply<T> {
    /// Both sides.
    #[must_use]
    pub fn new() -> (Self, ReplyReceiver<T>) {
        let (reply, receiver) = channel();
        let settled = Arc::new(AtomicBool::new(false));
        let reply = Self {
            reply,
            settled: Arc::clone(&settled),
        };
        (reply, ReplyReceiver { receiver, settled })
    }

    /// Sends the response.
    ///
    /// # Errors
    /// The response, if the caller has timed out.
    pub fn send(self, reply: T) -> Result<(), T> {
        if self.settled.swap(true, Ordering::AcqRel) {
            return Err(reply);
        }
        self.reply.send(reply).map_err(|unsent| unsent.0)
    }
}

impl<T> ReplyReceiver<T> {
    /// The response, if it arrives in time. Otherwise the other side will get it back.
    #[must_use]
    pub fn within(self, timeout: Duration) -> Option<T> {
        match self.receiver.recv_timeout(timeout) {
            // It is being sent at this moment.
            Err(_) if self.settled.swap(true, Ordering::AcqRel) => self.receiver.recv().ok(),
            received => received.ok(),
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
    /// Writes to the eventfd.
    wakeups: AtomicU64,
    orders: Mutex<Orders>,
    /// Identifiers of controllers that changed.
    calls: Mutex<BTreeSet<u16>>,
}

#[derive(Default)]
struct Orders {
    waiting: Vec<Order>,
    /// The reactor ended and takes no more orders.
    closed: bool,
}

impl Inner {
    fn orders(&self) -> MutexGuard<'_, Orders> {
        // A panic while the lock is held leaves nothing inconsistent.
        self.orders.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn calls(&self) -> MutexGuard<'_, BTreeSet<u16>> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
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
    /// If the kernel cannot create an eventfd.
    pub fn new() -> io::Result<Self> {
        let flags = EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC;
        let wakeup = EventFd::from_value_and_flags(0, flags)?;
        Ok(Self {
            inner: Arc::new(Inner {
                mail: AtomicU8::new(0),
                wakeup,
                wakeups: AtomicU64::new(0),
                orders: Mutex::default(),
                calls: Mutex::default(),
            }),
        })
    }

    /// Appends an order and wakes the reactor. If the reactor has ended, the order is
    /// dropped, which ends the wait for its response.
    pub fn order(&self, order: Order) {
        let mut orders = self.inner.orders();
        if orders.closed {
            return;
        }
        orders.waiting.push(order);
        drop(orders);
        self.send(Mail::ORDERS);
    }

    /// Controller `cntlid` changed: the reactor polls its queues of this controller, and only
    /// these. At most one call for each controller is pending.
    pub fn call(&self, cntlid: u16) {
        self.inner.calls().insert(cntlid);
        self.send(Mail::CALLS);
    }

    /// Takes the identifiers of all calls. [`Mail::CALLS`] says that there are any.
    #[must_use]
    pub fn take_calls(&self) -> BTreeSet<u16> {
        std::mem::take(&mut *self.inner.calls())
    }

    /// The reactor ended: pending and future orders are dropped.
    pub fn close(&self) {
        let mut orders = self.inner.orders();
        orders.closed = true;
        orders.waiting.clear();
    }

    /// Takes all orders, oldest first. [`Mail::ORDERS`] says that there are any.
    #[must_use]
    pub fn take_orders(&self) -> Vec<Order> {
        std::mem::take(&mut self.inner.orders().waiting)
    }

    /// Whether both are the same mailbox.
    #[must_use]
    pub fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }

    /// Adds `mail` and wakes the reactor. If there was mail already, its sender wakes the
    /// reactor, which takes all mail at once: not before that sender runs.
    pub fn send(&self, mail: Mail) {
        if self.inner.mail.fetch_or(mail.bits(), Ordering::AcqRel) != 0 {
            return;
        }
        self.inner.wakeups.fetch_add(1, Ordering::Relaxed);
        // It fails if the counter is full: the eventfd is signalled already.
        let _ = self.inner.wakeup.write(1);
    }

    /// How often the eventfd was written, a system call each time. Tests bound how this grows
    /// with the number of reactors.
    #[must_use]
    pub fn wakeups(&self) -> u64 {
        self.inner.wakeups.load(Ordering::Relaxed)
    }

    /// Sends `mail` to all of `all`.
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

    /// Takes all flags.
    #[must_use]
    pub fn take(&self) -> Mail {
        // A plain load first: each iteration calls this.
        if self.inner.mail.load(Ordering::Relaxed) == 0 {
            return Mail::empty();
        }
        // Drain the eventfd before taking the flags: mail that is the first one afterwards
        // signals it again.
        self.silence();
        Mail::from_bits_truncate(self.inner.mail.swap(0, Ordering::AcqRel))
    }

    /// Drains the eventfd, whether there is mail or not: call it after sleeping on
    /// [`wait_fd`](Self::wait_fd).
    pub fn silence(&self) {
        // It fails if the eventfd is not signalled.
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
    fn orders_are_taken_in_order() {
        let mailbox = Mailbox::new().unwrap();
        let (reply, _receiver) = channel();
        let claim = Claim::take(&"null:1M".parse().unwrap(), None).unwrap();
        for stores in [vec![1], vec![2, 3]] {
            let stores = stores.into_iter().map(|store| (store, claim.clone()));
            mailbox.order(Order::Close {
                stores: stores.collect(),
                reply: reply.clone(),
            });
        }
        assert_eq!(mailbox.take(), Mail::ORDERS);
        let stores_of = |order| match order {
            Order::Close { stores, .. } => stores.into_iter().map(|(store, _)| store).collect(),
            _ => Vec::new(),
        };
        let orders = mailbox.take_orders().into_iter().map(stores_of);
        assert_eq!(orders.collect::<Vec<_>>(), [vec![1], vec![2, 3]]);
        assert!(mailbox.take_orders().is_empty());
    }

    #[test]
    fn order_to_ended_reactor_is_dropped() {
        let mailbox = Mailbox::new().unwrap();
        let order = || {
            let (reply, receiver) = channel();
            let stores = Vec::new();
            mailbox.order(Order::Open { stores, reply });
            receiver
        };
        let before = order();
        mailbox.close();
        let ended = Err(std::sync::mpsc::TryRecvError::Disconnected);
        assert!(before.try_recv().map(drop) == ended);
        assert!(order().try_recv().map(drop) == ended);
        assert!(mailbox.take_orders().is_empty());
    }

    #[test]
    fn late_reply_is_returned_to_its_sender() {
        let (reply, awaited) = Reply::new();
        assert_eq!(reply.send(7), Ok(()));
        assert_eq!(awaited.within(Duration::ZERO), Some(7));
        let (reply, awaited) = Reply::new();
        assert_eq!(awaited.within(Duration::ZERO), None);
        assert_eq!(reply.send(7), Err(7));
        let (reply, awaited) = Reply::<u32>::new();
        drop(reply);
        assert_eq!(awaited.within(Duration::from_secs(60)), None, "it ended");
    }

    #[test]
    fn mail_accumulates_and_is_taken_once() {
        let mailbox = Mailbox::new().unwrap();
        assert_eq!(mailbox.take(), Mail::empty());
        let sender = mailbox.clone();
        sender.send(Mail::POLL);
        sender.send(Mail::DRAIN);
        assert!(sender.holds(Mail::POLL) && !sender.holds(Mail::LIVENESS_CHECK));
        assert_eq!(mailbox.take(), Mail::POLL | Mail::DRAIN);
        assert_eq!(mailbox.take(), Mail::empty());
        assert!(!sender.holds(Mail::all()));
        assert!(
            mailbox.inner.wakeup.read().is_err(),
            "the eventfd is not signalled"
        );
    }
}
