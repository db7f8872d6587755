//! Connections as byte streams: readiness, accepting, reading, writing.

use std::collections::VecDeque;
use std::io::{self, IoSlice, IoSliceMut, Read};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nvmeof_rdma::{ACCEPT_PACE, Address, ConnectError, ConnectionGuard, ListenError, ListenerId};
use nvmeof_rdma_soft::group::{Acceptor, Arrived};
use nvmeof_rdma_soft::{Accepted, Slots, StreamEvent, StreamId, Streams};
use socket2::Socket;

use crate::acceptor::{EventWaker, SharedSocket, SocketAcceptor, SocketGroup, SocketInbox};
use crate::connecting::PendingConnects;
use crate::socket;
use crate::zero_copy::{self, Pins, ZeroCopy};

/// Maximum events from the kernel per poll.
const EVENTS: usize = 64;
/// Maximum connections accepted per poll and listener.
const ACCEPTS: usize = 16;
/// Maximum streams of the hot list that are tried per poll.
const HOT_TRIES: usize = 64;
/// Polls of the hot list for every poll of the kernel.
const HOT_POLLS: u32 = 16;
/// Tries without a byte after which a stream is removed from the hot list.
const MISSES: u8 = 8;
/// After such a pause between polls the caller slept, and the kernel knows what woke it.
const ASLEEP: Duration = Duration::from_micros(200);
/// Pause of accepting when there are no file descriptors left.
const PAUSE: Duration = Duration::from_millis(100);
/// Data of epoll: flag of a listener.
const LISTENER: u64 = 1 << 63;
/// Data of epoll: the mailbox with connections that other members of the group accepted.
const INBOX: u64 = u64::MAX;

/// Connections and listeners on TCP and Unix sockets, registered with an epoll instance of
/// their own.
///
/// Streams are registered edge-triggered, so that unread bytes do not keep `poll` busy. Those
/// that moved bytes recently are in the *hot list* and are tried without asking the kernel
/// first: under load that saves a system call per poll, and idle streams cost none.
#[derive(Debug)]
pub struct SocketStreams {
    epoll: Epoll,
    /// Socket buffer size in bytes; `None` leaves it to the kernel.
    buffer: Option<usize>,
    /// Permissions of the files of Unix sockets.
    socket_mode: u32,
    zero_copy: ZeroCopy,
    /// The group with which it shares its listeners; `None` without a group.
    group: Option<(Arc<SocketGroup>, Arc<SocketInbox>)>,
    listeners: Slots<Listener>,
    streams: Slots<Stream>,
    connects: PendingConnects,
    hot: VecDeque<StreamId>,
    /// Whether the last poll left hot streams untried.
    untried: bool,
    hot_polls: u32,
    last_poll: Duration,
    /// Listeners that may have more pending connections.
    accepting: Vec<u64>,
    /// End of a pause of accepting.
    paused: Option<Duration>,
    events: Vec<EpollEvent>,
}

#[derive(Debug)]
struct Listener {
    shared: Arc<SharedSocket>,
    /// Whether it is in `accepting`.
    queued: bool,
}

#[derive(Debug)]
struct Stream {
    socket: Socket,
    /// Whether it is a Unix socket. Then room to send is an event only on request, because
    /// the kernel reports it whenever the peer receives.
    unix: bool,
    connecting: bool,
    hot: bool,
    /// Consecutive tries without a byte.
    misses: u8,
    /// Its sends without copies, if it may have them.
    pins: Option<Box<Pins>>,
    /// Counts it in the load of its group member.
    _guard: Option<ConnectionGuard>,
}

impl SocketStreams {
    /// Creates an empty set. `buffer` is the size of the send and the receive buffer of each
    /// socket in bytes; `None` leaves it to the kernel. `socket_mode` are the permissions of
    /// the files of Unix sockets. `zero_copy` says where sends leave out the copy.
    ///
    /// # Errors
    /// When the kernel cannot create an epoll instance.
    pub fn new(buffer: Option<usize>, socket_mode: u32, zero_copy: ZeroCopy) -> io::Result<Self> {
        Ok(Self {
            epoll: Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?,
            buffer,
            socket_mode,
            zero_copy,
            group: None,
            listeners: Slots::new(),
            streams: Slots::new(),
            connects: PendingConnects::default(),
            hot: VecDeque::new(),
            untried: false,
            hot_polls: 0,
            last_poll: Duration::ZERO,
            accepting: Vec::new(),
            paused: None,
            events: vec![EpollEvent::empty(); EVENTS],
        })
    }

    /// Joins a group: from now on it shares listeners with the members that listen on the
    /// same address.
    ///
    /// # Errors
    /// When the kernel cannot create an eventfd.
    pub(crate) fn join(
        &mut self,
        group: Arc<SocketGroup>,
        number: usize,
        room: u32,
    ) -> io::Result<()> {
        let inbox = SocketInbox::new(number, room, EventWaker::new()?);
        self.epoll
            .add(inbox.waker(), EpollEvent::new(EpollFlags::EPOLLIN, INBOX))?;
        self.group = Some((group, inbox));
        Ok(())
    }

    fn adopt(
        &mut self,
        socket: Socket,
        unix: bool,
        connecting: bool,
        guard: Option<ConnectionGuard>,
    ) -> io::Result<StreamId> {
        let may_pin = !unix && !connecting;
        let stream = Stream {
            pins: may_pin
                .then(|| Pins::new(self.zero_copy, &socket))
                .flatten(),
            socket,
            unix,
            connecting,
            hot: false,
            misses: 0,
            _guard: guard,
        };
        let interest = interest(stream.unix, false);
        let event = EpollEvent::new(interest, self.streams.next_id());
        self.epoll.add(&stream.socket, event)?;
        Ok(StreamId(self.streams.insert(stream)))
    }

    /// Lets streams of an outdated hot list be tried once more only.
    fn cool(&mut self) {
        for id in &self.hot {
            if let Some(stream) = self.streams.get_mut(id.0) {
                stream.misses = MISSES;
            }
        }
    }

    /// Reports `Ready` for streams in the hot list, a bounded number per call in round robin,
    /// and removes those that had no bytes for a while.
    fn poll_hot(&mut self, events: &mut Vec<StreamEvent>) {
        let tries = self.hot.len().min(HOT_TRIES);
        self.untried = self.hot.len() > tries;
        for _ in 0..tries {
            let Some(id) = self.hot.pop_front() else {
                break;
            };
            let Some(stream) = self.streams.get_mut(id.0) else {
                continue;
            };
            stream.misses += 1;
            stream.hot = stream.misses <= MISSES;
            if stream.hot {
                self.hot.push_back(id);
            }
            // A removed stream is tried a last time: events of it were ignored while it was
            // hot.
            events.push(StreamEvent::Ready(id));
        }
    }

    /// Polls the kernel.
    fn poll_kernel(&mut self, now: Duration, events: &mut Vec<StreamEvent>) {
        let mut ready = std::mem::take(&mut self.events);
        let count = match self.epoll.wait(&mut ready, EpollTimeout::ZERO) {
            Ok(count) => count,
            Err(Errno::EINTR) => 0,
            Err(error) => {
                tracing::error!(%error, "epoll failed");
                0
            }
        };
        for event in ready.iter().take(count) {
            let id = event.data();
            if id == INBOX {
                self.take_arrived(events);
            } else if id & LISTENER != 0 {
                self.queue_accept(id & !LISTENER);
            } else {
                if event.events().contains(EpollFlags::EPOLLERR) {
                    self.read_notifications(StreamId(id));
                }
                self.stream_ready(StreamId(id), events);
            }
        }
        self.events = ready;
        self.accept(now, events);
    }

    /// The error queue of a stream is not empty, or the stream failed.
    #[cold]
    fn read_notifications(&mut self, id: StreamId) {
        if let Some(stream) = self.streams.get_mut(id.0)
            && let Some(pins) = &mut stream.pins
        {
            pins.read_notifications(&stream.socket);
        }
    }

    fn stream_ready(&mut self, id: StreamId, events: &mut Vec<StreamEvent>) {
        let Some(stream) = self.streams.get_mut(id.0) else {
            return;
        };
        if !stream.connecting {
            // Hot streams are tried anyway.
            if !stream.hot {
                events.push(StreamEvent::Ready(id));
            }
            return;
        }
        match stream.socket.take_error() {
            Ok(None) if stream.socket.peer_addr().is_ok() => {
                stream.connecting = false;
                stream.pins = Pins::new(self.zero_copy, &stream.socket);
                events.push(StreamEvent::Connected(id));
            }
            // An event from before the connection was tried.
            Ok(None) => {}
            Ok(Some(error)) | Err(error) => {
                self.close(id);
                events.push(StreamEvent::ConnectFailed(id, error));
            }
        }
    }

    /// Reports the outcome of connects to Unix sockets, and retries those that found the
    /// accept queue full.
    fn poll_connects(&mut self, now: Duration, events: &mut Vec<StreamEvent>) {
        for (id, addr) in self.connects.due(now) {
            let Some(stream) = self.streams.get(id.0) else {
                continue;
            };
            self.connects
                .record(id, addr, socket::connect(&stream.socket, addr));
        }
        for (id, outcome) in self.connects.finished() {
            let Some(stream) = self.streams.get_mut(id.0) else {
                continue;
            };
            match outcome {
                Ok(()) => {
                    stream.connecting = false;
                    events.push(StreamEvent::Connected(id));
                }
                Err(error) => {
                    self.close(id);
                    events.push(StreamEvent::ConnectFailed(id, error));
                }
            }
        }
    }

    fn queue_accept(&mut self, id: u64) {
        if let Some(listener) = self.listeners.get_mut(id)
            && !listener.queued
        {
            listener.queued = true;
            self.accepting.push(id);
        }
    }

    fn accept(&mut self, now: Duration, events: &mut Vec<StreamEvent>) {
        if self.paused.is_some_and(|until| now < until) {
            return;
        }
        self.paused = None;
        for id in std::mem::take(&mut self.accepting) {
            let more = self.accept_from(id, now, events);
            if let Some(listener) = self.listeners.get_mut(id) {
                listener.queued = more;
                if more {
                    self.accepting.push(id);
                }
            }
        }
    }

    /// Returns whether more connections may be pending.
    fn accept_from(&mut self, id: u64, now: Duration, events: &mut Vec<StreamEvent>) -> bool {
        // The owner paces its responses to requests, but much of the work precedes them: a
        // TCP connection with or without an MPA request costs as much.
        let paced = !self.hot.is_empty();
        for _ in 0..(if paced { 1 } else { ACCEPTS }) {
            let Some(listener) = self.listeners.get(id) else {
                return false;
            };
            let own = self.group.as_ref().map(|(_, inbox)| inbox);
            match listener.shared.accept(own) {
                Ok(arrived) => {
                    if paced {
                        self.paused = Some(now.saturating_add(ACCEPT_PACE));
                    }
                    if let Some(arrived) = arrived {
                        self.incoming(id, arrived, events);
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return false,
                Err(error) if is_shortage(&error) => {
                    tracing::error!(
                        %error,
                        "cannot accept connections; raise the limit of open files (`ulimit -n`)"
                    );
                    self.paused = Some(now.saturating_add(PAUSE));
                    return true;
                }
                // The connection failed before it was accepted.
                Err(error) => tracing::debug!(%error, "cannot accept a connection"),
            }
        }
        true
    }

    /// Takes connections that other members of the group accepted for this one.
    fn take_arrived(&mut self, events: &mut Vec<StreamEvent>) {
        let Some((_, inbox)) = &self.group else {
            return;
        };
        for arrived in inbox.take() {
            let at = |(id, one): (u64, &Listener)| {
                (one.shared.acceptor().addr() == arrived.at).then_some(id)
            };
            // A connection that arrived just before the listener was closed is dropped.
            let id = self.listeners.iter().find_map(at);
            if let Some(id) = id {
                self.incoming(id, arrived, events);
            }
        }
    }

    fn incoming(
        &mut self,
        id: u64,
        arrived: Arrived<SocketAcceptor>,
        events: &mut Vec<StreamEvent>,
    ) {
        let (socket, peer) = arrived.connection;
        let unix = arrived.at.socket_addr().is_none();
        socket::prepare(&socket, self.buffer, !unix, &peer);
        match self.adopt(socket, unix, false, arrived.guard) {
            Ok(stream) => events.push(StreamEvent::Incoming {
                listener: ListenerId(id),
                stream,
                peer,
            }),
            Err(error) => tracing::error!(%peer, %error, "cannot add a connection to epoll"),
        }
    }

    /// A call moved bytes: more are likely.
    fn heat(hot: &mut VecDeque<StreamId>, id: StreamId, stream: &mut Stream) {
        stream.misses = 0;
        if !stream.hot {
            stream.hot = true;
            hot.push_back(id);
        }
    }
}

/// The events of a stream to request. On TCP the kernel reports room to send only after a
/// send found too little, so the event can be requested from the start. A Unix socket would
/// get it all the time.
fn interest(unix: bool, wants_send: bool) -> EpollFlags {
    let always = EpollFlags::EPOLLET | EpollFlags::EPOLLIN | EpollFlags::EPOLLRDHUP;
    if unix && !wants_send {
        return always;
    }
    always | EpollFlags::EPOLLOUT
}

/// Whether file descriptors or memory are exhausted.
fn is_shortage(error: &io::Error) -> bool {
    let shortages = [Errno::EMFILE, Errno::ENFILE, Errno::ENOBUFS, Errno::ENOMEM];
    let errno = error.raw_os_error().map(Errno::from_raw);
    errno.is_some_and(|errno| shortages.contains(&errno))
}

fn gone() -> io::Error {
    io::ErrorKind::NotConnected.into()
}

impl Streams for SocketStreams {
    fn name(&self) -> &'static str {
        "iwarp"
    }

    fn listen(&mut self, addr: Address) -> Result<(ListenerId, Address), ListenError> {
        let open = || SocketAcceptor::open(addr, self.buffer, self.socket_mode);
        let shared = match &self.group {
            Some((group, inbox)) => group.listen(&addr, inbox, open)?,
            None => Arc::new(SharedSocket::alone(open()?)),
        };
        let name = LISTENER | self.listeners.next_id();
        let event = EpollEvent::new(EpollFlags::EPOLLIN | EpollFlags::EPOLLET, name);
        let (local, watched) = (
            shared.acceptor().addr(),
            self.epoll.add(shared.acceptor(), event),
        );
        let queued = false;
        let id = ListenerId(self.listeners.insert(Listener { shared, queued }));
        if let Err(errno) = watched {
            self.unlisten(id);
            return Err(ListenError::new(addr, errno.into()));
        }
        Ok((id, local))
    }

    fn unlisten(&mut self, listener: ListenerId) {
        let Some(Listener { shared, .. }) = self.listeners.remove(listener.0) else {
            return;
        };
        if let Some((_, inbox)) = &self.group {
            shared.leave(inbox);
        }
        // Others may keep the socket open. An error means that it was not registered.
        let _ = self.epoll.delete(shared.acceptor());
    }

    fn connect(&mut self, addr: Address) -> Result<StreamId, ConnectError> {
        let failed = |source| ConnectError::Io { addr, source };
        let socket = socket::client(addr, self.buffer).map_err(failed)?;
        let outcome = socket::connect(&socket, addr);
        let unix = addr.socket_addr().is_none();
        // A missing listener is reported by an event, like everything that depends on the
        // other side.
        let outcome = if unix {
            outcome
        } else {
            Ok(outcome.map_err(failed)?)
        };
        let id = self.adopt(socket, unix, true, None).map_err(failed)?;
        self.connects.record(id, addr, outcome);
        Ok(id)
    }

    fn poll(&mut self, now: Duration, events: &mut Vec<StreamEvent>) {
        if !self.connects.is_empty() {
            self.poll_connects(now, events);
        }
        let pause = now.saturating_sub(self.last_poll);
        self.last_poll = now;
        let poll_kernel = pause >= ASLEEP || self.hot.is_empty() || self.hot_polls >= HOT_POLLS;
        if poll_kernel {
            self.hot_polls = 0;
            self.poll_kernel(now, events);
        }
        if pause >= ASLEEP {
            self.cool();
        }
        self.hot_polls += 1;
        self.poll_hot(events);
    }

    fn local_addr(&self, id: StreamId) -> Option<Address> {
        let local = self.streams.get(id.0)?.socket.local_addr().ok()?;
        socket::to_address(&local)
    }

    fn segment(&self, id: StreamId) -> Option<usize> {
        let stream = self.streams.get(id.0).filter(|stream| !stream.unix)?;
        Some(socket::segment(&stream.socket))
    }

    fn recv(&mut self, id: StreamId, bufs: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        let stream = self.streams.get_mut(id.0).ok_or_else(gone)?;
        let received = match bufs {
            [buf] => (&stream.socket).read(buf),
            bufs => (&stream.socket).read_vectored(bufs),
        };
        match received {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {
                // Try again in the next poll.
                Self::heat(&mut self.hot, id, stream);
                Err(io::ErrorKind::WouldBlock.into())
            }
            Ok(count) => {
                Self::heat(&mut self.hot, id, stream);
                Ok(count)
            }
            // Everything was read before: a Unix socket reports this error if its peer closed
            // it, or died, with unread bytes, and the end of the stream otherwise.
            Err(error) if stream.unix && error.kind() == io::ErrorKind::ConnectionReset => Ok(0),
            Err(error) => Err(error),
        }
    }

    fn send(&mut self, id: StreamId, bufs: &[IoSlice<'_>]) -> io::Result<usize> {
        let stream = self.streams.get_mut(id.0).ok_or_else(gone)?;
        zero_copy::send(&stream.socket, bufs, 0)
    }

    fn send_kept(
        &mut self,
        id: StreamId,
        bufs: &[IoSlice<'_>],
        payload: usize,
    ) -> io::Result<Accepted> {
        let stream = self.streams.get_mut(id.0).ok_or_else(gone)?;
        if let Some(pins) = &mut stream.pins {
            return pins.send(&stream.socket, bufs, payload);
        }
        let bytes = zero_copy::send(&stream.socket, bufs, 0)?;
        Ok(Accepted { bytes, kept: 0 })
    }

    fn released(&self, id: StreamId) -> u64 {
        let pins = self
            .streams
            .get(id.0)
            .and_then(|stream| stream.pins.as_deref());
        pins.map_or(u64::MAX, Pins::released)
    }

    fn reap_released(&mut self, id: StreamId) -> u64 {
        self.read_notifications(id);
        self.released(id)
    }

    fn reset(&mut self, id: StreamId) {
        if let Some(stream) = self.streams.get_mut(id.0)
            && let Some(pins) = &mut stream.pins
        {
            pins.reset(&stream.socket);
        }
    }

    fn want_send(&mut self, id: StreamId, want: bool) -> io::Result<()> {
        let Some(stream) = self.streams.get(id.0).filter(|stream| stream.unix) else {
            return Ok(());
        };
        // If there is room by now, the event follows immediately.
        let mut event = EpollEvent::new(interest(true, want), id.0);
        Ok(self.epoll.modify(&stream.socket, &mut event)?)
    }

    fn shutdown_send(&mut self, id: StreamId) {
        if let Some(stream) = self.streams.get(id.0) {
            // Fails if the connection is gone, which recv will report.
            let _ = stream.socket.shutdown(std::net::Shutdown::Write);
        }
    }

    fn close(&mut self, id: StreamId) {
        self.streams.remove(id.0);
    }

    fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.epoll.0.as_fd())
    }

    fn next_deadline(&self) -> Option<Duration> {
        // There is no new event for bytes that are left in a stream that was not tried yet.
        if self.untried {
            return Some(Duration::ZERO);
        }
        // Without a pause, accepting continues immediately.
        let accepting = !self.accepting.is_empty();
        let accepting = accepting.then(|| self.paused.unwrap_or(Duration::ZERO));
        accepting
            .into_iter()
            .chain(self.connects.next_deadline())
            .min()
    }
}
