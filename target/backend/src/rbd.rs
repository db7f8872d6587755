//! RBD images of a Ceph cluster, through librbd.
//!
//! An image is open once in the process, and all reactors share it. A writable one is locked: the
//! exclusive lock of librbd has one owner in the cluster, and this process does not hand it over
//! when another client asks for it. There is no cache, so that a write that has completed is on
//! stable storage.

mod backend;
mod lock;
mod opening;
mod records;

use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard, Weak};
use std::time::Duration;

use nvmeof_backend_spec::{CephAccess, RbdName, within};
use nvmeof_ceph::{Image, wait_closed};

pub(crate) use backend::RbdBackend;
pub(crate) use opening::open;
pub use records::{RecordsError, SharedRecords};

use crate::{Geometry, RbdRefusal};

/// An open image. It is closed, and its lock released, when the last owner is gone.
pub(crate) struct RbdStore {
    image: Image,
    named: RbdName,
    access: CephAccess,
    lock: RwLock<Lock>,
}

/// The exclusive lock of an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lock {
    /// It is read-only.
    None,
    Held,
    Released,
}

/// Images with a lock.
static LOCKED: Mutex<Vec<Weak<RbdStore>>> = Mutex::new(Vec::new());

/// Releases the locks of all images of this process that are still open, and waits at most
/// `timeout` until all others are closed. To be called before the process ends, when no reactor
/// runs any more: the next target then takes the locks at once, and without blocklisting this one.
pub fn release_images(timeout: Duration) {
    let all = std::mem::take(&mut *locked());
    let all: Vec<_> = all.iter().filter_map(Weak::upgrade).collect();
    let released = all.is_empty()
        || within(timeout, move || {
            for store in all {
                // Waits until no record is read or written: see `RbdStore::locked`.
                let mut lock = store.lock.write().unwrap_or_else(PoisonError::into_inner);
                *lock = Lock::Released;
                let released = store.image.release_lock();
                if let Err(error) = released {
                    tracing::warn!("{}: lock not released: {error}", store.image.name());
                }
            }
        })
        .is_some();
    if !released || !wait_closed(None, timeout) {
        tracing::warn!(
            "images are not closed: no response from the Ceph cluster; the next target breaks \
             their locks"
        );
    }
}

fn locked() -> std::sync::MutexGuard<'static, Vec<Weak<RbdStore>>> {
    // A list of references is consistent also after a panic of another holder.
    LOCKED.lock().unwrap_or_else(PoisonError::into_inner)
}

impl RbdStore {
    fn new(image: Image, named: RbdName, access: CephAccess, lock: Lock) -> Arc<Self> {
        let this = Arc::new(Self {
            image,
            named,
            access,
            lock: RwLock::new(lock),
        });
        if lock == Lock::Held {
            let mut locked = locked();
            locked.retain(|store| store.strong_count() > 0);
            locked.push(Arc::downgrade(&this));
        }
        this
    }

    /// The records of its pool, unless it is read-only.
    pub(crate) fn records(self: &Arc<Self>) -> Option<SharedRecords> {
        drop(self.locked()?);
        Some(SharedRecords::of(self))
    }

    /// Keeps the lock from being released; `None` if this process does not have it.
    fn locked(&self) -> Option<RwLockReadGuard<'_, Lock>> {
        let lock = self.lock.read().unwrap_or_else(PoisonError::into_inner);
        (*lock == Lock::Held).then_some(lock)
    }

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
