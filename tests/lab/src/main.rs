//! The kernel lab: boots Debian's stock kernel in an emulated machine with
//! software RDMA devices, and runs scenarios with its NVMe host and target.
//!
//! `cargo xtask lab` builds the programs and calls this one. It uses four folders beside the
//! sources of this crate:
//!
//! * `image/`: scripts that build the image of the guest. It contains Debian packages and
//!   the module `siw`, and nothing of this project. A change there causes a new image.
//! * `guest/`: scripts that run in the guest. `lib.sh` documents how to write a scenario.
//! * `scenarios/`: one file for each scenario.
//! * `outside/`: scripts that run on this machine beside the guest of a scenario.
//!
//! Guests are started as needed and run one scenario after another. A guest is replaced if it
//! crashes, does not respond or cannot be cleaned up.
//!
//! This crate contains no tests of NVMe itself; the scenarios do.
#![forbid(unsafe_code)]

mod disk;
mod event;
mod excerpt;
mod figures;
mod guest;
mod image;
mod interop;
mod outside;
mod programs;
mod results;
mod run;
mod scenario;

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::{Parser, ValueEnum};

use disk::Contents;
use guest::Blueprint;
use image::Image;
use outside::Tools;
use results::{Finding, Results};
use run::How;
use scenario::{Case, Choice, Machine, Scenario};

/// Run scenarios with a stock Linux kernel and software RDMA devices.
#[derive(Debug, Parser)]
#[command(
    bin_name = "cargo xtask lab",
    after_help = "Exit status: 0 all passed, 1 one failed, 2 usage or set-up error."
)]
struct Arguments {
    /// NAME, NAME@PROVIDER or @PROVIDER; by default all except benchmarks.
    /// Figures of named scenarios are printed
    #[arg(value_name = "SCENARIO")]
    scenarios: Vec<String>,
    /// Run the benchmark scenarios, one guest at a time, and write their
    /// ratios to docs/performance.md if all pass
    #[arg(long, conflicts_with_all = ["scenarios", "write_interop", "jobs"])]
    figures: bool,
    /// Run each scenario over one provider, a different one for each commit;
    /// transport scenarios over all providers
    #[arg(long, conflicts_with_all = ["scenarios", "figures", "write_interop"])]
    rotate: bool,
    /// Repeat faults more often and for longer in the scenarios that inject them
    #[arg(long)]
    long: bool,
    /// List the scenarios and what they prove
    #[arg(long)]
    list: bool,
    /// Rebuild the image of the guest
    #[arg(long)]
    rebuild: bool,
    /// Output format of the results
    #[arg(short, long, value_name = "FORMAT", default_value = "text")]
    output_format: Format,
    /// Also keep the logs of scenarios that passed
    #[arg(long)]
    keep: bool,
    /// Boot a guest with a shell on this terminal
    #[arg(long, conflicts_with_all = ["scenarios", "figures", "exec", "list"])]
    shell: bool,
    /// Run a bash script in a guest; print its output and exit with its status
    #[arg(long, value_name = "FILE", conflicts_with_all = ["scenarios", "figures", "list"])]
    exec: Option<PathBuf>,
    /// Write docs/interop.md if all scenarios pass. With --long and SCENARIO, write the section
    /// Authentication only, which other runs keep
    #[arg(long)]
    write_interop: bool,
    /// Number of guests that run at the same time
    #[arg(long, value_name = "N", default_value_t = 2)]
    jobs: usize,
    /// Memory of the guest of --shell and --exec in MiB
    #[arg(long, value_name = "MIB", default_value_t = Machine::default().memory_mib)]
    memory: u32,
    /// CPUs of the guest of --shell and --exec
    #[arg(long, value_name = "N", default_value_t = Machine::default().cpus)]
    cpus: u32,
    /// Time limit of the script of --exec in seconds
    #[arg(long, value_name = "S", default_value_t = 600)]
    limit: u64,
    /// Build the programs with this cargo profile; `dev` builds faster and shares
    /// its artifacts with all tests
    #[arg(long, value_name = "NAME", default_value = "release")]
    profile: String,
    /// Do not build; take the programs for /lab/bin from this folder
    #[arg(long, value_name = "FOLDER")]
    bin_dir: Option<PathBuf>,
    /// Additional program for /lab/bin
    #[arg(long, value_name = "FILE")]
    program: Vec<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Format {
    Text,
    Json,
}

/// Why the lab stops.
#[derive(Debug)]
enum Trouble {
    /// Usage or set-up error: exit status 2.
    SetUp(String),
    /// A failure: exit status 1.
    Failed(String),
}

impl Trouble {
    /// A file operation that failed.
    fn file(doing: &str, path: &Path, error: &std::io::Error) -> Self {
        Self::SetUp(format!("cannot {doing} {}: {error}", path.display()))
    }
}

impl fmt::Display for Trouble {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Self::SetUp(text) | Self::Failed(text)) = self;
        out.write_str(text)
    }
}

fn main() -> ExitCode {
    match dispatch(&Arguments::parse()) {
        Ok(status) => ExitCode::from(status),
        Err(trouble) => {
            eprintln!("lab: {trouble}");
            match trouble {
                Trouble::SetUp(_) => ExitCode::from(2),
                Trouble::Failed(_) => ExitCode::FAILURE,
            }
        }
    }
}

/// Returns the exit status.
fn dispatch(arguments: &Arguments) -> Result<u8, Trouble> {
    let lab = lab();
    let mut scenarios = scenario::load(&lab.join("scenarios"))?;
    if arguments.long {
        let long = scenarios.into_iter().map(Scenario::for_long_run);
        scenarios = long.collect();
    }
    if arguments.list {
        list(&scenarios);
        return Ok(0);
    }
    if arguments.write_interop
        && !arguments.scenarios.is_empty()
        && !(arguments.long && is_all_authenticating(&arguments.scenarios))
    {
        let what = "--write-interop writes the results of all scenarios, or with --long those of";
        let names = interop::AUTHENTICATING.join(" ");
        return Err(Trouble::SetUp(format!(
            "{what} `{names}`: name these, or none"
        )));
    }
    let rotated = arguments.rotate.then(|| commits(&lab));
    let choice = Choice::new(&arguments.scenarios, arguments.figures, rotated);
    let cases = scenario::select(&scenarios, choice)?;
    let image = image::ensure(&lab.join("image"), arguments.rebuild)?;
    let folder = new_folder()?;
    let mut programs = match &arguments.bin_dir {
        Some(folder) => programs::of_folder(folder)?,
        None => programs::build(&lab.join("../.."), &arguments.profile, &folder)?,
    };
    programs.extend_from_slice(&arguments.program);
    let fio_engine = fio_engine(arguments, &cases, &lab, &folder)?;
    let packages = packages(arguments, &cases, &lab, &folder, &programs)?;
    let contents = Contents {
        project: &lab.join("../.."),
        programs: &programs,
        fio_engine: fio_engine.as_deref(),
        packages: packages.as_deref(),
        script: arguments.exec.as_deref(),
    };
    let disk = disk::make(&folder, &contents)?;
    let blueprint = Blueprint {
        image,
        disk,
        folder,
        outside: Tools::new(lab.join("outside"), &programs),
    };
    let machine = Machine {
        memory_mib: arguments.memory,
        cpus: arguments.cpus,
        ..Machine::default()
    };
    if arguments.shell {
        blueprint.shell(machine)?;
        remove(&blueprint.folder)?;
        return Ok(0);
    }
    if arguments.exec.is_some() {
        let limit = Duration::from_secs(arguments.limit);
        let status = blueprint.exec(machine, limit)?;
        remove(&blueprint.folder)?;
        return Ok(u8::try_from(status).unwrap_or(1));
    }
    let results = run_all(&blueprint, cases, arguments)?;
    if results.failed() == 0 && !arguments.figures && !arguments.rotate {
        let beside = blueprint.folder.with_file_name("interop.md");
        write_interop(
            &results,
            arguments,
            &beside,
            &lab.join("../../docs/interop.md"),
        )?;
    }
    if arguments.figures && results.failed() == 0 {
        figures::refresh(&results, &lab.join("../../docs/performance.md"))?;
    }
    Ok(u8::from(results.failed() > 0))
}

/// Whether these are the scenarios of authentications, in any order.
fn is_all_authenticating(scenarios: &[String]) -> bool {
    let all = interop::AUTHENTICATING;
    scenarios.len() == all.len() && all.iter().all(|one| scenarios.iter().any(|it| it == one))
}

/// Writes the result of a complete run `beside` its folder, and to `document` if that was
/// requested.
fn write_interop(
    results: &Results,
    arguments: &Arguments,
    beside: &Path,
    document: &Path,
) -> Result<(), Trouble> {
    let write = |file: &Path, text: &str| {
        fs::write(file, text).map_err(|error| Trouble::file("write", file, &error))
    };
    let is_whole = arguments.scenarios.is_empty();
    if !is_whole && !arguments.write_interop {
        return Ok(());
    }
    let before = fs::read_to_string(document);
    if !is_whole {
        let before = before.map_err(|error| Trouble::file("read", document, &error))?;
        let text = interop::with_authentications(&before, results).ok_or_else(|| {
            let what = "has no section Authentication, or the scenarios have no results for it";
            Trouble::Failed(format!("{} {what}", document.display()))
        })?;
        return write(document, &text);
    }
    let mut text = interop::text(results);
    if !arguments.long {
        text = interop::keep_authentications(&text, &before.unwrap_or_default());
    }
    write(beside, &text)?;
    match arguments.write_interop {
        true => write(document, &text),
        false => Ok(()),
    }
}

/// The folder with the fio engine and its fio, if one of the cases needs it.
fn fio_engine(
    arguments: &Arguments,
    cases: &[Case],
    lab: &Path,
    folder: &Path,
) -> Result<Option<PathBuf>, Trouble> {
    let interactive = arguments.shell || arguments.exec.is_some();
    if interactive || !cases.iter().any(|case| case.scenario.fio_engine) {
        return Ok(None);
    }
    let engine = match &arguments.bin_dir {
        Some(given) => programs::fio_engine_of_folder(given)?,
        None => programs::fio_engine(&lab.join("../.."), &arguments.profile, folder)?,
    };
    Ok(Some(engine))
}

/// The folder with Debian packages, if one of the cases needs it.
fn packages(
    arguments: &Arguments,
    cases: &[Case],
    lab: &Path,
    folder: &Path,
    programs: &[PathBuf],
) -> Result<Option<PathBuf>, Trouble> {
    let interactive = arguments.shell || arguments.exec.is_some();
    if interactive || !cases.iter().any(|case| case.scenario.packages) {
        return Ok(None);
    }
    programs::packages(&lab.join("../.."), folder, programs).map(Some)
}

/// `tests/lab` of the current clone.
fn lab() -> PathBuf {
    std::env::var_os("CARGO_MANIFEST_DIR")
        .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")), PathBuf::from)
}

/// Number of commits, which changes with each commit; 0 if it is unknown.
fn commits(lab: &Path) -> usize {
    let mut git = std::process::Command::new("git");
    git.current_dir(lab).args(["rev-list", "--count", "HEAD"]);
    let count = git.output().ok().map(|output| output.stdout);
    let count = count.and_then(|count| String::from_utf8(count).ok()?.trim().parse().ok());
    count.unwrap_or(0)
}

fn list(scenarios: &[Scenario]) {
    for scenario in scenarios {
        let providers: Vec<_> = scenario.providers.iter().map(|it| it.name()).collect();
        println!("{:24} {}", scenario.name, scenario.about);
        println!("{:24} {}", "", providers.join(" "));
    }
}

/// A folder for this run in the build folder, named after the process id.
fn new_folder() -> Result<PathBuf, Trouble> {
    let runs = std::env::var_os("NVMEOF_LAB_RUNS").unwrap_or_else(|| "build/lab".into());
    let folder = Path::new(&runs).join(format!("run-{}", std::process::id()));
    if folder.exists() {
        remove(&folder)?;
    }
    fs::create_dir_all(&folder).map_err(|error| Trouble::file("create", &folder, &error))?;
    fs::canonicalize(&folder).map_err(|error| Trouble::file("find", &folder, &error))
}

fn remove(folder: &Path) -> Result<(), Trouble> {
    fs::remove_dir_all(folder).map_err(|error| Trouble::file("remove", folder, &error))
}

/// Runs the cases and prints the table: to standard output, or to standard error if the
/// format is JSON.
fn run_all(
    blueprint: &Blueprint,
    cases: Vec<Case>,
    arguments: &Arguments,
) -> Result<Results, Trouble> {
    let say = |line: &str| match arguments.output_format {
        Format::Text => println!("{line}"),
        Format::Json => eprintln!("{line}"),
    };
    let started = Instant::now();
    // Concurrent guests would compete for CPUs and change the figures.
    let jobs = if arguments.figures { 1 } else { arguments.jobs };
    let lanes = jobs.min(cases.len());
    say(&Finding::head());
    let report = |finding: &Finding| say(&finding.row());
    let how = How {
        lanes,
        long: arguments.long,
        turn: commits(&lab()),
        keep: arguments.keep,
    };
    let (cases, kernel) = run::run(blueprint, cases, how, &report)?;
    // Logs are kept; the image can be rebuilt.
    drop(fs::remove_file(&blueprint.disk));
    let results = Results {
        versions: versions(&blueprint.image, kernel),
        cases,
    };
    for (heading, kept) in results.cases.iter().flat_map(Finding::failures) {
        say(&format!("\n{heading}"));
        excerpt::excerpt(kept).iter().for_each(|line| say(line));
        say(&format!("  logs: {}", kept.display()));
    }
    if !arguments.scenarios.is_empty() {
        for line in results.cases.iter().flat_map(Finding::figure_lines) {
            say(&line);
        }
    }
    let comparisons = figures::text(&results.comparisons());
    if !comparisons.is_empty() {
        say(&format!("\n{}", comparisons.trim_end()));
    }
    say(&format!(
        "\n{} passed, {} failed, {} s",
        results.cases.len() - results.failed(),
        results.failed(),
        started.elapsed().as_secs()
    ));
    if arguments.output_format == Format::Json {
        let json = serde_json::to_string_pretty(&results)
            .map_err(|error| Trouble::Failed(format!("cannot write JSON: {error}")))?;
        println!("{json}");
    }
    if !results.keeps_logs() {
        remove(&blueprint.folder)?;
    }
    Ok(results)
}

fn versions(image: &Image, kernel: Option<String>) -> BTreeMap<String, String> {
    let packages = ["nvme-cli", "fio", "rdma-core"];
    let packages = packages.into_iter().filter_map(|name| {
        let version = image.version(name)?;
        Some((name.to_owned(), version))
    });
    let kernel = kernel.map(|release| ("Linux".to_owned(), release));
    packages.chain(kernel).collect()
}
