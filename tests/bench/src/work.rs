//! The workloads and their goals.

use nvmeof_bench::tcp::Direction;
use serde::Serialize;

use crate::contestant::Contestant;
use crate::{Trouble, attack};

/// The backing store of the namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Store {
    /// A null device: shows the cost of the protocol.
    Null,
    /// A file with direct I/O.
    File,
    /// Memory of the target. Another target's null device may leave the data as they are;
    /// this one's clears them.
    Ram,
}

/// The placement of the two sides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Placement {
    /// Each on a core of its own.
    Apart,
    /// Both on one core.
    Together,
}

/// The comparison of a workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum About {
    /// Ours over software iWARP with a yardstick.
    Iwarp,
    /// Ours through shared memory with a yardstick.
    Shm,
    /// Ours over a Unix socket with a yardstick.
    Unix,
    /// Ours over a Unix socket with ours over TCP.
    #[serde(rename = "unix-tcp")]
    UnixTcp,
    /// Ours over software iWARP with CRCs, with ours without.
    Crc,
    /// The yardstick over TCP without copies, with itself.
    Zerocopy,
    /// Our async interface with the polled one, through shared memory.
    Async,
    /// A file with SQPOLL, with the same file without, through shared memory.
    Sqpoll,
    /// Busy queue pairs beside many idle ones, with the busy ones alone, over software
    /// iWARP.
    Crowd,
    /// The same through shared memory.
    CrowdShm,
    /// Operations on several queues of one thread, with as many on one queue that its thread
    /// polls, over software iWARP.
    Queues,
    /// Two reactors with one, over software iWARP.
    Reactors,
    /// Two reactors with one, through shared memory.
    ReactorsShm,
    /// The CPU time of an idle connection over software iWARP.
    Idle,
    /// The same through shared memory.
    IdleShm,
    /// The same of many queue pairs over software iWARP.
    IdleCrowd,
    /// The same of many through shared memory.
    IdleCrowdShm,
    /// An honest host beside this number of hostile peers with addresses of their own,
    /// with the same host alone, over software iWARP.
    Hostile(u16),
    /// The same with one address for all.
    #[serde(rename = "hostile-same")]
    HostileSame(u16),
    /// Ours over software iWARP with another initiator and another target.
    Pair,
    /// The same on several queues of one thread.
    PairQueues,
    /// The busy time of both targets at the same rate of operations.
    PairBusy,
}

/// Idle queue pairs of a crowd: controllers, and I/O queues of each. With the admin
/// queues and [`BUSY`] others, 1,000.
pub(crate) const CROWD: (u16, u16) = (31, 31);
/// Busy queue pairs of a crowd, of one thread, and with several reactors.
pub(crate) const BUSY: u16 = 8;
/// Operations in each second at which the busy time of targets is compared.
const RATE: u32 = 200_000;
/// Permitted CPU time of an idle process, in percent of a core.
pub(crate) const IDLE_PERCENT: f64 = 0.5;
/// Duration of that measurement.
pub(crate) const IDLE_SECONDS: u64 = 10;

/// The figure that is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Metric {
    /// Median latency: less is better. Of one operation at a time.
    Latency,
    /// Operations a second: more is better.
    Rate,
    /// CPU time of a process: less is better.
    Cpu,
    /// Busy time of the target for each operation: less is better.
    Busy,
}

/// One workload.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Work {
    pub(crate) about: About,
    pub(crate) store: Store,
    pub(crate) direction: Direction,
    /// Bytes of each operation.
    pub(crate) bytes: u32,
    /// Operations in flight.
    pub(crate) depth: u16,
    pub(crate) placement: Placement,
    /// The goal of the ratio to the yardstick: a maximum for a latency, a minimum for a
    /// rate.
    pub(crate) goal: Option<f64>,
    /// The maximum for the 99th percentile of the latency, if it has a goal.
    pub(crate) tail_goal: Option<f64>,
}

const KIB: u32 = 1024;
/// From this size on, operations are sequential, not random.
const SEQUENTIAL: u32 = 128 * KIB;
/// The depth at which block sizes are compared.
pub(crate) const SIZES_DEPTH: u16 = 32;

impl Work {
    pub(crate) fn name(&self) -> String {
        let store = match self.store {
            Store::Null => "null",
            Store::File => "file",
            Store::Ram => "ram",
        };
        let core = match self.placement {
            Placement::Apart => "",
            Placement::Together => "-1core",
        };
        let shape = format!("{}-qd{}", size(self.bytes), self.depth);
        let what = format!("{}-{shape}", self.kind());
        match self.about {
            About::Iwarp => format!("{store}-{what}{core}"),
            About::Shm => format!("shm-{store}-{what}{core}"),
            About::Unix => format!("unix-{store}-{what}"),
            About::UnixTcp => format!("unix-tcp-{what}"),
            About::Crc => format!("crc-{store}-{what}"),
            About::Zerocopy => format!("zerocopy-{what}"),
            About::Async => format!("async-{store}-{what}"),
            About::Sqpoll => format!("sqpoll-{store}-{what}"),
            About::Crowd => format!("crowd-iwarp-{shape}"),
            About::CrowdShm => format!("crowd-shm-{shape}"),
            About::Queues => format!("queues-{what}"),
            About::Reactors => format!("reactors-iwarp-{shape}"),
            About::ReactorsShm => format!("reactors-shm-{shape}"),
            About::Idle => "idle-iwarp".to_owned(),
            About::IdleShm => "idle-shm".to_owned(),
            About::IdleCrowd => "idle-iwarp-1000".to_owned(),
            About::IdleCrowdShm => "idle-shm-1000".to_owned(),
            About::Hostile(peers) => format!("hostile-{peers}-{}", size(self.bytes)),
            About::HostileSame(peers) => format!("hostile-{peers}-{}-same", size(self.bytes)),
            About::Pair => format!("pair-{store}-{what}"),
            About::PairQueues => format!("pair-queues-{store}-{what}"),
            About::PairBusy => format!("pair-busy-{store}-{what}"),
        }
    }

    /// Whether a contestant uses a Unix socket.
    pub(crate) fn is_unix(&self) -> bool {
        matches!(self.about, About::Unix | About::UnixTcp)
    }

    /// Whether nothing is read or written.
    pub(crate) fn is_idle(&self) -> bool {
        matches!(
            self.about,
            About::Idle | About::IdleShm | About::IdleCrowd | About::IdleCrowdShm
        )
    }

    /// Hostile peers, where there are any.
    pub(crate) fn hostile(&self) -> Option<u16> {
        match self.about {
            About::Hostile(peers) | About::HostileSame(peers) => Some(peers),
            _ => None,
        }
    }

    /// Whether `--quick` includes it: workloads with a goal; with hostile peers, which take
    /// long, only those with most peers.
    pub(crate) fn is_quick(&self) -> bool {
        self.goal.is_some() && self.hostile().is_none_or(|peers| peers >= 64)
    }

    /// Whether other initiators and targets can be measured as well.
    pub(crate) fn takes_peers(&self) -> bool {
        self.about == About::Iwarp
    }

    /// CPU cores that it requires.
    pub(crate) fn cores(&self) -> usize {
        match (self.about, self.placement) {
            // Two for each side.
            (About::Reactors | About::ReactorsShm, _) => 4,
            // One for each side, and one for the kernel's thread.
            (About::Sqpoll, _) => 3,
            (_, Placement::Together) => 1,
            (_, Placement::Apart) => 2,
        }
    }

    /// The RDMA provider of this project.
    pub(crate) fn provider(&self) -> &'static str {
        match self.about {
            About::Shm
            | About::Async
            | About::Sqpoll
            | About::CrowdShm
            | About::ReactorsShm
            | About::IdleShm
            | About::IdleCrowdShm => "shm",
            About::Iwarp
            | About::Unix
            | About::UnixTcp
            | About::Crc
            | About::Zerocopy
            | About::Crowd
            | About::Queues
            | About::Reactors
            | About::Idle
            | About::IdleCrowd
            | About::Hostile(_)
            | About::HostileSame(_)
            | About::Pair
            | About::PairQueues
            | About::PairBusy => "iwarp",
        }
    }

    /// Busy queue pairs, each with `depth` operations in flight.
    pub(crate) fn queues(&self) -> u16 {
        match self.about {
            About::Crowd
            | About::CrowdShm
            | About::Queues
            | About::PairQueues
            | About::Reactors
            | About::ReactorsShm => BUSY,
            _ => 1,
        }
    }

    /// As many operations on one queue pair.
    pub(crate) fn on_one_queue(&self) -> Self {
        Self {
            about: About::Iwarp,
            depth: self.depth * self.queues(),
            ..*self
        }
    }

    /// Number of slices of a measurement, each with a connection of its own. Over TCP the
    /// rate changes abruptly between measurements, for ours and for the yardstick: at a
    /// depth of 16 between two values, one twice the other. The median of a few long
    /// measurements would be one of the two; many short ones give the expected rate.
    pub(crate) fn slices(&self) -> u32 {
        match (self.metric(), self.store) {
            _ if self.hostile().is_some() => 1,
            (Metric::Rate, Store::Null | Store::Ram) => 4,
            _ => 1,
        }
    }

    /// The kind of I/O, as fio and `nvmeof bench` name it.
    pub(crate) fn kind(&self) -> &'static str {
        match (self.direction, self.bytes >= SEQUENTIAL) {
            _ if self.hostile().is_some() => "randrw",
            (Direction::Read, false) => "randread",
            (Direction::Write, false) => "randwrite",
            (Direction::Read, true) => "read",
            (Direction::Write, true) => "write",
        }
    }

    /// Operations that the initiator starts in each second, if that is limited.
    pub(crate) fn rate(&self) -> Option<u32> {
        (self.about == About::PairBusy).then_some(RATE)
    }

    pub(crate) fn metric(&self) -> Metric {
        match self.depth {
            _ if self.is_idle() => Metric::Cpu,
            _ if self.rate().is_some() => Metric::Busy,
            1 => Metric::Latency,
            _ => Metric::Rate,
        }
    }

    /// Whether the ratio reaches the goal; `None` where there is no goal.
    pub(crate) fn is_met(&self, ratio: f64) -> Option<bool> {
        let goal = self.goal?;
        Some(match self.metric() {
            Metric::Latency | Metric::Cpu | Metric::Busy => ratio <= goal,
            Metric::Rate => ratio >= goal,
        })
    }

    /// The same for the 99th percentile.
    pub(crate) fn is_tail_met(&self, ratio: f64) -> Option<bool> {
        self.tail_goal.map(|goal| ratio <= goal)
    }

    /// The goal with its direction.
    pub(crate) fn goal_text(&self) -> String {
        let sign = match self.metric() {
            Metric::Latency | Metric::Cpu | Metric::Busy => '≤',
            Metric::Rate => '≥',
        };
        self.goal
            .map(|goal| format!("{sign}{goal:.2}"))
            .unwrap_or_default()
    }

    pub(crate) fn summary(&self) -> String {
        let yardstick = Contestant::yardstick(self).name();
        let what = match self.metric() {
            Metric::Latency => "latency",
            Metric::Rate => "IOPS",
            Metric::Cpu => "CPU time",
            Metric::Busy => "busy time of the target",
        };
        let summary = format!("{what}, yardstick {yardstick} {}", self.goal_text());
        let mut summary = summary.trim_end().to_owned();
        if let Some(tail) = self.tail_goal {
            summary.push_str(&format!(", p99 ≤{tail:.2}"));
        }
        if self.hostile().is_some() {
            summary.push_str(", latency at most 1 s");
        }
        if self.cores() > 2 {
            summary.push_str(&format!(", requires {} cores", self.cores()));
        }
        summary
    }
}

/// A short form of a number of bytes.
pub(crate) fn size(bytes: u32) -> String {
    if bytes.is_multiple_of(KIB * KIB) {
        format!("{}m", bytes / KIB / KIB)
    } else if bytes.is_multiple_of(KIB) {
        format!("{}k", bytes / KIB)
    } else {
        bytes.to_string()
    }
}

/// All workloads, reads before writes.
pub(crate) fn all() -> Vec<Work> {
    let mut works = Vec::new();
    let both = |about, store, bytes, depth, placement, goal| {
        [Direction::Read, Direction::Write].map(|direction| Work {
            about,
            store,
            direction,
            bytes,
            depth,
            placement,
            goal,
            tail_goal: (about == About::Shm && store == Store::File).then_some(1.15),
        })
    };
    let mut iwarp = |store, bytes, depth, placement, goal| {
        works.extend(both(About::Iwarp, store, bytes, depth, placement, goal));
    };
    let (four, long) = (4 * KIB, 128 * KIB);
    // Rates have goals against another initiator and target, see `pairs`.
    iwarp(Store::Null, four, 1, Placement::Apart, Some(1.20));
    for depth in [4, 16, 64, 128] {
        iwarp(Store::Null, four, depth, Placement::Apart, None);
    }
    for depth in [1, 8] {
        iwarp(Store::Null, long, depth, Placement::Apart, None);
    }
    for bytes in [512, four, 16 * KIB, 64 * KIB] {
        iwarp(Store::Null, bytes, SIZES_DEPTH, Placement::Apart, None);
    }
    iwarp(Store::Null, long, SIZES_DEPTH, Placement::Apart, None);
    for depth in [1, 16, 128] {
        iwarp(Store::Null, four, depth, Placement::Together, None);
    }
    iwarp(Store::Null, long, SIZES_DEPTH, Placement::Together, None);
    iwarp(Store::File, four, 32, Placement::Apart, None);
    iwarp(Store::File, four, 128, Placement::Apart, Some(0.85));
    let mut shm = |store, bytes, depth, placement, goal| {
        works.extend(both(About::Shm, store, bytes, depth, placement, goal));
    };
    for (store, bytes, depth, goal) in [
        (Store::Null, four, 1, None),
        (Store::Null, four, 16, None),
        (Store::Null, four, 128, None),
        (Store::Null, long, SIZES_DEPTH, None),
        (Store::File, four, 32, Some(0.95)),
        (Store::File, four, 128, Some(0.95)),
    ] {
        shm(store, bytes, depth, Placement::Apart, goal);
    }
    for depth in [1, 128] {
        shm(Store::Null, four, depth, Placement::Together, None);
    }
    let mut apart = |about, store, bytes, depth, goal| {
        works.extend(both(about, store, bytes, depth, Placement::Apart, goal));
    };
    let unix = [(four, 1), (four, 16), (four, 128), (long, SIZES_DEPTH)];
    for (bytes, depth) in unix {
        apart(About::Unix, Store::Null, bytes, depth, None);
    }
    // About half the cost of TCP.
    for (bytes, depth) in unix {
        let goal = if depth == 1 { 0.60 } else { 1.60 };
        apart(About::UnixTcp, Store::Null, bytes, depth, Some(goal));
    }
    for (bytes, depth) in [(four, 16), (four, 128), (long, SIZES_DEPTH)] {
        apart(About::Crc, Store::Null, bytes, depth, Some(0.80));
    }
    apart(About::Zerocopy, Store::Null, long, SIZES_DEPTH, None);
    apart(About::Async, Store::Null, four, 1, Some(1.15));
    apart(About::Sqpoll, Store::File, four, 32, None);
    apart(About::Queues, Store::Null, four, 16, Some(0.75));
    let one = |about, depth, goal| Work {
        about,
        store: Store::Null,
        direction: Direction::Read,
        bytes: four,
        depth,
        placement: Placement::Apart,
        goal: Some(goal),
        tail_goal: None,
    };
    works.extend([
        one(About::Crowd, 16, 0.90),
        one(About::CrowdShm, 16, 0.90),
        one(About::Reactors, 32, 1.60),
        one(About::ReactorsShm, 32, 1.60),
    ]);
    // Ratio to the CPU time that an idle process may use.
    let idle = [
        About::Idle,
        About::IdleShm,
        About::IdleCrowd,
        About::IdleCrowdShm,
    ];
    works.extend(idle.map(|about| one(about, 0, 1.0)));
    works.extend(attack::works());
    works
}

/// The workloads that compare another initiator and target with ours.
pub(crate) fn pairs() -> Vec<Work> {
    let (four, long) = (4 * KIB, SEQUENTIAL);
    let shapes = [
        (About::Pair, Store::Null, four, 1, [None; 2]),
        (About::Pair, Store::Null, four, 16, [Some(1.50), Some(1.20)]),
        (
            About::Pair,
            Store::Null,
            four,
            128,
            [Some(1.25), Some(1.30)],
        ),
        (About::Pair, Store::Null, long, 32, [Some(0.95); 2]),
        (About::PairQueues, Store::Null, four, 16, [Some(1.50); 2]),
        (About::PairBusy, Store::Null, four, 128, [Some(0.70); 2]),
        (About::Pair, Store::Ram, four, 16, [None; 2]),
        (About::Pair, Store::Ram, four, 128, [None; 2]),
        (About::PairQueues, Store::Ram, four, 16, [None; 2]),
    ];
    let works = shapes.map(|(about, store, bytes, depth, [reads, writes])| {
        let mut sides = [(Direction::Read, reads), (Direction::Write, writes)];
        if store == Store::Ram {
            // Reads of memory that was never written are cheaper.
            sides.reverse();
        }
        sides.map(|(direction, goal)| Work {
            about,
            store,
            direction,
            bytes,
            depth,
            placement: Placement::Apart,
            goal,
            tail_goal: None,
        })
    });
    works.into_iter().flatten().collect()
}

/// The workloads with one of these names. A part that is no whole name selects all names
/// that contain it. Without parts: all.
pub(crate) fn select(mut works: Vec<Work>, parts: &[String]) -> Result<Vec<Work>, Trouble> {
    let names: Vec<String> = works.iter().map(Work::name).collect();
    let fits = |name: &String, part: &String| {
        name == part || (!names.contains(part) && name.contains(part.as_str()))
    };
    if let Some(part) = parts
        .iter()
        .find(|part| !names.iter().any(|name| fits(name, part)))
    {
        return Err(Trouble::SetUp(format!(
            "no workload has `{part}` in its name; `cargo xtask bench --list` lists all"
        )));
    }
    let chosen = |name: &String| parts.is_empty() || parts.iter().any(|part| fits(name, part));
    let mut keep = names.iter().map(chosen);
    works.retain(|_| keep.next().unwrap_or(false));
    Ok(works)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_differ_and_are_short_enough_for_the_table() {
        let mut names: Vec<String> = all().iter().map(Work::name).collect();
        assert!(names.iter().all(|name| name.len() <= 33), "{names:?}");
        names.sort();
        names.dedup();
        assert_eq!(names.len(), all().len());
        assert!(names.contains(&"null-randread-4k-qd128-1core".to_owned()));
        assert!(names.contains(&"null-write-128k-qd32-1core".to_owned()));
        assert!(names.contains(&"shm-null-randwrite-4k-qd128-1core".to_owned()));
        assert!(names.contains(&"null-write-128k-qd32".to_owned()));
        assert!(names.contains(&"shm-file-randread-4k-qd128".to_owned()));
        assert!(names.contains(&"crc-null-write-128k-qd32".to_owned()));
        assert!(names.contains(&"async-null-randread-4k-qd1".to_owned()));
        assert!(names.contains(&"reactors-iwarp-4k-qd32".to_owned()));
        for idle in ["idle-iwarp", "idle-shm", "idle-iwarp-1000", "idle-shm-1000"] {
            assert!(names.contains(&idle.to_owned()), "{idle}");
        }
    }

    #[test]
    fn crowd_has_a_thousand_queue_pairs() {
        let (controllers, queues) = CROWD;
        // And the admin queue of those that are busy.
        assert!(controllers * (1 + queues) + BUSY >= 1000);
    }

    #[test]
    fn parts_of_names_choose() {
        let chosen = select(all(), &["128k-qd32".to_owned()]).unwrap();
        assert_eq!(chosen.len(), 14);
        let chosen = select(all(), &["shm-null-r".to_owned()]).unwrap();
        assert!(chosen.iter().all(|work| work.about == About::Shm));
        // A whole name is not a part of another.
        let chosen = select(all(), &["null-randread-4k-qd1".to_owned()]).unwrap();
        assert_eq!(chosen.len(), 1);
        assert_eq!(select(all(), &[]).unwrap(), all());
    }

    #[test]
    fn summary_names_yardstick_and_goals() {
        let summary = |name: &str| {
            let work = all().into_iter().find(|work| work.name() == name);
            work.unwrap().summary()
        };
        let summaries = [
            ("null-read-128k-qd32", "tcp"),
            ("file-randread-4k-qd128", "local ≥0.85"),
            ("unix-null-write-128k-qd32", "unix-bare"),
            ("unix-tcp-randread-4k-qd16", "iwarp ≥1.60"),
            ("shm-null-randread-4k-qd128", "shm-bare"),
            ("shm-file-randread-4k-qd32", "local ≥0.95, p99 ≤1.15"),
            ("sqpoll-file-randwrite-4k-qd32", "shm, requires 3 cores"),
            ("crowd-iwarp-4k-qd16", "alone ≥0.90"),
            ("crowd-shm-4k-qd16", "alone ≥0.90"),
            ("queues-randread-4k-qd16", "1-queue ≥0.75"),
            ("reactors-shm-4k-qd32", "1-reactor ≥1.60, requires 4 cores"),
            ("crc-null-randread-4k-qd16", "iwarp ≥0.80"),
            ("hostile-4-1m", "quiet ≥0.25, latency at most 1 s"),
            ("hostile-4-1m-same", "quiet, latency at most 1 s"),
        ];
        for (name, words) in summaries {
            assert_eq!(summary(name), format!("IOPS, yardstick {words}"));
        }
    }

    #[test]
    fn goals_have_a_side() {
        let works = all();
        let find = |name: &str| *works.iter().find(|work| work.name() == name).unwrap();
        let latency = find("null-randread-4k-qd1");
        assert_eq!(latency.goal_text(), "≤1.20");
        assert_eq!(latency.is_met(1.1), Some(true));
        assert_eq!(latency.is_met(1.3), Some(false));
        let rate = find("file-randread-4k-qd128");
        assert_eq!(rate.goal_text(), "≥0.85");
        assert_eq!(rate.is_met(1.1), Some(true));
        assert_eq!(rate.is_met(0.8), Some(false));
        assert_eq!(find("null-randread-4k-qd4").is_met(0.1), None);
        let idle = find("idle-shm");
        assert_eq!(
            (idle.is_met(0.1), idle.is_met(1.1)),
            (Some(true), Some(false))
        );
        let tail = find("shm-file-randread-4k-qd128");
        assert_eq!(tail.is_tail_met(1.2), Some(false));
        assert_eq!(find("file-randread-4k-qd128").is_tail_met(9.0), None);
    }
}
