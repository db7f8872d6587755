//! The plan of one seed: sizes, probabilities and faults.

use std::time::Duration;

use nvmeof_initiator_core::multipath::PathPolicy;
use nvmeof_rdma_layers::{Dice, Faults as ProviderFaults, OneIn};
use nvmeof_rdma_sim::SimConfig;
use nvmeof_target_core::Limits;
use nvmeof_wire::log::ana::AnaState;

use super::{Faults, HostKind, Mechanism, Mode};
use crate::disk::Temper;
use crate::plan::{DiskShape, HostShape};

/// Paths of the host.
pub(super) const PATHS: usize = 2;

/// All decisions before a run.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    pub(super) seed: u64,
    pub(super) mode: Mode,
    pub(super) paths: Vec<HostShape>,
    pub(super) limits: Limits,
    pub(super) net: SimConfig,
    pub(super) reactors: usize,
    pub(super) disk: DiskShape,
    pub(super) temper: Temper,
    /// Outstanding calls, at most.
    pub(super) at_once: usize,
    /// Longest time between two calls.
    pub(super) pause: Duration,
    /// How long there are calls and faults.
    pub(super) time: Duration,
    /// Faults with their times.
    pub(super) faults: Vec<(Duration, Fault)>,
    /// How the initiator chooses paths.
    pub(super) policy: PathPolicy,
    /// Whether two threads drive the initiator, which wake each other.
    pub(super) has_threads: bool,
}

/// A fault.
#[derive(Clone, Copy, Debug)]
pub(super) enum Fault {
    /// Nothing arrives on a path for a time, without a notification.
    Cut(usize, Duration),
    /// The same on all paths.
    CutAll(Duration),
    /// The connections of a path break.
    Reset(usize),
    /// The target drains, ends and restarts.
    Drain,
    /// The process of the target dies. Its operations at backing stores complete.
    Death,
    /// Power loss of target and backing stores.
    PowerLoss,
    /// A path gets this ANA state, and the other one is optimized.
    Ana(usize, AnaState),
}

const MICRO: fn(u64) -> Duration = Duration::from_micros;
const MILLI: fn(u64) -> Duration = Duration::from_millis;

/// The longest operation of a backing store stalls that long, and has two pieces.
const LONGEST_STALL: Duration = Duration::from_millis(3500);
/// CQT in seconds: longer than that by the time that the target takes to close queues.
const QUIESCE_TIME_S: u32 = 4;
/// The same if CQT is wrong.
const WRONG_STALL: Duration = Duration::from_secs(8);
const WRONG_QUIESCE_TIME_S: u32 = 1;
/// A command time-out that no stall reaches.
const LONGEST_CALL: Duration = Duration::from_secs(30);

impl Plan {
    pub(super) fn new(seed: u64, mode: Mode) -> Self {
        let mut dice = Dice::new(seed ^ 0x7061_7468);
        let dice = &mut dice;
        let paths: Vec<HostShape> = (0..PATHS).map(|_| path(dice, mode.faults)).collect();
        let time = MILLI(4000 + dice.roll() % 8000);
        let latency = match (mode.faults, dice.below(4)) {
            // A command that the host sends again arrives after the notification.
            (Faults::Notified, _) => MICRO(30)..=MICRO(50),
            (Faults::Any, 0) => MICRO(0)..=MICRO(0),
            (Faults::Any, 1) => MICRO(0)..=MICRO(3000),
            (Faults::Any, _) => MICRO(1)..=MICRO(50),
        };
        let mut plan = Self {
            seed,
            mode,
            paths,
            limits: Limits {
                queue_depth: 32,
                io_queues: 4,
                controllers: 32,
                max_transfer: 8192,
                in_capsule: [0, 4096][dice.below(2)],
                connect_timeout: MILLI(500),
                traffic_keep_alive: dice.happens(OneIn(2)),
                quiesce_time_s: match mode.lacks(Mechanism::QuiesceTime) {
                    true => WRONG_QUIESCE_TIME_S,
                    false => QUIESCE_TIME_S,
                },
                ..Limits::default()
            },
            net: SimConfig {
                latency,
                ..SimConfig::default()
            },
            reactors: 1 + dice.below(3),
            disk: DiskShape {
                blocks: 3 + dice.roll() % 6,
                block_size: 512,
                deallocate: false,
                volatile: dice.happens(OneIn(2)),
                forgets: false,
                alignment: 1,
                scratch: false,
            },
            temper: Temper {
                latency: MICRO(5)..=MICRO([200, 5000][dice.below(2)]),
                stalls: stalls(dice, mode),
                eio: OneIn(0),
                enospc: OneIn(0),
                room: 2 + dice.below(64),
            },
            at_once: 8 + dice.below(24),
            pause: MILLI([10, 40, 80][dice.below(3)]),
            time,
            faults: faults(dice, mode.faults, time),
            policy: PathPolicy::default(),
            has_threads: false,
        };
        if mode.host == HostKind::Initiator {
            plan.draw_initiator(dice);
        }
        plan
    }

    /// What concerns the initiator only; last, so that it changes no plan of another host.
    fn draw_initiator(&mut self, dice: &mut Dice) {
        use PathPolicy::{Latency, Numa, QueueDepth, RoundRobin};
        self.policy = [Numa, RoundRobin, QueueDepth, Latency][dice.below(4)];
        self.has_threads = dice.happens(OneIn(2));
        let most = u64::try_from(self.time.as_millis()).unwrap();
        for _ in 0..dice.below(5) {
            let at = MILLI(dice.roll() % most);
            self.faults.push((at, ana(dice)));
        }
        self.faults.sort_by_key(|(at, _)| *at);
        if dice.happens(OneIn(2)) {
            for path in &mut self.paths {
                path.faults = ProviderFaults {
                    refuse_register: OneIn(100),
                    disconnect: OneIn(2000),
                    delay: OneIn(20),
                    delay_polls: 5,
                    ..ProviderFaults::default()
                };
            }
        }
    }
}

fn ana(dice: &mut Dice) -> Fault {
    let states = [
        AnaState::OPTIMIZED,
        AnaState::NON_OPTIMIZED,
        AnaState::INACCESSIBLE,
    ];
    Fault::Ana(dice.below(PATHS), states[dice.below(states.len())])
}

fn path(dice: &mut Dice, faults: Faults) -> HostShape {
    let queues = (0..=dice.below(2)).map(|_| [8, 32][dice.below(2)]);
    HostShape {
        queues: queues.collect(),
        flow_control: dice.happens(OneIn(2)),
        in_capsule: 4096,
        keep_alive: Duration::from_secs(1 + dice.roll() % 2),
        command_timeout: match (faults, MILLI([300, 1000, 5000][dice.below(3)])) {
            (Faults::Any, timeout) => timeout,
            // The target detects the end of the connection later than the host.
            (Faults::Notified, _) => LONGEST_CALL,
        },
        calls: 0,
        at_once: 0,
        faults: ProviderFaults::default(),
    }
}

/// The share of operations that stall, and for how long at most.
fn stalls(dice: &mut Dice, mode: Mode) -> (OneIn, Duration) {
    let share = OneIn([15, 40, 100][dice.below(3)]);
    let longest = [MILLI(300), MILLI(1200), LONGEST_STALL][dice.below(3)];
    match mode.lacks(Mechanism::QuiesceTime) {
        true => (OneIn(15), WRONG_STALL),
        false => (share, longest),
    }
}

fn faults(dice: &mut Dice, kinds: Faults, time: Duration) -> Vec<(Duration, Fault)> {
    let most = u64::try_from(time.as_millis()).unwrap();
    let count = 3 + dice.below(8);
    let mut faults: Vec<_> = (0..count)
        .map(|_| (MILLI(dice.roll() % most), fault(dice, kinds)))
        .collect();
    faults.sort_by_key(|(at, _)| *at);
    faults
}

fn fault(dice: &mut Dice, kinds: Faults) -> Fault {
    let path = dice.below(PATHS);
    let for_how_long = MILLI([200, 800, 1500, 3000, 6000][dice.below(5)]);
    match (kinds, dice.below(10)) {
        (_, 0) => Fault::Drain,
        (_, 1) => Fault::Death,
        (_, 2) => Fault::PowerLoss,
        (Faults::Any, 4) => Fault::CutAll(for_how_long),
        (Faults::Any, 5..) => Fault::Cut(path, for_how_long),
        _ => Fault::Reset(path),
    }
}
