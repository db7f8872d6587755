//! Fixed buffers in lent memory: pieces of it, registered when they are first used and
//! released with the memory.

use io_uring::Submitter;
use nix::errno::Errno;
use nvmeof_memory::{Buf, RegionId, WeakRegion};

use crate::pieces::{NotRegistered, clear_piece, locked_memory_limit, register_piece};

/// Bytes of a piece. Registering allocates and locks its pages, which delays the reactor:
/// less than a millisecond for this size. It is the size of a hugepage.
pub(crate) const PIECE: u64 = 2 << 20;
/// Maximum number of pieces that one ring has registered at a time: 1 GiB. The lender
/// decides how much memory is locked for it, so a limit is required. Memory beyond it is
/// used without registration.
pub(crate) const MAX_PIECES: u16 = 512;
/// One region may have the n-th part of them, so that some remain for others.
const REGION_SHARE: usize = 4;
/// Submissions until a registration is tried again after the kernel refused one.
const RETRY_AFTER: u16 = 4096;
/// Maximum number of pieces that are released at once: each takes the kernel some time,
/// which delays all queues of the reactor.
const RELEASED_AT_ONCE: usize = 16;

/// The registered pieces, at indices of the kernel's table that are reserved for them.
#[derive(Debug)]
pub(crate) struct Lent {
    /// Sorted by region and number.
    pieces: Vec<Piece>,
    free: Vec<u16>,
    /// Maximum number of one region.
    of_region: usize,
    /// Why the kernel refused the last registration, until one succeeds or a piece is
    /// released.
    refused: Option<NotRegistered>,
    /// Submissions until the next attempt.
    retry_after: u16,
    /// The limit on locked memory in bytes.
    limit: Option<u64>,
    /// The piece that is checked next.
    next: usize,
}

#[derive(Debug)]
struct Piece {
    region: RegionId,
    /// It begins at byte `PIECE * number`.
    number: u64,
    index: u16,
    /// The kernel keeps the pages, which are to be freed as soon as the region is.
    memory: WeakRegion,
}

impl Lent {
    /// Uses `count` indices from `first` on.
    pub(crate) fn new(first: u16, count: u16) -> Self {
        Self {
            pieces: Vec::with_capacity(count.into()),
            free: (first..).take(count.into()).collect(),
            of_region: usize::from(count).div_ceil(REGION_SHARE),
            refused: None,
            retry_after: 0,
            limit: locked_memory_limit(),
            next: 0,
        }
    }

    /// The index of the piece that contains the whole view of `buf`. `None` when it crosses
    /// into another piece, or the piece cannot be registered.
    #[inline]
    pub(crate) fn index(&mut self, submitter: &Submitter<'_>, buf: &Buf) -> Option<u16> {
        let first = buf.region_offset();
        let last = first.checked_add(buf.len() as u64)?.checked_sub(1)?;
        let number = first / PIECE;
        if last.max(first) / PIECE != number {
            return None;
        }
        let wanted = (buf.region(), number);
        let found = self.pieces.binary_search_by_key(&wanted, Piece::key);
        if let Ok(at) = found {
            return self.pieces.get(at).map(|piece| piece.index);
        }
        // This must be fast: each operation on lent memory beyond the limit comes here.
        if self.retry_after > 0 || self.free.is_empty() {
            return None;
        }
        let first = self.pieces.partition_point(|piece| piece.region < wanted.0);
        let end = self
            .pieces
            .partition_point(|piece| piece.region <= wanted.0);
        if end.saturating_sub(first) >= self.of_region {
            return None;
        }
        self.register(submitter, buf, number)
    }

    #[cold]
    fn register(&mut self, submitter: &Submitter<'_>, buf: &Buf, number: u64) -> Option<u16> {
        self.release(submitter, RELEASED_AT_ONCE);
        let index = *self.free.last()?;
        let memory = buf.memory();
        let start = number.checked_mul(PIECE)?;
        let bytes = PIECE.min((memory.len() as u64).checked_sub(start)?);
        let registered = if self.limit.is_some_and(|limit| bytes > limit) {
            Err(Errno::ENOMEM)
        } else {
            let len = usize::try_from(bytes).ok()?;
            register_piece(submitter, index, memory.addr().checked_add(start)?, len)
        };
        if let Err(errno) = registered {
            self.retry_after = RETRY_AFTER;
            self.refused = Some(NotRegistered::of(errno, self.limit));
            return None;
        }
        self.free.pop();
        self.refused = None;
        let piece = Piece {
            region: memory.id(),
            number,
            index,
            memory: memory.downgrade(),
        };
        let at = self.pieces.partition_point(|one| one.key() < piece.key());
        self.pieces.insert(at, piece);
        Some(index)
    }

    /// Called with each submission: checks one piece, and releases some if the memory of
    /// that one was freed.
    #[inline]
    pub(crate) fn check_next(&mut self, submitter: &Submitter<'_>) {
        self.retry_after = self.retry_after.saturating_sub(1);
        if self.pieces.is_empty() {
            return;
        }
        self.next = (self.next + 1) % self.pieces.len();
        let gone = self.pieces.get(self.next).map(|piece| &piece.memory);
        if gone.is_some_and(WeakRegion::is_gone) {
            self.release(submitter, RELEASED_AT_ONCE);
        }
    }

    /// Releases at most `most` pieces whose region was freed. No operation uses them: it
    /// would own a buffer, which holds the region.
    pub(crate) fn release(&mut self, submitter: &Submitter<'_>, most: usize) {
        let mut left = most;
        let Self {
            pieces,
            free,
            refused,
            retry_after,
            ..
        } = self;
        pieces.retain(|piece| {
            let gone = left > 0 && piece.memory.is_gone();
            left -= usize::from(gone);
            // An index that could not be cleared is not used again.
            if gone && clear_piece(submitter, piece.index).is_ok() {
                free.push(piece.index);
                *refused = None;
                *retry_after = 0;
            }
            !gone
        });
    }

    /// The number of registered pieces.
    pub(crate) fn count(&self) -> usize {
        self.pieces.len()
    }

    /// Why the kernel refused the last registration.
    pub(crate) fn refused(&self) -> Option<NotRegistered> {
        self.refused
    }
}

impl Piece {
    fn key(&self) -> (RegionId, u64) {
        (self.region, self.number)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use io_uring::IoUring;
    use nvmeof_memory::{Foreign, Lender, Pages, Pool, PoolLayout, Shared};

    use super::*;

    fn lender() -> Lender {
        let layout = PoolLayout {
            count: 2,
            stride: 4096,
            lead: 0,
        };
        let pool = Pool::new(layout, Pages::Shareable).unwrap();
        let region = Foreign::default().map(pool.region().file().unwrap(), 8192, 8192);
        let (marks, _) = Shared::create(4096).unwrap();
        Lender::new(region.unwrap().unwrap(), Arc::new(marks), 0, Arc::new(()))
    }

    #[test]
    fn refused_registration_is_retried_after_release() {
        // Without a table the kernel refuses all registrations.
        let ring = IoUring::new(8).unwrap();
        let (lender, leaving) = (lender(), lender());
        let buf = lender.lend(0, 0, 4096).unwrap();
        let mut lent = Lent::new(0, MAX_PIECES);
        assert_eq!(lent.index(&ring.submitter(), &buf), None);
        assert_eq!(lent.refused(), Some(NotRegistered::Kernel(Errno::ENXIO)));
        assert_eq!(lent.retry_after, RETRY_AFTER);
        // From now on registrations succeed.
        ring.submitter().register_buffers_sparse(8).unwrap();
        assert_eq!(lent.index(&ring.submitter(), &buf), None);
        let piece = Piece {
            region: leaving.region().id(),
            number: 0,
            index: 3,
            memory: leaving.region().downgrade(),
        };
        lent.pieces.push(piece);
        lent.check_next(&ring.submitter());
        assert_eq!(lent.index(&ring.submitter(), &buf), None);
        drop(leaving);
        lent.check_next(&ring.submitter());
        assert_eq!((lent.refused(), lent.count()), (None, 0));
        assert_eq!(lent.index(&ring.submitter(), &buf), Some(3));
        assert_eq!(lent.index(&ring.submitter(), &buf), Some(3));
    }

    #[test]
    fn refused_registration_is_retried_after_delay() {
        let ring = IoUring::new(8).unwrap();
        let lender = lender();
        let buf = lender.lend(0, 0, 4096).unwrap();
        let mut lent = Lent::new(0, MAX_PIECES);
        assert_eq!(lent.index(&ring.submitter(), &buf), None);
        let table = MAX_PIECES.into();
        ring.submitter().register_buffers_sparse(table).unwrap();
        (1..RETRY_AFTER).for_each(|_| lent.check_next(&ring.submitter()));
        assert_eq!(lent.index(&ring.submitter(), &buf), None);
        lent.check_next(&ring.submitter());
        assert!(lent.index(&ring.submitter(), &buf).is_some());
        assert_eq!(lent.refused(), None);
    }

    #[test]
    fn region_quota_leaves_indices_and_release_is_bounded() {
        let ring = IoUring::new(8).unwrap();
        ring.submitter()
            .register_buffers_sparse(MAX_PIECES.into())
            .unwrap();
        let (mine, other) = (lender(), lender());
        let mut lent = Lent::new(0, MAX_PIECES);
        let region = mine.region();
        for number in 1..=lent.of_region as u64 {
            let index = lent.free.pop().unwrap();
            lent.pieces.push(Piece {
                region: region.id(),
                number,
                index,
                memory: region.downgrade(),
            });
        }
        let buf = mine.lend(0, 0, 4096).unwrap();
        assert_eq!(lent.index(&ring.submitter(), &buf), None);
        let others = other.lend(0, 0, 4096).unwrap();
        assert!(lent.index(&ring.submitter(), &others).is_some());
        drop((mine, buf));
        lent.next = 0;
        lent.check_next(&ring.submitter());
        assert_eq!(lent.count(), lent.of_region + 1 - RELEASED_AT_ONCE);
        lent.release(&ring.submitter(), usize::MAX);
        assert_eq!(lent.count(), 1);
    }

    #[test]
    fn registration_beyond_limit_is_not_tried() {
        let ring = IoUring::new(8).unwrap();
        let table = u32::from(MAX_PIECES);
        ring.submitter().register_buffers_sparse(table).unwrap();
        let lender = lender();
        let buf = lender.lend(0, 4096, 1).unwrap();
        let mut lent = Lent::new(0, MAX_PIECES);
        lent.limit = Some(8191);
        assert_eq!(lent.index(&ring.submitter(), &buf), None);
        assert_eq!(lent.refused(), Some(NotRegistered::Limit(8191)));
        let mut lent = Lent::new(0, MAX_PIECES);
        lent.limit = Some(8192);
        let empty = lender.lend(1, 0, 0).unwrap();
        assert_eq!(lent.index(&ring.submitter(), &empty), None);
        assert!(lent.index(&ring.submitter(), &buf).is_some());
    }
}
