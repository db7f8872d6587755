//! RBD images of a Ceph cluster, through librbd.
//!
//! An image is open once in the process, and all reactors share it. A writable one is locked: the
//! exclusive lock of librbd has one owner in the cluster, and this process does not hand it over
//! when another client asks for it. There is no cache, so that a write that has completed is on
//! stable storage.

mod backend;
mod clients;
mod lock;
mod opening;
mod records;
mod shared_record;

use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard, Weak};
use std::time::{Duration, Instant};

use nvmeof_backend_spec::{CephAccess, RbdName};
use nvmeof_ceph::{CephError, Image, wait_closed};

pub(crate) use backend::RbdBackend;
pub(crate) use clients::Pass;
pub use clients::RbdClients;
pub(crate) use opening::{Mode, open, standby};
pub use records::{ImageRecords, RecordsError};
pub use shared_record::SharedRecord;

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

/// Releases the locks of all images of this process that are still open, and waits until all
/// others are closed, at most `timeout` together. To be called before the process ends, when no
/// reactor runs any more: the next target then takes the locks at once, and without blocklisting
/// this one.
pub fn release_images(timeout: Duration) {
    let end = Instant::now() + timeout;
    let all = std::mem::take(&mut *locked());
    let (released, receiver) = channel();
    // One that waits for the cluster does not keep the others.
    let begun = all.iter().filter_map(Weak::upgrade).filter(|store| {
        let (store, released) = (Arc::clone(store), released.clone());
        let thread = std::thread::Builder::new().name("ceph-close".to_owned());
        let begun = thread.spawn(move || {
            store.release();
            let _ = released.send(());
        });
        begun.is_ok()
    });
    let mut left = begun.count();
    while left > 0 && receiver.recv_timeout(remaining(end)).is_ok() {
        left -= 1;
    }
    if left > 0 || !wait_closed(None, remaining(end)) {
        tracing::warn!(
            "images not closed: no response from the Ceph cluster; the next target breaks their \
             locks"
        );
    }
}

fn remaining(end: Instant) -> Duration {
    end.saturating_duration_since(Instant::now())
}

/// The cluster has blocklisted the client of `image`, for good: the next image that is opened gets
/// another one.
fn retire(image: &Image) {
    if let Some(cluster) = image.cluster() {
        cluster.retire();
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

    /// The records of its pool.
    pub(crate) fn records(self: &Arc<Self>) -> ImageRecords {
        let lock = self.lock.read().unwrap_or_else(PoisonError::into_inner);
        let is_readonly = *lock == Lock::None;
        drop(lock);
        ImageRecords::of(self, is_readonly)
    }

    /// Keeps the lock from being released; `None` if it was released.
    fn usable(&self) -> Option<RwLockReadGuard<'_, Lock>> {
        let lock = self.lock.read().unwrap_or_else(PoisonError::into_inner);
        (*lock != Lock::Released).then_some(lock)
    }

    fn release(&self) {
        // Waits until no record is read or written: see `usable`.
        let mut lock = self.lock.write().unwrap_or_else(PoisonError::into_inner);
        *lock = Lock::Released;
        if let Err(error) = self.image.release_lock() {
            tracing::warn!("{}: lock not released: {error}", self.image.name());
        }
    }

    /// Why a call failed.
    fn refusal(&self, error: CephError) -> RbdRefusal {
        let refusal = RbdRefusal::from(error);
        if refusal == RbdRefusal::Blocklisted {
            retire(&self.image);
        }
        refusal
    }

    /// Its current size in bytes.
    pub(crate) fn size(&self) -> Result<u64, RbdRefusal> {
        self.image.size().map_err(|error| self.refusal(error))
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
