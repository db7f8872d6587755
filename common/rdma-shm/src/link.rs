//! The socket of one connection: messages, passed memory, credentials of the peer.

use std::io::{self, IoSlice};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

use nix::sys::socket::sockopt::PeerCredentials;
use nix::sys::socket::{ControlMessage, MsgFlags, getsockopt, recv, sendmsg};
use nvmeof_rdma::Peer;
use socket2::{Domain, SockAddr, Socket, Type};

/// A SOCK_SEQPACKET socket that never blocks.
#[derive(Debug)]
pub(crate) struct Link {
    socket: Arc<Socket>,
}

/// Creates such a socket, which closes on exec.
pub(crate) fn socket() -> io::Result<Socket> {
    let socket = Socket::new(Domain::UNIX, Type::SEQPACKET, None)?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}

/// The address of the socket at `path`.
pub(crate) fn address(path: &Path) -> io::Result<SockAddr> {
    SockAddr::unix(path).map_err(|error| {
        let path = path.display();
        let text = format!("{path}: {error}; choose a directory with a shorter path (shm.folder)");
        io::Error::new(error.kind(), text)
    })
}

impl Link {
    /// Connects to the socket at `path`, whose listener must be a process of one of `users`.
    pub(crate) fn connect(path: &Path, users: &[u32]) -> io::Result<Self> {
        let socket = socket()?;
        socket.connect(&address(path)?)?;
        let link = Self::new(socket)?;
        link.check_peer(users)?;
        Ok(link)
    }

    /// Takes a connected socket.
    pub(crate) fn new(socket: Socket) -> io::Result<Self> {
        socket.set_nonblocking(true)?;
        let socket = Arc::new(socket);
        Ok(Self { socket })
    }

    /// Checks that the peer's process, when it connected or started to listen, had one of
    /// `users`.
    pub(crate) fn check_peer(&self, users: &[u32]) -> io::Result<()> {
        let user = self.user()?;
        if users.contains(&user) {
            return Ok(());
        }
        let text = format!("processes of user {user} are not permitted to connect");
        Err(io::Error::new(io::ErrorKind::PermissionDenied, text))
    }

    /// The user of the peer's process when it connected or started to listen.
    pub(crate) fn user(&self) -> io::Result<u32> {
        Ok(getsockopt(&self.socket, PeerCredentials)?.uid())
    }

    /// The peer's process when it connected or started to listen.
    pub(crate) fn peer(&self) -> io::Result<Peer> {
        let credentials = getsockopt(&self.socket, PeerCredentials)?;
        let (pid, uid) = (credentials.pid(), credentials.uid());
        Ok(Peer::Process { pid, uid })
    }

    /// A reference that keeps the socket open: the peer detects its end when the last one is
    /// dropped.
    pub(crate) fn keep(&self) -> Arc<Socket> {
        Arc::clone(&self.socket)
    }

    /// Sends a message, with a descriptor if there is one.
    pub(crate) fn send(&self, message: &[u8], fd: Option<BorrowedFd<'_>>) -> io::Result<()> {
        let numbers = fd.map(|fd| [fd.as_raw_fd()]);
        let control = numbers
            .as_ref()
            .map(|numbers| ControlMessage::ScmRights(numbers));
        let pieces = [IoSlice::new(message)];
        // A closed peer is an error, not a signal.
        let flags = MsgFlags::MSG_NOSIGNAL | MsgFlags::MSG_DONTWAIT;
        let control = control.as_slice();
        sendmsg::<()>(self.socket.as_raw_fd(), &pieces, control, flags, None)?;
        Ok(())
    }

    /// Receives a message; descriptors that come with it are closed. `None` is the end of the
    /// connection.
    pub(crate) fn receive<'a>(&self, room: &'a mut [u8]) -> io::Result<Option<&'a [u8]>> {
        let len = twice(|| {
            let received = recv(self.socket.as_raw_fd(), room, MsgFlags::MSG_DONTWAIT);
            received.map_err(io::Error::from)
        })?;
        Ok(room.get(..len).filter(|message| !message.is_empty()))
    }

    /// Receives a message and the descriptor that comes with it.
    pub(crate) fn receive_memory<'a>(
        &self,
        room: &'a mut [u8],
    ) -> io::Result<Option<(&'a [u8], Option<OwnedFd>)>> {
        let (len, fd) = twice(|| nvmeof_memory::receive_passed(self.socket.as_fd(), room))?;
        let message = room.get(..len).filter(|message| !message.is_empty());
        Ok(message.map(|message| (message, fd)))
    }
}

/// Receives again after a reset: the last message of the peer is behind it if the peer closed
/// without reading everything.
fn twice<T>(mut receive: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    match receive() {
        Err(error) if error.kind() == io::ErrorKind::ConnectionReset => receive(),
        other => other,
    }
}

impl AsFd for Link {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
