//! The files of a package below the folder that becomes its root.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use crate::run::{self, Failure, Outcome};

/// A folder with the files of one package.
pub(super) struct Tree {
    root: PathBuf,
}

impl Tree {
    /// Creates an empty tree.
    pub(super) fn new(root: PathBuf) -> Outcome<Self> {
        if root.exists() {
            fs::remove_dir_all(&root).map_err(|error| Failure::file("remove", &root, &error))?;
        }
        let tree = Self { root };
        tree.folder("DEBIAN")?;
        Ok(tree)
    }

    pub(super) fn root(&self) -> &Path {
        &self.root
    }

    /// A folder in it, created if it does not exist.
    pub(super) fn folder(&self, place: &str) -> Outcome<PathBuf> {
        let mut folder = self.root.clone();
        make(&folder)?;
        for part in place.split('/') {
            folder.push(part);
            make(&folder)?;
        }
        Ok(folder)
    }

    /// A file that all users may read.
    pub(super) fn file(&self, from: &Path, to: &str) -> Outcome<PathBuf> {
        self.place(from, to, 0o644)
    }

    /// A file that all users may execute.
    pub(super) fn program(&self, from: &Path, to: &str) -> Outcome<PathBuf> {
        self.place(from, to, 0o755)
    }

    fn place(&self, from: &Path, to: &str, mode: u32) -> Outcome<PathBuf> {
        let bytes = fs::read(from).map_err(|error| Failure::file("read", from, &error))?;
        self.bytes(&bytes, to, mode)
    }

    /// A file with `text` in it.
    pub(super) fn text(&self, text: &str, to: &str) -> Outcome<PathBuf> {
        self.bytes(text.as_bytes(), to, 0o644)
    }

    fn bytes(&self, bytes: &[u8], to: &str, mode: u32) -> Outcome<PathBuf> {
        if let Some((folder, _)) = to.rsplit_once('/') {
            self.folder(folder)?;
        }
        let path = self.root.join(to);
        fs::write(&path, bytes).map_err(|error| Failure::file("write", &path, &error))?;
        give(&path, mode)?;
        Ok(path)
    }

    /// All files that are in it.
    pub(super) fn files(&self) -> Outcome<Vec<PathBuf>> {
        files(&self.root)
    }

    /// Compresses a file as Debian requires for manual pages and changelogs: smallest size,
    /// reproducible.
    pub(super) fn compress(&self, path: &Path) -> Outcome {
        run::run(run::command("gzip").args(["-9n"]).arg(path))
    }

    /// Every file of a folder.
    pub(super) fn compress_all(&self, folder: &Path) -> Outcome {
        let mut gzip = run::command("gzip");
        gzip.args(["-9nr"]).arg(folder);
        run::run(&mut gzip)?;
        for file in files(folder)? {
            give(&file, 0o644)?;
        }
        Ok(())
    }

    /// KiB that the files take, for `Installed-Size`.
    pub(super) fn kib(&self) -> Outcome<u64> {
        let mut all = 0;
        for file in files(&self.root)? {
            let about =
                fs::metadata(&file).map_err(|error| Failure::file("look at", &file, &error))?;
            all += about.len().div_ceil(1024);
        }
        Ok(all)
    }

    /// The checksums of all files except control files, in the format of `md5sums`.
    pub(super) fn sums(&self) -> Outcome<String> {
        let mut sums = run::command("md5sum");
        sums.current_dir(&self.root).arg("--");
        let mut names: Vec<PathBuf> = files(&self.root)?
            .into_iter()
            .filter_map(|file| file.strip_prefix(&self.root).ok().map(Path::to_path_buf))
            .filter(|name| !name.starts_with("DEBIAN"))
            .collect();
        names.sort();
        run::output(sums.args(names))
    }
}

/// All files below a folder.
fn files(folder: &Path) -> Outcome<Vec<PathBuf>> {
    let unreadable = |error| Failure::file("read", folder, &error);
    let mut all = Vec::new();
    for entry in fs::read_dir(folder).map_err(unreadable)? {
        let path = entry.map_err(unreadable)?.path();
        if path.is_dir() {
            all.extend(files(&path)?);
        } else {
            all.push(path);
        }
    }
    Ok(all)
}

fn make(folder: &Path) -> Outcome {
    if folder.is_dir() {
        return Ok(());
    }
    fs::create_dir_all(folder).map_err(|error| Failure::file("create", folder, &error))?;
    give(folder, 0o755)
}

/// Sets the mode, independent of the umask.
fn give(path: &Path, mode: u32) -> Outcome {
    fs::set_permissions(path, Permissions::from_mode(mode))
        .map_err(|error| Failure::file("change", path, &error))
}
