//! Memory keys: what a peer names when it reads or writes our memory.

use std::fmt;

/// A remote key (iWARP: steering tag). On the wire it is 32 bits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RemoteKey(pub u32);

impl fmt::Debug for RemoteKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RemoteKey({:#010x})", self.0)
    }
}

/// A piece of memory on the other side of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemoteSlice {
    /// The key that opens it.
    pub key: RemoteKey,
    /// Address of the first byte, as its owner named it.
    pub addr: u64,
    /// Length in bytes.
    pub len: u32,
}

bitflags::bitflags! {
    /// What a peer may do with exposed memory.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Rights: u8 {
        /// Read it by RDMA Read.
        const REMOTE_READ = 1;
        /// Write it by RDMA Write.
        const REMOTE_WRITE = 2;
    }
}
