//! The plan of one seed: sizes, shapes, probabilities and faults.

use std::time::Duration;

use nvmeof_rdma_layers::{Dice, Faults, OneIn};
use nvmeof_rdma_sim::{SimChances, SimConfig};
use nvmeof_target_core::Limits;

use crate::disk::Temper;

/// All decisions before a run.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) seed: u64,
    pub(crate) disks: Vec<DiskShape>,
    pub(crate) hosts: Vec<HostShape>,
    pub(crate) limits: Limits,
    pub(crate) net: SimConfig,
    /// Whether hosts use shared memory instead of a network.
    pub(crate) by_memory: bool,
    /// Whether frames carry a checksum.
    pub(crate) crc: bool,
    pub(crate) temper: Temper,
    /// Data buffers of the longest kind that the target has.
    pub(crate) target_buffers: usize,
    /// Receives that the target's queues share at most; 0: each has its own.
    pub(crate) shared_receives: u32,
    /// Faults of the target's provider.
    pub(crate) target_faults: Faults,
    /// Faults, and the number of completed calls after which each starts.
    pub(crate) faults: Vec<(u64, Fault)>,
    /// Number of ports, which hosts use in turn.
    pub(crate) ports: u16,
    /// Reactors of the target, over which connections are spread.
    pub(crate) reactors: usize,
    /// Namespaces that are removed while hosts use them, and the number of completed calls
    /// after which each is removed.
    pub(crate) removals: Vec<(u64, Removal)>,
    /// In-band authentication; `None`: hosts have no keys.
    pub(crate) authentication: Option<AuthenticationPlan>,
    /// Reservations; `None`: hosts have none.
    pub(crate) reservations: Option<ReservationPlan>,
    /// Whether the target crashes after the last flush.
    pub(crate) crash_at_end: bool,
}

/// One disk and the namespace on it.
#[derive(Clone, Debug)]
pub(crate) struct DiskShape {
    pub(crate) blocks: u64,
    pub(crate) block_size: u64,
    /// Whether it can deallocate; deallocated blocks read as zero.
    pub(crate) deallocate: bool,
    /// Whether it has a write cache that a crash empties.
    pub(crate) volatile: bool,
    /// Whether some flushes fail and lose the data that they should make stable.
    pub(crate) forgets: bool,
    /// Bytes the address of every buffer must be a multiple of.
    pub(crate) alignment: u32,
    /// Whether hosts use it without checks of its contents. There is at most one, the last.
    pub(crate) scratch: bool,
}

/// One host.
#[derive(Clone, Debug)]
pub(crate) struct HostShape {
    /// Entries of each I/O queue.
    pub(crate) queues: Vec<u16>,
    pub(crate) flow_control: bool,
    /// Most bytes of in-capsule data.
    pub(crate) in_capsule: u32,
    pub(crate) keep_alive: Duration,
    pub(crate) command_timeout: Duration,
    /// Calls it makes in all.
    pub(crate) calls: u64,
    /// Calls it has in flight at most.
    pub(crate) at_once: usize,
    /// Faults of its provider.
    pub(crate) faults: Faults,
}

/// In-band authentication of all hosts.
#[derive(Clone, Debug, Default)]
pub(crate) struct AuthenticationPlan {
    /// Whether the controller proves a key as well.
    pub(crate) is_mutual: bool,
    /// Whether the subsystem accepts only hosts with a key. Those that have one are authenticated
    /// in any case.
    pub(crate) is_required: bool,
    /// Number of the preferred hash function of the target.
    pub(crate) hash: usize,
    /// Maximum time of a computation of the target.
    pub(crate) slowest: Duration,
    /// Changes of keys, and the number of completed calls after which each begins.
    pub(crate) steps: Vec<(u64, KeyStep)>,
    /// Peers that use the names of hosts and do not have their keys.
    pub(crate) imposters: usize,
}

/// Reservations, and the keeper of the settings.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ReservationPlan {
    /// Calls that are reservation commands.
    pub(crate) calls: OneIn,
    /// Maximum time of a save.
    pub(crate) slowest: Duration,
    /// Saves that fail.
    pub(crate) fails: OneIn,
}

/// A change of keys.
#[derive(Clone, Copy, Debug)]
pub(crate) enum KeyStep {
    /// All queues of a host are authenticated again.
    Reauthenticate(usize),
    /// A host gets a new key: the target accepts it, then the host gets it after the first of
    /// these times, then the target accepts the old one for the second of them.
    Rotate { host: usize, after: [Duration; 2] },
}

/// A namespace is removed, or inaccessible, for a time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Removal {
    /// The number of its disk; `None`: one that hosts do not use.
    pub(crate) ns: Option<usize>,
    /// The port on which it is inaccessible; `None`: it is removed.
    pub(crate) through: Option<u16>,
    pub(crate) for_how_long: Duration,
}

/// A fault.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Fault {
    /// All connections of a host break.
    Reset(usize),
    /// No connectivity between a host and the target for a time.
    Cut(usize, Duration),
    /// One side closes its half of all connections.
    HalfClose { host: usize, by_target: bool },
    /// The host's process crashes; silently, if the network fails with it.
    HostCrash { host: usize, silent: bool },
    /// The host's process stalls.
    HostStalls(usize, Duration),
    /// The target loses power and restarts.
    TargetCrash,
    /// The target drains, ends and restarts.
    TargetDrain,
    /// Disk operations take up to this long, for a time.
    SlowDisk(Duration, Duration),
    /// Disk operations fail, for a time.
    BadDisk(Duration),
    /// Bits are corrupted on the network, for a time.
    Corruption(Duration),
    /// The next connections are refused.
    Refuse(u32),
}

impl Fault {
    /// This fault, or the most similar one without a network.
    fn without_network(self) -> Self {
        match self {
            Self::Reset(host)
            | Self::Cut(host, _)
            | Self::HalfClose { host, .. }
            | Self::HostCrash { host, .. } => Self::HostCrash {
                host,
                silent: false,
            },
            Self::Corruption(how_long) => Self::BadDisk(how_long),
            Self::Refuse(_) => Self::TargetCrash,
            other => other,
        }
    }
}

/// Most bytes of payload of one call.
pub(crate) const LONGEST: u64 = LONGEST_BUFFER as u64;
/// The same as a length in memory.
pub(crate) const LONGEST_BUFFER: usize = 64 << 10;

const MICRO: fn(u64) -> Duration = Duration::from_micros;
const MILLI: fn(u64) -> Duration = Duration::from_millis;

impl Plan {
    /// The plan of `seed`.
    pub(crate) fn new(seed: u64) -> Self {
        let mut dice = Dice::new(seed ^ 0x6e76_6d65_6f66);
        let dice = &mut dice;
        let crc = dice.happens(OneIn(2));
        let hosts: Vec<HostShape> = (0..=dice.below(2)).map(|_| host(dice)).collect();
        let calls = hosts.iter().map(|host| host.calls).sum();
        let faults = faults(dice, calls, hosts.len(), crc);
        let deepest = hosts.iter().flat_map(|host| &host.queues).max();
        let mut plan = Self {
            seed,
            disks: (0..=dice.below(3)).map(|at| disk(dice, at)).collect(),
            limits: Limits {
                queue_depth: deepest.copied().unwrap_or(2).max(8),
                io_queues: 4,
                controllers: 16,
                max_transfer: 8192 << dice.below(3),
                in_capsule: [0, 512, 4096, 8192][dice.below(4)],
                connect_timeout: MILLI(500),
                traffic_keep_alive: dice.happens(OneIn(2)),
                ..Limits::default()
            },
            hosts,
            net: net(dice),
            by_memory: by_memory(seed),
            crc,
            temper: calm(dice),
            target_buffers: 1 + dice.below(12),
            shared_receives: shared_receives(seed),
            target_faults: match dice.below(4) {
                0 => Faults {
                    seed: dice.roll(),
                    disconnect: OneIn(2000),
                    delay: OneIn(20),
                    delay_polls: 4,
                    ..Faults::default()
                },
                _ => Faults::default(),
            },
            faults,
            ports: ports(seed),
            reactors: reactors(seed),
            removals: Vec::new(),
            authentication: None,
            reservations: None,
            crash_at_end: dice.happens(OneIn(2)),
        };
        if plan.limits.in_capsule > Limits::LISTS_UP_TO {
            plan.limits.max_descriptors = 1;
        }
        plan.removals = removals(seed, calls, plan.disks.len());
        let unreachable = inaccessible(seed, calls, &plan);
        plan.removals.extend(unreachable);
        plan.removals.sort_by_key(|(after, _)| *after);
        plan.press();
        plan.reserve(calls);
        plan.authenticate(calls);
        plan.cut_into_segments();
        plan.forget();
        if plan.by_memory {
            plan.net.chances = SimChances::default();
            for (_, fault) in &mut plan.faults {
                *fault = fault.without_network();
            }
        }
        if plan.is_peaceful() {
            // For any number of calls that wait for a slow disk.
            for host in &mut plan.hosts {
                host.command_timeout = COMMAND_TIMEOUT;
            }
        }
        plan
    }

    /// With a separate random generator, so that other decisions of a seed do not change.
    fn cut_into_segments(&mut self) {
        let mut dice = Dice::new(self.seed ^ 0x656d_7373);
        let segments = [None, None, Some(536), Some(1460), Some(8960)];
        self.net.segment = segments[dice.below(5)];
    }

    /// For some seeds, with a separate random generator: more hosts, which send long and short
    /// commands of every kind to a scratch disk, and few buffers.
    fn press(&mut self) {
        let mut dice = Dice::new(self.seed ^ 0x7072_6573);
        if !dice.happens(OneIn(3)) {
            return;
        }
        let hosts = 2 + dice.below(3);
        while self.hosts.len() < hosts {
            self.hosts.push(HostShape {
                calls: 40 + dice.below(80) as u64,
                ..host(&mut dice)
            });
        }
        let deepest = self.hosts.iter().flat_map(|host| &host.queues).max();
        let deepest = deepest.copied().unwrap_or(2);
        self.limits.queue_depth = self.limits.queue_depth.max(deepest);
        self.target_buffers = 1 + dice.below(3);
        self.disks.push(DiskShape {
            blocks: SCRATCH / 512,
            block_size: 512,
            deallocate: true,
            volatile: false,
            forgets: false,
            alignment: [1, 512, 4096][dice.below(3)],
            scratch: true,
        });
    }

    /// For some seeds, with a separate random generator: two hosts or more reserve the disks, and
    /// the target may lose power once more.
    fn reserve(&mut self, calls: u64) {
        let mut dice = Dice::new(self.seed ^ 0x7265_7376);
        if !dice.happens(OneIn(10)) {
            return;
        }
        let hosts = 2 + dice.below(2);
        while self.hosts.len() < hosts {
            self.hosts.push(host(&mut dice));
        }
        let deepest = self.hosts.iter().flat_map(|host| &host.queues).max();
        let deepest = deepest.copied().unwrap_or(2);
        self.limits.queue_depth = self.limits.queue_depth.max(deepest);
        // Hosts often write the same blocks, and often for a long time.
        for disk in self.disks.iter_mut().filter(|disk| !disk.scratch) {
            disk.blocks = disk.blocks.min(4 + dice.below(28) as u64);
        }
        if dice.happens(OneIn(2)) {
            self.temper.latency = MICRO(0)..=MICRO(5000);
        }
        if dice.happens(OneIn(3)) {
            self.faults.push((dice.roll() % calls, Fault::TargetCrash));
            self.faults.sort_by_key(|(after, _)| *after);
        }
        self.reservations = Some(ReservationPlan {
            calls: OneIn([4, 8, 16][dice.below(3)]),
            slowest: MILLI([0, 1, 20, 200][dice.below(4)]),
            fails: OneIn([0, 20, 5][dice.below(3)]),
        });
    }

    /// For some seeds, with a separate random generator: hosts have keys, and some of them
    /// imposters beside them.
    fn authenticate(&mut self, calls: u64) {
        let mut dice = Dice::new(self.seed ^ 0x6175_7468);
        if !dice.happens(OneIn(5)) {
            return;
        }
        let hosts = self.hosts.len();
        let count = [0, 1, 2, 4][dice.below(4)];
        let mut steps: Vec<_> = (0..count)
            .map(|_| (dice.roll() % calls, key_step(&mut dice, hosts)))
            .collect();
        steps.sort_by_key(|(after, _)| *after);
        let imposters = [0, 1, 3, 8][dice.below(4)];
        let plan = AuthenticationPlan {
            is_mutual: dice.happens(OneIn(2)),
            is_required: dice.happens(OneIn(2)),
            hash: dice.below(3),
            slowest: MILLI([0, 1, 20][dice.below(3)]),
            steps,
            // Shared memory has no addresses to tell them from hosts.
            imposters: if self.by_memory { 0 } else { imposters },
        };
        if plan.imposters > 0 {
            // Room for all queues of all hosts at once, and less than imposters may open.
            self.limits.unconnected = u16::try_from(5 * hosts + 2).unwrap();
        }
        self.authentication = Some(plan);
    }

    /// Queue pairs that imposters have at most.
    pub(crate) fn imposter_queues(&self) -> usize {
        let plan = self.authentication.as_ref();
        // Those of the attempt before may be closing.
        plan.map_or(0, |plan| 4 * plan.imposters)
    }

    /// With a separate random generator as well.
    fn forget(&mut self) {
        let mut dice = Dice::new(self.seed ^ 0x666f_7267);
        for disk in &mut self.disks {
            disk.forgets = disk.volatile && dice.happens(OneIn(3));
        }
    }

    /// Whether there are no faults, so that no connection may be lost.
    pub(crate) fn is_peaceful(&self) -> bool {
        let chances = &self.net.chances;
        let by_chance = [
            chances.reset,
            chances.corrupt,
            chances.refuse,
            chances.stall,
        ];
        let none = Faults::default();
        self.faults.is_empty()
            && by_chance == [OneIn(0); 4]
            && self.target_faults == none
            && self.hosts.iter().all(|host| host.faults == none)
    }

    /// Whether bits are corrupted on the network.
    pub(crate) fn has_corruption(&self) -> bool {
        let mut faults = self.faults.iter();
        faults.any(|(_, fault)| matches!(fault, Fault::Corruption(_)))
    }
}

/// Bytes of the scratch disk.
const SCRATCH: u64 = 256 << 10;

/// A command time-out that no queue of commands reaches.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(30);

fn disk(dice: &mut Dice, at: usize) -> DiskShape {
    let block_size = if (at + dice.below(2)).is_multiple_of(2) {
        512
    } else {
        4096
    };
    let blocks = match block_size {
        512 => 16 + dice.below(180),
        _ => 8 + dice.below(40),
    };
    DiskShape {
        blocks: blocks as u64,
        block_size,
        deallocate: !dice.happens(OneIn(3)),
        volatile: !dice.happens(OneIn(4)),
        forgets: false,
        alignment: [1, 512, 4096][dice.below(3)],
        scratch: false,
    }
}

fn host(dice: &mut Dice) -> HostShape {
    let depths = [2, 3, 4, 8, 16, 32];
    let queues = (0..=dice.below(3)).map(|_| depths[dice.below(depths.len())]);
    HostShape {
        queues: queues.collect(),
        flow_control: dice.happens(OneIn(2)),
        in_capsule: [0, 512, 4096, 1 << 20][dice.below(4)],
        keep_alive: MILLI([0, 100, 400, 2000][dice.below(4)]),
        command_timeout: MILLI([300, 1000, 5000][dice.below(3)]),
        calls: 80 + dice.below(300) as u64,
        at_once: 1 + dice.below(24),
        faults: match dice.below(4) {
            0 => Faults {
                seed: dice.roll(),
                refuse_post: OneIn(40),
                refuse_expose: OneIn(30),
                disconnect: OneIn(1000),
                delay: OneIn(20),
                delay_polls: 4,
                ..Faults::default()
            },
            _ => Faults::default(),
        },
    }
}

fn net(dice: &mut Dice) -> SimConfig {
    SimConfig {
        latency: match dice.below(4) {
            0 => MICRO(0)..=MICRO(0),
            1 => MICRO(0)..=MICRO(3000),
            _ => MICRO(1)..=MICRO(50),
        },
        window: match dice.below(4) {
            0 => 2048..=8192,
            _ => 8192..=1 << 20,
        },
        longest_piece: [1000, 9000, 65_536][dice.below(3)],
        segment: None,
        chances: match dice.below(5) {
            0 => SimChances {
                reset: OneIn(4000),
                refuse: OneIn(5),
                stall: OneIn(400),
                stall_for: MILLI(3),
                ..SimChances::default()
            },
            _ => SimChances::default(),
        },
    }
}

fn key_step(dice: &mut Dice, hosts: usize) -> KeyStep {
    let host = dice.below(hosts);
    let times = [0, 100, 5000, 100_000];
    match dice.below(2) {
        0 => KeyStep::Reauthenticate(host),
        _ => KeyStep::Rotate {
            host,
            after: [(); 2].map(|()| MICRO(times[dice.below(4)])),
        },
    }
}

/// Behaviour of disks without faults.
pub(crate) fn calm(dice: &mut Dice) -> Temper {
    Temper {
        latency: match dice.below(4) {
            0 => MICRO(0)..=MICRO(0),
            1 => MICRO(0)..=MICRO(5000),
            _ => MICRO(5)..=MICRO(200),
        },
        stalls: (OneIn(0), Duration::ZERO),
        eio: OneIn(0),
        enospc: OneIn(0),
        room: 2 + dice.below(64),
    }
}

/// With a separate random generator, so that other decisions of a seed do not change.
fn shared_receives(seed: u64) -> u32 {
    let mut dice = Dice::new(seed ^ 0x7372_7100);
    [0, 0, 8, 64, 350][dice.below(5)]
}

/// With a separate random generator as well.
fn by_memory(seed: u64) -> bool {
    Dice::new(seed ^ 0x7368_6d00).happens(OneIn(5))
}

/// With a separate random generator as well.
fn removals(seed: u64, calls: u64, disks: usize) -> Vec<(u64, Removal)> {
    let mut dice = Dice::new(seed ^ 0x6c69_7665);
    let count = [0, 0, 0, 1, 3, 8][dice.below(6)];
    let removals = (0..count).map(|_| {
        let removal = Removal {
            ns: (!dice.happens(OneIn(3))).then(|| dice.below(disks)),
            through: None,
            for_how_long: MICRO([0, 30, 1000, 50_000][dice.below(4)]),
        };
        (dice.roll() % calls, removal)
    });
    removals.collect()
}

/// With a separate random generator.
fn ports(seed: u64) -> u16 {
    let mut dice = Dice::new(seed ^ 0x706f_7274);
    [1, 2, 3][dice.below(3)]
}

/// With a separate random generator as well.
fn reactors(seed: u64) -> usize {
    let mut dice = Dice::new(seed ^ 0x7265_6163);
    [1, 1, 2, 3][dice.below(4)]
}

/// Namespaces that are inaccessible on a port for a time, with a separate random generator.
fn inaccessible(seed: u64, calls: u64, plan: &Plan) -> Vec<(u64, Removal)> {
    let mut dice = Dice::new(seed ^ 0x616e_6100);
    let count = [0, 0, 1, 3, 8][dice.below(5)];
    let spells = (0..count).map(|_| {
        let spell = Removal {
            ns: (!dice.happens(OneIn(4))).then(|| dice.below(plan.disks.len())),
            through: u16::try_from(dice.below(plan.ports.into())).ok(),
            for_how_long: MICRO([0, 30, 1000, 50_000][dice.below(4)]),
        };
        (dice.roll() % calls, spell)
    });
    spells.collect()
}

fn faults(dice: &mut Dice, calls: u64, hosts: usize, crc: bool) -> Vec<(u64, Fault)> {
    let count = [0, 0, 1, 2, 3, 4, 6][dice.below(7)];
    let mut faults: Vec<(u64, Fault)> = (0..count)
        .map(|_| (dice.roll() % calls, fault(dice, dice_host(hosts), crc)))
        .collect();
    faults.sort_by_key(|(after, _)| *after);
    faults
}

/// Chooses a host at random.
fn dice_host(hosts: usize) -> impl Fn(&mut Dice) -> usize {
    move |dice| dice.below(hosts)
}

fn fault(dice: &mut Dice, host: impl Fn(&mut Dice) -> usize, crc: bool) -> Fault {
    let host = host(dice);
    let a_while = MILLI([1, 5, 50, 700, 4000][dice.below(5)]);
    match dice.below(14) {
        1 | 2 => Fault::Cut(host, a_while),
        3 => Fault::HalfClose {
            host,
            by_target: dice.happens(OneIn(2)),
        },
        4 => Fault::HostCrash {
            host,
            silent: dice.happens(OneIn(2)),
        },
        5 => Fault::HostStalls(host, a_while),
        6..=8 => Fault::TargetCrash,
        9 => Fault::TargetDrain,
        10 => Fault::SlowDisk(a_while, MILLI(20)),
        11 => Fault::BadDisk(MILLI(5)),
        12 if crc => Fault::Corruption(MILLI(5)),
        13 => Fault::Refuse(1 + u32::try_from(dice.below(3)).unwrap()),
        _ => Fault::Reset(host),
    }
}
