//! The configuration of the target: from TOML to the model, with errors by file, line and key.
//!
//! [`Config::read`] reads and checks a file. [`Config::configured_stores`] lists the backing
//! stores of its namespaces, [`Config::authentication`] reads the keys of hosts, and
//! [`Config::model_of`] builds the model once these and the ports are open.
//! `docs/configuration-reference.md` is generated from the docstrings of the keys.
//!
//! This crate does not open backing stores, listen on ports, or start threads: that is
//! `nvmeof-target-manage`.
#![forbid(unsafe_code)]

mod ana;
mod authentication;
mod ceph;
mod configured_stores;
mod control;
mod cores;
mod error;
mod form;
mod ha;
mod ha_facts;
mod ha_groups;
mod host;
mod iwarp;
mod key_file;
mod limits;
mod locations;
mod metrics;
mod names;
mod polling;
mod provider;
mod raw;
mod referral;
mod relative;
mod shm;
mod size;
mod storage;
#[cfg(test)]
mod tests;
mod traddr;
mod until;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nvmeof_backend_spec::CephAccess;
use nvmeof_polling::PollingConfig;
use nvmeof_rdma::Address;
use nvmeof_target_core::{
    AnaGroup, Carrier, Limits, Location, Model, ModelError, NamespaceSpec, NamespaceState,
    PortAddress, PortSpec, Preferred, SubsystemSpec, derived,
};
use nvmeof_wire::Nqn;
use nvmeof_wire::log::ana::AnaState;

pub use authentication::{ReadKey, UnreadKey};
pub use configured_stores::ConfiguredStore;
pub use control::ControlConfig;
pub use cores::Cores;
pub use cores::MOST_REACTORS;
pub use error::ConfigError;
pub use ha::{HaConfig, HaGroupConfig};
pub use host::HostKey;
pub use key_file::CREDENTIAL;
pub use metrics::MetricsConfig;
pub use names::on_unusual_names;
use provider::ValueError;
pub use provider::{Choice, ProviderName};
use raw::{RawConfig, RawNamespace, RawSubsystem};
pub use relative::{RELATIVE, is_relative};
pub use shm::ShmSettings;
pub use storage::Sqpoll;
use toml::Spanned;
use traddr::RawPort;
pub use until::utc;

/// A configuration with valid values. Files, devices and addresses that it names may not exist.
#[derive(Clone, Debug)]
pub struct Config {
    origin: Origin,
    raw: RawConfig,
    /// Providers of each port.
    choices: Vec<Choice>,
    ceph: CephAccess,
    ha: Option<HaConfig>,
    shm: ShmSettings,
    control: ControlConfig,
    metrics: MetricsConfig,
    /// NQNs that do not have the form that the specification requires.
    unusual_names: BTreeSet<Nqn>,
}

/// Where a configuration came from.
#[derive(Clone, Debug)]
enum Origin {
    File {
        path: PathBuf,
        text: String,
        /// The file with its settings, if that is another file.
        settings: Option<SettingsFile>,
    },
    CommandLine,
}

/// The tables with settings of the target itself, not of what it serves.
pub const SETTINGS: [&str; 10] = [
    "limits", "reactor", "storage", "ceph", "ha", "iwarp", "shm", "unix", "control", "metrics",
];

/// The file with the [`SETTINGS`] of a configuration.
#[derive(Clone, Debug)]
pub struct SettingsFile {
    /// Path of the file.
    pub path: PathBuf,
    /// Content of the file.
    pub text: String,
}

/// Settings of the reactors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReactorSettings {
    /// Their CPUs.
    pub cores: Cores,
    /// How a reactor polls before it sleeps.
    pub polling: PollingConfig,
    /// How long commands in flight may take to complete when the target stops.
    pub drain: Duration,
    /// Bytes of buffer memory of each reactor.
    pub buffer_memory: u64,
    /// The kernel threads that take I/O operations from reactors; `None`: there are none.
    pub sqpoll: Option<Sqpoll>,
    /// Whether buffers use hugepages if some are free.
    pub hugepages: bool,
    /// Most receives that the queue pairs of one device share, if the device supports a shared
    /// receive queue; 0: each queue pair has its own.
    pub shared_receives: u32,
}

/// The port that NVMe over RDMA has by convention.
pub const DEFAULT_PORT: u16 = 4420;

impl Config {
    /// Reads a file and checks every value in it.
    ///
    /// # Errors
    /// [`ConfigError`] names file, line and key.
    pub fn read(path: &Path) -> Result<Self, ConfigError> {
        let text = std::fs::read_to_string(path);
        let text = text.map_err(|error| ConfigError::unreadable(path, &error))?;
        Self::parse(path, text)
    }

    /// Checks `text`, which is the content of the file `path`.
    ///
    /// # Errors
    /// [`ConfigError`] names file, line and key.
    pub fn parse(path: &Path, text: String) -> Result<Self, ConfigError> {
        Self::parse_with(path, text, None)
    }

    /// As [`parse`](Self::parse), but errors in settings name the file that they come from.
    ///
    /// # Errors
    /// [`ConfigError`] names file, line and key.
    pub fn parse_with(
        path: &Path,
        text: String,
        settings: Option<SettingsFile>,
    ) -> Result<Self, ConfigError> {
        let raw = form::read(path, &text)?;
        let path = path.to_path_buf();
        let origin = Origin::File {
            path,
            text,
            settings,
        };
        Self::checked(origin, raw)
    }

    /// One subsystem that every host may connect to, at one address, over providers of these
    /// names; no name means `auto`.
    ///
    /// # Errors
    /// [`ConfigError`] names the option.
    pub fn of_namespaces(
        namespaces: &[String],
        listen: Address,
        providers: &[String],
        nqn: Option<String>,
    ) -> Result<Self, ConfigError> {
        let nqn = nqn.unwrap_or_else(|| derived_nqn(listen));
        let raw = RawConfig::of_namespaces(namespaces, listen, providers, &nqn);
        Self::checked(Origin::CommandLine, raw)
    }

    fn checked(origin: Origin, raw: RawConfig) -> Result<Self, ConfigError> {
        let mut this = Self {
            origin,
            raw,
            choices: Vec::new(),
            ceph: CephAccess::default(),
            ha: None,
            shm: ShmSettings::default(),
            control: ControlConfig::default(),
            metrics: MetricsConfig::default(),
            unusual_names: BTreeSet::new(),
        };
        let mut errors = this.check();
        match this.checked_model() {
            Ok(model) => this.unusual_names = model.unusual_names(),
            Err(error) => errors.push(error),
        }
        for (port, raw) in this.raw.port.iter().map(Spanned::get_ref).enumerate() {
            match raw.choice() {
                Ok(choice) => this.choices.push(choice),
                Err(wrong) => errors.push(this.provider_error_at(port, wrong.at, &wrong.what)),
            }
        }
        match this.raw.ceph.get_ref().to_access() {
            Ok(access) => this.ceph = access,
            Err(wrong) => errors.push(this.wrong(&wrong)),
        }
        match this.raw.ha.as_ref().map(|ha| ha.get_ref().to_config()) {
            Some(Ok(ha)) => this.ha = Some(ha),
            Some(Err(all)) => errors.extend(all.iter().map(|wrong| this.wrong(wrong))),
            None => {}
        }
        match this.raw.shm.get_ref().to_settings() {
            Ok(shm) => this.shm = shm,
            Err(wrong) => errors.push(this.wrong(&wrong)),
        }
        match this.raw.metrics.get_ref().to_config() {
            Ok(metrics) => this.metrics = metrics,
            Err(wrong) => errors.push(this.wrong(&wrong)),
        }
        // A target configured on the command line has no control socket.
        if let Origin::File { .. } = this.origin {
            match this.raw.control.get_ref().to_config() {
                Ok(control) => this.control = control,
                Err(wrong) => errors.push(this.wrong(&wrong)),
            }
        }
        errors.extend(this.ha_namespace_errors());
        match ConfigError::joined(errors) {
            None => Ok(this),
            Some(error) => Err(error),
        }
    }

    /// A model whose namespaces have one block each: sizes are not known yet, and everything
    /// else can be checked before a file is opened.
    fn checked_model(&self) -> Result<Model, ConfigError> {
        let subsystems = self.subsystem_specs(|_| ())?;
        let ports: Vec<_> = self.addresses().into_iter().map(without_carriers).collect();
        self.build(&ports, &[], &subsystems)
    }

    /// Errors in values that can be checked without a model.
    fn check(&self) -> Vec<ConfigError> {
        let mut errors = Vec::new();
        if self.raw.port.is_empty() {
            let what = "port: at least one [[port]] is required, for example with \
                        traddr = \"127.0.0.1\"";
            errors.push(self.error_at(None, what));
        }
        if let Err((key, what)) = self.raw.limits.get_ref().check() {
            errors.push(self.table_error("limits", key, &what));
        }
        for port in self.raw.port.iter().map(Spanned::get_ref) {
            let wrong = [port.check_service(), port.check_address()];
            let wrong = wrong.into_iter().filter_map(Result::err);
            errors.extend(wrong.map(|wrong| self.wrong(&wrong)));
        }
        errors.extend(self.host_errors());
        let unix = self.raw.unix.get_ref().check().err();
        errors.extend(unix.map(|wrong| self.wrong(&wrong)));
        let sqpoll = self.raw.storage.get_ref().sqpoll().err();
        errors.extend(sqpoll.map(|wrong| self.wrong(&wrong)));
        // Each begins with its key.
        let settings = self.reactor_setting_errors().into_iter();
        errors.extend(settings.map(|what| self.error_at(self.location_named(&what), &what)));
        errors
    }

    /// Errors in values of `[[host]]`. Files with keys are not read.
    fn host_errors(&self) -> Vec<ConfigError> {
        let mut errors = Vec::new();
        let mut names = BTreeSet::new();
        for host in self.hosts() {
            errors.extend(host.check().iter().map(|wrong| self.wrong(wrong)));
            let (nqn, at) = (host.nqn.get_ref(), host.nqn.span().start);
            if !names.insert(nqn) {
                let what = format!("nqn = {nqn:?}: another [[host]] has this NQN; remove one");
                errors.push(self.error_at(Some(at), &what));
            }
        }
        errors
    }

    fn wrong(&self, wrong: &ValueError) -> ConfigError {
        self.error_at(wrong.at, &wrong.what)
    }

    /// The addresses to listen on, in order.
    #[must_use]
    pub fn addresses(&self) -> Vec<Address> {
        let ports = self.raw.port.iter().map(Spanned::get_ref);
        ports.map(RawPort::address).collect()
    }

    /// The same ports, in order, with their port IDs, ANA groups and subsystems. The ANA groups
    /// `standby` are inaccessible.
    fn complete(&self, ports: &[PortSpec], standby: &[u32]) -> Vec<PortSpec> {
        let raw = self.raw.port.iter().map(Spanned::get_ref);
        let both = ports.iter().cloned().zip(raw);
        both.map(|(spec, raw)| {
            let mut spec = raw.complete(spec);
            spec.ana_groups.retain(|group| !standby.contains(&group.id));
            spec.ana_groups.extend(standby.iter().map(|id| AnaGroup {
                id: *id,
                state: AnaState::INACCESSIBLE,
            }));
            spec
        })
        .collect()
    }

    /// Whether software iWARP sends large data without a copy.
    #[must_use]
    pub fn zero_copy_sends(&self) -> bool {
        self.raw.iwarp.get_ref().zero_copy_sends()
    }

    /// Permissions of Unix sockets.
    #[must_use]
    pub fn socket_mode(&self) -> u32 {
        self.raw.unix.get_ref().mode()
    }

    /// The configured providers of each port, in order.
    #[must_use]
    pub fn choices(&self) -> &[Choice] {
        &self.choices
    }

    /// How the Ceph cluster of RBD images is reached.
    #[must_use]
    pub fn ceph(&self) -> &CephAccess {
        &self.ceph
    }

    /// High availability; `None`: this target serves alone.
    #[must_use]
    pub fn ha(&self) -> Option<&HaConfig> {
        self.ha.as_ref()
    }

    /// How hosts on this machine connect over shared memory.
    #[must_use]
    pub fn shm(&self) -> &ShmSettings {
        &self.shm
    }

    /// Control socket and state file. There are none if the configuration was given on the
    /// command line.
    #[must_use]
    pub fn control(&self) -> &ControlConfig {
        &self.control
    }

    /// The listener for metrics.
    #[must_use]
    pub fn metrics(&self) -> &MetricsConfig {
        &self.metrics
    }

    /// Limits of the target.
    #[must_use]
    pub fn limits(&self) -> Limits {
        let threads = self.reactor_settings().cores.count();
        self.raw.limits.get_ref().to_limits(threads)
    }

    /// Settings of the reactors.
    #[must_use]
    pub fn reactor_settings(&self) -> ReactorSettings {
        ReactorSettings {
            // Errors were reported when the configuration was checked.
            sqpoll: self.raw.storage.get_ref().sqpoll().unwrap_or_default(),
            ..self.raw.reactor.get_ref().to_reactor_settings()
        }
    }

    /// The file it was read from; `None` when it was given on the command line.
    #[must_use]
    pub fn path(&self) -> Option<&Path> {
        match &self.origin {
            Origin::File { path, .. } => Some(path),
            Origin::CommandLine => None,
        }
    }

    /// Whether it was given on the command line, without a file.
    #[must_use]
    pub fn is_from_command_line(&self) -> bool {
        matches!(self.origin, Origin::CommandLine)
    }

    /// NQNs in it that do not have the form that the specification requires.
    #[must_use]
    pub fn unusual_names(&self) -> &BTreeSet<Nqn> {
        &self.unusual_names
    }

    /// NQNs of the subsystems, in order.
    pub fn subsystems(&self) -> impl Iterator<Item = &str> {
        let all = self.raw.subsystem.iter().map(Spanned::get_ref);
        all.map(|subsystem| subsystem.nqn.get_ref().as_str())
    }

    /// An error about the address of a port.
    #[must_use]
    pub fn port_error(&self, port: usize, what: &str) -> ConfigError {
        let port = self.raw.port.get(port).map(Spanned::get_ref);
        let at = port.map(|port| port.traddr.span().start);
        let key = self.called("traddr", "--listen");
        self.error_at(at, &format!("{key}: {what}"))
    }

    /// An error about the providers of a port.
    #[must_use]
    pub fn provider_error(&self, port: usize, what: &str) -> ConfigError {
        self.provider_error_at(port, None, what)
    }

    fn provider_error_at(&self, port: usize, at: Option<usize>, what: &str) -> ConfigError {
        let port = self.raw.port.get(port).map(Spanned::get_ref);
        // Without the key, the address selected the provider.
        let value = port.map(|port| match &port.provider {
            Some(provider) => provider.span().start,
            None => port.traddr.span().start,
        });
        let key = self.called("provider", "--provider");
        self.error_at(at.or(value), &format!("{key}: {what}"))
    }

    /// An error about a limit of the target.
    #[must_use]
    pub fn limits_error(&self, key: &str, what: &str) -> ConfigError {
        self.table_error("limits", key, what)
    }

    /// An error about `key` of the table `table`.
    #[must_use]
    pub fn table_error(&self, table: &str, key: &str, what: &str) -> ConfigError {
        let at = self.location_in(table, key);
        self.error_at(at, &format!("{table}.{key}: {what}"))
    }

    /// Position in the text of the key that `what` begins with, or of its table.
    fn location_named(&self, what: &str) -> Option<usize> {
        let (path, _) = what.split_once(':')?;
        let (table, key) = path.split_once('.')?;
        self.location_in(table, key)
    }

    fn location_in(&self, table: &str, key: &str) -> Option<usize> {
        match &self.origin {
            Origin::File { text, .. } => locations::of(text, table, key),
            Origin::CommandLine => None,
        }
    }

    /// An error about the CPUs of the reactors.
    #[must_use]
    pub fn cores_error(&self, what: &str) -> ConfigError {
        self.table_error("reactor", "cores", what)
    }

    /// The name of a value where it was given: its key, or its command line option.
    fn called(&self, key: &'static str, option: &'static str) -> &'static str {
        match self.origin {
            Origin::File { .. } => key,
            Origin::CommandLine => option,
        }
    }

    fn reactor_setting_errors(&self) -> Vec<String> {
        let settings = self.reactor_settings();
        let buffer_memory = raw::MIN_BUFFER_MEMORY..=raw::MAX_BUFFER_MEMORY;
        let receives = settings.shared_receives;
        let is_good = [
            (
                buffer_memory.contains(&settings.buffer_memory),
                "reactor.buffer_memory: must be 8M to 64G",
            ),
            (
                settings.polling.longest <= Duration::from_secs(1),
                "reactor.spin_us: must be 0 to 1000000",
            ),
            (
                settings.drain <= Duration::from_secs(600),
                "reactor.drain_s: must be 0 to 600",
            ),
            (
                receives == 0 || raw::SHARED_RECEIVES.contains(&receives),
                "reactor.shared_receives: must be 64 to 65536, or 0 for none",
            ),
        ];
        let cores = self.raw.reactor.get_ref().cores().err();
        let others = is_good.iter().filter(|(is_good, _)| !is_good);
        cores
            .into_iter()
            .chain(others.map(|(_, what)| (*what).to_owned()))
            .collect()
    }

    /// The specifications of the subsystems for the model. `fill_in` completes each namespace
    /// that is enabled with the properties of its backing store, in order.
    fn subsystem_specs(
        &self,
        mut fill_in: impl FnMut(&mut NamespaceSpec),
    ) -> Result<Vec<SubsystemSpec>, ConfigError> {
        let mut specs = Vec::new();
        for subsystem in &self.raw.subsystem {
            let at = subsystem.span().start;
            let subsystem = subsystem.get_ref();
            if !subsystem.has_host_access() {
                let what = "allowed_hosts: no host could connect; list hosts, or set \
                            allow_any_host = true; [] allows no host";
                return Err(self.error_at(Some(at), what));
            }
            let mut namespaces = Vec::new();
            for namespace in &subsystem.namespace {
                let mut spec = self.namespace_spec(namespace.get_ref())?;
                if namespace.get_ref().enabled {
                    fill_in(&mut spec);
                }
                namespaces.push(spec);
            }
            specs.push(subsystem.to_spec(namespaces));
        }
        Ok(specs)
    }

    fn namespace_spec(&self, raw: &RawNamespace) -> Result<NamespaceSpec, ConfigError> {
        Ok(NamespaceSpec {
            nsid: *raw.nsid.get_ref(),
            blocks: 1,
            block_size: raw.block_size.as_ref().map_or(512, |size| *size.get_ref()),
            uuid: self.identifier("uuid", raw.uuid.as_ref())?,
            nguid: self.identifier("nguid", raw.nguid.as_ref())?,
            eui64: self.identifier("eui64", raw.eui64.as_ref())?,
            readonly: *raw.readonly.get_ref(),
            state: if raw.enabled {
                NamespaceState::Ready
            } else {
                NamespaceState::Disabled
            },
            store: 0,
            storage: raw.path.get_ref().clone(),
            deallocate: false,
            volatile_cache: false,
            preferred: Preferred::default(),
            ana_group: raw.ana_group(),
            hosts: raw.hosts(),
        })
    }

    fn identifier<const N: usize>(
        &self,
        key: &str,
        given: Option<&Spanned<String>>,
    ) -> Result<Option<[u8; N]>, ConfigError> {
        let Some(given) = given else {
            return Ok(None);
        };
        let wrong = |what: &str| {
            let what = format!("{key} = {:?}: {what}", given.get_ref());
            self.error_at(Some(given.span().start), &what)
        };
        let digits = || wrong(&format!("must be {} hexadecimal digits", N * 2));
        let parsed = raw::hex::<N>(given.get_ref()).ok_or_else(digits)?;
        // All zero means "none" in NVMe; a namespace has a UUID at least.
        if parsed == [0; N] && key != "nguid" {
            return Err(wrong("all zero means none; omit this key"));
        }
        Ok(Some(parsed))
    }

    /// The model of these ports and subsystems.
    fn build(
        &self,
        ports: &[PortSpec],
        standby: &[u32],
        subsystems: &[SubsystemSpec],
    ) -> Result<Model, ConfigError> {
        let discovery = self.raw.discovery.to_spec(&self.raw.referral);
        let model = Model::build(self.limits(), &self.complete(ports, standby), subsystems);
        let bounds = self.raw.port.iter().map(|port| port.get_ref().bounds());
        let model = model.and_then(|model| model.with_discovery(&discovery));
        let model = model.and_then(|model| model.with_port_bounds(bounds));
        model.map_err(|error| self.of_model(&error))
    }

    fn of_model(&self, error: &ModelError) -> ConfigError {
        self.error_at(self.location(error), &error.to_string())
    }

    /// Position in the text of the value that the model refused, or of its table.
    fn location(&self, error: &ModelError) -> Option<usize> {
        let at = |spanned: Option<&Spanned<RawSubsystem>>| spanned.map(|it| it.span().start);
        match error.location {
            Location::Limits => self.location_in("limits", error.key),
            Location::Discovery => self.raw.discovery.location(),
            Location::Referral(referral) => {
                let referral = self.raw.referral.get(referral)?;
                referral.get_ref().location(error.key)
            }
            Location::Port(port) => {
                let port = self.raw.port.get(port)?.get_ref();
                let key = port.location(error.key, &error.value);
                key.or_else(|| Some(port.traddr.span().start))
            }
            Location::Subsystem(subsystem) => {
                let subsystem = self.raw.subsystem.get(subsystem);
                let key = subsystem.and_then(|it| it.get_ref().location(error.key, &error.value));
                key.or_else(|| at(subsystem))
            }
            Location::Namespace {
                subsystem,
                namespace,
            } => {
                let subsystem = self.raw.subsystem.get(subsystem)?;
                let namespace = subsystem.get_ref().namespace.get(namespace)?;
                let key = namespace.get_ref().location(error.key, &error.value);
                key.or_else(|| Some(namespace.span().start))
            }
        }
    }

    /// An error at byte `at` of the text.
    fn error_at(&self, at: Option<usize>, what: &str) -> ConfigError {
        match &self.origin {
            Origin::File {
                path,
                text,
                settings,
            } => {
                let error = ConfigError::at(path, text, at, what);
                match settings {
                    Some(settings) => error.of_settings(settings),
                    None => error,
                }
            }
            Origin::CommandLine => ConfigError::command_line(what),
        }
    }
}

/// A port of which only the address is known yet.
fn without_carriers(address: Address) -> PortSpec {
    port_spec(address, Vec::new())
}

/// A port of the model.
#[must_use]
pub fn port_spec(address: Address, carriers: Vec<Carrier>) -> PortSpec {
    let PortAddress { traddr, trsvcid } = nvmeof_target_address::port_address(address);
    PortSpec::new(traddr, trsvcid, carriers)
}

/// An NQN for the subsystem of this machine at that address: the same at every start.
fn derived_nqn(listen: Address) -> String {
    let machine = std::fs::read_to_string("/etc/machine-id")
        .or_else(|_| std::fs::read_to_string("/proc/sys/kernel/hostname"))
        .unwrap_or_default();
    let name = format!("target {listen} {}", machine.trim());
    let uuid = uuid::Uuid::from_bytes(derived(&name));
    format!("{}{uuid}", nvmeof_wire::nqn::UUID_PREFIX)
}
