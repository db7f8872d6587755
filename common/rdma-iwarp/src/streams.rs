//! Connections as byte streams: readiness, accepting, reading, writing.

use std::collections::VecDeque;
use std::io::{self, IoSlice, IoSliceMut, Read};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::socket::MsgFlags;
use nvmeof_rdma::{ACCEPT_PACE, Address, ConnectError, Counted, ListenError, ListenerId};
use nvmeof_rdma_soft::group::{Acceptor, Arrived};
use nvmeof_rdma_soft::{Slots, StreamEvent, StreamId, Streams};
use socket2::Socket;

use crate::acceptor::{EventWaker, SocketAcceptor, SocketGroup, SocketInbox, SocketMeeting};
use crate::calling::Calls;
use crate::socket;

/// Events taken from the kernel per poll.
const EVENTS: usize = 64;
/// Connections accepted per poll and listener.
const ACCEPTS: usize = 16;
/// Streams of the hot list that are tried per poll.
const HOT_TRIES: usize = 64;
/// Polls that try the streams in the hot list for every one that asks the
/// kernel about all.
const HOT_POLLS: u32 = 16;
/// Tries without a byte after which a stream is not hot any more.
const MISSES: u8 = 8;
/// Who did not poll for so long was asleep, and the kernel knows what woke him.
const ASLEEP: Duration = Duration::from_micros(200);
/// How long accepting pauses when there are no descriptors left.
const PAUSE: Duration = Duration::from_millis(100);
/// In epoll's data: this names a listener.
const LISTENER: u64 = 1 << 63;
/// In epoll's data: connections that others of the group took for us.
const INBOX: u64 = u64::MAX;

/// Connections and listeners of TCP and of Unix sockets, watched by an epoll
/// instance of their own.
///
/// Streams are watched edge-triggered, so that bytes nobody asks for do not
/// keep `poll` busy. Those that moved bytes lately are in the *hot list* and
/// are tried without asking the kernel first: under load that saves a system
/// call per poll, and idle streams cost none.
#[derive(Debug)]
pub struct SocketStreams {
    epoll: Epoll,
    /// Socket buffer size in bytes, unless it is left to the kernel.
    buffer: Option<usize>,
    /// Permissions of the files of Unix sockets.
    socket_mode: u32,
    /// With whom it shares its listeners; `None` when it is alone.
    group: Option<(Arc<SocketGroup>, Arc<SocketInbox>)>,
    listeners: Slots<Listener>,
    streams: Slots<Stream>,
    calls: Calls,
    hot: VecDeque<StreamId>,
    /// Whether the last poll left hot streams untried.
    untried: bool,
    hot_polls: u32,
    last_poll: Duration,
    /// Listeners that may have more connections waiting.
    accepting: Vec<u64>,
    /// Until when accepting pauses.
    paused: Option<Duration>,
    events: Vec<EpollEvent>,
}

#[derive(Debug)]
struct Listener {
    meeting: Arc<SocketMeeting>,
    /// In `accepting`.
    queued: bool,
}

#[derive(Debug)]
struct Stream {
    socket: Socket,
    /// Whether it is a Unix socket. Then the kernel tells of room to send only
    /// when it is asked to: it has news of that whenever the peer receives.
    unix: bool,
    connecting: bool,
    hot: bool,
    /// Tries in a row that brought nothing.
    misses: u8,
    /// Has it count among the connections of a group.
    _counted: Option<Counted>,
}

impl SocketStreams {
    /// No streams yet. `buffer` is what each socket gets to send and to
    /// receive, in bytes; `None` leaves that to the kernel. `socket_mode` are the
    /// permissions of the files of Unix sockets.
    ///
    /// # Errors
    /// When the kernel gives no epoll instance.
    pub fn new(buffer: Option<usize>, socket_mode: u32) -> io::Result<Self> {
        Ok(Self {
            epoll: Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?,
            buffer,
            socket_mode,
            group: None,
            listeners: Slots::new(),
            streams: Slots::new(),
            calls: Calls::default(),
            hot: VecDeque::new(),
            untried: false,
            hot_polls: 0,
            last_poll: Duration::ZERO,
            accepting: Vec::new(),
            paused: None,
            events: vec![EpollEvent::empty(); EVENTS],
        })
    }

    /// Becomes a member of a group: what it listens on from now on it shares
    /// with those members that listen there too.
    ///
    /// # Errors
    /// When the kernel gives no eventfd.
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
        counted: Option<Counted>,
    ) -> io::Result<StreamId> {
        let stream = Stream {
            socket,
            unix,
            connecting,
            hot: false,
            misses: 0,
            _counted: counted,
        };
        let interest = interest(stream.unix, false);
        let event = EpollEvent::new(interest, self.streams.next_id());
        self.epoll.add(&stream.socket, event)?;
        Ok(StreamId(self.streams.insert(stream)))
    }

    /// What was hot long ago is tried once more and no longer.
    fn cool(&mut self) {
        for id in &self.hot {
            if let Some(stream) = self.streams.get_mut(id.0) {
                stream.misses = MISSES;
            }
        }
    }

    /// Says `Ready` for streams in the hot list, a bounded number in turn, and
    /// drops those from it that brought nothing for a while.
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
            // One that cools is tried a last time: what the kernel said of it
            // while it was hot was passed over.
            events.push(StreamEvent::Ready(id));
        }
    }

    /// Asks the kernel.
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
                self.stream_ready(StreamId(id), events);
            }
        }
        self.events = ready;
        self.accept(now, events);
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

    /// Tells what became of calls to Unix sockets, and calls again where there
    /// was no room.
    fn poll_calls(&mut self, now: Duration, events: &mut Vec<StreamEvent>) {
        for (id, addr) in self.calls.due(now) {
            let Some(stream) = self.streams.get(id.0) else {
                continue;
            };
            self.calls
                .made(id, addr, socket::call(&stream.socket, addr));
        }
        for (id, outcome) in self.calls.answered() {
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

    /// Returns whether more connections may be waiting.
    fn accept_from(&mut self, id: u64, now: Duration, events: &mut Vec<StreamEvent>) -> bool {
        // Whoever answers requests paces its answers, which come too late for what is done
        // before: a TCP connection and its MPA request, or none, cost as much.
        let paced = !self.hot.is_empty();
        for _ in 0..(if paced { 1 } else { ACCEPTS }) {
            let Some(listener) = self.listeners.get(id) else {
                return false;
            };
            let own = self.group.as_ref().map(|(_, inbox)| inbox);
            match listener.meeting.accept(own) {
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
                Err(error) => tracing::debug!(%error, "a connection was not accepted"),
            }
        }
        true
    }

    /// Takes connections that others of the group took for us.
    fn take_arrived(&mut self, events: &mut Vec<StreamEvent>) {
        let Some((_, inbox)) = &self.group else {
            return;
        };
        for arrived in inbox.take() {
            let at = |(id, one): (u64, &Listener)| {
                (one.meeting.acceptor().addr() == arrived.at).then_some(id)
            };
            // What arrived just before we stopped to listen is closed.
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
        let (socket, peer) = arrived.visitor;
        let unix = arrived.at.socket_addr().is_none();
        socket::prepare(&socket, self.buffer, !unix, &peer);
        match self.adopt(socket, unix, false, arrived.counted) {
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

/// What the kernel is to tell of a stream. Of room to send it tells with TCP
/// only after a send found too little, so that nobody has to ask for that
/// first. A Unix socket that is to send has it told all the time.
fn interest(unix: bool, wants_send: bool) -> EpollFlags {
    let always = EpollFlags::EPOLLET | EpollFlags::EPOLLIN | EpollFlags::EPOLLRDHUP;
    if unix && !wants_send {
        return always;
    }
    always | EpollFlags::EPOLLOUT
}

/// Whether there are no descriptors or no memory for one more.
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
        let meeting = match &self.group {
            Some((group, inbox)) => group.listen(&addr, inbox, open)?,
            None => Arc::new(SocketMeeting::alone(open()?)),
        };
        let name = LISTENER | self.listeners.next_id();
        let event = EpollEvent::new(EpollFlags::EPOLLIN | EpollFlags::EPOLLET, name);
        let (local, watched) = (
            meeting.acceptor().addr(),
            self.epoll.add(meeting.acceptor(), event),
        );
        let queued = false;
        let id = ListenerId(self.listeners.insert(Listener { meeting, queued }));
        if let Err(errno) = watched {
            self.unlisten(id);
            return Err(ListenError::new(addr, errno.into()));
        }
        Ok((id, local))
    }

    fn unlisten(&mut self, listener: ListenerId) {
        let Some(Listener { meeting, .. }) = self.listeners.remove(listener.0) else {
            return;
        };
        if let Some((_, inbox)) = &self.group {
            meeting.leave(inbox);
        }
        // Others may keep the socket open. An error says that it was not there.
        let _ = self.epoll.delete(meeting.acceptor());
    }

    fn connect(&mut self, addr: Address) -> Result<StreamId, ConnectError> {
        let failed = |source| ConnectError::Io { addr, source };
        let socket = socket::caller(addr, self.buffer).map_err(failed)?;
        let called = socket::call(&socket, addr);
        let unix = addr.socket_addr().is_none();
        // That nobody is there is told by an event, like everything that
        // depends on the other side.
        let called = if unix {
            called
        } else {
            Ok(called.map_err(failed)?)
        };
        let id = self.adopt(socket, unix, true, None).map_err(failed)?;
        self.calls.made(id, addr, called);
        Ok(id)
    }

    fn poll(&mut self, now: Duration, events: &mut Vec<StreamEvent>) {
        if !self.calls.is_empty() {
            self.poll_calls(now, events);
        }
        let pause = now.saturating_sub(self.last_poll);
        self.last_poll = now;
        let asks = pause >= ASLEEP || self.hot.is_empty() || self.hot_polls >= HOT_POLLS;
        if asks {
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
            // All that came was read before: a Unix socket says so when its peer
            // closed it, or died, with bytes of ours unread, and otherwise ends.
            Err(error) if stream.unix && error.kind() == io::ErrorKind::ConnectionReset => Ok(0),
            Err(error) => Err(error),
        }
    }

    fn send(&mut self, id: StreamId, bufs: &[IoSlice<'_>]) -> io::Result<usize> {
        let stream = self.streams.get_mut(id.0).ok_or_else(gone)?;
        // A peer that is gone is an error here, not a signal.
        let flags = MsgFlags::MSG_NOSIGNAL.bits();
        match stream.socket.send_vectored_with_flags(bufs, flags) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(0),
            sent => sent,
        }
    }

    fn want_send(&mut self, id: StreamId, want: bool) -> io::Result<()> {
        let Some(stream) = self.streams.get(id.0).filter(|stream| stream.unix) else {
            return Ok(());
        };
        // If there is room by now, the kernel tells so at once.
        let mut event = EpollEvent::new(interest(true, want), id.0);
        Ok(self.epoll.modify(&stream.socket, &mut event)?)
    }

    fn shutdown_send(&mut self, id: StreamId) {
        if let Some(stream) = self.streams.get(id.0) {
            // Fails when the connection is gone, which recv will say.
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
        // The kernel does not tell again of bytes that are left in a stream
        // whose turn did not come.
        if self.untried {
            return Some(Duration::ZERO);
        }
        // Without a pause, accepting goes on at once.
        let accepting = !self.accepting.is_empty();
        let accepting = accepting.then(|| self.paused.unwrap_or(Duration::ZERO));
        accepting
            .into_iter()
            .chain(self.calls.next_deadline())
            .min()
    }
}
