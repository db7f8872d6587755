//! RBD images of a Ceph cluster, through librbd.
//!
//! An image is open once in the process, and all reactors share it. A writable one is locked: the
//! exclusive lock of librbd has one owner in the cluster, and this process does not hand it over
//! when another client asks for it. There is no cache, so that a write that has completed is on
//! stable storage.

mod backend;
mod lock;
mod opening;
mod refusal;

use nvmeof_ceph::Image;

pub(crate) use backend::RbdBackend;
pub(crate) use opening::open;
pub use refusal::RbdRefusal;

use crate::Geometry;

/// An open image. Its lock is released when the last owner is gone.
pub(crate) struct RbdStore {
    image: Image,
}

impl RbdStore {
    /// Its current size in bytes.
    pub(crate) fn size(&self) -> Result<u64, RbdRefusal> {
        Ok(self.image.size()?)
    }

    /// Whether a block is readable: the first, one in the middle or the last.
    pub(crate) fn is_readable(&self, geometry: &Geometry) -> bool {
        let block = u64::from(geometry.block_size.bytes());
        let last = geometry.size.saturating_sub(block);
        let middle = last / 2 - last / 2 % block;
        let mut bytes = vec![0; geometry.block_size.bytes() as usize];
        [0, middle, last]
            .into_iter()
            .any(|offset| self.image.read(offset, &mut bytes).is_ok())
    }
}
