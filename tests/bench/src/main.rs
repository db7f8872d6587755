//! `nvmeof-bench`: measures yardsticks and this project alternately, and compares.
//!
//! `cargo xtask bench` builds the programs and runs this one. Each contestant is a
//! process on a core of its own. Each round runs all contestants of a workload one
//! immediately after the other. Ratios are computed within a round, because the speed
//! of the machine may change from round to round.
//!
//! It measures performance only; `tests/e2e` tests correctness. Names: "ours" is this
//! project, a work is a workload, a contestant is a program that is measured.
#![forbid(unsafe_code)]

mod attack;
mod busy;
mod chart;
mod contestant;
mod cores;
mod disturbance;
mod document;
mod machine;
mod process;
mod profile;
mod results;
mod run;
mod sample;
mod scene;
mod stage;
mod table;
mod work;

use std::fmt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::{Parser, ValueEnum};

use crate::work::Work;

/// Measure yardsticks and this project alternately, and compare.
#[derive(Debug, Parser)]
#[command(
    bin_name = "cargo xtask bench",
    after_help = "A peer is a shell command that runs once for each measurement and prints a\n\
        JSON report like `nvmeof bench -o json` or fio. Environment variables define\n\
        the measurement: BENCH_RW, BENCH_BS, BENCH_IODEPTH, BENCH_RUNTIME (seconds).\n\
        Others define the target: BENCH_TRADDR, BENCH_TRSVCID, BENCH_NQN, BENCH_NSID.\n\
        The peer starts on the initiator's core; BENCH_TARGET_CORE is the target's.\n\
        With a peer, all contestants are measured for whole seconds, in one piece.\n\n\
        A peer target is a shell command that serves NVMe over iWARP until it is killed\n\
        (use `exec`): at BENCH_TRADDR the subsystem BENCH_NQN, with a null device as\n\
        namespace 1 and the file BENCH_FILE as namespace 2. It starts on the target's\n\
        core and prints a line with `ready` and ADDRESS:PORT when it listens. It is\n\
        stopped while others are measured, because it may poll.\n\n\
        A peer pair is a shell command for both. BENCH_SIDE is `target` or `initiator`.\n\
        The target serves 64 MiB of memory as namespace 3 instead of the file, and\n\
        BENCH_QUEUES is the number of I/O queues, each with BENCH_IODEPTH operations.\n\
        With BENCH_RATE, the initiator starts as many operations in each second, and its\n\
        report has target_busy_us, the busy time of the target for each operation.\n\n\
        Exit status: 0 success, 1 a measurement failed, 2 usage or set-up error."
)]
struct Arguments {
    /// Parts of names of workloads (see --list); default: all workloads
    #[arg(value_name = "WORKLOAD")]
    works: Vec<String>,
    /// List the workloads
    #[arg(long)]
    list: bool,
    /// Number of rounds; each round measures all contestants
    #[arg(long, value_name = "N", default_value_t = ROUNDS,
          value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: u32,
    /// Duration of each measurement in seconds, for example 2 or 0.5
    #[arg(long, value_name = "S", default_value = SECONDS, value_parser = seconds)]
    seconds: Duration,
    /// Measure only workloads with a goal, in 3 rounds
    #[arg(long, conflicts_with = "rounds")]
    quick: bool,
    /// Attempts for a measurement while other processes use more than 10 % of a
    /// core; the least disturbed one counts
    #[arg(long, value_name = "N", default_value_t = TRIES,
          value_parser = clap::value_parser!(u32).range(1..=100))]
    tries: u32,
    /// Another initiator to measure alternately with this one, both with this
    /// target
    #[arg(long, value_name = "CMD")]
    peer: Option<String>,
    /// Another target to measure alternately with this one, both with this
    /// initiator
    #[arg(long, value_name = "CMD")]
    peer_target: Option<String>,
    /// Another initiator with another target to measure alternately with this
    /// pair, in workloads of their own
    #[arg(long, value_name = "CMD", conflicts_with_all = ["peer", "peer_target"])]
    peer_pair: Option<String>,
    /// Profile the workloads that miss their goal with perf(1); a run that
    /// updates docs/performance.md always does so
    #[arg(long)]
    profile: bool,
    /// Do not update docs/performance.md. Only a run of all workloads with the
    /// default options updates it
    #[arg(long)]
    no_refresh: bool,
    /// Also measure workloads that require more CPU cores than there are
    #[arg(long)]
    force: bool,
    /// Output format of the result
    #[arg(short, long, value_name = "FORMAT", default_value = "text")]
    output_format: Format,
    /// Folder of the programs nvmeof-target and nvmeof
    #[arg(long, value_name = "FOLDER")]
    bin_dir: Option<PathBuf>,
    /// Folder for files: backing stores, logs, result.json, plots
    #[arg(
        long,
        value_name = "FOLDER",
        env = "NVMEOF_BENCH_DIR",
        default_value = "build/bench"
    )]
    folder: PathBuf,
    /// Size of the backing store of the workloads file-..., in MiB
    #[arg(long, value_name = "MIB", default_value_t = FILE_MIB,
          value_parser = clap::value_parser!(u64).range(16..=1_048_576))]
    file_mib: u64,
}

/// Defaults. `docs/performance.md` has results with these only, see
/// [`Arguments::refreshes`].
const ROUNDS: u32 = 5;
const SECONDS: &str = "0.6";
const TRIES: u32 = 3;
const FILE_MIB: u64 = 1024;

impl Arguments {
    /// The part of the documents that this run updates: all, or the table of workloads
    /// with hostile peers. Only runs with the default options and with the programs of
    /// this build update a table, so that no table gets worse.
    fn refreshes(&self) -> Option<Refreshed> {
        let what = match self.works.as_slice() {
            _ if self.quick => return None,
            [] => Refreshed::All,
            [name] if name == Refreshed::HOSTILE => Refreshed::Hostile,
            _ => return None,
        };
        let usual = self.rounds == ROUNDS
            && seconds(SECONDS) == Ok(self.seconds)
            && self.tries == TRIES
            && self.file_mib == FILE_MIB;
        let peers = [&self.peer, &self.peer_target, &self.peer_pair];
        let ours = peers.iter().all(|peer| peer.is_none()) && self.bin_dir.is_none();
        (usual && ours && !self.force && !self.no_refresh).then_some(what)
    }

    /// The workloads to measure: with a peer, those that support peers.
    fn chosen(&self) -> Result<Vec<Work>, Trouble> {
        let all = match self.peer_pair {
            Some(_) => work::pairs(),
            None => work::all(),
        };
        let mut works = work::select(all, &self.works)?;
        if self.quick {
            works.retain(Work::is_quick);
            if works.is_empty() {
                return Err(Trouble::SetUp(
                    "--quick skips these workloads: it measures only workloads with a goal, and \
                     those with hostile peers only with 64; omit --quick, or name others \
                     (--quick --list lists them)"
                        .to_owned(),
                ));
            }
        }
        if self.peer.is_some() || self.peer_target.is_some() {
            let all = works.len();
            works.retain(Work::takes_peers);
            let left_out = all - works.len();
            if works.is_empty() {
                return Err(Trouble::SetUp(
                    "these workloads do not support peers, only null-... and file-... do, over \
                     software iWARP; name some of these, or omit the peer"
                        .to_owned(),
                ));
            }
            if left_out > 0 {
                eprintln!("bench: skipping {left_out} workloads that do not support peers");
            }
        }
        Ok(works)
    }

    /// Whether to profile: always for the documents.
    fn profiles(&self) -> bool {
        self.profile || self.refreshes() == Some(Refreshed::All)
    }
}

/// The part of the documents that a run updates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Refreshed {
    All,
    /// The table of the workloads with hostile peers.
    Hostile,
}

impl Refreshed {
    /// The argument that selects those workloads.
    const HOSTILE: &str = "hostile";
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Format {
    Text,
    Json,
}

fn seconds(text: &str) -> Result<Duration, String> {
    match text.parse() {
        Ok(seconds) if (0.1..=600.0).contains(&seconds) => Ok(Duration::from_secs_f64(seconds)),
        _ => Err("must be a number of seconds from 0.1 to 600".to_owned()),
    }
}

/// Why the benchmark stops.
#[derive(Debug)]
enum Trouble {
    /// Usage error, or a problem of this machine: status 2.
    SetUp(String),
    /// A measurement failed: status 1.
    Failed(String),
}

impl Trouble {
    /// A failed file operation.
    fn file(doing: &str, path: &Path, error: &std::io::Error) -> Self {
        Self::SetUp(format!("cannot {doing} {}: {error}", path.display()))
    }
}

impl fmt::Display for Trouble {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Self::SetUp(text) | Self::Failed(text)) = self;
        out.write_str(text)
    }
}

fn main() -> ExitCode {
    match dispatch(Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(trouble) => {
            eprintln!("bench: {trouble}");
            match trouble {
                Trouble::SetUp(_) => ExitCode::from(2),
                Trouble::Failed(_) => ExitCode::FAILURE,
            }
        }
    }
}

fn dispatch(mut arguments: Arguments) -> Result<(), Trouble> {
    let works = arguments.chosen()?;
    if arguments.list {
        for work in &works {
            println!("{:33}  {}", work.name(), work.summary());
        }
        return Ok(());
    }
    // Targets require an absolute path for their sockets.
    let folder = std::path::absolute(&arguments.folder);
    arguments.folder = folder.map_err(|e| Trouble::file("find", &arguments.folder, &e))?;
    let results = run::run(&arguments, works)?;
    let json = results.to_json()?;
    let path = arguments.folder.join("result.json");
    std::fs::write(&path, &json).map_err(|error| Trouble::file("write", &path, &error))?;
    match arguments.output_format {
        Format::Json => println!("{json}"),
        Format::Text => print!("{}", table::text(&results)),
    }
    match arguments.refreshes() {
        Some(Refreshed::All) => {
            document::refresh(&results)?;
            eprintln!("bench: updated docs/performance.md and its plots");
        }
        Some(Refreshed::Hostile) => {
            document::refresh_hostile(&results)?;
            eprintln!("bench: updated the table of hostile peers in docs/performance.md");
        }
        None => {
            document::plots(&results, &arguments.folder)?;
            eprintln!(
                "bench: result.json and plots are in {}; only a run of all workloads without \
                 options updates the documents",
                arguments.folder.display()
            );
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn command_line_is_consistent() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn help_fits_eighty_columns() {
        let help = Arguments::command().term_width(80).render_long_help();
        for line in help.to_string().lines() {
            assert!(line.chars().count() <= 80, "{line}");
        }
    }

    #[test]
    fn only_a_full_run_with_defaults_updates_documents() {
        let parse = |line: &str| Arguments::parse_from(line.split(' '));
        for line in ["bench", "bench --profile", "bench -o json --folder /a"] {
            let arguments = parse(line);
            assert_eq!(arguments.refreshes(), Some(Refreshed::All), "{line}");
            assert!(arguments.profiles(), "{line}");
        }
        let hostile = parse("bench hostile");
        assert_eq!(hostile.refreshes(), Some(Refreshed::Hostile));
        assert!(!hostile.profiles());
        for option in [
            "null-rand",
            "--rounds 1",
            "--seconds 0.1",
            "--tries 1",
            "--quick",
            "--force",
            "--file-mib 16",
            "--bin-dir /a",
            "--peer x",
            "--peer-target x",
            "--peer-pair x",
            "--no-refresh",
        ] {
            let arguments = parse(&format!("bench {option}"));
            assert_eq!(arguments.refreshes(), None, "{option}");
            assert!(!arguments.profiles(), "{option}");
            let hostile = parse(&format!("bench hostile {option}"));
            assert_eq!(hostile.refreshes(), None, "{option}");
            assert!(parse(&format!("bench --profile {option}")).profiles());
        }
    }

    #[test]
    fn quick_run_has_few_workloads_with_hostile_peers() {
        let works = Arguments::parse_from(["bench", "--quick"]).chosen();
        let names: Vec<String> = works.unwrap().iter().map(Work::name).collect();
        let hostile = names.iter().filter(|name| name.starts_with("hostile"));
        let expected = ["hostile-64-4k", "hostile-64-64k", "hostile-64-1m"];
        assert!(hostile.eq(expected.iter()), "{names:?}");
    }

    #[test]
    fn quick_run_without_workloads_is_refused_with_a_remedy() {
        let chosen = |line: &str| Arguments::parse_from(line.split(' ')).chosen();
        for line in [
            "bench --quick --peer-pair x pair-ram",
            "bench --quick hostile-4-",
        ] {
            let words = chosen(line).unwrap_err().to_string();
            for part in ["--quick skips", "with a goal", "omit --quick"] {
                assert!(words.contains(part), "{line}: {words}");
            }
        }
        assert!(chosen("bench --quick --peer-pair x pair-null").is_ok());
        assert!(chosen("bench --peer-pair x pair-ram").is_ok());
    }

    #[test]
    fn peer_limits_run_to_workloads_that_support_peers() {
        let chosen = |line: &str| Arguments::parse_from(line.split(' ')).chosen();
        for peer in ["--peer x", "--peer-target x"] {
            let names = |line: &str| -> Vec<String> {
                let works = chosen(&format!("bench {peer}{line}")).unwrap();
                works.iter().map(Work::name).collect()
            };
            let all = names("");
            let theirs = |name: &String| name.starts_with("null-") || name.starts_with("file-");
            assert!(all.iter().all(theirs), "{all:?}");
            assert!(
                all.contains(&"file-randread-4k-qd128".to_owned()),
                "{all:?}"
            );
            let some = names(" null-randread-4k-qd16 shm-null-randread-4k-qd16");
            assert_eq!(some, ["null-randread-4k-qd16"]);
            let trouble = chosen(&format!("bench {peer} shm-")).unwrap_err();
            let words = trouble.to_string();
            assert!(
                words.contains("these workloads do not support peers"),
                "{words}"
            );
        }
        assert!(chosen("bench shm-").is_ok());
    }

    #[test]
    fn unknown_workload_is_refused_with_a_remedy() {
        let arguments = Arguments::parse_from(["bench", "--list", "no-such-work"]);
        let trouble = dispatch(arguments).unwrap_err();
        assert!(matches!(trouble, Trouble::SetUp(_)));
        assert!(trouble.to_string().contains("--list"), "{trouble}");
    }
}
