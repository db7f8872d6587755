//! A transport with one stream, whose other end is the fuzzer.

use std::collections::VecDeque;
use std::io::{self, IoSlice, IoSliceMut};
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::BorrowedFd;
use std::time::Duration;

use nvmeof_rdma::{Address, ConnectError, ListenError, ListenerId};
use nvmeof_rdma_soft::{StreamEvent, StreamId, Streams};

/// The only stream; a new connection replaces it.
#[derive(Debug)]
pub struct Line {
    /// Data of the peer that were not received yet.
    pub inbound: VecDeque<u8>,
    /// Whether the peer closes the stream after that.
    pub ended: bool,
    /// Maximum bytes of one receive, to split the stream anywhere.
    pub step: usize,
    /// Bytes that may still be sent.
    pub room: usize,
    /// The current stream; streams with lower numbers are closed.
    current: u64,
    open: bool,
    message: Vec<StreamEvent>,
}

impl Default for Line {
    fn default() -> Self {
        Self {
            inbound: VecDeque::new(),
            ended: false,
            step: usize::MAX,
            room: usize::MAX,
            current: 0,
            open: false,
            message: Vec::new(),
        }
    }
}

/// The address of both sides.
pub const ADDR: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 4420);

impl Line {
    /// A peer connects to this side.
    pub fn arrive(&mut self) {
        let stream = self.renew();
        self.message.push(StreamEvent::Incoming {
            listener: ListenerId(1),
            stream,
            peer: ADDR.into(),
        });
    }

    /// Whether this side has the stream open.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.open
    }

    fn renew(&mut self) -> StreamId {
        self.current += 1;
        self.open = true;
        StreamId(self.current)
    }

    fn check(&self, stream: StreamId) -> io::Result<()> {
        let known = self.open && stream.0 == self.current;
        known
            .then_some(())
            .ok_or(io::ErrorKind::NotConnected.into())
    }
}

impl Streams for Line {
    fn name(&self) -> &'static str {
        "line"
    }

    fn listen(&mut self, addr: Address) -> Result<(ListenerId, Address), ListenError> {
        Ok((ListenerId(1), addr))
    }

    fn unlisten(&mut self, _listener: ListenerId) {}

    fn connect(&mut self, _addr: Address) -> Result<StreamId, ConnectError> {
        let stream = self.renew();
        self.message.push(StreamEvent::Connected(stream));
        Ok(stream)
    }

    fn poll(&mut self, _now: Duration, events: &mut Vec<StreamEvent>) {
        events.append(&mut self.message);
        if self.open && (!self.inbound.is_empty() || self.ended || self.room > 0) {
            events.push(StreamEvent::Ready(StreamId(self.current)));
        }
    }

    fn recv(&mut self, stream: StreamId, bufs: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        self.check(stream)?;
        let mut left = self.step.max(1).min(self.inbound.len());
        if left == 0 {
            let end = if self.ended {
                Ok(0)
            } else {
                Err(io::ErrorKind::WouldBlock.into())
            };
            return end;
        }
        let mut count = 0;
        for buf in bufs {
            let take = left.min(buf.len());
            for (place, byte) in buf.iter_mut().zip(self.inbound.drain(..take)) {
                *place = byte;
            }
            left -= take;
            count += take;
        }
        assert!(count > 0, "a receive into an empty buffer");
        Ok(count)
    }

    fn send(&mut self, stream: StreamId, bufs: &[IoSlice<'_>]) -> io::Result<usize> {
        self.check(stream)?;
        let offered: usize = bufs.iter().map(|buf| buf.len()).sum();
        assert!(offered > 0, "an empty send");
        let count = offered.min(self.room);
        self.room -= count;
        match count {
            0 => Err(io::ErrorKind::WouldBlock.into()),
            count => Ok(count),
        }
    }

    fn want_send(&mut self, _stream: StreamId, _want: bool) -> io::Result<()> {
        Ok(())
    }

    fn shutdown_send(&mut self, _stream: StreamId) {}

    fn close(&mut self, stream: StreamId) {
        if stream.0 == self.current {
            self.open = false;
        }
    }

    fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn next_deadline(&self) -> Option<Duration> {
        None
    }
}
