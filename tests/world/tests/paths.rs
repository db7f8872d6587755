//! Loss of a path, with three kinds of hosts, and with mechanisms switched off.
//!
//! * `NVMEOF_SEED=n` runs that seed in each mode, and prints the trace of those that fail.
//!   `NVMEOF_ROW=n` as well runs one mode, a row of the table from 0, and prints its trace;
//! * `NVMEOF_SEEDS=count` runs that many, in all modes together, and prints a table.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use std::fmt::Write as _;
use std::panic::catch_unwind;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::thread;

use nvmeof_world::paths::{Failure, Faults, HostKind, Mechanism, Mode, Report, run};

/// Seeds of an ordinary run, in all modes. The rest of the thousand are those of `seeds.rs` and
/// `gateways.rs`.
const SEEDS: u64 = 150;
/// Seeds after which a row with expected violations must have one.
const ENOUGH: u64 = 300;

/// A mode and its expected result.
#[derive(Clone, Copy)]
struct Row {
    mode: Mode,
    /// Percentage of the seeds.
    share: u64,
    /// Whether some seeds have violations. Otherwise none has.
    fails: bool,
}

const fn row(
    host: HostKind,
    faults: Faults,
    without: Option<Mechanism>,
    share: u64,
    fails: bool,
) -> Row {
    let mode = Mode {
        host,
        faults,
        without,
    };
    Row { mode, share, fails }
}

const ROWS: [Row; 13] = {
    use Faults::{Any, Notified};
    use HostKind::{Fence, Initiator, Resend};
    use Mechanism::{
        PredecessorLock, QuiesceTime, QuiesceTimeAndRangeLocks, RangeLocks, ResetCompletion,
    };
    [
        row(Fence, Any, None, 22, false),
        // A host that fences does not depend on them.
        row(Fence, Any, Some(RangeLocks), 6, false),
        row(Fence, Any, Some(PredecessorLock), 5, true),
        row(Fence, Any, Some(ResetCompletion), 6, true),
        row(Fence, Any, Some(QuiesceTime), 5, true),
        row(Resend, Any, None, 6, true),
        row(Resend, Notified, None, 7, false),
        row(Resend, Notified, Some(RangeLocks), 4, true),
        row(Resend, Notified, Some(PredecessorLock), 4, true),
        row(Initiator, Any, None, 23, false),
        row(Initiator, Any, Some(PredecessorLock), 4, true),
        // It gives up no write, and range locks order one that it sends again too early.
        row(Initiator, Any, Some(QuiesceTime), 4, false),
        row(Initiator, Any, Some(QuiesceTimeAndRangeLocks), 4, true),
    ]
};

/// The result of a row.
#[derive(Default)]
struct Outcome {
    seeds: u64,
    /// Seeds with a violation.
    violations: Vec<u64>,
    /// Unexpected failures.
    failures: Vec<String>,
    total: Report,
}

impl Outcome {
    fn add(&mut self, fails: bool, result: Result<Report, Failure>) {
        self.seeds += 1;
        match result {
            Ok(report) => {
                self.total.calls += report.calls;
                self.total.losses += report.losses;
                self.total.resent += report.resent;
                self.total.given_up += report.given_up;
                self.total.reset += report.reset;
                self.total.waited += report.waited;
                self.total.starts += report.starts;
            }
            Err(failure) => {
                if failure.is_violation {
                    self.violations.push(failure.seed);
                }
                if !failure.is_violation || !fails {
                    self.failures.push(failure.to_string());
                }
            }
        }
    }
}

fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    let parsed = text.parse().ok();
    Some(parsed.unwrap_or_else(|| panic!("{name}={text} is not a number")))
}

/// One seed; a panic is a failure like any other.
fn one(seed: u64, mode: Mode) -> Result<Report, Failure> {
    match catch_unwind(|| run(seed, mode, false)) {
        Ok(result) => result.map_err(|failure| *failure),
        Err(_) => Err(Failure {
            seed,
            mode,
            is_violation: false,
            what: "panicked, see above".to_owned(),
            trace: Vec::new(),
        }),
    }
}

/// Runs `count` seeds of a row on as many threads as there are CPUs. With `stop`, no seed
/// begins after one with a violation.
fn run_row(row: &Row, count: u64, stop: bool) -> Outcome {
    let (next, found) = (AtomicU64::new(0), AtomicUsize::new(0));
    let outcome = Mutex::new(Outcome::default());
    let threads = thread::available_parallelism().map_or(2, usize::from);
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= count || (stop && found.load(Ordering::Relaxed) > 0) {
                        return;
                    }
                    let result = one(seed, row.mode);
                    let is_violation = result.as_ref().is_err_and(|failure| failure.is_violation);
                    found.fetch_add(usize::from(is_violation), Ordering::Relaxed);
                    outcome.lock().unwrap().add(row.fails, result);
                }
            });
        }
    });
    outcome.into_inner().unwrap()
}

/// One seed in all modes, or in that of one row.
fn repeat(seed: u64) {
    let only = number("NVMEOF_ROW");
    for (at, row) in (0..).zip(&ROWS) {
        if only.is_some_and(|only| only != at) {
            continue;
        }
        match run(seed, row.mode, only.is_some()) {
            Ok(report) => println!("row {at} ({}): {report:?}", row.mode),
            Err(failure) if failure.is_violation && row.fails => {
                println!("row {at} ({}): violation: {}", row.mode, failure.what);
            }
            Err(failure) => panic!("row {at}: {failure}"),
        }
    }
}

#[test]
fn writes_are_undone_only_without_a_mechanism() {
    if let Some(seed) = number("NVMEOF_SEED") {
        return repeat(seed);
    }
    let all = number("NVMEOF_SEEDS");
    let mut table = String::from(
        "| host | faults | switched off | seeds | seeds with violations |\n\
         | --- | --- | --- | --- | --- |\n",
    );
    let (mut totals, mut wrong) = (String::new(), Vec::new());
    for row in &ROWS {
        // The short run stops at the first expected violation.
        let (count, stop) = match (all, row.fails) {
            (Some(all), _) => (all * row.share / 100, false),
            (None, false) => (SEEDS * row.share / 100, false),
            (None, true) => (ENOUGH, true),
        };
        let outcome = run_row(row, count, stop);
        let Mode {
            host,
            faults,
            without,
        } = row.mode;
        let without = without.map_or_else(|| "nothing".to_owned(), |one| format!("{one:?}"));
        let (seeds, violations) = (outcome.seeds, outcome.violations.len());
        writeln!(
            table,
            "| {host:?} | {faults:?} | {without} | {seeds} | {violations} |"
        )
        .unwrap();
        writeln!(totals, "{}: {:?}", row.mode, outcome.total).unwrap();
        wrong.extend(outcome.failures);
        if row.fails && violations == 0 && seeds >= ENOUGH {
            wrong.push(format!(
                "{}: no violation in {seeds} seeds: the oracle does not see them",
                row.mode
            ));
        }
    }
    println!("\n{table}\n{totals}");
    let shown: Vec<&str> = wrong.iter().take(3).map(String::as_str).collect();
    assert!(
        wrong.is_empty(),
        "{} failures:\n{}",
        wrong.len(),
        shown.join("\n\n")
    );
}

#[test]
fn same_seed_gives_the_same_run() {
    if number("NVMEOF_SEED").is_some() {
        return;
    }
    let mut hashes = Vec::new();
    for seed in 0..2 {
        for row in &ROWS {
            // Another test reports failures.
            if let (Ok(first), Ok(second)) = (one(seed, row.mode), one(seed, row.mode)) {
                assert_eq!(first, second, "seed {seed} ({})", row.mode);
                hashes.push(first.hash);
            }
        }
    }
    hashes.sort_unstable();
    hashes.dedup();
    assert!(hashes.len() > 12, "different runs have different traces");
}
