//! The source of a connection, by its peer.

use nvmeof_rdma::Peer;
use nvmeof_target_core::Source;

pub(crate) fn source_of(peer: Peer) -> Source {
    match peer {
        Peer::Ip(addr) => Source::Ip(addr.ip()),
        Peer::Process { uid, .. } => Source::User(uid),
    }
}
