//! The right to serve a specification, taken once in the process.

use std::fs::File;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use nvmeof_uring::Ring;

use crate::blocking::{OPENING, Opened};
use crate::file::FileDisk;
use crate::losses::{Begun, Losses};
use crate::null::NullDisk;
use crate::ram::{RamDisk, RamStore};
use crate::{
    Backend, BlockSize, Geometry, Hints, NoPolling, OpenError, Spec, StorageId, polling, probe,
};
use nvmeof_backend_spec::{ANSWERING, NoAnswer, Questions, within};

/// The right to serve a [`Spec`]: a file is open and locked, so that no second
/// target and no second namespace serves it; the bytes of a RAM disk are
/// there. Clones are the same claim. It ends when the last clone and the last
/// disk opened from it are gone.
#[derive(Clone)]
pub struct Claim {
    inner: Arc<Claimed>,
}

/// A claim that does not hold what it is for: it is there as long as somebody
/// else has it.
#[derive(Clone)]
pub struct WeakClaim {
    inner: Weak<Claimed>,
}

/// The identity of the claim that is taken next.
static NEXT: AtomicU64 = AtomicU64::new(0);

struct Claimed {
    /// The same over all sizes that it has.
    identity: u64,
    /// Whether its device is asked for what is done.
    polled: bool,
    name: Arc<str>,
    geometry: Geometry,
    source: Source,
    storage: Option<StorageId>,
    losses: Arc<Losses>,
    /// To the file, whatever size it has.
    questions: Arc<Questions>,
}

enum Source {
    File(Arc<Opened>),
    Ram(Arc<RamStore>),
    Null,
}

impl Claim {
    /// Opens, locks and examines what `spec` names. Without a block size it is
    /// 512, or 4096 where the device has no smaller blocks. Logs how a file
    /// will be read and written.
    ///
    /// A file to be written is locked against everybody (flock(2)), one to be
    /// read only against writers.
    ///
    /// # Errors
    /// [`OpenError`], which says what to do about it.
    pub fn take(spec: &Spec, block_size: Option<BlockSize>) -> Result<Self, OpenError> {
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
        };
        let storage = match &source {
            Source::File(file) => storage_of(file, &geometry),
            Source::Ram(_) | Source::Null => None,
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
            }),
        })
    }

    /// As [`take`](Self::take), for a disk whose device is to be asked for what
    /// is done (`IOPOLL`) instead of telling it by an interrupt. Tries it.
    ///
    /// # Errors
    /// [`OpenError`], [`OpenError::CannotPoll`] among them.
    pub fn take_polled(spec: &Spec, block_size: Option<BlockSize>) -> Result<Self, OpenError> {
        let mut this = Self::take(spec, block_size)?;
        let claimed = Arc::get_mut(&mut this.inner);
        let claimed = claimed.unwrap_or_else(|| unreachable!("nobody has a clone"));
        let tried = match &claimed.source {
            Source::File(file) => polling::check(file, &claimed.geometry),
            Source::Ram(_) | Source::Null => Err(NoPolling::Memory),
        };
        tried.map_err(|why| OpenError::CannotPoll {
            name: claimed.name.to_string(),
            why,
        })?;
        claimed.polled = true;
        Ok(this)
    }

    /// The same as it is now: when the file or block device has another size by
    /// now, a claim of that size, `None` otherwise. Both have the one lock.
    ///
    /// # Errors
    /// [`OpenError`] when that size cannot be served, or storage that may block does not
    /// answer within a second.
    pub fn resized(&self) -> Result<Option<Self>, OpenError> {
        if !self.geometry().may_block {
            return self.resized_now();
        }
        let this = self.clone();
        let answer = self.ask(ANSWERING, move || this.resized_now());
        answer.map_err(|why| self.silent(why))?
    }

    fn resized_now(&self) -> Result<Option<Self>, OpenError> {
        let Some(file) = self.file() else {
            return Ok(None);
        };
        let size = probe::size(self.name(), file)?;
        if size == self.geometry().size {
            return Ok(None);
        }
        self.with_size(size).map(Some)
    }

    /// What `ask` says of the storage, unless that takes longer than `patience`.
    pub(crate) fn ask<T: Send + 'static>(
        &self,
        patience: Duration,
        ask: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, NoAnswer> {
        let Claimed {
            questions, name, ..
        } = &*self.inner;
        questions.ask(name, patience, ask)
    }

    fn silent(&self, why: NoAnswer) -> OpenError {
        let path = self.name().into();
        OpenError::Unresponsive { path, why }
    }

    /// The same with another size in bytes: of a file or block device as much as
    /// that, whatever it has. Both have the one lock. Memory stays as it is.
    ///
    /// # Errors
    /// [`OpenError`] when that size cannot be served.
    pub fn with_size(&self, size: u64) -> Result<Self, OpenError> {
        let Claimed {
            identity,
            polled,
            name,
            geometry,
            source: Source::File(file),
            storage: _,
            losses,
            questions,
        } = &*self.inner
        else {
            return Ok(self.clone());
        };
        probe::servable(name, size, geometry.block_size)?;
        // A device that has another size by now may have changed otherwise, too.
        let geometry = Geometry {
            size,
            hints: Hints::of(
                file,
                geometry.block_size,
                geometry.deallocate_zeroes,
                geometry.direct,
            ),
            ..geometry.clone()
        };
        let storage = storage_of(file, &geometry);
        Ok(Self {
            inner: Arc::new(Claimed {
                identity: *identity,
                polled: *polled,
                name: Arc::clone(name),
                geometry,
                source: Source::File(Arc::clone(file)),
                storage,
                losses: Arc::clone(losses),
                questions: Arc::clone(questions),
            }),
        })
    }

    /// The file or block device; `None` for memory.
    pub(crate) fn file(&self) -> Option<&File> {
        match &self.inner.source {
            Source::File(file) => Some(file),
            Source::Ram(_) | Source::Null => None,
        }
    }

    /// Whether anything of it can still be read: a block at its start, in its
    /// middle or at its end. What does not say so within a second is not known to be gone.
    #[must_use]
    pub fn answers(&self) -> bool {
        let this = self.clone();
        let answer = self.ask(ANSWERING, move || match &this.inner.source {
            Source::File(file) => probe::answers(file, &this.inner.geometry),
            Source::Ram(_) | Source::Null => true,
        });
        answer.unwrap_or(true)
    }

    /// A number that no other claim has but those of the same file with another
    /// size ([`resized`](Self::resized)).
    #[must_use]
    pub fn identity(&self) -> u64 {
        self.inner.identity
    }

    /// Which file or device it is; `None` for memory, and where nothing tells.
    #[must_use]
    pub fn storage(&self) -> Option<StorageId> {
        self.inner.storage
    }

    /// How often it may have lost what was answered as done, since it was first opened
    /// in this process.
    #[must_use]
    pub fn losses(&self) -> &Arc<Losses> {
        &self.inner.losses
    }

    /// Something of it may have been lost.
    pub(crate) fn add_loss(&self) {
        self.inner.losses.add();
    }

    /// It is made stable until that is dropped.
    pub(crate) fn begin_sync(&self) -> Begun {
        Begun::begin(&self.inner.losses)
    }

    /// The same without holding it.
    #[must_use]
    pub fn downgrade(&self) -> WeakClaim {
        WeakClaim {
            inner: Arc::downgrade(&self.inner),
        }
    }

    /// What the disk looks like.
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
            ..
        } = &*self.inner;
        let (name, geometry) = (Arc::clone(name), geometry.clone());
        Ok(match source {
            // A duplicate shares the lock and the way of access.
            Source::File(file) => {
                let (file, losses) = (Arc::clone(file), Arc::clone(losses));
                Box::new(FileDisk::open(ring, file, name, geometry, *polled, losses)?)
            }
            Source::Ram(store) => Box::new(RamDisk::new(Arc::clone(store), name, geometry)),
            Source::Null => Box::new(NullDisk::new(name, geometry)),
        })
    }
}

impl WeakClaim {
    /// The claim, if somebody still has it.
    #[must_use]
    pub fn upgrade(&self) -> Option<Claim> {
        let inner = self.inner.upgrade()?;
        Some(Claim { inner })
    }
}

/// Opens a file or block device, unless that takes too long.
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

/// Which file or block device is at `path`, by whatever name: two paths of the same one
/// give the same numbers. `None` where there is nothing.
///
/// # Errors
/// [`OpenError::Unresponsive`] when its file system does not answer in time.
pub fn identity(path: &Path) -> Result<Option<(u64, u64)>, OpenError> {
    let named = path.to_owned();
    let told = within(OPENING, move || std::fs::metadata(named).ok());
    let told = told.ok_or_else(|| unresponsive(path))?;
    Ok(told.map(|told| match told.file_type().is_block_device() {
        true => (0, told.rdev()),
        false => (told.dev(), told.ino()),
    }))
}

fn unresponsive(path: &Path) -> OpenError {
    let (path, why) = (path.to_owned(), NoAnswer(OPENING));
    OpenError::Unresponsive { path, why }
}

/// Which file or device that is, if anything tells.
fn storage_of(file: &File, geometry: &Geometry) -> Option<StorageId> {
    let metadata = file.metadata().ok()?;
    Some(if metadata.file_type().is_block_device() {
        StorageId::Device(metadata.rdev(), geometry.size)
    } else {
        StorageId::File(metadata.ino())
    })
}

/// The geometry of a disk that is not a file.
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
        // Memory takes anything alike.
        hints: Hints::default(),
        buffer_alignment: 1,
        readonly,
        deallocate_zeroes: false,
        volatile_write_cache: false,
        direct: false,
        fua_alone: true,
        may_block: false,
    })
}
