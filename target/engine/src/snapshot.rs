//! The state of a reactor at one moment.

use std::collections::BTreeMap;

use nvmeof_rdma::Peer;

/// The state of a reactor at one moment.
#[derive(Clone, Debug)]
pub struct ReactorSnapshot {
    /// Its queue pairs.
    pub queues: Vec<QueueSnapshot>,
    /// Queues with commands that wait for a buffer.
    pub waiting_for_buffers: usize,
    /// Operations that wait for a free slot of their backing store.
    pub waiting_for_stores: usize,
    /// Free data buffers.
    pub free_buffers: usize,
    /// Free capsule buffers for receives of new I/O queues.
    pub free_capsules: usize,
}

/// One queue pair.
#[derive(Clone, Debug)]
pub struct QueueSnapshot {
    /// The number of its provider.
    pub provider: usize,
    /// The peer.
    pub peer: Peer,
    /// Queue identifier (QID).
    pub queue: u16,
    /// Entries of its submission queue.
    pub entries: u16,
    /// Its controller, if it is connected.
    pub member: Option<Member>,
    /// Commands in flight.
    pub commands: usize,
    /// Commands in flight by namespace, without those whose response is being sent.
    pub namespaces: BTreeMap<u32, usize>,
}

/// The controller that a queue belongs to.
#[derive(Clone, Debug)]
pub struct Member {
    /// Host NQN.
    pub host: String,
    /// Subsystem NQN.
    pub subsystem: String,
    /// Controller ID.
    pub cntlid: u16,
}
