//! Addresses of sockets and ids, between Rust and C.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};

use libc::{sockaddr, sockaddr_in, sockaddr_in6, sockaddr_storage};

use crate::raw::{Ptr, ibv_context, ibv_qp, rdma_cm_id, zeroed};

fn to_raw(addr: SocketAddr) -> sockaddr_storage {
    // SAFETY: numbers.
    let mut raw: sockaddr_storage = unsafe { zeroed() };
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
            // SAFETY: there is room for any address.
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
            // SAFETY: there is room for any address.
            unsafe { place.cast::<sockaddr_in6>().write(v6) };
        }
    }
    raw
}

/// The address at `raw`. `None` if it is null, or its family is not IPv4 or IPv6.
///
/// # Safety
/// Null, or an address as long as its family says.
pub(crate) unsafe fn from_raw(raw: *const sockaddr) -> Option<SocketAddr> {
    if raw.is_null() {
        return None;
    }
    // SAFETY: every address starts with its family.
    let family = unsafe { (*raw).sa_family };
    match i32::from(family) {
        libc::AF_INET => {
            // SAFETY: the family says what it is.
            let v4 = unsafe { raw.cast::<sockaddr_in>().read_unaligned() };
            let ip = Ipv4Addr::from(v4.sin_addr.s_addr.to_ne_bytes());
            Some(SocketAddrV4::new(ip, u16::from_be(v4.sin_port)).into())
        }
        libc::AF_INET6 => {
            // SAFETY: the family says what it is.
            let v6 = unsafe { raw.cast::<sockaddr_in6>().read_unaligned() };
            let ip = Ipv6Addr::from(v6.sin6_addr.s6_addr);
            let port = u16::from_be(v6.sin6_port);
            Some(SocketAddrV6::new(ip, port, v6.sin6_flowinfo, v6.sin6_scope_id).into())
        }
        _ => None,
    }
}

/// Writes the addresses of an id.
pub(crate) fn set_addrs(id: Ptr<rdma_cm_id>, local: Option<SocketAddr>, peer: Option<SocketAddr>) {
    let raw = id.as_ptr();
    if let Some(local) = local {
        // SAFETY: ids are freed by `rdma_destroy_id` alone, which the caller does not call.
        let place = unsafe { &raw mut (*raw).route.addr.src_addr_union };
        // SAFETY: the union is as long as its longest member.
        unsafe { place.cast::<sockaddr_storage>().write(to_raw(local)) };
    }
    if let Some(peer) = peer {
        // SAFETY: as above.
        let place = unsafe { &raw mut (*raw).route.addr.dst_addr_union };
        // SAFETY: as above.
        unsafe { place.cast::<sockaddr_storage>().write(to_raw(peer)) };
    }
}

/// Binds an id to a device.
pub(crate) fn set_device(id: Ptr<rdma_cm_id>, context: Ptr<ibv_context>) {
    let raw = id.as_ptr();
    // SAFETY: as in `set_addrs`.
    let place = unsafe { &raw mut (*raw).verbs };
    // SAFETY: as above.
    unsafe { place.write(context.as_ptr()) };
    // SAFETY: as above.
    let port = unsafe { &raw mut (*raw).port_num };
    // SAFETY: as above.
    unsafe { port.write(1) };
}

/// Sets the queue pair of an id.
pub(crate) fn set_qp(id: Ptr<rdma_cm_id>, qp: *mut ibv_qp) {
    // SAFETY: as in `set_addrs`.
    let place = unsafe { &raw mut (*id.as_ptr()).qp };
    // SAFETY: as above.
    unsafe { place.write(qp) };
}
