//! `nvmeof-guards-reactors`: what tests of this crate run under tracers: two reactors in turn,
//! many backing stores, two providers.
#![forbid(unsafe_code)]

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use clap::{Parser, Subcommand, ValueEnum};
use nvmeof_backend::Spec;
use nvmeof_guards::{MARKS, Medium, Reactors, Stage};
use nvmeof_initiator::Operation;

/// Run one case under a tracer
#[derive(Debug, Parser)]
struct Arguments {
    #[command(subcommand)]
    case: Case,
}

#[derive(Debug, Subcommand)]
enum Case {
    /// Two reactors in turn; prints the addresses of the marks
    Lines {
        kind: Kind,
        rounds: u32,
        /// Both write one counter in each iteration
        #[arg(long)]
        share: bool,
        /// Milliseconds between the operations of a queue
        #[arg(long, default_value_t = 0)]
        between_ms: u64,
        /// The backing store of both
        #[arg(long, default_value = "null:4G")]
        store: Spec,
    },
    /// One reactor with so many backing stores, of which one is used
    Stores {
        count: usize,
        kind: Kind,
        rounds: u32,
    },
    /// One reactor with shared memory and, if asked, software iWARP without traffic
    Providers {
        #[arg(long)]
        both: bool,
        kind: Kind,
        rounds: u32,
    },
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Kind {
    Read,
    Write,
}

impl Kind {
    fn operation(self) -> Operation {
        match self {
            Self::Read => Operation::Read,
            Self::Write => Operation::Write,
        }
    }
}

/// What `--share` writes.
static SHARED: AtomicU64 = AtomicU64::new(0);

fn main() {
    match Arguments::parse().case {
        Case::Lines {
            kind,
            rounds,
            share,
            between_ms,
            store,
        } => {
            for mark in &MARKS {
                println!("{mark:p}");
            }
            let on_iteration: fn(usize) = match share {
                true => |_| _ = SHARED.fetch_add(1, Ordering::Relaxed),
                false => |_| (),
            };
            let between = Duration::from_millis(between_ms);
            Reactors::in_turn(&store, (kind.operation(), rounds), between, on_iteration);
        }
        Case::Stores {
            count,
            kind,
            rounds,
        } => {
            let stores = vec![Stage::null(); count];
            let medium = Medium::Pipes(nvmeof_guards::Pipes::default());
            let stage = Reactors::new(1).stage(0, &medium, &stores);
            run(stage.and_another(), kind, rounds);
        }
        Case::Providers { both, kind, rounds } => {
            let mut stage = Stage::shm();
            if both {
                stage.add_quiet(&Medium::tcp());
            }
            run(stage, kind, rounds);
        }
    }
}

fn run(mut stage: Stage, kind: Kind, rounds: u32) {
    for _ in 0..rounds {
        stage.round(kind.operation(), 1, |step| step(), |step| step());
    }
}
