//! The workloads `hostile-...`: throughput and latency of an honest host beside hostile
//! peers, and their table.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

use nvmeof_bench::tcp::Direction;
use serde_json::Value;

use crate::contestant::Contestant;
use crate::cores;
use crate::process::Server;
use crate::results::{Results, Row};
use crate::sample::{Sample, sample};
use crate::stage::Stage;
use crate::work::{About, Placement, Store, Work, size};
use crate::{Trouble, scene};

/// Numbers of hostile peers.
const PEERS: [u16; 4] = [1, 4, 16, 64];
/// Bytes of each operation, operations of the honest host in flight, and milliseconds of
/// the measurement beside hostile peers. The simulation that tests the bounds has the
/// same values (`tests/world/tests/crowd.rs`).
const SHAPES: [(u32, u16, u64); 3] = [(4 << 10, 8, 1500), (64 << 10, 4, 1500), (1 << 20, 2, 2500)];
/// The least part of the throughput that hostile peers with addresses of their own leave.
const LEFT: f64 = 0.25;
/// The maximum latency of an operation.
const LONGEST: Duration = Duration::from_secs(1);

/// All workloads, those with addresses of their own first.
pub(crate) fn works() -> Vec<Work> {
    let mut works = Vec::new();
    for about in [About::Hostile, About::HostileSame] {
        for peers in PEERS {
            works.extend(SHAPES.map(|(bytes, depth, _)| Work {
                about: about(peers),
                store: Store::Null,
                direction: Direction::Read,
                bytes,
                depth,
                placement: Placement::Apart,
                goal: (about(peers) == About::Hostile(peers)).then_some(LEFT),
                tail_goal: None,
            }));
        }
    }
    works
}

/// Duration of the measurement beside hostile peers.
pub(crate) fn time_beside(work: &Work) -> Duration {
    let shape = SHAPES.iter().find(|(bytes, ..)| *bytes == work.bytes);
    Duration::from_millis(shape.map_or(0, |(.., millis)| *millis))
}

impl Stage {
    /// Measures the honest host alone, and then beside hostile peers.
    pub(crate) fn attack(&self, work: &Work, peers: u16) -> Result<Vec<Sample>, Trouble> {
        let mut command = Command::new(&self.yardstick);
        command.arg("beside").arg(self.target.to_string());
        command.args(["--nqn", scene::NQN, "--bs", &work.bytes.to_string()]);
        command.args(["--iodepth", &work.depth.to_string()]);
        command.args(["--runtime", &self.time.as_secs_f64().to_string()]);
        command.args(["--beside", &time_beside(work).as_secs_f64().to_string()]);
        let mut honest = Honest::start(command, self.initiators_of(work))?;
        let quiet = honest.report()?;
        let mut command = Command::new(&self.yardstick);
        command.arg("hostile").arg(self.target.to_string());
        command.args(["--nqn", scene::NQN, "--bs", &work.bytes.to_string()]);
        command.args(["--peers", &peers.to_string()]);
        if work.about == About::HostileSame(peers) {
            command.arg("--same-address");
        }
        let log = self.perf.join("hostile.log");
        let _hostile = Server::start(&mut command, self.initiators_of(work), &log, "attacking")?;
        honest.resume()?;
        let beside = honest.report().unwrap_or_else(|trouble| {
            // A failure is a result, too.
            eprintln!("bench: {}: {trouble}", work.name());
            FAILED
        });
        Ok(vec![quiet, beside])
    }
}

/// The sample of an honest host whose command failed.
const FAILED: Sample = Sample {
    iops: 0.0,
    bytes_per_s: 0.0,
    p50_us: 0.0,
    p99_us: 0.0,
    p99_9_us: 0.0,
    longest_ms: f64::INFINITY,
    busy: 0.0,
    busy_us: 0.0,
    others: 0.0,
};

/// The process of the honest host; killed when dropped.
struct Honest {
    child: Child,
    reports: BufReader<ChildStdout>,
}

impl Honest {
    fn start(mut command: Command, cores: &[usize]) -> Result<Self, Trouble> {
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = cores::spawn(cores, &mut command)?;
        let reports = child.stdout.take();
        let reports = reports.ok_or_else(|| failed("no standard output"))?;
        let reports = BufReader::new(reports);
        Ok(Self { child, reports })
    }

    /// Its next report.
    fn report(&mut self) -> Result<Sample, Trouble> {
        let mut line = String::new();
        let read = self.reports.read_line(&mut line);
        read.map_err(|error| failed(&error.to_string()))?;
        let report = serde_json::from_str::<Value>(&line).ok();
        let report = report.and_then(|report| sample(&report));
        report.ok_or_else(|| failed("no report, see above"))
    }

    /// Starts its second measurement.
    fn resume(&mut self) -> Result<(), Trouble> {
        let input = self.child.stdin.as_mut();
        let input = input.ok_or_else(|| failed("no standard input"))?;
        let wrote = input.write_all(b"\n");
        wrote.map_err(|error| failed(&error.to_string()))
    }
}

impl Drop for Honest {
    fn drop(&mut self) {
        // Errors mean that it is gone.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

fn failed(why: &str) -> Trouble {
    Trouble::Failed(format!("the honest host: {why}"))
}

/// The heading of the table.
pub(crate) const HEAD: [&str; 8] = [
    "hostile peers",
    "addresses",
    "size",
    "quiet",
    "beside them",
    "ratio",
    "longest wait",
    "goal",
];

/// A line for each measured workload.
pub(crate) fn lines(results: &Results) -> Vec<[String; 8]> {
    results.rows.iter().filter_map(line).collect()
}

/// The table, for a document.
pub(crate) fn markdown(results: &Results) -> String {
    let lines = lines(results);
    let lines = lines
        .iter()
        .map(|cells| format!("| {} |\n", cells.join(" | ")));
    let head = HEAD.join(" | ");
    let rule = " --- |".repeat(HEAD.len());
    format!("| {head} |\n|{rule}\n{}", lines.collect::<String>())
}

fn line(row: &Row) -> Option<[String; 8]> {
    let work = &row.work;
    let peers = work.hostile()?;
    if row.samples.is_empty() {
        return None;
    }
    let [quiet, beside] = [Contestant::Quiet, Contestant::Beside].map(|one| row.median(one));
    let ratio = row.ratio(Contestant::Beside).median;
    let own = work.about == About::Hostile(peers);
    let met = work.is_met(ratio) != Some(false) && beside.longest_ms <= millis(LONGEST);
    let verdict = if met { "met" } else { "not" };
    let goal = match own {
        true => format!("≥{LEFT:.2}, ≤1 s {verdict}"),
        false => format!("≤1 s {verdict}"),
    };
    Some([
        peers.to_string(),
        if own { "their own" } else { "the host's" }.to_owned(),
        size(work.bytes),
        rate(work, &quiet),
        rate(work, &beside),
        format!("{ratio:.2}"),
        match beside.longest_ms.is_finite() {
            true => format!("{:.0} ms", beside.longest_ms),
            false => "failed".to_owned(),
        },
        goal,
    ])
}

/// With more digits than in the other table, because little may be left.
fn rate(work: &Work, sample: &Sample) -> String {
    match work.bytes < 64 << 10 {
        true => format!("{:.1} k/s", sample.iops / 1e3),
        false => format!("{:.0} MB/s", sample.bytes_per_s / 1e6),
    }
}

fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::Machine;
    use crate::results::example;

    fn results(longest_ms: f64) -> Results {
        let rows = works().into_iter().map(|work| {
            let mut row = example(work);
            for (_, samples) in &mut row.samples {
                for sample in samples {
                    sample.longest_ms = longest_ms;
                }
            }
            row
        });
        Results {
            machine: Machine::default(),
            rounds: 1,
            seconds: 0.6,
            rows: rows.collect(),
        }
    }

    #[test]
    fn every_workload_has_a_line() {
        let lines = lines(&results(7.4));
        assert_eq!(lines.len(), 24);
        let cells = lines[0].each_ref().map(String::as_str);
        let expected = [
            "1",
            "their own",
            "4k",
            "100.0 k/s",
            "88.0 k/s",
            "0.80",
            "7 ms",
            "≥0.25, ≤1 s met",
        ];
        assert_eq!(cells, expected);
        let last = &lines[23];
        assert_eq!(
            (&*last[0], &*last[1], &*last[2]),
            ("64", "the host's", "1m")
        );
        assert_eq!(last[7], "≤1 s met");
    }

    #[test]
    fn long_wait_misses_the_goal() {
        for line in lines(&results(1001.0)) {
            assert!(line[7].ends_with(" not"), "{line:?}");
        }
    }

    #[test]
    fn failed_command_misses_the_goal() {
        let line = &lines(&results(FAILED.longest_ms))[0];
        assert_eq!((&*line[6], &*line[7]), ("failed", "≥0.25, ≤1 s not"));
    }

    #[test]
    fn addresses_and_shapes_are_in_the_names() {
        let names: Vec<String> = works().iter().map(Work::name).collect();
        for name in ["hostile-1-4k", "hostile-16-64k", "hostile-64-1m-same"] {
            assert!(names.contains(&name.to_owned()), "{names:?}");
        }
        for work in works() {
            assert!(time_beside(&work) > LONGEST, "{}", work.name());
        }
    }
}
