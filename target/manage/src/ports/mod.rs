//! Ports and their providers: selected from the configuration and the RDMA devices of the
//! machine, then listened on.

mod devices;
mod listen;
mod making;
mod plan;
#[cfg(test)]
mod tests;

use std::fmt;
use std::net::IpAddr;
use std::sync::{Arc, PoisonError, RwLock};

use nvmeof_rdma::Address;
use nvmeof_target_core::{Carrier, Fabric, PortSpec};

use crate::waits::WaitReason;
pub(crate) use devices::addresses;
pub use listen::{Listening, listen};
pub(crate) use listen::{Listens, ReactorProvider, broken, listen_at, of_provider};
pub use making::ProviderFactory;
pub(crate) use making::{ProviderGroup, shm_config};
use nvmeof_target_address::port_address;
use nvmeof_target_config::{ProviderName, port_spec};
pub use plan::plan;
pub use plan::{plan_one, plan_present, unused_devices};

/// A port and its providers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Port {
    /// Address; its port is 0 until a free one is found.
    pub address: Address,
    /// Its providers, in the order of the discovery log page.
    pub providers: Vec<PortProvider>,
    /// Why nothing listens on it yet; `None`: it is served.
    pub waits: Option<WaitReason>,
}

/// One provider of a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortProvider {
    /// The provider.
    pub name: ProviderName,
    /// Devices that it uses; none for software.
    pub devices: Vec<Device>,
    /// Whether the port is served without it if it cannot listen. For software iWARP that is
    /// only if the TCP port is in use.
    pub(crate) optional: bool,
}

/// An RDMA device that serves a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    /// Its name, as `rdma link` shows it.
    pub name: String,
    /// Its physical port, from 1.
    pub port: u8,
    /// Its protocol.
    pub fabric: Fabric,
    /// Its address, on a port that listens on all addresses.
    pub only: Option<IpAddr>,
}

/// The providers of each reactor, by index. Providers are added, never removed. Clones share
/// them.
#[derive(Clone, Debug, Default)]
pub struct Providers(Arc<RwLock<Vec<ProviderName>>>);

impl Providers {
    pub(crate) fn new(names: Vec<ProviderName>) -> Self {
        Self(Arc::new(RwLock::new(names)))
    }

    /// Their names.
    pub fn names(&self) -> Vec<ProviderName> {
        // A panic of a holder leaves nothing inconsistent.
        let names = self.0.read().unwrap_or_else(PoisonError::into_inner);
        names.clone()
    }

    /// Appends a provider that every reactor has now.
    pub(crate) fn add(&self, name: ProviderName) {
        let mut names = self.0.write().unwrap_or_else(PoisonError::into_inner);
        names.push(name);
    }
}

impl Port {
    /// The specification for the model.
    #[must_use]
    pub fn to_spec(&self) -> PortSpec {
        if self.waits.is_some() {
            // It is in the discovery log page once it listens.
            return port_spec(self.address, Vec::new());
        }
        let mut carriers: Vec<_> = self
            .providers
            .iter()
            .flat_map(PortProvider::carriers)
            .collect();
        if carriers.is_empty() {
            // Shared memory alone. Its hosts need an entry for the port, and the discovery log
            // has no value for shared memory (RDMA_PRTYPE, NVMe over Fabrics 1.1, section 7.3).
            carriers.push(Fabric::Unspecified.into());
        }
        port_spec(self.address, carriers)
    }

    /// The address as text: interfaces by name, with a remark on what `[::]` covers.
    pub(crate) fn place(&self) -> String {
        let only = match self.address.ip() {
            Some(IpAddr::V6(ip)) if ip.is_unspecified() => " (IPv6 only)",
            _ => "",
        };
        format!("{}{only}", port_address(self.address))
    }

    /// Whether it listens, or will listen, over that provider.
    fn uses_provider(&self, name: ProviderName) -> bool {
        self.waits.is_none() && self.provider_index(name).is_some()
    }

    /// Index of that provider in `providers`.
    fn provider_index(&self, name: ProviderName) -> Option<usize> {
        self.providers
            .iter()
            .position(|provider| provider.name == name)
    }

    /// Names of its providers, separated by commas.
    #[must_use]
    pub fn provider_names(&self) -> String {
        join(self.providers.iter().map(|provider| provider.name))
    }
}

impl PortProvider {
    fn carriers(&self) -> Vec<Carrier> {
        match self.name {
            ProviderName::Iwarp => vec![Fabric::Iwarp.into()],
            ProviderName::Verbs => self.devices.iter().map(Device::carrier).collect(),
            // Hosts that can use it find it at the same address; others could not use the entry.
            ProviderName::Shm => Vec::new(),
        }
    }

    /// Its device that supports iWARP and therefore uses the TCP port, if any.
    fn iwarp_device(&self) -> Option<&Device> {
        self.devices
            .iter()
            .find(|device| device.fabric == Fabric::Iwarp)
    }
}

impl Device {
    fn carrier(&self) -> Carrier {
        Carrier {
            fabric: self.fabric,
            only: self.only,
        }
    }
}

impl fmt::Display for Port {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.address.ip().is_none() {
            return write!(f, "{}: iwarp (software, for this host)", self.address);
        }
        write!(f, "{}: {}", self.place(), join(&self.providers))
    }
}

impl fmt::Display for PortProvider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name {
            ProviderName::Iwarp => f.write_str("iwarp (software, over TCP)"),
            ProviderName::Verbs => write!(f, "verbs ({})", join(&self.devices)),
            ProviderName::Shm => f.write_str("shm (this host, through shared memory)"),
        }
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = self.fabric.provider_type().name();
        write!(f, "{} port {}: {kind}", self.name, self.port)?;
        match self.only {
            Some(only) => write!(f, " on {only}"),
            None => Ok(()),
        }
    }
}

fn join<T: fmt::Display>(all: impl IntoIterator<Item = T>) -> String {
    let all: Vec<_> = all.into_iter().map(|one| one.to_string()).collect();
    all.join(", ")
}
