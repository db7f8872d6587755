//! Links between processes: one Unix socket for each connection, and one for each listener in a
//! folder that the processes share. A thread reads from them, as the device of its process.

use std::collections::{BTreeMap, VecDeque};
use std::io::{self, ErrorKind, Read};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;

use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::socket::{self, AddressFamily, MsgFlags, SockFlag, SockType, UnixAddr};

use crate::connection;
use crate::ids::{CmMessage, Peer};
use crate::message::{Answer, Connect, HEADER, LONGEST, Message, Request};
use crate::remote;
use crate::world::{World, lock};

/// Names a link or a listener. No number is used twice.
pub(crate) type LinkKey = u64;

/// Bytes that are read at once.
const CHUNK: usize = 1 << 17;

/// All links and listeners of this process.
#[derive(Debug, Default)]
pub(crate) struct Links {
    last: LinkKey,
    links: BTreeMap<LinkKey, Link>,
    listeners: BTreeMap<LinkKey, Listener>,
    /// Created for the first link.
    epoll: Option<Arc<Epoll>>,
}

/// One end of a connection between two processes.
#[derive(Debug)]
struct Link {
    stream: UnixStream,
    /// The id that uses it. `None`: not yet, or not any more.
    id: Option<usize>,
    /// Its id was destroyed: it ends when `outbox` is empty.
    closing: bool,
    /// The peer accepted the request of the id.
    replied: bool,
    /// What was read, and how much of that was handled.
    inbox: Vec<u8>,
    handled: usize,
    outbox: VecDeque<u8>,
    /// Requests that wait for the queue pair to be ready.
    parked: Vec<(u64, Request)>,
    /// The number of the next request to execute.
    next: u64,
    /// The last answer said that there is no receive.
    starved: bool,
}

#[derive(Debug)]
struct Listener {
    socket: UnixListener,
    path: PathBuf,
    id: usize,
}

impl Drop for Listener {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Result of a request for a connection.
pub(crate) enum Connected {
    To(LinkKey),
    /// Nobody listens there.
    NoListener(Connect),
    /// The listener does not take the request.
    NoAnswer,
}

impl Links {
    /// Watches a descriptor; returns its number.
    fn watch(&mut self, fd: BorrowedFd<'_>) -> io::Result<LinkKey> {
        let epoll = match &self.epoll {
            Some(epoll) => epoll,
            None => self.epoll.insert(start()?),
        };
        self.last += 1;
        epoll.add(fd, EpollEvent::new(EpollFlags::EPOLLIN, self.last))?;
        Ok(self.last)
    }

    fn add(&mut self, stream: UnixStream, id: Option<usize>) -> io::Result<LinkKey> {
        stream.set_nonblocking(true)?;
        let key = self.watch(stream.as_fd())?;
        let link = Link {
            stream,
            id,
            closing: false,
            replied: false,
            inbox: Vec::new(),
            handled: 0,
            outbox: VecDeque::new(),
            parked: Vec::new(),
            next: 0,
            starved: false,
        };
        self.links.insert(key, link);
        Ok(key)
    }

    /// Sends what is in the outbox, as far as there is room. Returns whether the link may stay.
    fn flush(&mut self, key: LinkKey) -> bool {
        let Some(link) = self.links.get_mut(&key) else {
            return true;
        };
        while !link.outbox.is_empty() {
            let (first, _) = link.outbox.as_slices();
            // A program of C does not expect a signal when its peer is gone.
            match socket::send(link.stream.as_raw_fd(), first, MsgFlags::MSG_NOSIGNAL) {
                Ok(count) => drop(link.outbox.drain(..count)),
                Err(Errno::EINTR) => {}
                Err(Errno::EAGAIN) => break,
                // The peer is gone, which reading tells.
                Err(_) => link.outbox.clear(),
            }
        }
        let mut flags = EpollFlags::EPOLLIN;
        flags.set(EpollFlags::EPOLLOUT, !link.outbox.is_empty());
        if let Some(epoll) = &self.epoll {
            let mut event = EpollEvent::new(flags, key);
            let _ = epoll.modify(&link.stream, &mut event);
        }
        !link.closing || !link.outbox.is_empty()
    }
}

/// Starts the thread that serves all links.
fn start() -> io::Result<Arc<Epoll>> {
    let epoll = Arc::new(Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?);
    let of_thread = Arc::clone(&epoll);
    thread::Builder::new()
        .name("verbs-links".to_owned())
        .spawn(move || serve(&of_thread))?;
    Ok(epoll)
}

fn serve(epoll: &Epoll) {
    let mut ready = [EpollEvent::empty(); 32];
    let mut room = vec![0; CHUNK];
    loop {
        let Ok(count) = epoll.wait(&mut ready, EpollTimeout::NONE) else {
            continue;
        };
        let mut world = lock();
        for event in ready.iter().take(count) {
            look_at(&mut world, event.data(), event.events(), &mut room);
        }
        connection::settle(&mut world);
    }
}

fn look_at(world: &mut World, key: LinkKey, events: EpollFlags, room: &mut [u8]) {
    if let Some(listener) = world.links.listeners.get(&key) {
        if let Ok((stream, _)) = listener.socket.accept() {
            let _ = world.links.add(stream, None);
        }
        return;
    }
    if events.contains(EpollFlags::EPOLLOUT) && !world.links.flush(key) {
        world.links.links.remove(&key);
        return;
    }
    if events.intersects(!EpollFlags::EPOLLOUT) {
        let open = fill(world, key, room);
        while let Some(message) = next_message(world, key) {
            handle(world, key, message);
        }
        if !open {
            lose(world, key);
        }
    }
}

/// Reads from a link. Returns whether it is open.
fn fill(world: &mut World, key: LinkKey, room: &mut [u8]) -> bool {
    let Some(link) = world.links.links.get_mut(&key) else {
        return true;
    };
    link.inbox.drain(..std::mem::take(&mut link.handled));
    match link.stream.read(room) {
        Ok(0) => false,
        Ok(count) => {
            link.inbox.extend(room.iter().take(count));
            true
        }
        Err(error) => matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted),
    }
}

/// The next whole message of a link.
fn next_message(world: &mut World, key: LinkKey) -> Option<Message> {
    let link = world.links.links.get_mut(&key)?;
    let bytes = link.inbox.get(link.handled..)?;
    let header = bytes.first_chunk::<HEADER>()?;
    let len = u32::from_le_bytes(*header) as usize;
    let body = bytes.get(HEADER..HEADER + len);
    if len <= LONGEST && body.is_none() {
        return None;
    }
    let message = body.and_then(Message::parse);
    if message.is_none() {
        world.violation("a link carries bytes that are no message".to_owned());
        lose(world, key);
        return None;
    }
    link.handled += HEADER + len;
    message
}

fn handle(world: &mut World, key: LinkKey, message: Message) {
    if let Message::Connect(request) = message {
        connection::arrive(world, Peer::There(key), request);
        return;
    }
    let Some(link) = world.links.links.get_mut(&key) else {
        return;
    };
    let Some(id) = link.id else { return };
    if let Message::Cm(message) = message {
        link.replied |= matches!(message, CmMessage::Reply { .. });
        connection::hear(world, id, message);
        return;
    }
    let Some(qp) = world.ids.ids.get(&id).and_then(|id| id.qp) else {
        // Nobody answers for a queue pair that does not exist.
        return;
    };
    match message {
        Message::Request(number, request) => remote::requested(world, key, qp, (number, request)),
        Message::Answer(number, answer) => remote::answered(world, qp, number, answer),
        Message::Ready => remote::ready(world, qp),
        Message::Connect(_) | Message::Cm(_) => {}
    }
}

/// The process at the other end is gone, or closed its end.
fn lose(world: &mut World, key: LinkKey) {
    let Some(link) = world.links.links.remove(&key) else {
        return;
    };
    let Some(id) = link.id else { return };
    let peer = world.ids.ids.get(&id).and_then(|id| id.peer);
    if peer == Some(Peer::There(key)) {
        connection::lose_peer(world, id, link.replied);
    }
}

/// The place of the listener for an address.
fn path_of(folder: &Path, addr: SocketAddr) -> PathBuf {
    folder.join(addr.to_string())
}

/// Whether a process listens at `path`.
fn is_served(path: &Path) -> bool {
    UnixStream::connect(path).is_ok()
}

/// Listens for requests to an id.
pub(crate) fn listen(
    world: &mut World,
    folder: &Path,
    id: usize,
    addr: SocketAddr,
) -> io::Result<()> {
    let path = path_of(folder, addr);
    let socket = match UnixListener::bind(&path) {
        // A process that was killed leaves its socket.
        Err(error) if error.kind() == ErrorKind::AddrInUse && !is_served(&path) => {
            std::fs::remove_file(&path)?;
            UnixListener::bind(&path)?
        }
        other => other?,
    };
    socket.set_nonblocking(true)?;
    let key = world.links.watch(socket.as_fd())?;
    let listener = Listener { socket, path, id };
    world.links.listeners.insert(key, listener);
    Ok(())
}

/// Sends a request for a connection to the listener of its address.
pub(crate) fn connect(world: &mut World, folder: &Path, id: usize, request: Connect) -> Connected {
    let any = match request.to {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let wildcard = SocketAddr::new(any, request.to.port());
    let stream = [request.to, wildcard]
        .into_iter()
        .find_map(|addr| connect_to(&path_of(folder, addr)).transpose());
    let link = match stream {
        None => return Connected::NoListener(request),
        Some(stream) => stream.and_then(|stream| world.links.add(stream, Some(id))),
    };
    let link = match link {
        Ok(link) => link,
        Err(error) => {
            // Its listener is busy, which is no misuse.
            if error.kind() != ErrorKind::WouldBlock {
                world.violation(format!("no link to {}: {error}", request.to));
            }
            return Connected::NoAnswer;
        }
    };
    send(world, link, &Message::Connect(request));
    Connected::To(link)
}

/// Connects to a listener without blocking. `None` if there is none.
fn connect_to(path: &Path) -> io::Result<Option<UnixStream>> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let fd = socket::socket(AddressFamily::Unix, SockType::Stream, flags, None)?;
    let addr = UnixAddr::new(path)?;
    match socket::connect(fd.as_raw_fd(), &addr).map_err(io::Error::from) {
        Ok(()) => Ok(Some(fd.into())),
        Err(error)
            if matches!(
                error.kind(),
                ErrorKind::NotFound | ErrorKind::ConnectionRefused
            ) =>
        {
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

/// Sends a message over a link. It is lost if the peer is gone.
pub(crate) fn send(world: &mut World, key: LinkKey, message: &Message) {
    let Some(link) = world.links.links.get_mut(&key) else {
        return;
    };
    link.outbox.extend(message.to_bytes());
    world.links.flush(key);
}

/// The id for the request that arrived over a link.
pub(crate) fn assign(world: &mut World, key: LinkKey, id: usize) {
    if let Some(link) = world.links.links.get_mut(&key) {
        link.id = Some(id);
    }
}

/// An id is destroyed, with its listener or its end of a link. The other end of a link learns
/// that, unless the device is removed: then it gets no answers, and no end.
pub(crate) fn leave(world: &mut World, id: usize, removed: bool) {
    let links = &mut world.links;
    links.listeners.retain(|_, listener| listener.id != id);
    let of_id = |(key, link): (&LinkKey, &Link)| (link.id == Some(id)).then_some(*key);
    let Some(key) = links.links.iter().find_map(of_id) else {
        return;
    };
    if let Some(link) = links.links.get_mut(&key) {
        link.id = None;
        link.closing = !removed;
    }
    if !links.flush(key) {
        links.links.remove(&key);
    }
}

/// Keeps a request until [`take_parked`].
pub(crate) fn park(world: &mut World, key: LinkKey, number: u64, request: Request) {
    if let Some(link) = world.links.links.get_mut(&key) {
        link.parked.push((number, request));
    }
}

/// The requests that were kept.
pub(crate) fn take_parked(world: &mut World, key: LinkKey) -> Vec<(u64, Request)> {
    let link = world.links.links.get_mut(&key);
    link.map_or_else(Vec::new, |link| std::mem::take(&mut link.parked))
}

/// Whether a request is the next one to execute. Others follow one that found no receive.
pub(crate) fn is_next(world: &World, key: LinkKey, number: u64) -> bool {
    let link = world.links.links.get(&key);
    link.is_some_and(|link| link.next == number)
}

/// Answers the next request.
pub(crate) fn answer(world: &mut World, key: LinkKey, number: u64, answer: Answer) {
    let Some(link) = world.links.links.get_mut(&key) else {
        return;
    };
    link.starved = answer == Answer::NotReady;
    if !link.starved {
        link.next += 1;
    }
    send(world, key, &Message::Answer(number, answer));
}

/// Tells a peer whose message found no receive that there is one.
pub(crate) fn say_ready(world: &mut World, key: LinkKey) {
    let Some(link) = world.links.links.get_mut(&key) else {
        return;
    };
    if std::mem::take(&mut link.starved) {
        send(world, key, &Message::Ready);
    }
}

/// The folder of the listeners on a device, or on all if an id has no device.
pub(crate) fn folder_of(world: &World, device: Option<usize>) -> Option<PathBuf> {
    match device {
        Some(device) => world.devices.get(device)?.links.clone(),
        None => world.devices.iter().find_map(|device| device.links.clone()),
    }
}

/// Whether a listener may have an address already, of this process or another one.
pub(crate) fn is_taken(world: &World, device: Option<usize>, addr: SocketAddr) -> bool {
    folder_of(world, device).is_some_and(|folder| path_of(&folder, addr).exists())
}
