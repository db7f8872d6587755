//! A path with faults: forwards TCP connections to a target, delays them, loses them, or stops
//! forwarding as a broken network does.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread::sleep;
use std::time::Duration;

use nix::libc;
use nix::sys::socket::{setsockopt, sockopt};

/// What a path does with the bytes of its connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Traffic {
    /// Forwards them.
    #[default]
    Forward,
    /// Forwards each piece after that time.
    Delay(Duration),
    /// Keeps those in these directions, as a network that loses packets: they arrive when the
    /// network recovers, as TCP sends them again.
    Silent {
        /// From the host to the target.
        to_target: bool,
        /// From the target to the host.
        to_host: bool,
    },
    /// Resets the connections at the target. They stay open at the host, without traffic.
    HalfOpen,
    /// Resets all connections on both sides, and each new one.
    Reset,
}

/// A path to a target at a fixed port of its own. Its connections are reset when it is dropped.
#[derive(Debug)]
pub struct Proxy {
    address: SocketAddr,
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
}

#[derive(Clone, Copy, Debug, Default)]
struct State {
    traffic: Traffic,
    is_over: bool,
    /// Number of resets. A connection ends when it was made before the last one.
    resets: u64,
    /// The same, of ends at the target.
    half_opens: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Toward {
    Target,
    Host,
}

/// How often a thread checks whether its connection is reset.
const CHECK: Duration = Duration::from_millis(5);
/// Bytes that are forwarded at once.
const PIECE: usize = 64 << 10;

impl Proxy {
    /// A path to the target at `target`, which need not listen yet.
    #[must_use]
    pub fn start(target: SocketAddr) -> Self {
        Self::on(TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap(), target)
    }

    /// The same with a listener, which may be in another network namespace. Connections to
    /// `target` are made in the network namespace of the calling thread.
    #[must_use]
    pub fn on(listener: TcpListener, target: SocketAddr) -> Self {
        listener.set_nonblocking(true).unwrap();
        let address = listener.local_addr().unwrap();
        let shared = Arc::new(Shared::default());
        let its = Arc::clone(&shared);
        std::thread::spawn(move || accept(&listener, target, &its));
        Self { address, shared }
    }

    /// Where hosts connect.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Changes what it does, for connections of now and later.
    pub fn set(&self, traffic: Traffic) {
        let mut state = self.shared.state.lock().unwrap();
        state.traffic = traffic;
        match traffic {
            Traffic::Reset => state.resets += 1,
            Traffic::HalfOpen => state.half_opens += 1,
            Traffic::Forward | Traffic::Delay(_) | Traffic::Silent { .. } => {}
        }
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.shared.state.lock().unwrap().is_over = true;
    }
}

impl Shared {
    fn get(&self) -> State {
        *self.state.lock().unwrap()
    }
}

fn accept(listener: &TcpListener, target: SocketAddr, shared: &Arc<Shared>) {
    loop {
        let state = shared.get();
        if state.is_over {
            return;
        }
        let Ok((host, _)) = listener.accept() else {
            sleep(CHECK);
            continue;
        };
        let connected = match state.traffic {
            Traffic::Reset => None,
            _ => TcpStream::connect(target).ok(),
        };
        let Some(to) = connected else {
            reset_on_close(&host);
            continue;
        };
        for stream in [&host, &to] {
            stream.set_nodelay(true).unwrap();
            stream.set_nonblocking(false).unwrap();
            stream.set_read_timeout(Some(CHECK)).unwrap();
            stream.set_write_timeout(Some(CHECK)).unwrap();
        }
        let (host, to) = (Arc::new(host), Arc::new(to));
        let pump = |from: &Arc<TcpStream>, to: &Arc<TcpStream>, toward| {
            let (from, to) = (Arc::clone(from), Arc::clone(to));
            let shared = Arc::clone(shared);
            let pump = Pump {
                shared,
                toward,
                made: state,
            };
            std::thread::spawn(move || pump.run(from, to));
        };
        pump(&host, &to, Toward::Target);
        pump(&to, &host, Toward::Host);
    }
}

/// One direction of a connection.
struct Pump {
    shared: Arc<Shared>,
    toward: Toward,
    /// The state when the connection was made.
    made: State,
}

impl Pump {
    fn run(&self, from: Arc<TcpStream>, to: Arc<TcpStream>) {
        let mut piece = vec![0; PIECE];
        while !self.is_reset() {
            match (&*from).read(&mut piece) {
                Ok(0) => {
                    self.wait();
                    break;
                }
                Ok(len) => {
                    self.wait();
                    if !self.forward(&to, &piece[..len]) {
                        break;
                    }
                }
                Err(error) if is_time_out(&error) => {}
                Err(_) => break,
            }
        }
        // Both directions end together: there is no half close in the protocol.
        for stream in [&from, &to] {
            match self.is_reset() {
                true => reset_on_close(stream),
                false => drop(stream.shutdown(Shutdown::Both)),
            }
        }
        let (host, target) = match self.toward {
            Toward::Target => (from, to),
            Toward::Host => (to, from),
        };
        drop(target);
        // The host does not see the end of a half-open connection.
        while self.is_half_open() && matches!(self.shared.get().traffic, Traffic::HalfOpen) {
            sleep(CHECK);
        }
        drop(host);
    }

    /// Waits as long as the bytes that it has do not pass.
    fn wait(&self) {
        while !self.is_reset() {
            match self.shared.get().traffic {
                Traffic::Silent { to_target, .. } if self.toward == Toward::Target && to_target => {
                    sleep(CHECK);
                }
                Traffic::Silent { to_host, .. } if self.toward == Toward::Host && to_host => {
                    sleep(CHECK);
                }
                Traffic::HalfOpen => sleep(CHECK),
                Traffic::Delay(time) => return sleep(time),
                Traffic::Forward | Traffic::Silent { .. } | Traffic::Reset => return,
            }
        }
    }

    /// Returns false when the connection ends.
    fn forward(&self, mut to: &TcpStream, mut piece: &[u8]) -> bool {
        while !piece.is_empty() && !self.is_reset() {
            match to.write(piece) {
                Ok(0) => return false,
                Ok(len) => piece = &piece[len..],
                Err(error) if is_time_out(&error) => {}
                Err(_) => return false,
            }
        }
        piece.is_empty()
    }

    fn is_half_open(&self) -> bool {
        self.shared.get().half_opens > self.made.half_opens
    }

    fn is_reset(&self) -> bool {
        let state = self.shared.get();
        state.is_over || state.resets > self.made.resets || self.is_half_open()
    }
}

fn is_time_out(error: &std::io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted
    )
}

/// Has the last close of `stream` reset the connection.
fn reset_on_close(stream: &TcpStream) {
    let linger = libc::linger {
        l_onoff: 1,
        l_linger: 0,
    };
    // Fails if the peer was faster.
    let _ = setsockopt(stream, sockopt::Linger, &linger);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A host and its connection at the target, through a path.
    fn connected() -> (Proxy, TcpStream, TcpStream) {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let proxy = Proxy::start(listener.local_addr().unwrap());
        let host = TcpStream::connect(proxy.address()).unwrap();
        let (target, _) = listener.accept().unwrap();
        for stream in [&host, &target] {
            stream.set_read_timeout(Some(crate::TIMEOUT)).unwrap();
        }
        (proxy, host, target)
    }

    fn passes(mut from: &TcpStream, mut to: &TcpStream) {
        from.write_all(b"bytes").unwrap();
        let mut read = [0; 5];
        to.read_exact(&mut read).unwrap();
        assert_eq!(&read, b"bytes");
    }

    fn is_silent(mut stream: &TcpStream) -> bool {
        stream.set_read_timeout(Some(20 * CHECK)).unwrap();
        let silent = matches!(stream.read(&mut [0]), Err(error) if is_time_out(&error));
        stream.set_read_timeout(Some(crate::TIMEOUT)).unwrap();
        silent
    }

    fn end(mut stream: &TcpStream) -> ErrorKind {
        stream.read(&mut [0]).unwrap_err().kind()
    }

    #[test]
    fn silent_direction_keeps_bytes_until_it_recovers() {
        let (proxy, host, target) = connected();
        passes(&host, &target);
        passes(&target, &host);
        proxy.set(Traffic::Silent {
            to_target: true,
            to_host: false,
        });
        (&host).write_all(b"late").unwrap();
        passes(&target, &host);
        assert!(is_silent(&target));
        proxy.set(Traffic::Forward);
        let mut read = [0; 4];
        (&target).read_exact(&mut read).unwrap();
        assert_eq!(&read, b"late");
    }

    #[test]
    fn reset_path_resets_both_sides_and_refuses_hosts() {
        let (proxy, host, target) = connected();
        passes(&host, &target);
        proxy.set(Traffic::Reset);
        assert_eq!(end(&host), ErrorKind::ConnectionReset);
        assert_eq!(end(&target), ErrorKind::ConnectionReset);
        let next = TcpStream::connect(proxy.address()).unwrap();
        assert_eq!(end(&next), ErrorKind::ConnectionReset);
    }

    #[test]
    fn half_open_connection_ends_at_the_target_only() {
        let (proxy, host, target) = connected();
        passes(&host, &target);
        proxy.set(Traffic::HalfOpen);
        assert_eq!(end(&target), ErrorKind::ConnectionReset);
        assert!(is_silent(&host));
        proxy.set(Traffic::Forward);
        assert_eq!(end(&host), ErrorKind::ConnectionReset);
    }

    #[test]
    fn dropped_path_resets_its_connections() {
        let (proxy, host, target) = connected();
        passes(&host, &target);
        drop(proxy);
        assert_eq!(end(&host), ErrorKind::ConnectionReset);
    }
}
