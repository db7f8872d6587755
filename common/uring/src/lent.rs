//! Fixed buffers in memory that other processes lend: pieces of it, registered
//! when they are first used and let go with the memory.

use io_uring::Submitter;
use nix::errno::Errno;
use nvmeof_memory::{Buf, RegionId, WeakRegion};

use crate::pieces::{LeftOut, clear_piece, locked_memory_limit, register_piece};

/// Bytes of a piece. Registering takes and locks its pages, which keeps others
/// waiting meanwhile: less than a millisecond for so many. A hugepage is one.
pub(crate) const PIECE: u64 = 2 << 20;
/// Pieces that one ring registers at once, at most: 1 GiB. Whoever lends decides
/// what is locked for it, so there is an end. What is beyond that is used without.
pub(crate) const PLACES: u16 = 512;
/// Part of them that one region may have, so that others find places as well.
const OF_ONE: usize = 4;
/// Turns in which the kernel is not asked again after it refused a piece.
const PATIENCE: u16 = 4096;
/// Pieces that are let go in one turn: each takes the kernel some time, during
/// which everybody waits.
const IN_A_TURN: usize = 16;

/// The pieces that are registered, in places of the kernel's table that were
/// left free for them.
#[derive(Debug)]
pub(crate) struct Lent {
    /// By region and number.
    pieces: Vec<Piece>,
    free: Vec<u16>,
    /// Most of one region.
    of_one: usize,
    /// Why the kernel took no further one, until it does or some are let go.
    refused: Option<LeftOut>,
    /// Turns until it is asked again.
    patience: u16,
    /// The limit on locked memory in bytes.
    limit: Option<u64>,
    /// Which one is looked at next, whether its memory is still there.
    next: usize,
}

#[derive(Debug)]
struct Piece {
    region: RegionId,
    /// From its `PIECE * number`th byte on.
    number: u64,
    place: u16,
    /// The kernel keeps the pages, not us: they are to go when nobody else has
    /// them any more.
    memory: WeakRegion,
}

impl Lent {
    /// Uses `places` places from `first` on.
    pub(crate) fn new(first: u16, places: u16) -> Self {
        Self {
            pieces: Vec::with_capacity(places.into()),
            free: (first..).take(places.into()).collect(),
            of_one: usize::from(places).div_ceil(OF_ONE),
            refused: None,
            patience: 0,
            limit: locked_memory_limit(),
            next: 0,
        }
    }

    /// The place of the piece that all of `buf`'s view lies in. `None` when it
    /// lies in two, or the piece cannot be registered.
    #[inline]
    pub(crate) fn place(&mut self, submitter: &Submitter<'_>, buf: &Buf) -> Option<u16> {
        let first = buf.region_offset();
        let last = first.checked_add(buf.len() as u64)?.checked_sub(1)?;
        let number = first / PIECE;
        if last.max(first) / PIECE != number {
            return None;
        }
        let wanted = (buf.region(), number);
        let found = self.pieces.binary_search_by_key(&wanted, Piece::name);
        if let Ok(at) = found {
            return self.pieces.get(at).map(|piece| piece.place);
        }
        // Nothing that takes long: all that is lent beyond the end comes here.
        if self.patience > 0 || self.free.is_empty() {
            return None;
        }
        let first = self.pieces.partition_point(|piece| piece.region < wanted.0);
        let end = self
            .pieces
            .partition_point(|piece| piece.region <= wanted.0);
        if end.saturating_sub(first) >= self.of_one {
            return None;
        }
        self.register(submitter, buf, number)
    }

    #[cold]
    fn register(&mut self, submitter: &Submitter<'_>, buf: &Buf, number: u64) -> Option<u16> {
        self.let_go(submitter, IN_A_TURN);
        let place = *self.free.last()?;
        let memory = buf.memory();
        let start = number.checked_mul(PIECE)?;
        let bytes = PIECE.min((memory.len() as u64).checked_sub(start)?);
        let registered = if self.limit.is_some_and(|limit| bytes > limit) {
            Err(Errno::ENOMEM)
        } else {
            let len = usize::try_from(bytes).ok()?;
            register_piece(submitter, place, memory.addr().checked_add(start)?, len)
        };
        if let Err(errno) = registered {
            self.patience = PATIENCE;
            self.refused = Some(LeftOut::of(errno, self.limit));
            return None;
        }
        self.free.pop();
        self.refused = None;
        let piece = Piece {
            region: memory.id(),
            number,
            place,
            memory: memory.downgrade(),
        };
        let at = self.pieces.partition_point(|one| one.name() < piece.name());
        self.pieces.insert(at, piece);
        Some(place)
    }

    /// A turn: looks at one of the pieces, and lets go of some whose memory nobody
    /// has any more if that is one.
    #[inline]
    pub(crate) fn look(&mut self, submitter: &Submitter<'_>) {
        self.patience = self.patience.saturating_sub(1);
        if self.pieces.is_empty() {
            return;
        }
        self.next = (self.next + 1) % self.pieces.len();
        let gone = self.pieces.get(self.next).map(|piece| &piece.memory);
        if gone.is_some_and(WeakRegion::is_gone) {
            self.let_go(submitter, IN_A_TURN);
        }
    }

    /// Lets go of the pieces whose memory nobody has any more, as many as `most`.
    /// An operation has its buffer, and that its region: so none uses them.
    pub(crate) fn let_go(&mut self, submitter: &Submitter<'_>, most: usize) {
        let mut left = most;
        let Self {
            pieces,
            free,
            refused,
            patience,
            ..
        } = self;
        pieces.retain(|piece| {
            let gone = left > 0 && piece.memory.is_gone();
            left -= usize::from(gone);
            // A place that could not be cleared is not used again.
            if gone && clear_piece(submitter, piece.place).is_ok() {
                free.push(piece.place);
                *refused = None;
                *patience = 0;
            }
            !gone
        });
    }

    /// How many are registered.
    pub(crate) fn count(&self) -> usize {
        self.pieces.len()
    }

    /// Why the kernel took no further one.
    pub(crate) fn refused(&self) -> Option<LeftOut> {
        self.refused
    }
}

impl Piece {
    fn name(&self) -> (RegionId, u64) {
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
    fn what_is_refused_is_not_asked_for_again_until_others_left() {
        // No table: whatever is asked, the kernel refuses.
        let ring = IoUring::new(8).unwrap();
        let (lender, leaving) = (lender(), lender());
        let buf = lender.lend(0, 0, 4096).unwrap();
        let mut lent = Lent::new(0, PLACES);
        assert_eq!(lent.place(&ring.submitter(), &buf), None);
        assert_eq!(lent.refused(), Some(LeftOut::Kernel(Errno::ENXIO)));
        assert_eq!(lent.patience, PATIENCE);
        // From now on it would take it.
        ring.submitter().register_buffers_sparse(8).unwrap();
        assert_eq!(lent.place(&ring.submitter(), &buf), None);
        let piece = Piece {
            region: leaving.region().id(),
            number: 0,
            place: 3,
            memory: leaving.region().downgrade(),
        };
        lent.pieces.push(piece);
        lent.look(&ring.submitter());
        assert_eq!(lent.place(&ring.submitter(), &buf), None);
        drop(leaving);
        lent.look(&ring.submitter());
        assert_eq!((lent.refused(), lent.count()), (None, 0));
        assert_eq!(lent.place(&ring.submitter(), &buf), Some(3));
        assert_eq!(lent.place(&ring.submitter(), &buf), Some(3));
    }

    #[test]
    fn what_was_refused_is_asked_for_again_after_a_while() {
        let ring = IoUring::new(8).unwrap();
        let lender = lender();
        let buf = lender.lend(0, 0, 4096).unwrap();
        let mut lent = Lent::new(0, PLACES);
        assert_eq!(lent.place(&ring.submitter(), &buf), None);
        let table = PLACES.into();
        ring.submitter().register_buffers_sparse(table).unwrap();
        (1..PATIENCE).for_each(|_| lent.look(&ring.submitter()));
        assert_eq!(lent.place(&ring.submitter(), &buf), None);
        lent.look(&ring.submitter());
        assert!(lent.place(&ring.submitter(), &buf).is_some());
        assert_eq!(lent.refused(), None);
    }

    #[test]
    fn one_region_leaves_places_to_others_and_a_turn_lets_go_of_few() {
        let ring = IoUring::new(8).unwrap();
        ring.submitter()
            .register_buffers_sparse(PLACES.into())
            .unwrap();
        let (mine, other) = (lender(), lender());
        let mut lent = Lent::new(0, PLACES);
        let region = mine.region();
        for number in 1..=lent.of_one as u64 {
            let place = lent.free.pop().unwrap();
            lent.pieces.push(Piece {
                region: region.id(),
                number,
                place,
                memory: region.downgrade(),
            });
        }
        let buf = mine.lend(0, 0, 4096).unwrap();
        assert_eq!(lent.place(&ring.submitter(), &buf), None);
        let others = other.lend(0, 0, 4096).unwrap();
        assert!(lent.place(&ring.submitter(), &others).is_some());
        drop((mine, buf));
        lent.next = 0;
        lent.look(&ring.submitter());
        assert_eq!(lent.count(), lent.of_one + 1 - IN_A_TURN);
        lent.let_go(&ring.submitter(), usize::MAX);
        assert_eq!(lent.count(), 1);
    }

    #[test]
    fn more_than_the_limit_is_not_tried() {
        let ring = IoUring::new(8).unwrap();
        let table = u32::from(PLACES);
        ring.submitter().register_buffers_sparse(table).unwrap();
        let lender = lender();
        let buf = lender.lend(0, 4096, 1).unwrap();
        let mut lent = Lent::new(0, PLACES);
        lent.limit = Some(8191);
        assert_eq!(lent.place(&ring.submitter(), &buf), None);
        assert_eq!(lent.refused(), Some(LeftOut::Limit(8191)));
        let mut lent = Lent::new(0, PLACES);
        lent.limit = Some(8192);
        let empty = lender.lend(1, 0, 0).unwrap();
        assert_eq!(lent.place(&ring.submitter(), &empty), None);
        assert!(lent.place(&ring.submitter(), &buf).is_some());
    }
}
