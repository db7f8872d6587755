//! The endpoints of a connection, which the engine sets before Connect.

use std::net::IpAddr;
use std::sync::Arc;

use super::Queue;
use crate::Source;
use crate::model::Local;

/// The endpoints of a connection, as far as they are known.
#[derive(Clone, Debug, Default)]
pub(super) struct Endpoints {
    /// The local address to which the host connected.
    pub(super) local: Option<Local>,
    /// The peer, in words.
    pub(super) peer: Arc<str>,
    /// Where it comes from.
    pub(super) source: Option<Source>,
}

impl Queue {
    /// Sets the local address to which the host connected. The discovery log reports it for
    /// a wildcard port.
    pub fn set_local(&mut self, local: IpAddr) {
        self.endpoints.local = Some(Local::Ip(local.to_canonical()));
    }

    /// The host used an intra-host port, not an IP address.
    pub fn set_local_host(&mut self) {
        self.endpoints.local = Some(Local::Host);
    }

    /// Sets the peer, in words, and its source: an address, or a process. Log lines about a
    /// controller name the peer of its admin queue. For the source, see
    /// [`Target::awaited_queues`](crate::Target::awaited_queues).
    pub fn set_peer(&mut self, peer: &str, source: Source) {
        self.endpoints.peer = Arc::from(peer);
        self.endpoints.source = Some(source);
    }
}
