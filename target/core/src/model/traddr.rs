//! Where a port is.

use std::fmt;
use std::net::{AddrParseError, IpAddr, Ipv6Addr};
use std::str::FromStr;
use std::sync::Arc;

/// The transport address of a port.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Traddr {
    /// An IP address; unspecified stands for all of this machine.
    Ip(IpAddr),
    /// An address that is unique on one link alone, and the interface that leads there.
    Link(Ipv6Addr, Arc<str>),
    /// A way within this host, named as hosts give it to their tools, such as
    /// `unix:/run/nvmeof.sock`. Such a port has no number, and only hosts that
    /// came such a way are told of it.
    Host(Arc<str>),
}

/// The address of ours that a host reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Local {
    Ip(IpAddr),
    /// One within this host.
    Host,
}

impl Traddr {
    /// Whether it stands for all IP addresses of a family.
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
