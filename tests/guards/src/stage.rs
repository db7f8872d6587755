//! Target and initiator in one thread: rounds of reads and writes.

use std::hint::black_box;
use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use nvmeof_backend::{Claim, Spec};
use nvmeof_initiator::polled::{AdminConfig, AdminQueue, Done, IoConfig, IoQueue};
use nvmeof_initiator::{Blocks, Names, Nqn, Operation, QueueShape, SetupConfig};
use nvmeof_memory::{Buf, ClassSpec, Pages, Pool, PoolLayout};
use nvmeof_rdma::{Address, Provider};
use nvmeof_rdma_shm::{Shm, ShmConfig};
use nvmeof_rdma_soft::{SoftConfig, SoftRdma};
use nvmeof_target::{Mailbox, OpenDisks, Reactor, ReactorConfig, sleep};
use nvmeof_target_core::{Fabric, Limits, Model, NamespaceSpec, PortSpec, SubsystemSpec, Target};
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
/// Turns after which whatever is to happen has happened, where nobody else has
/// to do anything.
const MOST_TURNS: u32 = 10_000;
/// With a disk that needs its time.
const MOST_TURNS_OF_DISK: u32 = 100_000_000;

/// What both sides are connected by.
#[derive(Clone, Debug)]
pub enum Medium {
    /// The software engine on pipes.
    Pipes(Pipes),
    /// Shared memory; sockets are in that folder. The initiator gives its
    /// buffers, so that the target's disk works in them.
    Shm(PathBuf),
}

/// A target with one namespace and an initiator with one I/O queue.
pub struct Stage {
    reactor: Reactor<OpenDisks>,
    /// Keeps the controller.
    _admin: AdminQueue,
    queue: IoQueue,
    bufs: Vec<Buf>,
    done: Vec<Done>,
    now: Duration,
    next: u64,
    most_turns: u32,
}

/// A call that does not change the next one.
const STEP: Duration = Duration::from_nanos(100);

impl Medium {
    fn provider(&self, side: Side) -> Box<dyn Provider> {
        match self {
            Self::Pipes(pipes) => {
                let config = SoftConfig::default();
                Box::new(SoftRdma::new(pipes.endpoint(side), config))
            }
            Self::Shm(folder) => {
                let config = ShmConfig {
                    folder: folder.clone(),
                    ..ShmConfig::default()
                };
                Box::new(Shm::new(config).unwrap())
            }
        }
    }

    fn pages(&self) -> Pages {
        match self {
            Self::Pipes(_) => Pages::Normal,
            Self::Shm(_) => Pages::Shareable,
        }
    }
}

impl Stage {
    /// Both sides on pipes, connected, with a null device.
    #[must_use]
    pub fn new() -> Self {
        Self::on(&Medium::Pipes(Pipes::default()), &null())
    }

    /// The same with another medium and a disk of 4 GiB.
    #[must_use]
    pub fn on(medium: &Medium, disk: &Spec) -> Self {
        let mut reactor = reactor(medium, disk);
        let mut now = Duration::ZERO;
        let mut admin = admin(medium);
        let mut done = Vec::with_capacity(usize::from(QUEUE));
        let info = settle(|| {
            now += STEP;
            admin.poll(now, &mut done);
            turn(&mut reactor, now);
            admin.info().cloned()
        });
        let config = IoConfig {
            names: names(),
            queue: QueueShape {
                qid: 1,
                size: QUEUE,
                flow_control: true,
            },
            command_timeout: Duration::from_secs(30),
            connect_timeout: Duration::from_secs(10),
        };
        let provider = medium.provider(Side::Initiator);
        let mut queue = IoQueue::connect(provider, ADDR.into(), &info, config, now).unwrap();
        settle(|| {
            now += STEP;
            queue.poll(now, &mut done);
            turn(&mut reactor, now);
            queue.is_ready().then_some(())
        });
        let layout = PoolLayout {
            count: usize::from(QUEUE),
            stride: BYTES,
            lead: 0,
        };
        let pool = Pool::new(layout, medium.pages()).unwrap();
        queue.register(pool.region()).unwrap();
        Self {
            reactor,
            _admin: admin,
            queue,
            bufs: std::iter::from_fn(|| pool.take()).collect(),
            done,
            now,
            next: 0,
            most_turns: match disk {
                Spec::Null { .. } => MOST_TURNS,
                _ => MOST_TURNS_OF_DISK,
            },
        }
    }

    /// What the target's disks asked of io_uring.
    pub fn ring_counts(&mut self) -> RingCounts {
        self.reactor.storage_mut().ring_counts()
    }

    /// Has the target sleep if it would, but not for long.
    pub fn doze(&mut self) {
        if self.reactor.may_sleep().unwrap() {
            sleep(&self.reactor, Some(Duration::ZERO));
        }
    }

    /// Does `depth` reads or writes of 4 KiB at once. `target` and `initiator`
    /// are called with what one turn of that side does, and do it.
    pub fn round(
        &mut self,
        operation: Operation,
        depth: usize,
        mut target: impl FnMut(&mut dyn FnMut()),
        mut initiator: impl FnMut(&mut dyn FnMut()),
    ) {
        initiator(&mut || self.initiator_turn(operation, depth));
        for _ in 0..self.most_turns {
            self.now += STEP;
            target(&mut || target_turn(&mut self.reactor, self.now));
            initiator(&mut || self.initiator_turn(operation, 0));
            if self.done.len() == depth {
                for call in self.done.drain(..) {
                    call.result.unwrap();
                    self.bufs.extend(call.buf);
                }
                return;
            }
        }
        panic!(
            "{} of {depth} are done, and nothing happens",
            self.done.len()
        );
    }

    /// What a caller of the polled interface does: submit what there is, poll.
    #[inline(never)]
    fn initiator_turn(&mut self, operation: Operation, submit: usize) {
        for _ in 0..submit {
            let blocks = Blocks {
                operation,
                nsid: 1,
                block_shift: BLOCK_SHIFT,
                slba: self.next % BLOCKS,
                count: 1,
                fua: false,
            };
            self.next += 1;
            let buf = self.bufs.pop();
            assert!(buf.is_some(), "as many buffers as the queue is deep");
            let taken = self.queue.submit(blocks, buf, self.next, self.now);
            assert!(taken.is_ok(), "the queue has room");
        }
        black_box(self.queue.poll(self.now, &mut self.done));
    }
}

impl Default for Stage {
    fn default() -> Self {
        Self::new()
    }
}

/// One turn of the target's loop.
#[inline(never)]
fn target_turn(reactor: &mut Reactor<OpenDisks>, now: Duration) {
    black_box(turn(reactor, now));
}

fn turn(reactor: &mut Reactor<OpenDisks>, now: Duration) -> bool {
    reactor.turn(now).unwrap().did_work
}

/// Calls until there is an answer.
fn settle<T>(mut step: impl FnMut() -> Option<T>) -> T {
    (0..MOST_TURNS)
        .find_map(|_| step())
        .expect("both sides connect")
}

fn null() -> Spec {
    "null:4G".parse().unwrap()
}

fn names() -> Names {
    Names {
        hostid: [1; 16],
        hostnqn: Nqn::new("nqn.2026-11.org.example:host").unwrap(),
        subnqn: Nqn::new(NQN).unwrap(),
    }
}

fn admin(medium: &Medium) -> AdminQueue {
    let config = AdminConfig {
        setup: SetupConfig {
            names: names(),
            queue: QueueShape {
                qid: 0,
                size: 32,
                flow_control: true,
            },
            keep_alive: Duration::ZERO,
            io_queues: 1,
            in_capsule: 4096,
        },
        command_timeout: Duration::from_secs(30),
        connect_timeout: Duration::from_secs(10),
    };
    let provider = medium.provider(Side::Initiator);
    AdminQueue::connect(provider, ADDR.into(), config, Duration::ZERO).unwrap()
}

fn reactor(medium: &Medium, disk: &Spec) -> Reactor<OpenDisks> {
    let namespace = NamespaceSpec {
        nsid: 1,
        blocks: BLOCKS,
        block_size: 1 << BLOCK_SHIFT,
        deallocate: true,
        ..NamespaceSpec::default()
    };
    let port = PortSpec::new(IpAddr::V4(ADDR.0), ADDR.1, vec![Fabric::Iwarp.into()]);
    let subsystem = SubsystemSpec {
        nqn: NQN.to_owned(),
        allow_any_host: true,
        namespaces: vec![namespace],
        ..SubsystemSpec::default()
    };
    let limits = Limits::default();
    let class = |len, count| ClassSpec { len, count };
    let config = ReactorConfig {
        capsules: 512,
        data: vec![class(BYTES, 256), class(1 << 20, 4)],
        shared_receives: 0,
        pages: Pages::Normal,
        stall: Duration::from_secs(30),
        drain: Duration::from_secs(5),
    };
    let model = Model::build(limits, &[port], &[subsystem]).unwrap();
    let claim = Claim::take(disk, None).unwrap();
    let disks = OpenDisks::open(&[claim], RingConfig::default()).unwrap();
    let mailbox = Mailbox::new().unwrap();
    let peers = Arc::from([mailbox.clone()]);
    let mut reactor = Reactor::new(config, Target::new(model), disks, mailbox, peers).unwrap();
    let regions: Vec<_> = reactor.regions().cloned().collect();
    reactor.storage_mut().register_regions(&regions);
    let provider = medium.provider(Side::Target);
    let provider = reactor.add_provider(provider).unwrap();
    let addr = Address::from(ADDR);
    reactor.listen(provider, addr).unwrap();
    reactor
}
