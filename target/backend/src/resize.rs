//! Resizing a file that is served, through the open descriptor.

use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use crate::QueryTimeout;
use crate::blocking::OPENING;
use crate::claim::Claim;
use nvmeof_backend_spec::QUERY_TIMEOUT;

/// A backing store cannot be resized.
#[derive(Debug, thiserror::Error)]
pub enum ResizeError {
    /// There is no file.
    #[error("memory cannot be resized without losing its data; add a namespace with another one")]
    Memory,
    /// It is a block device.
    #[error("the size of a block device cannot be set; omit it to use the current size")]
    Device,
    /// It is an RBD image.
    #[error(
        "resize the image with `rbd resize --size SIZE {0}` (to shrink it, --allow-shrink); the \
         target detects the new size"
    )]
    Image(String),
    /// It was opened read-only.
    #[error("it is served read-only; resize it by other means")]
    ReadOnly,
    /// The file system does not respond in time.
    #[error(transparent)]
    Unresponsive(#[from] QueryTimeout),
    /// A system call failed.
    #[error(transparent)]
    System(#[from] io::Error),
}

impl Claim {
    /// The current size of its file in bytes, which may differ from the size that is
    /// served.
    ///
    /// # Errors
    /// [`ResizeError`] where its size cannot be changed.
    pub fn file_len(&self) -> Result<u64, ResizeError> {
        if !self.geometry().may_block {
            return self.file_len_now();
        }
        let this = self.clone();
        self.ask(QUERY_TIMEOUT, move || this.file_len_now())?
    }

    fn file_len_now(&self) -> Result<u64, ResizeError> {
        let file = self.file().ok_or_else(|| self.without_file())?;
        let metadata = file.metadata()?;
        if metadata.file_type().is_block_device() {
            return Err(ResizeError::Device);
        }
        if self.geometry().readonly {
            return Err(ResizeError::ReadOnly);
        }
        Ok(metadata.len())
    }

    /// Why it has no file that could be resized.
    fn without_file(&self) -> ResizeError {
        match self.name().strip_prefix("rbd:") {
            Some(image) => ResizeError::Image(image.to_owned()),
            None => ResizeError::Memory,
        }
    }

    /// Sets the size of its file to `len` bytes, durably. Open backing stores keep their
    /// size: see [`resized`](Self::resized).
    ///
    /// # Errors
    /// [`ResizeError`]; then the file has its previous size, unless fsync(2) failed.
    pub fn set_file_len(&self, len: u64) -> Result<(), ResizeError> {
        if !self.geometry().may_block {
            return self.set_file_len_now(len);
        }
        let this = self.clone();
        self.ask(OPENING, move || this.set_file_len_now(len))?
    }

    fn set_file_len_now(&self, len: u64) -> Result<(), ResizeError> {
        self.file_len_now()?;
        let file = self.file().ok_or_else(|| self.without_file())?;
        file.set_len(len)?;
        // fsync(2) also makes the writes of hosts stable, and reports a failure only once.
        let _begun = self.begin_sync();
        file.sync_all().inspect_err(|_| self.add_loss())?;
        Ok(())
    }

    /// A path to the file that is served, also after it was renamed (proc(5)). It is valid
    /// as long as this process has the file open. `None` for memory.
    #[must_use]
    pub fn open_path(&self) -> Option<PathBuf> {
        let descriptor = self.file()?.as_raw_fd();
        let process = std::process::id();
        Some(format!("/proc/{process}/fd/{descriptor}").into())
    }

    /// Whether `path` still names the file or device that is served, and was not replaced.
    ///
    /// # Errors
    /// When there is no such file, or stat(2) fails.
    pub fn is_at(&self, path: &Path) -> io::Result<bool> {
        if !self.geometry().may_block {
            return self.is_at_now(path);
        }
        let (this, path) = (self.clone(), path.to_owned());
        let answer = self.ask(QUERY_TIMEOUT, move || this.is_at_now(&path));
        answer.map_err(io::Error::other)?
    }

    fn is_at_now(&self, path: &Path) -> io::Result<bool> {
        let Some(file) = self.file() else {
            return Ok(false);
        };
        let (served, named) = (file.metadata()?, std::fs::metadata(path)?);
        let of = |it: &std::fs::Metadata| match it.file_type().is_block_device() {
            true => (0, it.rdev()),
            false => (it.dev(), it.ino()),
        };
        Ok(of(&served) == of(&named))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use crate::Spec;

    use super::*;

    fn take(path: &Path, readonly: bool) -> Claim {
        let spec: Spec = path.display().to_string().parse().unwrap();
        Claim::take(&spec.with_readonly(readonly), None).unwrap()
    }

    #[test]
    fn set_file_len_after_rename_resizes_served_file() {
        let folder = tempfile::tempdir().unwrap();
        let (path, other) = (folder.path().join("a"), folder.path().join("b"));
        for path in [&path, &other] {
            std::fs::File::create(path).unwrap().set_len(8192).unwrap();
        }
        let claim = take(&path, false);
        assert!(claim.is_at(&path).unwrap() && !claim.is_at(&other).unwrap());
        let link = folder.path().join("c");
        std::fs::hard_link(&path, &link).unwrap();
        std::fs::rename(&other, &path).unwrap();
        assert!(!claim.is_at(&path).unwrap() && claim.is_at(&link).unwrap());
        claim.set_file_len(4096).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().len(), 8192);
        assert_eq!(std::fs::metadata(&link).unwrap().len(), 4096);
        std::fs::remove_file(&path).unwrap();
        assert!(claim.is_at(&path).is_err());
    }

    #[test]
    fn claim_with_size_serves_that_much_of_same_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        std::fs::File::create(&path).unwrap().set_len(8192).unwrap();
        let claim = take(&path, false);
        let less = claim.with_size(4096).unwrap();
        assert_eq!(less.geometry().size, 4096);
        assert_eq!(less.identity(), claim.identity());
        let hints = less.geometry().hints;
        assert!(hints == claim.geometry().hints && hints.write.is_some());
        // The file still has all of its bytes.
        let again = less.resized().unwrap().unwrap();
        assert_eq!(again.geometry().size, 8192);
        for bad in [0, 100] {
            assert!(claim.with_size(bad).is_err());
        }
    }

    #[test]
    fn set_file_len_of_memory_or_read_only_file_is_refused() {
        let ram = Claim::take(&"ram:1M".parse().unwrap(), None).unwrap();
        assert!(matches!(ram.set_file_len(0), Err(ResizeError::Memory)));
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        std::fs::write(&path, [0; 4096]).unwrap();
        let claim = take(&path, true);
        let refused = claim.set_file_len(8192);
        assert!(matches!(refused, Err(ResizeError::ReadOnly)));
        assert_eq!(std::fs::metadata(&path).unwrap().len(), 4096);
    }
}
