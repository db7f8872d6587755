//! Memory of another process, lent to us piece by piece.

use std::fmt;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use crate::buf::Buf;
use crate::home::{Home, LENT, Marks, Owner};
use crate::memfd::{self, SharedError};
use crate::region::{Region, WeakRegion};
use crate::shared::Shared;

/// A region that another process shares with us. What is [lent](Self::lend) of
/// it is a [`Buf`], and is marked in memory that both see for as long as it
/// lives, so that its owner knows when nobody uses it any more.
///
/// # What the owner can do
/// It may write the bytes at any time, and may have us lend the same bytes
/// under two numbers. So what is lent is never a slice ([`Buf::is_lent`]): it
/// is handed to the kernel, filled, or copied, by copies that may race. Whoever
/// changes the bytes changes nothing but the data, its own. It cannot take the
/// memory away: the file has an end that does not move.
#[derive(Clone, Debug)]
pub struct Lender {
    home: Arc<Home>,
}

impl Lender {
    /// Lends pieces of `region`. The mark of number `n` is the word at byte
    /// `first + 8 * n` of `shared`. `alive` is dropped when this and all that
    /// was lent is.
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

    /// Lends `len` bytes from byte `start` of the region on, under `number`.
    /// `None` when they are not inside, something is lent under that number
    /// already, or it has no mark. See [`marking`](crate::marking).
    #[inline]
    #[must_use]
    pub fn lend(&self, number: u32, start: u64, len: u32) -> Option<Buf> {
        let start = usize::try_from(start).ok()?;
        let end = start.checked_add(len as usize)?;
        if number >= LENT || end > self.home.region().len() || !self.home.marks()?.set(number) {
            return None;
        }
        let first = self.home.region().at(start);
        // SAFETY: the piece lies inside the region. Other `Buf`s may cover it,
        // all of them lent: a `ForeignRegion` has no others, and nothing makes
        // references to its bytes.
        Some(unsafe { Buf::new(first, len, number | LENT, Arc::clone(&self.home)) })
    }

    /// Bytes of the region.
    #[must_use]
    pub fn region(&self) -> &Region {
        self.home.region()
    }
}

/// A region that another process made, to be [lent](Lender::lend). Nothing here
/// refers to its bytes: no pool lies in it.
#[derive(Clone, Debug)]
pub struct ForeignRegion(Region);

impl ForeignRegion {
    /// The region: its name, address and length.
    #[must_use]
    pub fn region(&self) -> &Region {
        &self.0
    }
}

/// The regions that other processes share with us: each is mapped once,
/// however often it is passed, and as long as anybody has it.
#[derive(Debug, Default)]
pub struct Foreign {
    regions: Vec<WeakRegion>,
}

impl Foreign {
    /// Maps `len` bytes of memory that another process made with
    /// [`Pages::Shareable`](crate::Pages::Shareable), or finds them mapped.
    /// The descriptor is not needed after that. `None` when all that is mapped
    /// would be more than `most` bytes.
    ///
    /// # Errors
    /// [`SharedError`] when it is not `len` bytes long or its maker could take
    /// it away from under us.
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

    /// Bytes that are mapped.
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
    fn what_is_lent_is_the_owners_memory_and_marked() {
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
        assert!(lender.lend(3, 0, 8).is_none(), "that number is lent");
        assert!(lender.lend(4, 0, 8).is_some());
        drop(lent);
        assert_eq!(mark(), 0);
        assert!(lender.lend(3, 0, 8192).is_some());
        assert_eq!(foreign.mapped(), 8192);
        drop(lender);
        assert_eq!(foreign.mapped(), 0);
    }

    #[test]
    fn nothing_is_lent_beyond_the_end_or_without_a_mark() {
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
    fn memory_is_mapped_once_up_to_a_bound_and_let_go() {
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
        assert!(map(&pools[1], 8192).0.is_some(), "the first was let go");
        let null = std::fs::File::open("/dev/null").unwrap();
        assert!(foreign.map(null.as_fd(), 8192, 1 << 30).is_err());
        let file = pools[0].region().file().unwrap();
        assert!(foreign.map(file, 4096, 1 << 30).is_err());
    }

    #[test]
    fn the_owners_death_takes_nothing_away() {
        let pool = Pool::new(LAYOUT, Pages::Shareable).unwrap();
        let (lender, ..) = lender(&pool);
        let mut lent = lender.lend(0, 0, 8192).unwrap();
        drop((pool, lender));
        lent.fill(3);
        assert_eq!(lent.to_vec(), [3; 8192]);
    }

    /// The owner may name the same bytes twice.
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
