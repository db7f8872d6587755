//! Target and initiator in one thread: rounds of reads and writes.

use std::collections::VecDeque;
use std::hint::black_box;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

use nvmeof_backend::{Claim, Spec, UringStores};
use nvmeof_initiator::polled::{AdminConfig, AdminQueue, Call, Done, IoConfig, IoQueue};
use nvmeof_initiator::{Blocks, ControllerInfo, Names, Nqn, Operation, QueueShape, SetupConfig};
use nvmeof_memory::{Buf, ClassSpec, Pages, Pool, PoolLayout};
use nvmeof_rdma::{Address, Provider};
use nvmeof_rdma_iwarp::IwarpConfig;
use nvmeof_rdma_shm::{Shm, ShmConfig};
use nvmeof_rdma_soft::{SoftConfig, SoftRdma};
use nvmeof_target_core::{
    Fabric, Limits, Model, NamespaceSpec, PortSpec, SubsystemSpec, Target, Traddr,
};
use nvmeof_target_engine::{Mailbox, Reactor, ReactorConfig, sleep};
use nvmeof_uring::{RingConfig, RingCounts};

use crate::{Pipes, Side};

const NQN: &str = "nqn.2026-11.org.example:guards";
const ADDR: (Ipv4Addr, u16) = (Ipv4Addr::LOCALHOST, 4420);
/// Bytes of each read and write.
const BYTES: usize = 4096;
const BLOCK_SHIFT: u8 = 12;
const BLOCKS: u64 = 1 << 20;
/// Entries of the I/O queue.
const QUEUE: u16 = 130;
/// Maximum iterations until an operation has completed, without other threads.
const MAX_ITERATIONS: u32 = 10_000;
/// The same with a file or the kernel, which take time.
const MAX_ITERATIONS_OF_OTHERS: u32 = 100_000_000;

/// The medium between both sides.
#[derive(Clone, Debug)]
pub enum Medium {
    /// The software engine on pipes.
    Pipes(Pipes),
    /// Any provider, created for each queue, and the target's address. Counted programs
    /// contain only the code that they need: more would change the generated code.
    Other(fn() -> Box<dyn Provider>, Address),
    /// The same, where the target posts as many receives for all its queue pairs together.
    Shared(fn() -> Box<dyn Provider>, Address, u32),
    /// The same as `Other`, where capsules contain no data: the target reads those of writes.
    Pulled(fn() -> Box<dyn Provider>, Address),
    /// The same as `Other`, where the initiator trusts the target with its buffers. Capsules
    /// contain that many bytes of data.
    Trusted(fn() -> Box<dyn Provider>, Address, u32),
    /// Shared memory, with sockets in that folder. The initiator shares its buffers, and the
    /// target accesses them in place.
    Shm(PathBuf),
}

/// A target without an initiator: another interface than that of [`Stage`] connects to it.
pub struct Served {
    address: Address,
    reactor: Reactor<UringStores>,
    now: Duration,
    /// Whether the initiator connects: what both sides do then is not counted.
    is_connecting: bool,
}

/// How calls are submitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Submit {
    /// One by one.
    Each,
    /// All of a round in one batch.
    Batch,
}

/// A target with one namespace and an initiator with one I/O queue, or several.
pub struct Stage {
    medium: Medium,
    reactor: Reactor<UringStores>,
    /// The target knows each by another name.
    hosts: Vec<Host>,
    now: Duration,
    max_iterations: u32,
}

/// An initiator.
struct Host {
    /// Keeps the controller connected, unless it is that of another host.
    _admin: Option<AdminQueue>,
    queue: IoQueue,
    submit: Submit,
    bufs: Vec<Buf>,
    calls: VecDeque<Call>,
    done: Vec<Done>,
    next: u64,
}

/// Milliseconds for periodic work of both sides.
const SETTLING: u32 = 100;

/// A call without effect on the next one.
const STEP: Duration = Duration::from_nanos(100);

impl Medium {
    /// Software iWARP over TCP, at a loopback address that no other process uses. A port that was
    /// free a moment ago may be that of an outgoing connection.
    #[must_use]
    pub fn tcp() -> Self {
        static PORT: AtomicU16 = AtomicU16::new(4420);
        let [_, a, b, c] = process::id().to_be_bytes();
        let ip = Ipv4Addr::new(127, a.wrapping_add(1), b, c);
        let port = PORT.fetch_add(1, Ordering::Relaxed);
        Self::Other(sockets, SocketAddr::from((ip, port)).into())
    }

    /// The same over a Unix socket in `folder`.
    #[must_use]
    pub fn unix(folder: &Path) -> Self {
        let address = format!("unix:{}", folder.join("nvmeof.sock").display());
        Self::Other(sockets, address.parse().unwrap())
    }

    fn provider(&self, side: Side) -> Box<dyn Provider> {
        match self {
            Self::Pipes(pipes) => {
                let config = SoftConfig::default();
                Box::new(SoftRdma::new(pipes.endpoint(side), config))
            }
            Self::Other(provider, _)
            | Self::Shared(provider, ..)
            | Self::Pulled(provider, _)
            | Self::Trusted(provider, ..) => provider(),
            Self::Shm(folder) => {
                let config = ShmConfig {
                    folder: folder.clone(),
                    ..ShmConfig::default()
                };
                Box::new(Shm::new(config).unwrap())
            }
        }
    }

    /// Where the target listens.
    fn address(&self) -> Address {
        match self {
            Self::Other(_, address)
            | Self::Shared(_, address, _)
            | Self::Pulled(_, address)
            | Self::Trusted(_, address, _) => *address,
            Self::Pipes(_) | Self::Shm(_) => ADDR.into(),
        }
    }

    fn shared_receives(&self) -> u32 {
        match self {
            Self::Shared(.., count) => *count,
            _ => 0,
        }
    }

    /// Bytes of data in capsules.
    fn in_capsule(&self) -> u32 {
        match self {
            Self::Pulled(..) => 0,
            Self::Trusted(.., bytes) => *bytes,
            _ => 4096,
        }
    }

    fn pages(&self) -> Pages {
        match self {
            Self::Shm(_) => Pages::Shareable,
            _ => Pages::Normal,
        }
    }
}

fn sockets() -> Box<dyn Provider> {
    Box::new(nvmeof_rdma_iwarp::new(IwarpConfig::default()).unwrap())
}

impl Stage {
    /// Both sides on pipes, connected, with a null device.
    #[must_use]
    pub fn new() -> Self {
        Self::on(&Medium::Pipes(Pipes::default()), &Self::null())
    }

    /// Both sides connected through shared memory, with a null device.
    #[must_use]
    pub fn shm() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let medium = Medium::Shm(folder.path().join("meet"));
        // The sockets are not used after both sides are connected.
        Self::on(&medium, &Self::null())
    }

    /// A null device for [`on`](Self::on).
    #[must_use]
    pub fn null() -> Spec {
        "null:4G".parse().unwrap()
    }

    /// The same with another medium and a backing store of 4 GiB.
    #[must_use]
    pub fn on(medium: &Medium, store: &Spec) -> Self {
        let mut stage = Self::of(medium, reactor(medium, store)).and_another();
        if let (Medium::Pipes(_) | Medium::Shm(_), Spec::Null { .. }) = (medium, store) {
            stage.max_iterations = MAX_ITERATIONS;
        }
        stage
    }

    /// The same with this reactor, and without a host.
    pub(crate) fn of(medium: &Medium, reactor: Reactor<UringStores>) -> Self {
        Self {
            medium: medium.clone(),
            reactor,
            hosts: Vec::new(),
            now: Duration::ZERO,
            max_iterations: MAX_ITERATIONS_OF_OTHERS,
        }
    }

    /// The same with another host, with another name.
    #[must_use]
    pub fn and_another(mut self) -> Self {
        let number = self.hosts.len();
        let host = Host::connect(&self.medium, &mut self.reactor, number, &mut self.now);
        self.hosts.push(host);
        self
    }

    /// The same with a further queue of the controller of `info`, which is on another reactor.
    #[must_use]
    pub fn and_queue(mut self, qid: u16, info: &ControllerInfo) -> Self {
        let host = Host::join(
            &self.medium,
            &mut self.reactor,
            (0, qid),
            info,
            &mut self.now,
        );
        self.hosts.push(host);
        self
    }

    /// The controller of the first host.
    #[must_use]
    pub fn controller(&self) -> Option<Arc<ControllerInfo>> {
        self.hosts.first()?._admin.as_ref()?.info().cloned()
    }

    /// Sets how calls are submitted from now on.
    pub fn submits(&mut self, submit: Submit) {
        for host in &mut self.hosts {
            host.submit = submit;
        }
    }

    /// Counters of the target's io_uring.
    pub fn ring_counts(&mut self) -> RingCounts {
        self.reactor.stores_mut().ring().counts()
    }

    /// Adds a provider, over which there is no traffic.
    pub fn add_quiet(&mut self, medium: &Medium) {
        let provider = self.reactor.add_provider(medium.provider(Side::Target));
        self.reactor
            .listen(provider.unwrap(), medium.address())
            .unwrap();
    }

    /// Advances the time of both sides.
    pub fn advance(&mut self, time: Duration) {
        self.now += time;
    }

    /// Lets the target sleep briefly, if it would.
    pub fn doze(&mut self) {
        if self.reactor.rest(self.now).unwrap() {
            sleep(&self.reactor, Some(Duration::ZERO));
        }
    }

    /// Runs `depth` reads or writes of 4 KiB at a time on each host. `target` and `initiator`
    /// are called with the iterations of their side, and run them.
    pub fn round(
        &mut self,
        operation: Operation,
        depth: usize,
        mut target: impl FnMut(&mut dyn FnMut()),
        mut initiator: impl FnMut(&mut dyn FnMut()),
    ) {
        let mut at_work: Vec<&mut Host> = self.hosts.iter_mut().collect();
        for host in &mut at_work {
            initiator(&mut || initiator_iteration(host, operation, depth, self.now));
        }
        for _ in 0..self.max_iterations {
            self.now += STEP;
            target(&mut || target_iteration(&mut self.reactor, self.now));
            for host in &mut at_work {
                initiator(&mut || initiator_iteration(host, operation, 0, self.now));
            }
            at_work.retain_mut(|host| !host.has_done(depth));
            if at_work.is_empty() {
                return;
            }
        }
        let done: Vec<usize> = at_work.iter().map(|host| host.done.len()).collect();
        panic!("only {done:?} of {depth} completed, and there is no progress");
    }
}

impl Served {
    /// The subsystem that it serves, with namespace 1.
    pub const NQN: &str = NQN;
    /// Bytes of a block.
    pub const BLOCK: usize = BYTES;

    /// A target that serves `store`.
    #[must_use]
    pub fn on(medium: &Medium, store: &Spec) -> Self {
        Self {
            address: medium.address(),
            reactor: reactor(medium, store),
            now: Duration::ZERO,
            is_connecting: true,
        }
    }

    /// The initiator is connected.
    pub fn connected(&mut self) {
        self.is_connecting = false;
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> Address {
        self.address
    }

    /// Lets time pass for its timers.
    pub fn advance(&mut self, by: Duration) {
        self.now += by;
    }

    /// One iteration of its loop. Its time is that of its iterations and of
    /// [`advance`](Self::advance), so no timer of it expires otherwise.
    pub fn iterate(&mut self) {
        self.now += STEP;
        match self.is_connecting {
            true => _ = poll_once(&mut self.reactor, self.now),
            false => target_iteration(&mut self.reactor, self.now),
        }
    }
}

impl Host {
    /// Connects a host, with a queue and buffers for all its entries.
    fn connect(
        medium: &Medium,
        reactor: &mut Reactor<UringStores>,
        number: usize,
        now: &mut Duration,
    ) -> Self {
        let mut admin = admin(medium, number, *now);
        let mut done = Vec::with_capacity(usize::from(QUEUE));
        let info = settle(|| {
            *now += STEP;
            admin.poll(*now, &mut done);
            poll_once(reactor, *now);
            admin.info().cloned()
        });
        let mut host = Self::join(medium, reactor, (number, 1), &info, now);
        host._admin = Some(admin);
        host
    }

    /// Connects queue `qid` of the controller of host `number`.
    fn join(
        medium: &Medium,
        reactor: &mut Reactor<UringStores>,
        (number, qid): (usize, u16),
        info: &ControllerInfo,
        now: &mut Duration,
    ) -> Self {
        let mut done = Vec::with_capacity(usize::from(QUEUE));
        let config = IoConfig {
            names: names(number),
            queue: QueueShape {
                qid,
                size: QUEUE,
                flow_control: true,
            },
            command_timeout: Duration::from_secs(30),
            connect_timeout: Duration::from_secs(10),
            trusts_target: matches!(medium, Medium::Trusted(..)),
        };
        let provider = medium.provider(Side::Initiator);
        let mut queue = IoQueue::connect(provider, medium.address(), info, config, *now).unwrap();
        settle(|| {
            *now += STEP;
            queue.poll(*now, &mut done);
            poll_once(reactor, *now);
            queue.is_ready().then_some(())
        });
        let layout = PoolLayout {
            count: usize::from(QUEUE),
            stride: BYTES,
            lead: 0,
        };
        let pool = Pool::new(layout, medium.pages()).unwrap();
        queue.register(pool.region()).unwrap();
        // Enough time for the target to map the initiator's memory.
        for _ in 0..SETTLING {
            *now += Duration::from_millis(1);
            poll_once(reactor, *now);
            queue.poll(*now, &mut done);
        }
        Self {
            _admin: None,
            queue,
            submit: Submit::Each,
            bufs: std::iter::from_fn(|| pool.take()).collect(),
            calls: VecDeque::with_capacity(usize::from(QUEUE)),
            done,
            next: 0,
        }
    }

    /// Whether `depth` calls have completed and returned their buffers.
    fn has_done(&mut self, depth: usize) -> bool {
        if self.done.len() < depth {
            return false;
        }
        for call in self.done.drain(..) {
            call.result.unwrap();
            self.bufs.extend(call.buf);
        }
        true
    }
}

impl Default for Stage {
    fn default() -> Self {
        Self::new()
    }
}

/// One iteration of a caller of the polled interface: submit, poll.
#[inline(never)]
fn initiator_iteration(host: &mut Host, operation: Operation, submit: usize, now: Duration) {
    for _ in 0..submit {
        let blocks = Blocks {
            operation,
            nsid: 1,
            block_shift: BLOCK_SHIFT,
            slba: host.next % BLOCKS,
            count: 1,
            fua: false,
        };
        host.next += 1;
        let buf = host.bufs.pop();
        assert!(buf.is_some(), "as many buffers as the queue is deep");
        if host.submit == Submit::Batch {
            let call = Call::new(blocks.into(), buf, host.next);
            host.calls.push_back(call);
            continue;
        }
        let taken = host.queue.submit(blocks, buf, host.next, now);
        assert!(taken.is_ok(), "the queue has room");
    }
    if !host.calls.is_empty() {
        let taken = host.queue.submit_batch(&mut host.calls, now);
        assert!(
            taken.is_ok_and(|taken| taken == submit),
            "the queue has room"
        );
    }
    black_box(host.queue.poll(now, &mut host.done));
}

/// One iteration of the target's loop.
#[inline(never)]
fn target_iteration(reactor: &mut Reactor<UringStores>, now: Duration) {
    black_box(poll_once(reactor, now));
}

fn poll_once(reactor: &mut Reactor<UringStores>, now: Duration) -> bool {
    reactor.poll_once(now).unwrap().did_work
}

/// Repeats a step until it returns a value.
fn settle<T>(mut step: impl FnMut() -> Option<T>) -> T {
    (0..MAX_ITERATIONS_OF_OTHERS)
        .find_map(|_| step())
        .expect("both sides connect")
}

/// The names of a host, by its number.
fn names(number: usize) -> Names {
    let mut hostid = [1; 16];
    hostid[0] += u8::try_from(number).unwrap();
    Names {
        hostid,
        hostnqn: Nqn::new(&format!("nqn.2026-11.org.example:host{number}")).unwrap(),
        subnqn: Nqn::new(NQN).unwrap(),
        keys: None,
    }
}

fn admin(medium: &Medium, number: usize, now: Duration) -> AdminQueue {
    let config = AdminConfig {
        setup: SetupConfig {
            names: names(number),
            queue: QueueShape {
                qid: 0,
                size: 32,
                flow_control: true,
            },
            keep_alive: Duration::ZERO,
            io_queues: 2,
            in_capsule: medium.in_capsule(),
        },
        command_timeout: Duration::from_secs(30),
        connect_timeout: Duration::from_secs(10),
    };
    let provider = medium.provider(Side::Initiator);
    AdminQueue::connect(provider, medium.address(), config, now).unwrap()
}

fn reactor(medium: &Medium, store: &Spec) -> Reactor<UringStores> {
    let mailbox = Mailbox::new().unwrap();
    let peers = Arc::from([mailbox.clone()]);
    let claims = vec![Claim::take(store, None).unwrap()];
    reactor_of(medium, claims, target(medium), mailbox, peers)
}

/// A target with one namespace.
pub(crate) fn target(medium: &Medium) -> Target {
    let namespace = NamespaceSpec {
        nsid: 1,
        blocks: BLOCKS,
        block_size: 1 << BLOCK_SHIFT,
        deallocate: true,
        ..NamespaceSpec::default()
    };
    let address = medium.address();
    let (traddr, trsvcid) = match address {
        Address::Ip(ip) => (ip.ip().into(), ip.port()),
        Address::Unix(_) => (Traddr::Host(address.to_string().into()), 0),
    };
    let port = PortSpec::new(traddr, trsvcid, vec![Fabric::Iwarp.into()]);
    let subsystem = SubsystemSpec {
        nqn: NQN.to_owned(),
        allow_any_host: true,
        namespaces: vec![namespace],
        ..SubsystemSpec::default()
    };
    Target::new(Model::build(Limits::default(), &[port], &[subsystem]).unwrap())
}

/// One of the reactors of `target`, with these stores; the first is that of its namespace.
pub(crate) fn reactor_of(
    medium: &Medium,
    stores: Vec<Claim>,
    target: Target,
    mailbox: Mailbox,
    peers: Arc<[Mailbox]>,
) -> Reactor<UringStores> {
    let class = |len, count| ClassSpec { len, count };
    let config = ReactorConfig {
        capsules: 512,
        data: vec![class(BYTES, 256), class(1 << 20, 4)],
        shared_receives: medium.shared_receives(),
        pages: Pages::Normal,
        stall: Duration::from_secs(30),
        drain: Duration::from_secs(5),
    };
    let stores = UringStores::with(RingConfig::default(), (0..).zip(stores)).unwrap();
    let mut reactor = Reactor::new(config, target, stores, mailbox, peers).unwrap();
    let regions: Vec<_> = reactor.regions().cloned().collect();
    reactor.stores_mut().register_regions(&regions);
    let provider = medium.provider(Side::Target);
    let provider = reactor.add_provider(provider).unwrap();
    reactor.listen(provider, medium.address()).unwrap();
    reactor
}
