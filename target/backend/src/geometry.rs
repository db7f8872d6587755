//! Properties of a backing store.

use std::sync::Arc;

use nix::errno::Errno;

use crate::{BlockSize, Hints, IoError, IoErrorKind, Op};

/// Properties of a backing store: fixed for the lifetime of its claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Bytes, a multiple of the block size and not 0.
    pub size: u64,
    /// Offsets and lengths are multiples of it.
    pub block_size: BlockSize,
    /// Preferred sizes of writes and deallocations.
    pub hints: Hints,
    /// Alignment of the address of each buffer, in bytes, a power of two; 1 if there is no
    /// requirement.
    pub buffer_alignment: u32,
    /// It is read-only.
    pub readonly: bool,
    /// Deallocated bytes read as zero. If not, deallocating succeeds and has no effect.
    pub deallocate_zeroes: bool,
    /// Writes need a flush to survive a loss of power.
    pub volatile_write_cache: bool,
    /// Reads and writes bypass the page cache of the kernel (`O_DIRECT`).
    pub direct: bool,
    /// The device implements FUA: a durable write makes only its own data durable. If not,
    /// it makes all earlier writes durable too, and they fail with it.
    pub fua_alone: bool,
    /// Submitting an operation may block, so worker threads of the kernel submit it.
    pub may_block: bool,
    /// The medium may be behind a network, where a request can still be executed after its driver
    /// has ended it.
    pub may_be_remote: bool,
}

impl Geometry {
    /// Checks that this backing store can execute `op`.
    #[inline]
    pub(crate) fn check(&self, path: &Arc<str>, op: &Op) -> Result<(), IoError> {
        let (offset, len) = op.range();
        if !self.contains(offset, len) {
            wrong(IoErrorKind::OutOfRange, Errno::EINVAL, path, op)
        } else if self.readonly && op.changes() {
            wrong(IoErrorKind::ReadOnly, Errno::EROFS, path, op)
        } else if !self.is_aligned(op) {
            wrong(IoErrorKind::Limits, Errno::EINVAL, path, op)
        } else {
            Ok(())
        }
    }

    /// Whether `len` bytes from `offset` on are whole blocks inside the backing store.
    fn contains(&self, offset: u64, len: u64) -> bool {
        let block = u64::from(self.block_size.bytes());
        let inside = offset.checked_add(len).is_some_and(|end| end <= self.size);
        // A power of two.
        inside && (offset | len) & (block - 1) == 0
    }

    /// Whether the buffer of `op` has the alignment that direct I/O requires.
    fn is_aligned(&self, op: &Op) -> bool {
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
