//! What an iteration of a reactor must not pay for: open backing stores without requests, and
//! providers without traffic.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests"
)]

use std::process::{Command, Stdio};

const PROGRAM: &str = env!("CARGO_BIN_EXE_nvmeof-guards-reactors");

/// Instructions of the target's iterations.
fn instructions(arguments: &[&str]) -> u64 {
    let file = tempfile::NamedTempFile::new().unwrap();
    let path = file.path().display();
    let mut valgrind = Command::new("valgrind");
    valgrind.args(["--tool=callgrind", "--toggle-collect=*target_iteration*"]);
    valgrind.arg(format!("--callgrind-out-file={path}"));
    valgrind.arg(PROGRAM).args(arguments).stdin(Stdio::null());
    let output = valgrind.output().expect("install the package `valgrind`");
    assert!(output.status.success(), "{output:?}");
    let text = std::fs::read_to_string(file.path()).unwrap();
    let totals = text.lines().find_map(|line| line.strip_prefix("totals:"));
    totals.unwrap().trim().parse().unwrap()
}

/// Instructions of one operation, without those of the set-up.
fn each(arguments: &[&str]) -> u64 {
    let [short, long] = ["100", "300"].map(|rounds| instructions(&[arguments, &[rounds]].concat()));
    (long - short) / 200
}

#[test]
fn open_backing_stores_cost_a_command_nothing() {
    for kind in ["read", "write"] {
        let [one, many] = ["1", "256"].map(|count| each(&["stores", count, kind]));
        println!("{kind}: {one} instructions with one backing store, {many} with 256");
        assert!(
            many * 100 <= one * 103,
            "{kind}: {one} with one, {many} with 256"
        );
    }
}

/// System calls of the program.
fn system_calls(arguments: &[&str]) -> u64 {
    let file = tempfile::NamedTempFile::new().unwrap();
    let mut strace = Command::new("strace");
    strace
        .args(["-f", "-c", "-U", "calls", "-o"])
        .arg(file.path());
    strace.arg(PROGRAM).args(arguments).stdin(Stdio::null());
    let output = strace.output().expect("install the package `strace`");
    assert!(output.status.success(), "{output:?}");
    let text = std::fs::read_to_string(file.path()).unwrap();
    let total = text.lines().last().unwrap();
    total.split_whitespace().next().unwrap().parse().unwrap()
}

/// The clock of the program advances by 100 ns in each iteration.
#[test]
fn quiet_provider_costs_few_system_calls() {
    const OPERATIONS: u64 = 2000;
    let each = |providers: &[&str]| {
        let run = |rounds: u64| {
            let rounds = rounds.to_string();
            system_calls(&[providers, &["read", &rounds]].concat())
        };
        run(3 * OPERATIONS) - run(OPERATIONS)
    };
    let (one, both) = (each(&["providers"]), each(&["providers", "--both"]));
    let calls = both.saturating_sub(one) * 1000 / (2 * OPERATIONS);
    println!("{one} and {both} system calls; {calls} more for 1,000 operations");
    assert!(
        calls <= 30,
        "{calls} more system calls for 1,000 operations"
    );
}

#[test]
fn quiet_provider_costs_few_instructions() {
    let (one, both) = (
        each(&["providers", "read"]),
        each(&["providers", "--both", "read"]),
    );
    println!("{one} instructions with one provider, {both} with two");
    assert!(both * 100 <= one * 110, "{one} with one, {both} with two");
}
