//! Memory keys, with which a peer reads or writes local memory.

use std::fmt;

use nvmeof_memory::Buf;

/// A remote key (iWARP: steering tag). On the wire it is 32 bits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RemoteKey(pub u32);

impl fmt::Debug for RemoteKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RemoteKey({:#010x})", self.0)
    }
}

/// A range of the peer's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemoteSlice {
    /// Its key.
    pub key: RemoteKey,
    /// Address of the first byte, as chosen by its owner.
    pub addr: u64,
    /// Length in bytes.
    pub len: u32,
}

/// A region that is exposed as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegionExposure {
    /// Its key.
    pub key: RemoteKey,
    /// Address of its first byte for the peer.
    pub addr: u64,
}

impl RegionExposure {
    /// The view of `buf`, which is a buffer of the region.
    #[must_use]
    pub fn slice_of(&self, buf: &Buf) -> RemoteSlice {
        RemoteSlice {
            key: self.key,
            addr: self.addr.wrapping_add(buf.region_offset()),
            // A longer view has no slice; no command transfers as much.
            len: u32::try_from(buf.len()).unwrap_or(u32::MAX),
        }
    }
}

bitflags::bitflags! {
    /// Access rights of a peer to exposed memory.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Rights: u8 {
        /// Read it by RDMA Read.
        const REMOTE_READ = 1;
        /// Write it by RDMA Write.
        const REMOTE_WRITE = 2;
    }
}
