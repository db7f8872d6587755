//! Yardstick `tcp`: upper bound of any software RDMA over TCP; and `unix-bare`, the same
//! over a Unix socket.
//!
//! Two processes exchange the bytes of NVMe commands, without protocol and checks. For a
//! read, 64 bytes are sent, and 16 + 8 bytes and the payload received. For a write, 64 +
//! 8 bytes and the payload are sent, and 16 bytes received. One call sends all that is
//! ready. One call receives many small messages; the rest of a payload is received in
//! place.

mod ask;
mod frame;
mod inbox;
mod outbox;
mod serve;
mod zerocopy;

use std::io;
use std::os::fd::AsFd;

use nix::sys::socket::{setsockopt, sockopt};
use socket2::{Domain, Socket};

pub use ask::{Ask, ask};
pub use frame::Direction;
pub(crate) use frame::HELLO;
pub use serve::serve;

/// Parameters that both sides of a connection know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Where the payload goes.
    pub direction: Direction,
    /// Bytes of each payload.
    pub bytes: u32,
    /// Operations in flight.
    pub depth: u16,
    /// Whether to sleep in the socket call instead of polling, and to yield the core after
    /// each poll of memory: for two sides on one core.
    pub block: bool,
    /// Whether payloads are sent with MSG_ZEROCOPY.
    pub zerocopy: bool,
}

/// Send and receive buffer of a socket, as in the iWARP provider.
const SOCKET_BUFFER: usize = 1 << 20;

/// Payloads up to this length are received together with others and copied to
/// their places: measured, a call for each costs more.
const COPIED_MAX: usize = 16 << 10;

/// Bytes received at a time where payloads are copied.
const BULK: usize = 256 << 10;

fn prepare(stream: &Socket, shape: &Shape) -> io::Result<()> {
    if stream.domain()? != Domain::UNIX {
        stream.set_tcp_nodelay(true)?;
    }
    // The kernel may set less, which is no error.
    let _ = setsockopt(&stream.as_fd(), sockopt::SndBuf, &SOCKET_BUFFER);
    let _ = setsockopt(&stream.as_fd(), sockopt::RcvBuf, &SOCKET_BUFFER);
    if shape.zerocopy {
        zerocopy::Sends::prepare(stream)?;
    }
    stream.set_nonblocking(!shape.block)
}

/// Reports copies of MSG_ZEROCOPY sends, if it was used.
fn report_copies(outbox: &outbox::Outbox) {
    if let Some((all, copied)) = outbox.sends().filter(|(all, _)| *all > 0) {
        eprintln!("yardstick: {all} sends with MSG_ZEROCOPY, the kernel copied {copied} of them");
    }
}

/// One buffer of each operation in flight, every page of it touched.
fn places(shape: &Shape) -> Vec<Vec<u8>> {
    let bytes = usize::try_from(shape.bytes).unwrap_or(usize::MAX);
    vec![vec![0xa5; bytes]; usize::from(shape.depth)]
}

/// The result of a call on a non-blocking socket; `None`: it would block.
fn polled(result: io::Result<usize>) -> io::Result<Option<usize>> {
    match result {
        Ok(count) => Ok(Some(count)),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
        Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(None),
        Err(error) => Err(error),
    }
}

/// A protocol error of the other side.
fn broken(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what.to_owned())
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::os::unix::net::UnixListener;
    use std::thread::JoinHandle;
    use std::time::Duration;

    use nvmeof_initiator::{Address, UnixPath};

    use super::*;

    /// Both sides in one process; how many operations were done.
    fn operations(shape: Shape) -> u64 {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = listener.local_addr().unwrap().into();
        let server = std::thread::spawn(move || serve(listener.incoming(), Some(1)).unwrap());
        asked(addr, shape, server)
    }

    fn asked(addr: Address, shape: Shape, server: JoinHandle<()>) -> u64 {
        let asked = ask(&Ask {
            addr,
            shape,
            runtime: Duration::from_millis(50),
        });
        let report = asked.unwrap();
        server.join().unwrap();
        assert_eq!(report["bs"], shape.bytes);
        report["operations"].as_u64().unwrap()
    }

    #[test]
    fn unix_socket_transfers_the_same() {
        let path = std::env::temp_dir().join(format!("yardstick-{}", std::process::id()));
        let listener = UnixListener::bind(&path).unwrap();
        let addr = UnixPath::new(&path).unwrap().into();
        let server = std::thread::spawn(move || serve(listener.incoming(), Some(1)).unwrap());
        let shape = Shape {
            direction: Direction::Write,
            bytes: 131_072,
            depth: 32,
            block: false,
            zerocopy: false,
        };
        let count = asked(addr, shape, server);
        std::fs::remove_file(path).unwrap();
        assert!(count >= 32, "{count}");
    }

    #[test]
    fn every_shape_completes() {
        for direction in [Direction::Read, Direction::Write] {
            for (bytes, depth) in [(4096, 1), (4096, 128), (512, 16), (131_072, 32)] {
                for (block, zerocopy) in [(false, false), (true, false), (false, true)] {
                    let shape = Shape {
                        direction,
                        bytes,
                        depth,
                        block,
                        zerocopy,
                    };
                    let count = operations(shape);
                    assert!(count >= u64::from(depth), "{shape:?}: {count}");
                }
            }
        }
    }
}
