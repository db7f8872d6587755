//! Addresses of ports as they are written, listened on and known in the model. Zones of
//! link-local ones (RFC 4007): texts name an interface, `fe80::1%eth0`, the kernel takes its
//! index.
//!
//! This crate asks the kernel for names of interfaces and opens nothing.
#![forbid(unsafe_code)]

use std::net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::sync::{Mutex, PoisonError};

use nix::net::if_::{if_nameindex, if_nametoindex};
use nvmeof_rdma::{Address, AddressError};
use nvmeof_target_core::{PortAddress, Traddr};

/// Names of interfaces that were not there when an address was read. The place of each says
/// which index stands for it, so that two of them differ and the name is not lost: the
/// address is read again when retrying.
static ABSENT: Mutex<Vec<String>> = Mutex::new(Vec::new());
/// Stands for the first of them. The kernel counts interfaces from 1 on and never gets there.
const FIRST_ABSENT: u32 = i32::MAX as u32;
/// The longest name of an interface (IFNAMSIZ of linux/if.h, less the end of the text).
const LONGEST_NAME: usize = 15;

/// The address and the zone of a text such as `fe80::1%eth0`; `None` of others. Addresses that
/// are unique beyond their link have no zone.
#[must_use]
pub fn split(text: &str) -> Option<(Ipv6Addr, &str)> {
    let (ip, zone) = text.split_once('%')?;
    let ip: Ipv6Addr = ip.parse().ok()?;
    (ip.is_unicast_link_local() && may_be_interface(zone)).then_some((ip, zone))
}

/// Whether an interface can have that name: `dev_valid_name` of Linux 6.1, net/core/dev.c.
fn may_be_interface(name: &str) -> bool {
    let is_wrong = |byte: u8| matches!(byte, b'/' | b':' | 0x0b) || byte.is_ascii_whitespace();
    (1..=LONGEST_NAME).contains(&name.len())
        && !matches!(name, "." | "..")
        && !name.bytes().any(is_wrong)
}

/// An address with a port number, in a zone that is an interface or its index.
#[must_use]
pub fn located(ip: Ipv6Addr, zone: &str, port: u16) -> SocketAddr {
    let index = zone.parse().ok().or_else(|| if_nametoindex(zone).ok());
    SocketAddrV6::new(ip, port, 0, index.unwrap_or_else(|| stand_in(zone))).into()
}

/// The index that stands for an interface that is not there.
fn stand_in(name: &str) -> u32 {
    let mut absent = ABSENT.lock().unwrap_or_else(PoisonError::into_inner);
    let at = absent.iter().position(|one| one == name);
    let at = at.unwrap_or_else(|| {
        absent.push(name.to_owned());
        absent.len() - 1
    });
    FIRST_ABSENT.saturating_sub(u32::try_from(at).unwrap_or(u32::MAX))
}

/// The name of the interface that is not there for which `index` stands.
fn absent(index: u32) -> Option<String> {
    let at = usize::try_from(FIRST_ABSENT.checked_sub(index)?).ok()?;
    let absent = ABSENT.lock().unwrap_or_else(PoisonError::into_inner);
    absent.get(at).cloned()
}

/// The interface of an address that is in a zone.
#[must_use]
pub fn of(addr: SocketAddr) -> Option<(Ipv6Addr, String)> {
    let SocketAddr::V6(addr) = addr else {
        return None;
    };
    let index = addr.scope_id();
    let name = || {
        if let Some(name) = absent(index) {
            return Some(name);
        }
        let interfaces = if_nameindex().ok()?;
        let found = interfaces.iter().find(|one| one.index() == index)?;
        Some(found.name().to_string_lossy().into_owned())
    };
    (index != 0).then(|| (*addr.ip(), name().unwrap_or_else(|| index.to_string())))
}

/// The same address as it is now: its interface may have shown up since.
#[must_use]
pub fn resolved(addr: SocketAddr) -> SocketAddr {
    match of(addr) {
        Some((ip, zone)) => located(ip, &zone, addr.port()),
        None => addr,
    }
}

/// The IP address as it is configured, with its zone.
#[must_use]
pub fn traddr(addr: SocketAddr) -> String {
    match of(addr) {
        Some((ip, zone)) => format!("{ip}%{zone}"),
        None => addr.ip().to_string(),
    }
}

/// An address with a port number as it is typed: as [`Address`] has it, and with interfaces by
/// name.
///
/// # Errors
/// [`AddressError`].
pub fn parse(text: &str) -> Result<Address, AddressError> {
    let named = || {
        let (inside, port) = text.strip_prefix('[')?.rsplit_once("]:")?;
        let (ip, zone) = split(inside)?;
        Some(located(ip, zone, port.parse().ok()?).into())
    };
    named().map_or_else(|| text.parse(), Ok)
}

/// The address of the key `traddr`, with that port number.
#[must_use]
pub fn parse_traddr(text: &str, port: u16) -> Option<Address> {
    if let Some((ip, zone)) = split(text) {
        return Some(located(ip, zone, port).into());
    }
    let ip: Result<IpAddr, _> = text.parse();
    match ip {
        Ok(ip) => Some(SocketAddr::new(ip, port).into()),
        Err(_) => text.parse().ok(),
    }
}

/// What a port is known by in the model that is listened on there.
#[must_use]
pub fn port_address(address: Address) -> PortAddress {
    let (traddr, trsvcid) = match address {
        Address::Ip(addr) => match of(addr) {
            Some((ip, interface)) => (Traddr::Link(ip, interface.into()), addr.port()),
            None => (addr.ip().into(), addr.port()),
        },
        Address::Unix(_) => (Traddr::Host(address.to_string().into()), 0),
    };
    PortAddress { traddr, trsvcid }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interfaces_are_named_in_texts_and_numbered_in_addresses() {
        let Address::Ip(addr @ SocketAddr::V6(v6)) = parse("[fe80::1%lo]:4420").unwrap() else {
            panic!("an IPv6 address");
        };
        let index = if_nametoindex("lo").unwrap();
        assert_eq!((v6.scope_id(), v6.port()), (index, 4420));
        assert_eq!(traddr(addr), "fe80::1%lo");
        assert_eq!(
            parse(&format!("[fe80::1%{index}]:4420")).unwrap(),
            addr.into()
        );
        assert_eq!(parse_traddr("fe80::1%lo", 4420), Some(addr.into()));
        assert_eq!(traddr("[fd00::1]:1".parse().unwrap()), "fd00::1");
    }

    #[test]
    fn an_interface_that_is_not_there_leaves_an_address_that_cannot_be_bound() {
        let addr = parse("[fe80::1%nowhere0]:4420")
            .unwrap()
            .socket_addr()
            .unwrap();
        let error = std::net::TcpListener::bind(addr).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(nix::errno::Errno::ENODEV as i32));
    }

    fn v6(addr: SocketAddr) -> SocketAddrV6 {
        let SocketAddr::V6(addr) = addr else {
            panic!("an IPv6 address");
        };
        addr
    }

    #[test]
    fn absent_interfaces_keep_their_names() {
        let (one, two) = ("[fe80::1%absent0]:4420", "[fe80::1%absent1]:4420");
        let (one, two) = (parse(one).unwrap(), parse(two).unwrap());
        assert_ne!(one, two);
        assert_eq!(one, parse("[fe80::1%absent0]:4420").unwrap());
        assert_eq!(traddr(one.socket_addr().unwrap()), "fe80::1%absent0");
        let two = two.socket_addr().unwrap();
        assert_eq!(traddr(two), "fe80::1%absent1");
        assert_eq!(resolved(two), two);
        // It shows up, with an index that the kernel chose.
        ABSENT.lock().unwrap().push("lo".to_owned());
        let lo = SocketAddrV6::new(*v6(two).ip(), 4420, 0, stand_in("lo"));
        let there = if_nametoindex("lo").unwrap();
        assert_eq!(v6(resolved(lo.into())).scope_id(), there);
    }

    #[test]
    fn other_texts_are_as_before() {
        assert_eq!(
            parse("127.0.0.1:1").unwrap(),
            "127.0.0.1:1".parse().unwrap()
        );
        assert_eq!(parse_traddr("unix:/a", 1), "unix:/a".parse().ok());
        for bad in [
            "[fe80::1%]:1",
            "[fe80::1%a:b]:1",
            "[fe80::1%a b]:1",
            "[fe80::1%..]:1",
            "[fe80::1%sixteen-letters-]:1",
            "[10.0.0.1%lo]:1",
            "fe80::1%lo",
            "[fe80::1%lo]",
        ] {
            assert!(parse(bad).is_err(), "{bad}");
        }
        for bad in ["fe80::1%", "fd00::1%lo"] {
            assert_eq!(parse_traddr(bad, 1), None, "{bad}");
        }
    }
}
