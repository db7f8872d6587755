//! What a disk looks like to those who use it.

use std::sync::Arc;

use nix::errno::Errno;

use crate::{BlockSize, Hints, IoError, IoErrorKind, Op};

/// What a disk looks like: fixed from claim to end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Bytes, a multiple of the block size and not 0.
    pub size: u64,
    /// What offsets and lengths are multiples of.
    pub block_size: BlockSize,
    /// In which sizes it is written and freed best.
    pub hints: Hints,
    /// Bytes the address of every buffer must be a multiple of, a power of two; 1
    /// when any will do.
    pub buffer_alignment: u32,
    /// Nothing may be changed.
    pub readonly: bool,
    /// Deallocated bytes read as zero. When not, deallocating succeeds and
    /// does nothing.
    pub deallocate_zeroes: bool,
    /// What is written needs a flush to survive a loss of power.
    pub volatile_write_cache: bool,
    /// Reads and writes go past the page cache of the kernel.
    pub direct: bool,
    /// A write that must be durable is made so by itself. When not, all that was written
    /// before is made durable with it, and fails with it.
    pub fua_alone: bool,
    /// Submitting an operation may wait for it: worker threads of the kernel do that.
    pub may_block: bool,
}

impl Geometry {
    /// What is wrong with asking `op` of this disk, if anything.
    #[inline]
    pub(crate) fn check(&self, path: &Arc<str>, op: &Op) -> Result<(), IoError> {
        let (offset, len) = op.range();
        if !self.contains(offset, len) {
            wrong(IoErrorKind::OutOfRange, Errno::EINVAL, path, op)
        } else if self.readonly && op.changes() {
            wrong(IoErrorKind::ReadOnly, Errno::EROFS, path, op)
        } else if !self.suits(op) {
            wrong(IoErrorKind::Limits, Errno::EINVAL, path, op)
        } else {
            Ok(())
        }
    }

    /// Whether `len` bytes from `offset` on are whole blocks inside the disk.
    fn contains(&self, offset: u64, len: u64) -> bool {
        let block = u64::from(self.block_size.bytes());
        let inside = offset.checked_add(len).is_some_and(|end| end <= self.size);
        // A power of two.
        inside && (offset | len) & (block - 1) == 0
    }

    /// Whether direct I/O takes the buffer of `op`.
    fn suits(&self, op: &Op) -> bool {
        let (Op::Read { buf, .. } | Op::Write { buf, .. }) = op else {
            return true;
        };
        buf.addr() & u64::from(self.buffer_alignment).saturating_sub(1) == 0
    }
}

#[cold]
fn wrong(kind: IoErrorKind, errno: Errno, path: &Arc<str>, op: &Op) -> Result<(), IoError> {
    let (offset, _) = op.range();
    Err(IoError {
        kind,
        errno,
        verb: op.verb(),
        path: Arc::clone(path),
        offset,
    })
}
