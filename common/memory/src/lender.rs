//! Memory that another process lends to this one, piece by piece.

use std::fmt;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use crate::buf::Buf;
use crate::home::{Home, LENT, Marks, Owner};
use crate::memfd::{self, SharedError};
use crate::region::{Region, WeakRegion};
use crate::shared::Shared;

/// A region that another process shares with this one. A piece that is [lent](Self::lend) is
/// a [`Buf`]. A mark in shared memory is set as long as it lives, so that the owner knows
/// when it is no longer used.
///
/// # Threats
/// The owner may write the bytes at any time, and may lend the same bytes under two numbers.
/// So a lent buffer is never a slice ([`Buf::is_lent`]): the kernel accesses it, or it is
/// filled or copied, with copies that may race. An owner that changes the bytes affects only
/// its own data. It cannot unmap the memory: the file is sealed against shrinking.
#[derive(Clone, Debug)]
pub struct Lender {
    home: Arc<Home>,
}

impl Lender {
    /// Lends pieces of `region`. The mark of number `n` is the word at byte `first + 8 * n` of
    /// `shared`. `alive` is dropped after the lender and all lent buffers.
    #[must_use]
    pub fn new(
        region: ForeignRegion,
        shared: Arc<Shared>,
        first: usize,
        alive: Arc<dyn fmt::Debug + Send + Sync>,
    ) -> Self {
        let marks = Marks::new(shared, first, alive);
        Self {
            home: Home::new(region.0, Owner::Peer(marks)),
        }
    }

    /// Lends `len` bytes from byte `start` of the region on, under `number`. `None` if they are
    /// not inside, if that number is in use, or if it has no mark. See [`marking`](crate::marking).
    #[inline]
    #[must_use]
    pub fn lend(&self, number: u32, start: u64, len: u32) -> Option<Buf> {
        let start = usize::try_from(start).ok()?;
        let end = start.checked_add(len as usize)?;
        if number >= LENT || end > self.home.region().len() || !self.home.marks()?.set(number) {
            return None;
        }
        let first = self.home.region().at(start);
        // SAFETY: the piece is inside the region. Other `Buf`s may cover it, all of them
        // lent: a `ForeignRegion` has no others, and no code makes references to its bytes.
        Some(unsafe { Buf::new(first, len, number | LENT, Arc::clone(&self.home)) })
    }

    /// The region.
    #[must_use]
    pub fn region(&self) -> &Region {
        self.home.region()
    }
}

/// A region of another process, to be [lent](Lender::lend). This process has no references to
/// its bytes, and no pool in it.
#[derive(Clone, Debug)]
pub struct ForeignRegion(Region);

impl ForeignRegion {
    /// The region: its id, address and length.
    #[must_use]
    pub fn region(&self) -> &Region {
        &self.0
    }
}

/// The regions that other processes share with this one. Each is mapped once, also if it is
/// passed several times, as long as it is in use.
#[derive(Debug, Default)]
pub struct Foreign {
    regions: Vec<WeakRegion>,
}

impl Foreign {
    /// Maps `len` bytes of memory that another process allocated with
    /// [`Pages::Shareable`](crate::Pages::Shareable), unless they are mapped already. The
    /// descriptor is not needed after that. `None` if more than `most` bytes would be mapped
    /// in total.
    ///
    /// # Errors
    /// [`SharedError`] when it is not `len` bytes long or not sealed against shrinking.
    pub fn map(
        &mut self,
        fd: BorrowedFd<'_>,
        len: usize,
        most: usize,
    ) -> Result<Option<ForeignRegion>, SharedError> {
        let stat = memfd::check(fd, len)?;
        let origin = Some((stat.st_dev, stat.st_ino));
        self.regions.retain(|region| region.upgrade().is_some());
        let mut known = self.regions.iter().filter_map(WeakRegion::upgrade);
        if let Some(known) = known.find(|known| known.origin() == origin) {
            return Ok(Some(ForeignRegion(known)));
        }
        if self.mapped().saturating_add(len) > most {
            return Ok(None);
        }
        let region = Region::open(fd, len)?;
        self.regions.push(region.downgrade());
        Ok(Some(ForeignRegion(region)))
    }

    /// Number of mapped bytes.
    #[must_use]
    pub fn mapped(&self) -> usize {
        let known = self.regions.iter().filter_map(WeakRegion::upgrade);
        known.map(|region| region.len()).sum()
    }
}

// Miri knows no memfd.
#[cfg(test)]
#[cfg(not(miri))]
mod tests {
    use super::*;
    use crate::{Pages, Pool, PoolLayout};
    use std::os::fd::AsFd;
    use std::sync::atomic::Ordering;

    const LAYOUT: PoolLayout = PoolLayout {
        count: 2,
        stride: 4096,
        lead: 0,
    };
    const MARKS: usize = 64;

    fn lender(pool: &Pool) -> (Lender, Arc<Shared>, Foreign) {
        let mut foreign = Foreign::default();
        let region = foreign.map(pool.region().file().unwrap(), 8192, 8192);
        let (shared, _fd) = Shared::create(4096).unwrap();
        let shared = Arc::new(shared);
        let alive = Arc::new(());
        let region = region.unwrap().unwrap();
        let lender = Lender::new(region, Arc::clone(&shared), MARKS, alive);
        (lender, shared, foreign)
    }

    #[test]
    fn lent_buffer_is_memory_of_owner_and_marked() {
        let pool = Pool::new(LAYOUT, Pages::Shareable).unwrap();
        let (mut first, mut second) = (pool.take().unwrap(), pool.take().unwrap());
        first.fill(1);
        second.fill(2);
        let (lender, shared, foreign) = lender(&pool);
        let mark = || shared.word(MARKS + 24).unwrap().load(Ordering::Relaxed);
        let mut lent = lender.lend(3, second.region_offset() + 1, 8).unwrap();
        assert_eq!(
            (lent.to_vec(), lent.is_lent(), mark()),
            (vec![2; 8], true, 1)
        );
        lent.fill(7);
        assert_eq!(second[..10], [2, 7, 7, 7, 7, 7, 7, 7, 7, 2]);
        assert!(first.iter().all(|byte| *byte == 1) && !first.is_lent());
        assert!(lender.lend(3, 0, 8).is_none(), "the number is in use");
        assert!(lender.lend(4, 0, 8).is_some());
        drop(lent);
        assert_eq!(mark(), 0);
        assert!(lender.lend(3, 0, 8192).is_some());
        assert_eq!(foreign.mapped(), 8192);
        drop(lender);
        assert_eq!(foreign.mapped(), 0);
    }

    #[test]
    fn lend_beyond_end_or_without_mark_is_none() {
        let pool = Pool::new(LAYOUT, Pages::Shareable).unwrap();
        let (lender, ..) = lender(&pool);
        for (start, len) in [(0, 8193), (8192, 1), (u64::MAX, 1), (1, u32::MAX)] {
            assert!(lender.lend(0, start, len).is_none(), "{start} {len}");
        }
        assert!(lender.lend(0, 8192, 0).is_some());
        for number in [504, LENT, LENT + 1, u32::MAX] {
            assert!(lender.lend(number, 0, 1).is_none(), "{number}");
        }
    }

    #[test]
    fn memory_is_mapped_once_within_limit_and_unmapped() {
        let pools = [(); 2].map(|()| Pool::new(LAYOUT, Pages::Shareable).unwrap());
        let mut foreign = Foreign::default();
        let mut map = |pool: &Pool, most| {
            let file = pool.region().file().unwrap();
            let region = foreign.map(file, 8192, most).unwrap();
            (region, foreign.mapped())
        };
        let (first, _) = map(&pools[0], 8192);
        let (again, mapped) = map(&pools[0], 8192);
        assert_eq!(
            (first.as_ref().map(|it| it.region().id()), mapped),
            (again.as_ref().map(|it| it.region().id()), 8192)
        );
        assert!(map(&pools[1], 8192).0.is_none());
        drop((first, again));
        assert!(map(&pools[1], 8192).0.is_some(), "the first was unmapped");
        let null = std::fs::File::open("/dev/null").unwrap();
        assert!(foreign.map(null.as_fd(), 8192, 1 << 30).is_err());
        let file = pools[0].region().file().unwrap();
        assert!(foreign.map(file, 4096, 1 << 30).is_err());
    }

    #[test]
    fn lent_memory_survives_its_owner() {
        let pool = Pool::new(LAYOUT, Pages::Shareable).unwrap();
        let (lender, ..) = lender(&pool);
        let mut lent = lender.lend(0, 0, 8192).unwrap();
        drop((pool, lender));
        lent.fill(3);
        assert_eq!(lent.to_vec(), [3; 8192]);
    }

    /// The owner may lend the same bytes twice.
    #[test]
    fn bytes_lent_twice_are_copied_and_never_a_slice() {
        use std::panic::{AssertUnwindSafe, catch_unwind};

        let pool = Pool::new(LAYOUT, Pages::Shareable).unwrap();
        let (lender, ..) = lender(&pool);
        let mut one = lender.lend(0, 0, 64).unwrap();
        let mut two = lender.lend(1, 32, 64).unwrap();
        for lent in [&mut one, &mut two] {
            assert_eq!(
                (lent.len(), lent.is_empty(), lent.bytes()),
                (64, false, None)
            );
            assert!(catch_unwind(AssertUnwindSafe(|| lent.first().copied())).is_err());
            assert!(catch_unwind(AssertUnwindSafe(|| lent.reverse())).is_err());
        }
        std::thread::scope(|scope| {
            scope.spawn(|| (0..1000).for_each(|_| one.copy_in(32, &[1; 32]).unwrap()));
            let mut seen = [0; 32];
            for _ in 0..1000 {
                two.copy_out(0, &mut seen).unwrap();
                assert!(seen.iter().all(|byte| *byte <= 1));
            }
        });
        two.fill_at(0, 32, 9).unwrap();
        let mut seen = [0; 33];
        one.copy_out(31, &mut seen).unwrap();
        assert_eq!((seen[0], &seen[1..]), (0, &[9; 32][..]));
        for at in [33, usize::MAX] {
            assert!(one.copy_out(at, &mut seen).is_err());
            assert!(one.copy_in(at, &seen).is_err());
            assert!(one.fill_at(at, 33, 0).is_err());
        }
    }
}
