//! Sockets that listen, and those of Unix that several providers share.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use nvmeof_rdma::{Address, ListenError, UnixPath};
use nvmeof_socket_file::SocketFile;
use socket2::Socket;

use crate::socket;

/// A socket that listens. The file of a Unix socket is there as long as this
/// is.
#[derive(Debug)]
pub(crate) struct Listening {
    pub(crate) socket: Socket,
    /// The address in use.
    pub(crate) addr: Address,
    _file: Option<SocketFile>,
}

/// Unix sockets that several providers of one process listen on: a path cannot
/// be bound twice, so they share what listens there.
#[derive(Clone, Debug, Default)]
pub struct SharedPaths {
    listening: Arc<Mutex<Vec<Weak<Listening>>>>,
}

impl Listening {
    /// Listens for TCP connections; with `shared` others may do so, too.
    pub(crate) fn tcp(
        addr: std::net::SocketAddr,
        buffer: Option<usize>,
        shared: bool,
    ) -> Result<Self, ListenError> {
        let error = |source| ListenError::new(addr, source);
        let socket = socket::tcp_listener(addr, buffer, shared).map_err(error)?;
        let local = socket.local_addr().map_err(error)?;
        Ok(Self {
            socket,
            addr: local.as_socket().unwrap_or(addr).into(),
            _file: None,
        })
    }

    /// Listens at a path, where whoever may write a file of that `mode` may
    /// connect.
    pub(crate) fn unix(path: &UnixPath, mode: u32) -> Result<Self, ListenError> {
        let addr = Address::Unix(*path);
        let error = |source| ListenError::new(addr, source);
        let (socket, file) = socket::unix_listener(path.as_path(), mode).map_err(error)?;
        Ok(Self {
            socket,
            addr,
            _file: Some(file),
        })
    }
}

impl Listening {
    /// Connections to take in one poll, of `most`. Where others wait for them
    /// too it is one, so that each gets some.
    pub(crate) fn accepts_per_poll(self: &Arc<Self>, most: usize) -> usize {
        // One is the provider's own, one the caller's.
        let others = Arc::strong_count(self) > 2;
        if others { 1 } else { most }
    }
}

impl AsFd for Listening {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl SharedPaths {
    /// What listens at `path` already, for a provider that has `own`; otherwise
    /// what `make` gives is shared from now on.
    pub(crate) fn listen(
        &self,
        path: &UnixPath,
        own: &[&Arc<Listening>],
        make: impl FnOnce() -> Result<Listening, ListenError>,
    ) -> Result<Arc<Listening>, ListenError> {
        let mut all = self
            .listening
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        all.retain(|one| one.strong_count() > 0);
        let found = all.iter().filter_map(Weak::upgrade).find(|one| {
            one.addr == Address::Unix(*path) && !own.iter().any(|own| Arc::ptr_eq(own, one))
        });
        if let Some(found) = found {
            return Ok(found);
        }
        let made = Arc::new(make()?);
        all.push(Arc::downgrade(&made));
        Ok(made)
    }
}
