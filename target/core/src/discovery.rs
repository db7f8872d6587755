//! The discovery log: which subsystems a host can reach, and where.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use nvmeof_wire::log::discovery::{
    AddressFamily, CNTLID_DYNAMIC, DISCOVERY_ENTRY_LEN, DISCOVERY_HEADER_LEN, DiscoveryFlags,
    EXTENDED_ENTRY_LEN, EntryExtension, EntryFlags, RdmaTsas, SubsystemType, TransportType, Treq,
};
use nvmeof_wire::log::{DiscoveryEntry, DiscoveryHeader};
use nvmeof_wire::{Ascii, Nqn};
use zerocopy::FromZeros;
use zerocopy::little_endian::U32;

use crate::model::Local;
use crate::window::Window;
use crate::{Fabric, Limits, Model, Port, PortAddress, Traddr};

/// The host that reads the log, and the entries that it requests.
pub(crate) struct LogReader<'a> {
    pub(crate) hostnqn: &'a Nqn,
    /// The local address to which the host connected, if it is known.
    pub(crate) local: Option<Local>,
    /// Only entries of this port (PLEO); `None`: of all ports, and referrals.
    pub(crate) only: Option<&'a PortAddress>,
    /// Whether extended entries are requested (EXTDLPE).
    pub(crate) extended: bool,
}

/// Writes the log page of this generation for the host. Returns its length in bytes.
pub(crate) fn write(
    (model, generation): (&Model, u64),
    reader: &LogReader<'_>,
    window: &mut Window<'_>,
) -> u64 {
    let LogReader {
        hostnqn,
        local,
        only,
        extended,
    } = *reader;
    let mut page = Page {
        window,
        entries: 0,
        extended,
    };
    let discovery = model.discovery();
    if let Some(nqn) = discovery.nqn() {
        // Explicit persistent connections are supported, with Keep Alive.
        let subject = EntrySubject {
            eflags: EntryFlags::EPCSD,
            ..EntrySubject::new(SubsystemType::CURRENT_DISCOVERY, nqn)
        };
        routes(model, reader, None, |route| {
            page.put(|| route.entry(&subject));
        });
    }
    for subsystem in model.subsystems() {
        if subsystem.allows(hostnqn) {
            let subject = EntrySubject::new(SubsystemType::NVM, &subsystem.nqn);
            let nqn = Some(&subsystem.nqn);
            routes(model, reader, nqn, |route| {
                page.put(|| route.entry(&subject));
            });
        }
    }
    // Base 2.1, 5.1.12.3.1, PLEO: only "NVM subsystem ports that are presented
    // through the same NVM subsystem port that received the Get Log Page command".
    let referrals = discovery.referrals().iter();
    for referral in referrals.filter(|_| only.is_none()) {
        let traddr = Traddr::Ip(referral.traddr);
        if let Some(traddr) = reachable(&traddr, local) {
            let route = Route {
                portid: referral.port_id,
                trsvcid: referral.trsvcid,
                traddr: &traddr,
                fabric: Fabric::Unspecified,
            };
            let subject = EntrySubject::new(SubsystemType::REFERRAL, &referral.nqn);
            page.put(|| route.entry(&subject));
        }
    }
    let mut header = DiscoveryHeader::new(generation, page.entries);
    let mut flags = DiscoveryFlags::empty();
    flags.set(DiscoveryFlags::PORTLCL, only.is_some());
    if extended {
        flags |= DiscoveryFlags::EXTEND;
        let len = u32::try_from(page.end()).unwrap_or(u32::MAX);
        header.tdlpl = len.into();
    }
    header.dlpf = flags.bits();
    page.window.put(0, &header);
    page.end()
}

/// The page as far as it is written.
struct Page<'a, 'b> {
    window: &'a mut Window<'b>,
    entries: u64,
    /// Whether all of them are extended ones.
    extended: bool,
}

impl Page<'_, '_> {
    /// Adds an entry, which is built only if part of it is in the window.
    fn put(&mut self, entry: impl FnOnce() -> DiscoveryEntry) {
        let at = self.end();
        if self.window.intersects(at, self.entry_len()) {
            self.window.put(at, &entry());
            if self.extended {
                // There are no extended attributes.
                let extension = EntryExtension {
                    tel: U32::new(u32::try_from(EXTENDED_ENTRY_LEN).unwrap_or(u32::MAX)),
                    ..EntryExtension::new_zeroed()
                };
                self.window.put(at + DISCOVERY_ENTRY_LEN as u64, &extension);
            }
        }
        self.entries += 1;
    }

    /// Bytes of an entry.
    fn entry_len(&self) -> u64 {
        match self.extended {
            true => EXTENDED_ENTRY_LEN as u64,
            false => DISCOVERY_ENTRY_LEN as u64,
        }
    }

    /// Where the next entry begins, or the page ends.
    fn end(&self) -> u64 {
        DISCOVERY_HEADER_LEN as u64 + self.entries * self.entry_len()
    }
}

/// Calls `each` for every route by which the host can reach a subsystem, or the
/// discovery subsystem.
fn routes(
    model: &Model,
    reader: &LogReader<'_>,
    nqn: Option<&Nqn>,
    mut each: impl FnMut(&Route<'_>),
) {
    let LogReader { local, only, .. } = *reader;
    let wanted = |port: &&Port| {
        only.is_none_or(|only| port.is_at(only)) && nqn.is_none_or(|nqn| port.offers(nqn))
    };
    for port in model.ports().iter().filter(wanted) {
        let Some(traddr) = reachable(&port.traddr, local) else {
            continue;
        };
        // On a wildcard port, the providers depend on the address.
        let at = match traddr {
            Traddr::Ip(ip) if port.traddr.is_unspecified() && local.is_some() => Some(ip),
            Traddr::Ip(_) | Traddr::Link(..) | Traddr::Host(_) => None,
        };
        // One entry per provider of an address: hosts check the provider type, or try
        // the entries in order.
        for fabric in port.carriers_at(at) {
            each(&Route {
                portid: port.id,
                trsvcid: port.trsvcid,
                traddr: &traddr,
                fabric,
            });
        }
    }
}

/// The address of a port as the host can use it; `None` if it cannot. A loopback address
/// is unreachable for a remote host, and a host cannot connect to a wildcard address.
fn reachable(traddr: &Traddr, local: Option<Local>) -> Option<Traddr> {
    let ip = match (traddr, local) {
        // A host that connected over IP may be remote, and cannot use the entry: Linux
        // accepts only the IP address families with this transport.
        (Traddr::Host(_), other) => return (other == Some(Local::Host)).then(|| traddr.clone()),
        // RFC 4007, section 6: zone identifiers are local to a node. A host that connected
        // to the address gets it without one; others may not be on this link.
        (Traddr::Link(ip, _), Some(Local::Ip(local))) => {
            return (local == *ip).then_some(Traddr::Ip(local));
        }
        (Traddr::Link(ip, _), None) => return Some(Traddr::Ip((*ip).into())),
        (Traddr::Link(..), Some(Local::Host)) => return Some(traddr.clone()),
        (Traddr::Ip(ip), _) => *ip,
    };
    let ip = match local {
        None => Some(ip),
        Some(Local::Ip(local)) => reachable_ip(ip, local),
        Some(Local::Host) => Some(match ip {
            // The host is on this machine, where loopback is one of all addresses.
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
    // A port on the IPv6 wildcard address does not serve IPv4 (IPV6_V6ONLY), with any
    // provider.
    (traddr.is_ipv6() == local.is_ipv6()).then_some(local)
}

/// The subsystem of an entry.
struct EntrySubject<'a> {
    subtype: SubsystemType,
    nqn: &'a Nqn,
    eflags: EntryFlags,
}

impl<'a> EntrySubject<'a> {
    fn new(subtype: SubsystemType, nqn: &'a Nqn) -> Self {
        Self {
            subtype,
            nqn,
            eflags: EntryFlags::empty(),
        }
    }
}

/// A port and provider by which a subsystem is reached.
struct Route<'a> {
    portid: u16,
    trsvcid: u16,
    traddr: &'a Traddr,
    fabric: Fabric,
}

impl Route<'_> {
    /// The entry of a subsystem on this route. A port within this machine has the
    /// intra-host address family (Base 2.1, 5.1.12.3.1, ADRFAM FEh) and the service
    /// identifier "none", as other transports without one.
    fn entry(&self, subject: &EntrySubject<'_>) -> DiscoveryEntry {
        let (adrfam, trsvcid) = match self.traddr {
            Traddr::Ip(IpAddr::V4(_)) => (AddressFamily::IPV4, self.trsvcid.to_string()),
            Traddr::Ip(IpAddr::V6(_)) | Traddr::Link(..) => {
                (AddressFamily::IPV6, self.trsvcid.to_string())
            }
            Traddr::Host(_) => (AddressFamily::LOOP, "none".to_owned()),
        };
        // The capabilities of a referral are unknown.
        let treq = match subject.subtype {
            SubsystemType::REFERRAL => Treq::empty(),
            _ => Treq::DISABLE_SQFC,
        };
        DiscoveryEntry {
            trtype: TransportType::RDMA,
            adrfam,
            subtype: subject.subtype,
            treq: treq.bits(),
            portid: self.portid.into(),
            cntlid: CNTLID_DYNAMIC.into(),
            asqsz: Limits::ADMIN_DEPTH.into(),
            eflags: subject.eflags.bits().into(),
            trsvcid: Ascii::new(&trsvcid),
            subnqn: subject.nqn.to_field(),
            traddr: Ascii::new(&self.traddr.to_string()),
            tsas: RdmaTsas::connected(self.fabric.provider_type()),
            ..DiscoveryEntry::zeroed()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reported_addresses_are_usable_by_the_host() {
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
            ("::", "10.0.0.1", None),
        ] {
            let shown = shown.map(|shown| Traddr::Ip(ip(shown)));
            let (traddr, local) = (Traddr::Ip(ip(traddr)), Local::Ip(ip(local)));
            assert_eq!(reachable(&traddr, Some(local)), shown, "{traddr}");
        }
        let all = Traddr::Ip(ip("::"));
        assert_eq!(reachable(&all, None), Some(all.clone()));
    }

    #[test]
    fn link_local_address_is_reported_without_zone_to_hosts_that_used_it() {
        let link = Traddr::Link("fe80::1".parse().unwrap(), "eth0".into());
        let ip = |text: &str| Some(Local::Ip(text.parse().unwrap()));
        let expected = "fe80::1".parse().ok();
        assert_eq!(reachable(&link, ip("fe80::1")), expected);
        for other in ["fe80::2", "fd00::1", "10.0.0.1"] {
            assert_eq!(reachable(&link, ip(other)), None, "{other}");
        }
        assert_eq!(reachable(&link, Some(Local::Host)), Some(link.clone()));
    }

    #[test]
    fn intra_host_ports_are_reported_to_intra_host_connections() {
        let here = Traddr::Host("unix:/run/a.sock".into());
        let elsewhere = Local::Ip("127.0.0.1".parse().unwrap());
        assert_eq!(reachable(&here, Some(elsewhere)), None);
        assert_eq!(reachable(&here, None), None);
        assert_eq!(reachable(&here, Some(Local::Host)), Some(here));
        // An intra-host connection reaches all addresses of this machine.
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
