//! Settings of the caller that an error is about.

/// A setting of the caller that caused an error. Remedies in this crate do not name
/// options of a command line or a job file: each program adds its own names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Setting {
    /// IP address and port of the target.
    Address,
    /// Path of the target's Unix socket.
    SocketPath,
    /// Name of the subsystem.
    Subsystem,
    /// Name of this host.
    HostNqn,
    /// Identifier of this host.
    HostId,
    /// Keys of this host and of the controller.
    Keys,
    /// Number of I/O queues.
    IoQueues,
    /// Entries of each I/O queue.
    QueueSize,
    /// The keep-alive time-out.
    KeepAlive,
    /// Time-out of commands.
    CommandTimeout,
    /// The RDMA provider: software iWARP instead of the one that was chosen.
    SoftwareIwarp,
    /// Folder where targets on this host listen for shared memory.
    ShmFolder,
    /// Namespace identifier, one of the list of active namespaces.
    Namespace,
    /// First block and number of blocks: Identify Namespace has the size.
    Blocks,
    /// Blocks of one fused Compare and Write: NACWU of Identify Namespace or ACWU
    /// of Identify Controller.
    CompareAndWrite,
    /// A field of the command, which the Error Information log names.
    Field,
    /// Reservations of the namespace: holder, registrants and their keys.
    Reservations,
}
