//! Many seeds, and that a seed gives one run.
//!
//! * `NVMEOF_SEED=n` runs that seed alone and prints its trace;
//! * `NVMEOF_SEEDS=count` runs that many, starting at `NVMEOF_FIRST_SEED=n`;
//! * `NVMEOF_RESERVATIONS=1` omits all of them without reservations.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use std::panic::catch_unwind;
use std::str::FromStr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use nvmeof_world::{Report, has_reservations, run, run_with_trace};

/// Seeds of an ordinary run. The rest of the thousand are those of `paths.rs` and `gateways.rs`.
const SEEDS: u64 = 700;
/// Seeds after which hosts must have been authenticated and denied access, and imposters refused.
const MANY: u64 = 200;
/// Number of failures after which the run stops.
const ENOUGH: usize = 20;
/// Failures printed in full.
const SHOWN: usize = 3;

fn number<T: FromStr>(name: &str) -> Option<T> {
    let text = std::env::var(name).ok()?;
    let parsed = text.parse().ok();
    Some(parsed.unwrap_or_else(|| panic!("{name}={text} is not a number")))
}

#[test]
fn thousand_seeds() {
    if let Some(seed) = number("NVMEOF_SEED") {
        match run_with_trace(seed) {
            Ok(report) => return println!("{report:?}"),
            Err(failure) => panic!("seed {seed}: {}", failure.what),
        }
    }
    let count = number("NVMEOF_SEEDS").unwrap_or(SEEDS);
    let first = number("NVMEOF_FIRST_SEED").unwrap_or(0);
    let next = AtomicU64::new(first);
    let failures = Mutex::new(Vec::new());
    let totals = Mutex::new([0; 7]);
    let only_reservations = number::<u64>("NVMEOF_RESERVATIONS").is_some();
    let ran = AtomicU64::new(0);
    let threads = thread::available_parallelism().map_or(2, usize::from);
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= first + count || failures.lock().unwrap().len() >= ENOUGH {
                        return;
                    }
                    if only_reservations && !has_reservations(seed) {
                        continue;
                    }
                    ran.fetch_add(1, Ordering::Relaxed);
                    match one(seed) {
                        Ok(report) => {
                            let mut totals = totals.lock().unwrap();
                            let Report {
                                calls,
                                faults,
                                connections,
                                authenticated,
                                refused,
                                reserved,
                                denied,
                                ..
                            } = report;
                            let report = [
                                calls,
                                faults as u64,
                                connections,
                                authenticated,
                                refused,
                                reserved,
                                denied,
                            ];
                            for (total, one) in totals.iter_mut().zip(report) {
                                *total += one;
                            }
                        }
                        Err(text) => failures.lock().unwrap().push((seed, text)),
                    }
                }
            });
        }
    });
    let [
        calls,
        faults,
        connections,
        authenticated,
        refused,
        reserved,
        denied,
    ] = totals.into_inner().unwrap();
    let ran = ran.into_inner();
    println!(
        "{ran} seeds: {calls} calls, {faults} faults, {connections} connections; \
         {authenticated} queues authenticated, {refused} wrong keys refused; \
         {reserved} changes of reservations, {denied} calls denied"
    );
    let mut failures = failures.into_inner().unwrap();
    failures.sort();
    for (_, text) in failures.iter().take(SHOWN) {
        println!("{text}\n");
    }
    let seeds: Vec<u64> = failures.iter().map(|(seed, _)| *seed).collect();
    assert!(
        seeds.is_empty(),
        "{} of {ran} seeds failed: {seeds:?}",
        seeds.len()
    );
    assert!(
        ran < MANY || (authenticated > 0 && refused > 0 && denied > 0),
        "no seed authenticates, or none has reservations"
    );
}

/// One seed; a panic is a failure like any other.
fn one(seed: u64) -> Result<Report, String> {
    match catch_unwind(|| run(seed)) {
        Ok(result) => result.map_err(|failure| failure.to_string()),
        Err(_) => Err(format!(
            "seed {seed} panicked, see above\n\
             to repeat: NVMEOF_SEED={seed} cargo test -p nvmeof-world"
        )),
    }
}

#[test]
fn same_seed_gives_the_same_run() {
    if number::<u64>("NVMEOF_SEED").is_some() {
        return;
    }
    let mut hashes = Vec::new();
    for seed in 0..24 {
        let (Ok(first), Ok(second)) = (one(seed), one(seed)) else {
            // Another test reports it.
            continue;
        };
        assert_eq!(first, second);
        hashes.push(first.hash);
    }
    hashes.sort_unstable();
    hashes.dedup();
    assert!(hashes.len() > 20, "different seeds give different runs");
}
