//! The address of a port, which identifies it across models.

use std::fmt;
use std::net::SocketAddr;

use super::{Port, Traddr};

/// The address of a port. It is unique in a model, and so identifies the port in the next
/// model.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PortAddress {
    /// Address.
    pub traddr: Traddr,
    /// TCP or RDMA CM port; 0 for an intra-host port.
    pub trsvcid: u16,
}

impl Port {
    /// Its address.
    #[must_use]
    pub fn address(&self) -> PortAddress {
        PortAddress {
            traddr: self.traddr.clone(),
            trsvcid: self.trsvcid,
        }
    }

    /// Whether it has this address.
    #[must_use]
    pub fn is_at(&self, address: &PortAddress) -> bool {
        (&self.traddr, self.trsvcid) == (&address.traddr, address.trsvcid)
    }
}

impl fmt::Display for PortAddress {
    /// Address and port number, with an IPv6 address in brackets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.traddr {
            Traddr::Ip(ip) => SocketAddr::new(*ip, self.trsvcid).fmt(f),
            Traddr::Link(..) => write!(f, "[{}]:{}", self.traddr, self.trsvcid),
            Traddr::Host(name) => f.write_str(name),
        }
    }
}
