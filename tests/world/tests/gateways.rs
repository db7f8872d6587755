//! Takeovers between gateways, with mechanisms switched off.
//!
//! * `NVMEOF_SEED=n` runs that seed in each mode. `NVMEOF_ROW=n` as well runs one mode, a row of
//!   the table from 0, and prints its trace;
//! * `NVMEOF_SEEDS=count` runs that many, in all modes together, and prints a table. With
//!   `NVMEOF_ROW=n`, all of them run in one mode.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use std::fmt::Write as _;
use std::panic::catch_unwind;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::thread;

use nvmeof_world::gateways::{Failure, Faults, Mechanism, Mode, Report, run};

/// Seeds of an ordinary run without an expected violation. The rest of the thousand are those of
/// `seeds.rs` and `paths.rs`.
const SEEDS: u64 = 150;
/// Seeds after which a row with expected violations must have one.
const ENOUGH: u64 = 1000;

/// A mode and its expected result.
#[derive(Clone, Copy)]
struct Row {
    mode: Mode,
    /// Percentage of the seeds.
    share: u64,
    /// Whether some seeds fail. Otherwise none does.
    fails: bool,
}

const fn row(faults: Faults, without: Option<Mechanism>, share: u64) -> Row {
    Row {
        mode: Mode { faults, without },
        share,
        fails: without.is_some(),
    }
}

const ROWS: [Row; 9] = {
    use Faults::{Any, Planned, Returning, Successive};
    use Mechanism::{Disconnect, Fence, MapWait, MapWaitWithoutFence, RecordBeforeUse};
    [
        row(Any, None, 55),
        row(Planned, None, 10),
        row(Successive, None, 5),
        row(Returning, None, 5),
        row(Any, Some(Fence), 5),
        row(Any, Some(MapWait), 5),
        row(Successive, Some(MapWaitWithoutFence), 5),
        row(Any, Some(RecordBeforeUse), 5),
        row(Returning, Some(Disconnect), 5),
    ]
};

/// The result of a row.
#[derive(Default)]
struct Outcome {
    seeds: u64,
    /// Seeds with a wrong object or read, and seeds in which a group was not served.
    violations: u64,
    unserved: u64,
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
                self.total.resent += report.resent;
                self.total.takeovers += report.takeovers;
                self.total.fenced += report.fenced;
                self.total.refused += report.refused;
                self.total.ended += report.ended;
                self.total.given_up += report.given_up;
            }
            Err(failure) if fails && failure.is_violation => self.violations += 1,
            Err(_) if fails => self.unserved += 1,
            Err(failure) => self.failures.push(failure.to_string()),
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

/// Runs `count` seeds of a row on as many threads as there are CPUs. With `stop`, no seed begins
/// after one that failed as expected.
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
                    found.fetch_add(usize::from(result.is_err()), Ordering::Relaxed);
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
            Err(failure) if row.fails => println!("row {at} ({}): {}", row.mode, failure.what),
            Err(failure) => panic!("row {at}: {failure}"),
        }
    }
}

#[test]
fn writes_are_undone_only_without_a_mechanism() {
    if let Some(seed) = number("NVMEOF_SEED") {
        return repeat(seed);
    }
    let (all, only) = (number("NVMEOF_SEEDS"), number("NVMEOF_ROW"));
    let mut table = String::from(
        "| faults | switched off | seeds | violations | not served |\n\
         | --- | --- | --- | --- | --- |\n",
    );
    let (mut totals, mut wrong) = (String::new(), Vec::new());
    for (at, row) in (0..).zip(&ROWS) {
        if only.is_some_and(|only| only != at) {
            continue;
        }
        // The short run stops at the first expected failure.
        let (count, stop) = match (all, row.fails) {
            (Some(all), _) if only.is_some() => (all, false),
            (Some(all), _) => (all * row.share / 100, false),
            (None, false) => (SEEDS * row.share / 75, false),
            (None, true) => (ENOUGH, true),
        };
        let outcome = run_row(row, count, stop);
        let Mode { faults, without } = row.mode;
        let without = without.map_or_else(|| "nothing".to_owned(), |one| format!("{one:?}"));
        let (seeds, violations, unserved) = (outcome.seeds, outcome.violations, outcome.unserved);
        writeln!(
            table,
            "| {faults:?} | {without} | {seeds} | {violations} | {unserved} |"
        )
        .unwrap();
        writeln!(totals, "{}: {:?}", row.mode, outcome.total).unwrap();
        wrong.extend(outcome.failures);
        if row.fails && violations + unserved == 0 && seeds >= ENOUGH {
            wrong.push(format!(
                "{}: no failure in {seeds} seeds: the oracle does not see them",
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
    for seed in 0..3 {
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
    assert!(hashes.len() > 3, "different runs have different traces");
}
