//! A second ring, for files whose devices are asked for what is done (`IOPOLL`):
//! such a ring reads and writes and does nothing else.

use std::fs::File;

use nix::errno::Errno;
use nvmeof_memory::Region;

use crate::files::{Begins, FileId, FileTableFull};
use crate::start::{MODES, RingConfig, RingError};
use crate::uring::Uring;

/// The second ring, and the names that files have there.
pub(crate) struct Polled {
    ring: Uring,
    /// Their names in the first ring and in this one.
    files: Vec<(FileId, FileId)>,
}

/// The ring took no file that is to be polled.
#[derive(Debug, thiserror::Error)]
pub enum PolledError {
    /// There are no places left.
    #[error(transparent)]
    Files(#[from] FileTableFull),
    /// The file has no second descriptor.
    #[error(
        "a descriptor cannot be duplicated ({0}); raise `ulimit -n` (LimitNOFILE= in a systemd \
         unit)"
    )]
    Duplicate(Errno),
    /// There is no second ring.
    #[error(transparent)]
    Ring(#[from] RingError),
}

impl Polled {
    /// A ring with fixed buffers of the same regions as the first one, which was made
    /// with `config`.
    pub(crate) fn new<'a>(
        config: RingConfig,
        regions: impl Iterator<Item = &'a Region>,
    ) -> Result<Self, RingError> {
        let config = RingConfig {
            thread: None,
            ..config
        };
        let mut ring = Uring::new(&MODES, config, true)?;
        ring.register_regions(regions);
        let files = Vec::new();
        Ok(Self { ring, files })
    }

    pub(crate) fn ring(&self) -> &Uring {
        &self.ring
    }

    pub(crate) fn ring_mut(&mut self) -> &mut Uring {
        &mut self.ring
    }

    /// Puts `file` in this ring, and by `add_first` its duplicate in the first one.
    /// Returns its name there.
    pub(crate) fn add_file(
        &mut self,
        file: File,
        add_first: impl FnOnce() -> Result<FileId, FileTableFull>,
    ) -> Result<FileId, PolledError> {
        let here = self.ring.add_file(file, Begins::Submitter)?;
        match add_first() {
            Ok(id) => {
                self.files.push((id, here));
                Ok(id)
            }
            Err(full) => {
                self.ring.remove_file(here);
                Err(full.into())
            }
        }
    }

    /// This ring, if it serves `file` of the first one, and the file's name here.
    pub(crate) fn at(&mut self, file: FileId) -> Option<(&mut Uring, FileId)> {
        let (_, here) = self.files.iter().find(|(id, _)| *id == file)?;
        Some((&mut self.ring, *here))
    }

    /// Takes out `file` of the first ring, if it is here.
    pub(crate) fn remove_file(&mut self, file: FileId) -> Result<(), RingError> {
        let Some(at) = self.files.iter().position(|(id, _)| *id == file) else {
            return Ok(());
        };
        self.ring.hand_over()?;
        let (_, here) = self.files.swap_remove(at);
        self.ring.remove_file(here);
        Ok(())
    }
}
