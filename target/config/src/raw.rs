//! The file as it is written: names, types and defaults of its keys.

use std::ops::RangeInclusive;
use std::time::Duration;

use nvmeof_rdma::Address;
use nvmeof_target_core::{DEFAULT_ANA_GROUP, NamespaceSpec, SubsystemSpec};
use serde::Deserialize;
use toml::Spanned;

use super::ReactorSettings;
use super::ceph::RawCeph;
use super::control::RawControl;
use super::cores::{Cores, RawCores};
use super::ha::RawHa;
use super::host::RawHost;
use super::iwarp::RawIwarp;
use super::limits::RawLimits;
use super::metrics::RawMetrics;
use super::polling::Preset;
use super::referral::{RawDiscovery, RawReferral};
use super::shm::RawShm;
use super::size::Size;
use super::storage::RawStorage;
use super::traddr::{RawPort, RawUnix};

pub(crate) const MIN_BUFFER_MEMORY: u64 = 8 << 20;
pub(crate) const MAX_BUFFER_MEMORY: u64 = 64 << 30;
const DEFAULT_BUFFER_MEMORY: u64 = 64 << 20;
/// With fewer, hosts would often wait for each other.
pub(crate) const SHARED_RECEIVES: RangeInclusive<u32> = 64..=65_536;
const DEFAULT_SHARED_RECEIVES: u32 = 4096;

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RawConfig {
    #[serde(default = "nowhere")]
    pub(crate) limits: Spanned<RawLimits>,
    #[serde(default = "nowhere")]
    pub(crate) reactor: Spanned<RawReactor>,
    #[serde(default = "nowhere")]
    pub(crate) storage: Spanned<RawStorage>,
    #[serde(default = "nowhere")]
    pub(crate) ceph: Spanned<RawCeph>,
    pub(crate) ha: Option<Spanned<RawHa>>,
    #[serde(default = "nowhere")]
    pub(crate) iwarp: Spanned<RawIwarp>,
    #[serde(default = "nowhere")]
    pub(crate) shm: Spanned<RawShm>,
    #[serde(default = "nowhere")]
    pub(crate) unix: Spanned<RawUnix>,
    #[serde(default = "nowhere")]
    pub(crate) control: Spanned<RawControl>,
    #[serde(default = "nowhere")]
    pub(crate) metrics: Spanned<RawMetrics>,
    #[serde(default)]
    pub(crate) discovery: RawDiscovery,
    #[serde(default)]
    pub(crate) referral: Vec<Spanned<RawReferral>>,
    #[serde(default)]
    pub(crate) port: Vec<Spanned<RawPort>>,
    #[serde(default)]
    pub(crate) host: Vec<Spanned<RawHost>>,
    #[serde(default)]
    pub(crate) subsystem: Vec<Spanned<RawSubsystem>>,
}

/// Reactors (the threads that serve hosts) and their memory.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RawReactor {
    /// CPUs of the reactors, one reactor on each: `"auto"`, `[0, 2]` or `"0-3,8"`. If left out,
    /// the kernel schedules them on any CPU.
    cores: Option<Spanned<RawCores>>,
    /// Number of reactors, 1 to 256. If left out: one, or one for each CPU of `cores`.
    count: Option<usize>,
    /// How a reactor polls before it sleeps: `"adaptive"`, `"latency"` or `"efficiency"`.
    ///
    /// Default: `"adaptive"`
    #[serde(default)]
    polling: Preset,
    /// Longest time that a reactor polls before it sleeps, in microseconds: 0 to 1000000. If
    /// left out, it depends on `polling`.
    spin_us: Option<u32>,
    /// Seconds for commands in flight to complete when the target stops: 0 to 600. Closing
    /// connections and the last flush of the backing stores may take as long each; the target
    /// requests that time from systemd.
    ///
    /// Default: `5`
    drain_s: Option<u32>,
    /// Memory for buffers of each reactor: 8M to 64G.
    ///
    /// Default: `"64M"`
    buffer_memory: Option<Size>,
    /// Whether buffers use hugepages if some are free.
    ///
    /// Default: `false`
    hugepages: Option<bool>,
    /// Most receives that the I/O queues of one InfiniBand or RoCE device share: 64 to 65536, or
    /// 0 for none.
    ///
    /// Default: `4096`
    shared_receives: Option<u32>,
}

/// A subsystem with its namespaces. Without one, hosts find nothing.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RawSubsystem {
    /// NQN of the subsystem, up to 223 bytes.
    pub(crate) nqn: Spanned<String>,
    /// Serial number, up to 20 ASCII characters. If left out, derived from the NQN.
    serial: Option<Spanned<String>>,
    /// Model number, up to 40 ASCII characters.
    ///
    /// Default: `"nvmeof"`
    model: Option<Spanned<String>>,
    /// Lowest controller ID: 1 to 65519. Targets that serve one subsystem together need
    /// separate ranges.
    ///
    /// Default: `1`
    cntlid_min: Option<Spanned<u32>>,
    /// Highest controller ID: `cntlid_min` to 65519.
    ///
    /// Default: `65519`
    cntlid_max: Option<Spanned<u32>>,
    /// I/O queues of one controller: 1 to `limits.io_queues`, which is the default.
    io_queues: Option<Spanned<u32>>,
    /// Firmware revision in Identify Controller, up to 8 ASCII characters. If left out, the
    /// version of the target.
    firmware_revision: Option<Spanned<String>>,
    /// IEEE OUI of the vendor in Identify Controller, six hexadecimal digits such as
    /// `00-a0-b8`. If left out, none is reported.
    ieee_oui: Option<Spanned<String>>,
    /// Whether every host may connect.
    ///
    /// Default: `false`
    #[serde(default = "nowhere")]
    allow_any_host: Spanned<bool>,
    /// NQNs of the hosts that may connect; an empty list allows no host. Required unless
    /// `allow_any_host` is true.
    allowed_hosts: Option<Vec<Spanned<String>>>,
    /// Whether only hosts with a `[[host]]` may connect, which have to prove that they have their
    /// key. Such hosts are authenticated in any case.
    ///
    /// Default: `false`
    #[serde(default)]
    pub(crate) require_authentication: bool,
    #[serde(default)]
    pub(crate) namespace: Vec<Spanned<RawNamespace>>,
}

/// A namespace of the subsystem.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RawNamespace {
    /// Namespace identifier (NSID), 1 to 65536, unique in the subsystem.
    pub(crate) nsid: Spanned<u32>,
    /// Backing store: a file, a block device, `rbd:POOL[/NAMESPACE]/IMAGE[@SNAPSHOT]`, `ram:SIZE`
    /// or `null:SIZE`. A relative path is resolved against the working directory of the target.
    pub(crate) path: Spanned<String>,
    /// Bytes of a logical block: 512, 1024, 2048 or 4096. If left out, that of the device, or
    /// 512.
    pub(crate) block_size: Option<Spanned<u32>>,
    /// UUID, 32 hexadecimal digits. If left out, derived from the subsystem NQN and `nsid`.
    pub(crate) uuid: Option<Spanned<String>>,
    /// NGUID, 32 hexadecimal digits; zeroes mean none. If left out, derived in the same way.
    pub(crate) nguid: Option<Spanned<String>>,
    /// EUI-64, 16 hexadecimal digits. If left out, the namespace has none.
    pub(crate) eui64: Option<Spanned<String>>,
    /// Whether the namespace is read-only.
    ///
    /// Default: `false`
    #[serde(default = "nowhere")]
    pub(crate) readonly: Spanned<bool>,
    /// Whether the namespace is served. The backing store of a disabled one is not opened.
    ///
    /// Default: `true`
    #[serde(default = "yes")]
    pub(crate) enabled: bool,
    /// Whether to poll the device for completions instead of using interrupts (`IOPOLL`).
    ///
    /// Default: `false`
    #[serde(default = "nowhere")]
    pub(crate) iopoll: Spanned<bool>,
    /// ANA group: 1 to 128.
    ///
    /// Default: `1`
    ana_group: Option<Spanned<u32>>,
    /// NQNs of the hosts that can access the namespace. If left out, all that may connect.
    hosts: Option<Spanned<Vec<Spanned<String>>>>,
}

fn yes() -> bool {
    true
}

/// A default value, without a position in the text.
fn nowhere<T: Default>() -> Spanned<T> {
    Spanned::new(0..0, T::default())
}

impl RawConfig {
    pub(crate) fn of_namespaces(
        namespaces: &[String],
        listen: Address,
        providers: &[String],
        nqn: &str,
    ) -> Self {
        let spanned = |text: &str| Spanned::new(0..0, text.to_owned());
        let namespace = (1..)
            .zip(namespaces)
            .map(|(nsid, path)| RawNamespace {
                nsid: Spanned::new(0..0, nsid),
                path: spanned(path),
                block_size: None,
                uuid: None,
                nguid: None,
                eui64: None,
                readonly: nowhere(),
                enabled: true,
                iopoll: nowhere(),
                ana_group: None,
                hosts: None,
            })
            .map(|raw| Spanned::new(0..0, raw))
            .collect();
        let subsystem = RawSubsystem {
            nqn: spanned(nqn),
            serial: None,
            model: None,
            cntlid_min: None,
            cntlid_max: None,
            io_queues: None,
            firmware_revision: None,
            ieee_oui: None,
            allow_any_host: Spanned::new(0..0, true),
            allowed_hosts: None,
            require_authentication: false,
            namespace,
        };
        let port = RawPort::at(listen, providers);
        Self {
            limits: nowhere(),
            reactor: nowhere(),
            ceph: nowhere(),
            ha: None,
            storage: nowhere(),
            iwarp: nowhere(),
            shm: nowhere(),
            unix: nowhere(),
            control: nowhere(),
            metrics: nowhere(),
            discovery: RawDiscovery::default(),
            referral: Vec::new(),
            port: vec![Spanned::new(0..0, port)],
            host: Vec::new(),
            subsystem: vec![Spanned::new(0..0, subsystem)],
        }
    }
}

impl RawReactor {
    /// The CPUs of the reactors. The error names the key.
    pub(crate) fn cores(&self) -> Result<Cores, String> {
        let cores = self.cores.as_ref().map(Spanned::get_ref);
        RawCores::resolve(cores, self.count)
    }

    pub(crate) fn to_reactor_settings(&self) -> ReactorSettings {
        let longest = self.spin_us.map(|us| Duration::from_micros(us.into()));
        ReactorSettings {
            // Errors were reported when the configuration was checked.
            cores: self.cores().unwrap_or(Cores::Anywhere(1)),
            polling: self.polling.polling(longest),
            drain: Duration::from_secs(self.drain_s.unwrap_or(5).into()),
            buffer_memory: self
                .buffer_memory
                .map_or(DEFAULT_BUFFER_MEMORY, Size::all_bytes),
            sqpoll: None,
            hugepages: self.hugepages.unwrap_or(false),
            shared_receives: self.shared_receives.unwrap_or(DEFAULT_SHARED_RECEIVES),
        }
    }
}

impl RawSubsystem {
    pub(crate) fn to_spec(&self, namespaces: Vec<NamespaceSpec>) -> SubsystemSpec {
        let text = |spanned: &Option<Spanned<String>>| {
            spanned.as_ref().map(|spanned| spanned.get_ref().clone())
        };
        let number = |spanned: &Option<Spanned<u32>>| spanned.as_ref().map(|one| *one.get_ref());
        SubsystemSpec {
            nqn: self.nqn.get_ref().clone(),
            serial: text(&self.serial),
            model: text(&self.model),
            cntlid_min: number(&self.cntlid_min),
            cntlid_max: number(&self.cntlid_max),
            io_queues: number(&self.io_queues),
            firmware_revision: text(&self.firmware_revision),
            ieee_oui: text(&self.ieee_oui),
            allow_any_host: *self.allow_any_host.get_ref(),
            allowed_hosts: self.hosts().map(|host| host.get_ref().clone()).collect(),
            namespaces,
        }
    }

    /// NQNs of the hosts that may connect.
    pub(crate) fn hosts(&self) -> impl Iterator<Item = &Spanned<String>> {
        self.allowed_hosts.iter().flatten()
    }

    /// Whether the hosts that may connect are configured. An empty list allows no host.
    pub(crate) fn has_host_access(&self) -> bool {
        *self.allow_any_host.get_ref() || self.allowed_hosts.is_some()
    }

    /// Where the value of `key` is in the text.
    pub(crate) fn location(&self, key: &str, value: &str) -> Option<usize> {
        let span = match key {
            "nqn" => self.nqn.span(),
            "serial" => self.serial.as_ref()?.span(),
            "model" => self.model.as_ref()?.span(),
            "cntlid_min" => self.cntlid_min.as_ref()?.span(),
            "cntlid_max" => self.cntlid_max.as_ref()?.span(),
            "io_queues" => self.io_queues.as_ref()?.span(),
            "firmware_revision" => self.firmware_revision.as_ref()?.span(),
            "ieee_oui" => self.ieee_oui.as_ref()?.span(),
            "allow_any_host" => self.allow_any_host.span(),
            "allowed_hosts" => {
                let mut hosts = self.hosts();
                hosts.find(|host| host.get_ref() == value)?.span()
            }
            _ => return None,
        };
        Some(span.start)
    }
}

impl RawNamespace {
    /// The ANA group.
    pub(crate) fn ana_group(&self) -> u32 {
        let given = self.ana_group.as_ref();
        given.map_or(DEFAULT_ANA_GROUP, |group| *group.get_ref())
    }

    /// NQNs of the hosts that can access it; `None`: all that may connect.
    pub(crate) fn hosts(&self) -> Option<Vec<String>> {
        let hosts = self.hosts.as_ref()?.get_ref().iter();
        Some(hosts.map(|host| host.get_ref().clone()).collect())
    }

    /// Where `value` of `key` is in the text.
    pub(crate) fn location(&self, key: &str, value: &str) -> Option<usize> {
        let span = match key {
            "nsid" => self.nsid.span(),
            "path" | "blocks" => self.path.span(),
            "block_size" => self.block_size.as_ref()?.span(),
            "uuid" => self.uuid.as_ref()?.span(),
            "nguid" => self.nguid.as_ref()?.span(),
            "eui64" => self.eui64.as_ref()?.span(),
            "ana_group" => self.ana_group.as_ref()?.span(),
            "hosts" => {
                let hosts = self.hosts.as_ref()?;
                let mut each = hosts.get_ref().iter();
                let one = each.find(|host| host.get_ref() == value);
                one.map_or(hosts.span(), Spanned::span)
            }
            _ => return None,
        };
        Some(span.start)
    }
}

/// `N` bytes from twice as many hexadecimal digits, dashes left out.
pub(crate) fn hex<const N: usize>(text: &str) -> Option<[u8; N]> {
    let digits: Vec<u8> = text
        .chars()
        .filter(|c| *c != '-')
        .map(|c| c.to_digit(16).and_then(|digit| u8::try_from(digit).ok()))
        .collect::<Option<_>>()?;
    if digits.len() != N * 2 {
        return None;
    }
    let mut bytes = [0; N];
    for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
        *byte = pair.iter().fold(0, |byte, digit| (byte << 4) | digit);
    }
    Some(bytes)
}
