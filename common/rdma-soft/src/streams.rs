//! The byte streams that carry software RDMA: what a transport implements.

use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::BorrowedFd;
use std::time::Duration;

use nvmeof_rdma::{Address, ConnectError, ListenError, ListenerId, Peer};

/// A byte stream: slot and generation, so that the name of one that is closed
/// never means another. The slot is the lower half; slots are small numbers,
/// since tables are made as long as the highest one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StreamId(pub u64);

impl StreamId {
    /// Where tables keep what they know of the stream.
    #[must_use]
    pub fn slot(self) -> usize {
        let [a, b, c, d, ..] = self.0.to_le_bytes();
        u32::from_le_bytes([a, b, c, d]) as usize
    }
}

/// Something happened to a stream.
#[derive(Debug)]
pub enum StreamEvent {
    /// A peer connected. The stream stays until it is closed by us.
    Incoming {
        /// Where.
        listener: ListenerId,
        /// The new stream.
        stream: StreamId,
        /// Who.
        peer: Peer,
    },
    /// A stream of [`Streams::connect`] stands.
    Connected(StreamId),
    /// A stream of [`Streams::connect`] failed and is gone.
    ConnectFailed(StreamId, io::Error),
    /// Trying [`Streams::recv`] or [`Streams::send`] is worth while. May be
    /// wrong; the call then says [`io::ErrorKind::WouldBlock`].
    Ready(StreamId),
}

/// Reliable byte streams, none of whose calls ever waits.
///
/// # Readiness
/// * After `recv` gave bytes, a following `poll` says `Ready` for that stream
///   again if there are more (and may say it without knowing). As long as such
///   a `poll` is due, `next_deadline` says so or the next `poll` is it.
/// * After `recv` said `WouldBlock`, the arrival of bytes, of the end of the
///   stream or of an error gives `Ready`.
/// * Bytes that the caller does not ask for do not make `poll` busy: `Ready`
///   is said at least once for them, not for ever.
/// * After [`want_send`](Self::want_send) with `true`, room to send gives
///   `Ready`.
///
/// # Errors of `recv` and `send`
/// Everything but `WouldBlock` is final: the caller closes the stream.
/// Calls that name a stream that is gone give [`io::ErrorKind::NotConnected`]
/// or do nothing.
pub trait Streams: Send {
    /// A short name for logs and messages, the provider's.
    fn name(&self) -> &'static str;

    /// Listens on `addr`; port 0 takes a free one. Returns the address in use.
    ///
    /// # Errors
    /// [`ListenError`] names address, cause and remedy.
    fn listen(&mut self, addr: Address) -> Result<(ListenerId, Address), ListenError>;

    /// Stops listening. Streams that were reported stay.
    fn unlisten(&mut self, listener: ListenerId);

    /// Starts to connect; `Connected` or `ConnectFailed` follows.
    ///
    /// # Errors
    /// When it cannot even be tried.
    fn connect(&mut self, addr: Address) -> Result<StreamId, ConnectError>;

    /// Appends what happened. Never waits, does a bounded amount of work.
    fn poll(&mut self, now: Duration, events: &mut Vec<StreamEvent>);

    /// Receives into `bufs`, first to last. 0 is the end of the stream (`bufs`
    /// are never empty).
    ///
    /// # Errors
    /// `WouldBlock` when nothing is there; anything else is final.
    fn recv(&mut self, stream: StreamId, bufs: &mut [IoSliceMut<'_>]) -> io::Result<usize>;

    /// Sends from `bufs`, first to last; returns how many bytes were taken.
    ///
    /// # Errors
    /// `WouldBlock` when there is no room; anything else is final.
    fn send(&mut self, stream: StreamId, bufs: &[IoSlice<'_>]) -> io::Result<usize>;

    /// Our address of the stream. `None` where that is not known.
    fn local_addr(&self, _stream: StreamId) -> Option<Address> {
        None
    }

    /// Bytes of data that one segment on the stream's path has at most, as far as
    /// that is known now (TCP's effective maximum segment size). `None` where
    /// the stream is not cut into segments.
    fn segment(&self, _stream: StreamId) -> Option<usize> {
        None
    }

    /// Whether room to send is to be reported. It may be reported at other
    /// times too.
    ///
    /// # Errors
    /// When it may never be reported: what waits for it may wait for ever.
    fn want_send(&mut self, stream: StreamId, want: bool) -> io::Result<()>;

    /// Ends our half of the stream, after what was sent. The peer's half goes
    /// on.
    fn shutdown_send(&mut self, stream: StreamId);

    /// Forgets the stream. What was sent still goes out unless the peer sent
    /// bytes that were not received: then the peer sees a reset.
    fn close(&mut self, stream: StreamId);

    /// Becomes readable when `poll` has something to say. `None` where nobody
    /// ever sleeps.
    fn wait_fd(&self) -> Option<BorrowedFd<'_>>;

    /// When `poll` has to be called at the latest, even if `wait_fd` stays
    /// silent.
    fn next_deadline(&self) -> Option<Duration>;
}
