//! Files of a ring: registered with the kernel, owned by the ring.

use std::fs::File;
use std::os::fd::AsRawFd;

use io_uring::Submitter;
use nix::errno::Errno;

use crate::start::errno_of;

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
    #[error("the kernel did not register a file with io_uring: {0}")]
    Kernel(Errno),
}

/// The table of registered files.
#[derive(Debug)]
pub(crate) struct Files {
    places: Vec<Place>,
}

#[derive(Debug, Default)]
struct Place {
    generation: u32,
    file: Option<File>,
}

impl Files {
    pub(crate) fn new(count: u32) -> Self {
        Self {
            places: (0..count).map(|_| Place::default()).collect(),
        }
    }

    /// Registers `file` in the first free place.
    pub(crate) fn add(
        &mut self,
        submitter: &Submitter<'_>,
        file: File,
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

    /// Place in the kernel's table of a file that is still there.
    pub(crate) fn place(&self, id: FileId) -> Option<u32> {
        let place = self.places.get(id.index as usize)?;
        let known = place.generation == id.generation && place.file.is_some();
        known.then_some(id.index)
    }
}
