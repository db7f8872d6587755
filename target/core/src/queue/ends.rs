//! Where a connection begins and ends, as the edge tells before it is connected.

use std::net::IpAddr;
use std::sync::Arc;

use super::Queue;
use crate::model::Local;

/// Both ends of a connection, as far as they were told.
#[derive(Clone, Debug, Default)]
pub(super) struct Ends {
    /// The address of ours that the host reached.
    pub(super) local: Option<Local>,
    /// Who the host is, in words.
    pub(super) peer: Arc<str>,
}

impl Queue {
    /// The address of ours that the host reached: what it is told to connect
    /// to where a port is on all addresses.
    pub fn set_local(&mut self, local: IpAddr) {
        self.ends.local = Some(Local::Ip(local.to_canonical()));
    }

    /// The host came by a way within this host, not by an IP address.
    pub fn set_local_host(&mut self) {
        self.ends.local = Some(Local::Host);
    }

    /// Who is at the other end, in words: an address, or a process. What the log says
    /// of a controller names the one of its admin queue.
    pub fn set_peer(&mut self, peer: &str) {
        self.ends.peer = Arc::from(peer);
    }
}
