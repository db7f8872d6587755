//! Providers of one process that listen on the same addresses: a Unix socket
//! cannot be bound twice, so they share it.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};

use nix::sys::eventfd::{EfdFlags, EventFd};
use nvmeof_rdma_soft::group as shared;
use socket2::Socket;

use crate::listening::Listener;

/// The listeners of a group.
pub(crate) type Group = shared::Group<Listener, Waker>;
/// A listener and the members that accept from it.
pub(crate) type SharedListener = shared::SharedListener<Listener, Waker>;
/// Connections that another member of the group accepted for this one.
pub(crate) type Mailbox = shared::Inbox<Listener, Waker>;
/// A connection that arrived.
pub(crate) type Arrived = shared::Arrived<Listener>;

/// An eventfd that wakes a provider.
#[derive(Debug)]
pub(crate) struct Waker(EventFd);

impl Waker {
    pub(crate) fn new() -> io::Result<Self> {
        let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
        Ok(Self(EventFd::from_value_and_flags(0, flags)?))
    }
}

impl shared::Waker for Waker {
    fn wake(&self) {
        if let Err(error) = self.0.write(1) {
            tracing::error!(%error, "cannot signal an eventfd");
        }
    }

    fn clear(&self) {
        // Fails if the eventfd is not signalled.
        let _ = self.0.read();
    }
}

impl AsFd for Waker {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl shared::Acceptor for Listener {
    type Addr = SocketAddr;
    type Connection = Socket;

    fn addr(&self) -> SocketAddr {
        self.addr
    }

    fn accept(&self) -> io::Result<(Socket, IpAddr)> {
        // All processes of this host count as one peer.
        let peer = IpAddr::V4(Ipv4Addr::LOCALHOST);
        Ok((self.take()?, peer))
    }
}
