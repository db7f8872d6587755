//! `cargo xtask soak`: random faults of paths and of the target under a verified load.

use std::time::{SystemTime, UNIX_EPOCH};

use crate::profile::Profile;
use crate::run::{self, Failure, Outcome};
use crate::setup;

/// How long faults are injected by default: one hour.
const SECONDS: u64 = 3600;
/// The largest limit, which is none.
const NO_LIMIT: u64 = 0xffff_ffff;
/// Faults of `cargo xtask test --all`.
const FAULTS_OF_ALL: u64 = 100;

/// When no more faults begin, whichever comes first, and the choice of faults.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Limits {
    faults: u64,
    seconds: u64,
    seed: u64,
}

/// `cargo xtask soak [--faults N] [--seconds N] [--seed N]`.
pub(crate) fn main(arguments: &[String]) -> Outcome {
    let limits = parse(arguments)?;
    setup::ensure(&[setup::RDMA])?;
    run_test(limits, Profile::Dev)
}

/// The part of `cargo xtask test --all` with many faults; the step `e2e` runs a few each time.
pub(crate) fn of_all(profile: Profile) -> Outcome {
    let limits = Limits {
        faults: FAULTS_OF_ALL,
        seconds: NO_LIMIT,
        seed: of_clock(),
    };
    run_test(limits, profile)
}

/// With one limit there is no other one.
fn parse(arguments: &[String]) -> Outcome<Limits> {
    let (mut faults, mut seconds, mut seed) = (None, None, None);
    let mut arguments = arguments.iter();
    while let Some(argument) = arguments.next() {
        let value = match argument.as_str() {
            "--faults" => &mut faults,
            "--seconds" => &mut seconds,
            "--seed" => &mut seed,
            extra => return Err(Failure::unexpected(extra)),
        };
        *value = Some(number(argument, arguments.next())?);
    }
    let default = match faults {
        Some(_) => NO_LIMIT,
        None => SECONDS,
    };
    Ok(Limits {
        faults: faults.unwrap_or(NO_LIMIT),
        seconds: seconds.unwrap_or(default),
        seed: seed.unwrap_or_else(of_clock),
    })
}

fn number(option: &str, text: Option<&String>) -> Outcome<u64> {
    let number = text
        .and_then(|text| text.parse().ok())
        .filter(|number| (1..=NO_LIMIT).contains(number));
    number.ok_or_else(|| Failure::Usage(format!("{option}: must be a number from 1 to {NO_LIMIT}")))
}

/// A seed that differs each time; the test prints it.
fn of_clock() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.map_or(1, |now| now.as_secs() % 1_000_000 + 1)
}

/// Builds the programs and runs the test, which prints each fault.
fn run_test(limits: Limits, profile: Profile) -> Outcome {
    run::run(&mut profile.build(""))?;
    let mut test = run::cargo("test --locked -p nvmeof-e2e --test soak");
    test.args(["verified_load_runs_through_random_faults", "--", "--exact"]);
    test.arg("--nocapture");
    test.env("NVMEOF_BIN_DIR", profile.folder());
    test.env("NVMEOF_SOAK_FAULTS", limits.faults.to_string());
    test.env("NVMEOF_SOAK_SECONDS", limits.seconds.to_string());
    test.env("NVMEOF_SOAK_SEED", limits.seed.to_string());
    run::run(&mut test)
}

/// `cargo xtask bench failover`: prints the table of docs/performance.md.
pub(crate) fn failover_times() -> Outcome {
    times("failover_times", "NVMEOF_FAILOVER_ROUNDS")
}

/// `cargo xtask bench reconnect`: prints the table of docs/performance.md.
pub(crate) fn reconnect_times() -> Outcome {
    times("reconnect_times", "NVMEOF_RECONNECT_ROUNDS")
}

/// Runs a test that measures, with this variable for the number of rounds.
fn times(name: &str, rounds: &str) -> Outcome {
    setup::ensure(&[setup::RDMA])?;
    let profile = Profile::Release;
    run::run(&mut profile.build(""))?;
    let mut test = run::cargo("test --release --locked -p nvmeof-e2e --test");
    test.args([name, "--", "--nocapture"]);
    test.env("NVMEOF_BIN_DIR", profile.folder());
    test.env(rounds, "11");
    run::run(&mut test)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits(line: &str) -> Outcome<Limits> {
        let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        parse(&words)
    }

    #[test]
    fn one_limit_excludes_the_default_of_the_other() {
        let hour = limits("--seed 7").unwrap();
        assert_eq!((hour.faults, hour.seconds, hour.seed), (NO_LIMIT, 3600, 7));
        let few = limits("--faults 5").unwrap();
        assert_eq!((few.faults, few.seconds), (5, NO_LIMIT));
        let both = limits("--seconds 9 --faults 5").unwrap();
        assert_eq!((both.faults, both.seconds), (5, 9));
    }

    #[test]
    fn invalid_limit_is_a_usage_error() {
        for line in ["--faults", "--seconds x", "--seed 0", "now"] {
            assert!(matches!(limits(line), Err(Failure::Usage(_))), "{line}");
        }
    }
}
