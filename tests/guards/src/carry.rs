//! The state of the pipes: buffers of fixed size, and events of endpoints.

use std::collections::VecDeque;
use std::io::{self, IoSlice, IoSliceMut};
use std::net::{Ipv4Addr, SocketAddr};

use nvmeof_rdma::{Address, ListenerId, Peer};
use nvmeof_rdma_soft::{StreamEvent, StreamId};

/// Maximum bytes in one direction: as in a socket.
const ROOM: usize = 1 << 20;
/// Capacity for events of an endpoint between polls, to avoid allocations.
const NEWS: usize = 64;

/// All pipes of one process.
#[derive(Debug, Default)]
pub(crate) struct Net {
    endpoints: Vec<VecDeque<StreamEvent>>,
    listeners: Vec<(Address, usize)>,
    /// Indexed by stream ID; closed ones stay.
    streams: Vec<Stream>,
}

/// One end.
#[derive(Debug)]
struct Stream {
    endpoint: usize,
    /// The other end; ends are made in pairs.
    peer: StreamId,
    /// Data sent to this end: `bytes[start..end]`.
    bytes: Vec<u8>,
    start: usize,
    end: usize,
    /// `Ready` was reported and not polled yet.
    reported: bool,
    wants_send: bool,
    ended: bool,
    closed: bool,
}

/// One call of an endpoint.
pub(crate) enum Call<'a, 'b> {
    Poll(usize, &'a mut Vec<StreamEvent>),
    Recv(StreamId, &'a mut [IoSliceMut<'b>]),
    Send(StreamId, &'a [IoSlice<'b>]),
}

fn gone() -> io::Error {
    io::ErrorKind::NotConnected.into()
}

impl Net {
    pub(crate) fn endpoint(&mut self) -> usize {
        self.endpoints.push(VecDeque::with_capacity(NEWS));
        self.endpoints.len() - 1
    }

    pub(crate) fn listen(&mut self, endpoint: usize, addr: Address) -> ListenerId {
        self.listeners.push((addr, endpoint));
        ListenerId(self.listeners.len() as u64)
    }

    /// Creates both ends of a new pipe, and notifies the other side.
    pub(crate) fn connect(&mut self, endpoint: usize, addr: Address) -> io::Result<StreamId> {
        let mut listeners = (1..).zip(&self.listeners);
        let found = listeners.find(|(_, (at, _))| *at == addr);
        let (listener, (_, other)) = found.ok_or(io::ErrorKind::ConnectionRefused)?;
        let other = *other;
        let ours = StreamId(self.streams.len() as u64);
        let theirs = StreamId(ours.0 + 1);
        for (endpoint, peer) in [(endpoint, theirs), (other, ours)] {
            self.streams.push(Stream {
                endpoint,
                peer,
                bytes: vec![0; ROOM],
                start: 0,
                end: 0,
                reported: false,
                wants_send: false,
                ended: false,
                closed: false,
            });
        }
        self.notify(endpoint, StreamEvent::Connected(ours));
        let incoming = StreamEvent::Incoming {
            listener: ListenerId(listener),
            stream: theirs,
            peer: Peer::Ip(SocketAddr::new(Ipv4Addr::LOCALHOST.into(), 1)),
        };
        self.notify(other, incoming);
        Ok(ours)
    }

    /// Runs one call; returns the number of bytes or events.
    pub(crate) fn call(&mut self, call: Call<'_, '_>) -> io::Result<usize> {
        match call {
            Call::Poll(endpoint, events) => Ok(self.poll(endpoint, events)),
            Call::Recv(stream, bufs) => self.recv(stream, bufs),
            Call::Send(stream, bufs) => self.send(stream, bufs),
        }
    }

    fn poll(&mut self, endpoint: usize, events: &mut Vec<StreamEvent>) -> usize {
        let Some(follow_ups) = self.endpoints.get_mut(endpoint) else {
            return 0;
        };
        let count = follow_ups.len();
        for event in follow_ups.drain(..) {
            if let StreamEvent::Ready(stream) = event
                && let Some(stream) = at(&mut self.streams, stream)
            {
                stream.reported = false;
            }
            events.push(event);
        }
        count
    }

    fn recv(&mut self, id: StreamId, bufs: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        let stream = at(&mut self.streams, id).ok_or_else(gone)?;
        let there = stream.bytes.get(stream.start..stream.end);
        let mut rest = there.unwrap_or_default();
        if rest.is_empty() {
            return match stream.ended {
                true => Ok(0),
                false => Err(io::ErrorKind::WouldBlock.into()),
            };
        }
        let before = rest.len();
        for buf in bufs {
            let count = buf.len().min(rest.len());
            let (taken, left) = rest.split_at(count);
            if let Some(place) = buf.get_mut(..count) {
                place.copy_from_slice(taken);
            }
            rest = left;
        }
        let (left, peer) = (rest.len(), stream.peer);
        stream.start = stream.end - left;
        if left > 0 {
            self.ready(id);
        }
        if at(&mut self.streams, peer).is_some_and(|peer| peer.wants_send) {
            self.ready(peer);
        }
        Ok(before - left)
    }

    fn send(&mut self, id: StreamId, bufs: &[IoSlice<'_>]) -> io::Result<usize> {
        let peer = at(&mut self.streams, id).ok_or_else(gone)?.peer;
        let stream = at(&mut self.streams, peer).ok_or(io::ErrorKind::BrokenPipe)?;
        // Moves data that were not received to the front.
        stream.bytes.copy_within(stream.start..stream.end, 0);
        (stream.start, stream.end) = (0, stream.end - stream.start);
        let mut sent = 0;
        for buf in bufs {
            let count = buf.len().min(ROOM - stream.end);
            let place = stream.bytes.get_mut(stream.end..stream.end + count);
            if let (Some(place), Some(bytes)) = (place, buf.get(..count)) {
                place.copy_from_slice(bytes);
            }
            stream.end += count;
            sent += count;
        }
        if sent == 0 {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        self.ready(peer);
        Ok(sent)
    }

    pub(crate) fn want_send(&mut self, id: StreamId, want: bool) {
        let Some(stream) = at(&mut self.streams, id) else {
            return;
        };
        stream.wants_send = want;
        let peer = stream.peer;
        let room = at(&mut self.streams, peer).is_none_or(|peer| peer.end - peer.start < ROOM);
        if want && room {
            self.ready(id);
        }
    }

    /// The other end receives the sent data, and then the end of the stream.
    pub(crate) fn shut(&mut self, id: StreamId) {
        let Some(peer) = at(&mut self.streams, id).map(|stream| stream.peer) else {
            return;
        };
        if let Some(stream) = at(&mut self.streams, peer) {
            stream.ended = true;
            self.ready(peer);
        }
    }

    pub(crate) fn close(&mut self, id: StreamId) {
        self.shut(id);
        if let Some(stream) = at(&mut self.streams, id) {
            stream.closed = true;
        }
    }

    fn ready(&mut self, id: StreamId) {
        if let Some(stream) = at(&mut self.streams, id)
            && !stream.reported
        {
            stream.reported = true;
            let endpoint = stream.endpoint;
            self.notify(endpoint, StreamEvent::Ready(id));
        }
    }

    fn notify(&mut self, endpoint: usize, event: StreamEvent) {
        if let Some(follow_ups) = self.endpoints.get_mut(endpoint) {
            follow_ups.push_back(event);
        }
    }
}

fn at(streams: &mut [Stream], id: StreamId) -> Option<&mut Stream> {
    let place = usize::try_from(id.0).ok()?;
    streams.get_mut(place).filter(|stream| !stream.closed)
}
