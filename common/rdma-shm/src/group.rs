//! Providers of one process that listen on the same addresses: a Unix socket
//! cannot be bound twice, so they share it and take connections in turn.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use nix::sys::eventfd::{EfdFlags, EventFd};
use nvmeof_rdma::ListenError;
use socket2::Socket;

use crate::ShmConfig;
use crate::listening::Listener;

/// What the providers of a group listen on.
#[derive(Debug, Default)]
pub(crate) struct Group {
    meetings: Mutex<Vec<Weak<Meeting>>>,
}

/// A listener and those who take its connections.
#[derive(Debug)]
pub(crate) struct Meeting {
    listener: Listener,
    turns: Mutex<Turns>,
}

#[derive(Debug, Default)]
struct Turns {
    members: Vec<Weak<Mailbox>>,
    next: usize,
}

/// Connections that another member of the group took for this one.
#[derive(Debug)]
pub(crate) struct Mailbox {
    sockets: Mutex<Vec<(SocketAddr, Socket)>>,
    bell: EventFd,
    /// Connections that may wait here.
    room: usize,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn is(one: &Weak<Mailbox>, other: &Arc<Mailbox>) -> bool {
    std::ptr::eq(one.as_ptr(), Arc::as_ptr(other))
}

impl Group {
    /// Listens at `addr`, together with those members that do already.
    pub(crate) fn listen(
        &self,
        addr: SocketAddr,
        config: &ShmConfig,
        member: &Arc<Mailbox>,
    ) -> Result<Arc<Meeting>, ListenError> {
        let mut meetings = lock(&self.meetings);
        meetings.retain(|meeting| meeting.strong_count() > 0);
        let mut alive = meetings.iter().filter_map(Weak::upgrade);
        let found = alive.find(|meeting| meeting.addr() == addr && !meeting.has(member));
        let meeting = if let Some(meeting) = found {
            meeting
        } else {
            let meeting = Arc::new(Meeting::new(Listener::new(addr, config)?));
            meetings.push(Arc::downgrade(&meeting));
            meeting
        };
        lock(&meeting.turns).members.push(Arc::downgrade(member));
        Ok(meeting)
    }
}

impl Meeting {
    /// Of one provider alone.
    pub(crate) fn new(listener: Listener) -> Self {
        Self {
            listener,
            turns: Mutex::default(),
        }
    }

    pub(crate) fn addr(&self) -> SocketAddr {
        self.listener.addr
    }

    fn has(&self, member: &Arc<Mailbox>) -> bool {
        let turns = lock(&self.turns);
        turns.members.iter().any(|one| is(one, member))
    }

    /// Takes a connection that waits. `None` when it is another member's turn,
    /// which has it now.
    pub(crate) fn accept(&self, own: Option<&Arc<Mailbox>>) -> io::Result<Option<Socket>> {
        let socket = self.listener.accept()?;
        let (Some(own), Some(member)) = (own, lock(&self.turns).take()) else {
            return Ok(Some(socket));
        };
        if Arc::ptr_eq(own, &member) {
            return Ok(Some(socket));
        }
        // Where there is no room any more it is ours.
        Ok(member.put(self.addr(), socket))
    }

    /// This member takes no more connections.
    pub(crate) fn leave(&self, member: &Arc<Mailbox>) {
        let mut turns = lock(&self.turns);
        turns.members.retain(|one| !is(one, member));
    }
}

impl Turns {
    fn take(&mut self) -> Option<Arc<Mailbox>> {
        self.members.retain(|member| member.strong_count() > 0);
        let at = self.next.checked_rem(self.members.len())?;
        self.next = at.wrapping_add(1);
        self.members.get(at)?.upgrade()
    }
}

impl Mailbox {
    pub(crate) fn new(room: u32) -> io::Result<Arc<Self>> {
        let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
        Ok(Arc::new(Self {
            sockets: Mutex::default(),
            bell: EventFd::from_value_and_flags(0, flags)?,
            room: usize::try_from(room).unwrap_or(usize::MAX),
        }))
    }

    /// Gives the socket back when there is no room.
    fn put(&self, addr: SocketAddr, socket: Socket) -> Option<Socket> {
        let mut sockets = lock(&self.sockets);
        if sockets.len() >= self.room {
            return Some(socket);
        }
        sockets.push((addr, socket));
        if let Err(error) = self.bell.write(1) {
            tracing::error!(%error, "an eventfd does not ring");
        }
        None
    }

    /// Takes all that wait, with the address at which each arrived.
    pub(crate) fn take(&self) -> Vec<(SocketAddr, Socket)> {
        // A bell that did not ring has nothing to read.
        let _ = self.bell.read();
        std::mem::take(&mut lock(&self.sockets))
    }
}

impl AsFd for Meeting {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }
}

impl AsFd for Mailbox {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }
}
