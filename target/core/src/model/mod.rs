//! What is served: ports, subsystems and namespaces, checked once and then
//! immutable.

mod address;
mod ana;
mod bounds;
mod build;
mod cntlids;
mod derive;
mod difference;
mod discovery;
mod error;
mod identity;
mod preferred;
mod state;
#[cfg(test)]
mod tests;
mod traddr;

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use nvmeof_wire::log::discovery::RdmaProviderType;
use nvmeof_wire::{Ascii, Nqn};

pub use address::PortAddress;
pub(crate) use ana::ABSENT_GROUP;
pub use ana::{AnaGroup, DEFAULT_ANA_GROUP};
pub use bounds::PortBounds;
pub use build::{NO_NGUID, NamespaceSpec, PortSpec, SubsystemSpec};
pub(crate) use cntlids::Choice;
pub use cntlids::ControllerIds;
pub use derive::derived;
pub use difference::{Change, ChangeKind, Subject};
pub use discovery::{Discovery, DiscoverySpec, Referral, ReferralSpec};
pub use error::{Location, ModelError};
pub(crate) use identity::FIRMWARE;
pub use preferred::Preferred;
pub use state::{NamespaceState, Revision};
pub(crate) use traddr::Local;
pub use traddr::Traddr;

use crate::Limits;

/// Everything that is served. Made by [`Model::build`].
#[derive(Clone, Debug)]
pub struct Model {
    limits: Limits,
    ports: Arc<[Port]>,
    subsystems: Vec<Arc<Subsystem>>,
    /// Controller identifiers that are for some subsystems alone.
    kept_ids: Arc<[ControllerIds]>,
    discovery: Discovery,
}

/// An address that hosts connect to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Port {
    /// Number of the port in discovery log entries, which no other has.
    pub id: u16,
    /// Address.
    pub traddr: Traddr,
    /// TCP or RDMA CM port; 0 for a way within this host.
    pub trsvcid: u16,
    /// What carries RDMA there, in the order hosts are told.
    pub carriers: Vec<Carrier>,
    /// Bytes of in-capsule data of one command of a host that comes by it.
    pub in_capsule: u32,
    /// Entries of the longest submission queue of a host that comes by it.
    pub queue_depth: u16,
    /// The groups of namespaces whose state was said, ordered by number. All
    /// others are optimized.
    pub ana_groups: Vec<AnaGroup>,
    /// The subsystems that are reached by it; `None`: all.
    pub subsystems: Option<Vec<Nqn>>,
}

/// One way in which a port is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Carrier {
    /// What carries RDMA.
    pub fabric: Fabric,
    /// The only address that it serves, on a port that listens on all
    /// addresses of the machine; `None` when it serves all that the port does.
    pub only: Option<IpAddr>,
}

/// What carries RDMA, as the discovery log names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fabric {
    /// iWARP, by a device or in software.
    Iwarp,
    /// RDMA over converged Ethernet, version 1.
    RoceV1,
    /// RDMA over converged Ethernet, version 2.
    RoceV2,
    /// InfiniBand.
    InfiniBand,
    /// Not said.
    Unspecified,
}

/// An NVM subsystem.
#[derive(Clone, Debug)]
pub struct Subsystem {
    /// Its name.
    pub nqn: Nqn,
    /// Serial number, ASCII padded with spaces.
    pub serial: Ascii<20>,
    /// Model number, ASCII padded with spaces.
    pub model_number: Ascii<40>,
    /// Identifiers that its controllers have. Those that are connected keep theirs
    /// when these are others.
    pub controller_ids: ControllerIds,
    /// I/O queues that one controller may have. Those that are connected keep what they
    /// were granted when this is another number.
    pub io_queues: u16,
    /// Firmware revision, ASCII padded with spaces.
    pub firmware_revision: Ascii<8>,
    /// The vendor's identifier (OUI), lowest byte first; zeroes of nobody.
    pub ieee_oui: [u8; 3],
    /// Hosts that may connect; `None` lets every host.
    pub allowed_hosts: Option<Vec<Nqn>>,
    /// Those that are active, ordered by namespace id.
    namespaces: Vec<Namespace>,
    /// Those that are not active, likewise.
    disabled: Vec<Namespace>,
}

/// A namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Namespace {
    /// Its number, from 1.
    pub nsid: u32,
    /// Size in logical blocks.
    pub blocks: u64,
    /// Size of a logical block: 2 to this power bytes, 9 or 12.
    pub block_shift: u8,
    /// Universally unique identifier.
    pub uuid: [u8; 16],
    /// Namespace globally unique identifier; [`NO_NGUID`] if there is none.
    pub nguid: [u8; 16],
    /// IEEE extended unique identifier.
    pub eui64: Option<[u8; 8]>,
    /// Whether writes are refused.
    pub readonly: bool,
    /// Whether hosts can use it.
    pub state: NamespaceState,
    /// What the edge calls the disk.
    pub disk: u32,
    /// What an administrator calls it.
    pub storage: Arc<str>,
    /// Whether the disk can give up space.
    pub deallocate: bool,
    /// Whether written data may be lost with the power until it is flushed.
    pub volatile_cache: bool,
    /// In which sizes the disk is written and freed best.
    pub preferred: Preferred,
    /// The group for asymmetric namespace access that it was given; see
    /// [`group`](Self::group).
    pub ana_group: u32,
    /// The hosts that it is there for; `None`: for all that may connect.
    pub hosts: Option<Arc<[Nqn]>>,
}

impl Model {
    /// The sizes.
    #[must_use]
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// The ports, in the order given.
    #[must_use]
    pub fn ports(&self) -> &[Port] {
        &self.ports
    }

    /// The same, to keep.
    pub(crate) fn shared_ports(&self) -> Arc<[Port]> {
        Arc::clone(&self.ports)
    }

    /// The subsystems, in the order given.
    #[must_use]
    pub fn subsystems(&self) -> &[Arc<Subsystem>] {
        &self.subsystems
    }

    /// The port at that address.
    #[must_use]
    pub fn port(&self, at: &PortAddress) -> Option<&Port> {
        self.ports.iter().find(|port| port.is_at(at))
    }

    /// The names in it that do not have the form which the specification asks for, of
    /// subsystems and of hosts, each once.
    #[must_use]
    pub fn unusual_names(&self) -> BTreeSet<Nqn> {
        let discovery = &self.discovery;
        let mut names: BTreeSet<Nqn> = discovery.referrals().iter().map(|one| one.nqn).collect();
        names.extend(discovery.nqn());
        for subsystem in self.subsystems.iter() {
            names.insert(subsystem.nqn);
            names.extend(subsystem.allowed_hosts.iter().flatten());
            for namespace in subsystem.namespaces.iter().chain(&subsystem.disabled) {
                names.extend(namespace.hosts.iter().flat_map(|hosts| hosts.iter()));
            }
        }
        names.retain(|name| name.check_form().is_err());
        names
    }

    /// The subsystem of that name.
    #[must_use]
    pub fn subsystem(&self, nqn: &Nqn) -> Option<&Arc<Subsystem>> {
        self.subsystems
            .iter()
            .find(|subsystem| subsystem.nqn == *nqn)
    }
}

impl Port {
    /// Whether the subsystem of that name is reached by it.
    #[must_use]
    pub fn leads_to(&self, nqn: &Nqn) -> bool {
        let all = self.subsystems.as_ref();
        all.is_none_or(|names| names.contains(nqn))
    }

    /// What carries RDMA for a host that reaches the port at `addr`, in order.
    /// `None` stands for an address that is not known.
    pub fn carriers_at(&self, addr: Option<IpAddr>) -> impl Iterator<Item = Fabric> {
        let serves = move |carrier: &&Carrier| match (carrier.only, addr) {
            (Some(only), Some(addr)) => only == addr,
            _ => true,
        };
        let carriers = self.carriers.iter().filter(serves);
        carriers.map(|carrier| carrier.fabric)
    }
}

impl Fabric {
    /// The RDMA provider type of discovery log entries.
    #[must_use]
    pub fn provider_type(self) -> RdmaProviderType {
        match self {
            Self::Iwarp => RdmaProviderType::IWARP,
            Self::RoceV1 => RdmaProviderType::ROCE,
            Self::RoceV2 => RdmaProviderType::ROCE_V2,
            Self::InfiniBand => RdmaProviderType::IB,
            Self::Unspecified => RdmaProviderType::NOT_SPECIFIED,
        }
    }
}

impl From<Fabric> for Carrier {
    /// On every address of the port.
    fn from(fabric: Fabric) -> Self {
        Self { fabric, only: None }
    }
}

impl Subsystem {
    /// The active namespaces, lowest number first.
    #[must_use]
    pub fn namespaces(&self) -> &[Namespace] {
        &self.namespaces
    }

    /// The namespaces that are switched off or were never opened, lowest number
    /// first: allocated and not active (Base 2.1, 3.2.1). Their size is 0 blocks.
    #[must_use]
    pub fn disabled(&self) -> &[Namespace] {
        &self.disabled
    }

    /// The active namespace of that number.
    #[must_use]
    pub fn namespace(&self, nsid: u32) -> Option<&Namespace> {
        let at = self
            .namespaces
            .binary_search_by_key(&nsid, |namespace| namespace.nsid)
            .ok()?;
        self.namespaces.get(at)
    }

    /// The same with those namespaces read only that are said to be.
    pub(crate) fn with_readonly(&self, readonly: impl Fn(&Namespace) -> bool) -> Self {
        let mut other = self.clone();
        for namespace in &mut other.namespaces {
            namespace.readonly = readonly(namespace);
        }
        other
    }

    /// Whether the host of that name may connect.
    #[must_use]
    pub fn allows(&self, hostnqn: &Nqn) -> bool {
        match &self.allowed_hosts {
            None => true,
            Some(hosts) => hosts.iter().any(|allowed| allowed == hostnqn),
        }
    }
}

impl Namespace {
    /// Bytes of a logical block.
    #[must_use]
    pub fn block_size(&self) -> u32 {
        1 << self.block_shift
    }

    /// Whether it is there for the host of that name, which may connect.
    #[must_use]
    pub fn is_for(&self, hostnqn: &Nqn) -> bool {
        let hosts = self.hosts.as_deref();
        hosts.is_none_or(|hosts| hosts.contains(hostnqn))
    }

    /// Size in bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        // No overflow: it was checked that it has fewer than 2^63.
        self.blocks << self.block_shift
    }
}
