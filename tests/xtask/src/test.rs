//! `cargo xtask test`: all checks and tests of the project, in steps.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::background;
use crate::ceph;
use crate::demo;
use crate::disk;
use crate::fio_engine;
use crate::fuzz;
use crate::lab;
use crate::profile::Profile;
use crate::run::{self, Failure, Failures, Outcome};
use crate::setup::{self, Tool};
use crate::soak;
use crate::soundness;
use crate::times::{self, Times};
use crate::workspace;

/// The extent of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Extent {
    /// All checks and tests, with programs in the dev profile, each lab scenario over one
    /// provider, and a short run of simulation and fuzzing.
    Short,
    /// Everything, with release programs.
    All,
}

impl Extent {
    fn profile(self) -> Profile {
        match self {
            Self::Short => Profile::Dev,
            Self::All => Profile::Release,
        }
    }
}

/// One line of the table at the end.
pub(crate) struct Step {
    pub(crate) name: &'static str,
    pub(crate) about: &'static str,
    tools: &'static [&'static [Tool]],
    /// The step that this one depends on.
    needs: Option<&'static str>,
    /// Runs beside the others, at a lower priority: it builds in a folder of its own, and
    /// nothing in it depends on time.
    in_background: bool,
    run: fn(Extent) -> Outcome,
}

/// The result of a step.
enum StepResult {
    Ok(Duration),
    Failed(Duration, Failure),
    /// The step that it depends on failed or was not run.
    NotRun(&'static str),
}

/// All steps in order of execution; background steps among themselves. Steps that fail
/// fast come first.
const STEPS: &[Step] = &[
    Step {
        name: "fmt",
        about: "format of all source files",
        tools: &[&[setup::RUSTFMT]],
        needs: None,
        in_background: false,
        run: |_| fmt(),
    },
    Step {
        name: "tidy",
        about: "style, dependencies between crates, licences, links",
        tools: &[],
        needs: None,
        in_background: false,
        run: |_| {
            run::run(&mut run::cargo(
                "test -p nvmeof-tidy --locked --no-fail-fast",
            ))
        },
    },
    Step {
        name: "clippy",
        about: "no clippy warnings in any target",
        tools: &[&[setup::CLIPPY], setup::RDMA],
        needs: None,
        in_background: false,
        run: |_| {
            let everything = "clippy --workspace --all-targets --locked -- -D warnings";
            let without_rdma_devices = "clippy -p nvmeof-target -p nvmeof-target-control \
                 -p nvmeof-target-manage -p nvmeof-cli --all-targets --no-default-features \
                 --locked -- -D warnings";
            // It requires a device to run, so no other step checks it.
            let on_devices = "clippy -p nvmeof-rdma-verbs --test conformance --locked \
                 -- -D warnings";
            run::all(&mut [everything, without_rdma_devices, on_devices].map(run::cargo))
        },
    },
    Step {
        name: "doc",
        about: "no rustdoc warnings",
        tools: &[setup::RDMA],
        needs: None,
        in_background: false,
        run: |_| {
            let mut doc = run::cargo("doc --no-deps --workspace --locked");
            run::run(doc.env("RUSTDOCFLAGS", "-D warnings"))
        },
    },
    Step {
        name: "api",
        about: "public items of the crates to embed, compared with their lists",
        tools: &[],
        needs: None,
        in_background: false,
        run: |_| run::run(&mut run::cargo("test -p nvmeof-public-api --locked")),
    },
    Step {
        name: "package",
        about: "a dry run of publishing the crates to embed",
        tools: &[setup::RDMA],
        needs: None,
        in_background: true,
        run: package,
    },
    Step {
        name: "build",
        about: "programs and tests",
        tools: &[setup::RDMA],
        needs: None,
        in_background: false,
        run: |extent| {
            workspace::build()?;
            match extent {
                // They are part of the whole build.
                Extent::Short => Ok(()),
                Extent::All => run::run(&mut Profile::Release.build("")),
            }
        },
    },
    Step {
        name: "unit",
        about: "unit, property and conformance tests of every crate",
        tools: &[&[setup::STRACE], setup::RDMA],
        needs: Some("build"),
        in_background: false,
        run: |_| {
            let elsewhere = [
                "nvmeof-world",
                "nvmeof-e2e",
                "nvmeof-tidy",
                "nvmeof-public-api",
            ];
            let mut failures = Failures::default();
            failures.add(workspace::test(
                |package| !elsewhere.contains(&package),
                &[],
            ))?;
            let mut examples = run::cargo("test --workspace --doc --locked --no-fail-fast");
            failures.add(run::run(&mut examples))?;
            failures.into_outcome()
        },
    },
    Step {
        name: "sim",
        about: "World: both sides in virtual time, with many seeds",
        tools: &[],
        needs: Some("build"),
        in_background: false,
        run: simulation,
    },
    Step {
        name: "asan",
        about: "unit tests of unsafe crates with AddressSanitizer",
        tools: &[],
        needs: None,
        in_background: true,
        run: |_| soundness::address_sanitizer(),
    },
    Step {
        name: "miri",
        about: "unit tests of memory with Miri, where it is installed",
        tools: &[],
        needs: None,
        in_background: true,
        run: |_| soundness::miri(),
    },
    Step {
        name: "e2e",
        about: "end-to-end tests with the programs as processes, and with fio",
        tools: &[
            &[
                setup::E2FS,
                setup::STRACE,
                setup::BINDFS,
                setup::JQ,
                setup::SYSTEMD,
            ],
            fio_engine::TOOLS,
            setup::RDMA,
        ],
        needs: Some("build"),
        in_background: false,
        run: end_to_end,
    },
    Step {
        name: "ceph",
        about: "tests with a Ceph cluster of one node",
        tools: &[setup::RDMA],
        needs: Some("build"),
        in_background: false,
        run: with_ceph,
    },
    Step {
        name: "instructions",
        about: "instruction counts of the hot paths, compared with their baseline",
        tools: &[&[setup::VALGRIND]],
        needs: None,
        in_background: true,
        run: |_| {
            let arguments = "run --quiet --release --locked -p nvmeof-guards -- check";
            run::run(&mut run::cargo(arguments))
        },
    },
    Step {
        name: "lab",
        about: "scenarios with a stock Linux kernel, in an emulated machine",
        tools: &[lab::TOOLS, fio_engine::TOOLS, setup::RDMA],
        needs: Some("build"),
        in_background: false,
        run: lab::step,
    },
    Step {
        name: "fuzz",
        about: "all fuzz targets, for a bounded number of inputs",
        tools: &[&[setup::CXX]],
        needs: None,
        in_background: true,
        run: fuzz::bounded,
    },
];

/// `cargo xtask test [STEP...] [--all] [--list]`.
pub(crate) fn main(arguments: &[String]) -> Outcome {
    if arguments.iter().any(|argument| argument == "--list") {
        for step in STEPS {
            println!("{:12} {}", step.name, step.about);
        }
        return Ok(());
    }
    let is_all = |argument: &String| argument == "--all";
    let extent = match arguments.iter().any(is_all) {
        true => Extent::All,
        false => Extent::Short,
    };
    let names: Vec<String> = arguments.iter().filter(|it| !is_all(it)).cloned().collect();
    let steps = select(&names)?;
    let tools: Vec<&[Tool]> = steps.iter().flat_map(|step| step.tools).copied().collect();
    setup::ensure(&tools)?;
    run_steps(&steps, extent, &mut Times::read())
}

/// The named steps in the order of the table; all of them if none is named.
fn select(names: &[String]) -> Outcome<Vec<&'static Step>> {
    for name in names {
        if !STEPS.iter().any(|step| step.name == name) {
            let known: Vec<_> = STEPS.iter().map(|step| step.name).collect();
            return Err(Failure::Usage(format!(
                "unknown step `{name}`; the steps are {}",
                known.join(", ")
            )));
        }
    }
    let wanted = |step: &&Step| names.is_empty() || names.iter().any(|name| step.name == name);
    Ok(STEPS.iter().filter(wanted).collect())
}

/// Runs all steps, also after failures; reports at the end what failed, and how to repeat
/// it.
fn run_steps(steps: &[&Step], extent: Extent, times: &mut Times) -> Outcome {
    let started = Instant::now();
    let (behind, before): (Vec<&Step>, Vec<&Step>) = match steps {
        // No other step runs beside it.
        [_] => (Vec::new(), steps.to_vec()),
        _ => steps.iter().partition(|step| step.in_background),
    };
    let is_interrupted = AtomicBool::new(false);
    let mut ends = thread::scope(|scope| {
        let behind = scope.spawn(|| background::run(&behind, extent, &is_interrupted));
        let ends = in_foreground(&before, extent, times, started);
        is_interrupted.store(ends.is_err(), Ordering::Relaxed);
        if !behind.is_finished() {
            run::heading("waiting for the steps in the background");
        }
        let behind = behind
            .join()
            .map_err(|_| Failure::Failed("a thread of xtask panicked".into()))?;
        let mut ends = ends?;
        for (step, outcome, took) in behind {
            ends.push((step, StepResult::of(step, outcome, took)?));
        }
        Ok::<_, Failure>(ends)
    })?;
    ends.sort_by_key(|(step, _)| steps.iter().position(|other| other.name == step.name));
    run::heading("result");
    let mut failures = Failures::default();
    for (step, end) in ends {
        println!("{}", row(step.name, &end));
        match end {
            StepResult::Ok(took) => times.took(&known_as(step, extent), took),
            StepResult::Failed(_, failure) => failures.add(Err(failure))?,
            StepResult::NotRun(_) => {}
        }
    }
    println!("{:21} {:>9}", "all", run::seconds(started.elapsed()));
    failures.into_outcome()
}

/// Runs the steps one after another; returns the result of each.
fn in_foreground<'a>(
    steps: &[&'a Step],
    extent: Extent,
    times: &Times,
    started: Instant,
) -> Outcome<Vec<(&'a Step, StepResult)>> {
    let mut ends: Vec<(&Step, StepResult)> = Vec::new();
    for (number, step) in steps.iter().enumerate() {
        if let Some(needed) = step.needs
            && ends
                .iter()
                .any(|(other, end)| other.name == needed && !end.is_ok())
        {
            ends.push((step, StepResult::NotRun(needed)));
            continue;
        }
        run::heading(&format!("{}: {}", step.name, step.about));
        let place = (number + 1, steps.len());
        let expected = times.expected(&known_as(step, extent));
        println!("{}", progress(place, started.elapsed(), expected));
        if let Some(warning) = disk::warning() {
            println!("{warning}");
        }
        let started = Instant::now();
        let outcome = (step.run)(extent);
        ends.push((step, StepResult::of(step, outcome, started.elapsed())?));
    }
    Ok(ends)
}

/// The name of a step in the file of times.
fn known_as(step: &Step, extent: Extent) -> String {
    match extent {
        Extent::Short => step.name.to_owned(),
        Extent::All => format!("{}@all", step.name),
    }
}

impl StepResult {
    /// # Errors
    /// The step was interrupted.
    fn of(step: &Step, outcome: Outcome, took: Duration) -> Outcome<Self> {
        match outcome {
            Ok(()) => Ok(Self::Ok(took)),
            Err(Failure::Interrupted) => Err(Failure::Interrupted),
            Err(failure) => Ok(Self::Failed(took, repeatable(failure, step))),
        }
    }

    fn is_ok(&self) -> bool {
        matches!(self, Self::Ok(_))
    }
}

/// Progress of a run: the step, the elapsed time, and the previous duration of the step.
fn progress(
    (step, steps): (usize, usize),
    elapsed: Duration,
    expected: Option<Duration>,
) -> String {
    let elapsed = times::in_words(elapsed);
    let expected = expected.map_or(String::new(), |time| {
        format!(
            "; previous duration of this step: {}",
            times::in_words(time)
        )
    });
    format!("step {step} of {steps}, {elapsed} elapsed{expected}")
}

/// A failure without commands to repeat it is repeated with its whole step.
fn repeatable(failure: Failure, step: &Step) -> Failure {
    let mut text = format!("{}: {}", step.name, failure.text());
    if let Some(warning) = disk::warning() {
        text = format!("{text}\n{warning}");
    }
    match failure {
        Failure::Interrupted => failure,
        Failure::Commands { repeat, .. } => Failure::Commands { text, repeat },
        Failure::Usage(_) | Failure::Failed(_) => Failure::Commands {
            text,
            repeat: vec![format!("cargo xtask test {}", step.name)],
        },
    }
}

fn row(name: &str, end: &StepResult) -> String {
    let (word, took) = match end {
        StepResult::NotRun(needed) => return format!("{name:12} not run: {needed} failed"),
        StepResult::Ok(took) => ("ok", took),
        StepResult::Failed(took, _) => ("FAILED", took),
    };
    format!("{name:12} {word:8} {:>9}", run::seconds(*took))
}

fn fmt() -> Outcome {
    let mut commands = vec![run::cargo("fmt --check --all")];
    let manifest = fuzz::manifest();
    if manifest.is_file() {
        let mut of_fuzz = run::cargo("fmt --check --manifest-path");
        of_fuzz.arg(manifest);
        commands.push(of_fuzz);
    }
    run::all(&mut commands)
}

/// Packs the crates that can be published, and builds each from its package if everything is
/// tested.
fn package(extent: Extent) -> Outcome {
    let mut publish = run::cargo("publish --dry-run --workspace --allow-dirty");
    if extent == Extent::Short {
        publish.arg("--no-verify");
    }
    run::run(publish.env("CARGO_TARGET_DIR", run::build_dir().join("package")))
}

fn simulation(extent: Extent) -> Outcome {
    let more: &[(&str, &str)] = match extent {
        Extent::Short => &[],
        Extent::All => &[("NVMEOF_SEEDS", "10000"), ("NVMEOF_CROWDS", "1")],
    };
    workspace::test(|package| package == "nvmeof-world", more)
}

fn with_ceph(extent: Extent) -> Outcome {
    let profile = extent.profile();
    let mut failures = Failures::default();
    failures.add(ceph::step(profile, extent == Extent::All))?;
    if extent == Extent::All {
        // It waits for a quiesce time.
        failures.add(demo::of_gateways(profile).map_err(|failure| match failure {
            Failure::Interrupted => failure,
            other => Failure::Commands {
                text: format!("the demo: {}", other.text()),
                repeat: vec!["cargo xtask demo --ceph --keep".to_owned()],
            },
        }))?;
    }
    failures.into_outcome()
}

fn end_to_end(extent: Extent) -> Outcome {
    let profile = extent.profile();
    // Without effect after the step `build`; alone, this step must not test old binaries.
    run::run(&mut profile.build(""))?;
    // Tests run it briefly, also with peers.
    run::run(&mut profile.build("-p nvmeof-bench"))?;
    fio_engine::build(None, profile)?;
    let programs = profile.folder().display().to_string();
    let mut failures = Failures::default();
    failures.add(workspace::test(
        |package| package == "nvmeof-e2e",
        &[("NVMEOF_BIN_DIR", &programs)],
    ))?;
    if extent == Extent::All {
        failures.add(soak::of_all(profile))?;
    }
    failures.into_outcome()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(name: &'static str, needs: Option<&'static str>, run: fn(Extent) -> Outcome) -> Step {
        Step {
            name,
            about: "",
            tools: &[],
            needs,
            in_background: false,
            run,
        }
    }

    fn outcome(steps: &[Step]) -> Outcome {
        let nowhere = &mut Times::of("/nonexistent/test-times".into());
        run_steps(&steps.iter().collect::<Vec<_>>(), Extent::Short, nowhere)
    }

    fn run(steps: &[Step]) -> Failure {
        outcome(steps).unwrap_err()
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
    fn dependencies_run_before_a_step() {
        for (at, step) in STEPS.iter().enumerate() {
            let before = |needed| STEPS[..at].iter().any(|step| step.name == needed);
            assert!(step.needs.is_none_or(before), "{}", step.name);
        }
    }

    #[test]
    fn steps_after_a_failure_run_and_all_failures_are_reported() {
        let steps = [
            step("bad", None, |_| {
                run::all(&mut ["false", "true", "false"].map(run::command))
            }),
            step("good", None, |_| Ok(())),
            step("worse", None, |_| {
                Err(Failure::Failed("on purpose".to_owned()))
            }),
        ];
        let failure = run(&steps);
        let code = format!("{:?}", failure.exit_code());
        assert_eq!(code, format!("{:?}", std::process::ExitCode::FAILURE));
        let Failure::Commands { text, repeat } = failure else {
            panic!("{failure:?}")
        };
        assert!(text.starts_with("bad: `false`: exit status: 1\n"), "{text}");
        assert!(text.ends_with("worse: on purpose"), "{text}");
        assert_eq!(repeat, ["false", "false", "cargo xtask test worse"]);
    }

    #[test]
    fn step_after_failed_dependency_is_not_run() {
        let steps = [
            step("build", None, |_| {
                Err(Failure::Failed("on purpose".to_owned()))
            }),
            step("e2e", Some("build"), |_| {
                unreachable!("it has nothing to look at")
            }),
            step("fuzz", None, |_| Err(Failure::Failed("as well".to_owned()))),
        ];
        let failure = run(&steps);
        assert!(failure.text().contains("as well"), "{failure}");
        // Chosen alone it does what it needs by itself.
        let alone = [step("e2e", Some("build"), |_| Ok(()))];
        assert!(outcome(&alone).is_ok());
        let row = row("e2e", &StepResult::NotRun("build"));
        assert_eq!(row, "e2e          not run: build failed");
    }

    #[test]
    fn progress_is_printed_before_each_step() {
        let minute = Duration::from_secs(60);
        assert_eq!(
            progress((2, 13), 3 * minute, None),
            "step 2 of 13, 3 min elapsed"
        );
        assert_eq!(
            progress((13, 13), minute, Some(20 * minute)),
            "step 13 of 13, 60 s elapsed; previous duration of this step: 20 min"
        );
    }

    #[test]
    fn nothing_is_started_after_ctrl_c() {
        fn interrupted(_: Extent) -> Outcome {
            // In the background of a shell it would be ignored.
            let interrupt = ["--default-signal=INT", "sh", "-c", "kill -INT $$"];
            run::run(run::command("env").args(interrupt))
        }
        let steps = [
            step("long", None, interrupted),
            step("never", None, |_| unreachable!("a step ran after Ctrl-C")),
        ];
        assert!(matches!(run(&steps), Failure::Interrupted));
    }
}
