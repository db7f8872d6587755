//! The network: delivers data at its time and in order.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use nvmeof_rdma_layers::Dice;
use nvmeof_rdma_soft::{StreamEvent, StreamId};

use crate::SimConfig;
use crate::chance;
use crate::delivery::{Delivery, InFlightDelivery, Pair, Schedule};
use crate::endpoint::{Endpoint, Listener};
use crate::socket::{Socket, Sockets};

/// The state of the network.
#[derive(Debug)]
pub(crate) struct Net {
    pub(crate) now: Duration,
    pub(crate) dice: Dice,
    pub(crate) config: SimConfig,
    pub(crate) endpoints: Vec<Endpoint>,
    /// Members of a group on one address get its connections round robin.
    pub(crate) listeners: BTreeMap<SocketAddr, VecDeque<Listener>>,
    pub(crate) sockets: Sockets,
    schedule: Schedule,
    /// Pairs of endpoints with a cut.
    pub(crate) cuts: BTreeSet<Pair>,
    /// Deliveries that wait for the end of their cut, in order.
    held: Vec<InFlightDelivery>,
    /// Number of connections to refuse, by the address of the listener.
    pub(crate) refusals: BTreeMap<IpAddr, u32>,
    next_port: u16,
    pub(crate) next_listener: u64,
}

impl Net {
    pub(crate) fn new(seed: u64, config: SimConfig) -> Self {
        Self {
            now: Duration::ZERO,
            dice: Dice::new(seed),
            config,
            endpoints: Vec::new(),
            listeners: BTreeMap::new(),
            sockets: Sockets::default(),
            schedule: Schedule::default(),
            cuts: BTreeSet::new(),
            held: Vec::new(),
            refusals: BTreeMap::new(),
            next_port: FIRST_PORT,
            next_listener: 1,
        }
    }

    /// A port without a listener.
    pub(crate) fn free_port(&mut self) -> u16 {
        loop {
            let port = self.next_port;
            self.next_port = port.checked_add(1).unwrap_or(FIRST_PORT);
            if !self.listeners.keys().any(|addr| addr.port() == port) {
                return port;
            }
        }
    }

    /// Time of the next arrival.
    pub(crate) fn next_at(&self) -> Option<Duration> {
        self.schedule.next_at()
    }

    /// Advances time to `to` and delivers everything that arrives until then.
    pub(crate) fn run_until(&mut self, to: Duration) {
        while let Some(at) = self.schedule.next_at().filter(|at| *at <= to) {
            self.now = self.now.max(at);
            while let Some(flight) = self.schedule.pop_due(at) {
                self.arrive(flight);
            }
        }
        self.now = self.now.max(to);
    }

    /// Sends something to a socket, behind everything in flight to it.
    pub(crate) fn send_to(&mut self, to: StreamId, delivery: Delivery) {
        let latency = self.latency();
        let Some(socket) = self.sockets.get_mut(to) else {
            return;
        };
        socket.last_arrival = socket.last_arrival.max(self.now + latency);
        let between = Pair::new(socket.local.ip(), socket.remote.ip());
        let at = socket.last_arrival;
        self.schedule
            .push(at, InFlightDelivery { between, delivery });
    }

    /// Latency of the next piece.
    pub(crate) fn latency(&mut self) -> Duration {
        chance::time(&mut self.dice, &self.config.latency)
    }

    /// Sends something that is not addressed to a socket.
    pub(crate) fn send_between(&mut self, between: Pair, after: Duration, delivery: Delivery) {
        let at = self.now + after;
        self.schedule
            .push(at, InFlightDelivery { between, delivery });
    }

    fn arrive(&mut self, flight: InFlightDelivery) {
        let heals = matches!(flight.delivery, Delivery::Heal { .. });
        if self.cuts.contains(&flight.between) && !heals {
            self.held.push(flight);
            return;
        }
        match flight.delivery {
            Delivery::Connect { from, to } => self.connect_arrived(from, to),
            Delivery::Accepted { to } => {
                if let Some(socket) = self.sockets.get_mut(to) {
                    socket.established = true;
                    self.report(to, StreamEvent::Connected(to));
                }
            }
            Delivery::Refused { to } => {
                let refused = io::ErrorKind::ConnectionRefused.into();
                self.report(to, StreamEvent::ConnectFailed(to, refused));
                self.sockets.remove(to);
            }
            Delivery::Bytes { from, to, bytes } => self.bytes_arrived(from, to, &bytes),
            Delivery::Room { to, bytes } => {
                if let Some(socket) = self.sockets.get_mut(to) {
                    socket.room += bytes;
                    if socket.want_send {
                        self.ready(to);
                    }
                }
            }
            Delivery::End { to } => {
                if let Some(socket) = self.sockets.get_mut(to) {
                    socket.ended = true;
                    self.ready(to);
                }
            }
            Delivery::Reset { to } => self.reset_arrived(to),
            Delivery::Heal { between } => self.heal(between),
        }
    }

    fn connect_arrived(&mut self, from: StreamId, to: SocketAddr) {
        let Some(caller) = self.sockets.get(from) else {
            return;
        };
        let peer = caller.local;
        let refused = self.dice.happens(self.config.chances.refuse) || self.refuse_one(to.ip());
        let listener = self.next_listener(to).filter(|_| !refused);
        let Some(Listener { endpoint, id }) = listener else {
            self.send_to(from, Delivery::Refused { to: from });
            return;
        };
        let mut socket = Socket::new(endpoint, to, peer);
        socket.peer = Some(from);
        socket.established = true;
        socket.room = chance::size(&mut self.dice, &self.config.window);
        let stream = self.sockets.insert(socket);
        let room = chance::size(&mut self.dice, &self.config.window);
        if let Some(caller) = self.sockets.get_mut(from) {
            caller.peer = Some(stream);
            caller.room = room;
        }
        self.report(
            stream,
            StreamEvent::Incoming {
                listener: id,
                stream,
                peer: peer.into(),
            },
        );
        self.send_to(from, Delivery::Accepted { to: from });
    }

    /// The listener for the next connection to an address.
    fn next_listener(&mut self, addr: SocketAddr) -> Option<Listener> {
        let all = self.listeners.get_mut(&addr)?;
        let first = all.front().copied();
        all.rotate_left(1.min(all.len()));
        first
    }

    /// Removes the listeners for which `who` returns true.
    pub(crate) fn unlisten(&mut self, who: impl Fn(&Listener) -> bool) {
        self.listeners.retain(|_, all| {
            all.retain(|one| !who(one));
            !all.is_empty()
        });
    }

    fn refuse_one(&mut self, ip: IpAddr) -> bool {
        let Some(left) = self.refusals.get_mut(&ip).filter(|left| **left > 0) else {
            return false;
        };
        *left -= 1;
        true
    }

    fn bytes_arrived(&mut self, from: StreamId, to: StreamId, bytes: &[u8]) {
        if let Some(socket) = self.sockets.get_mut(to) {
            // Nothing arrives behind a reset. Otherwise bytes would seem to be missing in the
            // middle.
            if socket.failed.is_none() {
                socket.arrived.extend(bytes);
                self.ready(to);
            }
        } else {
            // The socket is closed.
            self.send_to(from, Delivery::Reset { to: from });
        }
    }

    fn reset_arrived(&mut self, to: StreamId) {
        let Some(socket) = self.sockets.get_mut(to) else {
            return;
        };
        socket.peer = None;
        if socket.established {
            socket.failed = Some(io::ErrorKind::ConnectionReset);
            self.ready(to);
        } else {
            let reset = io::ErrorKind::ConnectionReset.into();
            self.report(to, StreamEvent::ConnectFailed(to, reset));
            self.sockets.remove(to);
        }
    }

    /// Ends the cut between two endpoints: waiting deliveries arrive, in their original
    /// order.
    pub(crate) fn heal(&mut self, between: Pair) {
        if !self.cuts.remove(&between) {
            return;
        }
        let (freed, held) = std::mem::take(&mut self.held)
            .into_iter()
            .partition(|flight| flight.between == between);
        self.held = held;
        let freed: Vec<InFlightDelivery> = freed;
        for flight in freed {
            // Immediately: everything still in flight arrives later.
            self.arrive(flight);
        }
    }

    /// Reports `Ready` once, until the endpoint has seen it.
    pub(crate) fn ready(&mut self, id: StreamId) {
        if let Some(socket) = self.sockets.get_mut(id)
            && socket.established
            && !socket.reported
        {
            socket.reported = true;
            self.report(id, StreamEvent::Ready(id));
        }
    }

    /// Reports `event` to the endpoint of the socket.
    fn report(&mut self, id: StreamId, event: StreamEvent) {
        let holder = self.sockets.get(id).map(|socket| socket.endpoint);
        if let Some(endpoint) = holder.and_then(|holder| self.endpoints.get_mut(holder)) {
            endpoint.report(event);
        }
    }
}

/// The first port to assign.
const FIRST_PORT: u16 = 49_152;
