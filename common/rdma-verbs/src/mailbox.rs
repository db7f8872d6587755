//! What other threads hand to a provider.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex, Weak};

use nix::sys::eventfd::{EfdFlags, EventFd};
use nvmeof_rdma::{Counted, PrivateData, QpId};

use crate::link::Room;
use crate::lock::lock;
use crate::sys::{AsyncNote, CmId, ContextKey, EventChannel};

/// Something for one provider, from another thread.
#[derive(Debug)]
pub(crate) enum Letter {
    /// A peer asks for a connection. The id's events arrive at the provider's
    /// own channel already.
    Request(Box<Request>),
    /// A device tells something of a queue pair that may be one of this
    /// provider.
    Note(ContextKey, AsyncNote),
    /// The listener on this address lost its device.
    ListenerLost(SocketAddr),
    /// The call that connects this queue pair is back.
    Called(QpId, io::Result<()>),
    /// A queue pair that could not be destroyed at once is gone.
    Settled(Room),
}

/// A request for a connection.
#[derive(Debug)]
pub(crate) struct Request {
    /// Where the listener is.
    pub(crate) at: SocketAddr,
    pub(crate) id: CmId,
    pub(crate) private_data: PrivateData,
    pub(crate) reads_in: u8,
    pub(crate) reads_out: u8,
    /// Has it count among the connections of the group.
    pub(crate) counted: Option<Counted>,
}

/// Messages for one provider, and the eventfd that wakes it.
#[derive(Debug)]
pub(crate) struct Mailbox {
    /// Of its provider in the group.
    number: usize,
    letters: Mutex<Letters>,
    wakeup: EventFd,
    channel: Arc<EventChannel>,
}

#[derive(Debug, Default)]
struct Letters {
    /// Nobody reads them any more.
    closed: bool,
    waiting: Vec<Letter>,
}

/// Requests that may wait in a mailbox: more are refused at once.
const MOST_WAITING: usize = 1024;

impl Mailbox {
    pub(crate) fn new(number: usize, channel: Arc<EventChannel>) -> nix::Result<Arc<Self>> {
        let flags = EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC;
        let mailbox = Arc::new(Self {
            number,
            letters: Mutex::default(),
            wakeup: EventFd::from_value_and_flags(0, flags)?,
            channel,
        });
        let mut all = lock(&ALL);
        all.retain(|one| one.strong_count() > 0);
        all.push(Arc::downgrade(&mailbox));
        Ok(mailbox)
    }

    /// Which member of the group its provider is.
    pub(crate) fn number(&self) -> usize {
        self.number
    }

    /// Readable when there are letters.
    pub(crate) fn wakeup(&self) -> BorrowedFd<'_> {
        self.wakeup.as_fd()
    }

    /// Takes all letters.
    pub(crate) fn take(&self) -> Vec<Letter> {
        let mut letters = lock(&self.letters);
        // Empty already, if the eventfd was not signalled.
        let _ = self.wakeup.read();
        std::mem::take(&mut letters.waiting)
    }

    fn put(&self, letter: Letter) {
        let mut letters = lock(&self.letters);
        if !letters.closed {
            letters.waiting.push(letter);
            // Fails only when it rang 2^64 times.
            let _ = self.wakeup.write(1);
        }
    }

    /// Hands over a request: moves its events and puts it in, in one go, so
    /// that no event of it arrives before it does.
    pub(crate) fn put_request(&self, mut request: Box<Request>) -> Result<(), Box<Request>> {
        let mut letters = lock(&self.letters);
        let full = letters.closed || letters.waiting.len() >= MOST_WAITING;
        if full || request.id.migrate(&self.channel).is_err() {
            return Err(request);
        }
        letters.waiting.push(Letter::Request(request));
        let _ = self.wakeup.write(1);
        Ok(())
    }

    /// Takes no more letters; returns those that wait.
    pub(crate) fn close(&self) -> Vec<Letter> {
        let mut letters = lock(&self.letters);
        letters.closed = true;
        std::mem::take(&mut letters.waiting)
    }

    pub(crate) fn called(&self, qp: QpId, result: io::Result<()>) {
        self.put(Letter::Called(qp, result));
    }

    pub(crate) fn settled(&self, room: Room) {
        self.put(Letter::Settled(room));
    }

    pub(crate) fn lost(&self, at: SocketAddr) {
        self.put(Letter::ListenerLost(at));
    }
}

/// Every provider of the process: they share the devices' descriptors for
/// asynchronous events, so one of them may read what concerns another.
static ALL: Mutex<Vec<Weak<Mailbox>>> = Mutex::new(Vec::new());

/// Tells all providers but `reader` what a device said.
pub(crate) fn tell_others(reader: &Arc<Mailbox>, device: ContextKey, note: AsyncNote) {
    let others: Vec<_> = lock(&ALL).iter().filter_map(Weak::upgrade).collect();
    for other in others.iter().filter(|other| !Arc::ptr_eq(other, reader)) {
        other.put(Letter::Note(device, note));
    }
}
