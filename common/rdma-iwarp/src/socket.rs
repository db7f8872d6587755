//! Sockets with options for RDMA.

use std::fmt;
use std::fs;
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::socket::getsockopt;
use nix::sys::socket::sockopt::{PeerCredentials, TcpMaxSeg};
use nvmeof_rdma::{Address, Peer, UnixPath};
use nvmeof_socket_file::SocketFile;
use socket2::{Domain, Protocol, SockAddr, Socket, TcpKeepalive, Type};

/// Default segment size in bytes (RFC 9293, section 3.7.1).
const DEFAULT_SEGMENT: usize = 536;
/// Length of the accept queue.
const BACKLOG: i32 = 256;
/// Length of the accept queue of Unix sockets, limited by the kernel (`net.core.somaxconn`).
/// A client that finds it full has to retry by itself.
const UNIX_BACKLOG: i32 = 4096;
/// TCP keep-alive: idle time before the first probe, and interval of probes.
const KEEPALIVE_AFTER: Duration = Duration::from_secs(30);
const KEEPALIVE_EVERY: Duration = Duration::from_secs(10);

/// Outcome of a connect.
#[derive(Debug)]
pub(crate) enum ConnectOutcome {
    /// In progress; an event reports the outcome.
    InProgress,
    /// Established.
    Established,
    /// The accept queue is full, and no event reports when it has room.
    Full,
}

/// Creates a socket that listens on `addr`.
pub(crate) fn tcp_listener(addr: SocketAddr, buffer: Option<usize>) -> io::Result<Socket> {
    let socket = new(Domain::for_address(addr))?;
    socket.set_reuse_address(true)?;
    if addr.is_ipv6() {
        // `[::]` covers IPv6 only; IPv4 has an address of its own.
        socket.set_only_v6(true)?;
    }
    // Accepted sockets inherit the buffers, and the window scale with them.
    set_buffers(&socket, buffer, None);
    socket.bind(&addr.into())?;
    socket.listen(BACKLOG)?;
    Ok(socket)
}

/// Creates a socket that listens on `path`, and its file.
pub(crate) fn unix_listener(path: &Path, mode: u32) -> io::Result<(Socket, SocketFile)> {
    let socket = new(Domain::UNIX)?;
    let file = SocketFile::bind(&socket, path, mode)?;
    socket.listen(UNIX_BACKLOG)?;
    Ok((socket, file))
}

/// Creates a socket for a connection to `addr`.
pub(crate) fn client(addr: Address, buffer: Option<usize>) -> io::Result<Socket> {
    let socket = new(match addr {
        Address::Ip(addr) => Domain::for_address(addr),
        Address::Unix(_) => Domain::UNIX,
    })?;
    prepare(&socket, buffer, addr.socket_addr().is_some(), &addr);
    Ok(socket)
}

/// Starts to connect to `addr`.
pub(crate) fn connect(socket: &Socket, addr: Address) -> io::Result<ConnectOutcome> {
    match addr {
        Address::Ip(addr) => match socket.connect(&addr.into()) {
            Ok(()) => Ok(ConnectOutcome::InProgress),
            Err(error) if is(&error, Errno::EINPROGRESS) => Ok(ConnectOutcome::InProgress),
            Err(error) => Err(error),
        },
        Address::Unix(path) => connect_unix(socket, &path),
    }
}

/// Connects to a Unix socket, which never blocks (unix(7), EAGAIN).
fn connect_unix(socket: &Socket, path: &UnixPath) -> io::Result<ConnectOutcome> {
    let path = path.as_path();
    let Err(error) = socket.connect(&SockAddr::unix(path)?) else {
        return Ok(ConnectOutcome::Established);
    };
    match error.raw_os_error().map(Errno::from_raw) {
        Some(Errno::EAGAIN) => Ok(ConnectOutcome::Full),
        Some(Errno::EPROTOTYPE) => {
            let text =
                "the socket at that path is of another type, so no software iWARP listens on it";
            Err(io::Error::new(io::ErrorKind::InvalidInput, text))
        }
        // No process listens, whether or not there is a stale file.
        Some(Errno::ENOENT) => {
            let text = "there is no file at that path";
            Err(io::Error::new(io::ErrorKind::ConnectionRefused, text))
        }
        // The kernel returns the same error for every file that is not a socket.
        Some(Errno::ECONNREFUSED) if !is_socket(path) => {
            let text = "the file at that path is not a socket";
            Err(io::Error::new(io::ErrorKind::InvalidInput, text))
        }
        _ => Err(error),
    }
}

/// The peer of `socket`, which was accepted from the address `from`.
pub(crate) fn peer(socket: &Socket, from: &SockAddr) -> io::Result<Peer> {
    if let Some(addr) = from.as_socket() {
        return Ok(Peer::Ip(addr));
    }
    let process = getsockopt(socket, PeerCredentials)?;
    Ok(Peer::Process {
        pid: process.pid(),
        uid: process.uid(),
    })
}

/// Converts an address; `None` for sockets without a name.
pub(crate) fn to_address(addr: &SockAddr) -> Option<Address> {
    if let Some(path) = addr.as_pathname() {
        return UnixPath::new(path).ok().map(Address::Unix);
    }
    addr.as_socket().map(Address::Ip)
}

/// Current maximum segment size of a TCP connection, for the path and the peer (tcp(7),
/// TCP_MAXSEG).
pub(crate) fn segment(socket: &Socket) -> usize {
    let segment = getsockopt(socket, TcpMaxSeg).ok();
    let segment = segment.and_then(|bytes| usize::try_from(bytes).ok());
    segment.unwrap_or(DEFAULT_SEGMENT)
}

/// Sets the options of a connection. Errors are ignored.
pub(crate) fn prepare(
    socket: &Socket,
    buffer: Option<usize>,
    is_tcp: bool,
    peer: &dyn fmt::Display,
) {
    if is_tcp {
        prepare_tcp(socket, peer);
    }
    set_buffers(socket, buffer, Some(peer));
}

fn prepare_tcp(socket: &Socket, peer: &dyn fmt::Display) {
    let keepalive = TcpKeepalive::new()
        .with_time(KEEPALIVE_AFTER)
        .with_interval(KEEPALIVE_EVERY)
        .with_retries(3);
    let options = [
        // The engine batches by itself.
        socket.set_tcp_nodelay(true),
        socket.set_tcp_keepalive(&keepalive),
    ];
    for error in options.into_iter().filter_map(Result::err) {
        tracing::debug!(%peer, %error, "a socket option was refused");
    }
}

fn set_buffers(socket: &Socket, buffer: Option<usize>, peer: Option<&dyn fmt::Display>) {
    let Some(buffer) = buffer else {
        return;
    };
    for error in [
        socket.set_send_buffer_size(buffer).err(),
        socket.set_recv_buffer_size(buffer).err(),
    ]
    .into_iter()
    .flatten()
    {
        let peer = peer.map(tracing::field::display);
        tracing::debug!(peer, %error, "the kernel keeps its socket buffer size");
    }
}

fn new(domain: Domain) -> io::Result<Socket> {
    let protocol = (domain != Domain::UNIX).then_some(Protocol::TCP);
    // socket2 sets close-on-exec.
    let socket = Socket::new(domain, Type::STREAM, protocol)?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}

fn is(error: &io::Error, errno: Errno) -> bool {
    error.raw_os_error() == Some(errno as i32)
}

fn is_socket(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|there| there.file_type().is_socket())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segment_is_size_agreed_by_connection() {
        let listener = tcp_listener("127.0.0.1:0".parse().unwrap(), None).unwrap();
        let addr = to_address(&listener.local_addr().unwrap()).unwrap();
        let ours = client(addr, None).unwrap();
        // The size announced to the peer, and less than that of the path.
        ours.set_tcp_mss(1200).unwrap();
        ours.set_nonblocking(false).unwrap();
        listener.set_nonblocking(false).unwrap();
        ours.connect(&listener.local_addr().unwrap()).unwrap();
        let (theirs, _) = listener.accept().unwrap();
        // TCP options take 12 bytes or none.
        assert!([1188, 1200].contains(&segment(&ours)));
        assert!([1188, 1200].contains(&segment(&theirs)));
    }
}
