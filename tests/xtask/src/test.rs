//! `cargo xtask test`: every check and test of the project, step by step.

use std::time::{Duration, Instant};

use crate::fio_engine;
use crate::fuzz;
use crate::lab;
use crate::run::{self, Failure, Outcome};
use crate::setup::{self, Tool};
use crate::soundness;

/// One line of the table at the end.
struct Step {
    name: &'static str,
    about: &'static str,
    tools: &'static [&'static [Tool]],
    run: fn() -> Outcome,
}

/// In the order in which they run: what fails fast comes first.
const STEPS: &[Step] = &[
    Step {
        name: "fmt",
        about: "every source file is formatted",
        tools: &[&[setup::RUSTFMT]],
        run: fmt,
    },
    Step {
        name: "tidy",
        about: "style, who may depend on whom, licences, links",
        tools: &[],
        run: || run::run(&mut run::cargo("test --locked -p nvmeof-tidy")),
    },
    Step {
        name: "clippy",
        about: "no warning in any target",
        tools: &[&[setup::CLIPPY], setup::RDMA],
        run: || {
            let arguments = "clippy --workspace --all-targets --locked -- -D warnings";
            run::run(&mut run::cargo(arguments))?;
            let without_rdma_devices = "clippy -p nvmeof-target -p nvmeof-cli --all-targets \
                 --no-default-features --locked -- -D warnings";
            run::run(&mut run::cargo(without_rdma_devices))?;
            // It needs a device to run, so no other step looks at it.
            let on_devices = "clippy -p nvmeof-rdma-verbs --test conformance --locked \
                 -- -D warnings";
            run::run(&mut run::cargo(on_devices))
        },
    },
    Step {
        name: "doc",
        about: "no warning in the documentation",
        tools: &[setup::RDMA],
        run: || {
            let mut doc = run::cargo("doc --no-deps --workspace --locked");
            run::run(doc.env("RUSTDOCFLAGS", "-D warnings"))
        },
    },
    Step {
        name: "unit",
        about: "unit, property and conformance tests of every crate",
        tools: &[&[setup::STRACE], setup::RDMA],
        run: || {
            let arguments = "test --workspace --locked --exclude nvmeof-world \
                 --exclude nvmeof-e2e --exclude nvmeof-tidy";
            run::run(&mut run::cargo(arguments))
        },
    },
    Step {
        name: "asan",
        about: "unit tests of unsafe crates with AddressSanitizer",
        tools: &[],
        run: soundness::address_sanitizer,
    },
    Step {
        name: "miri",
        about: "unit tests of memory with Miri, where it is installed",
        tools: &[],
        run: soundness::miri,
    },
    Step {
        name: "sim",
        about: "World: both sides in virtual time, many seeds",
        tools: &[],
        run: || run::run(&mut run::cargo("test --locked -p nvmeof-world")),
    },
    Step {
        name: "build",
        about: "the binaries in release mode",
        tools: &[setup::RDMA],
        run: build,
    },
    Step {
        name: "e2e",
        about: "end to end, with the release binaries as processes, and with fio",
        tools: &[
            &[setup::E2FS, setup::STRACE, setup::JQ, setup::SYSTEMD],
            fio_engine::TOOLS,
            setup::RDMA,
        ],
        run: end_to_end,
    },
    Step {
        name: "instructions",
        about: "instruction counts of the hot paths against their baseline",
        tools: &[&[setup::VALGRIND]],
        run: || {
            let arguments = "run --quiet --release --locked -p nvmeof-guards -- check";
            run::run(&mut run::cargo(arguments))
        },
    },
    Step {
        name: "lab",
        about: "scenarios with a stock Linux kernel, in an emulated machine",
        tools: &[lab::TOOLS, fio_engine::TOOLS, setup::RDMA],
        run: lab::everything,
    },
    Step {
        name: "fuzz",
        about: "every fuzz target, a bounded number of runs",
        tools: &[&[setup::CXX]],
        run: fuzz::bounded,
    },
];

/// `cargo xtask test [STEP...] [--list]`.
pub(crate) fn main(arguments: &[String]) -> Outcome {
    if arguments.iter().any(|argument| argument == "--list") {
        for step in STEPS {
            println!("{:12} {}", step.name, step.about);
        }
        return Ok(());
    }
    let steps = select(arguments)?;
    let tools: Vec<&[Tool]> = steps.iter().flat_map(|step| step.tools).copied().collect();
    setup::ensure(&tools)?;
    run_steps(&steps)
}

/// The named steps in the order of the table; all of them if none is named.
fn select(names: &[String]) -> Outcome<Vec<&'static Step>> {
    for name in names {
        if !STEPS.iter().any(|step| step.name == name) {
            let known: Vec<_> = STEPS.iter().map(|step| step.name).collect();
            return Err(Failure::Usage(format!(
                "no step is called `{name}`; the steps are {}",
                known.join(", ")
            )));
        }
    }
    let wanted = |step: &&Step| names.is_empty() || names.iter().any(|name| step.name == name);
    Ok(STEPS.iter().filter(wanted).collect())
}

/// Runs until the first failure and prints the table in any case.
fn run_steps(steps: &[&Step]) -> Outcome {
    let mut rows = Vec::new();
    let mut outcome = Ok(());
    for step in steps {
        if outcome.is_err() {
            rows.push(row(step, "not run", None));
            continue;
        }
        run::heading(&format!("{}: {}", step.name, step.about));
        let started = Instant::now();
        outcome = (step.run)();
        let word = if outcome.is_ok() { "ok" } else { "FAILED" };
        rows.push(row(step, word, Some(started.elapsed())));
    }
    run::heading("result");
    println!("{}", rows.join("\n"));
    outcome
}

fn row(step: &Step, word: &str, took: Option<Duration>) -> String {
    let took = took.map_or(String::new(), |took| format!("{:.1} s", took.as_secs_f64()));
    format!("{:12} {word:8} {took:>9}", step.name)
}

fn fmt() -> Outcome {
    run::run(&mut run::cargo("fmt --check --all"))?;
    let manifest = fuzz::manifest();
    if !manifest.is_file() {
        return Ok(());
    }
    run::run(run::cargo("fmt --check --manifest-path").arg(manifest))
}

/// The programs that a user runs (the default members of the workspace).
pub(crate) fn build() -> Outcome {
    run::run(&mut run::cargo("build --release --locked"))
}

fn end_to_end() -> Outcome {
    // Nothing to do after the step of that name; alone it must not test
    // yesterday's binaries.
    build()?;
    // It runs for a moment as well, with others that take part.
    run::run(&mut run::cargo("build --release --locked -p nvmeof-bench"))?;
    fio_engine::build(None)?;
    let mut test = run::cargo("test --locked -p nvmeof-e2e");
    run::run(test.env("NVMEOF_BIN_DIR", run::build_dir().join("release")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(name: &'static str, run: fn() -> Outcome) -> Step {
        Step {
            name,
            about: "",
            tools: &[],
            run,
        }
    }

    #[test]
    fn names_choose_steps_in_the_order_of_the_table() {
        let names = ["unit".to_owned(), "fmt".to_owned()];
        let chosen: Vec<_> = select(&names)
            .unwrap()
            .iter()
            .map(|step| step.name)
            .collect();
        assert_eq!(chosen, ["fmt", "unit"]);
        assert_eq!(select(&[]).unwrap().len(), STEPS.len());
    }

    #[test]
    fn first_failure_stops_the_run() {
        let steps = [
            step("good", || Ok(())),
            step("bad", || Err(Failure::Failed("on purpose".to_owned()))),
            step("never", || unreachable!("a step ran after a failure")),
        ];
        let failure = run_steps(&steps.iter().collect::<Vec<_>>()).unwrap_err();
        assert!(failure.to_string().contains("on purpose"));
    }
}
