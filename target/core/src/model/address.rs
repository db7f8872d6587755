//! What a port is known by while models come and go.

use std::fmt;
use std::net::SocketAddr;

use super::{Port, Traddr};

/// Where a port is. No two ports of a model are at the same place, so this
/// finds a port again in the next model.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PortAddress {
    /// Address.
    pub traddr: Traddr,
    /// TCP or RDMA CM port; 0 for a way within this host.
    pub trsvcid: u16,
}

impl Port {
    /// Where it is.
    #[must_use]
    pub fn address(&self) -> PortAddress {
        PortAddress {
            traddr: self.traddr.clone(),
            trsvcid: self.trsvcid,
        }
    }

    /// Whether it is there.
    #[must_use]
    pub fn is_at(&self, address: &PortAddress) -> bool {
        (&self.traddr, self.trsvcid) == (&address.traddr, address.trsvcid)
    }
}

impl fmt::Display for PortAddress {
    /// As it is written with a port number: that of IPv6 in brackets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.traddr {
            Traddr::Ip(ip) => SocketAddr::new(*ip, self.trsvcid).fmt(f),
            Traddr::Link(..) => write!(f, "[{}]:{}", self.traddr, self.trsvcid),
            Traddr::Host(name) => f.write_str(name),
        }
    }
}
