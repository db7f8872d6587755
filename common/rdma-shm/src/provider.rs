//! The provider: implements the contract of `nvmeof-rdma` over shared memory.

mod connecting;
mod ending;
mod passing;
mod polling;
#[cfg(test)]
mod tests;

use std::collections::{BTreeSet, VecDeque};
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent};
use nvmeof_memory::{Buf, Region};
use nvmeof_rdma::{
    Address, ConnectError, Event, ExposeError, Inline, Limits, ListenError, ListenerId, PostError,
    Posted, PrivateData, Provider, QpConfig, QpId, QpOwner, RateLimiter, Refused, RemoteKey,
    RemoteSlice, Rights, Steering, Tag, Work,
};
use nvmeof_rdma_soft::group::Acceptor;
use nvmeof_rdma_soft::{KeyTable, Slots};

use crate::ShmConfig;
use crate::conn::{Conn, Phase};
use crate::grant::Grant;
use crate::group::{Group, Mailbox, SharedListener, Waker};
use crate::link::Link;
use crate::listening::Listener;
use crate::shared_regions::SharedRegions;

/// RDMA between processes on one host.
#[derive(Debug)]
pub struct Shm {
    core: Core,
    conns: Slots<Box<Conn>>,
    listeners: Slots<Arc<SharedListener>>,
    /// The group with which it shares its listeners; `None` without a group.
    group: Option<(Arc<Group>, Arc<Mailbox>)>,
}

/// State shared by the connections.
#[derive(Debug)]
struct Core {
    config: ShmConfig,
    epoll: Epoll,
    /// Empty; its memory is reused.
    ready: Vec<EpollEvent>,
    keys: KeyTable,
    /// Local memory that peers may access.
    shared_regions: SharedRegions,
    /// Number of connections that are not accepted yet, and, oldest first, those that may not
    /// have sent a request.
    pending: u32,
    silent: VecDeque<QpId>,
    /// Connections with work posted since the last submit.
    listed: Vec<QpId>,
    /// Connections that are checked in each poll, the number of polls since the kernel was
    /// asked, and when that was.
    hot: VecDeque<QpId>,
    hot_polls: u32,
    asked: Duration,
    deadlines: BTreeSet<(Duration, QpId)>,
    /// Until when accepting pauses.
    paused: Option<Duration>,
    /// Events of calls other than poll.
    later: Vec<Event>,
    /// Limits log lines about peers that were not reported to the owner yet.
    log: RateLimiter,
    /// Limits log lines about the data path of new connections.
    data_paths: RateLimiter,
    now: Duration,
}

/// Work requests that are published to the peer together. If a whole iteration were published
/// at once, each side would wait for the other one's iteration; this way both work in
/// parallel.
const TOGETHER: usize = 8;

impl Shm {
    /// Creates a provider. Its memory keys start at a random number.
    ///
    /// # Errors
    /// When the kernel cannot create an epoll instance.
    pub fn new(config: ShmConfig) -> io::Result<Self> {
        // The standard library's hasher keys come from the kernel's random
        // numbers.
        let seed = RandomState::new().hash_one(std::process::id());
        let core = Core {
            epoll: Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?,
            ready: Vec::new(),
            keys: KeyTable::new(config.limits.max_exposed, seed),
            shared_regions: SharedRegions::default(),
            pending: 0,
            silent: VecDeque::new(),
            listed: Vec::new(),
            hot: VecDeque::new(),
            hot_polls: 0,
            asked: Duration::ZERO,
            deadlines: BTreeSet::new(),
            paused: None,
            later: Vec::new(),
            log: RateLimiter::default(),
            // One line per queue; hosts connect all their queues in a burst.
            data_paths: RateLimiter::of(100),
            now: Duration::ZERO,
            config,
        };
        Ok(Self {
            core,
            conns: Slots::new(),
            listeners: Slots::new(),
            group: None,
        })
    }

    /// Creates a provider for each member of `steering`. Their owners let all of them listen
    /// on the same addresses, and each connection goes to one of them.
    ///
    /// # Errors
    /// When the kernel cannot create file descriptors.
    pub fn group(config: &ShmConfig, steering: &Steering) -> io::Result<Vec<Self>> {
        let group = Group::new(steering.clone());
        let member = |number| {
            let mut member = Self::new(config.clone())?;
            let mailbox = Mailbox::new(number, config.limits.max_pending, Waker::new()?);
            member.core.watch(mailbox.waker(), polling::MAILBOX)?;
            member.group = Some((Arc::clone(&group), mailbox));
            Ok(member)
        };
        (0..steering.members()).map(member).collect()
    }

    /// Runs `work` on one connection; `None` if it is closed.
    fn with<R>(&mut self, qp: QpId, work: impl FnOnce(&mut Core, &mut Conn) -> R) -> Option<R> {
        let conn = self.conns.get_mut(qp.0)?;
        let result = work(&mut self.core, conn);
        if conn.phase == Phase::Gone {
            self.conns.remove(qp.0);
        }
        Some(result)
    }

    /// Runs `work` on one connection; its events are reported by the next poll.
    fn with_later<R>(
        &mut self,
        qp: QpId,
        work: impl FnOnce(&mut Core, &mut Conn, &mut Vec<Event>) -> R,
    ) -> Option<R> {
        let mut later = std::mem::take(&mut self.core.later);
        let result = self.with(qp, |core, conn| work(core, conn, &mut later));
        self.core.later = later;
        result
    }

    /// Publishes posted work to the peer of `qp`.
    fn transmit(&mut self, qp: QpId) {
        let Some(conn) = self.conns.get_mut(qp.0) else {
            return;
        };
        self.core.heat(conn);
        if let Err(fault) = conn.transmit(&mut self.core.keys) {
            self.with_later(qp, |core, conn, later| core.end_fault(conn, fault, later));
        }
    }

    #[inline(never)]
    fn transmit_listed(&mut self) {
        let mut listed = std::mem::take(&mut self.core.listed);
        for qp in listed.drain(..) {
            if let Some(conn) = self.conns.get_mut(qp.0) {
                conn.listed = false;
            }
            self.transmit(qp);
        }
        self.core.listed = listed;
    }
}

impl Drop for Shm {
    /// Memory that a peer uses at this moment must not be reused.
    fn drop(&mut self) {
        for (_, conn) in self.conns.iter() {
            for key in self.core.still_used(conn) {
                if let Ok(buf) = self.core.keys.withdraw(RemoteKey(key)) {
                    std::mem::forget(buf);
                }
            }
        }
    }
}

impl Core {
    fn is_registered(&self, buf: &Buf) -> bool {
        self.shared_regions.find(buf).is_some()
    }

    /// Logs a line about a peer that was not reported to the owner yet. It is rate limited,
    /// because any process can cause such lines.
    fn log_refusal(&mut self, link: Option<&Link>, what: &dyn std::fmt::Display) {
        if let Some(left_out) = self.log.ask(self.now) {
            let peer = link.and_then(|link| link.peer().ok());
            let peer = peer.map(tracing::field::display);
            tracing::warn!(peer, left_out, "connection refused: {what}");
        }
    }

    /// Adds it to the connections whose work the next submit publishes.
    fn list(&mut self, conn: &mut Conn) {
        if !conn.listed {
            conn.listed = true;
            self.listed.push(conn.id);
        }
    }

    fn set_deadline(&mut self, conn: &mut Conn, deadline: Option<Duration>) {
        if let Some(old) = conn.deadline.take() {
            self.deadlines.remove(&(old, conn.id));
        }
        if let Some(new) = deadline {
            self.deadlines.insert((new, conn.id));
        }
        conn.deadline = deadline;
    }

    /// The connection is active: it is checked in each poll for a while.
    fn heat(&mut self, conn: &mut Conn) {
        conn.worked = self.now;
        if !conn.hot {
            conn.hot = true;
            self.hot.push_back(conn.id);
            if let Some(channel) = &mut conn.channel {
                channel.wake();
            }
        }
    }
}

impl Provider for Shm {
    fn limits(&self) -> &Limits {
        &self.core.config.limits
    }

    fn name(&self) -> &'static str {
        "shm"
    }

    fn local_addr(&self, qp: QpId) -> Option<Address> {
        self.conns.get(qp.0)?.reached.map(Address::Ip)
    }

    fn register(&mut self, region: &Region) -> Result<(), io::Error> {
        self.core.shared_regions.register(region);
        Ok(())
    }

    fn listen(&mut self, addr: Address) -> Result<(ListenerId, Address), ListenError> {
        let addr = addr.ip_only(self.name())?;
        let config = &self.core.config;
        let shared = match &self.group {
            Some((group, own)) => group.listen(&addr, own, || Listener::new(addr, config))?,
            None => Arc::new(SharedListener::alone(Listener::new(addr, config)?)),
        };
        let name = polling::LISTENER | self.listeners.next_id();
        let watched = self.core.watch(shared.acceptor(), name);
        let addr = shared.acceptor().addr();
        self.listeners.insert(shared);
        if let Err(error) = watched {
            self.unlisten(ListenerId(name));
            return Err(ListenError::new(addr, error));
        }
        Ok((ListenerId(name), addr.into()))
    }

    fn unlisten(&mut self, listener: ListenerId) {
        let Some(shared) = self.listeners.remove(listener.0 & !polling::LISTENER) else {
            return;
        };
        if let Some((_, own)) = &self.group {
            shared.leave(own);
        }
        // Others may keep the socket open. An error means that it was not registered.
        let _ = self.core.epoll.delete(shared.acceptor());
    }

    fn set_owner(&mut self, qp: QpId, owner: QpOwner) {
        if let Some(conn) = self.conns.get_mut(qp.0) {
            conn.owner = owner;
        }
    }

    fn connect(
        &mut self,
        addr: Address,
        config: &QpConfig,
        private_data: &PrivateData,
        now: Duration,
    ) -> Result<QpId, ConnectError> {
        self.core.now = now;
        let addr = addr.ip_only(self.name())?;
        self.core.config.limits.check(config)?;
        self.connect_to(addr, config, private_data)
    }

    fn prepare(&mut self, qp: QpId, config: &QpConfig) -> Result<(), PostError> {
        self.core.config.limits.check(config)?;
        let conn = self.conns.get_mut(qp.0).ok_or(PostError::Closed)?;
        if conn.phase != Phase::Requested {
            return Err(conn.phase.refusal());
        }
        conn.prepare(config);
        conn.phase = Phase::Prepared;
        Ok(())
    }

    fn accept(&mut self, qp: QpId, private_data: &PrivateData) -> Result<(), PostError> {
        self.with_later(qp, |core, conn, later| {
            core.accept_conn(conn, private_data, later)
        })
        .unwrap_or(Err(PostError::Closed))
    }

    fn reject(&mut self, qp: QpId, private_data: &PrivateData) -> Result<(), PostError> {
        self.with_later(qp, |core, conn, later| {
            core.reject_conn(conn, private_data, later)
        })
        .unwrap_or(Err(PostError::Closed))
    }

    fn post_recv(&mut self, qp: QpId, tag: Tag, buf: Buf) -> Result<(), Refused<Buf>> {
        let registered = self.core.is_registered(&buf);
        let conn = self.conns.get_mut(qp.0).ok_or(PostError::Closed);
        let checked = conn.and_then(|conn| {
            conn.check_recv(registered)?;
            Ok(conn)
        });
        match checked {
            Ok(conn) => {
                conn.inbound.post(tag, buf);
                Ok(())
            }
            Err(why) => Err(Refused { why, back: buf }),
        }
    }

    fn post(&mut self, qp: QpId, tag: Tag, work: Work) -> Result<(), Refused<Work>> {
        let registered = work.buf().is_none_or(|buf| self.core.is_registered(buf));
        let max_message = self.core.config.limits.max_message;
        let conn = self.conns.get_mut(qp.0).ok_or(PostError::Closed);
        let checked = conn.and_then(|conn| {
            conn.check_work(&work, registered, max_message)?;
            Ok(conn)
        });
        let conn = match checked {
            Ok(conn) => conn,
            Err(why) => return Err(Refused { why, back: work }),
        };
        conn.post(tag, work);
        self.core.list(conn);
        if conn.unshown >= TOGETHER {
            self.transmit(qp);
        }
        Ok(())
    }

    fn post_message(
        &mut self,
        qp: QpId,
        tag: Tag,
        head: &Inline,
        invalidate: Option<RemoteKey>,
    ) -> Result<Posted, PostError> {
        let conn = self.conns.get_mut(qp.0).ok_or(PostError::Closed)?;
        conn.check_message(head, invalidate, self.core.config.limits.max_message)?;
        let posted = conn.post_message(tag, head, invalidate);
        self.core.list(conn);
        if conn.unshown >= TOGETHER {
            self.transmit(qp);
        }
        Ok(posted)
    }

    fn expose(
        &mut self,
        qp: QpId,
        buf: Buf,
        rights: Rights,
    ) -> Result<RemoteSlice, Refused<Buf, ExposeError>> {
        let refused = |why, back| Err(Refused { why, back });
        let (core, conn) = (&mut self.core, self.conns.get_mut(qp.0));
        let Some(conn) = conn.filter(|conn| conn.is_open()) else {
            return refused(ExposeError::Closed, buf);
        };
        let Some(number) = core.shared_regions.find(&buf) else {
            return refused(ExposeError::NotRegistered, buf);
        };
        if conn.config.exposes == 0 {
            return refused(ExposeError::Full { max: 0 }, buf);
        }
        let start = buf.region_offset();
        let slice = core.keys.expose(qp, buf, rights)?;
        if let Some(number) = number
            && number < conn.peer_takes
            && let Some(grant) = Grant::new(&slice, rights, number, start)
            && core.shared_regions.grant(slice.key.0, qp)
        {
            if conn.passed <= number {
                core.pass_regions(conn, number);
            }
            // The next submit sends it if no message does.
            conn.outbound.grant(grant);
            core.list(conn);
        }
        Ok(slice)
    }

    fn withdraw(&mut self, key: RemoteKey) -> Result<Option<Buf>, ExposeError> {
        // A key that the peer invalidated is revoked already.
        if let Some(owner) = self.core.shared_regions.owner(key.0)
            && let Some(conn) = self.conns.get_mut(owner.0)
        {
            conn.outbound.cancel_grant(key.0);
            let revoked = conn
                .channel
                .as_ref()
                .is_none_or(|channel| channel.revoke(key.0));
            if !revoked {
                return Err(ExposeError::Busy);
            }
        }
        let buf = self.core.keys.withdraw(key)?;
        self.core.shared_regions.take_back(key.0);
        Ok(Some(buf))
    }

    fn peer_works_in_place(&self, qp: QpId, buf: &Buf) -> bool {
        let takes = self.conns.get(qp.0).map_or(0, |conn| conn.peer_takes);
        let number = self.core.shared_regions.find(buf).flatten();
        number.is_some_and(|number| number < takes)
    }

    fn map_remote(&mut self, qp: QpId, remote: RemoteSlice, rights: Rights) -> Option<Buf> {
        let conn = self.conns.get(qp.0)?;
        if conn.phase != Phase::Running {
            return None;
        }
        let (peer_memory, channel) = (conn.peer_memory.as_ref()?, conn.channel.as_ref()?);
        peer_memory.lend(&remote, rights, channel)
    }

    fn disconnect(&mut self, qp: QpId) {
        self.with_later(qp, Core::disconnect_conn);
    }

    fn submit(&mut self, now: Duration) {
        self.core.now = now;
        if !self.core.listed.is_empty() {
            self.transmit_listed();
        }
    }

    fn poll(&mut self, now: Duration, events: &mut Vec<Event>) -> bool {
        self.submit(now);
        let before = events.len();
        events.append(&mut self.core.later);
        let mut worked = self.poll_hot(events);
        if self.core.asks_kernel() {
            worked |= self.poll_kernel(events);
        }
        worked |= self.expire(events);
        worked || events.len() > before
    }

    fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.core.epoll.0.as_fd())
    }

    fn next_deadline(&self) -> Option<Duration> {
        let core = &self.core;
        if !core.hot.is_empty() || !core.listed.is_empty() || !core.later.is_empty() {
            return Some(core.now);
        }
        let timer = core.deadlines.first().map(|(at, _)| *at);
        [timer, core.paused].into_iter().flatten().min()
    }

    fn rest(&mut self) {
        for _ in 0..self.core.hot.len() {
            let Some(qp) = self.core.hot.pop_front() else {
                return;
            };
            self.with_later(qp, |core, conn, later| {
                // Only the next poll reports pending events.
                let worked = core.work(conn, later) && conn.runs();
                let hot = worked || !core.rests(conn, later);
                core.keep_hot(conn, hot);
            });
        }
    }
}
