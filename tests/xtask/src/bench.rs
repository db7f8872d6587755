//! `cargo xtask bench`: starts the runner of `tests/bench`, to which all
//! arguments go.

use crate::run::{self, Failure, Outcome};
use crate::setup::{self, Tool};

/// What benchmarks need besides the toolchain.
const TOOLS: &[Tool] = &[setup::FIO];

/// `cargo xtask bench [...]`; `cargo xtask bench --help` says what there is.
pub(crate) fn main(arguments: &[String]) -> Outcome {
    let only_tells = ["--help", "-h", "--list"];
    let tells = arguments
        .iter()
        .any(|argument| only_tells.contains(&argument.as_str()));
    let mut build = run::cargo("build --quiet --release --locked -p nvmeof-bench");
    if !tells {
        setup::ensure(&[TOOLS, setup::RDMA])?;
        build.args(["-p", "nvmeof-target", "-p", "nvmeof-cli"]);
    }
    // No command line is printed: the output may have to be JSON.
    quietly(&mut build)?;
    let mut bench = run::command(run::build_dir().join("release/nvmeof-bench"));
    if let Ok(here) = std::env::current_dir() {
        // Files on the command line are where the person is.
        bench.current_dir(here);
    }
    bench
        .args(arguments)
        .env("NVMEOF_BENCH_DIR", run::build_dir().join("bench"));
    quietly(&mut bench)
}

fn quietly(command: &mut std::process::Command) -> Outcome {
    let status = command
        .status()
        .map_err(|error| run::cannot_start(command, &error))?;
    match status.code() {
        Some(0) => Ok(()),
        Some(2) => Err(Failure::Usage(
            "The benchmark cannot run; see above.".to_owned(),
        )),
        _ => Err(Failure::Failed("the benchmark; see above".to_owned())),
    }
}
