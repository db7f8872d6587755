//! A second ring, for files whose devices are polled for completions (`IOPOLL`): such a
//! ring supports reads and writes only.

use std::fs::File;

use nix::errno::Errno;
use nvmeof_memory::Region;

use crate::files::{FileId, FileTableFull, IssuedBy};
use crate::start::{MODES, RingConfig, RingError};
use crate::uring::Uring;

/// The second ring, and the ids of its files.
pub(crate) struct Polled {
    ring: Uring,
    /// Their ids in the first ring and in this one.
    files: Vec<(FileId, FileId)>,
}

/// A polled file could not be added to the ring.
#[derive(Debug, thiserror::Error)]
pub enum PolledError {
    /// No slot is free.
    #[error(transparent)]
    Files(#[from] FileTableFull),
    /// The descriptor of the file could not be duplicated.
    #[error(
        "cannot duplicate a file descriptor ({0}); raise `ulimit -n` (LimitNOFILE= in a systemd \
         unit)"
    )]
    Duplicate(Errno),
    /// The second ring could not be made.
    #[error(transparent)]
    Ring(#[from] RingError),
}

impl Polled {
    /// A ring with fixed buffers of the same regions as the first one, which was made with
    /// `config`.
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

    /// Adds `file` to this ring, and with `add_first` its duplicate to the first one.
    /// Returns its id there.
    pub(crate) fn add_file(
        &mut self,
        file: File,
        add_first: impl FnOnce() -> Result<FileId, FileTableFull>,
    ) -> Result<FileId, PolledError> {
        let here = self.ring.add_file(file, IssuedBy::Submitter)?;
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

    /// This ring, if it has `file` of the first one, and the id of the file here.
    pub(crate) fn at(&mut self, file: FileId) -> Option<(&mut Uring, FileId)> {
        let (_, here) = self.files.iter().find(|(id, _)| *id == file)?;
        Some((&mut self.ring, *here))
    }

    /// Removes `file` of the first ring, if it is here.
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
