//! `nvmeof-bench`: runs yardsticks and ours in turn, and compares.
//!
//! `cargo xtask bench` builds the programs and calls this one. Every contestant
//! is a process on a core of its own, every round runs all contestants of a
//! work one right after the other, and what counts is the ratio of their
//! figures within a round: the machine may be faster or slower in the next.
//!
//! This crate judges nothing but figures: it has no opinion on what ours does.
#![forbid(unsafe_code)]

mod attack;
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

/// Run yardsticks and ours in turn, and compare.
#[derive(Debug, Parser)]
#[command(
    bin_name = "cargo xtask bench",
    after_help = "A peer is a shell command that runs once for each measurement and prints a\n\
        report as `nvmeof bench -o json` or fio do. Its environment says what to\n\
        measure: BENCH_RW, BENCH_BS, BENCH_IODEPTH, BENCH_RUNTIME (seconds), and where\n\
        our target is: BENCH_TRADDR, BENCH_TRSVCID, BENCH_NQN, BENCH_NSID. It starts on\n\
        the initiator's core; the target's is BENCH_TARGET_CORE. With it everybody is\n\
        measured for whole seconds, in one piece.\n\n\
        A peer target is a shell command that serves NVMe over iWARP until it is killed\n\
        (let it `exec`): at BENCH_TRADDR the subsystem BENCH_NQN, with a null device as\n\
        namespace 1 and the file BENCH_FILE as namespace 2. It starts on the target's\n\
        core and prints a line with `ready` and ADDRESS:PORT when it listens.\n\n\
        Exit status: 0 done, 1 a measurement failed, 2 wrong usage or set-up."
)]
struct Arguments {
    /// Parts of names of works, see --list; all if nothing is named
    #[arg(value_name = "WORK")]
    works: Vec<String>,
    /// List the works
    #[arg(long)]
    list: bool,
    /// Times that everything is measured in turn
    #[arg(long, value_name = "N", default_value_t = ROUNDS,
          value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: u32,
    /// Seconds of each measurement, for example 2 or 0.5
    #[arg(long, value_name = "S", default_value = SECONDS, value_parser = seconds)]
    seconds: Duration,
    /// Only what has a figure to reach, 3 rounds
    #[arg(long, conflicts_with = "rounds")]
    quick: bool,
    /// Times that a measurement is tried until others have less than 10 % of a
    /// core; the least disturbed counts
    #[arg(long, value_name = "N", default_value_t = TRIES,
          value_parser = clap::value_parser!(u32).range(1..=100))]
    tries: u32,
    /// A foreign initiator to measure in turn with ours, both with our target
    #[arg(long, value_name = "CMD")]
    peer: Option<String>,
    /// A foreign target to measure in turn with ours, both with our initiator
    #[arg(long, value_name = "CMD")]
    peer_target: Option<String>,
    /// Say where the time goes, by perf(1), of what does not reach its figure;
    /// what refreshes docs/performance.md does so unasked
    #[arg(long)]
    profile: bool,
    /// Leave docs/performance.md as it is. Only a run of all works refreshes it,
    /// measured as it is without options
    #[arg(long)]
    no_refresh: bool,
    /// Measure also what needs more CPU cores than there are
    #[arg(long)]
    force: bool,
    /// How the result is printed
    #[arg(short, long, value_name = "FORMAT", default_value = "text")]
    output_format: Format,
    /// Take nvmeof-target and nvmeof from this folder
    #[arg(long, value_name = "FOLDER")]
    bin_dir: Option<PathBuf>,
    /// Where files go: disk image, logs, result.json, plots
    #[arg(
        long,
        value_name = "FOLDER",
        env = "NVMEOF_BENCH_DIR",
        default_value = "build/bench"
    )]
    folder: PathBuf,
    /// Size of the file behind the works named file-..., in MiB
    #[arg(long, value_name = "MIB", default_value_t = FILE_MIB,
          value_parser = clap::value_parser!(u64).range(16..=1_048_576))]
    file_mib: u64,
}

/// What `docs/performance.md` shows is measured so, see [`Arguments::refreshes`].
const ROUNDS: u32 = 5;
const SECONDS: &str = "0.6";
const TRIES: u32 = 3;
const FILE_MIB: u64 = 1024;

impl Arguments {
    /// What of the documents gets what comes out: all, or the part that has a table
    /// of its own, measured by the rule and with what was built here. Less would
    /// replace a table by a worse one.
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
        let ours = self.peer.is_none() && self.peer_target.is_none() && self.bin_dir.is_none();
        (usual && ours && !self.force && !self.no_refresh).then_some(what)
    }

    /// The works to measure: with a peer those that it takes part in.
    fn chosen(&self) -> Result<Vec<Work>, Trouble> {
        let mut works = work::select(&self.works)?;
        if self.quick {
            works.retain(Work::is_quick);
        }
        if self.peer.is_some() || self.peer_target.is_some() {
            let all = works.len();
            works.retain(Work::takes_peers);
            let left_out = all - works.len();
            if works.is_empty() {
                return Err(Trouble::SetUp(
                    "no peer takes part in these works, only in those whose names begin with \
                     null- or file-, over software iWARP; name some of them, or no peer"
                        .to_owned(),
                ));
            }
            if left_out > 0 {
                eprintln!("bench: {left_out} works are left out, in which no peer takes part");
            }
        }
        Ok(works)
    }

    /// Whether it is to be said where the time goes: in the documents always.
    fn profiles(&self) -> bool {
        self.profile || self.refreshes() == Some(Refreshed::All)
    }
}

/// What of the documents a run refreshes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Refreshed {
    All,
    /// The table of the works with hostile peers.
    Hostile,
}

impl Refreshed {
    /// The word that chooses those works.
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
        _ => Err("a number of seconds from 0.1 to 600 is expected".to_owned()),
    }
}

/// Why the benchmark stops.
#[derive(Debug)]
enum Trouble {
    /// Wrong usage, or something on this machine: status 2.
    SetUp(String),
    /// Status 1.
    Failed(String),
}

impl Trouble {
    /// A file operation that did not work.
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
    // Targets take no other path for their sockets.
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
            eprintln!("bench: docs/performance.md and its plots are refreshed");
        }
        Some(Refreshed::Hostile) => {
            document::refresh_hostile(&results)?;
            eprintln!("bench: the table of hostile peers in docs/performance.md is refreshed");
        }
        None => {
            document::plots(&results, &arguments.folder)?;
            eprintln!(
                "bench: result.json and plots are in {}; only a run of all works without \
                 options refreshes the documents",
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
    fn the_command_line_is_consistent() {
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
    fn only_a_whole_run_as_it_comes_refreshes_the_documents() {
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
    fn quick_run_has_few_works_with_hostile_peers() {
        let works = Arguments::parse_from(["bench", "--quick"]).chosen();
        let names: Vec<String> = works.unwrap().iter().map(Work::name).collect();
        let hostile = names.iter().filter(|name| name.starts_with("hostile"));
        let expected = ["hostile-64-4k", "hostile-64-64k", "hostile-64-1m"];
        assert!(hostile.eq(expected.iter()), "{names:?}");
    }

    #[test]
    fn with_a_peer_only_works_are_measured_that_it_takes_part_in() {
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
                words.contains("no peer takes part in these works"),
                "{words}"
            );
        }
        assert!(chosen("bench shm-").is_ok());
    }

    #[test]
    fn unknown_work_is_refused_and_the_way_out_named() {
        let arguments = Arguments::parse_from(["bench", "--list", "no-such-work"]);
        let trouble = dispatch(arguments).unwrap_err();
        assert!(matches!(trouble, Trouble::SetUp(_)));
        assert!(trouble.to_string().contains("--list"), "{trouble}");
    }
}
