//! Building a [`Model`] from a description, with all checks.

use std::sync::Arc;

use nvmeof_wire::{Ascii, Nqn};

use super::{AnaGroup, Carrier, DEFAULT_ANA_GROUP, Discovery, Model, ModelError, Namespace};
use super::{Location, NamespaceState, Port, Preferred, Subsystem, Traddr};
use super::{ana, cntlids, derive, identity};
use crate::Limits;

/// Describes a port.
#[derive(Clone, Debug)]
pub struct PortSpec {
    /// Address.
    pub traddr: Traddr,
    /// TCP or RDMA CM port; 0 for an intra-host port.
    pub trsvcid: u16,
    /// Providers of the port, in the order of their entries in the discovery log.
    pub carriers: Vec<Carrier>,
    /// Port identifier in discovery log entries, from 1; by default the position of the
    /// port in the list.
    pub id: Option<u16>,
    /// States of ANA groups. Groups that are not listed are optimized.
    pub ana_groups: Vec<AnaGroup>,
    /// NQNs of the subsystems that the port offers; by default all.
    pub subsystems: Option<Vec<String>>,
}

impl PortSpec {
    /// A port that offers all subsystems, with all groups optimized.
    #[must_use]
    pub fn new(traddr: impl Into<Traddr>, trsvcid: u16, carriers: Vec<Carrier>) -> Self {
        Self {
            traddr: traddr.into(),
            trsvcid,
            carriers,
            id: None,
            ana_groups: Vec::new(),
            subsystems: None,
        }
    }
}

/// Describes a subsystem.
#[derive(Clone, Debug, Default)]
pub struct SubsystemSpec {
    /// Its NQN.
    pub nqn: String,
    /// Serial number, up to 20 ASCII characters; derived when not given.
    pub serial: Option<String>,
    /// Model number, up to 40 ASCII characters.
    pub model: Option<String>,
    /// Whether every host may connect.
    pub allow_any_host: bool,
    /// Hosts that may connect; no host may connect if neither is given.
    pub allowed_hosts: Vec<String>,
    /// Lowest identifier of its controllers, 1 to 65519; 1 when not given.
    pub cntlid_min: Option<u32>,
    /// Highest identifier of its controllers, 1 to 65519; 65519 when not given.
    pub cntlid_max: Option<u32>,
    /// I/O queues of one controller, 1 to the limit, which is the default.
    pub io_queues: Option<u32>,
    /// Firmware revision, up to 8 ASCII characters; by default the version of the target.
    pub firmware_revision: Option<String>,
    /// The vendor's identifier (OUI) in hexadecimal, `00-a0-b8`; zeroes when not given.
    pub ieee_oui: Option<String>,
    /// Its namespaces.
    pub namespaces: Vec<NamespaceSpec>,
}

/// Describes a namespace.
#[derive(Clone, Debug)]
pub struct NamespaceSpec {
    /// Its NSID, from 1.
    pub nsid: u32,
    /// Size in logical blocks.
    pub blocks: u64,
    /// Bytes of a logical block: 512, 1024, 2048 or 4096.
    pub block_size: u32,
    /// Derived when not given.
    pub uuid: Option<[u8; 16]>,
    /// Derived when not given; all zero for none.
    pub nguid: Option<[u8; 16]>,
    /// Not reported when not given.
    pub eui64: Option<[u8; 8]>,
    /// Whether writes are refused.
    pub readonly: bool,
    /// Whether hosts can use it. A disabled one has no backing store.
    pub state: NamespaceState,
    /// The number by which the engine knows the backing store.
    pub store: u32,
    /// The path of the backing store, for descriptions of differences.
    pub storage: String,
    /// Whether the backing store can deallocate.
    pub deallocate: bool,
    /// Whether written data may be lost on power loss until they are flushed.
    pub volatile_cache: bool,
    /// Preferred sizes of writes and deallocations.
    pub preferred: Preferred,
    /// Its ANA group, 1 to 128.
    pub ana_group: u32,
    /// The hosts that can access it; `None`: all that may connect.
    pub hosts: Option<Vec<String>>,
}

impl Default for NamespaceSpec {
    /// A writable namespace with derived identifiers. NSID and size must be set.
    fn default() -> Self {
        Self {
            nsid: 0,
            blocks: 0,
            block_size: 512,
            uuid: None,
            nguid: None,
            eui64: None,
            readonly: false,
            state: NamespaceState::Ready,
            store: 0,
            storage: String::new(),
            deallocate: false,
            volatile_cache: false,
            preferred: Preferred::default(),
            ana_group: DEFAULT_ANA_GROUP,
            hosts: None,
        }
    }
}

/// NVM 1.0, figure 97: a controller that has no NGUID for a namespace clears the field.
pub const NO_NGUID: [u8; 16] = [0; 16];

/// Highest NSID. It keeps the lists short that hosts read from NSID 1 on.
const MAX_NSID: u32 = 1 << 16;

impl Model {
    /// Builds a model from a description.
    ///
    /// # Errors
    /// [`ModelError`] for the first invalid value.
    pub fn build(
        limits: Limits,
        ports: &[PortSpec],
        subsystems: &[SubsystemSpec],
    ) -> Result<Self, ModelError> {
        check_limits(&limits)?;
        let ports = ports
            .iter()
            .enumerate()
            .map(|(at, spec)| port(at, spec, ports, &limits))
            .collect::<Result<Vec<_>, _>>()?;
        check_ids(&ports)?;
        let subsystems = subsystems
            .iter()
            .enumerate()
            .map(|(at, spec)| subsystem(at, spec, subsystems, &limits).map(Arc::new))
            .collect::<Result<Vec<_>, _>>()?;
        check_port_subsystems(&ports, &subsystems)?;
        Ok(Self {
            limits,
            ports: ports.into(),
            reserved_ids: cntlids::kept(subsystems.iter().map(|one| &**one)).into(),
            subsystems,
            discovery: Discovery::default(),
            authentication: Arc::default(),
        })
    }
}

fn between(key: &'static str, value: u32, low: u32, high: u32) -> Result<(), ModelError> {
    if (low..=high).contains(&value) {
        return Ok(());
    }
    let why = format!("must be {low} to {high}");
    Err(wrong(Location::Limits, key, value, &why))
}

fn check_limits(limits: &Limits) -> Result<(), ModelError> {
    check_counts(limits)?;
    check_transfers(limits)
}

/// Checks limits of numbers of objects.
fn check_counts(limits: &Limits) -> Result<(), ModelError> {
    let depth = limits.queue_depth.into();
    between("queue_depth", depth, 2, Limits::MAX_QUEUE_DEPTH.into())?;
    between("io_queues", limits.io_queues.into(), 1, 1024)?;
    between("controllers", limits.controllers.into(), 1, 4096)?;
    let discovery = limits.discovery_controllers.into();
    between("discovery_controllers", discovery, 1, 4096)?;
    between("unconnected", limits.unconnected.into(), 1, 4096)?;
    let host_controllers = limits.host_controllers.into();
    between("host_controllers", host_controllers, 1, 4096)?;
    let port_controllers = limits.port_controllers.into();
    between("port_controllers", port_controllers, 1, 4096)?;
    between("host_queues", limits.host_queues.into(), 1, u16::MAX.into())?;
    // At least one queue of the maximum depth.
    let commands = |key, most| between(key, most, depth, Limits::MAX_COMMANDS);
    commands("host_commands", limits.host_commands)?;
    between("host_memory", limits.host_memory.into(), 1, 100)?;
    let (connections, of_port) = (limits.port_connections, limits.port_commands);
    for most in [connections.alone, connections.beside_others] {
        between("port_connections", most, 2, Limits::MAX_CONNECTIONS)?;
    }
    for most in [of_port.alone, of_port.beside_others] {
        commands("port_commands", most)?;
    }
    between("port_memory", limits.port_memory.into(), 1, 100)?;
    let most = Limits::MAX_REGISTRANTS.into();
    between("registrants", limits.registrants.into(), 1, most)?;
    let quiesce = limits.quiesce_time_s;
    between("quiesce_time_s", quiesce, 0, Limits::MAX_QUIESCE_TIME_S)
}

/// Checks limits of data and descriptors.
fn check_transfers(limits: &Limits) -> Result<(), ModelError> {
    // Identify Controller, MDTS: "a value of 0h indicates that there is no
    // maximum", so a single page of 4096 bytes cannot be reported.
    between("max_transfer", limits.max_transfer, 8192, 16 << 20)?;
    between("in_capsule", limits.in_capsule, 0, 64 << 10)?;
    let descriptors = limits.max_descriptors.into();
    between(
        "max_descriptors",
        descriptors,
        1,
        Limits::DESCRIPTORS.into(),
    )?;
    if limits.in_capsule > Limits::LISTS_UP_TO && limits.max_descriptors > 1 {
        let why = format!(
            "more than {} bytes require max_descriptors = 1, because hosts with Linux 5.4 to 5.12 \
             corrupt what they write otherwise",
            Limits::LISTS_UP_TO
        );
        return Err(wrong(
            Location::Limits,
            "in_capsule",
            limits.in_capsule,
            &why,
        ));
    }
    // Identify Controller, MDTS: "a power of two (2^n) in units of the
    // minimum memory page size".
    if !limits.max_transfer.is_power_of_two() {
        return Err(wrong(
            Location::Limits,
            "max_transfer",
            limits.max_transfer,
            "must be a power of two",
        ));
    }
    // Identify Controller, IOCCSZ: "in 16 byte units".
    if !limits.in_capsule.is_multiple_of(16) {
        return Err(wrong(
            Location::Limits,
            "in_capsule",
            limits.in_capsule,
            "must be a multiple of 16",
        ));
    }
    Ok(())
}

fn port(at: usize, spec: &PortSpec, all: &[PortSpec], limits: &Limits) -> Result<Port, ModelError> {
    let key = |port: &PortSpec| (port.traddr.clone(), port.trsvcid);
    let bad = |why: &str| wrong(Location::Port(at), "traddr", &spec.traddr, why);
    let taken = all.iter().take(at).any(|other| key(other) == key(spec));
    match &spec.traddr {
        // Port 0 means any free port, so two of them differ.
        Traddr::Ip(_) | Traddr::Link(..) if spec.trsvcid != 0 && taken => {
            return Err(bad("another port has this traddr and trsvcid already"));
        }
        Traddr::Host(_) if taken => return Err(bad("another port has this traddr already")),
        Traddr::Host(name) if padded::<256>(Location::Port(at), "traddr", name).is_err() => {
            return Err(bad(
                "must be printable ASCII characters, as the discovery log requires",
            ));
        }
        Traddr::Ip(_) | Traddr::Link(..) | Traddr::Host(_) => {}
    }
    let id = match spec.id {
        Some(0) => return Err(wrong(Location::Port(at), "id", 0, "must be 1 to 65535")),
        Some(id) => id,
        None => u16::try_from(at + 1).map_err(|_| bad("too many ports"))?,
    };
    Ok(Port {
        id,
        traddr: spec.traddr.clone(),
        trsvcid: spec.trsvcid,
        carriers: spec.carriers.clone(),
        in_capsule: limits.in_capsule,
        queue_depth: limits.queue_depth,
        ana_groups: ana::groups(at, &spec.ana_groups)?,
        subsystems: subsystems_of(at, spec)?,
    })
}

/// The subsystems that a port offers.
fn subsystems_of(at: usize, spec: &PortSpec) -> Result<Option<Vec<Nqn>>, ModelError> {
    let Some(names) = &spec.subsystems else {
        return Ok(None);
    };
    if names.is_empty() {
        let why = "the list is empty; name subsystems, or omit this key for all";
        return Err(wrong(Location::Port(at), "subsystems", "none", why));
    }
    let names = names.iter();
    let names = names.map(|name| check_nqn(Location::Port(at), "subsystems", name));
    names.collect::<Result<_, _>>().map(Some)
}

/// Checks that the subsystems of ports exist.
fn check_port_subsystems(ports: &[Port], subsystems: &[Arc<Subsystem>]) -> Result<(), ModelError> {
    for (at, port) in ports.iter().enumerate() {
        let unknown = port.subsystems.iter().flatten().find(|nqn| {
            let mut known = subsystems.iter();
            !known.any(|subsystem| subsystem.nqn == **nqn)
        });
        if let Some(nqn) = unknown {
            let why = "no subsystem has this name; add it, or remove it from the list of the port";
            return Err(wrong(Location::Port(at), "subsystems", nqn, why));
        }
    }
    Ok(())
}

/// Base 2.1, 5.1.12.3.1, PORTID: "different NVM subsystem ports" have different
/// ones.
fn check_ids(ports: &[Port]) -> Result<(), ModelError> {
    for (at, port) in ports.iter().enumerate() {
        let mut before = ports.iter().take(at);
        if let Some(other) = before.position(|other| other.id == port.id) {
            let why = format!(
                "port {} has this id already; without an id, a port has its position in the file",
                other + 1
            );
            return Err(wrong(Location::Port(at), "id", port.id, &why));
        }
    }
    Ok(())
}

fn subsystem(
    at: usize,
    spec: &SubsystemSpec,
    all: &[SubsystemSpec],
    limits: &Limits,
) -> Result<Subsystem, ModelError> {
    let location = Location::Subsystem(at);
    let nqn = check_nqn(location, "nqn", &spec.nqn)?;
    if nqn.is_discovery() {
        return Err(wrong(
            location,
            "nqn",
            &spec.nqn,
            "this name is reserved for the discovery subsystem",
        ));
    }
    if all.iter().take(at).any(|other| other.nqn == spec.nqn) {
        return Err(wrong(
            location,
            "nqn",
            &spec.nqn,
            "another subsystem has this name already",
        ));
    }
    let serial = match &spec.serial {
        Some(serial) => padded(location, "serial", serial)?,
        None => Ascii::new(&derive::serial(&spec.nqn)),
    };
    let model_number = padded(location, "model", spec.model.as_deref().unwrap_or("nvmeof"))?;
    let mut namespaces = Vec::with_capacity(spec.namespaces.len());
    for (n, one) in spec.namespaces.iter().enumerate() {
        let location = Location::Namespace {
            subsystem: at,
            namespace: n,
        };
        namespaces.push(namespace(location, one, &spec.nqn, &namespaces)?);
    }
    namespaces.sort_by_key(|namespace| namespace.nsid);
    let is_active = |one: &Namespace| one.state.is_active();
    let (namespaces, disabled) = namespaces.into_iter().partition(is_active);
    Ok(Subsystem {
        nqn,
        serial,
        model_number,
        controller_ids: cntlids::checked(location, spec.cntlid_min, spec.cntlid_max)?,
        io_queues: identity::io_queues(location, spec, limits)?,
        firmware_revision: identity::firmware_revision(location, spec)?,
        ieee_oui: identity::ieee_oui(location, spec)?,
        allowed_hosts: allowed_hosts(location, spec)?,
        namespaces,
        disabled,
    })
}

fn allowed_hosts(location: Location, spec: &SubsystemSpec) -> Result<Option<Vec<Nqn>>, ModelError> {
    let hosts = spec
        .allowed_hosts
        .iter()
        .map(|host| check_nqn(location, "allowed_hosts", host))
        .collect::<Result<_, _>>()?;
    match (spec.allow_any_host, spec.allowed_hosts.is_empty()) {
        (true, true) => Ok(None),
        (true, false) => Err(wrong(
            location,
            "allow_any_host",
            true,
            "conflicts with allowed_hosts; set only one of them",
        )),
        // Neither is given: no host may connect until one is listed.
        (false, _) => Ok(Some(hosts)),
    }
}

fn namespace(
    location: Location,
    spec: &NamespaceSpec,
    nqn: &str,
    others: &[Namespace],
) -> Result<Namespace, ModelError> {
    let nsid = spec.nsid;
    if !(1..=MAX_NSID).contains(&nsid) {
        let why = format!("must be 1 to {MAX_NSID}");
        return Err(wrong(location, "nsid", nsid, &why));
    }
    let taken = "another namespace of this subsystem has the same value";
    if others.iter().any(|other| other.nsid == nsid) {
        return Err(wrong(location, "nsid", nsid, taken));
    }
    let block_shift = match spec.block_size {
        512 => 9,
        1024 => 10,
        2048 => 11,
        4096 => 12,
        other => {
            let why = "must be 512, 1024, 2048 or 4096";
            return Err(wrong(location, "block_size", other, why));
        }
    };
    let bytes = spec.blocks.checked_mul(u64::from(spec.block_size));
    let active = spec.state.is_active();
    let blocks = if active { spec.blocks } else { 0 };
    if (blocks == 0 && active) || bytes.is_none_or(|bytes| i64::try_from(bytes).is_err()) {
        let why = "a namespace has at least one block and at most 2^63 bytes";
        return Err(wrong(location, "blocks", spec.blocks, why));
    }
    let uuid = spec.uuid.unwrap_or_else(|| derive::uuid(nqn, nsid));
    let nguid = spec.nguid.unwrap_or_else(|| derive::nguid(nqn, nsid));
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    let eui64_taken = |other: &Namespace| spec.eui64.is_some() && other.eui64 == spec.eui64;
    let clash: Option<(&'static str, String)> = if others.iter().any(|other| other.uuid == uuid) {
        Some(("uuid", hex(&uuid)))
    } else if nguid != NO_NGUID && others.iter().any(|other| other.nguid == nguid) {
        Some(("nguid", hex(&nguid)))
    } else if others.iter().any(eui64_taken) {
        Some(("eui64", hex(&spec.eui64.unwrap_or_default())))
    } else {
        None
    };
    if let Some((key, value)) = clash {
        return Err(wrong(location, key, value, taken));
    }
    Ok(Namespace {
        nsid,
        blocks,
        block_shift,
        uuid,
        nguid,
        eui64: spec.eui64,
        readonly: spec.readonly,
        state: spec.state,
        store: spec.store,
        storage: spec.storage.as_str().into(),
        deallocate: spec.deallocate,
        volatile_cache: spec.volatile_cache,
        preferred: spec.preferred,
        ana_group: ana::check(location, "ana_group", spec.ana_group)?,
        hosts: hosts(location, spec)?,
    })
}

/// The hosts that can access a namespace.
fn hosts(location: Location, spec: &NamespaceSpec) -> Result<Option<Arc<[Nqn]>>, ModelError> {
    let Some(hosts) = &spec.hosts else {
        return Ok(None);
    };
    if hosts.is_empty() {
        let why = "the list is empty; name hosts, or omit this key for all that may connect";
        return Err(wrong(location, "hosts", "none", why));
    }
    let hosts = hosts.iter().map(|host| check_nqn(location, "hosts", host));
    hosts.collect::<Result<_, _>>().map(Some)
}

pub(super) fn check_nqn(
    location: Location,
    key: &'static str,
    nqn: &str,
) -> Result<Nqn, ModelError> {
    Nqn::new(nqn).map_err(|error| wrong(location, key, nqn, &error.to_string()))
}

/// `text` as ASCII padded with spaces.
pub(super) fn padded<const N: usize>(
    location: Location,
    key: &'static str,
    text: &str,
) -> Result<Ascii<N>, ModelError> {
    // Base 2.1, 1.4.2: ASCII strings hold codes 20h to 7Eh.
    let printable = text.bytes().all(|byte| (0x20..=0x7e).contains(&byte));
    if printable && (1..=N).contains(&text.len()) {
        return Ok(Ascii::new(text));
    }
    let why = format!("must be 1 to {N} printable ASCII characters");
    Err(wrong(location, key, text, &why))
}

#[allow(
    clippy::needless_pass_by_value,
    reason = "names, numbers and addresses alike"
)]
pub(super) fn wrong(
    location: Location,
    key: &'static str,
    value: impl ToString,
    why: &str,
) -> ModelError {
    ModelError {
        location,
        key,
        value: value.to_string(),
        why: why.to_owned(),
    }
}
