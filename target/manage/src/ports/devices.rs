//! The RDMA devices of this machine and their provider. No other file of this crate uses
//! `nvmeof-rdma-verbs`.

use std::net::{IpAddr, SocketAddr};

use nix::ifaddrs::getifaddrs;
use nvmeof_rdma::{Provider, Steering};

use super::Device;

/// Queries of the planner about a machine.
pub(super) trait Devices {
    /// The device that serves an address of the machine, if there is one.
    ///
    /// # Errors
    /// Why that is unknown, with a remedy.
    fn at(&self, addr: SocketAddr) -> Result<Option<Device>, String>;

    /// Why there is no device for `addr`, with a remedy.
    fn why_none(&self, addr: SocketAddr) -> String;

    /// Why none of the devices of the machine can be used, with a remedy.
    fn unusable(&self) -> Option<String>;

    /// The addresses of the machine.
    fn addresses(&self) -> Vec<IpAddr>;
}

/// This machine.
pub(super) struct Machine;

impl Devices for Machine {
    fn at(&self, addr: SocketAddr) -> Result<Option<Device>, String> {
        verbs::at(addr)
    }

    fn why_none(&self, addr: SocketAddr) -> String {
        verbs::why_none(addr)
    }

    fn unusable(&self) -> Option<String> {
        // sysfs does not depend on libraries and permissions.
        let devices = std::fs::read_dir("/sys/class/infiniband");
        let any = devices.is_ok_and(|mut devices| devices.next().is_some());
        any.then(verbs::unusable).flatten()
    }

    fn addresses(&self) -> Vec<IpAddr> {
        let addresses = addresses().into_iter();
        // A host needs the interface of a link-local address, and discovery log entries have
        // no field for it.
        addresses.filter(|ip| !is_link_local(*ip)).collect()
    }
}

/// The addresses of the machine, sorted and without duplicates.
pub(crate) fn addresses() -> Vec<IpAddr> {
    let Ok(interfaces) = getifaddrs() else {
        return Vec::new();
    };
    let addresses = interfaces.filter_map(|interface| {
        let address = interface.address?;
        let v4 = address.as_sockaddr_in().map(|it| IpAddr::V4(it.ip()));
        v4.or_else(|| address.as_sockaddr_in6().map(|it| IpAddr::V6(it.ip())))
    });
    let mut all: Vec<_> = addresses.collect();
    all.sort_unstable();
    all.dedup();
    all
}

fn is_link_local(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => ip.is_link_local(),
        IpAddr::V6(ip) => ip.is_unicast_link_local(),
    }
}

/// Providers over verbs that share their listeners, one for each reactor.
///
/// # Errors
/// The missing part, with a remedy.
pub(super) fn verbs_providers(steering: &Steering) -> Result<Vec<Box<dyn Provider>>, String> {
    verbs::providers(steering)
}

#[cfg(feature = "verbs")]
mod verbs {
    use std::net::SocketAddr;

    use nvmeof_rdma::{Provider, Steering};
    use nvmeof_rdma_verbs::{
        DeviceInfo, DeviceKind, VerbsConfig, VerbsError, device_for_local, devices, group,
    };
    use nvmeof_target_core::Fabric;

    use crate::ports::Device;

    pub(super) fn at(addr: SocketAddr) -> Result<Option<Device>, String> {
        match device_for_local(addr) {
            Ok(found) => Ok(found.map(device)),
            // Not about devices: listening reports it.
            Err(VerbsError::NoSuchAddress { .. }) => Ok(None),
            Err(error) => Err(error.to_string()),
        }
    }

    pub(super) fn why_none(addr: SocketAddr) -> String {
        let ip = addr.ip();
        match device_for_local(addr).and_then(|_| devices()) {
            Err(error) => error.to_string(),
            Ok(_) => format!(
                "no RDMA device serves {ip}; `rdma link` lists the devices and their interfaces, \
                 `ip address` the addresses of these"
            ),
        }
    }

    pub(super) fn unusable() -> Option<String> {
        devices().err().map(|error| error.to_string())
    }

    pub(super) fn providers(steering: &Steering) -> Result<Vec<Box<dyn Provider>>, String> {
        let members = group(VerbsConfig::default(), steering).map_err(|error| error.to_string())?;
        Ok(members
            .into_iter()
            .map(|member| Box::new(member) as Box<dyn Provider>)
            .collect())
    }

    fn device(info: DeviceInfo) -> Device {
        Device {
            name: info.name,
            port: info.port,
            fabric: match info.kind {
                DeviceKind::InfiniBand => Fabric::InfiniBand,
                DeviceKind::RoceV1 => Fabric::RoceV1,
                DeviceKind::RoceV2 => Fabric::RoceV2,
                DeviceKind::Iwarp => Fabric::Iwarp,
            },
            only: None,
        }
    }
}

/// A build without RDMA devices.
#[cfg(not(feature = "verbs"))]
mod verbs {
    use std::net::SocketAddr;

    use nvmeof_rdma::{Provider, Steering};

    use crate::ports::Device;

    const WITHOUT: &str = "this program was built without RDMA devices; use \"iwarp\", or a build \
                           with the feature `verbs`, which is on by default";

    #[allow(
        clippy::unnecessary_wraps,
        reason = "a build with the feature can fail"
    )]
    pub(super) fn at(_addr: SocketAddr) -> Result<Option<Device>, String> {
        Ok(None)
    }

    pub(super) fn why_none(_addr: SocketAddr) -> String {
        WITHOUT.to_owned()
    }

    #[allow(
        clippy::unnecessary_wraps,
        reason = "a build with the feature can use them"
    )]
    pub(super) fn unusable() -> Option<String> {
        Some(WITHOUT.to_owned())
    }

    pub(super) fn providers(_steering: &Steering) -> Result<Vec<Box<dyn Provider>>, String> {
        Err(WITHOUT.to_owned())
    }
}
