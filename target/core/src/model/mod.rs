//! The model: ports, subsystems and namespaces, checked once and then immutable.

mod address;
mod ana;
mod authentication;
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
pub use authentication::AuthenticationSpec;
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

/// Everything that a target serves. Built by [`Model::build`].
#[derive(Clone, Debug)]
pub struct Model {
    limits: Limits,
    ports: Arc<[Port]>,
    subsystems: Vec<Arc<Subsystem>>,
    /// Controller identifiers that are reserved for some subsystems.
    reserved_ids: Arc<[ControllerIds]>,
    discovery: Discovery,
    authentication: Arc<AuthenticationSpec>,
}

/// An address that hosts connect to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Port {
    /// Unique port identifier in discovery log entries.
    pub id: u16,
    /// Address.
    pub traddr: Traddr,
    /// TCP or RDMA CM port; 0 for an intra-host port.
    pub trsvcid: u16,
    /// Providers, in the order of their discovery log entries.
    pub carriers: Vec<Carrier>,
    /// Bytes of in-capsule data of one command.
    pub in_capsule: u32,
    /// Entries of the longest submission queue.
    pub queue_depth: u16,
    /// ANA groups with a configured state, sorted. All others are optimized.
    pub ana_groups: Vec<AnaGroup>,
    /// The subsystems that it offers; `None`: all.
    pub subsystems: Option<Vec<Nqn>>,
}

/// A provider of a port, as the discovery log reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Carrier {
    /// The RDMA fabric.
    pub fabric: Fabric,
    /// The only address that it serves on a wildcard port; `None` if it serves all
    /// addresses of the port.
    pub only: Option<IpAddr>,
}

/// RDMA fabrics, as in the RDMA provider type of the discovery log.
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
    /// Not specified.
    Unspecified,
}

/// An NVM subsystem.
#[derive(Clone, Debug)]
pub struct Subsystem {
    /// Its NQN.
    pub nqn: Nqn,
    /// Serial number, ASCII padded with spaces.
    pub serial: Ascii<20>,
    /// Model number, ASCII padded with spaces.
    pub model_number: Ascii<40>,
    /// Identifiers of its controllers. Connected controllers keep theirs when the range
    /// changes.
    pub controller_ids: ControllerIds,
    /// I/O queues that one controller may have. Connected controllers keep the number that
    /// they were granted when this changes.
    pub io_queues: u16,
    /// Firmware revision, ASCII padded with spaces.
    pub firmware_revision: Ascii<8>,
    /// The vendor's identifier (OUI), lowest byte first; zero for none.
    pub ieee_oui: [u8; 3],
    /// Hosts that may connect; `None`: every host.
    pub allowed_hosts: Option<Vec<Nqn>>,
    /// Active namespaces, ordered by NSID.
    namespaces: Vec<Namespace>,
    /// Namespaces that are not active, ordered by NSID.
    disabled: Vec<Namespace>,
}

/// A namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Namespace {
    /// Its NSID, from 1.
    pub nsid: u32,
    /// Size in logical blocks.
    pub blocks: u64,
    /// Size of a logical block: 2 to this power bytes, 9 to 12.
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
    /// The number by which the engine knows the backing store.
    pub store: u32,
    /// The path of the backing store.
    pub storage: Arc<str>,
    /// Whether the backing store can deallocate.
    pub deallocate: bool,
    /// Whether written data may be lost on power loss until they are flushed.
    pub volatile_cache: bool,
    /// Preferred sizes of writes and deallocations.
    pub preferred: Preferred,
    /// Its configured ANA group; see [`group`](Self::group).
    pub ana_group: u32,
    /// The hosts that can access it; `None`: all that may connect.
    pub hosts: Option<Arc<[Nqn]>>,
}

impl Model {
    /// The limits.
    #[must_use]
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// The ports, in the order given.
    #[must_use]
    pub fn ports(&self) -> &[Port] {
        &self.ports
    }

    /// A shared reference to the ports.
    pub(crate) fn shared_ports(&self) -> Arc<[Port]> {
        Arc::clone(&self.ports)
    }

    /// The subsystems, in the order given.
    #[must_use]
    pub fn subsystems(&self) -> &[Arc<Subsystem>] {
        &self.subsystems
    }

    /// The port with this address.
    #[must_use]
    pub fn port(&self, at: &PortAddress) -> Option<&Port> {
        self.ports.iter().find(|port| port.is_at(at))
    }

    /// NQNs of subsystems and hosts that do not have the form that the specification
    /// requires.
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

    /// The subsystem with this NQN.
    #[must_use]
    pub fn subsystem(&self, nqn: &Nqn) -> Option<&Arc<Subsystem>> {
        self.subsystems
            .iter()
            .find(|subsystem| subsystem.nqn == *nqn)
    }
}

impl Port {
    /// Whether it offers the subsystem with this NQN.
    #[must_use]
    pub fn offers(&self, nqn: &Nqn) -> bool {
        let all = self.subsystems.as_ref();
        all.is_none_or(|names| names.contains(nqn))
    }

    /// The fabrics that serve address `addr` of the port, in order. `None` stands for an
    /// unknown address.
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
    /// The active namespaces, ordered by NSID.
    #[must_use]
    pub fn namespaces(&self) -> &[Namespace] {
        &self.namespaces
    }

    /// The namespaces that are disabled or were never opened, ordered by NSID: allocated
    /// and not active (Base 2.1, 3.2.1). Their size is 0 blocks.
    #[must_use]
    pub fn disabled(&self) -> &[Namespace] {
        &self.disabled
    }

    /// The active namespace with this NSID.
    #[must_use]
    pub fn namespace(&self, nsid: u32) -> Option<&Namespace> {
        let at = self
            .namespaces
            .binary_search_by_key(&nsid, |namespace| namespace.nsid)
            .ok()?;
        self.namespaces.get(at)
    }

    /// The same subsystem, with the namespaces read-only for which `readonly` returns true.
    pub(crate) fn with_readonly(&self, readonly: impl Fn(&Namespace) -> bool) -> Self {
        let mut other = self.clone();
        for namespace in &mut other.namespaces {
            namespace.readonly = readonly(namespace);
        }
        other
    }

    /// Whether the host with this NQN may connect.
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

    /// Whether the host with this NQN can access it, if it may connect.
    #[must_use]
    pub fn is_for(&self, hostnqn: &Nqn) -> bool {
        let hosts = self.hosts.as_deref();
        hosts.is_none_or(|hosts| hosts.contains(hostnqn))
    }

    /// Size in bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        // No overflow: the builder checks that it has fewer than 2^63 bytes.
        self.blocks << self.block_shift
    }
}
