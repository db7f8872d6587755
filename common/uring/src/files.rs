//! Files of a ring: registered with the kernel, owned by the ring.

use std::fs::File;
use std::os::fd::AsRawFd;

use io_uring::{Submitter, squeue};
use nix::errno::Errno;

use crate::errno::errno_of;

/// A file of one ring. Stays unique in that ring: a file that comes later has
/// another id, even in the same place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FileId {
    index: u32,
    generation: u32,
}

/// The ring took no further file.
#[derive(Debug, thiserror::Error)]
pub enum FileTableFull {
    /// All places are taken.
    #[error("all {0} places for files in the ring are taken")]
    Full(usize),
    /// The kernel would not register the file.
    #[error(
        "the kernel did not register a file with io_uring ({0}); report it with the output of \
         `dmesg` and `uname -r`"
    )]
    Kernel(Errno),
}

/// The table of registered files.
#[derive(Debug)]
pub(crate) struct Files {
    places: Vec<Place>,
}

#[derive(Debug)]
struct Place {
    generation: u32,
    file: Option<File>,
    /// Of each operation on it.
    flags: squeue::Flags,
}

/// Who begins operations on a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Begins {
    /// The thread that submits them, as far as the kernel says that it need not wait.
    Submitter,
    /// A worker thread of the kernel (`IOSQE_ASYNC`): for files on which the kernel waits
    /// though it was asked not to. Closing such a file may wait as well.
    Worker,
}

/// Closes `file` in a thread of its own: close(2) waits for the server of some file
/// systems (FUSE sends FLUSH with each close).
pub fn close_elsewhere(file: File) {
    let thread = std::thread::Builder::new().name("close".to_owned());
    // Without a thread it is closed here, which is late at worst.
    let _ = thread.spawn(move || drop(file));
}

impl Files {
    pub(crate) fn new(count: u32) -> Self {
        Self {
            places: (0..count)
                .map(|_| Place {
                    generation: 0,
                    file: None,
                    flags: squeue::Flags::empty(),
                })
                .collect(),
        }
    }

    /// Registers `file` in the first free place.
    pub(crate) fn add(
        &mut self,
        submitter: &Submitter<'_>,
        file: File,
        begins: Begins,
    ) -> Result<FileId, FileTableFull> {
        let full = FileTableFull::Full(self.places.len());
        let mut free = (0u32..).zip(&mut self.places);
        let Some((index, place)) = free.find(|(_, place)| place.file.is_none()) else {
            return Err(full);
        };
        submitter
            .register_files_update(index, &[file.as_raw_fd()])
            .map_err(|error| FileTableFull::Kernel(errno_of(&error)))?;
        place.file = Some(file);
        place.flags = match begins {
            Begins::Submitter => squeue::Flags::empty(),
            Begins::Worker => squeue::Flags::ASYNC,
        };
        Ok(FileId {
            index,
            generation: place.generation,
        })
    }

    /// Takes `id` out of the table. Operations the kernel already has on it
    /// finish: it keeps the file open for them.
    pub(crate) fn remove(&mut self, submitter: &Submitter<'_>, id: FileId) -> Option<File> {
        let place = self.places.get_mut(id.index as usize)?;
        if place.generation != id.generation {
            return None;
        }
        let file = place.file.take()?;
        place.generation = place.generation.wrapping_add(1);
        // A place that could not be cleared is overwritten by the next file.
        let _ = submitter.register_files_update(id.index, &[-1]);
        Some(file)
    }

    /// Place in the kernel's table of a file that is still there, and the flags of
    /// operations on it.
    pub(crate) fn place(&self, id: FileId) -> Option<(u32, squeue::Flags)> {
        let place = self.places.get(id.index as usize)?;
        let known = place.generation == id.generation && place.file.is_some();
        known.then_some((id.index, place.flags))
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        for place in &mut self.places {
            if place.flags.contains(squeue::Flags::ASYNC)
                && let Some(file) = place.file.take()
            {
                close_elsewhere(file);
            }
        }
    }
}
