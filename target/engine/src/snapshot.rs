//! What a reactor has at one moment, for those who watch it.

use std::collections::BTreeMap;

use nvmeof_rdma::Peer;

/// What a reactor has at one moment.
#[derive(Clone, Debug)]
pub struct ReactorSnapshot {
    /// Its queue pairs.
    pub queues: Vec<QueueSnapshot>,
    /// Queues with commands that wait for a buffer.
    pub waiting_for_buffers: usize,
    /// Disk operations that wait for room.
    pub waiting_for_disks: usize,
    /// Buffers for data that nobody holds.
    pub free_buffers: usize,
    /// Capsules for receives of new I/O queues.
    pub free_capsules: usize,
}

/// One queue pair of it.
#[derive(Clone, Debug)]
pub struct QueueSnapshot {
    /// The number of its provider.
    pub provider: usize,
    /// Who is at the other end.
    pub peer: Peer,
    /// Queue identifier (QID).
    pub queue: u16,
    /// Entries of its submission queue.
    pub entries: u16,
    /// Whose it is, when it is connected.
    pub member: Option<Member>,
    /// Commands in flight.
    pub commands: usize,
    /// The same by namespace; those that are being answered are left out.
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
