//! What is measured: the works, and the figures to reach.

use nvmeof_bench::tcp::Direction;
use serde::Serialize;

use crate::contestant::Contestant;
use crate::{Trouble, attack};

/// What is behind the namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Disk {
    /// Nothing: what the protocol costs.
    Null,
    /// A file, read and written past the page cache.
    File,
}

/// Where the two sides run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Placement {
    /// On a core each.
    Apart,
    /// Both on one.
    Together,
}

/// What the question is about: who is compared with whom.
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
    /// A file whose operations a thread of the kernel takes (SQPOLL), with the same
    /// without, through shared memory.
    Sqpoll,
    /// Busy queue pairs among many idle ones, with the same ones alone, over
    /// software iWARP.
    Crowd,
    /// The same through shared memory.
    CrowdShm,
    /// Two reactors with one, over software iWARP.
    Reactors,
    /// Two reactors with one, through shared memory.
    ReactorsShm,
    /// What a connection over software iWARP costs that nobody uses.
    Idle,
    /// The same through shared memory.
    IdleShm,
    /// The same of many queue pairs over software iWARP.
    IdleCrowd,
    /// The same of many through shared memory.
    IdleCrowdShm,
    /// An honest host beside so many hostile peers on addresses of their own, with
    /// the same host alone, over software iWARP.
    Hostile(u16),
    /// The same with all on one address.
    #[serde(rename = "hostile-same")]
    HostileSame(u16),
}

/// Queue pairs where there are many: controllers, and I/O queues of each; with an
/// admin queue each and [`BUSY`] others, 1,000.
pub(crate) const CROWD: (u16, u16) = (31, 31);
/// Queue pairs that are busy where it says so.
pub(crate) const BUSY: u16 = 8;
/// How much of a core an idle process may have, in percent.
pub(crate) const IDLE_PERCENT: f64 = 0.5;
/// How long that is measured.
pub(crate) const IDLE_SECONDS: u64 = 10;

/// Which figure is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Metric {
    /// Median latency: less is better. Of one operation at a time.
    Latency,
    /// Operations a second: more is better.
    Rate,
    /// CPU time of a process: less is better.
    Cpu,
}

/// One thing to measure.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Work {
    pub(crate) about: About,
    pub(crate) disk: Disk,
    pub(crate) direction: Direction,
    /// Bytes of each operation.
    pub(crate) bytes: u32,
    /// Operations in flight.
    pub(crate) depth: u16,
    pub(crate) placement: Placement,
    /// The ratio to the yardstick to reach: for a latency at most, for a rate
    /// at least.
    pub(crate) goal: Option<f64>,
    /// The same for the 99th percentile of the latency, where there is one: at
    /// most.
    pub(crate) tail_goal: Option<f64>,
}

const KIB: u32 = 1024;
/// From this size on operations go one after the other, not at random.
const SEQUENTIAL: u32 = 128 * KIB;
/// The depth at which block sizes are compared.
pub(crate) const SIZES_DEPTH: u16 = 32;

impl Work {
    pub(crate) fn name(&self) -> String {
        let disk = match self.disk {
            Disk::Null => "null",
            Disk::File => "file",
        };
        let core = match self.placement {
            Placement::Apart => "",
            Placement::Together => "-1core",
        };
        let shape = format!("{}-qd{}", size(self.bytes), self.depth);
        let what = format!("{}-{shape}", self.kind());
        match self.about {
            About::Iwarp => format!("{disk}-{what}{core}"),
            About::Shm => format!("shm-{disk}-{what}{core}"),
            About::Unix => format!("unix-{disk}-{what}"),
            About::UnixTcp => format!("unix-tcp-{what}"),
            About::Crc => format!("crc-{disk}-{what}"),
            About::Zerocopy => format!("zerocopy-{what}"),
            About::Async => format!("async-{disk}-{what}"),
            About::Sqpoll => format!("sqpoll-{disk}-{what}"),
            About::Crowd => format!("crowd-iwarp-{shape}"),
            About::CrowdShm => format!("crowd-shm-{shape}"),
            About::Reactors => format!("reactors-iwarp-{shape}"),
            About::ReactorsShm => format!("reactors-shm-{shape}"),
            About::Idle => "idle-iwarp".to_owned(),
            About::IdleShm => "idle-shm".to_owned(),
            About::IdleCrowd => "idle-iwarp-1000".to_owned(),
            About::IdleCrowdShm => "idle-shm-1000".to_owned(),
            About::Hostile(peers) => format!("hostile-{peers}-{}", size(self.bytes)),
            About::HostileSame(peers) => format!("hostile-{peers}-{}-same", size(self.bytes)),
        }
    }

    /// Whether somebody goes through a Unix socket.
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

    /// Whether it is measured where only works with a goal are: of those with hostile
    /// peers, which take long, the ones with most of them.
    pub(crate) fn is_quick(&self) -> bool {
        self.goal.is_some() && self.hostile().is_none_or(|peers| peers >= 64)
    }

    /// Whether foreign initiators and targets can be measured as well.
    pub(crate) fn takes_peers(&self) -> bool {
        self.about == About::Iwarp
    }

    /// CPU cores that it takes.
    pub(crate) fn cores(&self) -> usize {
        match (self.about, self.placement) {
            // Two for either side.
            (About::Reactors | About::ReactorsShm, _) => 4,
            // One for each side, and one for the kernel's thread.
            (About::Sqpoll, _) => 3,
            (_, Placement::Together) => 1,
            (_, Placement::Apart) => 2,
        }
    }

    /// The RDMA provider of ours.
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
            | About::Reactors
            | About::Idle
            | About::IdleCrowd
            | About::Hostile(_)
            | About::HostileSame(_) => "iwarp",
        }
    }

    /// Queue pairs that are busy, with as many operations in flight each.
    pub(crate) fn queues(&self) -> u16 {
        match self.about {
            About::Crowd | About::CrowdShm | About::Reactors | About::ReactorsShm => BUSY,
            _ => 1,
        }
    }

    /// Into how many parts a measurement is cut, each with a connection of its
    /// own. Over TCP the speed jumps from one measurement to the next, for ours and
    /// for the yardstick: between two values at a depth of 16, of which one is
    /// half the other. Of a few long measurements the median is one of the two;
    /// many short ones tell what is to be expected.
    pub(crate) fn slices(&self) -> u32 {
        match (self.metric(), self.disk) {
            _ if self.hostile().is_some() => 1,
            (Metric::Rate, Disk::Null) => 4,
            _ => 1,
        }
    }

    /// What is done, as fio and `nvmeof bench` call it.
    pub(crate) fn kind(&self) -> &'static str {
        match (self.direction, self.bytes >= SEQUENTIAL) {
            _ if self.hostile().is_some() => "randrw",
            (Direction::Read, false) => "randread",
            (Direction::Write, false) => "randwrite",
            (Direction::Read, true) => "read",
            (Direction::Write, true) => "write",
        }
    }

    pub(crate) fn metric(&self) -> Metric {
        match self.depth {
            _ if self.is_idle() => Metric::Cpu,
            1 => Metric::Latency,
            _ => Metric::Rate,
        }
    }

    /// Whether the ratio reaches the goal; `None` where there is no goal.
    pub(crate) fn is_met(&self, ratio: f64) -> Option<bool> {
        let goal = self.goal?;
        Some(match self.metric() {
            Metric::Latency | Metric::Cpu => ratio <= goal,
            Metric::Rate => ratio >= goal,
        })
    }

    /// The same for the 99th percentile.
    pub(crate) fn is_tail_met(&self, ratio: f64) -> Option<bool> {
        self.tail_goal.map(|goal| ratio <= goal)
    }

    /// The goal with the side on which it may be missed.
    pub(crate) fn goal_text(&self) -> String {
        let sign = match self.metric() {
            Metric::Latency | Metric::Cpu => '≤',
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
            Metric::Rate => "operations a second",
            Metric::Cpu => "CPU time",
        };
        let summary = format!("{what}, yardstick {yardstick} {}", self.goal_text());
        let mut summary = summary.trim_end().to_owned();
        if let Some(tail) = self.tail_goal {
            summary.push_str(&format!(", p99 ≤{tail:.2}"));
        }
        if self.hostile().is_some() {
            summary.push_str(", none longer than 1 s");
        }
        if self.cores() > 2 {
            summary.push_str(&format!(", needs {} cores", self.cores()));
        }
        summary
    }
}

/// A number of bytes in few characters.
pub(crate) fn size(bytes: u32) -> String {
    if bytes.is_multiple_of(KIB * KIB) {
        format!("{}m", bytes / KIB / KIB)
    } else if bytes.is_multiple_of(KIB) {
        format!("{}k", bytes / KIB)
    } else {
        bytes.to_string()
    }
}

/// Every work, reads before writes.
pub(crate) fn all() -> Vec<Work> {
    let mut works = Vec::new();
    let both = |about, disk, bytes, depth, placement, goal| {
        [Direction::Read, Direction::Write].map(|direction| Work {
            about,
            disk,
            direction,
            bytes,
            depth,
            placement,
            goal,
            tail_goal: (about == About::Shm && disk == Disk::File).then_some(1.15),
        })
    };
    let mut iwarp = |disk, bytes, depth, placement, goal| {
        works.extend(both(About::Iwarp, disk, bytes, depth, placement, goal));
    };
    let (four, long) = (4 * KIB, 128 * KIB);
    for (depth, goal) in [
        (1, Some(1.20)),
        (4, None),
        (16, Some(0.85)),
        (64, None),
        (128, Some(0.85)),
    ] {
        iwarp(Disk::Null, four, depth, Placement::Apart, goal);
    }
    for depth in [1, 8] {
        iwarp(Disk::Null, long, depth, Placement::Apart, None);
    }
    for bytes in [512, four, 16 * KIB, 64 * KIB] {
        iwarp(Disk::Null, bytes, SIZES_DEPTH, Placement::Apart, None);
    }
    iwarp(Disk::Null, long, SIZES_DEPTH, Placement::Apart, Some(0.90));
    for depth in [1, 16, 128] {
        iwarp(Disk::Null, four, depth, Placement::Together, None);
    }
    iwarp(Disk::Null, long, SIZES_DEPTH, Placement::Together, None);
    iwarp(Disk::File, four, 32, Placement::Apart, None);
    iwarp(Disk::File, four, 128, Placement::Apart, Some(0.85));
    let mut shm = |disk, bytes, depth, placement, goal| {
        works.extend(both(About::Shm, disk, bytes, depth, placement, goal));
    };
    for (disk, bytes, depth, goal) in [
        (Disk::Null, four, 1, Some(1.50)),
        (Disk::Null, four, 16, None),
        (Disk::Null, four, 128, Some(0.70)),
        (Disk::Null, long, SIZES_DEPTH, None),
        (Disk::File, four, 32, Some(0.95)),
        (Disk::File, four, 128, Some(0.95)),
    ] {
        shm(disk, bytes, depth, Placement::Apart, goal);
    }
    for depth in [1, 128] {
        shm(Disk::Null, four, depth, Placement::Together, None);
    }
    let mut apart = |about, disk, bytes, depth, goal| {
        works.extend(both(about, disk, bytes, depth, Placement::Apart, goal));
    };
    let unix = [(four, 1), (four, 16), (four, 128), (long, SIZES_DEPTH)];
    for (bytes, depth) in unix {
        apart(About::Unix, Disk::Null, bytes, depth, None);
    }
    // About half the cost of TCP.
    for (bytes, depth) in unix {
        let goal = if depth == 1 { 0.60 } else { 1.60 };
        apart(About::UnixTcp, Disk::Null, bytes, depth, Some(goal));
    }
    for (bytes, depth) in [(four, 16), (four, 128), (long, SIZES_DEPTH)] {
        apart(About::Crc, Disk::Null, bytes, depth, Some(0.80));
    }
    apart(About::Zerocopy, Disk::Null, long, SIZES_DEPTH, None);
    apart(About::Async, Disk::Null, four, 1, Some(1.15));
    apart(About::Sqpoll, Disk::File, four, 32, None);
    let one = |about, depth, goal| Work {
        about,
        disk: Disk::Null,
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
    // Of what an idle process may have at most.
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

/// The works that have one of these names, or one of these parts in their name
/// where it is not the name of one; all if there are none.
pub(crate) fn select(parts: &[String]) -> Result<Vec<Work>, Trouble> {
    let mut works = all();
    let names: Vec<String> = works.iter().map(Work::name).collect();
    let fits = |name: &String, part: &String| {
        name == part || (!names.contains(part) && name.contains(part.as_str()))
    };
    if let Some(part) = parts
        .iter()
        .find(|part| !names.iter().any(|name| fits(name, part)))
    {
        return Err(Trouble::SetUp(format!(
            "no work has `{part}` in its name; `cargo xtask bench --list` names them"
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
    fn the_crowd_is_a_thousand() {
        let (controllers, queues) = CROWD;
        // And the admin queue of those that are busy.
        assert!(controllers * (1 + queues) + BUSY >= 1000);
    }

    #[test]
    fn parts_of_names_choose() {
        let chosen = select(&["128k-qd32".to_owned()]).unwrap();
        assert_eq!(chosen.len(), 14);
        let chosen = select(&["shm-null-r".to_owned()]).unwrap();
        assert!(chosen.iter().all(|work| work.about == About::Shm));
        // A whole name is not a part of another.
        let chosen = select(&["null-randread-4k-qd1".to_owned()]).unwrap();
        assert_eq!(chosen.len(), 1);
        assert_eq!(select(&[]).unwrap(), all());
    }

    #[test]
    fn who_is_compared_with_whom() {
        let summary = |name: &str| {
            let work = all().into_iter().find(|work| work.name() == name);
            work.unwrap().summary()
        };
        let summaries = [
            ("null-read-128k-qd32", "tcp ≥0.90"),
            ("file-randread-4k-qd128", "local ≥0.85"),
            ("unix-null-write-128k-qd32", "unix-bare"),
            ("unix-tcp-randread-4k-qd16", "iwarp ≥1.60"),
            ("shm-null-randread-4k-qd128", "shm-bare ≥0.70"),
            ("shm-file-randread-4k-qd32", "local ≥0.95, p99 ≤1.15"),
            ("sqpoll-file-randwrite-4k-qd32", "shm, needs 3 cores"),
            ("crowd-iwarp-4k-qd16", "alone ≥0.90"),
            ("crowd-shm-4k-qd16", "alone ≥0.90"),
            ("reactors-shm-4k-qd32", "1-reactor ≥1.60, needs 4 cores"),
            ("crc-null-randread-4k-qd16", "iwarp ≥0.80"),
            ("hostile-4-1m", "quiet ≥0.25, none longer than 1 s"),
            ("hostile-4-1m-same", "quiet, none longer than 1 s"),
        ];
        for (name, words) in summaries {
            assert_eq!(
                summary(name),
                format!("operations a second, yardstick {words}")
            );
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
        let rate = find("null-read-128k-qd32");
        assert_eq!(rate.goal_text(), "≥0.90");
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
