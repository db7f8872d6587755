//! `cargo xtask fuzz`: builds the fuzz targets with the stable toolchain and runs each for
//! a bounded number of inputs.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::run::{self, Failure, Outcome};
use crate::setup;
use crate::test::Extent;

/// Default number of inputs per target.
const DEFAULT_RUNS: u64 = 100_000;

/// The flags that cargo-fuzz sets on a nightly toolchain, in the form for a stable one.
/// libFuzzer reads the counters and the table of code locations, and uses comparisons to
/// find the values that the code expects.
const RUSTFLAGS: &str = "--cfg fuzzing -Cpasses=sancov-module -Ccodegen-units=1 \
    -Cllvm-args=-sanitizer-coverage-level=4 \
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters \
    -Cllvm-args=-sanitizer-coverage-pc-table \
    -Cllvm-args=-sanitizer-coverage-trace-compares";

/// Number of lines of a failed run to print.
const TAIL: usize = 60;

/// `cargo xtask fuzz [TARGET] [--runs N]`.
pub(crate) fn main(arguments: &[String]) -> Outcome {
    let mut runs = DEFAULT_RUNS;
    let mut chosen = None;
    let mut arguments = arguments.iter();
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--runs" => runs = number(arguments.next())?,
            flag if flag.starts_with('-') => return Err(Failure::unexpected(flag)),
            name if chosen.is_none() => chosen = Some(name),
            extra => return Err(Failure::unexpected(extra)),
        }
    }
    let all = targets()?;
    if let Some(name) = chosen
        && !all.iter().any(|target| target == name)
    {
        return Err(Failure::Usage(format!(
            "unknown fuzz target `{name}`; the targets are {}",
            all.join(", ")
        )));
    }
    setup::ensure(&[&[setup::CXX]])?;
    let binaries = build(chosen)?;
    match chosen {
        Some(name) => run::run(&mut invocation(&binaries, name, runs, &corpus(name))?),
        None => all.iter().try_for_each(|name| {
            summarised(invocation(&binaries, name, runs, &corpus(name))?, name)
        }),
    }
}

/// The step of `cargo xtask test`: all targets for some seconds, with the same inputs each
/// time, as many at a time as there are CPUs.
pub(crate) fn bounded(extent: Extent) -> Outcome {
    let (runs, seconds) = match extent {
        Extent::Short => (DEFAULT_RUNS, 10),
        Extent::All => (100 * DEFAULT_RUNS, 300),
    };
    let all = targets()?;
    let binaries = build(None)?;
    run::in_parallel(&all, |name| {
        // The corpus of earlier runs must not affect this one.
        let corpus = folder().join("build/corpus").join(name);
        if corpus.exists() {
            fs::remove_dir_all(&corpus).map_err(|error| Failure::file("empty", &corpus, &error))?;
        }
        let mut command = invocation(&binaries, name, runs, &corpus)?;
        command.args(["-seed=1", &format!("-max_total_time={seconds}")]);
        summarised(command, name)
    })
}

fn number(text: Option<&String>) -> Outcome<u64> {
    let number = text
        .and_then(|text| text.parse().ok())
        .filter(|number| *number > 0);
    number.ok_or_else(|| Failure::Usage("--runs: must be a number above 0".to_owned()))
}

fn folder() -> PathBuf {
    run::root().join("tests/fuzz")
}

/// The manifest of the workspace that the fuzz targets form.
pub(crate) fn manifest() -> PathBuf {
    folder().join("Cargo.toml")
}

fn targets() -> Outcome<Vec<String>> {
    let manifest = manifest();
    let text =
        fs::read_to_string(&manifest).map_err(|error| Failure::file("read", &manifest, &error))?;
    let names = bins(&text);
    if names.is_empty() {
        return Err(Failure::Failed(format!(
            "{}: no fuzz target: add a [[bin]] with a name and a path",
            manifest.display()
        )));
    }
    Ok(names)
}

/// The names of the `[[bin]]` tables of a manifest.
fn bins(manifest: &str) -> Vec<String> {
    let mut names = Vec::new();
    let mut in_bin = false;
    for line in manifest.lines().map(str::trim) {
        if line.starts_with('[') {
            in_bin = line.starts_with("[[bin]]");
        }
        let Some((key, value)) = line.split_once('=') else {
            continue;
        };
        if in_bin && key.trim() == "name" {
            names.extend(value.split('"').nth(1).map(str::to_owned));
        }
    }
    names
}

/// Builds one target or all; returns the folder of the programs.
fn build(target: Option<&str>) -> Outcome<PathBuf> {
    let host = run::host()?;
    let build = folder().join("build");
    // With a named target triple cargo keeps the flags away from build scripts.
    let mut cargo = run::cargo("build --release --locked --target");
    cargo
        .arg(&host)
        .arg("--manifest-path")
        .arg(manifest())
        .arg("--target-dir")
        .arg(&build);
    match target {
        Some(name) => cargo.args(["--bin", name]),
        None => cargo.arg("--bins"),
    };
    cargo
        .env("RUSTFLAGS", RUSTFLAGS)
        // It takes precedence over RUSTFLAGS.
        .env_remove("CARGO_ENCODED_RUSTFLAGS")
        // Fast, but with every check that a debug build has.
        .env("CARGO_PROFILE_RELEASE_DEBUG_ASSERTIONS", "true")
        .env("CARGO_PROFILE_RELEASE_OVERFLOW_CHECKS", "true");
    run::run(&mut cargo)?;
    Ok(build.join(host).join("release"))
}

/// The folder of inputs that reached new code, kept across runs.
fn corpus(name: &str) -> PathBuf {
    folder().join("corpus").join(name)
}

/// The command that runs one target. It adds new inputs to `corpus`, and writes inputs that
/// fail to `artifacts`; `seeds`, if present, are only read.
fn invocation(binaries: &Path, name: &str, runs: u64, corpus: &Path) -> Outcome<Command> {
    let artifacts = folder().join("artifacts").join(name);
    for path in [corpus, &artifacts] {
        fs::create_dir_all(path).map_err(|error| Failure::file("create", path, &error))?;
    }
    let mut command = run::command(binaries.join(name));
    command.arg(corpus);
    let seeds = folder().join("seeds").join(name);
    if seeds.is_dir() {
        command.arg(seeds);
    }
    command
        .arg(format!("-runs={runs}"))
        // Limits for one input.
        .args(["-timeout=10", "-rss_limit_mb=1024"])
        .arg(format!("-artifact_prefix={}/", artifacts.display()));
    Ok(command)
}

/// Runs a target and prints one line, or the end of its output if it failed.
fn summarised(mut command: Command, name: &str) -> Outcome {
    command.stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = command
        .spawn()
        .map_err(|error| run::cannot_start(&command, &error))?;
    let mut lines = Vec::new();
    if let Some(stderr) = child.stderr.take() {
        for line in BufReader::new(stderr).split(b'\n') {
            let line = line.map_err(|error| Failure::Failed(format!("fuzz {name}: {error}")))?;
            lines.push(String::from_utf8_lossy(&line).into_owned());
        }
    }
    let status = child
        .wait()
        .map_err(|error| Failure::Failed(format!("fuzz {name}: {error}")))?;
    if !status.success() {
        let tail = lines.iter().skip(lines.len().saturating_sub(TAIL));
        tail.for_each(|line| println!("{line}"));
        return Err(Failure::Commands {
            text: format!(
                "fuzz target {name}: {status}; the input is in tests/fuzz/artifacts/{name}; \
                 pass its path to the program to repeat the failure"
            ),
            repeat: vec![run::line(&command)],
        });
    }
    let done = lines.iter().find(|line| line.contains("DONE"));
    match done.and_then(|line| coverage(line)) {
        Some(places) => println!("{name:24} ok, {places} code locations reached"),
        None => {
            return Err(Failure::Failed(format!(
                "fuzz target {name} reports no coverage: it was built without instrumentation"
            )));
        }
    }
    Ok(())
}

/// The number of code locations reached, from a status line of libFuzzer.
fn coverage(line: &str) -> Option<u64> {
    let mut words = line.split_whitespace().skip_while(|word| *word != "cov:");
    words.nth(1)?.parse().ok().filter(|places| *places > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bins_of_a_manifest() {
        let manifest = "[package]\nname = \"fuzz\"\n[[bin]]\nname = \"mpa\"\npath = \"mpa.rs\"\n\
             [dependencies]\nname = \"1\"\n[[bin]]\npath = \"x.rs\"\nname=\"capsule\" # two\n";
        assert_eq!(bins(manifest), ["mpa", "capsule"]);
        assert!(bins("[package]\nname = \"fuzz\"").is_empty());
    }

    #[test]
    fn coverage_of_a_status_line() {
        assert_eq!(
            coverage("#200\tDONE   cov: 13 ft: 13 corp: 6/46b"),
            Some(13)
        );
        assert_eq!(coverage("#200\tDONE   cov: 0 ft: 1"), None);
        assert_eq!(coverage("#200\tDONE   ft: 13 corp: 6/46b"), None);
    }

    #[test]
    fn failing_or_uninstrumented_target_fails() {
        assert!(summarised(run::command("false"), "x").is_err());
        let silent = summarised(run::command("true"), "x").unwrap_err();
        assert!(silent.to_string().contains("no coverage"), "{silent}");
    }
}
