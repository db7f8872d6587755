//! Sources of connections, as far as known before a Connect.

use std::net::{IpAddr, Ipv6Addr};

/// The source of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Source {
    /// An IP address.
    Ip(IpAddr),
    /// A user of this machine.
    User(u32),
}

impl Source {
    /// One source for all addresses of a site. A site has a whole network of IPv6
    /// addresses (RFC 4291, section 2.5.4); any other source stands for itself.
    #[must_use]
    pub fn network(self) -> Self {
        const NETWORK: u128 = !0 << 64;
        match self {
            Self::Ip(ip) => Self::Ip(match ip.to_canonical() {
                IpAddr::V6(ip) => Ipv6Addr::from_bits(ip.to_bits() & NETWORK).into(),
                v4 @ IpAddr::V4(_) => v4,
            }),
            user @ Self::User(_) => user,
        }
    }
}
