//! `cargo xtask bench`: starts the runner of `tests/bench` with all arguments.

use crate::rbd_bench;
use crate::run::{self, Failure, Outcome};
use crate::setup::{self, Tool};
use crate::soak;

/// What benchmarks need besides the toolchain.
const TOOLS: &[Tool] = &[setup::FIO];
/// Tools for benchmarks with profiles.
const PROFILING: &[Tool] = &[setup::FIO, setup::PERF];

/// `cargo xtask bench [...]`; `cargo xtask bench --help` lists the options.
pub(crate) fn main(arguments: &[String]) -> Outcome {
    // Without a yardstick, they have no workload in the runner.
    match arguments {
        [name] if name == "failover" => return soak::failover_times(),
        [name, rest @ ..] if name == "ceph" && !rest.iter().any(|it| it == "--help") => {
            return rbd_bench::main(rest);
        }
        [name] if name == "reconnect" => return soak::reconnect_times(),
        _ => {}
    }
    let information = ["--help", "-h", "--list"];
    let is_information = arguments
        .iter()
        .any(|argument| information.contains(&argument.as_str()));
    let mut build = run::cargo("build --quiet --release --locked -p nvmeof-bench");
    if !is_information {
        setup::ensure(&[tools(arguments), setup::RDMA])?;
        build.args(["-p", "nvmeof-target", "-p", "nvmeof-cli"]);
    }
    // No command line is printed: the output may have to be JSON.
    quietly(&mut build)?;
    let mut bench = run::command(run::build_dir().join("release/nvmeof-bench"));
    if let Ok(here) = std::env::current_dir() {
        // Paths on the command line are relative to the folder of the caller.
        bench.current_dir(here);
    }
    bench
        .args(arguments)
        .env("NVMEOF_BENCH_DIR", run::build_dir().join("bench"));
    quietly(&mut bench)
}

/// The tools for a run with these arguments. Without arguments it updates the documents,
/// which requires profiles; otherwise `--profile` requests them.
fn tools(arguments: &[String]) -> &'static [Tool] {
    let asks = arguments.iter().any(|argument| argument == "--profile");
    match asks || arguments.is_empty() {
        true => PROFILING,
        false => TOOLS,
    }
}

fn quietly(command: &mut std::process::Command) -> Outcome {
    let status = command
        .status()
        .map_err(|error| run::cannot_start(command, &error))?;
    match status.code() {
        Some(0) => Ok(()),
        Some(2) => Err(Failure::Usage(
            "the benchmark cannot run; see above".to_owned(),
        )),
        _ => Err(Failure::Failed("the benchmark; see above".to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_with_profiles_require_perf() {
        let tools = |line: &str| {
            let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
            tools(&words)
        };
        for line in ["", "--profile", "null-rand --profile"] {
            assert!(tools(line).contains(&setup::PERF), "{line}");
        }
        for line in ["--quick", "null-rand", "--no-refresh"] {
            assert!(!tools(line).contains(&setup::PERF), "{line}");
        }
        assert!(setup::ALL.iter().any(|some| some.contains(&setup::PERF)));
    }
}
