//! Byte streams in memory, for the tests of this crate.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests")]

use std::collections::{HashMap, VecDeque};
use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use nvmeof_rdma::{Address, ConnectError, ListenError, ListenerId, Peer};

use crate::{Accepted, StreamEvent, StreamId, Streams};

/// A network of pipes that endpoints share.
#[derive(Debug, Default)]
pub(crate) struct Net {
    /// Listening addresses: the endpoint of each.
    listeners: HashMap<Address, usize>,
    pipes: Vec<Pipe>,
    inbox: Vec<Vec<StreamEvent>>,
    /// Capacity of a pipe in bytes.
    room: usize,
    /// Maximum number of bytes per call.
    step: usize,
    /// Number of receive calls that returned bytes.
    received: usize,
    /// Segment size of all streams.
    segment: Option<usize>,
    /// Calls that keep memory: their number, and how many of them are released. `None` while
    /// streams keep none.
    kept: Option<(u64, u64)>,
    /// Number of calls whose release has arrived, but is not read.
    arrived: u64,
    /// Whether a stream was reset.
    reset: bool,
}

/// Both directions of one stream; side 0 is the active side.
#[derive(Debug, Default)]
struct Pipe {
    bytes: [VecDeque<u8>; 2],
    ended: [bool; 2],
    closed: [bool; 2],
}

#[derive(Debug, Clone)]
pub(crate) struct Pipes {
    net: Arc<Mutex<Net>>,
    me: usize,
}

impl Pipes {
    pub(crate) fn pair(room: usize, step: usize) -> (Self, Self) {
        let net = Net {
            inbox: vec![Vec::new(), Vec::new()],
            room,
            step,
            ..Net::default()
        };
        let net = Arc::new(Mutex::new(net));
        let one = Self {
            net: Arc::clone(&net),
            me: 0,
        };
        (one, Self { net, me: 1 })
    }

    /// Number of receive calls that returned bytes so far.
    pub(crate) fn received(&self) -> usize {
        self.net.lock().unwrap().received
    }

    /// From now on, streams keep the memory of calls that may be kept until as many of them
    /// are `released`.
    pub(crate) fn keep(&self, released: u64) {
        let mut net = self.net.lock().unwrap();
        let (calls, _) = net.kept.unwrap_or_default();
        net.kept = Some((calls, released));
    }

    /// As many calls are released, but no poll has read that yet.
    pub(crate) fn release_unread(&self, calls: u64) {
        self.net.lock().unwrap().arrived = calls;
    }

    /// Leaves room for as many more bytes in the fullest pipe.
    pub(crate) fn leave_room(&self, bytes: usize) {
        let mut net = self.net.lock().unwrap();
        let lens = net.pipes.iter().flat_map(|pipe| &pipe.bytes);
        net.room = lens.map(VecDeque::len).max().unwrap_or_default() + bytes;
    }

    /// Number of calls that kept memory.
    pub(crate) fn kept(&self) -> u64 {
        self.net.lock().unwrap().kept.unwrap_or_default().0
    }

    /// Whether a stream was reset.
    pub(crate) fn was_reset(&self) -> bool {
        self.net.lock().unwrap().reset
    }

    /// Sets the segment size of all streams.
    pub(crate) fn set_segment(&self, segment: Option<usize>) {
        self.net.lock().unwrap().segment = segment;
    }
}

fn parts(id: StreamId) -> (usize, usize) {
    let n = usize::try_from(id.0).unwrap();
    (n / 2, n % 2)
}

fn id(pipe: usize, side: usize) -> StreamId {
    StreamId((pipe * 2 + side) as u64)
}

impl Streams for Pipes {
    fn name(&self) -> &'static str {
        "pipes"
    }

    fn listen(&mut self, addr: Address) -> Result<(ListenerId, Address), ListenError> {
        self.net.lock().unwrap().listeners.insert(addr, self.me);
        Ok((ListenerId(7), addr))
    }

    fn unlisten(&mut self, _listener: ListenerId) {
        let me = self.me;
        let mut net = self.net.lock().unwrap();
        net.listeners.retain(|_, owner| *owner != me);
    }

    fn connect(&mut self, addr: Address) -> Result<StreamId, ConnectError> {
        let mut net = self.net.lock().unwrap();
        let pipe = net.pipes.len();
        net.pipes.push(Pipe::default());
        let stream = id(pipe, 0);
        match net.listeners.get(&addr).copied() {
            Some(owner) => {
                net.inbox[owner].push(StreamEvent::Incoming {
                    listener: ListenerId(7),
                    stream: id(pipe, 1),
                    peer: Peer::Ip("192.0.2.1:1".parse().unwrap()),
                });
                net.inbox[self.me].push(StreamEvent::Connected(stream));
            }
            None => {
                let error = io::ErrorKind::ConnectionRefused.into();
                net.inbox[self.me].push(StreamEvent::ConnectFailed(stream, error));
            }
        }
        Ok(stream)
    }

    fn poll(&mut self, _now: Duration, events: &mut Vec<StreamEvent>) {
        let mut net = self.net.lock().unwrap();
        events.append(&mut net.inbox[self.me]);
        // Listeners are endpoint 1 in all tests.
        let side = self.me;
        for (n, pipe) in net.pipes.iter().enumerate() {
            let readable = !pipe.bytes[1 - side].is_empty() || pipe.ended[1 - side];
            if !pipe.closed[side] && (readable || pipe.bytes[side].len() < net.room) {
                events.push(StreamEvent::Ready(id(n, side)));
            }
        }
    }

    fn recv(&mut self, stream: StreamId, bufs: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        let (pipe, side) = parts(stream);
        let mut net = self.net.lock().unwrap();
        let mut left = net.step;
        let net = &mut *net;
        let pipe = &mut net.pipes[pipe];
        let mut count = 0;
        for buf in bufs {
            for place in buf.iter_mut() {
                let Some(byte) = (left > 0)
                    .then(|| pipe.bytes[1 - side].pop_front())
                    .flatten()
                else {
                    break;
                };
                *place = byte;
                count += 1;
                left -= 1;
            }
        }
        match count {
            0 if pipe.ended[1 - side] || pipe.closed[1 - side] => Ok(0),
            0 => Err(io::ErrorKind::WouldBlock.into()),
            count => {
                net.received += 1;
                Ok(count)
            }
        }
    }

    fn send(&mut self, stream: StreamId, bufs: &[IoSlice<'_>]) -> io::Result<usize> {
        let (pipe, side) = parts(stream);
        let mut net = self.net.lock().unwrap();
        let (room, step) = (net.room, net.step);
        let pipe = &mut net.pipes[pipe];
        if pipe.closed[1 - side] {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        assert!(!pipe.ended[side], "sent after the end");
        let space = room.saturating_sub(pipe.bytes[side].len()).min(step);
        let bytes = bufs.iter().flat_map(|buf| buf.iter()).take(space);
        let before = pipe.bytes[side].len();
        pipe.bytes[side].extend(bytes);
        match pipe.bytes[side].len() - before {
            0 => Err(io::ErrorKind::WouldBlock.into()),
            count => Ok(count),
        }
    }

    fn send_kept(
        &mut self,
        stream: StreamId,
        bufs: &[IoSlice<'_>],
        payload: usize,
    ) -> io::Result<Accepted> {
        let bytes = self.send(stream, bufs)?;
        let mut net = self.net.lock().unwrap();
        let Some((calls, released)) = &mut net.kept else {
            return Ok(Accepted { bytes, kept: 0 });
        };
        *calls += u64::from(payload > 0);
        let kept = if calls > released { *calls } else { 0 };
        Ok(Accepted { bytes, kept })
    }

    fn released(&self, _stream: StreamId) -> u64 {
        let kept = self.net.lock().unwrap().kept;
        kept.map_or(u64::MAX, |(_, released)| released)
    }

    fn reap_released(&mut self, stream: StreamId) -> u64 {
        let mut net = self.net.lock().unwrap();
        let arrived = net.arrived;
        if let Some((_, released)) = &mut net.kept {
            *released = arrived.max(*released);
        }
        drop(net);
        self.released(stream)
    }

    fn reset(&mut self, _stream: StreamId) {
        self.net.lock().unwrap().reset = true;
    }

    fn segment(&self, _stream: StreamId) -> Option<usize> {
        self.net.lock().unwrap().segment
    }

    fn want_send(&mut self, _stream: StreamId, _want: bool) -> io::Result<()> {
        Ok(())
    }

    fn shutdown_send(&mut self, stream: StreamId) {
        let (pipe, side) = parts(stream);
        self.net.lock().unwrap().pipes[pipe].ended[side] = true;
    }

    fn close(&mut self, stream: StreamId) {
        let (pipe, side) = parts(stream);
        let mut net = self.net.lock().unwrap();
        net.pipes[pipe].ended[side] = true;
        net.pipes[pipe].closed[side] = true;
        // As in TCP, closing with unread bytes resets the connection, and the peer loses data
        // that it did not read yet.
        if !net.pipes[pipe].bytes[1 - side].is_empty() {
            net.pipes[pipe].bytes[side].clear();
        }
    }

    fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn next_deadline(&self) -> Option<Duration> {
        None
    }
}
