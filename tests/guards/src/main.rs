//! `nvmeof-guards`: instructions of the hot paths, compared with a baseline.
//!
//! `check` runs every case under callgrind twice, once with twice as many
//! rounds: the difference is what the rounds cost, without what came before
//! them. Only the iterations of one side are counted, and in them not what stands
//! for the system calls.
//!
//! Counts depend on the compiler, and on functions that are chosen by what the
//! CPU can do. Valgrind shows a CPU of its own to the program;
//! memory functions of glibc are pinned to their plain variants besides. CRCs
//! are left out: they are as fast as the machine.
#![forbid(unsafe_code)]

mod baseline;
mod bound;
mod case;
mod count;

use std::collections::BTreeMap;
use std::process::ExitCode;

use clap::Parser;

use baseline::Baseline;
use case::Case;

/// Count the instructions of the hot paths.
#[derive(Debug, Parser)]
#[command(bin_name = "nvmeof-guards")]
enum Arguments {
    /// Compare with the baseline
    Check {
        /// Accept the counts of the named CASEs as the new baseline, where they
        /// differ; the reason is recorded in the file
        #[arg(long, value_name = "REASON")]
        accept: Option<String>,
        /// Print the functions with most instructions
        #[arg(long)]
        profile: bool,
        /// Parts of the names of cases; default: all cases
        #[arg(value_name = "CASE")]
        cases: Vec<String>,
    },
    /// Run one case under callgrind
    #[command(hide = true)]
    Run { case: String, rounds: u32 },
}

/// Tolerance of counts above and below the baseline, in percent.
const TOLERANCE: u64 = 3;

fn main() -> ExitCode {
    let result = match Arguments::parse() {
        Arguments::Run { case, rounds } => Case::find(&case).and_then(|case| case.run(rounds)),
        Arguments::Check {
            accept,
            profile,
            cases,
        } => check(accept.as_deref(), profile, &cases),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("instructions: {error}");
            ExitCode::FAILURE
        }
    }
}

fn check(accept: Option<&str>, profile: bool, parts: &[String]) -> Result<(), String> {
    if accept.is_some_and(|reason| reason.trim().is_empty()) {
        return Err("--accept: no reason given: --accept \"WHY\"".to_owned());
    }
    let cases = chosen(parts)?;
    if cases.iter().any(|case| case.elsewhere().is_some()) {
        count::build_others()?;
    }
    let mut counts = BTreeMap::new();
    for case in &cases {
        counts.insert(case.name(), count::count(*case, profile)?);
    }
    let compiler = count::compiler()?;
    let bounds = bound::compare(&cases, &counts);
    for case in cases.iter().filter(|case| !case.has_baseline()) {
        counts.remove(&case.name());
    }
    let mut baseline = Baseline::read()?;
    let verdict = baseline.compare(&counts, &compiler, TOLERANCE);
    print!("{}{}", verdict.table, bounds.table);
    if let Some(reason) = accept {
        baseline.accept(&counts, &compiler, reason.trim())?;
        baseline.write()?;
    }
    let baseline_failures: &str = if accept.is_some() {
        ""
    } else {
        &verdict.failures
    };
    let failures: Vec<&str> = [baseline_failures, &bounds.failures]
        .into_iter()
        .filter(|failures| !failures.is_empty())
        .collect();
    match failures.as_slice() {
        [] => Ok(()),
        failures => Err(failures.join("\n")),
    }
}

/// The cases whose names contain one of `parts`, or all, and those that bound them.
fn chosen(parts: &[String]) -> Result<Vec<Case>, String> {
    let is_named = |case: &Case| parts.iter().any(|part| case.name().contains(part));
    let mut cases: Vec<Case> = case::all()
        .filter(|case| parts.is_empty() || is_named(case))
        .collect();
    if cases.is_empty() {
        let names: Vec<String> = case::all().map(|case| case.name()).collect();
        return Err(format!("unknown case; the cases are {}", names.join(", ")));
    }
    let bounds: Vec<Case> = cases
        .iter()
        .filter_map(|case| Some(case.bound()?.than))
        .collect();
    for case in bounds {
        if !cases.contains(&case) {
            cases.push(case);
        }
    }
    Ok(cases)
}
