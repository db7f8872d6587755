//! Replaces a file atomically: after a crash at any moment it has the old content or
//! the new one.
//!
//! This crate does not know what files contain, and locks none.
#![forbid(unsafe_code)]

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt, fchown};
use std::path::{Path, PathBuf};

use nix::fcntl::OFlag;
use nvmeof_rdma::explain;

/// The file system operations that are used; tests replace them to simulate power loss.
pub trait Files {
    /// Creates a file with that content; `path` must not exist. The file gets owner and
    /// mode of `old`, or is readable for `readers` if there is no `old`.
    ///
    /// # Errors
    /// The error of the file system.
    fn write(&self, path: &Path, bytes: &[u8], old: &Path, readers: ReadAccess) -> io::Result<()>;
    /// Puts the content of a file on stable storage.
    ///
    /// # Errors
    /// The error of the file system.
    fn sync(&self, path: &Path) -> io::Result<()>;
    /// Renames `from` to `to`, which it replaces.
    ///
    /// # Errors
    /// The error of the file system.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;
    /// Puts the names in a folder on stable storage.
    ///
    /// # Errors
    /// The error of the file system.
    fn sync_folder(&self, folder: &Path) -> io::Result<()>;
    /// Removes a file.
    ///
    /// # Errors
    /// The error of the file system.
    fn remove(&self, path: &Path) -> io::Result<()>;
}

/// Read permission of a new file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadAccess {
    /// Its owner only: it has names of hosts, which are confidential.
    Owner,
    /// All users, less the umask, as for files that a user writes.
    Everybody,
}

/// The file system of the machine.
#[derive(Clone, Copy, Debug, Default)]
pub struct Real;

/// New content of a file, on stable storage under a temporary name. Dropping it removes
/// it again.
#[derive(Debug)]
#[must_use]
pub struct Pending<'a, F: Files + ?Sized> {
    files: &'a F,
    path: PathBuf,
    /// The temporary name.
    new: PathBuf,
    exists: bool,
}

/// Writes `bytes` under a temporary name, from which [`Pending::commit`] renames them to
/// `path`.
///
/// # Errors
/// The error, with the path; then the temporary file is removed.
pub fn prepare<'a, F: Files + ?Sized>(
    files: &'a F,
    path: &Path,
    bytes: &[u8],
    readers: ReadAccess,
) -> io::Result<Pending<'a, F>> {
    let (new, written) = write_new(files, path, bytes, readers);
    let pending = Pending {
        files,
        path: path.to_path_buf(),
        new,
        exists: written.is_ok(),
    };
    written
        .and_then(|()| files.sync(&pending.new))
        .map_err(|error| about(&pending.new, &error))?;
    Ok(pending)
}

/// Attempts to find an unused temporary name.
const ATTEMPTS: u32 = 8;

/// Writes a new file beside `path`; returns its name and the outcome.
fn write_new<F: Files + ?Sized>(
    files: &F,
    path: &Path,
    bytes: &[u8],
    readers: ReadAccess,
) -> (PathBuf, io::Result<()>) {
    let mut attempt = 1;
    loop {
        let new = temporary_name(path);
        match files.write(&new, bytes, path, readers) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && attempt < ATTEMPTS => {
                attempt += 1;
            }
            written => return (new, written),
        }
    }
}

/// An unpredictable name in the same folder: another user with write permission for the
/// folder cannot prepare a file of this name.
fn temporary_name(path: &Path) -> PathBuf {
    let random = RandomState::new().build_hasher().finish();
    let mut name = temporary_prefix(path);
    name.push(format!("{random:016x}"));
    path.with_file_name(name)
}

/// What a temporary name has between the name of the file and random digits.
const SUFFIX: &str = ".new-";

/// Prefix of temporary names.
fn temporary_prefix(path: &Path) -> OsString {
    let mut prefix = OsString::from(".");
    prefix.push(path.file_name().unwrap_or_default());
    prefix.push(SUFFIX);
    prefix
}

/// Removes temporary files of writers of `path` that were killed. No other process may
/// be writing `path`.
pub fn sweep(path: &Path) {
    let prefix = temporary_prefix(path);
    sweep_if(folder_of(path), |of| of == prefix.as_bytes());
}

/// The same for all files of `folder`.
pub fn sweep_folder(folder: &Path) {
    sweep_if(folder, |of| {
        of.starts_with(b".") && of.ends_with(SUFFIX.as_bytes())
    });
}

/// Removes temporary files of `folder` whose names begin with a prefix that `is_its`.
fn sweep_if(folder: &Path, is_its: impl Fn(&[u8]) -> bool) {
    let Ok(entries) = fs::read_dir(folder) else {
        return;
    };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let parts = name.as_bytes().split_last_chunk::<16>();
        let is_ours = parts.is_some_and(|(prefix, random)| {
            random.iter().all(u8::is_ascii_hexdigit) && is_its(prefix)
        });
        if is_ours && let Err(error) = fs::remove_file(entry.path()) {
            let path = entry.path();
            tracing::warn!(
                "{}: cannot remove the rest of an interrupted write: {}",
                path.display(),
                explain(&error)
            );
        }
    }
}

/// The file in the same folder whose name has `ending` appended.
#[must_use]
pub fn with_ending(path: &Path, ending: &str) -> PathBuf {
    let mut name = OsString::from(path.file_name().unwrap_or_default());
    name.push(ending);
    path.with_file_name(name)
}

fn folder_of(path: &Path) -> &Path {
    match path.parent() {
        Some(folder) if folder != Path::new("") => folder,
        _ => Path::new("."),
    }
}

/// Replaces a file atomically and keeps its owner and mode; a new file is readable for
/// `readers`.
///
/// # Errors
/// The error, with the path; then the file is the old or the new one.
pub fn replace(path: &Path, bytes: &[u8], readers: ReadAccess) -> io::Result<()> {
    prepare(&Real, path, bytes, readers)?.commit()
}

impl<F: Files + ?Sized> Pending<'_, F> {
    /// Renames the content to its path, durably.
    ///
    /// # Errors
    /// The error, with the path; then the file is the old or the new one.
    pub fn commit(mut self) -> io::Result<()> {
        let folder = folder_of(&self.path);
        let renamed = self.files.rename(&self.new, &self.path);
        renamed.map_err(|error| about(&self.path, &error))?;
        // The temporary name does not exist any more.
        self.exists = false;
        self.files
            .sync_folder(folder)
            .map_err(|error| about(folder, &error))
    }
}

impl<F: Files + ?Sized> Drop for Pending<'_, F> {
    fn drop(&mut self) {
        if self.exists {
            let _ = self.files.remove(&self.new);
        }
    }
}

fn about(path: &Path, error: &io::Error) -> io::Error {
    io::Error::new(
        error.kind(),
        format!("{}: {}", path.display(), explain(error)),
    )
}

/// Gives `file` owner, group and mode of the `old` one, as far as permitted.
fn copy_ownership(file: &File, old: &fs::Metadata) -> io::Result<()> {
    let new = file.metadata()?;
    if (new.uid(), new.gid()) != (old.uid(), old.gid()) {
        // Only root may change the owner; a group of this process is always permitted.
        let _ = fchown(file, Some(old.uid()), Some(old.gid()))
            .or_else(|_| fchown(file, None, Some(old.gid())));
    }
    // chown(2) clears bits of the mode, so it comes first.
    file.set_permissions(fs::Permissions::from_mode(old.mode() & 0o777))
}

impl Files for Real {
    fn write(&self, path: &Path, bytes: &[u8], old: &Path, readers: ReadAccess) -> io::Result<()> {
        let old = fs::metadata(old).ok().filter(fs::Metadata::is_file);
        let mode = match readers {
            ReadAccess::Everybody if old.is_none() => 0o644,
            // Private until it has the mode of the old one.
            _ => 0o600,
        };
        let mut options = OpenOptions::new();
        let options = options.write(true).create_new(true).mode(mode);
        let file = options.custom_flags(OFlag::O_NOFOLLOW.bits()).open(path)?;
        let owned = old.map_or(Ok(()), |old| copy_ownership(&file, &old));
        let written = owned.and_then(|()| file.write_all_at(bytes, 0));
        if written.is_err() {
            drop(fs::remove_file(path));
        }
        written
    }

    fn sync(&self, path: &Path) -> io::Result<()> {
        // fsync(2) applies to the file, whichever descriptor it is called with.
        File::open(path)?.sync_all()
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn sync_folder(&self, folder: &Path) -> io::Result<()> {
        File::open(folder)?.sync_all()
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        fs::remove_file(path)
    }
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};
    use std::collections::BTreeMap;

    use super::*;

    type Contents = BTreeMap<PathBuf, Vec<u8>>;

    /// A disk that loses power before step `left`. Afterwards, what was not synced is
    /// there or not.
    #[derive(Debug, Default)]
    struct Disk {
        left: Cell<usize>,
        /// The content that processes see.
        seen: RefCell<Contents>,
        /// On stable storage: for each name, all contents that it may have after power
        /// is lost.
        stable: RefCell<BTreeMap<PathBuf, Vec<Option<Vec<u8>>>>>,
    }

    impl Disk {
        fn with(path: &Path, bytes: &[u8]) -> Self {
            let disk = Self::default();
            disk.seen.borrow_mut().insert(path.into(), bytes.into());
            disk.stable
                .borrow_mut()
                .insert(path.into(), vec![Some(bytes.into())]);
            disk
        }

        fn step(&self) -> io::Result<()> {
            let left = self.left.get().checked_sub(1);
            self.left.set(left.ok_or(io::ErrorKind::BrokenPipe)?);
            Ok(())
        }

        fn may_be(&self, path: &Path, content: Option<Vec<u8>>) {
            let mut stable = self.stable.borrow_mut();
            stable
                .entry(path.into())
                .or_insert_with(|| vec![None])
                .push(content);
        }
    }

    impl Files for Disk {
        fn write(&self, path: &Path, bytes: &[u8], _: &Path, _: ReadAccess) -> io::Result<()> {
            self.step()?;
            assert!(!self.seen.borrow().contains_key(path), "the file exists");
            self.may_be(path, Some(Vec::new()));
            self.may_be(path, Some(bytes[..bytes.len() / 2].into()));
            self.seen
                .borrow_mut()
                .insert(path.into(), bytes[..bytes.len() / 2].into());
            self.step()?;
            self.may_be(path, Some(bytes.into()));
            self.seen.borrow_mut().insert(path.into(), bytes.into());
            Ok(())
        }

        fn sync(&self, path: &Path) -> io::Result<()> {
            self.step()?;
            let bytes = self.seen.borrow().get(path).cloned();
            self.stable.borrow_mut().insert(path.into(), vec![bytes]);
            Ok(())
        }

        fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
            self.step()?;
            // The name may have each content that the file may have.
            let all = self.stable.borrow().get(from).cloned().unwrap_or_default();
            for content in all {
                self.may_be(to, content);
            }
            let bytes = self.seen.borrow_mut().remove(from).unwrap();
            self.seen.borrow_mut().insert(to.into(), bytes);
            Ok(())
        }

        fn sync_folder(&self, _folder: &Path) -> io::Result<()> {
            self.step()?;
            let seen = self.seen.borrow();
            let mut stable = self.stable.borrow_mut();
            for (path, all) in stable.iter_mut() {
                // Names are stable now; contents only if they were before.
                all.retain(|content| content.is_some() == seen.contains_key(path));
                if let Some(last) = all.pop() {
                    *all = vec![last];
                }
            }
            Ok(())
        }

        fn remove(&self, path: &Path) -> io::Result<()> {
            self.step()?;
            self.may_be(path, None);
            self.seen.borrow_mut().remove(path);
            Ok(())
        }
    }

    const STEPS: usize = 5;

    #[test]
    fn power_loss_leaves_the_old_or_the_new_file() {
        let path = Path::new("/state/state.json");
        for left in 0..=STEPS + 1 {
            let disk = Disk::with(path, b"old content");
            disk.left.set(left);
            let done =
                prepare(&disk, path, b"new content", ReadAccess::Owner).and_then(Pending::commit);
            assert_eq!(done.is_ok(), left >= STEPS, "after {left} steps");
            let stable = disk.stable.borrow();
            for content in &stable[path] {
                let content = content.as_deref().unwrap();
                let whole =
                    content == b"new content" || (content == b"old content" && left < STEPS);
                assert!(
                    whole,
                    "after {left} steps: {:?}",
                    String::from_utf8_lossy(content)
                );
            }
        }
    }

    #[test]
    fn dropped_pending_content_is_removed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("state.json");
        for (bytes, wanted) in [(b"1", true), (b"2", false), (b"3", true)] {
            let pending = prepare(&Real, &path, bytes, ReadAccess::Owner).unwrap();
            if wanted {
                pending.commit().unwrap();
            } else {
                drop(pending);
            }
            assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
        }
        assert_eq!(fs::read(&path).unwrap(), b"3");
        let nowhere = folder.path().join("no").join("state.json");
        let error = prepare(&Real, &nowhere, b"1", ReadAccess::Owner)
            .unwrap_err()
            .to_string();
        assert!(error.contains("no/.state.json.new-"), "{error}");
    }

    #[test]
    fn planted_files_and_links_are_not_written() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("state.json");
        let victim = folder.path().join("victim");
        fs::write(&victim, "theirs").unwrap();
        std::os::unix::fs::symlink(&victim, folder.path().join("state.json.new")).unwrap();
        replace(&path, b"1", ReadAccess::Owner).unwrap();
        let link = folder.path().join("link");
        std::os::unix::fs::symlink(&victim, &link).unwrap();
        for planted in [&victim, &link] {
            let error = Real
                .write(planted, b"ours", &path, ReadAccess::Owner)
                .unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::AlreadyExists);
        }
        assert_eq!(fs::read(&victim).unwrap(), b"theirs");
        let mode = fs::symlink_metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert_ne!(temporary_name(&path), temporary_name(&path));
    }

    #[test]
    fn replace_keeps_owner_and_mode() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("target.toml");
        let access = |path: &Path| {
            let it = fs::metadata(path).unwrap();
            (it.mode() & 0o777, it.uid(), it.gid())
        };
        // The mode that the umask leaves.
        let plain = folder.path().join("plain");
        let mut options = OpenOptions::new();
        let options = options.write(true).create_new(true).mode(0o644);
        drop(options.open(&plain).unwrap());
        replace(&path, b"1", ReadAccess::Everybody).unwrap();
        assert_eq!(access(&path), access(&plain));
        for (mode, readers) in [(0o640, ReadAccess::Everybody), (0o604, ReadAccess::Owner)] {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            // As root, change the owner too.
            let _ = fchown(File::open(&path).unwrap(), Some(1), Some(2));
            let before = access(&path);
            replace(&path, b"2", readers).unwrap();
            assert_eq!((access(&path), before.0), (before, mode));
        }
    }

    #[test]
    fn sweep_removes_temporary_files_of_this_path_only() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("state.json");
        let of_another = folder.path().join(".other.json.new-0123456789abcdef");
        let not_ours = folder.path().join(".state.json.new-backup");
        for kept in [&path, &of_another, &not_ours] {
            fs::write(kept, "1").unwrap();
        }
        // As after SIGKILL.
        std::mem::forget(prepare(&Real, &path, b"2", ReadAccess::Owner).unwrap());
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 4);
        sweep(&path);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 3);
        assert!(path.exists() && of_another.exists() && not_ours.exists());
    }
}
