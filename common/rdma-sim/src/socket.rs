//! One end of a simulated connection, and the table of all of them.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use nvmeof_rdma_soft::StreamId;

/// One end of a connection.
#[derive(Debug)]
pub(crate) struct Socket {
    /// Number of its endpoint.
    pub(crate) endpoint: usize,
    pub(crate) local: SocketAddr,
    pub(crate) remote: SocketAddr,
    /// The other end; none while connecting.
    pub(crate) peer: Option<StreamId>,
    pub(crate) established: bool,
    /// Bytes that arrived and were not received.
    pub(crate) arrived: VecDeque<u8>,
    /// The end of the stream arrived, behind the bytes.
    pub(crate) ended: bool,
    /// A failure arrived, behind the bytes.
    pub(crate) failed: Option<io::ErrorKind>,
    /// The sending direction is ended.
    pub(crate) shut: bool,
    /// Bytes that may be sent before the peer receives any.
    pub(crate) room: usize,
    pub(crate) want_send: bool,
    /// `Ready` is queued.
    pub(crate) reported: bool,
    /// Arrival time of the last delivery to this socket.
    pub(crate) last_arrival: Duration,
}

impl Socket {
    pub(crate) fn new(endpoint: usize, local: SocketAddr, remote: SocketAddr) -> Self {
        Self {
            endpoint,
            local,
            remote,
            peer: None,
            established: false,
            arrived: VecDeque::new(),
            ended: false,
            failed: None,
            shut: false,
            room: 0,
            want_send: false,
            reported: false,
            last_arrival: Duration::ZERO,
        }
    }

    /// Whether `recv` would return anything but `WouldBlock`.
    pub(crate) fn has_input(&self) -> bool {
        !self.arrived.is_empty() || self.ended || self.failed.is_some()
    }
}

/// All sockets, by slot and generation.
#[derive(Debug, Default)]
pub(crate) struct Sockets {
    slots: Vec<(u32, Option<Socket>)>,
    free: Vec<u32>,
}

fn split(id: StreamId) -> (usize, u32) {
    let [a, b, c, d, e, f, g, h] = id.0.to_be_bytes();
    let slot = u32::from_be_bytes([e, f, g, h]);
    (slot as usize, u32::from_be_bytes([a, b, c, d]))
}

impl Sockets {
    pub(crate) fn insert(&mut self, socket: Socket) -> StreamId {
        if let Some(slot) = self.free.pop()
            && let Some((generation, place)) = self.slots.get_mut(slot as usize)
        {
            *place = Some(socket);
            return StreamId(u64::from(*generation) << 32 | u64::from(slot));
        }
        let slot = self.slots.len() as u64;
        self.slots.push((0, Some(socket)));
        StreamId(slot)
    }

    pub(crate) fn get(&self, id: StreamId) -> Option<&Socket> {
        let (slot, generation) = split(id);
        let (current, socket) = self.slots.get(slot)?;
        socket.as_ref().filter(|_| *current == generation)
    }

    pub(crate) fn get_mut(&mut self, id: StreamId) -> Option<&mut Socket> {
        let (slot, generation) = split(id);
        let (current, socket) = self.slots.get_mut(slot)?;
        socket.as_mut().filter(|_| *current == generation)
    }

    pub(crate) fn remove(&mut self, id: StreamId) -> Option<Socket> {
        self.get(id)?;
        let (slot, _) = split(id);
        let (generation, socket) = self.slots.get_mut(slot)?;
        *generation = generation.wrapping_add(1);
        self.free.push(u32::try_from(slot).ok()?);
        socket.take()
    }

    /// Sockets for which `wanted` returns true, in the order of their slots.
    pub(crate) fn find(&self, wanted: impl Fn(&Socket) -> bool) -> Vec<StreamId> {
        let slots = (0u64..).zip(&self.slots);
        let found = slots.filter_map(|(slot, (generation, socket))| {
            let wanted = socket.as_ref().is_some_and(&wanted);
            wanted.then_some(StreamId(u64::from(*generation) << 32 | slot))
        });
        found.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn id_of_closed_socket_is_invalid() {
        let addr = "10.0.0.1:1".parse().unwrap();
        let mut sockets = Sockets::default();
        let first = sockets.insert(Socket::new(0, addr, addr));
        let second = sockets.insert(Socket::new(1, addr, addr));
        assert!(sockets.remove(first).is_some() && sockets.remove(first).is_none());
        let third = sockets.insert(Socket::new(2, addr, addr));
        assert!(sockets.get(first).is_none() && first != third);
        let at = |id| sockets.get(id).map(|socket| socket.endpoint);
        assert_eq!((at(second), at(third)), (Some(1), Some(2)));
        assert_eq!(sockets.find(|_| true), [third, second]);
    }
}
