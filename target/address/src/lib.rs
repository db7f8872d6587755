//! Addresses of ports: as text, as socket addresses and in the model.
//!
//! A link-local address has a zone (RFC 4007). In text the zone is the name of an interface,
//! `fe80::1%eth0`; in a socket address it is the index of that interface.
//!
//! This crate asks the kernel for the names of interfaces. It opens no sockets.
#![forbid(unsafe_code)]

use std::net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::sync::{Mutex, PoisonError};

use nix::net::if_::{if_nameindex, if_nametoindex};
use nvmeof_rdma::{Address, AddressError};
use nvmeof_target_core::{PortAddress, Traddr};

/// Names of interfaces that did not exist when an address was parsed. The position of each
/// determines the placeholder index, so that two of them differ and the name is kept: it is
/// resolved again at each retry.
static ABSENT: Mutex<Vec<String>> = Mutex::new(Vec::new());
/// Placeholder index of the first one. The kernel numbers interfaces from 1 and does not get
/// this far.
const FIRST_ABSENT: u32 = i32::MAX as u32;
/// The longest name of an interface (IFNAMSIZ of linux/if.h without the terminating NUL).
const LONGEST_NAME: usize = 15;

/// The address and the zone of a text such as `fe80::1%eth0`; `None` if it is anything else.
/// Only link-local addresses have a zone.
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

/// The socket address with the zone, which is the name or the index of an interface.
#[must_use]
pub fn located(ip: Ipv6Addr, zone: &str, port: u16) -> SocketAddr {
    let index = zone.parse().ok().or_else(|| if_nametoindex(zone).ok());
    SocketAddrV6::new(ip, port, 0, index.unwrap_or_else(|| stand_in(zone))).into()
}

/// The placeholder index of an interface that does not exist.
fn stand_in(name: &str) -> u32 {
    let mut absent = ABSENT.lock().unwrap_or_else(PoisonError::into_inner);
    let at = absent.iter().position(|one| one == name);
    let at = at.unwrap_or_else(|| {
        absent.push(name.to_owned());
        absent.len() - 1
    });
    FIRST_ABSENT.saturating_sub(u32::try_from(at).unwrap_or(u32::MAX))
}

/// The name of the interface with the placeholder `index`.
fn absent(index: u32) -> Option<String> {
    let at = usize::try_from(FIRST_ABSENT.checked_sub(index)?).ok()?;
    let absent = ABSENT.lock().unwrap_or_else(PoisonError::into_inner);
    absent.get(at).cloned()
}

/// The address and its interface, if it has a zone.
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

/// The same address with the current index of its interface, which may exist by now.
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

/// Parses an address with a port number: as [`Address`] does, and with interfaces by name.
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

/// The address of a port in the model, for the address that it listens on.
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
    fn zone_is_a_name_in_text_and_an_index_in_addresses() {
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
    fn address_on_absent_interface_cannot_be_bound() {
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
    fn absent_interface_keeps_its_name() {
        let (one, two) = ("[fe80::1%absent0]:4420", "[fe80::1%absent1]:4420");
        let (one, two) = (parse(one).unwrap(), parse(two).unwrap());
        assert_ne!(one, two);
        assert_eq!(one, parse("[fe80::1%absent0]:4420").unwrap());
        assert_eq!(traddr(one.socket_addr().unwrap()), "fe80::1%absent0");
        let two = two.socket_addr().unwrap();
        assert_eq!(traddr(two), "fe80::1%absent1");
        assert_eq!(resolved(two), two);
        // The interface appears, with an index of the kernel.
        ABSENT.lock().unwrap().push("lo".to_owned());
        let lo = SocketAddrV6::new(*v6(two).ip(), 4420, 0, stand_in("lo"));
        let there = if_nametoindex("lo").unwrap();
        assert_eq!(v6(resolved(lo.into())).scope_id(), there);
    }

    #[test]
    fn addresses_without_zone_are_parsed_as_before() {
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
