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

/// Who reads the log, and how much of it.
pub(crate) struct Asker<'a> {
    pub(crate) hostnqn: &'a Nqn,
    /// The address of ours that the host reached, if it is known.
    pub(crate) local: Option<Local>,
    /// The only port that is wanted; `None`: all, and referrals.
    pub(crate) only: Option<&'a PortAddress>,
    /// Whether entries may be extended ones.
    pub(crate) extended: bool,
}

/// Writes the log page of that generation that the host sees. Gives its length in
/// bytes.
pub(crate) fn write(
    (model, generation): (&Model, u64),
    asker: &Asker<'_>,
    window: &mut Window<'_>,
) -> u64 {
    let Asker {
        hostnqn,
        local,
        only,
        extended,
    } = *asker;
    let mut page = Page {
        window,
        entries: 0,
        extended,
    };
    let discovery = model.discovery();
    if let Some(nqn) = discovery.nqn() {
        // It may stay connected as long as it likes, with Keep Alive.
        let what = What {
            eflags: EntryFlags::EPCSD,
            ..What::new(SubsystemType::CURRENT_DISCOVERY, nqn)
        };
        ways(model, asker, None, |way| page.put(|| way.entry(&what)));
    }
    for subsystem in model.subsystems() {
        if subsystem.allows(hostnqn) {
            let what = What::new(SubsystemType::NVM, &subsystem.nqn);
            let nqn = Some(&subsystem.nqn);
            ways(model, asker, nqn, |way| page.put(|| way.entry(&what)));
        }
    }
    // Base 2.1, 5.1.12.3.1, PLEO: only "NVM subsystem ports that are presented
    // through the same NVM subsystem port that received the Get Log Page command".
    let referrals = discovery.referrals().iter();
    for referral in referrals.filter(|_| only.is_none()) {
        let traddr = Traddr::Ip(referral.traddr);
        if let Some(traddr) = reachable(&traddr, local) {
            let way = Way {
                portid: referral.port_id,
                trsvcid: referral.trsvcid,
                traddr: &traddr,
                fabric: Fabric::Unspecified,
            };
            let what = What::new(SubsystemType::REFERRAL, &referral.nqn);
            page.put(|| way.entry(&what));
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
    /// One more entry, which is made only if some of it is in view.
    fn put(&mut self, entry: impl FnOnce() -> DiscoveryEntry) {
        let at = self.end();
        if self.window.shows(at, self.entry_len()) {
            self.window.put(at, &entry());
            if self.extended {
                // There is nothing to say that an entry does not.
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

/// Calls `each` for every way in which the host can reach a subsystem, or the
/// discovery subsystem.
fn ways(model: &Model, asker: &Asker<'_>, nqn: Option<&Nqn>, mut each: impl FnMut(&Way<'_>)) {
    let Asker { local, only, .. } = *asker;
    let wanted = |port: &&Port| {
        only.is_none_or(|only| port.is_at(only)) && nqn.is_none_or(|nqn| port.leads_to(nqn))
    };
    for port in model.ports().iter().filter(wanted) {
        let Some(traddr) = reachable(&port.traddr, local) else {
            continue;
        };
        // On all addresses it depends on this one what serves it.
        let at = match traddr {
            Traddr::Ip(ip) if port.traddr.is_unspecified() && local.is_some() => Some(ip),
            Traddr::Ip(_) | Traddr::Link(..) | Traddr::Host(_) => None,
        };
        // One entry for each way to the same address: hosts look at the
        // provider type, or try one after the other.
        for fabric in port.carriers_at(at) {
            each(&Way {
                portid: port.id,
                trsvcid: port.trsvcid,
                traddr: &traddr,
                fabric,
            });
        }
    }
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
        // RFC 4007, section 6: what an interface is called is the business of each machine,
        // so that a host that came by the address is told of it without one, and others
        // might not be on that link.
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
    // A port on all addresses of IPv6 has none of IPv4 (IPV6_V6ONLY), whatever provider
    // serves it.
    (traddr.is_ipv6() == local.is_ipv6()).then_some(local)
}

/// What an entry is about.
struct What<'a> {
    subtype: SubsystemType,
    nqn: &'a Nqn,
    eflags: EntryFlags,
}

impl<'a> What<'a> {
    fn new(subtype: SubsystemType, nqn: &'a Nqn) -> Self {
        Self {
            subtype,
            nqn,
            eflags: EntryFlags::empty(),
        }
    }
}

/// How it is reached.
struct Way<'a> {
    portid: u16,
    trsvcid: u16,
    traddr: &'a Traddr,
    fabric: Fabric,
}

impl Way<'_> {
    /// The entry of something that is reached so. A port within this host has
    /// the address family for that (Base 2.1, 5.1.12.3.1, ADRFAM FEh) and, having
    /// no service, says so with the word that other transports without one use.
    fn entry(&self, what: &What<'_>) -> DiscoveryEntry {
        let (adrfam, trsvcid) = match self.traddr {
            Traddr::Ip(IpAddr::V4(_)) => (AddressFamily::IPV4, self.trsvcid.to_string()),
            Traddr::Ip(IpAddr::V6(_)) | Traddr::Link(..) => {
                (AddressFamily::IPV6, self.trsvcid.to_string())
            }
            Traddr::Host(_) => (AddressFamily::LOOP, "none".to_owned()),
        };
        // Of what others can do we know nothing.
        let treq = match what.subtype {
            SubsystemType::REFERRAL => Treq::empty(),
            _ => Treq::DISABLE_SQFC,
        };
        DiscoveryEntry {
            trtype: TransportType::RDMA,
            adrfam,
            subtype: what.subtype,
            treq: treq.bits(),
            portid: self.portid.into(),
            cntlid: CNTLID_DYNAMIC.into(),
            asqsz: Limits::ADMIN_DEPTH.into(),
            eflags: what.eflags.bits().into(),
            trsvcid: Ascii::new(&trsvcid),
            subnqn: what.nqn.to_field(),
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
    fn link_local_addresses_are_told_to_those_who_came_by_them_without_the_interface() {
        let link = Traddr::Link("fe80::1".parse().unwrap(), "eth0".into());
        let ip = |text: &str| Some(Local::Ip(text.parse().unwrap()));
        let told = "fe80::1".parse().ok();
        assert_eq!(reachable(&link, ip("fe80::1")), told);
        for other in ["fe80::2", "fd00::1", "10.0.0.1"] {
            assert_eq!(reachable(&link, ip(other)), None, "{other}");
        }
        assert_eq!(reachable(&link, Some(Local::Host)), Some(link.clone()));
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
