//! Byte streams for software RDMA: the interface of a transport.

use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::BorrowedFd;
use std::time::Duration;

use nvmeof_rdma::{Address, ConnectError, ListenError, ListenerId, Peer};

/// A byte stream: slot and generation, so that an identifier is never reused. The slot is the
/// lower half. Slots are small numbers, because tables are as long as the highest one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StreamId(pub u64);

impl StreamId {
    /// Index of the stream in tables.
    #[must_use]
    pub fn slot(self) -> usize {
        let [a, b, c, d, ..] = self.0.to_le_bytes();
        u32::from_le_bytes([a, b, c, d]) as usize
    }
}

/// Bytes that a stream accepted in a call of [`Streams::send_kept`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Accepted {
    /// Their number.
    pub bytes: usize,
    /// The newest call, counted from 1, whose memory the stream still refers to. 0 if it
    /// refers to no memory.
    pub kept: u64,
}

/// An event of a stream.
#[derive(Debug)]
pub enum StreamEvent {
    /// A peer connected. The stream exists until it is closed by this side.
    Incoming {
        /// The listener.
        listener: ListenerId,
        /// The new stream.
        stream: StreamId,
        /// The peer.
        peer: Peer,
    },
    /// A stream of [`Streams::connect`] is connected.
    Connected(StreamId),
    /// A stream of [`Streams::connect`] failed and is closed.
    ConnectFailed(StreamId, io::Error),
    /// [`Streams::recv`] or [`Streams::send`] may succeed, or [`Streams::released`] has
    /// changed. If the former is not the case, the call returns
    /// [`io::ErrorKind::WouldBlock`].
    Ready(StreamId),
}

/// Reliable byte streams. No call blocks.
///
/// # Readiness
/// * After `recv` returned bytes, a following `poll` reports `Ready` for that stream again if
///   there are more (and may report it without knowing). As long as such a `poll` is needed,
///   `next_deadline` requests it or the next `poll` is it.
/// * After `recv` returned `WouldBlock`, the arrival of bytes, of the end of the stream or of
///   an error causes `Ready`.
/// * Bytes that the caller does not receive do not keep `poll` busy: `Ready` is reported at
///   least once for them, not for ever.
/// * After [`want_send`](Self::want_send) with `true`, room to send causes `Ready`.
///
/// # Errors of `recv` and `send`
/// Every error except `WouldBlock` is final: the caller closes the stream. Calls on a closed
/// stream return [`io::ErrorKind::NotConnected`] or do nothing.
pub trait Streams: Send {
    /// A short name for logs and messages, the provider's.
    fn name(&self) -> &'static str;

    /// Listens on `addr`; port 0 selects a free one. Returns the address in use.
    ///
    /// # Errors
    /// [`ListenError`] names address, cause and remedy.
    fn listen(&mut self, addr: Address) -> Result<(ListenerId, Address), ListenError>;

    /// Stops listening. Reported streams stay open.
    fn unlisten(&mut self, listener: ListenerId);

    /// Starts to connect; `Connected` or `ConnectFailed` follows.
    ///
    /// # Errors
    /// When it cannot be attempted.
    fn connect(&mut self, addr: Address) -> Result<StreamId, ConnectError>;

    /// Appends new events. Never blocks, does a bounded amount of work.
    fn poll(&mut self, now: Duration, events: &mut Vec<StreamEvent>);

    /// Receives into `bufs`, first to last. 0 is the end of the stream (`bufs`
    /// are never empty).
    ///
    /// # Errors
    /// `WouldBlock` if there are no bytes; anything else is final.
    fn recv(&mut self, stream: StreamId, bufs: &mut [IoSliceMut<'_>]) -> io::Result<usize>;

    /// Sends from `bufs`, first to last; returns the number of bytes sent.
    ///
    /// # Errors
    /// `WouldBlock` when there is no room; anything else is final.
    fn send(&mut self, stream: StreamId, bufs: &[IoSlice<'_>]) -> io::Result<usize>;

    /// Sends as [`send`](Self::send) does, but may keep a reference to the memory of the
    /// bytes that it accepts: they do not change, and the memory is not used for anything
    /// else, before the call is [`released`](Self::released), not even after the stream
    /// failed. At most `payload` of the bytes are worth it; 0 forbids it.
    ///
    /// # Errors
    /// As [`send`](Self::send).
    fn send_kept(
        &mut self,
        stream: StreamId,
        bufs: &[IoSlice<'_>],
        _payload: usize,
    ) -> io::Result<Accepted> {
        let bytes = self.send(stream, bufs)?;
        Ok(Accepted { bytes, kept: 0 })
    }

    /// The number of the last call of [`send_kept`](Self::send_kept) that is released: the
    /// stream refers to no memory of it and of the calls before it. A change causes `Ready`.
    fn released(&self, _stream: StreamId) -> u64 {
        u64::MAX
    }

    /// The same, including releases that no `poll` has read yet.
    fn reap_released(&mut self, stream: StreamId) -> u64 {
        self.released(stream)
    }

    /// Ends the stream immediately for the peer, and drops everything that was not
    /// transmitted yet. It stays open on this side, to report which memory is
    /// [`released`](Self::released).
    fn reset(&mut self, _stream: StreamId) {}

    /// The local address of the stream. `None` if it is unknown.
    fn local_addr(&self, _stream: StreamId) -> Option<Address> {
        None
    }

    /// Maximum segment size of the stream's path in bytes, as currently known (TCP's
    /// effective maximum segment size). `None` if the stream has no segments.
    fn segment(&self, _stream: StreamId) -> Option<usize> {
        None
    }

    /// Whether room to send is to be reported. It may be reported at other
    /// times too.
    ///
    /// # Errors
    /// When it may never be reported, so that the caller may wait for ever.
    fn want_send(&mut self, stream: StreamId, want: bool) -> io::Result<()>;

    /// Ends the sending direction of the stream, after the data sent before. The other
    /// direction continues.
    fn shutdown_send(&mut self, stream: StreamId);

    /// Closes the stream. Data sent before are still transmitted unless the peer sent bytes
    /// that were not received: then the peer gets a reset.
    fn close(&mut self, stream: StreamId);

    /// Becomes readable when `poll` has events. `None` if the streams can only be polled.
    fn wait_fd(&self) -> Option<BorrowedFd<'_>>;

    /// The latest time of the next `poll`, even if `wait_fd` is not readable.
    fn next_deadline(&self) -> Option<Duration>;
}
