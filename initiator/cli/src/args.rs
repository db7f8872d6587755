//! The command line: commands and options.

mod bench;
mod discovery;
mod features;
mod inside;
mod keys;
mod numbers;
mod paths;
mod ranges;
mod reservations;

use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use clap::error::{ContextKind, ContextValue};
use clap::{ArgAction, Args, CommandFactory, Parser, Subcommand, ValueEnum};
use nvmeof_initiator::dhchap::HostKeys;
use nvmeof_initiator::{
    Address, ConnectOptions, Host, HostConfig, Identity, Nqn, Route, RouteOptions, Transport,
    parse_hostid,
};
use nvmeof_manual::Manual;

pub(crate) use bench::{Bench, Interface, Kind};
pub(crate) use discovery::{ConnectAll, Discover};
pub(crate) use features::{AnaLog, GetFeature, SetFeature};
pub(crate) use inside::{CompareWrite, Copy, Verify};
pub(crate) use keys::{CheckKey, DiscoveryKeys, GenKey, Keys};
pub(crate) use paths::Reconnects;
pub(crate) use ranges::{BlockCount, Extent, Ranges, Run, SourceRanges, check_start};
pub(crate) use reservations::{ResvAcquire, ResvRegister, ResvRelease, ResvReport};

use numbers::{is_number, number, size};

pub(crate) use crate::format::Format;

use crate::address;
use crate::failure::Failure;

/// NVMe over Fabrics from user space: discover targets, read, write and measure
/// their namespaces.
#[derive(Debug, Parser)]
#[command(name = "nvmeof", version, max_term_width = 80)]
#[command(after_help = "\
Numbers are decimal or hexadecimal (0x10). Sizes are bytes, or have a unit: k or \
KiB, m or MiB, g or GiB, powers of 1024, as in the output. Counts of operations \
have k, M and G, powers of 1000.

With -o json every command prints JSON, errors too: {\"error\": ..., \
\"remedy\": ...} on standard output, or on standard error where standard output \
has data.

Environment:
  NVMEOF_LOG  Log filter: error, warn, info, debug, trace or off, or
              TARGET=LEVEL,... [default: warn]
  NO_COLOR    Disables colors, if it is not empty

Exit status: 0 success, 1 the operation failed, 2 usage error, 130 ended by \
SIGINT, 143 by SIGTERM.")]
pub(crate) struct Cli {
    /// Command.
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// List the subsystems that a target offers this host, or watch the list
    Discover(Discover),
    /// Check all subsystems that a target and its referrals offer this host: connect
    /// each over all of its paths, list paths and namespaces, and disconnect (there
    /// is no block device); exit status 1 if a subsystem has no path
    ConnectAll(ConnectAll),
    /// Identify Controller
    IdCtrl(Admin),
    /// Identify Namespace
    IdNs(AdminNamespace),
    /// List the active namespaces
    ListNs(Admin),
    /// Show the SMART / health log
    SmartLog(Admin),
    /// Show the error log
    ErrorLog(ErrorLog),
    /// Read any log page
    #[command(
        override_usage = "nvmeof get-log [OPTIONS] -a <ADDR> -n <NQN> --log-id <ID>\n\
             \x20          --log-len <SIZE>"
    )]
    GetLog(GetLog),
    /// Show the ANA log: groups of namespaces and their access states
    AnaLog(AnaLog),
    /// Get features of the controller or of a namespace
    GetFeature(GetFeature),
    /// Set a feature; a feature of the controller is reset when this command
    /// disconnects
    #[command(override_usage = "nvmeof set-feature [OPTIONS] -a <ADDR> -n <NQN>\n\
             \x20          --feature-id <ID> --value <N>")]
    SetFeature(SetFeature),
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
    /// Compare blocks and, if they are as expected, write them, atomically (fused
    /// Compare and Write); exit status 1 when they differ
    #[command(
        override_usage = "nvmeof compare-write [OPTIONS] -a <ADDR> -n <NQN> --namespace-id <N>\n\
             \x20          --start-block <LBA> --compare <FILE> --data <FILE>"
    )]
    CompareWrite(CompareWrite),
    /// Verify blocks: the controller reads them and sends no data
    Verify(Verify),
    /// Copy blocks within the namespace
    #[command(
        override_usage = "nvmeof copy [OPTIONS] -a <ADDR> -n <NQN> --namespace-id <N>\n\
             \x20          --start-block <LBA,..> --block-count <N,..> --to <LBA>"
    )]
    Copy(Copy),
    /// Flush: put completed writes on stable media
    Flush(Flush),
    /// Write zeroes
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
    /// Register this host with a key for reservations, or end that
    #[command(
        override_usage = "nvmeof resv-register [OPTIONS] -a <ADDR> -n <NQN> --namespace-id <N>\n\
             \x20          --rrega <ACTION> [--nrkey <N>] [--crkey <N>]"
    )]
    ResvRegister(ResvRegister),
    /// Acquire a reservation of a namespace, or preempt that of another host
    #[command(
        override_usage = "nvmeof resv-acquire [OPTIONS] -a <ADDR> -n <NQN> --namespace-id <N>\n\
             \x20          --racqa <ACTION> --rtype <TYPE> --crkey <N> [--prkey <N>]"
    )]
    ResvAcquire(ResvAcquire),
    /// Release a reservation, or clear it and all registrations
    #[command(
        override_usage = "nvmeof resv-release [OPTIONS] -a <ADDR> -n <NQN> --namespace-id <N>\n\
             \x20          --rrela <ACTION> [--rtype <TYPE>] --crkey <N>"
    )]
    ResvRelease(ResvRelease),
    /// Show the reservation of a namespace and the registered hosts
    #[command(
        override_usage = "nvmeof resv-report [OPTIONS] -a <ADDR> -n <NQN> --namespace-id <N>"
    )]
    ResvReport(ResvReport),
    /// Measure reads and writes; writes destroy the data of the namespace
    Bench(Bench),
    /// Generate a key for in-band authentication (DH-HMAC-CHAP)
    GenDhchapKey(GenKey),
    /// Check a key for in-band authentication; exit status 2 if it is invalid
    CheckDhchapKey(CheckKey),
    #[command(flatten)]
    Manual(Manual),
}

/// Address of the target, identity of the host.
#[derive(Args, Debug)]
pub(crate) struct Target {
    /// Transport type
    #[arg(short = 't', long, value_name = "TYPE", default_value = "rdma")]
    pub(crate) transport: TransportType,
    /// Address of the target: IP address or name, optionally with :PORT (an IPv6 address
    /// then in brackets), or unix:/path for a Unix socket on this host
    #[arg(short = 'a', long, value_name = "ADDR", required = true, action = ArgAction::Set)]
    traddr: Vec<String>,
    /// Port of the target [default: 4420]
    #[arg(short = 's', long, value_name = "PORT", value_parser = port)]
    pub(crate) trsvcid: Option<u16>,
    /// NQN of this host [default: /etc/nvme/hostnqn, or derived from the machine]
    #[arg(short = 'q', long, value_name = "NQN", value_parser = nqn)]
    pub(crate) hostnqn: Option<Nqn>,
    /// Identifier of this host, a UUID [default: /etc/nvme/hostid, or derived]
    #[arg(short = 'I', long, value_name = "UUID", value_parser = parse_hostid)]
    pub(crate) hostid: Option<[u8; 16]>,
    /// RDMA provider: shm (shared memory with a target on this host), verbs (RDMA
    /// device on the route), iwarp (software, no device), or auto: the first of
    /// these that is available, and iwarp for a Unix socket
    #[arg(long, value_name = "NAME", default_value = "auto")]
    pub(crate) provider: Transport,
    /// Folder of shared memory sockets, shm.folder of the target [default: those of
    /// this user and of the system]
    #[arg(long, value_name = "DIR")]
    pub(crate) shm_folder: Option<PathBuf>,
    /// Copy data through shared rings, even if the target may use buffers of this
    /// process in place
    #[arg(long)]
    pub(crate) shm_copy: bool,
    /// Request a CRC on every frame of software iWARP
    #[arg(long)]
    pub(crate) crc: bool,
    /// Time limit of a command in seconds; then its queue is disconnected
    #[arg(long, value_name = "S", default_value_t = 30,
          value_parser = number::<u64>(1..=1_000_000))]
    pub(crate) command_timeout: u64,
    /// Output format
    #[arg(short = 'o', long, value_name = "FORMAT", default_value = "normal")]
    pub(crate) output_format: Format,
}

/// Supported transport types of NVMe over Fabrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum TransportType {
    /// RDMA.
    Rdma,
}

/// Subsystem and connection.
#[derive(Args, Debug)]
pub(crate) struct Subsystem {
    #[command(flatten)]
    pub(crate) target: Target,
    /// NQN of the subsystem
    #[arg(short = 'n', long, value_name = "NQN", value_parser = subsystem_nqn)]
    pub(crate) nqn: Nqn,
    /// Keep alive timeout in seconds, 0 for none
    #[arg(short = 'k', long, value_name = "S", default_value_t = 5,
          value_parser = number::<u32>(0..=4_294_967))]
    pub(crate) keep_alive_tmo: u32,
    #[command(flatten)]
    pub(crate) keys: Keys,
}

/// I/O queues, with the same options in every command that has them.
#[derive(Args, Debug)]
pub(crate) struct IoQueues {
    /// Number of I/O queues; the command fails if the controller grants fewer
    #[arg(short = 'i', long, value_name = "N", default_value_t = 1,
          value_parser = number::<u16>(1..=65535))]
    pub(crate) nr_io_queues: u16,
    /// Let the target access all I/O buffers at any time. This saves work for each
    /// command over RDMA devices. A target that is faulty or not trustworthy can then
    /// corrupt data that it should not access
    #[arg(long)]
    pub(crate) trust_target: bool,
}

/// Paths to a namespace with I/O queues.
#[derive(Args, Debug)]
#[command(mut_arg("traddr", paths::several_addresses))]
#[command(mut_arg("keep_alive_tmo", paths::required_keep_alive))]
pub(crate) struct Io {
    #[command(flatten)]
    pub(crate) subsystem: Subsystem,
    /// Namespace ID
    #[arg(long, value_name = "N", value_parser = number::<u32>(1..=u32::MAX.into()))]
    pub(crate) namespace_id: u32,
    #[command(flatten)]
    pub(crate) queues: IoQueues,
    /// Entries of each I/O queue
    #[arg(short = 'Q', long, value_name = "N", default_value_t = 128,
          value_parser = number::<u16>(2..=4097))]
    pub(crate) queue_size: u16,
    #[command(flatten)]
    pub(crate) reconnects: Reconnects,
}

/// A command that needs only a controller.
#[derive(Args, Debug)]
pub(crate) struct Admin {
    #[command(flatten)]
    pub(crate) subsystem: Subsystem,
}

/// An admin command about a namespace.
#[derive(Args, Debug)]
pub(crate) struct AdminNamespace {
    #[command(flatten)]
    pub(crate) subsystem: Subsystem,
    /// Namespace ID
    #[arg(long, value_name = "N", value_parser = number::<u32>(1..=u32::MAX.into()))]
    pub(crate) namespace_id: u32,
}

/// `error-log`
#[derive(Args, Debug)]
pub(crate) struct ErrorLog {
    #[command(flatten)]
    pub(crate) subsystem: Subsystem,
    /// Entries to read
    #[arg(short = 'e', long, value_name = "N", default_value_t = 64,
          value_parser = number::<u16>(1..=4096))]
    pub(crate) log_entries: u16,
}

/// `get-log`
#[derive(Args, Debug)]
pub(crate) struct GetLog {
    #[command(flatten)]
    pub(crate) subsystem: Subsystem,
    /// Log page identifier, such as 2 or 0x70
    #[arg(short = 'i', long, value_name = "ID", value_parser = number::<u8>(0..=255))]
    pub(crate) log_id: u8,
    /// Bytes to read
    #[arg(short = 'l', long, value_name = "SIZE",
          value_parser = size::<u32>(1..=16 << 20))]
    pub(crate) log_len: u32,
    /// Namespace ID [default: the controller]
    #[arg(long, value_name = "N", value_parser = number::<u32>(0..=u32::MAX.into()))]
    pub(crate) namespace_id: Option<u32>,
    /// Print raw bytes
    #[arg(short = 'b', long)]
    pub(crate) raw_binary: bool,
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
    /// Complete when the data are on stable media (FUA)
    #[arg(short = 'f', long)]
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
    #[arg(long, value_name = "LBA", value_parser = number::<u64>(0..=u64::MAX))]
    pub(crate) start_block: u64,
    #[command(flatten)]
    pub(crate) count: BlockCount,
    /// Allow the controller to deallocate the blocks
    #[arg(short = 'd', long)]
    pub(crate) deac: bool,
    /// Complete when the zeroes are on stable media (FUA)
    #[arg(short = 'f', long)]
    pub(crate) force_unit_access: bool,
}

/// `dsm`
#[derive(Args, Debug)]
pub(crate) struct Dsm {
    #[command(flatten)]
    pub(crate) io: Io,
    #[command(flatten)]
    pub(crate) ranges: Ranges,
    /// Deallocate; implied, for compatibility with nvme-cli
    #[arg(short = 'd', long)]
    pub(crate) ad: bool,
}

impl Command {
    /// The output format, and whether standard output gets raw data.
    pub(crate) fn output(&self) -> (Format, bool) {
        let admin = |subsystem: &Subsystem| subsystem.target.output_format;
        let io = |io: &Io| admin(&io.subsystem);
        let piped = |path: &Path| path == Path::new("-");
        match self {
            Self::Discover(args) => (args.target.output_format, args.watch),
            Self::ConnectAll(args) => (args.target.output_format, false),
            Self::IdCtrl(args) | Self::ListNs(args) | Self::SmartLog(args) => {
                (admin(&args.subsystem), false)
            }
            Self::IdNs(args) => (admin(&args.subsystem), false),
            Self::ErrorLog(args) => (admin(&args.subsystem), false),
            Self::GetLog(args) => (admin(&args.subsystem), args.raw_binary),
            Self::AnaLog(args) => (admin(&args.subsystem), false),
            Self::GetFeature(args) => (admin(&args.subsystem), args.raw_binary),
            Self::SetFeature(args) => (admin(&args.subsystem), false),
            Self::Read(args) => (io(&args.io), piped(&args.run.data)),
            Self::Write(args) => (io(&args.io), false),
            Self::Compare(args) => (io(&args.io), false),
            Self::CompareWrite(args) => (io(&args.io), false),
            Self::Verify(args) => (io(&args.io), false),
            Self::Copy(args) => (io(&args.io), false),
            Self::Flush(args) => (io(&args.io), false),
            Self::WriteZeroes(args) => (io(&args.io), false),
            Self::Dsm(args) => (io(&args.io), false),
            Self::ResvRegister(args) => (io(&args.io), false),
            Self::ResvAcquire(args) => (io(&args.io), false),
            Self::ResvRelease(args) => (io(&args.io), false),
            Self::ResvReport(args) => (io(&args.io), false),
            Self::Bench(args) => (admin(&args.subsystem), false),
            Self::GenDhchapKey(args) => (args.output_format, false),
            Self::CheckDhchapKey(args) => (args.output_format, false),
            Self::Manual(_) => (Format::Normal, false),
        }
    }
}

impl Target {
    /// The only address, its name resolved.
    pub(crate) fn addr(&self) -> Result<Address, Failure> {
        match self.traddr.as_slice() {
            [one] if !one.contains(',') => address::resolve(one, self.trsvcid),
            // A comma separates nothing here. Commands with several paths need the escape.
            [one] if Address::is_unix_text(one) => {
                address::resolve(&one.replace("\\,", ","), self.trsvcid)
            }
            some => Err(Failure::usage(format!(
                "--traddr {} has several addresses; this command uses one path",
                some.join(",")
            ))
            .with_remedy("give one address")),
        }
    }

    /// The number of paths.
    pub(crate) fn paths(&self) -> usize {
        self.list().count()
    }

    /// The text of each address.
    fn list(&self) -> impl Iterator<Item = String> {
        let lists = self.traddr.iter();
        lists.flat_map(|list| address::split_list(list))
    }

    /// The addresses of all paths, their names resolved.
    pub(crate) fn addrs(&self) -> Result<Vec<Address>, Failure> {
        let mut addrs = Vec::with_capacity(self.traddr.len());
        let mut follows_path = false;
        for traddr in self.list() {
            let resolved = address::resolve(&traddr, self.trsvcid);
            let addr = resolved.map_err(|failure| match follows_path {
                true => failure.with_remedy("write \\, for a comma in the path of a Unix socket"),
                false => failure,
            })?;
            follows_path = Address::is_unix_text(&traddr);
            if addrs.contains(&addr) {
                return Err(Failure::usage(format!(
                    "--traddr {} has {addr} twice",
                    self.traddr.join(",")
                ))
                .with_remedy("give each path its own address"));
            }
            addrs.push(addr);
        }
        Ok(addrs)
    }

    /// The identity of the host.
    pub(crate) fn identity(&self) -> Result<Identity, Failure> {
        let mut identity = match self.hostnqn {
            Some(hostnqn) => Identity::of_name(hostnqn),
            None => Identity::of_this_machine()?,
        };
        if let Some(hostid) = self.hostid {
            identity.hostid = hostid;
        }
        warn_if_unusual("host", &identity.hostnqn);
        Ok(identity)
    }

    /// A host for commands that transfer at most one page at a time.
    pub(crate) fn host(&self) -> Result<Host, Failure> {
        self.host_for(1, 4096)
    }

    /// A host with buffers for `calls` concurrent calls of up to `longest` bytes, all of
    /// them registered on every queue.
    pub(crate) fn host_for(&self, calls: usize, longest: usize) -> Result<Host, Failure> {
        let config = HostConfig::new(self.identity()?);
        let mut config = config.with_buffers_for(calls, longest);
        config.transport = self.provider;
        config.route_options = self.route_options();
        Ok(Host::new(config)?)
    }

    /// The route to `addr`.
    pub(crate) fn route(&self, addr: Address) -> Result<Route, Failure> {
        Ok(self.provider.route(addr, &self.route_options())?)
    }

    /// Options of routes.
    pub(crate) fn route_options(&self) -> RouteOptions {
        RouteOptions {
            shm_folder: self.shm_folder.clone(),
            shm_copies: self.shm_copy,
            crc: self.crc,
        }
    }
}

impl Subsystem {
    /// Options of a connection for admin commands only.
    pub(crate) fn options(&self) -> Result<ConnectOptions, Failure> {
        warn_if_unusual("subsystem", &self.nqn);
        Ok(self.options_at(self.target.addr()?, self.keys.read()?))
    }

    /// Options of a connection over each path, with what `complete` adds.
    fn paths(
        &self,
        complete: impl Fn(&mut ConnectOptions),
    ) -> Result<Vec<ConnectOptions>, Failure> {
        warn_if_unusual("subsystem", &self.nqn);
        let addrs = self.target.addrs()?.into_iter();
        let keys = self.keys.read()?;
        let paths = addrs.map(|addr| {
            let mut options = self.options_at(addr, keys.clone());
            complete(&mut options);
            options
        });
        Ok(paths.collect())
    }

    fn options_at(&self, addr: Address, keys: Option<Arc<HostKeys>>) -> ConnectOptions {
        let mut options = ConnectOptions::new(addr, self.nqn);
        options.io_queues = 0;
        options.keep_alive = Duration::from_secs(self.keep_alive_tmo.into());
        options.command_timeout = Duration::from_secs(self.target.command_timeout);
        options.keys = keys;
        options
    }
}

impl IoQueues {
    /// Sets the options of a connection.
    pub(crate) fn complete(&self, options: &mut ConnectOptions) {
        options.io_queues = self.nr_io_queues;
        options.trusts_target = self.trust_target;
    }

    /// Checks that the controller grants the requested number of queues.
    pub(crate) fn check(&self, granted: u16) -> Result<(), Failure> {
        if granted >= self.nr_io_queues {
            return Ok(());
        }
        Err(Failure::new(format!(
            "the controller grants {granted} I/O queues, {} were requested",
            self.nr_io_queues
        ))
        .with_remedy(format!("use --nr-io-queues {granted}")))
    }
}

impl Io {
    /// Options of a connection for I/O over each path.
    pub(crate) fn paths(&self) -> Result<Vec<ConnectOptions>, Failure> {
        self.subsystem.paths(|options| {
            self.queues.complete(options);
            options.queue_size = self.queue_size;
        })
    }
}

/// Other targets and hosts may be strict; this project and Linux accept any name.
fn warn_if_unusual(owner: &str, name: &Nqn) {
    if let Err(error) = name.check_form() {
        // A write error has no other place to be reported.
        let _ = writeln!(
            io::stderr(),
            "nvmeof: {owner} {name}: {error}; it is used unchanged"
        );
    }
}

/// A port. `-s` has further meanings in nvme-cli.
fn port(text: &str) -> Result<u16, String> {
    number::<u16>(1..=65535)(text).map_err(|why| {
        format!("{why}; -s is the port, other meanings in nvme-cli are --start-block and --sel")
    })
}

/// The NQN of a subsystem. `-n` is the namespace in most commands of nvme-cli.
fn subsystem_nqn(text: &str) -> Result<Nqn, String> {
    if is_number(text) {
        return Err("a number is not an NQN; for a namespace use --namespace-id".to_owned());
    }
    nqn(text)
}

/// A short option that has another meaning in a command of nvme-cli, and is invalid here if it has
/// that meaning.
struct Other {
    /// Its long name.
    option: &'static str,
    /// Whether it has a value in nvme-cli.
    has_value: bool,
    commands: &'static [&'static str],
    explanation: &'static str,
}

const OTHERS: [Other; 3] = [
    Other {
        option: "--trsvcid",
        has_value: false,
        commands: &["set-feature"],
        explanation: "-s is the port (--trsvcid <PORT>) and has no value; to save a feature, write \
                      --save",
    },
    Other {
        option: "--nr-io-queues",
        has_value: false,
        commands: &["resv-register"],
        explanation: "-i is the number of I/O queues (--nr-io-queues <N>) and has no value; to \
                      ignore the current key, write --iekey",
    },
    Other {
        option: "--transport",
        has_value: true,
        commands: &["resv-acquire", "resv-release"],
        explanation: "-t is the transport (--transport), which is rdma; for the type of a \
                      reservation, write --rtype",
    },
];

/// An error of the command line, with an explanation if an option may have the meaning of nvme-cli.
pub(crate) fn explained(error: clap::Error) -> clap::Error {
    explained_for(error, |command| {
        std::env::args_os().any(|word| word == command)
    })
}

/// The same for a command line that has a word if `has_word`.
fn explained_for(error: clap::Error, has_word: impl Fn(&str) -> bool) -> clap::Error {
    let context = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => text.as_str(),
        _ => "",
    };
    let option = context(ContextKind::InvalidArg);
    let has_value = !context(ContextKind::InvalidValue).is_empty();
    let is_it = |other: &&Other| {
        option.starts_with(other.option)
            && has_value == other.has_value
            && other.commands.iter().any(|command| has_word(command))
    };
    match OTHERS.iter().find(is_it) {
        Some(other) => Cli::command().error(error.kind(), other.explanation),
        None => error,
    }
}

fn nqn(text: &str) -> Result<Nqn, String> {
    Nqn::new(text).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests;
