//! Sockets with the options that suit RDMA.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use socket2::{Domain, Protocol, Socket, TcpKeepalive, Type};

/// Connections that may wait for `accept`.
const BACKLOG: i32 = 256;
/// How long a silent peer is believed to live, and how often it is asked then.
const KEEPALIVE_AFTER: Duration = Duration::from_secs(30);
const KEEPALIVE_EVERY: Duration = Duration::from_secs(10);

/// A socket that listens on `addr`.
pub(crate) fn listener(addr: SocketAddr, buffer: Option<usize>) -> io::Result<Socket> {
    let socket = new(addr)?;
    socket.set_reuse_address(true)?;
    if addr.is_ipv6() {
        // `[::]` means IPv6; IPv4 has an address of its own.
        socket.set_only_v6(true)?;
    }
    // What is accepted inherits the buffers, and the window scale with them.
    set_buffers(&socket, buffer);
    socket.bind(&addr.into())?;
    socket.listen(BACKLOG)?;
    Ok(socket)
}

/// A socket that connects to `addr`; whether it is connected, an event says.
pub(crate) fn connect(addr: SocketAddr, buffer: Option<usize>) -> io::Result<Socket> {
    let socket = new(addr)?;
    prepare(&socket, buffer);
    match socket.connect(&addr.into()) {
        Ok(()) => Ok(socket),
        Err(error) if error.raw_os_error() == Some(nix::errno::Errno::EINPROGRESS as i32) => {
            Ok(socket)
        }
        Err(error) => Err(error),
    }
}

/// Options of a connection. None is worth failing for.
pub(crate) fn prepare(socket: &Socket, buffer: Option<usize>) {
    let keepalive = TcpKeepalive::new()
        .with_time(KEEPALIVE_AFTER)
        .with_interval(KEEPALIVE_EVERY)
        .with_retries(3);
    let options = [
        // We put together what belongs together.
        socket.set_tcp_nodelay(true),
        socket.set_tcp_keepalive(&keepalive),
    ];
    for error in options.into_iter().filter_map(Result::err) {
        tracing::debug!(%error, "a socket option was refused");
    }
    set_buffers(socket, buffer);
}

fn set_buffers(socket: &Socket, buffer: Option<usize>) {
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
        tracing::debug!(%error, "the kernel keeps its socket buffer size");
    }
}

fn new(addr: SocketAddr) -> io::Result<Socket> {
    // socket2 sets close-on-exec.
    let socket = Socket::new(Domain::for_address(addr), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}
