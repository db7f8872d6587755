//! All developer commands of the project: `cargo xtask`.
//!
//! It depends on little besides the standard library, so that it builds in seconds on a
//! fresh machine. It contains no tests and no checks itself: it runs them.
#![forbid(unsafe_code)]

mod background;
mod bench;
mod ceph;
mod deb;
mod demo;
mod disk;
mod fio_engine;
mod fuzz;
mod lab;
mod profile;
mod rbd_bench;
mod run;
mod setup;
mod soak;
mod soundness;
mod stage;
mod test;
mod times;
mod workspace;

use std::process::ExitCode;

use run::{Failure, Outcome};

const HELP: &str = "\
Usage: cargo xtask COMMAND

Commands:
  setup                      install the system packages that the others need
  test [STEP...] [--all]     run all checks and tests, or only the named steps;
                             test --list lists them; --all runs the whole lab,
                             more seeds and more fuzzing, and takes hours
  fuzz [TARGET] [--runs N]   build and run all fuzz targets, or one
  lab [SCENARIO...] [...]    run scenarios with a stock kernel; see lab --help
  bench [WORKLOAD...] [...]  compare with yardsticks; see bench --help
  bench failover             measure how long reads and writes wait for another path
  bench ceph [--rounds N] [--seconds N]
                             compare an RBD image behind the target with fio's rbd engine
  bench reconnect            measure reads beside a host that authenticates 64 queues
  soak [--faults N] [...]    random faults of paths and target under a verified load,
                             for one hour or as long as --faults N, --seconds N allow;
                             --seed N repeats the choice of faults
  demo [--port N]            export a disk image and use it with the initiator
  demo --ceph [--port N] [--keep] [--profile release|dev]
                             two gateways on a Ceph cluster of its own: kill one during
                             verified I/O, show the takeover, move the group back; --keep
                             keeps its configurations and logs
  ceph up|env|down|run ...   a Ceph cluster on this machine; see ceph --help
  docs                       generate the documents that come from the code
  deb [...]                  build Debian packages; see deb --help
  fio-engine [...]           build the engine for fio; see fio-engine --help

Exit status: 0 success, 1 a step failed, 2 usage or set-up error.
";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match dispatch(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("\n{failure}");
            failure.exit_code()
        }
    }
}

fn dispatch(arguments: &[String]) -> Outcome {
    let Some((command, rest)) = arguments.split_first() else {
        return Err(Failure::Usage(HELP.to_owned()));
    };
    let wants_help = rest
        .iter()
        .any(|argument| argument == "--help" || argument == "-h");
    match command.as_str() {
        "lab" => lab::main(rest),
        "bench" => bench::main(rest),
        "ceph" => ceph::main(rest),
        "deb" => deb::main(rest),
        "fio-engine" => fio_engine::main(rest),
        _ if wants_help => help(),
        "help" | "--help" | "-h" => help(),
        "setup" => match rest.first() {
            None => setup::ensure(setup::ALL),
            Some(extra) => Err(Failure::unexpected(extra)),
        },
        "test" => test::main(rest),
        "docs" => match rest.first() {
            None => docs(),
            Some(extra) => Err(Failure::unexpected(extra)),
        },
        "fuzz" => fuzz::main(rest),
        "soak" => soak::main(rest),
        "demo" => demo::main(rest),
        other => Err(Failure::Usage(format!(
            "unknown command `{other}`\n\n{HELP}"
        ))),
    }
}

/// Generates documents: the tests that compare them with the code write them if
/// NVMEOF_UPDATE_DOCS is set.
fn docs() -> Outcome {
    let documents = "test --locked -p nvmeof-tidy --test documents";
    let items = "test --locked -p nvmeof-public-api --test files";
    let mut tests = [documents, items].map(run::cargo);
    for test in &mut tests {
        test.env("NVMEOF_UPDATE_DOCS", "1");
    }
    run::all(&mut tests)
}

#[allow(clippy::unnecessary_wraps, reason = "the same type for all commands")]
fn help() -> Outcome {
    print!("{HELP}");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<String> {
        text.split_whitespace().map(str::to_owned).collect()
    }

    #[test]
    fn usage_error_differs_from_failure() {
        for line in [
            "",
            "tset",
            "setup now",
            "test nonsense",
            "demo --port 0",
            "demo --keep",
            "bench ceph --rounds 0",
            "bench ceph now",
            "demo --ceph --port 65535",
            "demo --ceph now",
            "fuzz --runs x",
            "soak --faults",
            "deb now",
            "ceph",
            "ceph now",
            "ceph up now",
            "ceph run",
            "docs now",
            "fio-engine now",
        ] {
            assert!(
                matches!(dispatch(&words(line)), Err(Failure::Usage(_))),
                "{line:?}"
            );
        }
    }

    #[test]
    fn help_and_list_succeed() {
        for line in [
            "help",
            "--help",
            "demo --help",
            "demo --ceph --help",
            "ceph --help",
            "test --list",
        ] {
            assert!(dispatch(&words(line)).is_ok(), "{line:?}");
        }
    }
}
