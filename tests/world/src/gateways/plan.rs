//! The plan of one seed: sizes, delays and faults.

use std::time::Duration;

use nvmeof_rdma_layers::{Dice, OneIn};
use nvmeof_target_ha::Failback;

use super::{Faults, Mode};

/// All decisions before a run.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    pub(super) seed: u64,
    pub(super) mode: Mode,
    pub(super) gateways: usize,
    pub(super) hosts: usize,
    pub(super) groups: u32,
    /// Objects of each group.
    pub(super) objects: u64,
    pub(super) osds: usize,
    /// Drift of the clock of each gateway in thousandths.
    pub(super) drift: Vec<i32>,
    /// Longest usual delay of a message.
    pub(super) latency: Duration,
    /// Chance of a message that takes up to 300 ms.
    pub(super) late: OneIn,
    /// Longest time until an OSD learns of a new map by itself.
    pub(super) map_delay: Duration,
    /// Longest time of a blocklist command.
    pub(super) fence_delay: Duration,
    /// Chance that the reply of a record operation is lost.
    pub(super) lost: OneIn,
    /// Chance that a record operation is given up although it takes effect later.
    pub(super) given_up: OneIn,
    pub(super) failback: Failback,
    /// Commands on connections that hosts have closed still arrive. Hosts therefore fence the
    /// controllers that they lost.
    pub(super) has_late_commands: bool,
    /// Longest times between two calls; each task draws one of them.
    pub(super) pauses: Vec<Duration>,
    /// How long there are faults.
    pub(super) time: Duration,
    pub(super) faults: Vec<(Duration, Fault)>,
}

/// The peers of a gateway that a partition separates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    Monitor,
    Osd(usize),
    Ceph,
    Host(usize),
}

/// A fault, or an order of an administrator.
#[derive(Clone, Copy, Debug)]
pub(super) enum Fault {
    /// The process does nothing for a time (`SIGSTOP`).
    Suspend(usize, Duration),
    /// The process dies, and is started after a time.
    Crash(usize, Duration),
    /// The next gateway that fences, opens or closes is suspended soon afterwards.
    SuspendActing(Duration),
    /// The same, but it dies.
    CrashActing(Duration),
    /// A partition between a gateway and others.
    Cut(usize, Part, Duration),
    /// Opening images fails at this gateway for a time.
    OpenFails(usize, Duration),
    /// Operations of an OSD take up to 800 ms for a time.
    SlowOsd(usize, Duration),
    /// At the first gateway, move a group to the second one.
    Move(usize, u32, usize),
    /// At the first gateway, drain the second one for a time.
    Drain(usize, usize, Duration),
    /// Stop a gateway, and start it after a time.
    Stop(usize, Duration),
}

const MILLI: fn(u64) -> Duration = Duration::from_millis;

impl Plan {
    pub(super) fn new(seed: u64, mode: Mode) -> Self {
        let mut dice = Dice::new(seed ^ 0x6761_7465);
        let dice = &mut dice;
        let is_planned = mode.faults == Faults::Planned;
        let time = MILLI(8000 + dice.roll() % 22_000);
        let mut plan = Self {
            seed,
            mode,
            gateways: 2 + dice.below(2),
            hosts: 1 + dice.below(2),
            groups: [1, 2, 3][dice.below(3)],
            objects: 1 + dice.roll() % 4,
            osds: 1 + dice.below(3),
            drift: Vec::new(),
            latency: MILLI([1, 3, 10][dice.below(3)]),
            late: OneIn(match is_planned {
                true => 0,
                false => [0, 100, 30][dice.below(3)],
            }),
            map_delay: MILLI([20, 500, 4000, 15_000][dice.below(4)]),
            fence_delay: MILLI([10, 300, 2500][dice.below(3)]),
            lost: OneIn(match is_planned {
                true => 0,
                false => [0, 40, 8][dice.below(3)],
            }),
            given_up: OneIn(match is_planned {
                true => 0,
                false => [0, 40, 10][dice.below(3)],
            }),
            failback: match dice.below(2) {
                0 => Failback::Never,
                _ => Failback::After(MILLI(2000 + dice.roll() % 4000)),
            },
            has_late_commands: !is_planned && dice.happens(OneIn(2)),
            pauses: [10, 10, 40, 200, 4000].map(MILLI).to_vec(),
            time,
            faults: Vec::new(),
        };
        for _ in 0..plan.gateways {
            plan.drift.push([-100, -50, 0, 50, 100][dice.below(5)]);
        }
        match mode.faults {
            Faults::Successive => plan.draw_successive(dice),
            Faults::Returning => plan.draw_returning(dice),
            _ => plan.draw_faults(dice),
        }
        plan
    }

    fn draw_faults(&mut self, dice: &mut Dice) {
        let most = u64::try_from(self.time.as_millis()).unwrap();
        for _ in 0..3 + dice.below(8) {
            let at = MILLI(dice.roll() % most);
            let fault = match self.mode.faults {
                Faults::Planned => self.order(dice),
                _ if dice.happens(OneIn(4)) => self.order(dice),
                _ => self.fault(dice),
            };
            self.faults.push((at, fault));
        }
        self.faults.sort_by_key(|(at, _)| *at);
    }

    fn draw_successive(&mut self, dice: &mut Dice) {
        (self.gateways, self.groups, self.osds) = (3, 1, 4);
        self.drift = vec![0; 3];
        self.objects = 4;
        self.hosts = 1;
        self.map_delay = MILLI(15_000);
        self.fence_delay = MILLI(10);
        (self.lost, self.given_up) = (OneIn(0), OneIn(0));
        self.pauses = [6000, 6000, 6000, 1000].map(MILLI).to_vec();
        // The owner of group 1 is g1; g2 takes over after the lease.
        let suspended = 3000 + dice.roll() % 500;
        let time = MILLI(5000 + dice.roll() % 2000);
        self.faults
            .push((MILLI(suspended), Fault::Suspend(1, time)));
        let begin = suspended + 3500;
        for at in (0..4).map(|step| MILLI(begin + step * 250)) {
            self.faults.push((at, Fault::Move(2, 1, 0)));
        }
        self.time = MILLI(15_000);
    }

    fn draw_returning(&mut self, dice: &mut Dice) {
        (self.gateways, self.groups, self.hosts) = (2, 1, 1);
        self.has_late_commands = true;
        self.objects = 4;
        self.fence_delay = MILLI(10);
        (self.lost, self.given_up) = (OneIn(0), OneIn(0));
        self.pauses = [10, 40].map(MILLI).to_vec();
        // The owner of group 1 is g1; g0 takes over after the lease.
        let begin = 3000 + dice.roll() % 500;
        let suspended = 3500 + dice.roll() % 2000;
        let cut = Fault::Cut(1, Part::Host(0), MILLI(8900));
        self.faults.push((MILLI(begin), cut));
        let suspend = Fault::Suspend(1, MILLI(suspended));
        self.faults.push((MILLI(begin + 20), suspend));
        for at in (0..6).map(|step| MILLI(begin + 4500 + step * 500)) {
            self.faults.push((at, Fault::Move(0, 1, 1)));
        }
        self.time = MILLI(15_000);
    }

    fn order(&self, dice: &mut Dice) -> Fault {
        let (via, to) = (dice.below(self.gateways), dice.below(self.gateways));
        let time = MILLI(500 + dice.roll() % 6000);
        match dice.below(4) {
            0 => Fault::Drain(via, to, time),
            1 => Fault::Stop(to, time),
            _ => {
                let group = 1 + u32::try_from(dice.roll() % u64::from(self.groups)).unwrap();
                Fault::Move(via, group, to)
            }
        }
    }

    fn fault(&self, dice: &mut Dice) -> Fault {
        let gateway = dice.below(self.gateways);
        let time = MILLI([300, 1500, 4000, 5000, 8000][dice.below(5)] + dice.roll() % 1000);
        match dice.below(14) {
            0..=3 => Fault::Suspend(gateway, time),
            4..=5 => Fault::Crash(gateway, time),
            6 => Fault::OpenFails(gateway, time),
            7 => Fault::SuspendActing(time),
            8 => Fault::CrashActing(time),
            9 => Fault::SlowOsd(dice.below(self.osds), time),
            _ => {
                let part = match dice.below(5) {
                    0 => Part::Monitor,
                    1 | 2 => Part::Osd(dice.below(self.osds)),
                    3 => Part::Host(dice.below(self.hosts)),
                    _ => Part::Ceph,
                };
                Fault::Cut(gateway, part, time)
            }
        }
    }
}
