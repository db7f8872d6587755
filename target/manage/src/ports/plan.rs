//! Selects the providers of each port from the configuration and the RDMA devices of the
//! machine.

use std::net::{IpAddr, SocketAddr};

use super::devices::{Devices, Machine};
use super::{Device, Port, PortProvider};
use crate::waits::WaitReason;
use nvmeof_target_config::{Choice, Config, ConfigError, ProviderName};

/// Selects the providers of each port of `config` on this machine, without listening.
///
/// # Errors
/// [`ConfigError`] for a configured provider that cannot serve.
pub fn plan(config: &Config) -> Result<Vec<Port>, ConfigError> {
    plan_with(config, &Machine)
}

/// The same; a port whose devices do not exist yet waits for them.
///
/// # Errors
/// [`ConfigError`] for a provider that can never serve.
pub fn plan_present(config: &Config) -> Result<Vec<Port>, ConfigError> {
    let all = plan_some(config, &Machine, |_| true).zip(config.addresses());
    let all = all.map(|(planned, address)| match planned {
        Err(error) if error.may_succeed_later() => Ok(Port {
            address,
            providers: Vec::new(),
            waits: Some(WaitReason::of(&error)),
        }),
        planned => planned,
    });
    all.collect()
}

/// Why `auto` does not use the RDMA devices of this machine, if it has any.
#[must_use]
pub fn unused_devices(config: &Config, ports: &[Port]) -> Option<String> {
    unused_with(config, ports, &Machine)
}

pub(super) fn unused_with(
    config: &Config,
    ports: &[Port],
    devices: &dyn Devices,
) -> Option<String> {
    let without = |(choice, port): (&Choice, &Port)| {
        let ip = port.address.ip().is_some();
        ip && *choice == Choice::Auto && port.provider_index(ProviderName::Verbs).is_none()
    };
    let why = config.choices().iter().zip(ports).any(without);
    let why = why.then(|| devices.unusable()).flatten()?;
    Some(format!(
        "RDMA devices of this machine cannot be used: {why}; using software iWARP instead"
    ))
}

/// As [`plan`] for the port at index `number` only.
///
/// # Errors
/// [`ConfigError`] names file, line and key.
pub fn plan_one(config: &Config, number: usize) -> Result<Port, ConfigError> {
    let lost = || config.port_error(number, "there is no such port");
    let mut planned = plan_some(config, &Machine, |port| port == number);
    planned.next().ok_or_else(lost)?
}

pub(super) fn plan_with(config: &Config, devices: &dyn Devices) -> Result<Vec<Port>, ConfigError> {
    plan_some(config, devices, |_| true).collect()
}

fn plan_some(
    config: &Config,
    devices: &dyn Devices,
    these: impl Fn(usize) -> bool,
) -> impl Iterator<Item = Result<Port, ConfigError>> {
    let addresses = config.addresses().into_iter().zip(config.choices());
    addresses
        .enumerate()
        .filter(move |(port, _)| these(*port))
        .map(move |(port, (address, choice))| {
            let providers = match address.socket_addr() {
                Some(addr) => providers(addr, choice, devices),
                // Only iWARP serves Unix sockets, and the configuration allows no other.
                None => Ok(vec![software(ProviderName::Iwarp, false)]),
            };
            let providers = providers.map_err(|why| {
                let what = provider_message(choice, ProviderName::Verbs, &why);
                // A build without support for devices never gets one.
                let passing = cfg!(feature = "verbs");
                config.provider_error(port, &what).passing(passing)
            })?;
            let waits = None;
            Ok(Port {
                address,
                providers,
                waits,
            })
        })
}

/// The providers for an IP address.
///
/// # Errors
/// Why no RDMA device can serve it.
fn providers(
    addr: SocketAddr,
    choice: &Choice,
    devices: &dyn Devices,
) -> Result<Vec<PortProvider>, String> {
    match choice {
        Choice::Auto => auto(addr, devices),
        Choice::These(names) => {
            let provider = |name: &ProviderName| match name {
                ProviderName::Iwarp => Ok(software(ProviderName::Iwarp, false)),
                ProviderName::Shm => Ok(software(ProviderName::Shm, false)),
                ProviderName::Verbs => named_verbs(addr, devices),
            };
            names.iter().map(provider).collect()
        }
    }
}

/// The error of a provider, with a remedy if `auto` selected that provider.
pub(super) fn provider_message(choice: &Choice, provider: ProviderName, why: &str) -> String {
    let what = format!("{provider}: {why}");
    match (choice, provider) {
        (Choice::Auto, ProviderName::Verbs) => {
            format!("{what}; or set provider = \"iwarp\", which needs no RDMA device")
        }
        _ => what,
    }
}

/// The devices of that address, and shared memory if it works. A port on all addresses also
/// serves hosts without RDMA devices.
fn auto(addr: SocketAddr, devices: &dyn Devices) -> Result<Vec<PortProvider>, String> {
    let found = devices_of(addr, devices)?;
    let mut providers = Vec::new();
    if found.is_empty() {
        providers.push(software(ProviderName::Iwarp, false));
    } else {
        let verbs = verbs(found);
        // A device that supports iWARP may use the TCP port itself. Then it serves those
        // hosts.
        let optional = verbs.iwarp_device().is_some();
        providers.push(verbs);
        if addr.ip().is_unspecified() {
            providers.push(software(ProviderName::Iwarp, optional));
        }
    }
    providers.push(software(ProviderName::Shm, true));
    Ok(providers)
}

fn named_verbs(addr: SocketAddr, devices: &dyn Devices) -> Result<PortProvider, String> {
    let found = devices_of(addr, devices)?;
    if found.is_empty() {
        return Err(devices.why_none(addr));
    }
    Ok(verbs(found))
}

fn software(name: ProviderName, optional: bool) -> PortProvider {
    PortProvider {
        name,
        devices: Vec::new(),
        optional,
    }
}

fn verbs(devices: Vec<Device>) -> PortProvider {
    PortProvider {
        name: ProviderName::Verbs,
        devices,
        optional: false,
    }
}

/// Devices that serve `addr`. If that is all addresses, each device has its own address.
fn devices_of(addr: SocketAddr, devices: &dyn Devices) -> Result<Vec<Device>, String> {
    let ip = addr.ip();
    if !ip.is_unspecified() {
        return Ok(devices.at(addr)?.into_iter().collect());
    }
    let mut found = Vec::new();
    // A port on all IPv6 addresses covers no IPv4 address.
    let covered = |one: &IpAddr| ip.is_ipv6() == one.is_ipv6();
    for one in devices.addresses().into_iter().filter(covered) {
        let device = devices.at(SocketAddr::new(one, 0))?;
        found.extend(device.map(|device| Device {
            only: Some(one),
            ..device
        }));
    }
    Ok(found)
}
