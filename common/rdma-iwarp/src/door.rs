//! Sockets that listen, and what wakes a provider that shares them.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};

use nix::sys::eventfd::{EfdFlags, EventFd};
use nvmeof_rdma_soft::group::{Bell, Door, Group, Inbox, Meeting};
use socket2::Socket;

use crate::socket;

pub(crate) type TcpGroup = Group<TcpDoor, EventBell>;
pub(crate) type TcpMeeting = Meeting<TcpDoor, EventBell>;
pub(crate) type TcpInbox = Inbox<TcpDoor, EventBell>;

/// A socket that listens.
#[derive(Debug)]
pub(crate) struct TcpDoor {
    socket: Socket,
    /// In use.
    addr: SocketAddr,
}

impl TcpDoor {
    pub(crate) fn open(addr: SocketAddr, buffer: Option<usize>) -> io::Result<Self> {
        let socket = socket::listener(addr, buffer)?;
        let addr = socket.local_addr()?.as_socket().unwrap_or(addr);
        Ok(Self { socket, addr })
    }
}

impl Door for TcpDoor {
    type Addr = SocketAddr;
    type Visitor = (Socket, SocketAddr);

    fn addr(&self) -> SocketAddr {
        self.addr
    }

    fn accept(&self) -> io::Result<(Self::Visitor, IpAddr)> {
        // socket2 sets close-on-exec.
        let (socket, peer) = self.socket.accept()?;
        socket.set_nonblocking(true)?;
        let peer = peer
            .as_socket()
            .ok_or_else(|| io::Error::other("a peer without an IP address"))?;
        Ok(((socket, peer), peer.ip()))
    }
}

impl AsFd for TcpDoor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// An eventfd that is a bell.
#[derive(Debug)]
pub(crate) struct EventBell(EventFd);

impl EventBell {
    pub(crate) fn new() -> io::Result<Self> {
        let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
        Ok(Self(EventFd::from_value_and_flags(0, flags)?))
    }
}

impl Bell for EventBell {
    fn ring(&self) {
        if let Err(error) = self.0.write(1) {
            tracing::error!(%error, "an eventfd does not ring");
        }
    }

    fn silence(&self) {
        // A bell that did not ring has nothing to read.
        let _ = self.0.read();
    }
}

impl AsFd for EventBell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
