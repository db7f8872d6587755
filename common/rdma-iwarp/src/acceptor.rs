//! Listening sockets, and the waker of a provider that shares them.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};

use nix::sys::eventfd::{EfdFlags, EventFd};
use nvmeof_rdma::{Address, ListenError, Peer, UnixPath};
use nvmeof_rdma_soft::group::{Acceptor, Group, Inbox, SharedListener, Waker};
use nvmeof_socket_file::SocketFile;
use socket2::Socket;

use crate::socket;

pub(crate) type SocketGroup = Group<SocketAcceptor, EventWaker>;
pub(crate) type SharedSocket = SharedListener<SocketAcceptor, EventWaker>;
pub(crate) type SocketInbox = Inbox<SocketAcceptor, EventWaker>;

/// A listening socket. The file of a Unix socket exists as long as this value.
#[derive(Debug)]
pub(crate) struct SocketAcceptor {
    socket: Socket,
    /// The address in use.
    addr: Address,
    _file: Option<SocketFile>,
}

impl SocketAcceptor {
    /// Listens on a TCP address, or on a path. There, every process with write permission for
    /// a file of this `mode` may connect.
    pub(crate) fn open(
        addr: Address,
        buffer: Option<usize>,
        mode: u32,
    ) -> Result<Self, ListenError> {
        let opened = match addr {
            Address::Ip(addr) => Self::tcp(addr, buffer),
            Address::Unix(path) => Self::unix(&path, mode),
        };
        opened.map_err(|source| ListenError::new(addr, source))
    }

    fn tcp(addr: SocketAddr, buffer: Option<usize>) -> io::Result<Self> {
        let socket = socket::tcp_listener(addr, buffer)?;
        let local = socket.local_addr()?.as_socket();
        Ok(Self {
            socket,
            addr: local.unwrap_or(addr).into(),
            _file: None,
        })
    }

    fn unix(path: &UnixPath, mode: u32) -> io::Result<Self> {
        let (socket, file) = socket::unix_listener(path.as_path(), mode)?;
        Ok(Self {
            socket,
            addr: Address::Unix(*path),
            _file: Some(file),
        })
    }
}

impl Acceptor for SocketAcceptor {
    type Addr = Address;
    type Connection = (Socket, Peer);

    fn addr(&self) -> Address {
        self.addr
    }

    fn accept(&self) -> io::Result<(Self::Connection, IpAddr)> {
        // socket2 sets close-on-exec.
        let (socket, from) = self.socket.accept()?;
        socket.set_nonblocking(true)?;
        let peer = socket::peer(&socket, &from)?;
        // All processes on this machine count as one host.
        let host = peer.ip().unwrap_or(Ipv4Addr::LOCALHOST.into());
        Ok(((socket, peer), host))
    }
}

impl AsFd for SocketAcceptor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// An eventfd that wakes a provider.
#[derive(Debug)]
pub(crate) struct EventWaker(EventFd);

impl EventWaker {
    pub(crate) fn new() -> io::Result<Self> {
        let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
        Ok(Self(EventFd::from_value_and_flags(0, flags)?))
    }
}

impl Waker for EventWaker {
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

impl AsFd for EventWaker {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
