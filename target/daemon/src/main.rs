//! The program `nvmeof-target`.
#![forbid(unsafe_code)]

use std::process::ExitCode;

use clap::Parser;
use nvmeof_target::Cli;

fn main() -> ExitCode {
    Cli::parse().run()
}
