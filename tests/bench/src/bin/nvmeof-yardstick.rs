//! `nvmeof-yardstick`: one side of a yardstick, for `nvmeof-bench`.
#![forbid(unsafe_code)]

use std::error::Error;
use std::io::Write as _;
use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Parser, ValueEnum};
use nvmeof_bench::{shm, tcp};

/// One side of a yardstick.
#[derive(Debug, Parser)]
enum Arguments {
    /// Answer over TCP; prints the address
    TcpServe {
        /// Address to listen on
        #[arg(default_value = "127.0.0.1:0")]
        listen: SocketAddr,
    },
    /// Ask over TCP and measure; prints the report
    TcpAsk {
        /// Where the other side listens
        addr: SocketAddr,
        #[command(flatten)]
        work: Work,
        /// Sleep in the socket call instead of polling
        #[arg(long)]
        block: bool,
    },
    /// Answer through shared memory; prints where
    ShmServe {
        /// Socket to listen on
        path: PathBuf,
    },
    /// Ask through shared memory and measure; prints the report
    ShmAsk {
        /// The socket of the other side
        path: PathBuf,
        #[command(flatten)]
        work: Work,
    },
}

/// What is exchanged, and how long.
#[derive(Args, Clone, Copy, Debug)]
struct Work {
    /// Where the payload goes
    #[arg(long, default_value = "read")]
    rw: Direction,
    /// Bytes of each payload
    #[arg(long, default_value_t = 4096)]
    bs: u32,
    /// Operations in flight
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1024))]
    iodepth: u16,
    /// Seconds to measure
    #[arg(long, default_value_t = 2)]
    runtime: u64,
}

impl Work {
    fn shape(self, block: bool) -> tcp::Shape {
        tcp::Shape {
            direction: self.rw.into(),
            bytes: self.bs,
            depth: self.iodepth,
            block,
        }
    }

    fn runtime(self) -> Duration {
        Duration::from_secs(self.runtime)
    }
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Direction {
    Read,
    Write,
}

impl From<Direction> for tcp::Direction {
    fn from(direction: Direction) -> Self {
        match direction {
            Direction::Read => Self::Read,
            Direction::Write => Self::Write,
        }
    }
}

fn main() -> ExitCode {
    match run(&Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("yardstick: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Arguments) -> Result<(), Box<dyn Error>> {
    match arguments {
        Arguments::TcpServe { listen } => {
            let listener = TcpListener::bind(listen)?;
            println!("{}", listener.local_addr()?);
            std::io::stdout().flush()?;
            tcp::serve(&listener, None)?;
        }
        Arguments::TcpAsk { addr, work, block } => {
            let report = tcp::ask(&tcp::Ask {
                addr: *addr,
                shape: work.shape(*block),
                runtime: work.runtime(),
            })?;
            println!("{report}");
        }
        Arguments::ShmServe { path } => {
            let listener = shm::listen(path)?;
            println!("on {}", path.display());
            std::io::stdout().flush()?;
            shm::serve(&listener, None)?;
        }
        Arguments::ShmAsk { path, work } => {
            let report = shm::ask(&shm::Ask {
                path: path.clone(),
                shape: work.shape(false),
                runtime: work.runtime(),
            })?;
            println!("{report}");
        }
    }
    Ok(())
}
