//! The discovery log: which subsystems a host can reach, and where.

use std::net::IpAddr;

use nvmeof_wire::log::discovery::{
    AddressFamily, CNTLID_DYNAMIC, DISCOVERY_ENTRY_LEN, DISCOVERY_HEADER_LEN, RdmaTsas,
    SubsystemType, TransportType, Treq,
};
use nvmeof_wire::log::{DiscoveryEntry, DiscoveryHeader};
use nvmeof_wire::{Ascii, Nqn};

use crate::admin::Window;
use crate::{Fabric, Limits, Model, Port, Subsystem};

/// The model never changes while it is served, so the log has one generation.
const GENERATION: u64 = 1;

/// Writes the log page that the host of that name sees, who reached us at
/// `local`.
pub(crate) fn write(model: &Model, hostnqn: &Nqn, local: Option<IpAddr>, window: &mut Window<'_>) {
    let mut count: u64 = 0;
    let header_len = DISCOVERY_HEADER_LEN as u64;
    let entry_len = DISCOVERY_ENTRY_LEN as u64;
    for subsystem in model.subsystems() {
        if !subsystem.allows(hostnqn) {
            continue;
        }
        for port in model.ports() {
            let Some(traddr) = reachable(port.traddr, local) else {
                continue;
            };
            // One entry for each way to the same address: hosts look at the
            // provider type, or try one after the other.
            for fabric in port.carriers_at(local.filter(|_| port.traddr.is_unspecified())) {
                let at = header_len + count * entry_len;
                if window.shows(at, entry_len) {
                    window.put(at, &entry(subsystem, port, traddr, fabric));
                }
                count += 1;
            }
        }
    }
    window.put(0, &DiscoveryHeader::new(GENERATION, count));
}

/// The address of a port as a host can use it; `None` when it cannot. A host
/// elsewhere has a loopback of its own, and "all addresses" is none to connect
/// to.
fn reachable(traddr: IpAddr, local: Option<IpAddr>) -> Option<IpAddr> {
    let Some(local) = local else {
        return Some(traddr);
    };
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

fn entry(subsystem: &Subsystem, port: &Port, traddr: IpAddr, fabric: Fabric) -> DiscoveryEntry {
    DiscoveryEntry {
        trtype: TransportType::RDMA,
        adrfam: if traddr.is_ipv4() {
            AddressFamily::IPV4
        } else {
            AddressFamily::IPV6
        },
        subtype: SubsystemType::NVM,
        treq: Treq::DISABLE_SQFC.bits(),
        portid: port.id.into(),
        cntlid: CNTLID_DYNAMIC.into(),
        asqsz: Limits::ADMIN_DEPTH.into(),
        trsvcid: Ascii::new(&port.trsvcid.to_string()),
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
            let shown = shown.map(ip);
            assert_eq!(reachable(ip(traddr), Some(ip(local))), shown, "{traddr}");
        }
        assert_eq!(reachable(ip("::"), None), Some(ip("::")));
    }
}
