//! The command line: what can be asked, and how.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};
use nvmeof_initiator::{
    Address, ConnectOptions, Host, HostConfig, Identity, Nqn, Route, RouteOptions, Transport,
    parse_hostid,
};
use nvmeof_manual::Manual;

use crate::address;
use crate::failure::Failure;

/// NVMe over Fabrics from user space: look at targets, read and write their
/// namespaces, measure them.
#[derive(Debug, Parser)]
#[command(name = "nvmeof", version, max_term_width = 80)]
#[command(after_help = "Exit status: 0 success, 1 the operation failed, 2 wrong usage.")]
pub(crate) struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// List the subsystems that a target offers this host
    Discover(Discover),
    /// Show what a controller says about itself
    IdCtrl(Admin),
    /// Show what a controller says about a namespace
    IdNs(AdminNamespace),
    /// List the active namespaces
    ListNs(Admin),
    /// Show the SMART / health log
    SmartLog(Admin),
    /// Show the error log
    ErrorLog(ErrorLog),
    /// Read any log page
    #[command(
        override_usage = "nvmeof get-log [OPTIONS] -a <ADDR> -n <NQN> --log-id <ID> --log-len <N>"
    )]
    GetLog(GetLog),
    /// Read blocks into a file or a pipe
    #[command(
        override_usage = "nvmeof read [OPTIONS] -a <ADDR> -n <NQN> --namespace-id <N>\n\
             \x20          --data <FILE>"
    )]
    Read(Read),
    /// Write blocks from a file or a pipe
    #[command(
        override_usage = "nvmeof write [OPTIONS] -a <ADDR> -n <NQN> --namespace-id <N>\n\
             \x20          --data <FILE>"
    )]
    Write(Write),
    /// Compare blocks with a file or a pipe; exit status 1 when they differ
    #[command(
        override_usage = "nvmeof compare [OPTIONS] -a <ADDR> -n <NQN> --namespace-id <N>\n\
             \x20          --data <FILE>"
    )]
    Compare(Compare),
    /// Put what was written on stable media
    Flush(Flush),
    /// Make blocks read as zeroes
    #[command(
        override_usage = "nvmeof write-zeroes [OPTIONS] -a <ADDR> -n <NQN> --namespace-id <N>\n\
             \x20          --start-block <LBA> --block-count <N>"
    )]
    WriteZeroes(WriteZeroes),
    /// Deallocate blocks (Dataset Management)
    #[command(
        override_usage = "nvmeof dsm [OPTIONS] -a <ADDR> -n <NQN> --namespace-id <N>\n\
             \x20          --start-block <LBA,..> --block-count <N,..>"
    )]
    Dsm(Dsm),
    /// Measure reads and writes. Writing destroys the namespace's data
    Bench(Bench),
    #[command(flatten)]
    Manual(Manual),
}

/// Where the target is and who asks.
#[derive(Args, Debug)]
pub(crate) struct Target {
    /// Transport type
    #[arg(short = 't', long, value_name = "TYPE", default_value = "rdma")]
    pub(crate) transport: TransportType,
    /// Address of the target: IP address, name, or unix:/path for a Unix socket
    /// on this host
    #[arg(short = 'a', long, value_name = "ADDR")]
    pub(crate) traddr: String,
    /// Port of the target [default: 4420]
    #[arg(short = 's', long, value_name = "PORT")]
    pub(crate) trsvcid: Option<u16>,
    /// Name of this host [default: /etc/nvme/hostnqn, or derived from the machine]
    #[arg(short = 'q', long, value_name = "NQN", value_parser = nqn)]
    pub(crate) hostnqn: Option<Nqn>,
    /// Identifier of this host, a UUID [default: /etc/nvme/hostid, or derived]
    #[arg(short = 'I', long, value_name = "UUID", value_parser = parse_hostid)]
    pub(crate) hostid: Option<[u8; 16]>,
    /// RDMA provider: shm shares memory with a target on this host, verbs uses
    /// the RDMA device on the way to the target, iwarp needs none, auto is the
    /// first of these that there is, and iwarp for a Unix socket
    #[arg(long, value_name = "NAME", default_value = "auto")]
    pub(crate) provider: Transport,
    /// Where targets on this host listen for shared memory (their shm.folder)
    /// [default: the folders of this user and of the system]
    #[arg(long, value_name = "DIR")]
    pub(crate) shm_folder: Option<PathBuf>,
    /// Copy data through rings even where a target of this user or of root could
    /// use our buffers in place
    #[arg(long)]
    pub(crate) shm_copy: bool,
    /// Ask for a CRC on every frame of software iWARP
    #[arg(long)]
    pub(crate) crc: bool,
    /// Seconds that a command may take before its queue is given up
    #[arg(long, value_name = "S", default_value_t = 30, value_parser = positive)]
    pub(crate) command_timeout: u64,
    /// How to print
    #[arg(short = 'o', long, value_name = "FORMAT", default_value = "normal")]
    pub(crate) output_format: Format,
}

/// Transport types of NVMe over Fabrics that we speak.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum TransportType {
    /// RDMA.
    Rdma,
}

/// How to print.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// For people.
    Normal,
    /// For programs.
    Json,
}

/// Which subsystem, and how to connect to it.
#[derive(Args, Debug)]
pub(crate) struct Subsystem {
    #[command(flatten)]
    pub(crate) target: Target,
    /// Name of the subsystem
    #[arg(short = 'n', long, value_name = "NQN", value_parser = nqn)]
    pub(crate) nqn: Nqn,
    /// Keep-alive time-out in seconds, 0 for none
    #[arg(short = 'k', long, value_name = "S", default_value_t = 5)]
    pub(crate) keep_alive_tmo: u32,
}

/// I/O queues and a namespace.
#[derive(Args, Debug)]
pub(crate) struct Io {
    #[command(flatten)]
    pub(crate) subsystem: Subsystem,
    /// Namespace
    #[arg(long, value_name = "N")]
    pub(crate) namespace_id: u32,
    /// I/O queues
    #[arg(short = 'i', long, value_name = "N", default_value_t = 1,
          value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) nr_io_queues: u16,
    /// Entries of each I/O queue
    #[arg(short = 'Q', long, value_name = "N", default_value_t = 128,
          value_parser = clap::value_parser!(u16).range(2..=4097))]
    pub(crate) queue_size: u16,
}

/// `discover`
#[derive(Args, Debug)]
pub(crate) struct Discover {
    #[command(flatten)]
    pub(crate) target: Target,
}

/// A command that needs a controller alone.
#[derive(Args, Debug)]
pub(crate) struct Admin {
    #[command(flatten)]
    pub(crate) subsystem: Subsystem,
}

/// A command about a namespace that does no I/O.
#[derive(Args, Debug)]
pub(crate) struct AdminNamespace {
    #[command(flatten)]
    pub(crate) subsystem: Subsystem,
    /// Namespace
    #[arg(long, value_name = "N")]
    pub(crate) namespace_id: u32,
}

/// `error-log`
#[derive(Args, Debug)]
pub(crate) struct ErrorLog {
    #[command(flatten)]
    pub(crate) subsystem: Subsystem,
    /// Entries to read
    #[arg(short = 'e', long, value_name = "N", default_value_t = 64,
          value_parser = clap::value_parser!(u16).range(1..=4096))]
    pub(crate) log_entries: u16,
}

/// `get-log`
#[derive(Args, Debug)]
pub(crate) struct GetLog {
    #[command(flatten)]
    pub(crate) subsystem: Subsystem,
    /// Which log page, for example 2 or 0x70
    #[arg(long, value_name = "ID", value_parser = byte)]
    pub(crate) log_id: u8,
    /// Bytes to read
    #[arg(short = 'l', long, value_name = "N",
          value_parser = clap::value_parser!(u32).range(1..=16 << 20))]
    pub(crate) log_len: u32,
    /// Namespace [default: the whole controller]
    #[arg(long, value_name = "N")]
    pub(crate) namespace_id: Option<u32>,
    /// Print the bytes as they are
    #[arg(short = 'b', long)]
    pub(crate) raw_binary: bool,
}

/// A run of blocks, and a file.
#[derive(Args, Debug)]
pub(crate) struct Run {
    /// First block
    #[arg(long, value_name = "LBA", default_value_t = 0)]
    pub(crate) start_block: u64,
    /// Number of blocks, counted from 1 (nvme-cli counts from 0)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) block_count: Option<u64>,
    /// File, or - for standard input or output
    #[arg(long, value_name = "FILE")]
    pub(crate) data: PathBuf,
}

/// `read`
#[derive(Args, Debug)]
pub(crate) struct Read {
    #[command(flatten)]
    pub(crate) io: Io,
    /// Without --block-count: up to the end of the namespace.
    #[command(flatten)]
    pub(crate) run: Run,
}

/// `write`
#[derive(Args, Debug)]
pub(crate) struct Write {
    #[command(flatten)]
    pub(crate) io: Io,
    /// Without --block-count: all of the file.
    #[command(flatten)]
    pub(crate) run: Run,
    /// End when the data is on stable media
    #[arg(long)]
    pub(crate) force_unit_access: bool,
}

/// `compare`
#[derive(Args, Debug)]
pub(crate) struct Compare {
    #[command(flatten)]
    pub(crate) io: Io,
    /// Without --block-count: all of the file.
    #[command(flatten)]
    pub(crate) run: Run,
}

/// `flush`
#[derive(Args, Debug)]
pub(crate) struct Flush {
    #[command(flatten)]
    pub(crate) io: Io,
}

/// `write-zeroes`
#[derive(Args, Debug)]
pub(crate) struct WriteZeroes {
    #[command(flatten)]
    pub(crate) io: Io,
    /// First block
    #[arg(long, value_name = "LBA")]
    pub(crate) start_block: u64,
    /// Number of blocks, counted from 1 (nvme-cli counts from 0)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) block_count: u64,
    /// Let the controller deallocate the blocks
    #[arg(long)]
    pub(crate) deac: bool,
    /// End when the zeroes are on stable media
    #[arg(long)]
    pub(crate) force_unit_access: bool,
}

/// `dsm`
#[derive(Args, Debug)]
pub(crate) struct Dsm {
    #[command(flatten)]
    pub(crate) io: Io,
    /// First blocks of the ranges, separated by commas
    #[arg(
        long,
        alias = "slbs",
        value_name = "LBA,..",
        value_delimiter = ',',
        required = true
    )]
    pub(crate) start_block: Vec<u64>,
    /// Numbers of blocks of the ranges, separated by commas
    #[arg(long, alias = "blocks", value_name = "N,..", value_delimiter = ',', required = true,
          value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) block_count: Vec<u32>,
    /// Deallocate: what is done in any case; nvme-cli wants it said
    #[arg(short = 'd', long)]
    pub(crate) ad: bool,
}

/// `bench`
#[derive(Args, Debug)]
pub(crate) struct Bench {
    #[command(flatten)]
    pub(crate) subsystem: Subsystem,
    /// Namespace
    #[arg(long, value_name = "N")]
    pub(crate) namespace_id: u32,
    /// What to do
    #[arg(long, value_name = "KIND", default_value = "randread")]
    pub(crate) rw: Kind,
    /// Bytes of each read or write; k, m and g are powers of 1024
    #[arg(long, value_name = "SIZE", default_value = "4k", value_parser = size)]
    pub(crate) bs: u32,
    /// Reads and writes in flight on each queue
    #[arg(long, value_name = "N", default_value_t = 32,
          value_parser = clap::value_parser!(u16).range(1..=4096))]
    pub(crate) iodepth: u16,
    /// I/O queues, each with a thread of its own
    #[arg(short = 'i', long, alias = "nr-io-queues", value_name = "N", default_value_t = 1,
          value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(crate) io_queues: u16,
    /// Seconds to measure, for example 10 or 0.5
    #[arg(long, value_name = "S", default_value = "10", value_parser = seconds)]
    pub(crate) runtime: Duration,
    /// Percentage of reads with randrw
    #[arg(long, value_name = "PERCENT", default_value_t = 50,
          value_parser = clap::value_parser!(u8).range(0..=100))]
    pub(crate) rwmixread: u8,
    /// Most bytes of a write that go with its command
    #[arg(long, value_name = "SIZE", default_value = "4k", value_parser = size_or_zero)]
    pub(crate) in_capsule: u32,
    /// Which interface of the initiator to use
    #[arg(long, value_name = "NAME", default_value = "polled")]
    pub(crate) interface: Interface,
}

/// The interfaces of the initiator that a benchmark can use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Interface {
    /// A thread polls each queue.
    Polled,
    /// One thread awaits everything: a task for each operation in flight.
    Async,
}

/// What a benchmark does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Kind {
    /// Reads one after the other.
    Read,
    /// Writes one after the other.
    Write,
    /// Reads anywhere.
    Randread,
    /// Writes anywhere.
    Randwrite,
    /// Both anywhere.
    Randrw,
}

impl Target {
    /// The address, its name resolved.
    pub(crate) fn addr(&self) -> Result<Address, Failure> {
        address::resolve(&self.traddr, self.trsvcid)
    }

    /// Who asks.
    pub(crate) fn identity(&self) -> Result<Identity, Failure> {
        let mut identity = match self.hostnqn {
            Some(hostnqn) => Identity::of_name(hostnqn),
            None => Identity::of_this_machine()?,
        };
        if let Some(hostid) = self.hostid {
            identity.hostid = hostid;
        }
        Ok(identity)
    }

    /// The host of commands that move a page at a time at most.
    pub(crate) fn host(&self) -> Result<Host, Failure> {
        self.host_for(1, 4096)
    }

    /// The host, with buffers for `calls` calls at a time of up to `longest`
    /// bytes: every queue has all of them registered.
    pub(crate) fn host_for(&self, calls: usize, longest: usize) -> Result<Host, Failure> {
        let config = HostConfig::new(self.identity()?);
        let mut config = config.with_buffers_for(calls, longest);
        config.transport = self.provider;
        config.route_options = self.route_options();
        Ok(Host::new(config)?)
    }

    /// How `addr` is reached.
    pub(crate) fn route(&self, addr: Address) -> Result<Route, Failure> {
        Ok(self.provider.route(addr, &self.route_options())?)
    }

    fn route_options(&self) -> RouteOptions {
        RouteOptions {
            shm_folder: self.shm_folder.clone(),
            shm_copies: self.shm_copy,
            crc: self.crc,
        }
    }
}

impl Subsystem {
    /// How to connect for admin commands alone.
    pub(crate) fn options(&self) -> Result<ConnectOptions, Failure> {
        let mut options = ConnectOptions::new(self.target.addr()?, self.nqn);
        options.io_queues = 0;
        options.keep_alive = Duration::from_secs(self.keep_alive_tmo.into());
        options.command_timeout = Duration::from_secs(self.target.command_timeout);
        Ok(options)
    }
}

impl Io {
    /// How to connect for I/O.
    pub(crate) fn options(&self) -> Result<ConnectOptions, Failure> {
        let mut options = self.subsystem.options()?;
        options.io_queues = self.nr_io_queues;
        options.queue_size = self.queue_size;
        Ok(options)
    }
}

fn nqn(text: &str) -> Result<Nqn, String> {
    Nqn::new(text).map_err(|error| error.to_string())
}

fn positive(text: &str) -> Result<u64, String> {
    match text.parse() {
        Ok(number @ 1..=1_000_000) => Ok(number),
        _ => Err("a number from 1 to 1000000 is expected".to_owned()),
    }
}

/// A time of at least a millisecond, in seconds.
fn seconds(text: &str) -> Result<Duration, String> {
    match text.parse() {
        Ok(seconds) if (0.001..=1e6).contains(&seconds) => Ok(Duration::from_secs_f64(seconds)),
        _ => Err("a number of seconds from 0.001 to 1000000 is expected".to_owned()),
    }
}

/// A byte, decimal or hexadecimal.
fn byte(text: &str) -> Result<u8, String> {
    let parsed = match text.strip_prefix("0x") {
        Some(digits) => u8::from_str_radix(digits, 16),
        None => text.parse(),
    };
    parsed.map_err(|_| "a number from 0 to 255 is expected".to_owned())
}

/// Bytes, with k, m or g for powers of 1024.
fn size(text: &str) -> Result<u32, String> {
    match size_or_zero(text)? {
        0 => Err("more than 0 bytes are needed".to_owned()),
        size => Ok(size),
    }
}

fn size_or_zero(text: &str) -> Result<u32, String> {
    let wrong = || format!("`{text}` is not a size such as 512, 4k or 1m");
    let lower = text.to_ascii_lowercase();
    let lower = lower.strip_suffix("ib").unwrap_or(&lower);
    let (digits, shift) = match lower.char_indices().last().ok_or_else(wrong)? {
        (at, 'k') => (lower.get(..at), 10),
        (at, 'm') => (lower.get(..at), 20),
        (at, 'g') => (lower.get(..at), 30),
        _ => (Some(lower), 0),
    };
    let number: u64 = digits.unwrap_or_default().parse().map_err(|_| wrong())?;
    let bytes = number.checked_mul(1 << shift);
    bytes
        .and_then(|bytes| u32::try_from(bytes).ok())
        .ok_or_else(|| format!("`{text}` is more than 4 GiB"))
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    fn parse(line: &str) -> Result<Command, clap::error::ErrorKind> {
        let cli = Cli::try_parse_from(line.split_whitespace());
        cli.map(|cli| cli.command).map_err(|error| error.kind())
    }

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn the_lines_of_the_contract_parse() {
        let nqn = "nqn.2026-11.org.example:disk";
        for line in [
            "nvmeof discover -t rdma -a 127.0.0.1 -s 4420 -o json".to_owned(),
            format!("nvmeof id-ctrl -t rdma -a 127.0.0.1 -s 4420 -n {nqn} -o json"),
            format!("nvmeof id-ns -t rdma -a ::1 -n {nqn} --namespace-id 1"),
            format!("nvmeof id-ctrl -a unix:/run/nvmeof/nvmeof.sock -n {nqn}"),
            format!("nvmeof list-ns -t rdma -a host -n {nqn} -q {nqn}"),
            format!("nvmeof smart-log -a ::1 -n {nqn} -k 0"),
            format!("nvmeof error-log -a ::1 -n {nqn} -e 8"),
            format!("nvmeof get-log -a ::1 -n {nqn} --log-id 0x70 --log-len 1024 -b"),
            format!("nvmeof read -a ::1 -n {nqn} --namespace-id 1 --start-block 0 --data -"),
            format!("nvmeof write -a ::1 -n {nqn} --namespace-id 1 --data f -i 2 -Q 33"),
            format!("nvmeof compare -a ::1 -n {nqn} --namespace-id 1 --data f"),
            format!("nvmeof flush -a ::1 -n {nqn} --namespace-id 1"),
            format!(
                "nvmeof write-zeroes -a ::1 -n {nqn} --namespace-id 1 \
                 --start-block 0 --block-count 8"
            ),
            format!("nvmeof dsm -a ::1 -n {nqn} --namespace-id 1 --slbs 0,8 --blocks 1,1 --ad"),
            format!(
                "nvmeof bench -a ::1 -n {nqn} --namespace-id 1 --rw randread --bs 4k \
                 --iodepth 32 --io-queues 1 --runtime 10 --interface async -o json"
            ),
        ] {
            assert!(parse(&line).is_ok(), "{line}");
        }
    }

    #[test]
    fn wrong_usage_is_refused() {
        for line in [
            "nvmeof",
            "nvmeof discover -t rdma",
            "nvmeof discover -t tcp -a ::1",
            "nvmeof id-ctrl -a ::1 -n disk",
            "nvmeof read -a ::1 -n nqn.2026-11.org.example:disk --data -",
            "nvmeof discover -a ::1 -I 00000000-0000-0000-0000-000000000000",
        ] {
            assert!(parse(line).is_err(), "{line}");
        }
    }

    #[test]
    fn sizes_have_units() {
        assert_eq!(size("4k"), Ok(4096));
        assert_eq!(size("1M"), Ok(1 << 20));
        assert_eq!(size("64KiB"), Ok(65536));
        assert_eq!(size("512"), Ok(512));
        for bad in ["", "k", "4x", "-1", "0", "4g", "99999999999999999999g"] {
            assert!(size(bad).is_err(), "{bad}");
        }
        assert_eq!(size_or_zero("0"), Ok(0));
        assert_eq!((byte("2"), byte("0x70")), (Ok(2), Ok(0x70)));
        assert!(byte("256").is_err());
        assert_eq!(seconds("0.5"), Ok(Duration::from_millis(500)));
        for bad in ["0", "-1", "nan", "inf", "1e7", "x"] {
            assert!(seconds(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn help_fits_eighty_columns() {
        let mut cli = Cli::command().term_width(80);
        cli.build();
        for command in cli.get_subcommands_mut() {
            let help = command.render_long_help().to_string();
            for line in help.lines() {
                assert!(line.chars().count() <= 80, "{line}");
            }
        }
    }
}
