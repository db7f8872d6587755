//! Files of a ring: registered with the kernel, owned by the ring.

use std::fs::File;
use std::os::fd::AsRawFd;

use io_uring::{Submitter, squeue};
use nix::errno::Errno;

use crate::errno::errno_of;

/// A file of one ring. Unique in that ring: a later file in the same slot has another id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FileId {
    index: u32,
    generation: u32,
}

/// A file could not be added to the ring.
#[derive(Debug, thiserror::Error)]
pub enum FileTableFull {
    /// All slots are in use.
    #[error("all {0} slots for files in the io_uring are in use")]
    Full(usize),
    /// The kernel did not register the file.
    #[error(
        "cannot register a file with io_uring ({0}); report it with the output of \
         `dmesg` and `uname -r`"
    )]
    Kernel(Errno),
}

/// The table of registered files.
#[derive(Debug)]
pub(crate) struct Files {
    slots: Vec<Slot>,
}

#[derive(Debug)]
struct Slot {
    generation: u32,
    file: Option<File>,
    /// Flags of each operation on it.
    flags: squeue::Flags,
}

/// Which thread starts operations on a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IssuedBy {
    /// The thread that submits them, unless the kernel finds that it would block.
    Submitter,
    /// A worker thread of the kernel (`IOSQE_ASYNC`): for files on which the kernel blocks
    /// in spite of `IOCB_NOWAIT`. Closing such a file may block as well.
    Worker,
}

/// Closes `file` in a thread of its own: close(2) waits for the server of some file
/// systems (FUSE sends FLUSH with each close).
pub fn close_elsewhere(file: File) {
    let thread = std::thread::Builder::new().name("close".to_owned());
    // Without a thread it is closed here, which may block this one.
    let _ = thread.spawn(move || drop(file));
}

impl Files {
    pub(crate) fn new(count: u32) -> Self {
        Self {
            slots: (0..count)
                .map(|_| Slot {
                    generation: 0,
                    file: None,
                    flags: squeue::Flags::empty(),
                })
                .collect(),
        }
    }

    /// Registers `file` in the first free slot.
    pub(crate) fn add(
        &mut self,
        submitter: &Submitter<'_>,
        file: File,
        issued_by: IssuedBy,
    ) -> Result<FileId, FileTableFull> {
        let full = FileTableFull::Full(self.slots.len());
        let mut free = (0u32..).zip(&mut self.slots);
        let Some((index, slot)) = free.find(|(_, slot)| slot.file.is_none()) else {
            return Err(full);
        };
        submitter
            .register_files_update(index, &[file.as_raw_fd()])
            .map_err(|error| FileTableFull::Kernel(errno_of(&error)))?;
        slot.file = Some(file);
        slot.flags = match issued_by {
            IssuedBy::Submitter => squeue::Flags::empty(),
            IssuedBy::Worker => squeue::Flags::ASYNC,
        };
        Ok(FileId {
            index,
            generation: slot.generation,
        })
    }

    /// Removes `id` from the table. Operations in flight on it complete: the kernel keeps
    /// the file open for them.
    pub(crate) fn remove(&mut self, submitter: &Submitter<'_>, id: FileId) -> Option<File> {
        let slot = self.slots.get_mut(id.index as usize)?;
        if slot.generation != id.generation {
            return None;
        }
        let file = slot.file.take()?;
        slot.generation = slot.generation.wrapping_add(1);
        // A slot that could not be cleared is overwritten by the next file.
        let _ = submitter.register_files_update(id.index, &[-1]);
        Some(file)
    }

    /// The slot in the kernel's table of a file that was not removed, and the flags of
    /// operations on it.
    pub(crate) fn slot(&self, id: FileId) -> Option<(u32, squeue::Flags)> {
        let slot = self.slots.get(id.index as usize)?;
        let known = slot.generation == id.generation && slot.file.is_some();
        known.then_some((id.index, slot.flags))
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        for slot in &mut self.slots {
            if slot.flags.contains(squeue::Flags::ASYNC)
                && let Some(file) = slot.file.take()
            {
                close_elsewhere(file);
            }
        }
    }
}
