//! `nvmeof-guards-sockets`: runs the cases over TCP.
//!
//! A separate program, which `nvmeof-guards check` starts: other code in a program changes
//! the generated code, by 3 % for sockets beside pipes.
#![forbid(unsafe_code)]

use clap::{Parser, ValueEnum};
use nvmeof_guards::{Medium, Stage};
use nvmeof_initiator::Operation;

/// Run one case under callgrind
#[derive(Debug, Parser)]
struct Arguments {
    kind: Kind,
    /// Operations of each round
    depth: usize,
    rounds: u32,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Kind {
    Read,
    Write,
}

fn main() {
    let arguments = Arguments::parse();
    let operation = match arguments.kind {
        Kind::Read => Operation::Read,
        Kind::Write => Operation::Write,
    };
    let mut stage = Stage::on(&Medium::tcp(), &Stage::null());
    for _ in 0..arguments.rounds {
        stage.round(operation, arguments.depth, |step| step(), |step| step());
    }
}
