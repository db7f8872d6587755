//! `nvmeof-guards-sockets`: runs what is counted over TCP.
//!
//! A program of its own, which `nvmeof-guards check` starts: what else is in a program
//! changes what the compiler makes of it, by 3 % where sockets are beside pipes.
#![forbid(unsafe_code)]

use clap::{Parser, ValueEnum};
use nvmeof_guards::{Medium, Stage};
use nvmeof_initiator::Operation;

/// Run one case, to be counted
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
        stage.round(operation, arguments.depth, |turn| turn(), |turn| turn());
    }
}
