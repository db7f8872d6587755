//! The command line.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clap::{ArgGroup, Args, CommandFactory, Parser, Subcommand, ValueEnum};
use nix::poll::{PollFd, PollFlags, poll};
use nix::sys::signalfd::SignalFd;
use nvmeof_manual::{Contents, FilePage, Manual};
use nvmeof_rdma::{Address, explain};
use nvmeof_target_core::Limits;
use nvmeof_wire::text;
use serde_json::{Value, json};

use crate::log;
use crate::serve::{self, not_started};
use crate::service;
use crate::signals;
use nvmeof_target_address as zone;
use nvmeof_target_admin::{Ctl, FAILED, Import, Top, USAGE, complain};
use nvmeof_target_config::{Config, ConfigError, DEFAULT_PORT, on_unusual_names};
use nvmeof_target_control::{Bound, ChangeQueue, Shared};
use nvmeof_target_control::{Exporter, Watch};
use nvmeof_target_control::{LoadedConfig, check_state};
use nvmeof_target_manage::cpus::{self, ReactorCpu};
use nvmeof_target_manage::ports::{self, Port, ProviderFactory};
use nvmeof_target_manage::retry::{self, Listener, later};
use nvmeof_target_manage::{ServeError, Server, locked_by_ended_process, open_present};
use nvmeof_target_manage::{files, release_images};

/// Serves files, block devices and memory as NVMe namespaces over RDMA.
///
/// No RDMA device is required: software iWARP over TCP is built in. RDMA devices
/// are used on addresses that have one, shared memory for hosts on this machine.
#[derive(Debug, Parser)]
#[command(name = "nvmeof-target", version, max_term_width = 80)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
    /// Log level: error, warn, info, debug, trace, or a filter as in RUST_LOG.
    #[arg(long, global = true, value_name = "LEVEL")]
    log_level: Option<String>,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Serve until SIGTERM or SIGINT; SIGHUP reloads the configuration file.
    Serve(Serve),
    /// Check a configuration file and its backing stores without serving them.
    CheckConfig(CheckConfig),
    /// Show and change a running target.
    Ctl(Ctl),
    /// Show rates, latencies and load of a running target.
    Top(Top),
    /// Convert a configuration of nvmet, as nvmetcli saves it.
    Import(Import),
    /// Print the OpenAPI description of the control socket (JSON).
    Openapi,
    #[command(flatten)]
    Manual(Manual),
}

/// Serves a configuration file, or namespaces of one subsystem that every host
/// may connect to.
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("what").required(true))]
struct Serve {
    /// Configuration file (TOML).
    #[arg(
        long,
        value_name = "FILE",
        group = "what",
        conflicts_with_all = ["listen", "provider", "nqn"]
    )]
    config: Option<PathBuf>,
    /// File, block device, ram:SIZE or null:SIZE; repeatable. The first one is
    /// namespace 1.
    #[arg(long, value_name = "PATH", group = "what")]
    namespace: Vec<String>,
    /// Address and port to listen on, or unix:/path.
    #[arg(
        long,
        value_name = "ADDR:PORT",
        default_value_t = default_listen(),
        requires = "namespace",
        value_parser = zone::parse
    )]
    listen: Address,
    /// RDMA providers: auto, iwarp, verbs, shm, or several such as iwarp,shm.
    #[arg(
        long,
        value_name = "NAME,..",
        value_delimiter = ',',
        requires = "namespace"
    )]
    provider: Vec<String>,
    /// NQN of the subsystem [default: derived from the machine].
    #[arg(long, requires = "namespace")]
    nqn: Option<String>,
}

#[derive(Debug, Args)]
struct CheckConfig {
    /// Configuration file (TOML).
    file: PathBuf,
    /// Output format.
    #[arg(short, long, value_enum, default_value_t = Format::Normal)]
    output_format: Format,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Format {
    Normal,
    Json,
}

fn default_listen() -> Address {
    Address::Ip((Ipv4Addr::LOCALHOST, DEFAULT_PORT).into())
}

impl Cli {
    /// Runs the command. Exit status: 0 success, 1 failure, 2 usage error or
    /// configuration.
    #[must_use]
    pub fn run(self) -> ExitCode {
        if let Err(why) = log::start(self.log_level.as_deref()) {
            complain(&why);
            return USAGE.into();
        }
        let status = match self.command {
            Command::Serve(serve) => serve.run(),
            Command::CheckConfig(check) => check.run(),
            Command::Ctl(ctl) => ctl.run(),
            Command::Top(top) => exit_status(top.run()),
            Command::Import(import) => import.run(),
            Command::Openapi => exit_status(openapi().map_err(|error| explain(&error))),
            Command::Manual(manual) => exit_status(
                manual
                    .run(Self::command(), &CONTENTS)
                    .map_err(|error| error.to_string()),
            ),
        };
        release_images(CLOSING_IMAGES);
        status
    }
}

/// Time for closing images before the process ends.
const CLOSING_IMAGES: Duration = Duration::from_secs(5);

/// The manual besides the command line.
const CONTENTS: Contents = Contents {
    section: 8,
    program: include_str!("../manual/nvmeof-target.8.md"),
    files: &[FilePage {
        name: "nvmeof-target.toml",
        about: "configuration of nvmeof-target",
        text: include_str!("../manual/nvmeof-target.toml.5.md"),
        reference: include_str!("../../../docs/configuration-reference.md"),
    }],
};

/// Prints the error, if any, and returns the exit status.
fn exit_status(result: Result<(), String>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            complain(&why);
            FAILED.into()
        }
    }
}

fn openapi() -> io::Result<()> {
    let text = nvmeof_target_control::openapi()?;
    io::stdout().lock().write_all(text.as_bytes())
}

impl Serve {
    fn run(self) -> ExitCode {
        match self.serve() {
            Ok(()) => ExitCode::SUCCESS,
            Err(ServeError::Config(error)) => {
                complain(&error);
                USAGE.into()
            }
            Err(error) => {
                complain(&error);
                FAILED.into()
            }
        }
    }

    fn serve(self) -> Result<(), ServeError> {
        let Some(path) = self.config else {
            let listen = self.listen;
            let config = Config::of_namespaces(&self.namespace, listen, &self.provider, self.nqn)?;
            let signals = signals::block_all();
            let signals = signals.map_err(|errno| not_started("signalfd", &errno.into()))?;
            let server = Server::start(&config)?;
            ready(&config, &server);
            return serve::run(server, &signals, None, Vec::new());
        };
        let hangups = signals::block_hangups();
        let hangups = hangups.map_err(|errno| not_started("signalfd", &errno.into()))?;
        let loaded = read_with_retries(&path, &hangups)?;
        let config = Arc::new(loaded.config().clone());
        let bound = or_later(Bound::new(&config))?;
        let exporter = or_later(Exporter::bind(&config))?;
        let signals = signals::block_all();
        let signals = signals.map_err(|errno| not_started("signalfd", &errno.into()))?;
        wait_for_predecessor(loaded.config(), &signals);
        let (server, keeper) = loaded.serve()?;
        let keeper = Arc::new(keeper);
        let watch = Arc::new(Watch::of(&server));
        let shared = Shared {
            keeper: Arc::clone(&keeper),
            watch: Arc::clone(&watch),
            notify_status: service::status,
            queue: ChangeQueue::default(),
        };
        let (manager, mut listeners) = (server.manager(), Vec::new());
        let (mut control, mut metrics) = (None, None);
        match bound {
            Ok(bound) => {
                let serving = bound.map(|bound| bound.serve(&shared)).transpose();
                control = serving.map_err(|error| not_started("control", &error))?;
            }
            Err(error) => {
                manager.listener_waits(CONTROL, Some(&error));
                listeners.push(control_later(&config, &shared));
            }
        }
        match exporter {
            Ok(exporter) => {
                let serving = exporter.map(|exporter| exporter.serve(&watch));
                metrics = serving
                    .transpose()
                    .map_err(|error| not_started("metrics", &error))?;
            }
            Err(error) => {
                manager.listener_waits(METRICS, Some(&error));
                listeners.push(metrics_later(&config, &watch));
            }
        }
        report_ready(&server);
        let served = serve::run(server, &signals, Some(&keeper), listeners);
        drop((control, metrics));
        served
    }
}

/// The keys of listeners that `serve` may wait for.
const CONTROL: &str = "control.socket";
const METRICS: &str = "metrics.listen";

type Later = (&'static str, Listener);

fn control_later(config: &Arc<Config>, shared: &Shared) -> Later {
    let (config, shared) = (Arc::clone(config), shared.clone());
    later(CONTROL, move || {
        let bound = Bound::new(&config)?;
        let serving = bound.map(|bound| bound.serve(&shared)).transpose();
        serving.map_err(|error| config.table_error("control", "socket", &explain(&error)))
    })
}

fn metrics_later(config: &Arc<Config>, watch: &Arc<Watch>) -> Later {
    let (config, watch) = (Arc::clone(config), Arc::clone(watch));
    later(METRICS, move || {
        let exporter = Exporter::bind(&config)?;
        let serving = exporter.map(|exporter| exporter.serve(&watch)).transpose();
        serving.map_err(|error| config.table_error("metrics", "listen", &explain(&error)))
    })
}

/// Reads the configuration and opens the state file, with retries: another target may hold
/// the state file, and a killed one holds it until the kernel has completed its writes.
/// SIGHUP triggers a retry immediately.
fn read_with_retries(path: &Path, hangups: &SignalFd) -> Result<LoadedConfig, ConfigError> {
    let mut pause = retry::FIRST;
    loop {
        match LoadedConfig::read(path) {
            Err(error) if error.may_succeed_later() => {
                if pause == retry::FIRST {
                    tracing::warn!("waiting: {error}");
                }
                service::waiting(&format!("waiting: {}", error.what()), pause * 3);
                let mut fds = [PollFd::new(hangups.as_fd(), PollFlags::POLLIN)];
                let _ = poll(&mut fds, nvmeof_target_engine::poll_timeout(Some(pause)));
                while let Ok(Some(_)) = hangups.read_signal() {}
                pause = (pause * 2).min(retry::LONGEST);
            }
            loaded => return loaded,
        }
    }
}

/// Waits until the kernel has executed the last writes of a predecessor that was killed. Until
/// then no connection is accepted: a namespace that is not ready would cause I/O errors at
/// hosts. A signal ends the wait: then nothing is proven to hosts of the predecessor (see
/// [`Lineage`](nvmeof_target_manage::Lineage)).
fn wait_for_predecessor(config: &Config, signals: &SignalFd) {
    let mut pause = FIRST_PAUSE;
    while let Some((path, pid)) = locked_by_ended_process(config) {
        let path = path.display();
        let what = format!("waiting for {path}: process {pid} has ended, but still locks it");
        if pause == FIRST_PAUSE {
            tracing::warn!("{what}: the kernel executes its last writes");
        }
        service::waiting(&what, retry::LONGEST);
        let mut fds = [PollFd::new(signals.as_fd(), PollFlags::POLLIN)];
        let timeout = nvmeof_target_engine::poll_timeout(Some(pause));
        if poll(&mut fds, timeout).is_ok_and(|ready| ready > 0) {
            return;
        }
        pause = (pause * 2).min(retry::FIRST);
    }
}

/// The first pause of [`wait_for_predecessor`]; each is twice the one before.
const FIRST_PAUSE: Duration = Duration::from_millis(50);

/// A resource that may become available later does not prevent the start.
fn or_later<T>(tried: Result<T, ConfigError>) -> Result<Result<T, ConfigError>, ConfigError> {
    match tried {
        Err(error) if !error.may_succeed_later() => Err(error),
        tried => Ok(tried),
    }
}

/// Prints the commands with which hosts can connect.
fn ready(config: &Config, server: &Server) {
    for (port, nqn) in server.ports().iter().zip(config.subsystems()) {
        let at = match port.address {
            Address::Ip(addr) => {
                let addr = reachable(addr);
                format!("-a {} -s {}", zone::traddr(addr), addr.port())
            }
            Address::Unix(_) => format!("-a {}", port.address),
        };
        let nqn = text::ShellWord(nqn).to_string();
        let nqn = text::Lines(&nqn);
        println!("nvmeof discover -t rdma {at}");
        println!("nvmeof id-ctrl -t rdma {at} -n {nqn}");
        // The Linux host does not support Unix sockets.
        if port.address.ip().is_some() {
            println!("nvme connect -t rdma {at} -n {nqn}");
        }
    }
    report_ready(server);
}

/// An address of a port that a host can connect to: the loopback address of a wildcard port.
fn reachable(mut addr: SocketAddr) -> SocketAddr {
    if addr.ip().is_unspecified() {
        addr.set_ip(match addr {
            SocketAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
            SocketAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
        });
    }
    addr
}

/// Reports readiness in the log and to the service manager.
fn report_ready(server: &Server) {
    for port in server.ports() {
        tracing::info!("port {port}");
    }
    let serving = server.manager().status();
    tracing::info!("ready: {serving}");
    service::ready(&serving);
}

impl CheckConfig {
    fn run(&self) -> ExitCode {
        let checked = self.check();
        match self.output_format {
            Format::Normal => self.print(&checked),
            Format::Json => self.print_json(&checked),
        }
        match checked {
            Ok(_) => ExitCode::SUCCESS,
            Err(_) => USAGE.into(),
        }
    }

    fn check(&self) -> Result<Checked, ConfigError> {
        let config = Config::read(&self.file)?;
        files::raise_limit();
        let mut ports = ports::plan_present(&config)?;
        let cpus = cpus::place(&config, &ports)?;
        let mut remarks = Vec::from_iter(on_unusual_names(config.unusual_names()));
        remarks.extend(config.check_keys()?);
        remarks.extend(ports::unused_devices(&config, &ports));
        remarks.extend(cpus::sqpoll_remark(&config, &cpus));
        // Held until the end, as in `serve`.
        let stores = open_present(&config)?;
        let files = files::share(&config, 1, stores.len(), &ports);
        let mut means = ProviderFactory::new(1, files);
        let listening = ports::listen(&config, ports.clone(), &mut means)?;
        let errors = stores.iter().filter_map(|store| store.as_ref().err());
        let mut waiting: Vec<_> = errors.map(ToString::to_string).collect();
        for (number, listened) in listening.ports.into_iter().enumerate() {
            if let Some(waits) = &listened.waits {
                let line = config.port_error(number, "").line().unwrap_or_default();
                waiting.push(format!("{}:{line}: {}", self.file.display(), waits.why));
            }
            if let Some(port) = ports.get_mut(number) {
                port.waits = listened.waits;
            }
        }
        waiting.extend(listeners_waiting(&config)?);
        if waiting.iter().any(|one| one.ends_with(Bound::IN_USE)) {
            remarks.push(already_served(&self.file));
        }
        Ok(Checked {
            limits: config.limits(),
            ports,
            cpus,
            remarks,
            waiting,
        })
    }

    fn print(&self, checked: &Result<Checked, ConfigError>) {
        match checked {
            Ok(Checked {
                limits,
                ports,
                cpus,
                remarks,
                waiting,
            }) => {
                for remark in remarks {
                    complain(remark);
                }
                println!("{}: valid", self.file.display());
                for port in ports {
                    println!("port {port}");
                }
                for one in waiting {
                    println!("`serve` would wait: {one}");
                }
                for (number, cpu) in cpus.iter().enumerate() {
                    println!("reactor {number}: {cpu}");
                }
                for (key, limit) in effective_limits(limits, ports.len()) {
                    println!("limits.{key} = {limit}");
                }
            }
            Err(error) => complain(error),
        }
    }

    fn print_json(&self, checked: &Result<Checked, ConfigError>) {
        let file = self.file.display().to_string();
        let outcome = match checked {
            Ok(Checked {
                limits,
                ports,
                cpus,
                remarks,
                waiting,
            }) => json!({
                "file": file,
                "valid": true,
                "remarks": remarks,
                "waiting": waiting,
                "ports": ports.iter().map(port_json).collect::<Vec<_>>(),
                "reactors": cpus.iter().map(cpu_json).collect::<Vec<_>>(),
                "limits": effective_limits(limits, ports.len())
                    .into_iter()
                    .collect::<BTreeMap<_, _>>(),
            }),
            Err(error) => json!({
                "file": file,
                "valid": false,
                "line": error.line(),
                "key": error.key(),
                "error": error.to_string(),
                "errors": std::iter::once(error).chain(error.others()).map(error_json)
                    .collect::<Vec<_>>(),
            }),
        };
        println!("{}", text::Json(&outcome.to_string()));
    }
}

fn error_json(error: &ConfigError) -> Value {
    json!({ "line": error.line(), "key": error.key(), "error": error.what() })
}

/// Resources besides namespaces and ports that `serve` would wait for: the state file, the
/// control socket and the address of metrics.
///
/// # Errors
/// [`ConfigError`] of a resource that it would not wait for.
fn listeners_waiting(config: &Config) -> Result<Vec<String>, ConfigError> {
    let mut waiting = Vec::new();
    waiting.extend(or_later(check_state(config))?.err());
    if config.control().socket.is_some() {
        waiting.extend(or_later(Bound::new(config))?.err());
    }
    waiting.extend(or_later(Exporter::bind(config))?.err());
    Ok(waiting.iter().map(ToString::to_string).collect())
}

/// The remark if a target serves the checked file: it need not be stopped.
fn already_served(file: &Path) -> String {
    let file = file.to_string_lossy();
    format!(
        "a target is running with the control.socket of this file and holds the resources \
         that are waited for below; `nvmeof-target ctl plan {}` shows what a reload would change",
        text::ShellWord(&file)
    )
}

/// The effect of a valid configuration on this machine.
struct Checked {
    limits: Limits,
    ports: Vec<Port>,
    /// The CPU of each reactor.
    cpus: Vec<ReactorCpu>,
    /// Warnings and hints.
    remarks: Vec<String>,
    /// Resources that `serve` would start without, and retry.
    waiting: Vec<String>,
}

/// The effective limits of one host and of one port, by key, with `ports` ports: some
/// defaults follow from other limits.
fn effective_limits(limits: &Limits, ports: usize) -> [(&'static str, u32); 8] {
    let port_controllers = if ports > 1 {
        limits.port_controllers
    } else {
        limits.controllers
    };
    [
        ("host_controllers", limits.host_controllers.into()),
        ("host_queues", limits.host_queues.into()),
        ("host_commands", limits.host_commands),
        ("host_memory", limits.host_memory.into()),
        ("port_controllers", port_controllers.into()),
        (
            "port_connections",
            limits.port_connections.with_ports(ports),
        ),
        ("port_commands", limits.port_commands.with_ports(ports)),
        ("port_memory", limits.port_memory.into()),
    ]
}

fn cpu_json(cpu: &ReactorCpu) -> Value {
    json!({
        "cpu": cpu.number,
        "numa_node": cpu.node,
        "sqpoll_cpu": cpu.sqpoll,
    })
}

fn port_json(port: &Port) -> Value {
    let providers = port.providers.iter().map(|provider| {
        let devices = provider.devices.iter().map(|device| {
            json!({
                "device": device.name,
                "port": device.port,
                "type": device.fabric.provider_type().name(),
                "address": device.only.or(port.address.ip()).map(|ip| ip.to_string()),
            })
        });
        json!({
            "provider": provider.name.name(),
            "devices": devices.collect::<Vec<_>>(),
        })
    });
    let spec = port.to_spec();
    json!({
        "traddr": spec.traddr.to_string(),
        "trsvcid": port.address.port(),
        "providers": providers.collect::<Vec<_>>(),
    })
}
