//! `nvmeof-yardstick`: one side of a yardstick, for `nvmeof-bench`.
#![forbid(unsafe_code)]

use std::error::Error;
use std::io::Write as _;
use std::net::{SocketAddr, TcpListener};
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Parser, ValueEnum};
use nvmeof_bench::beside::{self, Beside};
use nvmeof_bench::hold::{self, Hold};
use nvmeof_bench::hostile::{self, Hostile};
use nvmeof_bench::{shm, tcp};
use nvmeof_initiator::{Address, Nqn, Transport};

/// One side of a yardstick.
#[derive(Debug, Parser)]
enum Arguments {
    /// Target side over TCP, or at unix:/path; prints the address
    TcpServe {
        /// Address to listen on
        #[arg(default_value = "127.0.0.1:0")]
        listen: Address,
    },
    /// Initiator side over TCP, or at unix:/path; measures and prints the report
    TcpAsk {
        /// Address of the other side
        addr: Address,
        #[command(flatten)]
        work: Work,
        /// Sleep in the socket call instead of polling
        #[arg(long)]
        block: bool,
        /// Send payloads with MSG_ZEROCOPY
        #[arg(long)]
        zerocopy: bool,
    },
    /// Target side through shared memory; prints the socket
    ShmServe {
        /// Socket to listen on
        path: PathBuf,
    },
    /// Initiator side through shared memory; measures and prints the report
    ShmAsk {
        /// The socket of the other side
        path: PathBuf,
        #[command(flatten)]
        work: Work,
        /// Yield the core after each poll without progress, for both on one core
        #[arg(long)]
        block: bool,
    },
    /// Hold idle connections to a target; prints the number of queue pairs
    Hold {
        /// Address of the target
        addr: Address,
        /// NQN of its subsystem
        #[arg(long)]
        nqn: String,
        /// RDMA provider
        #[arg(long, default_value = "iwarp")]
        provider: Transport,
        /// shm.folder of targets on this host, for shared memory
        #[arg(long)]
        shm_folder: Option<PathBuf>,
        /// Number of controllers
        #[arg(long, default_value_t = 1)]
        controllers: u16,
        /// I/O queues of each controller
        #[arg(long, default_value_t = 1)]
        io_queues: u16,
        /// Entries of each I/O queue
        #[arg(long, default_value_t = 128)]
        queue_size: u16,
    },
    /// Read and write at random and print the report; repeat it after a line of
    /// standard input
    Beside {
        /// Address of the target
        addr: Address,
        /// NQN of its subsystem
        #[arg(long)]
        nqn: String,
        /// Bytes of each operation
        #[arg(long)]
        bs: u32,
        /// Operations in flight
        #[arg(long)]
        iodepth: u16,
        /// Seconds of the first measurement
        #[arg(long, value_parser = seconds)]
        runtime: Duration,
        /// Seconds of the second measurement
        #[arg(long, value_parser = seconds)]
        beside: Duration,
    },
    /// Send writes to a target and never respond to its RDMA Reads; prints a line
    /// when all peers do
    Hostile {
        /// Address of the target
        addr: SocketAddr,
        /// NQN of its subsystem
        #[arg(long)]
        nqn: String,
        /// Number of peers
        #[arg(long)]
        peers: u16,
        /// Bytes of each write
        #[arg(long)]
        bs: u32,
        /// All peers have the address 127.0.0.1, instead of addresses of their own
        #[arg(long)]
        same_address: bool,
    },
}

/// Size, depth, direction and run time.
#[derive(Args, Clone, Copy, Debug)]
struct Work {
    /// Direction: read or write
    #[arg(long, default_value = "read")]
    rw: Direction,
    /// Bytes of each payload
    #[arg(long, default_value_t = 4096)]
    bs: u32,
    /// Operations in flight
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1024))]
    iodepth: u16,
    /// Seconds to measure
    #[arg(long, default_value = "2", value_parser = seconds)]
    runtime: Duration,
}

impl Work {
    fn shape(self, block: bool, zerocopy: bool) -> tcp::Shape {
        tcp::Shape {
            direction: self.rw.into(),
            bytes: self.bs,
            depth: self.iodepth,
            block,
            zerocopy,
        }
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

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().map_err(|_| "not a number".to_owned())?;
    Duration::try_from_secs_f64(seconds).map_err(|error| error.to_string())
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
            tcp_serve(*listen)?;
        }
        Arguments::TcpAsk {
            addr,
            work,
            block,
            zerocopy,
        } => {
            let report = tcp::ask(&tcp::Ask {
                addr: *addr,
                shape: work.shape(*block, *zerocopy),
                runtime: work.runtime,
            })?;
            println!("{report}");
        }
        Arguments::ShmServe { path } => {
            let listener = shm::listen(path)?;
            println!("on {}", path.display());
            std::io::stdout().flush()?;
            shm::serve(&listener, None)?;
        }
        Arguments::ShmAsk { path, work, block } => {
            let report = shm::ask(&shm::Ask {
                path: path.clone(),
                shape: work.shape(*block, false),
                runtime: work.runtime,
            })?;
            println!("{report}");
        }
        Arguments::Hold {
            addr,
            nqn,
            provider,
            shm_folder,
            controllers,
            io_queues,
            queue_size,
        } => {
            let hold = Hold {
                addr: *addr,
                subnqn: Nqn::new(nqn)?,
                transport: *provider,
                shm_folder: shm_folder.clone(),
                controllers: *controllers,
                queues: *io_queues,
                size: *queue_size,
            };
            match hold::hold(&hold, |count| println!("holds {count} queue pairs"))? {}
        }
        Arguments::Beside {
            addr,
            nqn,
            bs,
            iodepth,
            runtime,
            beside,
        } => beside::measure(&Beside {
            addr: *addr,
            subnqn: Nqn::new(nqn)?,
            bytes: *bs,
            depth: *iodepth,
            runtimes: [*runtime, *beside],
        })?,
        Arguments::Hostile {
            addr,
            nqn,
            peers,
            bs,
            same_address,
        } => attack(&Hostile {
            addr: *addr,
            subnqn: Nqn::new(nqn)?,
            peers: *peers,
            bytes: *bs,
            same_address: *same_address,
        }),
    }
    Ok(())
}

fn attack(hostile: &Hostile) {
    hostile::attack(hostile, |count| {
        println!("attacking: {count} peers");
        // The reader may be gone when this process is to end.
        let _ = std::io::stdout().flush();
    });
}

fn tcp_serve(listen: Address) -> Result<(), Box<dyn Error>> {
    let announce = |address: &dyn std::fmt::Display| {
        println!("{address}");
        std::io::stdout().flush()
    };
    match listen {
        Address::Ip(addr) => {
            let listener = TcpListener::bind(addr)?;
            announce(&listener.local_addr()?)?;
            tcp::serve(listener.incoming(), None)?;
        }
        Address::Unix(path) => {
            // A socket of an earlier run.
            let _ = std::fs::remove_file(path.as_path());
            let listener = UnixListener::bind(path.as_path())?;
            announce(&listen)?;
            tcp::serve(listener.incoming(), None)?;
        }
    }
    Ok(())
}
