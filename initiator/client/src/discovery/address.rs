//! The address and the subsystem that a discovery log page entry names, checked.

use std::net::{IpAddr, SocketAddr, SocketAddrV6};

use nvmeof_rdma::Address;
use nvmeof_wire::Nqn;
use nvmeof_wire::log::DiscoveryEntry;
use nvmeof_wire::log::discovery::{
    AddressFamily, RdmaProviderType, RdmaQpType, TransportType, Treq,
};
use nvmeof_wire::nqn::NqnError;

/// What an entry names, if this host can connect to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EntryTarget {
    /// The address to connect to.
    pub addr: Address,
    /// The subsystem.
    pub subnqn: Nqn,
}

/// Why an entry is not used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SkipReason {
    /// The transport is not RDMA.
    #[error("transport {} ({}) is not supported; this host uses rdma", .0.name(), .0.0)]
    Transport(TransportType),
    /// The address is not one of IP or of a Unix socket.
    #[error("address family {} ({}) is not supported; use ipv4 or ipv6", .0.name(), .0.0)]
    AddressFamily(AddressFamily),
    /// The address is invalid, or this host cannot use it.
    #[error("address {addr}: {why}")]
    Address {
        /// The address, as text.
        addr: String,
        /// The reason.
        why: String,
    },
    /// The name of the subsystem is invalid.
    #[error("invalid SUBNQN: {0}")]
    Subsystem(NqnError),
    /// A secure channel is required (TREQ).
    #[error("the subsystem requires a secure channel (TREQ), which this host does not support")]
    SecureChannel,
    /// The queue pairs are not reliable connected ones.
    #[error("queue pair type {} ({}) is not supported; this host uses connected", .0.name(), .0.0)]
    QueuePairType(RdmaQpType),
    /// The RDMA provider that this host uses for the address does not interoperate with that of
    /// the entry.
    #[error("provider type {} is not reachable with provider {used}", .reported.name())]
    Provider {
        /// The provider type of the entry.
        reported: RdmaProviderType,
        /// The provider of this host.
        used: &'static str,
    },
    /// A limit of this host.
    #[error("more than {limit} {what}; the others are left out")]
    TooMany {
        /// The limit.
        limit: usize,
        /// What there are too many of.
        what: &'static str,
    },
}

impl EntryTarget {
    /// The target of `entry` in a log page that was read from the service at `via`.
    ///
    /// # Errors
    /// [`SkipReason`] if this host cannot connect to it.
    pub fn of(entry: &DiscoveryEntry, via: Address) -> Result<Self, SkipReason> {
        let subnqn = Nqn::from_field(&entry.subnqn).map_err(SkipReason::Subsystem)?;
        if entry.trtype != TransportType::RDMA {
            return Err(SkipReason::Transport(entry.trtype));
        }
        // Some targets leave the field 0.
        if entry.tsas.qptype == RdmaQpType::DATAGRAM {
            return Err(SkipReason::QueuePairType(entry.tsas.qptype));
        }
        if entry.treq().contains(Treq::SECURE_REQUIRED) {
            return Err(SkipReason::SecureChannel);
        }
        let addr = address(entry, via)?;
        Ok(Self { addr, subnqn })
    }
}

fn address(entry: &DiscoveryEntry, via: Address) -> Result<Address, SkipReason> {
    let (traddr, trsvcid) = (entry.traddr.to_string(), entry.trsvcid.to_string());
    let wrong = |why: &dyn ToString| SkipReason::Address {
        addr: match trsvcid.as_str() {
            "" => traddr.clone(),
            port => format!("{traddr} port {port}"),
        },
        why: why.to_string(),
    };
    let is_local = match via {
        Address::Unix(_) => true,
        Address::Ip(via) => via.ip().is_loopback(),
    };
    match entry.adrfam {
        AddressFamily::LOOP if Address::is_unix_text(&traddr) => {
            if !is_local {
                return Err(wrong(&"a Unix socket of another machine"));
            }
            return traddr.parse().map_err(|error| wrong(&error));
        }
        AddressFamily::IPV4 | AddressFamily::IPV6 => {}
        other => return Err(SkipReason::AddressFamily(other)),
    }
    let ip: IpAddr = traddr.parse().map_err(|error| wrong(&error))?;
    let port: u16 = trsvcid.parse().map_err(|error| wrong(&error))?;
    if port == 0 || ip.is_unspecified() {
        return Err(wrong(&"not the address of one port of one host"));
    }
    if ip.is_loopback() && !is_local {
        return Err(wrong(&"a loopback address of another machine"));
    }
    let addr = Address::Ip(with_zone(SocketAddr::new(ip, port), via));
    addr.check().map_err(|error| wrong(&error))?;
    Ok(addr)
}

/// Link-local addresses in a log page have no zone, because a zone is local to a host (RFC 4007,
/// section 6). An address on the link of the service has the zone of the service.
fn with_zone(addr: SocketAddr, via: Address) -> SocketAddr {
    match (addr, via) {
        (SocketAddr::V6(addr), Address::Ip(SocketAddr::V6(via)))
            if addr.ip().is_unicast_link_local() && via.ip().is_unicast_link_local() =>
        {
            SocketAddrV6::new(*addr.ip(), addr.port(), 0, via.scope_id()).into()
        }
        _ => addr,
    }
}

#[cfg(test)]
mod tests {
    use nvmeof_wire::Ascii;
    use nvmeof_wire::log::discovery::RdmaTsas;

    use super::*;

    const SUBNQN: &str = "nqn.2026-11.org.example:disk";

    fn entry(traddr: &str, trsvcid: &str) -> DiscoveryEntry {
        let mut entry = DiscoveryEntry::zeroed();
        entry.trtype = TransportType::RDMA;
        entry.adrfam = match traddr {
            _ if traddr.starts_with("unix:") => AddressFamily::LOOP,
            _ if traddr.contains(':') => AddressFamily::IPV6,
            _ => AddressFamily::IPV4,
        };
        entry.traddr = Ascii::new(traddr);
        entry.trsvcid = Ascii::new(trsvcid);
        entry.subnqn = Nqn::new(SUBNQN).unwrap().to_field();
        entry.tsas = RdmaTsas::connected(RdmaProviderType::IWARP);
        entry
    }

    fn found(traddr: &str, trsvcid: &str, via: &str) -> Result<String, String> {
        let target = EntryTarget::of(&entry(traddr, trsvcid), via.parse().unwrap());
        match target {
            Ok(target) => Ok(target.addr.to_string()),
            Err(reason) => Err(reason.to_string()),
        }
    }

    #[test]
    fn usable_addresses_are_returned() {
        for (traddr, trsvcid, via, expected) in [
            ("192.0.2.1", "4420", "192.0.2.9:8009", "192.0.2.1:4420"),
            ("2001:db8::1", "1", "192.0.2.9:8009", "[2001:db8::1]:1"),
            ("127.0.0.1", "4420", "127.0.0.1:8009", "127.0.0.1:4420"),
            ("127.0.0.1", "4420", "unix:/run/a.sock", "127.0.0.1:4420"),
            (
                "unix:/run/b.sock",
                "none",
                "unix:/run/a.sock",
                "unix:/run/b.sock",
            ),
            ("fe80::1", "4420", "[fe80::2%7]:8009", "[fe80::1%7]:4420"),
        ] {
            assert_eq!(found(traddr, trsvcid, via), Ok(expected.to_owned()));
        }
    }

    #[test]
    fn unusable_addresses_are_refused_with_a_reason() {
        for (traddr, trsvcid, word) in [
            ("127.0.0.1", "4420", "loopback address of another machine"),
            ("unix:/run/a.sock", "none", "Unix socket of another machine"),
            ("0.0.0.0", "4420", "one host"),
            ("192.0.2.1", "0", "one port"),
            ("192.0.2.1", "rdma", "192.0.2.1 port rdma: invalid digit"),
            ("192.0.2.1", "70000", "too large"),
            ("target.example.org", "4420", "invalid IP address"),
            ("224.0.0.1", "4420", "multicast"),
            ("fe80::1", "4420", "link-local"),
            ("::ffff:192.0.2.1", "4420", "192.0.2.1"),
        ] {
            let reason = found(traddr, trsvcid, "192.0.2.9:8009").unwrap_err();
            assert!(reason.contains(word), "{traddr}: {reason}");
        }
    }

    #[test]
    fn other_transports_and_requirements_are_refused() {
        type Change = fn(&mut DiscoveryEntry);
        let changes: [(Change, &str); 6] = [
            (
                |entry| entry.trtype = TransportType::TCP,
                "transport tcp (3)",
            ),
            (|entry| entry.trtype = TransportType(9), "unrecognized (9)"),
            (|entry| entry.adrfam = AddressFamily::IB, "infiniband"),
            (|entry| entry.treq = 1, "secure channel"),
            (|entry| entry.tsas.qptype = RdmaQpType::DATAGRAM, "datagram"),
            (|entry| entry.subnqn = [b'x'; 256], "no NUL"),
        ];
        for (change, word) in changes {
            let mut entry = entry("192.0.2.1", "4420");
            change(&mut entry);
            let reason = EntryTarget::of(&entry, "192.0.2.9:8009".parse().unwrap());
            let reason = reason.unwrap_err().to_string();
            assert!(reason.contains(word), "{reason}");
        }
    }
}
