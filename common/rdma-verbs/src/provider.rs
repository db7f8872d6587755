//! The provider: implements the contract of `nvmeof-rdma` over verbs.

mod closing;
mod connecting;
mod exposing;
mod nudging;
mod polling;
mod queueing;
mod returning;
mod sharing;

use std::collections::{BTreeSet, VecDeque};
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags};
use nvmeof_memory::{Buf, Region};
use nvmeof_rdma::{
    Address, ConnectError, Event, ExposeError, Inline, Limits, ListenError, ListenerId, PostError,
    Posted, PrivateData, Provider, QpConfig, QpId, QpOwner, RateLimiter, Refused, RegionExposure,
    RemoteKey, RemoteSlice, Rights, SharedReceives, SrqId, Steering, Tag, Work, WriteAndSend,
};

use crate::adapter::{Adapter, AdapterId};
use crate::blocking_calls::BlockingCalls;
use crate::conn::{Conn, Table};
use crate::lingering::Lingering;
use crate::listening::Group;
use crate::mailbox::{Mailbox, Message};
use crate::sys::{Batch, CmId, CmIdKey, ContextKey, EventChannel, set_nonblocking};
use crate::windows::{KeyMap, Withdrawn};
use crate::work_id::MOST_QPS;
use crate::{VerbsConfig, VerbsError, machine};
use exposing::Exposure;
use returning::Returning;

/// RDMA over the devices of this machine.
#[derive(Debug)]
pub struct Verbs {
    config: VerbsConfig,
    regions: Vec<Region>,
    /// Exposed memory, by key.
    exposed: KeyMap<Exposure>,
    withdrawn: Withdrawn,
    /// Withdrawn keys, by deadline.
    returning: VecDeque<Returning>,
    /// Keys of withdrawn buffers that the next poll looks at.
    touched: Vec<RemoteKey>,
    conns: Table,
    /// Number of requests without a response.
    pending: u32,
    listeners: Vec<Listening>,
    next_listener: u64,
    /// Ids of destroyed queue pairs, until the peer is notified.
    lingering: Lingering<CmIdKey, CmId>,
    /// Threads for blocking calls.
    blocking_calls: Arc<BlockingCalls>,
    /// Number of queue pairs that such calls are destroying.
    settling: u32,
    adapters: Vec<Option<Adapter>>,
    /// Queue pairs with work to post.
    listed: Vec<QpId>,
    /// Queue pairs to tear down.
    ending: Vec<QpId>,
    /// Established ones whose `Event::Ending` is to be reported.
    leaving: Vec<QpId>,
    deadlines: BTreeSet<(Duration, QpId)>,
    /// Addresses whose listener lost its device, and when to try again.
    lost: Vec<(Duration, SocketAddr)>,
    /// Events of calls other than poll.
    later: Vec<Event>,
    /// Shared receives may be chained.
    has_shared: bool,
    /// The caller may not sleep: completions arrived or a buffer was withdrawn just before, or a
    /// queue is not armed.
    is_behind: bool,
    /// Number of shared receive queues created so far.
    shared_made: u64,
    /// Empty; its memory is reused.
    batch: Batch,
    /// Time of the last check of descriptors; `None`: check immediately.
    looked: Option<Duration>,
    now: Duration,
    log: RateLimiter,
    /// Completion vector of its devices.
    vector: usize,
    group: Arc<Group>,
    mailbox: Arc<Mailbox>,
    channel: Arc<EventChannel>,
    epoll: Epoll,
}

/// A listener as one provider knows it.
#[derive(Debug)]
struct Listening {
    id: ListenerId,
    addr: SocketAddr,
}

/// Tokens of descriptors in `epoll`.
mod watch {
    pub(super) const CHANNEL: u64 = 1;
    pub(super) const GROUP: u64 = 2;
    pub(super) const MAILBOX: u64 = 3;
    /// With the number of the adapter in the lower half.
    pub(super) const COMPLETIONS: u64 = 1 << 32;
    pub(super) const ASYNC: u64 = 2 << 32;
}

/// Tokens of ids: identifiers of queue pairs, which have bit 63 clear and are not 0.
const ANCHOR: u64 = 1 << 63;
const LINGERING: u64 = ANCHOR | 1 << 62;

/// Creates a provider.
///
/// # Errors
/// [`VerbsError`] names what is missing on this machine.
pub fn new(config: VerbsConfig) -> Result<Verbs, VerbsError> {
    let members = group(config, &Steering::new(1))?;
    members
        .into_iter()
        .next()
        .ok_or_else(|| machine::unavailable(io::ErrorKind::NotFound.into()))
}

/// Creates a provider for each member of `steering`. Their owners let all of them listen on
/// the same addresses, and each connection goes to one of them.
///
/// # Errors
/// [`VerbsError`] names what is missing on this machine.
pub fn group(config: VerbsConfig, steering: &Steering) -> Result<Vec<Verbs>, VerbsError> {
    let config = possible(config)?;
    let group = Group::new(steering.clone()).map_err(machine::unavailable)?;
    let members = steering.members();
    let first = PROVIDERS.fetch_add(members, Ordering::Relaxed);
    (0..members)
        .map(|number| {
            let vector = first.wrapping_add(number);
            Verbs::new(config.clone(), Arc::clone(&group), number, vector)
        })
        .collect()
}

/// Number of providers so far: each uses the next completion vector of its devices, so that
/// their interrupts are on different CPUs.
static PROVIDERS: AtomicUsize = AtomicUsize::new(0);

fn possible(mut config: VerbsConfig) -> Result<VerbsConfig, VerbsError> {
    machine::lower_limits(&mut config.limits)?;
    Ok(config)
}

impl Verbs {
    fn new(
        config: VerbsConfig,
        group: Arc<Group>,
        number: usize,
        vector: usize,
    ) -> Result<Self, VerbsError> {
        let channel = EventChannel::new().map_err(machine::unavailable)?;
        let set_up = || -> io::Result<(Arc<Mailbox>, Epoll)> {
            set_nonblocking(channel.fd())?;
            let mailbox = Mailbox::new(number, Arc::clone(&channel))?;
            let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
            let watch = |fd: BorrowedFd<'_>, token| {
                epoll.add(fd, EpollEvent::new(EpollFlags::EPOLLIN, token))
            };
            watch(channel.fd(), watch::CHANNEL)?;
            watch(group.fd(), watch::GROUP)?;
            watch(mailbox.wakeup(), watch::MAILBOX)?;
            Ok((mailbox, epoll))
        };
        let (mailbox, epoll) = set_up().map_err(|source| VerbsError::Call {
            what: "creating the file descriptors of a provider",
            source,
        })?;
        Ok(Self {
            config,
            regions: Vec::new(),
            exposed: KeyMap::default(),
            withdrawn: Withdrawn::default(),
            returning: VecDeque::new(),
            touched: Vec::new(),
            conns: Table::default(),
            pending: 0,
            listeners: Vec::new(),
            next_listener: 1,
            lingering: Lingering::new(),
            blocking_calls: Arc::default(),
            settling: 0,
            adapters: Vec::new(),
            listed: Vec::new(),
            ending: Vec::new(),
            leaving: Vec::new(),
            deadlines: BTreeSet::new(),
            lost: Vec::new(),
            later: Vec::new(),
            has_shared: false,
            is_behind: false,
            shared_made: 0,
            batch: Batch::new(),
            looked: None,
            now: Duration::ZERO,
            log: RateLimiter::default(),
            vector,
            group,
            mailbox,
            channel,
            epoll,
        })
    }

    fn adapter(&mut self, id: AdapterId) -> Option<&mut Adapter> {
        self.adapters.get_mut(id.0 as usize)?.as_mut()
    }

    /// Opens a device. `local` is an address of it.
    fn open_adapter(
        &mut self,
        local: Option<SocketAddr>,
        key: ContextKey,
    ) -> Result<AdapterId, VerbsError> {
        let call = |what| move |source| VerbsError::Call { what, source };
        let adapter = Adapter::open(key, self.vector);
        let mut adapter = adapter.map_err(call("opening the RDMA device"))?;
        for region in &self.regions {
            adapter.register(region)?;
        }
        let index = match self.adapters.iter().position(Option::is_none) {
            Some(index) => index,
            None => {
                self.adapters.push(None);
                self.adapters.len() - 1
            }
        };
        let id = AdapterId(u32::try_from(index).unwrap_or(u32::MAX));
        let watched = self.watch(&adapter, id);
        watched.map_err(call("waiting for the RDMA device"))?;
        adapter.anchor = local.and_then(|local| self.bind_to_device(local, id));
        tracing::debug!(device = adapter.name, "using an RDMA device");
        if let Some(place) = self.adapters.get_mut(index) {
            *place = Some(adapter);
        }
        Ok(id)
    }

    fn watch(&self, adapter: &Adapter, id: AdapterId) -> io::Result<()> {
        let number = u64::from(id.0);
        let token = |kind: u64| EpollEvent::new(EpollFlags::EPOLLIN, kind | number);
        self.epoll
            .add(adapter.channel.fd(), token(watch::COMPLETIONS))?;
        self.epoll
            .add(adapter.context.async_fd(), token(watch::ASYNC))?;
        Ok(())
    }

    /// Creates an id that is bound to the device only: it gets the events about the device.
    fn bind_to_device(&self, mut addr: SocketAddr, adapter: AdapterId) -> Option<CmId> {
        addr.set_port(0);
        let anchor = CmId::new(&self.channel, ANCHOR | u64::from(adapter.0)).ok()?;
        anchor.bind(addr).ok()?;
        anchor.context().map(|_| anchor)
    }

    fn set_deadline(
        deadlines: &mut BTreeSet<(Duration, QpId)>,
        conn: &mut Conn,
        deadline: Option<Duration>,
    ) {
        if let Some(old) = conn.deadline.take() {
            deadlines.remove(&(old, conn.id));
        }
        if let Some(new) = deadline {
            deadlines.insert((new, conn.id));
        }
        conn.deadline = deadline;
    }

    /// Whether the limit on queue pairs is reached, including those that are being destroyed.
    fn is_full(&self) -> bool {
        self.conns.count().saturating_add(self.settling) >= self.most_qps()
    }

    fn most_qps(&self) -> u32 {
        self.config.limits.max_qps.min(MOST_QPS)
    }
}

impl Provider for Verbs {
    fn limits(&self) -> &Limits {
        &self.config.limits
    }

    fn name(&self) -> &'static str {
        "verbs"
    }

    fn register(&mut self, region: &Region) -> Result<(), io::Error> {
        if self.regions.iter().any(|one| one.id() == region.id()) {
            return Ok(());
        }
        for adapter in self.adapters.iter_mut().flatten() {
            adapter.register(region).map_err(io::Error::other)?;
        }
        let own = self.conns.iter_mut().filter_map(|conn| conn.link.as_mut());
        for domain in own.filter_map(|link| link.domain.as_mut()) {
            domain.register(region)?;
        }
        self.regions.push(region.clone());
        Ok(())
    }

    fn listen(&mut self, addr: Address) -> Result<(ListenerId, Address), ListenError> {
        let addr = addr.ip_only(self.name())?;
        let listening = self.group.listen(addr, &self.mailbox);
        let addr = listening.map_err(|error| machine::listen_error(addr, error))?;
        self.open_early(addr)
            .map_err(|source| ListenError::Io {
                addr: addr.into(),
                source,
            })
            .inspect_err(|_| self.group.unlisten(addr, &self.mailbox))?;
        let id = ListenerId(self.next_listener);
        self.next_listener += 1;
        self.listeners.push(Listening { id, addr });
        Ok((id, addr.into()))
    }

    fn unlisten(&mut self, listener: ListenerId) {
        let group = &self.group;
        let mailbox = &self.mailbox;
        self.listeners.retain(|one| {
            let stays = one.id != listener;
            if !stays {
                group.unlisten(one.addr, mailbox);
            }
            stays
        });
    }

    fn set_owner(&mut self, qp: QpId, owner: QpOwner) {
        if let Some(conn) = self.conns.get_mut(qp) {
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
        self.now = now;
        let addr = addr.ip_only(self.name())?;
        self.start_connecting(addr, config, private_data)
    }

    fn peer_may_invalidate(&self, qp: QpId) -> bool {
        let link = self.conns.get(qp).and_then(|conn| conn.link.as_ref());
        // On iWARP every registration can be invalidated, elsewhere only windows.
        link.is_none_or(|link| link.iwarp || link.domain.is_none())
    }

    fn local_addr(&self, qp: QpId) -> Option<Address> {
        self.conns.get(qp)?.cm.local_addr().map(Address::Ip)
    }

    fn prepare(&mut self, qp: QpId, config: &QpConfig) -> Result<(), PostError> {
        self.config.limits.check(config)?;
        self.prepare_request(qp, config)
    }

    fn accept(&mut self, qp: QpId, private_data: &PrivateData) -> Result<(), PostError> {
        self.accept_request(qp, private_data)
    }

    fn reject(&mut self, qp: QpId, private_data: &PrivateData) -> Result<(), PostError> {
        self.reject_request(qp, private_data)
    }

    fn post_recv(&mut self, qp: QpId, tag: Tag, buf: Buf) -> Result<(), Refused<Buf>> {
        self.queue_recv(qp, tag, buf)
    }

    fn share_receives(&mut self, qp: QpId, recvs: u32, entries: u32) -> Option<SharedReceives> {
        self.share_receives_of(qp, recvs, entries)
    }

    fn post_shared_recv(&mut self, srq: SrqId, tag: Tag, buf: Buf) -> Result<(), Refused<Buf>> {
        self.queue_shared(srq, tag, buf)
            .map_err(|(why, back)| Refused { why, back })
    }

    fn post(&mut self, qp: QpId, tag: Tag, work: Work) -> Result<(), Refused<Work>> {
        self.queue_work(qp, tag, work)
    }

    fn post_message(
        &mut self,
        qp: QpId,
        tag: Tag,
        head: &Inline,
        invalidate: Option<RemoteKey>,
    ) -> Result<Posted, PostError> {
        self.queue_message(qp, tag, head, invalidate)
    }

    fn post_response(&mut self, qp: QpId, tag: Tag, answer: WriteAndSend) -> Result<(), PostError> {
        self.queue_response(qp, tag, answer)
    }

    fn expose(
        &mut self,
        qp: QpId,
        buf: Buf,
        rights: Rights,
    ) -> Result<RemoteSlice, Refused<Buf, ExposeError>> {
        self.open_to_peer(qp, buf, rights)
            .map_err(|(why, back)| Refused { why, back })
    }

    fn withdraw(&mut self, key: RemoteKey) -> Result<Option<Buf>, ExposeError> {
        self.close_to_peer(key)
    }

    fn expose_region(
        &mut self,
        qp: QpId,
        region: &Region,
    ) -> Result<Option<RegionExposure>, io::Error> {
        self.open_region_to_peer(qp, region)
    }

    fn disconnect(&mut self, qp: QpId) {
        self.wind_down(qp);
    }

    fn submit(&mut self, now: Duration) {
        self.now = now;
        self.post_listed();
    }

    fn poll(&mut self, now: Duration, events: &mut Vec<Event>) -> bool {
        self.now = now;
        self.poll_once(events)
    }

    fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.epoll.0.as_fd())
    }

    fn next_deadline(&self) -> Option<Duration> {
        let conns = self.deadlines.first().map(|(deadline, _)| *deadline);
        let lingering = self.lingering.next_deadline();
        let lost = self.lost.iter().map(|(deadline, _)| *deadline);
        let returning = self.returning.front().map(|one| one.deadline);
        // The next poll ends queue pairs.
        let ends = !self.ending.is_empty() || !self.leaving.is_empty();
        let has_more = ends || self.is_behind || !self.later.is_empty();
        let at_once = has_more.then_some(self.now);
        let all = conns.into_iter().chain(lingering).chain(lost);
        all.chain(returning).chain(at_once).min()
    }

    fn rest(&mut self) {
        self.arm();
    }
}

impl Drop for Verbs {
    fn drop(&mut self) {
        for listening in std::mem::take(&mut self.listeners) {
            self.group.unlisten(listening.addr, &self.mailbox);
        }
        for message in self.mailbox.close() {
            if let Message::Request(request) = message {
                let _ = request.id.reject(&[]);
            }
        }
        self.tear_down_all();
    }
}
