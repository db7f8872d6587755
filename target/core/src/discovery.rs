//! The discovery log: which subsystems a host can reach, and where.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use nvmeof_wire::log::discovery::{
    AddressFamily, CNTLID_DYNAMIC, DISCOVERY_ENTRY_LEN, DISCOVERY_HEADER_LEN, RdmaTsas,
    SubsystemType, TransportType, Treq,
};
use nvmeof_wire::log::{DiscoveryEntry, DiscoveryHeader};
use nvmeof_wire::{Ascii, Nqn};

use crate::admin::Window;
use crate::model::Local;
use crate::{Fabric, Limits, Model, Port, Subsystem, Traddr};

/// Writes the log page of that generation that the host of that name sees, who
/// reached us at `local`.
pub(crate) fn write(
    (model, generation): (&Model, u64),
    hostnqn: &Nqn,
    local: Option<Local>,
    window: &mut Window<'_>,
) {
    let mut count: u64 = 0;
    let header_len = DISCOVERY_HEADER_LEN as u64;
    let entry_len = DISCOVERY_ENTRY_LEN as u64;
    for subsystem in model.subsystems() {
        if !subsystem.allows(hostnqn) {
            continue;
        }
        for port in model.ports() {
            let Some(traddr) = reachable(&port.traddr, local) else {
                continue;
            };
            // On all addresses it depends on this one what serves it.
            let at = match traddr {
                Traddr::Ip(ip) if port.traddr.is_unspecified() && local.is_some() => Some(ip),
                Traddr::Ip(_) | Traddr::Host(_) => None,
            };
            // One entry for each way to the same address: hosts look at the
            // provider type, or try one after the other.
            for fabric in port.carriers_at(at) {
                let at = header_len + count * entry_len;
                if window.shows(at, entry_len) {
                    window.put(at, &entry(subsystem, port, &traddr, fabric));
                }
                count += 1;
            }
        }
    }
    window.put(0, &DiscoveryHeader::new(generation, count));
}

/// The address of a port as a host can use it; `None` when it cannot. A host
/// elsewhere has a loopback of its own, and "all addresses" is none to connect
/// to.
fn reachable(traddr: &Traddr, local: Option<Local>) -> Option<Traddr> {
    let ip = match (traddr, local) {
        // A host that came over IP might not be here, and does not know what to
        // do with the entry: Linux takes no address family but those of IP with
        // this transport.
        (Traddr::Host(_), other) => return (other == Some(Local::Host)).then(|| traddr.clone()),
        (Traddr::Ip(ip), _) => *ip,
    };
    let ip = match local {
        None => Some(ip),
        Some(Local::Ip(local)) => reachable_ip(ip, local),
        Some(Local::Host) => Some(match ip {
            // It is on this host, which has this one of all addresses.
            ip if !ip.is_unspecified() => ip,
            IpAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
            IpAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
        }),
    };
    ip.map(Traddr::Ip)
}

fn reachable_ip(traddr: IpAddr, local: IpAddr) -> Option<IpAddr> {
    if traddr.is_loopback() && !local.is_loopback() {
        return None;
    }
    if !traddr.is_unspecified() {
        return Some(traddr);
    }
    // A port on all addresses of IPv6 has those of IPv4 as well.
    let has_it = traddr.is_ipv6() || local.is_ipv4();
    has_it.then_some(local)
}

/// The entry of a port. One within this host has the address family for that
/// (Base 2.0, 5.16.1.23, ADRFAM FEh) and, having no service, says so with the
/// word that other transports without one use.
fn entry(subsystem: &Subsystem, port: &Port, traddr: &Traddr, fabric: Fabric) -> DiscoveryEntry {
    let (adrfam, trsvcid) = match traddr {
        Traddr::Ip(IpAddr::V4(_)) => (AddressFamily::IPV4, port.trsvcid.to_string()),
        Traddr::Ip(IpAddr::V6(_)) => (AddressFamily::IPV6, port.trsvcid.to_string()),
        Traddr::Host(_) => (AddressFamily::LOOP, "none".to_owned()),
    };
    DiscoveryEntry {
        trtype: TransportType::RDMA,
        adrfam,
        subtype: SubsystemType::NVM,
        treq: Treq::DISABLE_SQFC.bits(),
        portid: port.id.into(),
        cntlid: CNTLID_DYNAMIC.into(),
        asqsz: Limits::ADMIN_DEPTH.into(),
        trsvcid: Ascii::new(&trsvcid),
        subnqn: subsystem.nqn.to_field(),
        traddr: Ascii::new(&traddr.to_string()),
        tsas: RdmaTsas::connected(fabric.provider_type()),
        ..DiscoveryEntry::zeroed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_such_that_the_host_can_use_them() {
        let ip = |text: &str| text.parse::<IpAddr>().unwrap();
        for (traddr, local, shown) in [
            ("10.0.0.1", "10.0.0.1", Some("10.0.0.1")),
            ("10.0.0.1", "127.0.0.1", Some("10.0.0.1")),
            ("127.0.0.1", "127.0.0.1", Some("127.0.0.1")),
            ("127.0.0.1", "10.0.0.1", None),
            ("::1", "10.0.0.1", None),
            ("0.0.0.0", "10.0.0.1", Some("10.0.0.1")),
            ("0.0.0.0", "fd00::1", None),
            ("::", "fd00::1", Some("fd00::1")),
            ("::", "10.0.0.1", Some("10.0.0.1")),
        ] {
            let shown = shown.map(|shown| Traddr::Ip(ip(shown)));
            let (traddr, local) = (Traddr::Ip(ip(traddr)), Local::Ip(ip(local)));
            assert_eq!(reachable(&traddr, Some(local)), shown, "{traddr}");
        }
        let all = Traddr::Ip(ip("::"));
        assert_eq!(reachable(&all, None), Some(all.clone()));
    }

    #[test]
    fn ways_within_the_host_are_told_to_those_who_came_by_one() {
        let here = Traddr::Host("unix:/run/a.sock".into());
        let elsewhere = Local::Ip("127.0.0.1".parse().unwrap());
        assert_eq!(reachable(&here, Some(elsewhere)), None);
        assert_eq!(reachable(&here, None), None);
        assert_eq!(reachable(&here, Some(Local::Host)), Some(here));
        // Whoever came by one reaches everything that this host has.
        for (traddr, shown) in [
            ("10.0.0.1", "10.0.0.1"),
            ("127.0.0.1", "127.0.0.1"),
            ("0.0.0.0", "127.0.0.1"),
            ("::", "::1"),
        ] {
            let (traddr, shown) = (traddr.parse().unwrap(), shown.parse().ok());
            assert_eq!(reachable(&traddr, Some(Local::Host)), shown);
        }
    }
}
