//! Transport addresses.

use std::fmt;
use std::net::{AddrParseError, IpAddr, Ipv6Addr};
use std::str::FromStr;
use std::sync::Arc;

/// The transport address of a port.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Traddr {
    /// An IP address. The unspecified address stands for all addresses of this machine.
    Ip(IpAddr),
    /// A link-local address, and its interface.
    Link(Ipv6Addr, Arc<str>),
    /// An intra-host address, as hosts pass it to their tools, such as
    /// `unix:/run/nvmeof.sock`. Such a port has no service identifier, and is reported to
    /// intra-host connections only.
    Host(Arc<str>),
}

/// The local address to which a host connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Local {
    Ip(IpAddr),
    /// An intra-host address.
    Host,
}

impl Traddr {
    /// Whether it is the wildcard address of a family.
    pub(crate) fn is_unspecified(&self) -> bool {
        matches!(self, Self::Ip(ip) if ip.is_unspecified())
    }
}

impl From<IpAddr> for Traddr {
    fn from(ip: IpAddr) -> Self {
        Self::Ip(ip)
    }
}

impl FromStr for Traddr {
    type Err = AddrParseError;

    /// An IP address.
    fn from_str(text: &str) -> Result<Self, AddrParseError> {
        text.parse().map(Self::Ip)
    }
}

impl fmt::Display for Traddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ip(ip) => ip.fmt(f),
            Self::Link(ip, interface) => write!(f, "{ip}%{interface}"),
            Self::Host(name) => f.write_str(name),
        }
    }
}
