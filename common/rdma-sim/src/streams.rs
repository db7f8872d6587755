//! The streams of one endpoint.

use std::io::{self, IoSlice, IoSliceMut, Write};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use nvmeof_rdma::{Address, ConnectError, ListenError, ListenerId};
use nvmeof_rdma_soft::{StreamEvent, StreamId, Streams};

use crate::chance;
use crate::delivery::{Delivery, Pair};
use crate::endpoint::{Endpoint, Listener};
use crate::net::Net;
use crate::socket::Socket;
use crate::wake_pipe::WakePipe;

/// Maximum number of events per poll.
const POLL_EVENTS: usize = 32;

/// The byte streams of one endpoint. Dropping it simulates the death of its process: the
/// peers see ends and resets.
#[derive(Debug)]
pub struct SimStreams {
    net: Arc<Mutex<Net>>,
    ip: IpAddr,
    endpoint: usize,
    /// The wake-up pipe of the endpoint.
    wake_pipe: Arc<WakePipe>,
}

/// Locks the network, even if another holder panicked.
pub(crate) fn lock(net: &Mutex<Net>) -> MutexGuard<'_, Net> {
    net.lock().unwrap_or_else(PoisonError::into_inner)
}

fn gone() -> io::Error {
    io::ErrorKind::NotConnected.into()
}

impl SimStreams {
    pub(crate) fn new(net: Arc<Mutex<Net>>, ip: IpAddr, group: Option<usize>) -> Self {
        let (new, wake_pipe) = Endpoint::new(group);
        let endpoint = {
            let mut net = lock(&net);
            net.endpoints.push(new);
            net.endpoints.len() - 1
        };
        Self {
            net,
            ip,
            endpoint,
            wake_pipe,
        }
    }

    fn net(&self) -> MutexGuard<'_, Net> {
        lock(&self.net)
    }

    /// Whether there are no listeners except those of the same group.
    fn may_listen(&self, net: &Net, addr: SocketAddr) -> bool {
        let group = |endpoint: usize| net.endpoints.get(endpoint).and_then(|one| one.group);
        let ours = group(self.endpoint);
        let mut there = net.listeners.get(&addr).into_iter().flatten();
        there.all(|one| {
            one.endpoint != self.endpoint && ours.is_some() && group(one.endpoint) == ours
        })
    }
}

impl Drop for SimStreams {
    fn drop(&mut self) {
        let endpoint = self.endpoint;
        let mut net = self.net();
        net.unlisten(|one| one.endpoint == endpoint);
        for stream in net.sockets.find(|socket| socket.endpoint == endpoint) {
            net.close(stream);
        }
    }
}

impl Streams for SimStreams {
    fn name(&self) -> &'static str {
        "sim"
    }

    fn listen(&mut self, addr: Address) -> Result<(ListenerId, Address), ListenError> {
        let ip = addr.ip_only(self.name())?;
        let mut net = self.net();
        if ip.ip() != self.ip {
            return Err(ListenError::NoSuchAddress { addr });
        }
        let mut used = ip;
        if ip.port() == 0 {
            used.set_port(net.free_port());
        }
        if !self.may_listen(&net, used) {
            return Err(ListenError::InUse { addr });
        }
        let id = ListenerId(net.next_listener);
        net.next_listener += 1;
        let endpoint = self.endpoint;
        let all = net.listeners.entry(used).or_default();
        all.push_back(Listener { endpoint, id });
        Ok((id, used.into()))
    }

    fn unlisten(&mut self, listener: ListenerId) {
        let endpoint = self.endpoint;
        let ours = |one: &Listener| one.endpoint == endpoint && one.id == listener;
        self.net().unlisten(ours);
    }

    fn connect(&mut self, addr: Address) -> Result<StreamId, ConnectError> {
        let addr = addr.ip_only(self.name())?;
        let mut net = self.net();
        let local = SocketAddr::new(self.ip, net.free_port());
        let stream = net.sockets.insert(Socket::new(self.endpoint, local, addr));
        let latency = net.latency();
        let wish = Delivery::Connect {
            from: stream,
            to: addr,
        };
        net.send_between(Pair::new(self.ip, addr.ip()), latency, wish);
        Ok(stream)
    }

    fn poll(&mut self, _now: Duration, events: &mut Vec<StreamEvent>) {
        let mut guard = self.net();
        let net = &mut *guard;
        let Some(endpoint) = net.endpoints.get_mut(self.endpoint) else {
            return;
        };
        for event in std::iter::from_fn(|| endpoint.take()).take(POLL_EVENTS) {
            let stands = match &event {
                StreamEvent::Ready(stream) => {
                    let socket = net.sockets.get_mut(*stream);
                    socket.map(|socket| socket.reported = false).is_some()
                }
                StreamEvent::Connected(stream) | StreamEvent::Incoming { stream, .. } => {
                    net.sockets.get(*stream).is_some()
                }
                StreamEvent::ConnectFailed(..) => true,
            };
            if stands {
                events.push(event);
            }
        }
    }

    fn recv(&mut self, stream: StreamId, bufs: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        let mut guard = self.net();
        let net = &mut *guard;
        let socket = net.sockets.get_mut(stream).ok_or_else(gone)?;
        if socket.arrived.is_empty() {
            return match socket.failed {
                Some(kind) => Err(kind.into()),
                None if socket.ended => Ok(0),
                None => Err(io::ErrorKind::WouldBlock.into()),
            };
        }
        // Sometimes less than available.
        let mut wanted = socket.arrived.len();
        if net.dice.roll().is_multiple_of(4) {
            wanted = 1 + net.dice.below(wanted);
        }
        let mut received = 0;
        for buf in bufs {
            let (first, second) = socket.arrived.as_slices();
            let mut rest: &mut [u8] = buf;
            let asked = rest.len().min(wanted - received);
            let from_first = asked.min(first.len());
            rest.write_all(first.get(..from_first).unwrap_or_default())?;
            let from_second = asked - from_first;
            rest.write_all(second.get(..from_second).unwrap_or_default())?;
            socket.arrived.drain(..asked);
            received += asked;
        }
        let peer = socket.peer;
        if socket.has_input() {
            net.ready(stream);
        }
        if let Some(to) = peer {
            let bytes = received;
            net.send_to(to, Delivery::Room { to, bytes });
        }
        Ok(received)
    }

    fn send(&mut self, stream: StreamId, bufs: &[IoSlice<'_>]) -> io::Result<usize> {
        self.net().send(stream, bufs)
    }

    fn segment(&self, _stream: StreamId) -> Option<usize> {
        self.net().config.segment
    }

    fn want_send(&mut self, stream: StreamId, want: bool) -> io::Result<()> {
        let mut net = self.net();
        if let Some(socket) = net.sockets.get_mut(stream) {
            socket.want_send = want;
            if want && (socket.room > 0 || socket.failed.is_some()) {
                net.ready(stream);
            }
        }
        Ok(())
    }

    fn shutdown_send(&mut self, stream: StreamId) {
        self.net().shut(stream);
    }

    fn close(&mut self, stream: StreamId) {
        self.net().close(stream);
    }

    fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.wake_pipe.as_fd())
    }

    fn next_deadline(&self) -> Option<Duration> {
        None
    }
}

impl Net {
    fn send(&mut self, from: StreamId, bufs: &[IoSlice<'_>]) -> io::Result<usize> {
        let socket = self.sockets.get(from).ok_or_else(gone)?;
        if socket.failed.is_some() || socket.shut {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        let asked: usize = bufs.iter().map(|buf| buf.len()).sum();
        let mut taken = asked.min(socket.room);
        let Some(to) = socket.peer.filter(|_| taken > 0 && socket.established) else {
            return match asked {
                0 => Ok(0),
                _ => Err(io::ErrorKind::WouldBlock.into()),
            };
        };
        // Sometimes less than there is room for.
        if self.dice.roll().is_multiple_of(8) {
            taken = 1 + self.dice.below(taken);
        }
        let mut all = bufs.iter().flat_map(|buf| buf.iter().copied()).take(taken);
        let mut left = taken;
        while left > 0 {
            let length = chance::piece(&mut self.dice, self.config.longest_piece).min(left);
            let bytes: Vec<u8> = all.by_ref().take(length).collect();
            left -= length;
            self.send_piece(from, to, bytes);
        }
        if let Some(socket) = self.sockets.get_mut(from) {
            socket.room -= taken;
        }
        Ok(taken)
    }

    /// Ends one direction of a connection.
    pub(crate) fn shut(&mut self, stream: StreamId) {
        if let Some(socket) = self.sockets.get_mut(stream)
            && !socket.shut
        {
            socket.shut = true;
            if let Some(to) = socket.peer {
                self.send_to(to, Delivery::End { to });
            }
        }
    }

    /// Closes a socket. Unread bytes make it a reset, as in TCP (RFC 9293, section 3.10.4,
    /// and RFC 2525, section 2.17).
    pub(crate) fn close(&mut self, stream: StreamId) {
        let Some(socket) = self.sockets.remove(stream) else {
            return;
        };
        let Some(to) = socket.peer else {
            return;
        };
        if !socket.arrived.is_empty() {
            self.send_to(to, Delivery::Reset { to });
        } else if !socket.shut {
            self.send_to(to, Delivery::End { to });
        }
    }
}
