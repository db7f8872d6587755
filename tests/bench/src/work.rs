//! What is measured: the works, and the figures to reach.

use nvmeof_bench::tcp::Direction;
use serde::Serialize;

use crate::Trouble;
use crate::contestant::Contestant;

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
    /// Ours over software iWARP with CRCs, with ours without.
    Crc,
}

/// Which figure is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Metric {
    /// Median latency: less is better. Of one operation at a time.
    Latency,
    /// Operations a second: more is better.
    Rate,
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
        let size = size(self.bytes);
        let about = match self.about {
            About::Iwarp => "",
            About::Shm => "shm-",
            About::Crc => "crc-",
        };
        let (kind, depth) = (self.kind(), self.depth);
        format!("{about}{disk}-{kind}-{size}-qd{depth}{core}")
    }

    /// What is done, as fio and `nvmeof bench` call it.
    pub(crate) fn kind(&self) -> &'static str {
        match (self.direction, self.bytes >= SEQUENTIAL) {
            (Direction::Read, false) => "randread",
            (Direction::Write, false) => "randwrite",
            (Direction::Read, true) => "read",
            (Direction::Write, true) => "write",
        }
    }

    pub(crate) fn metric(&self) -> Metric {
        if self.depth == 1 {
            Metric::Latency
        } else {
            Metric::Rate
        }
    }

    /// Whether the ratio reaches the goal; `None` where there is no goal.
    pub(crate) fn is_met(&self, ratio: f64) -> Option<bool> {
        let goal = self.goal?;
        Some(match self.metric() {
            Metric::Latency => ratio <= goal,
            Metric::Rate => ratio >= goal,
        })
    }

    /// The goal with the side on which it may be missed.
    pub(crate) fn goal_text(&self) -> String {
        let sign = match self.metric() {
            Metric::Latency => '≤',
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
        };
        format!("{what}, yardstick {yardstick} {}", self.goal_text())
            .trim_end()
            .to_owned()
    }
}

/// A number of bytes in few characters.
pub(crate) fn size(bytes: u32) -> String {
    if bytes.is_multiple_of(KIB) {
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
    iwarp(Disk::Null, long, 1, Placement::Apart, None);
    for bytes in [512, four, 16 * KIB, 64 * KIB] {
        iwarp(Disk::Null, bytes, SIZES_DEPTH, Placement::Apart, None);
    }
    iwarp(Disk::Null, long, SIZES_DEPTH, Placement::Apart, Some(0.90));
    for depth in [1, 16, 128] {
        iwarp(Disk::Null, four, depth, Placement::Together, None);
    }
    iwarp(Disk::File, four, 32, Placement::Apart, None);
    iwarp(Disk::File, four, 128, Placement::Apart, Some(0.85));
    let mut apart = |about, disk, bytes, depth, goal| {
        works.extend(both(about, disk, bytes, depth, Placement::Apart, goal));
    };
    for (disk, bytes, depth, goal) in [
        (Disk::Null, four, 1, Some(1.50)),
        (Disk::Null, four, 16, None),
        (Disk::Null, four, 128, Some(0.70)),
        (Disk::Null, long, SIZES_DEPTH, None),
        (Disk::File, four, 32, Some(0.95)),
        (Disk::File, four, 128, Some(0.95)),
    ] {
        apart(About::Shm, disk, bytes, depth, goal);
    }
    for (bytes, depth) in [(four, 16), (four, 128), (long, SIZES_DEPTH)] {
        apart(About::Crc, Disk::Null, bytes, depth, Some(0.80));
    }
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
        assert!(names.iter().all(|name| name.len() <= 29), "{names:?}");
        names.sort();
        names.dedup();
        assert_eq!(names.len(), all().len());
        assert!(names.contains(&"null-randread-4k-qd128-1core".to_owned()));
        assert!(names.contains(&"null-write-128k-qd32".to_owned()));
        assert!(names.contains(&"shm-file-randread-4k-qd128".to_owned()));
        assert!(names.contains(&"crc-null-write-128k-qd32".to_owned()));
    }

    #[test]
    fn parts_of_names_choose() {
        let chosen = select(&["128k-qd32".to_owned()]).unwrap();
        assert_eq!(chosen.len(), 6);
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
            ("shm-null-randread-4k-qd128", "shm-bare ≥0.70"),
            ("shm-file-randread-4k-qd32", "local ≥0.95"),
            ("crc-null-randread-4k-qd16", "iwarp ≥0.80"),
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
    }
}
