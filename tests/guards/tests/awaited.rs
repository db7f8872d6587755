//! The cases of the program with the async interface run.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::process::Command;

#[test]
fn reads_and_writes_run_over_one_path_and_two() {
    for interface in ["direct", "two-queues", "one-path", "standby", "two-paths"] {
        for kind in ["read", "write"] {
            let mut program = Command::new(env!("CARGO_BIN_EXE_nvmeof-guards-awaited"));
            let status = program.args([interface, kind, "4", "8"]).status().unwrap();
            assert!(status.success(), "{interface} {kind}: {status}");
        }
    }
}
