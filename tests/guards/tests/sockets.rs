//! The cases of the program with sockets run.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::process::Command;

#[test]
fn reads_and_writes_run_over_tcp() {
    for kind in ["read", "write"] {
        for depth in ["1", "16"] {
            let mut program = Command::new(env!("CARGO_BIN_EXE_nvmeof-guards-sockets"));
            let status = program.args([kind, depth, "2"]).status().unwrap();
            assert!(status.success(), "{kind} {depth}: {status}");
        }
    }
}
