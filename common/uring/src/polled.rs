//! Files whose devices are asked for what is done (`IOPOLL`), over a second
//! ring: such a ring reads and writes and does nothing else.

use std::fs::File;

use nix::errno::Errno;
use nvmeof_memory::Region;

use crate::start::MODES;
use crate::{FileId, FileTableFull, Ring, RingConfig, RingError};

/// The second ring, and the names that files have there.
pub(crate) struct Polled {
    ring: Ring,
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

impl Ring {
    /// As [`add_file`](Self::add_file), for a file with direct I/O on a device
    /// that can be polled: reads, and writes that need not be durable, are
    /// asked for instead of told by an interrupt. As long as some are in
    /// flight, the ring's owner cannot sleep. On other files they fail with
    /// `EOPNOTSUPP`.
    ///
    /// # Errors
    /// [`PolledError`].
    pub fn add_polled_file(&mut self, file: File) -> Result<FileId, PolledError> {
        let duplicate = file.try_clone().map_err(|error| {
            let errno = error.raw_os_error();
            PolledError::Duplicate(errno.map_or(Errno::UnknownErrno, Errno::from_raw))
        })?;
        let config = self.config;
        let polled = match &mut self.polled {
            Some(polled) => polled,
            none => none.insert(Box::new(Polled::new(config, self.fixed.regions())?)),
        };
        let there = polled.ring.add_file(duplicate)?;
        match self.add_file(file) {
            Ok(id) => {
                if let Some(polled) = &mut self.polled {
                    polled.files.push((id, there));
                }
                Ok(id)
            }
            Err(full) => {
                if let Some(polled) = &mut self.polled {
                    polled.ring.remove_file(there)?;
                }
                Err(full.into())
            }
        }
    }

    /// The second ring, if it serves `file`, and the file's name there.
    pub(crate) fn polled_at(&mut self, file: FileId) -> Option<(&mut Ring, FileId)> {
        let polled = self.polled.as_mut()?;
        let (_, there) = polled.files.iter().find(|(id, _)| *id == file)?;
        Some((&mut polled.ring, *there))
    }
}

impl Polled {
    fn new<'a>(
        config: RingConfig,
        regions: impl Iterator<Item = &'a Region>,
    ) -> Result<Self, RingError> {
        let config = RingConfig {
            thread: None,
            ..config
        };
        let mut ring = Ring::in_one_of(&MODES, config, true)?;
        ring.register_regions(regions);
        let files = Vec::new();
        Ok(Self { ring, files })
    }

    pub(crate) fn ring(&self) -> &Ring {
        &self.ring
    }

    pub(crate) fn ring_mut(&mut self) -> &mut Ring {
        &mut self.ring
    }

    pub(crate) fn remove_file(&mut self, id: FileId) -> Result<(), RingError> {
        let Some(at) = self.files.iter().position(|(one, _)| *one == id) else {
            return Ok(());
        };
        let (_, there) = self.files.swap_remove(at);
        self.ring.remove_file(there).map(drop)
    }
}
