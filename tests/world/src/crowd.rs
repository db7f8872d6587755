//! One honest host beside hostile peers of one reactor, in virtual time: its throughput and
//! latency.
//!
//! The honest host uses the polled interface of the initiator; hostile peers build their
//! own frames. CPU time takes no virtual time: the measurement shows the effect of buffers
//! and of the order of service.

mod peer;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use nvmeof_initiator::polled::Done;
use nvmeof_initiator_core::{Blocks, Operation};
use nvmeof_memory::{ClassSpec, Classes, Pages};
use nvmeof_rdma::{Address, Provider};
use nvmeof_rdma_layers::{Dice, Faults};
use nvmeof_rdma_sim::{NetworkFault, SimConfig, SimNet};
use nvmeof_target_core::{Limits, Model, Target};
use nvmeof_target_engine::ReactorConfig;

use crate::disk::{Disks, Temper};
use crate::host::Host;
use crate::medium::Medium;
use crate::plain::{self, BLOCK, PORT, TARGET};
use crate::plan::{DiskShape, HostShape};
use crate::world::Reactors;
pub use peer::Habit;
use peer::Hostile;

/// The peers, and the workload of the honest host.
#[derive(Clone, Debug)]
pub struct Crowd {
    /// The seed of all random decisions.
    pub seed: u64,
    /// Hostile peers.
    pub hostile: usize,
    /// Their behaviour.
    pub habit: Habit,
    /// Commands whose data a turncoat moves before it stops.
    pub good: usize,
    /// Their addresses.
    pub addresses: Addresses,
    /// Bytes of each command of the honest host, and of theirs.
    pub length: u32,
    /// Its outstanding commands.
    pub depth: usize,
    /// Duration of its workload.
    pub time: Duration,
    /// Duration of a network pause between it and the target, after a third of that time.
    pub pause: Duration,
}

/// Addresses of hostile peers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Addresses {
    /// Each has its own.
    Own,
    /// All have the address of the honest host.
    Shared,
    /// All have one address, not that of the honest host.
    OneElsewhere,
}

/// The service of the honest host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Service {
    /// Completed commands.
    pub completed: u64,
    /// The longest latency of a command, including outstanding ones.
    pub longest: Duration,
    /// Number of disconnects of hostile peers.
    pub disconnected: u64,
}

const BLOCKS: u64 = 1 << 9;
/// Outstanding commands of all flooding peers: each takes run time.
const COMMANDS: usize = 128;
/// Time for peers to connect before the measurement.
const ARRIVAL: Duration = Duration::from_millis(100);
/// The target's buffers: a quarter of the default of one reactor, but the same number of the
/// longest ones.
const BUFFERS: [(usize, usize); 4] = [(4096, 256), (32 << 10, 64), (256 << 10, 20), (1 << 20, 10)];

/// Connects the honest host, then the hostile peers, then runs the workload.
///
/// # Errors
/// When a command of the honest host fails, or there is a deadlock.
pub fn run(crowd: &Crowd) -> Result<Service, String> {
    let mut scene = Scene::new(crowd);
    scene.run_until(|scene| scene.honest.is_up())?;
    scene.arrive();
    let from = scene.net.now() + ARRIVAL;
    scene.run_until(|scene| scene.net.now() >= from)?;
    scene.works = true;
    let end = from + crowd.time;
    if !crowd.pause.is_zero() {
        let cut = from + crowd.time / 3;
        scene.run_until(|scene| scene.net.now() >= cut)?;
        let honest = scene.honest.ip;
        scene.net.inject(NetworkFault::Cut(honest, TARGET));
        scene.run_until(|scene| scene.net.now() >= cut + crowd.pause)?;
        scene.net.inject(NetworkFault::Heal(honest, TARGET));
    }
    scene.run_until(|scene| scene.net.now() >= end)?;
    Ok(scene.service())
}

struct Scene {
    crowd: Crowd,
    net: SimNet,
    disks: Disks,
    reactors: Reactors,
    honest: Host,
    hostile: Vec<Hostile>,
    /// Whether the honest host makes calls, and those that it made.
    works: bool,
    calls: BTreeMap<u64, Duration>,
    made: u64,
    completed: u64,
    longest: Duration,
    wake_at: Duration,
}

impl Scene {
    fn new(crowd: &Crowd) -> Self {
        let mut dice = Dice::new(crowd.seed);
        let config = SimConfig {
            window: 16 << 10..=64 << 10,
            ..SimConfig::default()
        };
        let net = SimNet::new(dice.roll(), config);
        let medium = Medium::Net {
            net: net.clone(),
            crc: false,
        };
        let (shape, temper) = disk(crowd.length);
        let disks = Disks::new(net.clone(), dice.roll(), &[shape], temper);
        let target = Target::new(model());
        let provider = medium.provider(TARGET);
        let reactors = start(&target, &disks, provider, net.now());
        let address = Address::from((TARGET, PORT));
        let mut honest = Host::new(0, shape_of(crowd), &medium, address, dice.roll());
        let own = ClassSpec {
            len: crowd.length as usize,
            count: crowd.depth,
        };
        honest.buffers = Classes::new(&[own], Pages::Normal).unwrap();
        Self {
            crowd: crowd.clone(),
            net,
            disks,
            reactors,
            honest,
            hostile: Vec::new(),
            works: false,
            calls: BTreeMap::new(),
            made: 0,
            completed: 0,
            longest: Duration::ZERO,
            wake_at: Duration::ZERO,
        }
    }

    /// Connects the hostile peers.
    fn arrive(&mut self) {
        let honest = self.honest.ip;
        for number in 0..self.crowd.hostile {
            let number = u8::try_from(number).unwrap();
            let ip = match self.crowd.addresses {
                Addresses::Own => IpAddr::from([10, 0, 1, number]),
                Addresses::Shared => honest,
                Addresses::OneElsewhere => IpAddr::from([10, 0, 1, 0]),
            };
            let habit = self.crowd.habit.of(number.into());
            let streams = self.net.streams(ip);
            let target = Address::from((TARGET, PORT));
            let each = COMMANDS / self.crowd.hostile.max(1);
            let mut hostile = Hostile::new(number, habit, self.crowd.length, streams, target);
            hostile.flood_by(each);
            hostile.good = self.crowd.good;
            self.hostile.push(hostile);
        }
        self.wake_at = self.net.now() + ARRIVAL;
    }

    fn run_until(&mut self, done: impl Fn(&Self) -> bool) -> Result<(), String> {
        while !done(self) {
            self.step()?;
        }
        Ok(())
    }

    fn step(&mut self) -> Result<(), String> {
        let now = self.net.now();
        self.disks.advance();
        let polled = self.reactors.poll_once(now, &self.disks);
        let mut progress = polled.map_err(|wrong| wrong.0)?.worked;
        for hostile in &mut self.hostile {
            progress |= hostile.poll_once(now);
        }
        progress |= self.poll_honest(now)?;
        if progress {
            return Ok(());
        }
        let next = [self.disks.next_at(), self.honest.next_deadline(now)];
        let next = next.into_iter().flatten();
        // Limits each step of time, so that delays are observed.
        let next = next.chain([now + Duration::from_millis(50)]);
        let until = next.chain(self.reactors.next_at(now)).min();
        match self.net.advance_to_next(until) {
            true => Ok(()),
            false => Err("deadlock: no event and no deadline is pending".to_owned()),
        }
    }

    fn poll_honest(&mut self, now: Duration) -> Result<bool, String> {
        let mut done = Vec::new();
        let mut progress = self.honest.poll(now, &mut done)?;
        for Done { user, result, .. } in done {
            let since = self.calls.remove(&user).ok_or("a call completed twice")?;
            result.map_err(|error| format!("a command of the honest host failed: {error}"))?;
            self.completed += 1;
            self.longest = self.longest.max(now - since);
        }
        while self.works && self.calls.len() < self.crowd.depth && self.honest.is_up() {
            let length = self.crowd.length;
            let Some(buf) = self.honest.buffers.take(length as usize) else {
                break;
            };
            self.made += 1;
            let operation = match self.made % 2 {
                0 => Operation::Read,
                _ => Operation::Write,
            };
            let work = Blocks {
                operation,
                nsid: 1,
                block_shift: u8::try_from(BLOCK.trailing_zeros()).unwrap(),
                slba: 0,
                count: u64::from(length / BLOCK),
                fua: false,
            };
            let sent = self
                .honest
                .submit(0, work.into(), Some(buf), self.made, now);
            sent.map_err(|refused| refused.why.to_string())?;
            self.calls.insert(self.made, now);
            progress = true;
        }
        Ok(progress)
    }

    fn service(&self) -> Service {
        let now = self.net.now();
        let waits = self.calls.values().map(|since| now - *since).max();
        Service {
            completed: self.completed,
            longest: self.longest.max(waits.unwrap_or_default()),
            disconnected: self.hostile.iter().map(|one| one.disconnected).sum(),
        }
    }
}

fn start(target: &Target, disks: &Disks, provider: Box<dyn Provider>, now: Duration) -> Reactors {
    let config = ReactorConfig {
        shared_receives: 0,
        capsules: 8192,
        data: BUFFERS
            .map(|(len, count)| ClassSpec { len, count })
            .to_vec(),
        pages: Pages::Normal,
        stall: Duration::from_secs(30),
        drain: Duration::from_secs(2),
    };
    let addresses = [Address::from((TARGET, PORT))];
    Reactors::start(&config, target, disks, vec![provider], &addresses, now)
}

fn model() -> Model {
    let limits = Limits {
        queue_depth: 64,
        io_queues: 2,
        controllers: 512,
        max_transfer: 1 << 20,
        in_capsule: 4096,
        ..Limits::default()
    };
    plain::model(limits, BLOCKS, false)
}

/// A disk with room for all, whose delays grow with the length of a command, to limit the
/// bytes of a run.
fn disk(length: u32) -> (DiskShape, Temper) {
    let latency = Duration::from_millis(if length > 256 << 10 { 10 } else { 4 });
    plain::disk(BLOCKS, latency, 10_000)
}

fn shape_of(crowd: &Crowd) -> HostShape {
    HostShape {
        queues: vec![64],
        flow_control: true,
        // All data are transferred by RDMA.
        in_capsule: 0,
        keep_alive: Duration::from_secs(5),
        command_timeout: crowd.time + Duration::from_secs(60),
        calls: 0,
        at_once: crowd.depth,
        faults: Faults::default(),
    }
}
