//! A file that is replaced as a whole: whatever happens meanwhile, afterwards
//! it is the old one or the new one.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// What a file system is asked for, so that a test can pull the plug.
pub(crate) trait Files {
    /// A file with that content, in the place of one that is there.
    fn write(&self, path: &Path, bytes: &[u8]) -> io::Result<()>;
    /// Its content is stable.
    fn sync(&self, path: &Path) -> io::Result<()>;
    /// `from` takes the place of `to`.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;
    /// The names in the folder are stable.
    fn sync_folder(&self, folder: &Path) -> io::Result<()>;
    /// It is gone.
    fn remove(&self, path: &Path) -> io::Result<()>;
}

/// The machine's.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Real;

/// New content of a file that is stable on the disk, but not in its place yet.
/// Dropping it takes it away again.
#[derive(Debug)]
#[must_use]
pub(crate) struct Pending<'a, F: Files> {
    files: &'a F,
    path: PathBuf,
    there: bool,
}

/// Puts `bytes` where they can take the place of `path` at once.
///
/// # Errors
/// With the file's name; then nothing is left of it.
pub(crate) fn prepare<'a, F: Files>(
    files: &'a F,
    path: &Path,
    bytes: &[u8],
) -> io::Result<Pending<'a, F>> {
    let pending = Pending {
        files,
        path: path.to_path_buf(),
        there: true,
    };
    let new = pending.new_path();
    files
        .write(&new, bytes)
        .and_then(|()| files.sync(&new))
        .map_err(|error| about(&new, &error))?;
    Ok(pending)
}

/// Replaces a file as a whole.
///
/// # Errors
/// With the file's name; then it may be the old or the new one.
pub(crate) fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    prepare(&Real, path, bytes)?.commit()
}

impl<F: Files> Pending<'_, F> {
    fn new_path(&self) -> PathBuf {
        let mut name = OsString::from(self.path.file_name().unwrap_or_default());
        name.push(".new");
        self.path.with_file_name(name)
    }

    /// The content takes its place, for good.
    ///
    /// # Errors
    /// With the file's name; then it may be the old or the new one.
    pub(crate) fn commit(mut self) -> io::Result<()> {
        let folder = match self.path.parent() {
            Some(folder) if folder != Path::new("") => folder,
            _ => Path::new("."),
        };
        let renamed = self.files.rename(&self.new_path(), &self.path);
        renamed.map_err(|error| about(&self.path, &error))?;
        let synced = self
            .files
            .sync_folder(folder)
            .map_err(|error| about(folder, &error));
        self.there = false;
        synced
    }
}

impl<F: Files> Drop for Pending<'_, F> {
    fn drop(&mut self) {
        if self.there {
            let _ = self.files.remove(&self.new_path());
        }
    }
}

fn about(path: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

impl Files for Real {
    fn write(&self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        // Names of hosts are nobody's business but the target's.
        let mut options = OpenOptions::new();
        let options = options.write(true).create(true).truncate(true).mode(0o600);
        options.open(path)?.write_all(bytes)
    }

    fn sync(&self, path: &Path) -> io::Result<()> {
        // fsync(2) is about the file, by whatever descriptor it is called.
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

    /// A disk whose plug is pulled before step `left`. What was not synced may
    /// be there afterwards or not.
    #[derive(Debug, Default)]
    struct Disk {
        left: Cell<usize>,
        /// As programs see it.
        seen: RefCell<Contents>,
        /// Names, and what they stand for, as they are on the platter: of each
        /// name, everything that may be there after the plug was pulled.
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
        fn write(&self, path: &Path, bytes: &[u8]) -> io::Result<()> {
            self.step()?;
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
            // The name may be that of everything which the file may be.
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
                // Names are stable, contents only if they were.
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
    fn whenever_the_plug_is_pulled_the_old_or_the_new_one_is_there() {
        let path = Path::new("/state/state.json");
        for left in 0..=STEPS + 1 {
            let disk = Disk::with(path, b"old content");
            disk.left.set(left);
            let done = prepare(&disk, path, b"new content").and_then(Pending::commit);
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
    fn what_is_not_wanted_after_all_leaves_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("state.json");
        for (bytes, wanted) in [(b"1", true), (b"2", false), (b"3", true)] {
            let pending = prepare(&Real, &path, bytes).unwrap();
            if wanted {
                pending.commit().unwrap();
            } else {
                drop(pending);
            }
            assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
        }
        assert_eq!(fs::read(&path).unwrap(), b"3");
        let nowhere = folder.path().join("no").join("state.json");
        let error = prepare(&Real, &nowhere, b"1").unwrap_err().to_string();
        assert!(error.contains("no/state.json.new"), "{error}");
    }
}
