//! The exclusive right to serve a backing store, taken once in the process.

use std::fs::File;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use nvmeof_uring::Ring;

use crate::blocking::{OPENING, Opened};
use crate::file::FileBackend;
use crate::losses::{Losses, RunningSync};
use crate::null::NullBackend;
use crate::ram::{RamBackend, RamStore};
use crate::rbd::{self, ImageRecords, Mode, Pass, RbdBackend, RbdClients, RbdStore};
use crate::{
    Backend, BlockSize, Geometry, Hints, NoPolling, OpenError, RbdRefusal, Spec, StorageId,
    polling, probe,
};
use nvmeof_backend_spec::{QUERY_TIMEOUT, Queries, QueryTimeout, within};

/// The right to serve a [`Spec`]: a file is open and locked, so that no second target or
/// namespace can serve it; the memory of a RAM store exists. Clones are the same claim. It
/// ends when the last clone is dropped and the last backing store opened from it is closed.
#[derive(Clone)]
pub struct Claim {
    inner: Arc<Claimed>,
}

/// A weak reference to a claim, which does not keep its file open.
#[derive(Clone)]
pub struct WeakClaim {
    inner: Weak<Claimed>,
}

/// The identity of the claim that is taken next.
static NEXT: AtomicU64 = AtomicU64::new(0);

struct Claimed {
    /// The same for all sizes of a file.
    identity: u64,
    /// Whether its device is polled (`IOPOLL`).
    polled: bool,
    name: Arc<str>,
    geometry: Geometry,
    source: Source,
    storage: Option<StorageId>,
    losses: Arc<Losses>,
    /// Queries to the file, shared by all sizes.
    questions: Arc<Queries>,
    /// Whether operations may start; `None`: always.
    pass: Option<Pass>,
}

#[derive(Clone)]
enum Source {
    File(Arc<Opened>),
    Ram(Arc<RamStore>),
    Null,
    Rbd(Arc<RbdStore>),
}

impl Claim {
    /// Opens, locks and examines the backing store of `spec`. The default block size is 512,
    /// or 4096 if the logical blocks of the device are larger. Logs whether I/O is direct or
    /// buffered.
    ///
    /// A file is locked exclusively (flock(2)), or shared if it is read-only. An RBD image is
    /// locked exclusively unless it is read-only.
    ///
    /// # Errors
    /// [`OpenError`], whose message contains the remedy.
    pub fn take(spec: &Spec, block_size: Option<BlockSize>) -> Result<Self, OpenError> {
        Self::take_through(spec, block_size, None)
    }

    /// As [`take`](Self::take), but opens a writable RBD image through `clients`, whose permission
    /// it has: see [`in_period`](Self::in_period).
    ///
    /// # Errors
    /// [`OpenError`], as `take`.
    pub fn take_through(
        spec: &Spec,
        block_size: Option<BlockSize>,
        clients: Option<&RbdClients>,
    ) -> Result<Self, OpenError> {
        let name: Arc<str> = spec.to_string().into();
        let (geometry, source) = match spec {
            Spec::File { path, readonly } => {
                let (file, geometry) = open(path, *readonly, block_size)?;
                (geometry, Source::File(Arc::new(file)))
            }
            Spec::Ram { len, readonly } => {
                let mut geometry = in_memory(&name, *len, *readonly, block_size)?;
                geometry.deallocate_zeroes = !readonly;
                let store = RamStore::new(*len).ok_or(OpenError::Memory(*len))?;
                (geometry, Source::Ram(Arc::new(store)))
            }
            Spec::Null { len, readonly } => {
                let mut geometry = in_memory(&name, *len, *readonly, block_size)?;
                geometry.deallocate_zeroes = !readonly;
                (geometry, Source::Null)
            }
            Spec::Rbd {
                image,
                access,
                readonly,
            } => {
                let mode = match (readonly, clients) {
                    (true, _) => Mode::ReadOnly,
                    (false, clients) => Mode::Writable(clients.cloned()),
                };
                let (store, geometry) = rbd::open(&name, image, access, &mode, block_size)?;
                (geometry, Source::Rbd(store))
            }
        };
        let storage = match &source {
            Source::File(file) => storage_of(file, &geometry),
            // An image loses no write that has completed.
            Source::Ram(_) | Source::Null | Source::Rbd(_) => None,
        };
        let losses = storage.map_or_else(Losses::of_memory, |storage| Losses::of(&name, storage));
        Ok(Self {
            inner: Arc::new(Claimed {
                identity: NEXT.fetch_add(1, Ordering::Relaxed),
                polled: false,
                name,
                geometry,
                source,
                storage,
                losses,
                questions: Arc::default(),
                pass: clients.map(|clients| clients.gate().pass()),
            }),
        })
    }

    /// The same claim with the permission of the present period of `clients`
    /// ([`RbdClients::permit`]); `None` if it was opened through others. Commands that wait for a
    /// backing store which was opened from another one do not start on this one.
    #[must_use]
    pub fn in_period(&self, clients: &RbdClients) -> Option<Self> {
        let geometry = self.geometry().clone();
        let pass = clients.gate().pass();
        self.is_of(clients).then(|| self.with(geometry, Some(pass)))
    }

    /// Whether it was opened through `clients`.
    #[must_use]
    pub fn is_of(&self, clients: &RbdClients) -> bool {
        let pass = self.inner.pass.as_ref();
        pass.is_some_and(|pass| pass.is_of(clients.gate()))
    }

    /// Whether operations may start on it now.
    #[must_use]
    pub fn is_permitted(&self) -> bool {
        self.inner.pass.as_ref().is_none_or(Pass::is_valid)
    }

    /// The geometry that [`take`](Self::take) of an RBD image would return. Another client may
    /// have its lock. Refuses images that `take` would refuse.
    ///
    /// # Errors
    /// [`OpenError`], as `take`.
    pub fn examine(spec: &Spec, block_size: Option<BlockSize>) -> Result<Geometry, OpenError> {
        match spec {
            Spec::Rbd { image, access, .. } => {
                rbd::standby(&spec.to_string().into(), image, access, block_size)
            }
            _ => Self::take(spec, block_size).map(|claim| claim.geometry().clone()),
        }
    }

    /// As [`take`](Self::take), for a device that is polled for completions (`IOPOLL`)
    /// instead of interrupting. Tests that with a read.
    ///
    /// # Errors
    /// [`OpenError`], [`OpenError::CannotPoll`] among them.
    pub fn take_polled(spec: &Spec, block_size: Option<BlockSize>) -> Result<Self, OpenError> {
        let mut this = Self::take(spec, block_size)?;
        let claimed = Arc::get_mut(&mut this.inner);
        let claimed = claimed.unwrap_or_else(|| unreachable!("there is no clone"));
        let tried = match &claimed.source {
            Source::File(file) => polling::check(file, &claimed.geometry),
            Source::Ram(_) | Source::Null => Err(NoPolling::Memory),
            Source::Rbd(_) => Err(NoPolling::Image),
        };
        tried.map_err(|why| OpenError::CannotPoll {
            name: claimed.name.to_string(),
            why,
        })?;
        claimed.polled = true;
        Ok(this)
    }

    /// A claim with the current size of the file or block device, `None` if it did not
    /// change. Both share the lock.
    ///
    /// # Errors
    /// [`OpenError`] when that size cannot be served, or a backing store that may block does
    /// not respond within a second.
    pub fn resized(&self) -> Result<Option<Self>, OpenError> {
        if !self.geometry().may_block {
            return self.resized_now();
        }
        let this = self.clone();
        let answer = self.ask(QUERY_TIMEOUT, move || this.resized_now());
        answer.map_err(|why| self.query_timed_out(why))?
    }

    fn resized_now(&self) -> Result<Option<Self>, OpenError> {
        let size = match &self.inner.source {
            Source::File(file) => probe::size(self.name(), file)?,
            Source::Rbd(store) => store.size().map_err(|why| OpenError::Rbd {
                name: self.name().to_owned(),
                why,
            })?,
            Source::Ram(_) | Source::Null => return Ok(None),
        };
        if size == self.geometry().size {
            return Ok(None);
        }
        self.with_size(size).map(Some)
    }

    /// The result of `ask`, which queries the file, unless it takes longer than `timeout`.
    pub(crate) fn ask<T: Send + 'static>(
        &self,
        timeout: Duration,
        ask: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, QueryTimeout> {
        let Claimed {
            questions, name, ..
        } = &*self.inner;
        questions.ask(name, timeout, ask)
    }

    fn query_timed_out(&self, why: QueryTimeout) -> OpenError {
        if let Source::Rbd(_) = &self.inner.source {
            let (name, why) = (self.name().to_owned(), RbdRefusal::Unresponsive(why.0));
            return OpenError::Rbd { name, why };
        }
        let path = self.name().into();
        OpenError::Unresponsive { path, why }
    }

    /// A claim that serves `size` bytes of the file, block device or image, independent of its
    /// current size. Both share the lock. The size of memory does not change.
    ///
    /// # Errors
    /// [`OpenError`] when that size cannot be served.
    pub fn with_size(&self, size: u64) -> Result<Self, OpenError> {
        let mut geometry = self.geometry().clone();
        geometry.size = size;
        if let Source::Ram(_) | Source::Null = self.inner.source {
            return Ok(self.clone());
        }
        probe::servable(self.name(), size, geometry.block_size)?;
        if let Source::File(file) = &self.inner.source {
            // Other properties of a resized device may have changed as well.
            let frees = geometry.deallocate_zeroes;
            geometry.hints = Hints::of(file, geometry.block_size, frees, geometry.direct);
        }
        Ok(self.with(geometry, self.inner.pass.clone()))
    }

    /// A claim of the same backing store.
    fn with(&self, geometry: Geometry, pass: Option<Pass>) -> Self {
        let Claimed {
            identity,
            polled,
            name,
            geometry: _,
            source,
            storage,
            losses,
            questions,
            pass: _,
        } = &*self.inner;
        let storage = match source {
            Source::File(file) => storage_of(file, &geometry),
            _ => *storage,
        };
        Self {
            inner: Arc::new(Claimed {
                identity: *identity,
                polled: *polled,
                name: Arc::clone(name),
                geometry,
                source: source.clone(),
                storage,
                losses: Arc::clone(losses),
                questions: Arc::clone(questions),
                pass,
            }),
        }
    }

    /// The file or block device; `None` for others.
    pub(crate) fn file(&self) -> Option<&File> {
        match &self.inner.source {
            Source::File(file) => Some(file),
            Source::Ram(_) | Source::Null | Source::Rbd(_) => None,
        }
    }

    /// Whether it is still readable: a block at its start, in its middle or at its end. If
    /// there is no response within a second, it is not considered gone.
    #[must_use]
    pub fn is_readable(&self) -> bool {
        let this = self.clone();
        let answer = self.ask(QUERY_TIMEOUT, move || match &this.inner.source {
            Source::File(file) => probe::is_readable(file, &this.inner.geometry),
            Source::Rbd(store) => store.is_readable(&this.inner.geometry),
            Source::Ram(_) | Source::Null => true,
        });
        answer.unwrap_or(true)
    }

    /// Identity of the claim, unique except for claims of the same file with another size
    /// ([`resized`](Self::resized)).
    #[must_use]
    pub fn identity(&self) -> u64 {
        self.inner.identity
    }

    /// The records beside the image, which every client that serves it finds; `None` if it is no
    /// image.
    #[must_use]
    pub fn records(&self) -> Option<ImageRecords> {
        match &self.inner.source {
            Source::Rbd(store) => Some(store.records()),
            Source::File(_) | Source::Ram(_) | Source::Null => None,
        }
    }

    /// Identity of the file or device; `None` for memory, and if it is unknown.
    #[must_use]
    pub fn storage(&self) -> Option<StorageId> {
        self.inner.storage
    }

    /// Write losses since it was first opened in this process.
    #[must_use]
    pub fn losses(&self) -> &Arc<Losses> {
        &self.inner.losses
    }

    /// Counts a write loss.
    pub(crate) fn add_loss(&self) {
        self.inner.losses.add();
    }

    /// Begins a sync, which lasts until the result is dropped.
    pub(crate) fn begin_sync(&self) -> RunningSync {
        RunningSync::begin(&self.inner.losses)
    }

    /// A weak reference.
    #[must_use]
    pub fn downgrade(&self) -> WeakClaim {
        WeakClaim {
            inner: Arc::downgrade(&self.inner),
        }
    }

    /// Whether each write of a killed process has ended when the kernel has released the files
    /// of its io_uring ([`UringStores::hold`](crate::UringStores::hold)).
    ///
    /// Memory ends with the process, and nothing is written to a read-only file. A local file
    /// system or a block device completes a write that it has begun, and only then does the
    /// kernel release the ring: a signal does not interrupt it. Of other files that is unknown.
    /// NFS, for example, abandons a write of a killed worker thread, which the server may still
    /// execute. A driver of a remote device ends a request, or sends it over another path, while
    /// the storage may still execute it. A polled device has a second ring, which holds nothing.
    #[must_use]
    pub fn ends_with_ring(&self) -> bool {
        ends_with_ring(self.geometry(), self.inner.polled)
    }

    /// Properties of the backing store.
    #[must_use]
    pub fn geometry(&self) -> &Geometry {
        &self.inner.geometry
    }

    /// Path or specification, for messages.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.inner.name
    }

    /// Opens it for the reactor of `ring`.
    pub(crate) fn open(&self, ring: &mut Ring) -> Result<Box<dyn Backend>, OpenError> {
        let Claimed {
            name,
            geometry,
            source,
            polled,
            losses,
            pass,
            ..
        } = &*self.inner;
        let (name, geometry) = (Arc::clone(name), geometry.clone());
        Ok(match source {
            // A duplicate shares the lock and the flags (O_DIRECT).
            Source::File(file) => {
                let (file, losses) = (Arc::clone(file), Arc::clone(losses));
                Box::new(FileBackend::open(
                    ring, file, name, geometry, *polled, losses,
                )?)
            }
            Source::Ram(store) => Box::new(RamBackend::new(Arc::clone(store), name, geometry)),
            Source::Null => Box::new(NullBackend::new(name, geometry)),
            Source::Rbd(store) => {
                Box::new(RbdBackend::open(ring, store, name, geometry, pass.clone()))
            }
        })
    }
}

impl WeakClaim {
    /// The claim, if it still exists.
    #[must_use]
    pub fn upgrade(&self) -> Option<Claim> {
        let inner = self.inner.upgrade()?;
        Some(Claim { inner })
    }
}

/// [`Claim::ends_with_ring`] of a backing store, which is polled or not.
fn ends_with_ring(geometry: &Geometry, polled: bool) -> bool {
    // What may block is not in the list of file systems and devices that are known.
    geometry.readonly || !(geometry.may_block || geometry.may_be_remote || polled)
}

/// Opens a file or block device within a time limit.
fn open(
    path: &Path,
    readonly: bool,
    block_size: Option<BlockSize>,
) -> Result<(Opened, Geometry), OpenError> {
    let named = path.to_owned();
    let opened = within(OPENING, move || {
        let (file, geometry) = probe::open(&named, readonly, block_size)?;
        Ok((Opened::new(file, geometry.may_block), geometry))
    });
    opened.unwrap_or_else(|| Err(unresponsive(path)))
}

/// Identity of the file or block device at `path`: two paths of the same one return the same
/// numbers. `None` if there is no file.
///
/// # Errors
/// [`OpenError::Unresponsive`] when its file system does not respond in time.
pub fn identity(path: &Path) -> Result<Option<(u64, u64)>, OpenError> {
    let named = path.to_owned();
    let metadata = within(OPENING, move || std::fs::metadata(named).ok());
    let metadata = metadata.ok_or_else(|| unresponsive(path))?;
    Ok(metadata.map(|it| match it.file_type().is_block_device() {
        true => (0, it.rdev()),
        false => (it.dev(), it.ino()),
    }))
}

fn unresponsive(path: &Path) -> OpenError {
    let (path, why) = (path.to_owned(), QueryTimeout(OPENING));
    OpenError::Unresponsive { path, why }
}

/// Identity of a file or device, if it is known.
fn storage_of(file: &File, geometry: &Geometry) -> Option<StorageId> {
    let metadata = file.metadata().ok()?;
    Some(if metadata.file_type().is_block_device() {
        StorageId::Device(metadata.rdev(), geometry.size)
    } else {
        StorageId::File(metadata.ino())
    })
}

/// The geometry of a backing store that is not a file.
fn in_memory(
    name: &str,
    size: u64,
    readonly: bool,
    block_size: Option<BlockSize>,
) -> Result<Geometry, OpenError> {
    let block_size = block_size.unwrap_or(BlockSize::B512);
    probe::whole_blocks(name, size, block_size)?;
    Ok(Geometry {
        size,
        block_size,
        // Memory has no preferred sizes.
        hints: Hints::default(),
        buffer_alignment: 1,
        readonly,
        deallocate_zeroes: false,
        volatile_write_cache: false,
        direct: false,
        fua_alone: true,
        may_block: false,
        may_be_remote: false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_writes_of_known_stores_end_with_the_ring() {
        for [readonly, may_block, may_be_remote, polled, ends] in [
            [false, false, false, false, true],
            [false, true, false, false, false],
            [false, false, true, false, false],
            [false, false, false, true, false],
            [true, true, true, false, true],
            [true, false, false, true, true],
        ] {
            let mut geometry = in_memory("disk", 4096, readonly, None).unwrap();
            geometry.may_block = may_block;
            geometry.may_be_remote = may_be_remote;
            assert_eq!(ends_with_ring(&geometry, polled), ends, "{geometry:?}");
        }
        for memory in ["ram:1M", "null:1M"] {
            let claim = Claim::take(&memory.parse().unwrap(), None).unwrap();
            assert!(claim.ends_with_ring(), "{memory}");
        }
    }
}
