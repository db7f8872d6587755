//! Addresses, from Rust to C and back.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};

use libc::{sockaddr_in, sockaddr_in6, sockaddr_storage};

/// An address with its family, in storage for any kind of address.
pub(super) fn to_raw(addr: SocketAddr) -> sockaddr_storage {
    // SAFETY: an address is numbers, for which zero is a value.
    let mut raw: sockaddr_storage = unsafe { std::mem::zeroed() };
    let place = &raw mut raw;
    match addr {
        SocketAddr::V4(addr) => {
            let v4 = sockaddr_in {
                sin_family: libc::sa_family_t::try_from(libc::AF_INET).unwrap_or_default(),
                sin_port: addr.port().to_be(),
                sin_addr: libc::in_addr {
                    s_addr: u32::from_ne_bytes(addr.ip().octets()),
                },
                sin_zero: [0; 8],
            };
            // SAFETY: the storage is as large and aligned as any address.
            unsafe { place.cast::<sockaddr_in>().write(v4) };
        }
        SocketAddr::V6(addr) => {
            let v6 = sockaddr_in6 {
                sin6_family: libc::sa_family_t::try_from(libc::AF_INET6).unwrap_or_default(),
                sin6_port: addr.port().to_be(),
                sin6_flowinfo: addr.flowinfo(),
                sin6_addr: libc::in6_addr {
                    s6_addr: addr.ip().octets(),
                },
                sin6_scope_id: addr.scope_id(),
            };
            // SAFETY: as above.
            unsafe { place.cast::<sockaddr_in6>().write(v6) };
        }
    }
    raw
}

/// The address in `raw`. `None` if its family is not IPv4 or IPv6.
pub(super) fn from_raw(raw: &sockaddr_storage) -> Option<SocketAddr> {
    let place = &raw const *raw;
    match i32::from(raw.ss_family) {
        libc::AF_INET => {
            // SAFETY: the family says which address the storage holds.
            let v4 = unsafe { place.cast::<sockaddr_in>().read() };
            let ip = Ipv4Addr::from(v4.sin_addr.s_addr.to_ne_bytes());
            Some(SocketAddrV4::new(ip, u16::from_be(v4.sin_port)).into())
        }
        libc::AF_INET6 => {
            // SAFETY: as above.
            let v6 = unsafe { place.cast::<sockaddr_in6>().read() };
            let ip = Ipv6Addr::from(v6.sin6_addr.s6_addr);
            let port = u16::from_be(v6.sin6_port);
            Some(SocketAddrV6::new(ip, port, v6.sin6_flowinfo, v6.sin6_scope_id).into())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn address_round_trips() {
        for text in [
            "10.1.2.3:4420",
            "[fd00::1]:4421",
            "0.0.0.0:0",
            "[fe80::2%7]:1",
        ] {
            let addr: SocketAddr = text.parse().unwrap();
            assert_eq!(from_raw(&to_raw(addr)), Some(addr));
        }
        // SAFETY: numbers.
        let none: sockaddr_storage = unsafe { std::mem::zeroed() };
        assert_eq!(from_raw(&none), None);
    }
}
