//! `nvmeof-yardstick`: one side of a yardstick, for `nvmeof-bench`.
#![forbid(unsafe_code)]

use std::error::Error;
use std::io::Write as _;
use std::net::{SocketAddr, TcpListener};
use std::process::ExitCode;
use std::time::Duration;

use clap::{Parser, ValueEnum};
use nvmeof_bench::tcp;

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
        /// Sleep in the socket call instead of polling
        #[arg(long)]
        block: bool,
    },
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
    match *arguments {
        Arguments::TcpServe { listen } => {
            let listener = TcpListener::bind(listen)?;
            println!("{}", listener.local_addr()?);
            std::io::stdout().flush()?;
            tcp::serve(&listener, None)?;
        }
        Arguments::TcpAsk {
            addr,
            rw,
            bs,
            iodepth,
            runtime,
            block,
        } => {
            let report = tcp::ask(&tcp::Ask {
                addr,
                shape: tcp::Shape {
                    direction: rw.into(),
                    bytes: bs,
                    depth: iodepth,
                    block,
                },
                runtime: Duration::from_secs(runtime),
            })?;
            println!("{report}");
        }
    }
    Ok(())
}
