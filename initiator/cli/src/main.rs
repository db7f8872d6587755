//! The `nvmeof` command: parses the command line, runs it, reports the outcome.
//!
//! Protocol and data path are in `nvmeof-initiator`.
#![forbid(unsafe_code)]

mod address;
mod ana;
mod args;
mod bench;
mod connect_all;
mod data;
mod discover;
mod failure;
mod features;
mod format;
mod identify;
mod inside;
mod interrupt;
mod keys;
mod logs;
mod output;
mod paths;
mod remedy;
mod reservations;
mod simple;

use std::io::IsTerminal as _;
use std::process::ExitCode;

use clap::{CommandFactory, Parser};
use nvmeof_manual::Contents;

use crate::args::{Cli, Command};
use crate::failure::{Failure, Printing};

/// The manual besides the command line.
const CONTENTS: Contents = Contents {
    section: 1,
    program: include_str!("../manual/nvmeof.1.md"),
    files: &[],
};

/// The default log. `paths` prints the losses of paths itself, without the progress bar in
/// between, and `discover` those of discovery services.
const DEFAULT_LOG: &str =
    "warn,nvmeof_initiator::multipath::path=off,nvmeof_initiator::discovery::watch=off";

fn main() -> ExitCode {
    let cli = match Cli::try_parse().map_err(args::explained) {
        Ok(cli) => cli,
        // Help and version are not errors.
        Err(error) if error.use_stderr() && wants_json() => {
            return failure::of_usage(&error).report(Printing::Json);
        }
        Err(error) => error.exit(),
    };
    let printing = Printing::new(cli.command.output());
    let filter = match nvmeof_logging::filter_of("NVMEOF_LOG", DEFAULT_LOG) {
        Ok(filter) => filter,
        Err(error) => return Failure::usage(format!("NVMEOF_LOG: {error}")).report(printing),
    };
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(nvmeof_logging::may_color() && std::io::stderr().is_terminal())
        .with_writer(std::io::stderr)
        .init();
    match run(&cli.command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(printing),
    }
}

/// Whether an invalid command line asks for JSON.
fn wants_json() -> bool {
    let words = std::env::args_os().map(|word| word.to_string_lossy().into_owned());
    let words: Vec<String> = words.collect();
    let pairs = words.windows(2);
    let apart = pairs.filter_map(|pair| match pair {
        [option, format] => Some((option.as_str(), format.as_str())),
        _ => None,
    });
    let joined = words
        .iter()
        .any(|word| ["-ojson", "-o=json", "--output-format=json"].contains(&word.as_str()));
    let mut apart = apart.filter(|(option, _)| ["-o", "--output-format"].contains(option));
    joined || apart.any(|(_, format)| format == "json")
}

fn run(command: &Command) -> Result<(), Failure> {
    match command {
        // A benchmark drives its queues on its own threads.
        Command::Bench(args) => return bench::run(args),
        Command::GenDhchapKey(args) => return keys::generate(args),
        Command::CheckDhchapKey(args) => return keys::check(args),
        Command::Manual(manual) => {
            let made = manual.run(Cli::command(), &CONTENTS);
            return made.map_err(|error| Failure::new(error.to_string()));
        }
        _ => {}
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build();
    let runtime = runtime.map_err(|error| {
        let why = nvmeof_rdma::explain(&error);
        Failure::new(format!("cannot start threads: {why}"))
    })?;
    runtime.block_on(async {
        match command {
            Command::Discover(args) => discover::run(args).await,
            Command::ConnectAll(args) => connect_all::run(args).await,
            Command::IdCtrl(args) => identify::controller(args).await,
            Command::IdNs(args) => identify::namespace(args).await,
            Command::ListNs(args) => identify::list(args).await,
            Command::SmartLog(args) => logs::smart(args).await,
            Command::ErrorLog(args) => logs::error(args).await,
            Command::GetLog(args) => logs::any(args).await,
            Command::AnaLog(args) => ana::run(args).await,
            Command::GetFeature(args) => features::get(args).await,
            Command::SetFeature(args) => features::set(args).await,
            Command::Read(args) => data::read(args).await,
            Command::Write(args) => data::write(args).await,
            Command::Compare(args) => data::compare(args).await,
            Command::CompareWrite(args) => inside::compare_write(args).await,
            Command::Verify(args) => inside::verify(args).await,
            Command::Copy(args) => inside::copy(args).await,
            Command::Flush(args) => simple::flush(args).await,
            Command::WriteZeroes(args) => simple::write_zeroes(args).await,
            Command::Dsm(args) => simple::deallocate(args).await,
            Command::ResvRegister(args) => reservations::register(args).await,
            Command::ResvAcquire(args) => reservations::acquire(args).await,
            Command::ResvRelease(args) => reservations::release(args).await,
            Command::ResvReport(args) => reservations::report(args).await,
            Command::Bench(_)
            | Command::GenDhchapKey(_)
            | Command::CheckDhchapKey(_)
            | Command::Manual(_) => Ok(()),
        }
    })
}
