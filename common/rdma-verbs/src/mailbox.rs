//! Messages from other threads to a provider.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex, Weak};

use nix::sys::eventfd::{EfdFlags, EventFd};
use nvmeof_rdma::{ConnectionGuard, PrivateData, QpId};

use crate::link::Room;
use crate::lock::lock;
use crate::sys::{CmId, ContextKey, DeviceEvent, EventChannel};

/// A message to one provider from another thread.
#[derive(Debug)]
pub(crate) enum Message {
    /// A connection request of a peer. The events of its id arrive at the provider's own
    /// channel already.
    Request(Box<Request>),
    /// An asynchronous event of a device about a queue pair that may belong to this provider.
    DeviceEvent(ContextKey, DeviceEvent),
    /// The listener on this address lost its device.
    ListenerLost(SocketAddr),
    /// The call that connects this queue pair has returned.
    Connected(QpId, io::Result<()>),
    /// A queue pair that could not be destroyed immediately is destroyed.
    Destroyed(Room),
}

/// A request for a connection.
#[derive(Debug)]
pub(crate) struct Request {
    /// Address of the listener.
    pub(crate) at: SocketAddr,
    pub(crate) id: CmId,
    pub(crate) private_data: PrivateData,
    pub(crate) reads_in: u8,
    pub(crate) reads_out: u8,
    /// Counts it in the load of a group member.
    pub(crate) guard: Option<ConnectionGuard>,
}

/// Messages for one provider, and the eventfd that wakes it.
#[derive(Debug)]
pub(crate) struct Mailbox {
    /// Number of its provider in the group.
    number: usize,
    messages: Mutex<Messages>,
    wakeup: EventFd,
    channel: Arc<EventChannel>,
}

#[derive(Debug, Default)]
struct Messages {
    /// The provider is dropped: messages are refused.
    closed: bool,
    waiting: Vec<Message>,
}

/// Maximum requests in a mailbox: more are rejected immediately.
const MOST_WAITING: usize = 1024;

impl Mailbox {
    pub(crate) fn new(number: usize, channel: Arc<EventChannel>) -> nix::Result<Arc<Self>> {
        let flags = EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC;
        let mailbox = Arc::new(Self {
            number,
            messages: Mutex::default(),
            wakeup: EventFd::from_value_and_flags(0, flags)?,
            channel,
        });
        let mut all = lock(&ALL);
        all.retain(|one| one.strong_count() > 0);
        all.push(Arc::downgrade(&mailbox));
        Ok(mailbox)
    }

    /// Number of its provider in the group.
    pub(crate) fn number(&self) -> usize {
        self.number
    }

    /// A descriptor that is readable when there are messages.
    pub(crate) fn wakeup(&self) -> BorrowedFd<'_> {
        self.wakeup.as_fd()
    }

    /// Takes all messages.
    pub(crate) fn take(&self) -> Vec<Message> {
        let mut messages = lock(&self.messages);
        // Fails if the eventfd is not signalled.
        let _ = self.wakeup.read();
        std::mem::take(&mut messages.waiting)
    }

    fn put(&self, message: Message) {
        let mut messages = lock(&self.messages);
        if !messages.closed {
            messages.waiting.push(message);
            // Fails only after 2^64 signals.
            let _ = self.wakeup.write(1);
        }
    }

    /// Passes a request: migrates its events and adds it under one lock, so that no event of
    /// it arrives before it does.
    pub(crate) fn put_request(&self, mut request: Box<Request>) -> Result<(), Box<Request>> {
        let mut messages = lock(&self.messages);
        let full = messages.closed || messages.waiting.len() >= MOST_WAITING;
        if full || request.id.migrate(&self.channel).is_err() {
            return Err(request);
        }
        messages.waiting.push(Message::Request(request));
        let _ = self.wakeup.write(1);
        Ok(())
    }

    /// Accepts no more messages; returns those in the mailbox.
    pub(crate) fn close(&self) -> Vec<Message> {
        let mut messages = lock(&self.messages);
        messages.closed = true;
        std::mem::take(&mut messages.waiting)
    }

    pub(crate) fn connected(&self, qp: QpId, result: io::Result<()>) {
        self.put(Message::Connected(qp, result));
    }

    pub(crate) fn destroyed(&self, room: Room) {
        self.put(Message::Destroyed(room));
    }

    pub(crate) fn lost(&self, at: SocketAddr) {
        self.put(Message::ListenerLost(at));
    }
}

/// All providers of the process: they share the devices' descriptors for asynchronous events,
/// so one of them may read events of another.
static ALL: Mutex<Vec<Weak<Mailbox>>> = Mutex::new(Vec::new());

/// Forwards an event of a device to all providers except `reader`.
pub(crate) fn forward_to_others(reader: &Arc<Mailbox>, device: ContextKey, event: DeviceEvent) {
    let others: Vec<_> = lock(&ALL).iter().filter_map(Weak::upgrade).collect();
    for other in others.iter().filter(|other| !Arc::ptr_eq(other, reader)) {
        other.put(Message::DeviceEvent(device, event));
    }
}
