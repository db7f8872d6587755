//! Mapped memory of peers, and its limits in all and per user.

use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nix::unistd::geteuid;
use nvmeof_memory::{Foreign, ForeignRegion, RegionId, SharedError, WeakRegion};

/// Memory of peers that is mapped by all providers with a clone of this. A peer can make this
/// process populate mapped memory: a read from a hole in it allocates a page, which is
/// charged to this process.
#[derive(Clone, Debug, Default)]
pub struct Borrowed {
    inner: Arc<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    mapped: Mutex<Mapped>,
    refused: AtomicU64,
}

#[derive(Debug, Default)]
struct Mapped {
    foreign: Foreign,
    regions: Vec<Owned>,
}

/// A region that stays mapped as long as a reference to it exists.
#[derive(Debug)]
struct Owned {
    /// User ID of the process that passed it first.
    user: u32,
    id: RegionId,
    len: usize,
    region: WeakRegion,
}

/// User ID of root.
pub(crate) const ROOT: u32 = 0;

/// Divisor of the limit for one user that is neither the own user nor root.
const PART: usize = 4;

impl Borrowed {
    /// Mapped bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.lock().foreign.mapped()
    }

    /// Regions that were not mapped because of the limits.
    #[must_use]
    pub fn refused(&self) -> u64 {
        self.inner.refused.load(Ordering::Relaxed)
    }

    /// Maps a region of a process of `user`, or finds it mapped. `None` if that exceeded
    /// `most` bytes, or the user's share of them.
    pub(crate) fn map(
        &self,
        fd: BorrowedFd<'_>,
        len: usize,
        user: u32,
        most: usize,
    ) -> Result<Option<ForeignRegion>, SharedError> {
        let mapped = self.lock().map(fd, len, user, most)?;
        if mapped.is_none() {
            self.inner.refused.fetch_add(1, Ordering::Relaxed);
        }
        Ok(mapped)
    }

    fn lock(&self) -> MutexGuard<'_, Mapped> {
        // No operation under this lock leaves the table inconsistent when it panics.
        let mapped = self.inner.mapped.lock();
        mapped.unwrap_or_else(PoisonError::into_inner)
    }
}

impl Mapped {
    fn map(
        &mut self,
        fd: BorrowedFd<'_>,
        len: usize,
        user: u32,
        most: usize,
    ) -> Result<Option<ForeignRegion>, SharedError> {
        let Some(region) = self.foreign.map(fd, len, most)? else {
            return Ok(None);
        };
        let id = region.region().id();
        self.regions.retain(|one| !one.region.is_gone());
        if self.regions.iter().any(|one| one.id == id) {
            return Ok(Some(region));
        }
        let its = self.regions.iter().filter(|one| one.user == user);
        let has: usize = its.map(|one| one.len).sum();
        if has.saturating_add(len) > part(user, most) {
            // The last reference: it is unmapped again.
            return Ok(None);
        }
        self.regions.push(Owned {
            user,
            id,
            len,
            region: region.region().downgrade(),
        });
        Ok(Some(region))
    }
}

/// The share of `most` bytes for processes of `user`.
fn part(user: u32, most: usize) -> usize {
    match user == ROOT || user == geteuid().as_raw() {
        true => most,
        false => most / PART,
    }
}

#[cfg(test)]
mod tests {
    use nvmeof_memory::{Pages, Pool, PoolLayout};

    use super::*;

    fn pool() -> Pool {
        let layout = PoolLayout {
            count: 2,
            stride: 4096,
            lead: 0,
        };
        Pool::new(layout, Pages::Shareable).unwrap()
    }

    #[test]
    fn other_user_is_limited_to_share_and_all_to_total() {
        let most = 4 * 8192;
        let (own, other, third) = (geteuid().as_raw(), 54_321, 54_322);
        let borrowed = Borrowed::default();
        let pools = [(); 5].map(|()| pool());
        let map = |at: usize, user| {
            let fd = pools[at].region().file().unwrap();
            borrowed.clone().map(fd, 8192, user, most).unwrap()
        };
        let first = map(0, other);
        assert!(first.is_some() && map(1, other).is_none());
        assert_eq!((borrowed.bytes(), borrowed.refused()), (8192, 1));
        // A mapped region is not counted again, for any user.
        let id = |it: &ForeignRegion| it.region().id();
        let again = map(0, other);
        assert_eq!(again.as_ref().map(id), first.as_ref().map(id));
        drop(again);
        let kept = [map(1, third), map(2, own), map(3, own)];
        assert!(kept.iter().all(Option::is_some));
        assert!(map(4, own).is_none(), "that is the whole");
        drop(first);
        assert!(map(4, other).is_some());
        assert_eq!(borrowed.refused(), 2);
    }
}
