//! Polling: the rings of active connections, and the kernel for all others.

use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::epoll::{EpollEvent, EpollFlags, EpollTimeout};
use nvmeof_rdma::{CloseReason, Event, ListenerId, QpId};
use nvmeof_rdma_soft::group::Acceptor;

use super::{Core, Shm};
use crate::conn::{Conn, Phase};
use crate::fault::{codes, fault};
use crate::group::SharedListener;
use crate::message::{Message, ROOM};

/// Data of epoll: flag of a listener.
pub(super) const LISTENER: u64 = 1 << 63;
/// Data of epoll: the mailbox with connections that other members of the group accepted.
pub(super) const MAILBOX: u64 = u64::MAX;
/// Maximum events from the kernel per poll.
const EVENTS: usize = 64;
/// Maximum connections accepted per poll and listener.
const ACCEPTS: usize = 16;
/// Maximum messages received per poll and connection.
const MESSAGES: usize = 16;
/// Maximum active connections checked per poll.
const HOT_TRIES: usize = 64;
/// While there are active connections, the kernel is polled at this interval, or after this
/// many polls if they take longer.
const ASK_EVERY: Duration = Duration::from_micros(20);
const HOT_POLLS: u32 = 256;
/// Pause of accepting when there are no file descriptors left.
const PAUSE: Duration = Duration::from_millis(100);

impl Shm {
    /// Checks active connections, a bounded number per call, in round robin.
    pub(super) fn poll_hot(&mut self, events: &mut Vec<Event>) -> bool {
        let mut worked = false;
        for _ in 0..self.core.hot.len().min(HOT_TRIES) {
            let Some(qp) = self.core.hot.pop_front() else {
                break;
            };
            self.with(qp, |core, conn| {
                worked |= core.work(conn, events);
                let hot = core.worked_lately(conn) || !core.rests(conn, events);
                core.keep_hot(conn, hot);
            });
        }
        worked
    }

    /// Polls the kernel for events on sockets.
    pub(super) fn poll_kernel(&mut self, events: &mut Vec<Event>) -> bool {
        self.resume();
        let mut ready = std::mem::take(&mut self.core.ready);
        ready.resize(EVENTS, EpollEvent::empty());
        let count = match self.core.epoll.wait(&mut ready, EpollTimeout::ZERO) {
            Ok(count) => count,
            Err(Errno::EINTR) => 0,
            Err(error) => {
                tracing::error!(%error, "epoll failed");
                0
            }
        };
        let mut worked = false;
        for name in ready.iter().take(count).map(EpollEvent::data) {
            if name == MAILBOX {
                worked |= self.take_mail();
            } else if name & LISTENER == 0 {
                let did = self.with(QpId(name), |core, conn| {
                    let received = core.receive_messages(conn, events);
                    core.work(conn, events) || received
                });
                worked |= did.unwrap_or(false);
            } else {
                worked |= self.accept_from(name);
            }
        }
        self.core.ready = ready;
        worked
    }

    /// Accepts pending connections. Returns whether there were any.
    fn accept_from(&mut self, name: u64) -> bool {
        for taken in 0..ACCEPTS {
            let Some(listener) = self.listeners.get(name & !LISTENER) else {
                return taken > 0;
            };
            let own = self.group.as_ref().map(|(_, own)| own);
            match listener.accept(own) {
                Ok(Some(arrived)) => self.incoming(ListenerId(name), arrived),
                Ok(None) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return taken > 0,
                Err(error) => {
                    tracing::error!(
                        %error,
                        "cannot accept connections; raise the limit of open files (`ulimit -n`)"
                    );
                    self.pause();
                    return taken > 0;
                }
            }
        }
        true
    }

    /// Takes connections that other members of the group accepted for this one.
    fn take_mail(&mut self) -> bool {
        let Some((_, own)) = &self.group else {
            return false;
        };
        let mail = own.take();
        let any = !mail.is_empty();
        for arrived in mail {
            let at = |(name, shared): (u64, &Arc<SharedListener>)| {
                (shared.acceptor().addr() == arrived.at).then_some(name)
            };
            // A connection that arrived just before the listener was closed is dropped.
            let name = self.listeners.iter().find_map(at);
            if let Some(name) = name {
                self.incoming(ListenerId(LISTENER | name), arrived);
            }
        }
        any
    }

    /// Pauses accepting: the listeners stay ready and would cause busy polling.
    fn pause(&mut self) {
        self.core.paused = Some(self.core.now.saturating_add(PAUSE));
        self.watch_listeners(EpollFlags::empty());
    }

    fn resume(&mut self) {
        if self.core.paused.is_some_and(|until| until <= self.core.now) {
            self.core.paused = None;
            self.watch_listeners(EpollFlags::EPOLLIN);
        }
    }

    fn watch_listeners(&mut self, flags: EpollFlags) {
        for (name, listener) in self.listeners.iter() {
            let mut event = EpollEvent::new(flags, LISTENER | name);
            if let Err(error) = self.core.epoll.modify(listener.acceptor(), &mut event) {
                tracing::error!(%error, "cannot add a listener to epoll");
            }
        }
    }
}

impl Core {
    /// Registers a socket with epoll for input.
    pub(super) fn watch(&self, socket: &impl AsFd, name: u64) -> io::Result<()> {
        let event = EpollEvent::new(EpollFlags::EPOLLIN, name);
        Ok(self.epoll.add(socket, event)?)
    }

    /// Removes a socket from epoll.
    pub(super) fn unwatch(&self, socket: &impl AsFd) {
        // An error means that it was not registered.
        let _ = self.epoll.delete(socket);
    }

    /// Whether this poll asks the kernel: not each one while there are active connections,
    /// because that takes longer than checking them.
    pub(super) fn asks_kernel(&mut self) -> bool {
        self.hot_polls += 1;
        let late = self.now.saturating_sub(self.asked) >= ASK_EVERY;
        let asks = self.hot.is_empty() || late || self.hot_polls >= HOT_POLLS;
        if asks {
            self.hot_polls = 0;
            self.asked = self.now;
        }
        asks
    }

    /// Processes a connection. Returns whether there was anything to do.
    pub(super) fn work(&mut self, conn: &mut Conn, events: &mut Vec<Event>) -> bool {
        let worked = match conn.phase {
            // No process was listening.
            Phase::AwaitReply => false,
            Phase::Running | Phase::Ending => {
                match conn.exchange(&mut self.keys, &mut self.shared_regions, events) {
                    Ok(worked) => worked,
                    Err(fault) => {
                        self.end_fault(conn, fault, events);
                        return true;
                    }
                }
            }
            Phase::AwaitRequest
            | Phase::Requested
            | Phase::Prepared
            | Phase::Busy
            | Phase::Gone => return false,
        };
        if worked {
            conn.worked = self.now;
        }
        if conn.phase == Phase::Ending {
            if !conn.outbound.is_idle() {
                return worked;
            }
            conn.send(&Message::Bye);
            self.finish(conn, CloseReason::Local, events);
            return true;
        }
        // The peer closed, and its ring is empty.
        if let Some(reason) = conn.reason.take_if(|_| !worked) {
            self.finish(conn, reason, events);
            return true;
        }
        worked
    }

    /// Keeps a connection in the list of active ones, or leaves it out.
    pub(super) fn keep_hot(&mut self, conn: &mut Conn, hot: bool) {
        conn.hot = hot;
        if hot {
            self.hot.push_back(conn.id);
        }
    }

    fn worked_lately(&self, conn: &Conn) -> bool {
        conn.runs() && self.now.saturating_sub(conn.worked) < self.config.spin
    }

    /// Requests wake-ups from the peer of a connection. False if there is something to do
    /// already.
    pub(super) fn rests(&mut self, conn: &mut Conn, events: &mut Vec<Event>) -> bool {
        if !conn.runs() {
            return true;
        }
        let Some(channel) = &mut conn.channel else {
            return true;
        };
        let waits = !conn.outbound.is_idle();
        let room = waits.then(|| conn.outbound.blocked.unwrap_or(0));
        channel.rest(room).unwrap_or_else(|fault| {
            self.end_fault(conn, fault, events);
            true
        })
    }

    /// Receives messages on the socket. Returns whether there were any.
    fn receive_messages(&mut self, conn: &mut Conn, events: &mut Vec<Event>) -> bool {
        let mut room = [0; ROOM];
        for taken in 0..MESSAGES {
            let Some(link) = &conn.link else {
                return taken > 0;
            };
            let received = if conn.phase == Phase::AwaitRequest || conn.peer_memory.is_some() {
                link.receive_memory(&mut room)
            } else {
                let message = link.receive(&mut room);
                message.map(|message| message.map(|message| (message, None)))
            };
            match received {
                Ok(Some((bytes, fd))) if conn.phase == Phase::AwaitRequest => {
                    self.on_request(conn, bytes, fd.as_ref(), events);
                }
                // Only its end matters now.
                Ok(Some(_)) if conn.phase == Phase::Busy => {}
                Ok(Some((bytes, fd))) => match Message::parse(bytes) {
                    Ok(Message::Region { number, len }) => {
                        let fd = fd.as_ref().map(AsFd::as_fd);
                        if let Err(fault) = self.on_region(conn, number, len, fd) {
                            self.end_fault(conn, fault, events);
                        }
                    }
                    Ok(message) => self.on_message(conn, message, events),
                    Err(fault) => self.end_fault(conn, fault, events),
                },
                Ok(None) => {
                    self.end_of_link(conn, None, events);
                    return true;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return taken > 0,
                Err(error) => {
                    self.end_of_link(conn, Some(error), events);
                    return true;
                }
            }
        }
        true
    }

    fn on_message(&mut self, conn: &mut Conn, message: Message, events: &mut Vec<Event>) {
        match (conn.phase, message) {
            (Phase::AwaitReply, reply) => self.on_reply(conn, reply, events),
            (Phase::Running | Phase::Ending, Message::Wake) => self.heat(conn),
            (Phase::Running, Message::Bye) => self.peer_ends(conn, CloseReason::Peer, events),
            (Phase::Running, Message::Fault(fault)) => {
                self.peer_ends(conn, CloseReason::Terminated(fault), events);
            }
            // The peer does not read records any more.
            (Phase::Ending, Message::Bye | Message::Fault(_)) => {
                self.finish(conn, CloseReason::Local, events);
            }
            (_, message) => {
                let text = format!("a message arrived that is invalid in this state: {message:?}");
                self.end_fault(conn, fault(codes::MESSAGE, text), events);
            }
        }
    }
}
