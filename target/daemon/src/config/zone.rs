//! Zones of link-local addresses (RFC 4007): texts name an interface, `fe80::1%eth0`, the kernel
//! takes its index.

use std::net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV6};

use nix::net::if_::{if_nameindex, if_nametoindex};
use nvmeof_rdma::{Address, AddressError};

/// Stands for an interface that is not there (yet): no interface has this index.
const NO_INTERFACE: u32 = i32::MAX as u32;

/// The address and the zone of a text such as `fe80::1%eth0`; `None` of others. Addresses that
/// are unique beyond their link have no zone.
pub(crate) fn split(text: &str) -> Option<(Ipv6Addr, &str)> {
    let (ip, zone) = text.split_once('%')?;
    let ip: Ipv6Addr = ip.parse().ok()?;
    (ip.is_unicast_link_local() && !zone.is_empty()).then_some((ip, zone))
}

/// An address with a port number, in a zone that is an interface or its index.
pub(crate) fn located(ip: Ipv6Addr, zone: &str, port: u16) -> SocketAddr {
    let index = zone.parse().ok().or_else(|| if_nametoindex(zone).ok());
    SocketAddrV6::new(ip, port, 0, index.unwrap_or(NO_INTERFACE)).into()
}

/// The interface of an address that is in a zone.
pub(crate) fn of(addr: SocketAddr) -> Option<(Ipv6Addr, String)> {
    let SocketAddr::V6(addr) = addr else {
        return None;
    };
    let index = addr.scope_id();
    let name = || {
        let interfaces = if_nameindex().ok()?;
        let found = interfaces.iter().find(|one| one.index() == index)?;
        Some(found.name().to_string_lossy().into_owned())
    };
    (index != 0).then(|| (*addr.ip(), name().unwrap_or_else(|| index.to_string())))
}

/// The IP address as it is configured, with its zone.
pub(crate) fn traddr(addr: SocketAddr) -> String {
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
pub(crate) fn parse(text: &str) -> Result<Address, AddressError> {
    let named = || {
        let (inside, port) = text.strip_prefix('[')?.rsplit_once("]:")?;
        let (ip, zone) = split(inside)?;
        Some(located(ip, zone, port.parse().ok()?).into())
    };
    named().map_or_else(|| text.parse(), Ok)
}

/// The address of the key `traddr`, with that port number.
pub(crate) fn parse_traddr(text: &str, port: u16) -> Option<Address> {
    if let Some((ip, zone)) = split(text) {
        return Some(located(ip, zone, port).into());
    }
    let ip: Result<IpAddr, _> = text.parse();
    match ip {
        Ok(ip) => Some(SocketAddr::new(ip, port).into()),
        Err(_) => text.parse().ok(),
    }
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

    #[test]
    fn other_texts_are_as_before() {
        assert_eq!(
            parse("127.0.0.1:1").unwrap(),
            "127.0.0.1:1".parse().unwrap()
        );
        assert_eq!(parse_traddr("unix:/a", 1), "unix:/a".parse().ok());
        for bad in [
            "[fe80::1%]:1",
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
