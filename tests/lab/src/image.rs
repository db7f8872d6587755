//! The guest image: built once for each version of its recipe, kept outside of the source
//! tree.

use std::env;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant, SystemTime};

use crate::Trouble;

/// The file of an image that lists its packages.
const VERSIONS: &str = "versions.txt";

/// Time after which an unused image is removed: each takes more than 1 GiB.
const KEPT: Duration = Duration::from_secs(7 * 24 * 3600);

/// A finished image.
#[derive(Clone, Debug)]
pub(crate) struct Image {
    pub(crate) folder: PathBuf,
}

impl Image {
    /// The version of a Debian package in the guest; `uname` is the kernel.
    pub(crate) fn version(&self, package: &str) -> Option<String> {
        let text = fs::read_to_string(self.folder.join(VERSIONS)).ok()?;
        version(&text, package).map(str::to_owned)
    }
}

fn version<'a>(versions: &'a str, package: &str) -> Option<&'a str> {
    let mut pairs = versions.lines().filter_map(|line| line.split_once(' '));
    pairs.find(|(name, _)| *name == package).map(|(_, it)| it)
}

/// The image for the recipe in `recipe`; builds it if there is none, or if
/// `rebuild` asks for it.
pub(crate) fn ensure(recipe: &Path, rebuild: bool) -> Result<Image, Trouble> {
    let cache = cache(env::var_os("XDG_CACHE_HOME"), env::var_os("HOME"))?;
    fs::create_dir_all(&cache).map_err(|error| Trouble::file("create", &cache, &error))?;
    let folder = cache.join(hash(recipe)?);
    if folder.is_dir() && !rebuild {
        mark_used(&folder);
        return Ok(Image { folder });
    }
    let _lock = lock(&cache.join("lock"))?;
    // Another process may have built it meanwhile.
    if folder.is_dir() && !rebuild {
        return Ok(Image { folder });
    }
    build(recipe, &folder)?;
    forget_old(&cache)?;
    Ok(Image { folder })
}

/// Sets the time of its last use.
fn mark_used(folder: &Path) {
    // On failure the image may be removed too early, and is built again.
    drop(File::open(folder.join(VERSIONS)).and_then(|file| file.set_modified(SystemTime::now())));
}

/// Removes images that were not used for a while.
fn forget_old(cache: &Path) -> Result<(), Trouble> {
    let unreadable = |error| Trouble::file("read", cache, &error);
    for entry in fs::read_dir(cache).map_err(unreadable)? {
        let folder = entry.map_err(unreadable)?.path();
        let used = fs::metadata(folder.join(VERSIONS)).and_then(|file| file.modified());
        let age = used.ok().and_then(|used| used.elapsed().ok());
        if age.is_some_and(|age| age > KEPT) {
            discard(&folder)?;
        }
    }
    Ok(())
}

fn cache(
    xdg: Option<std::ffi::OsString>,
    home: Option<std::ffi::OsString>,
) -> Result<PathBuf, Trouble> {
    // "If $XDG_CACHE_HOME is either not set or empty, a default equal to
    // $HOME/.cache should be used" (XDG Base Directory Specification).
    let set = |value: Option<std::ffi::OsString>| value.filter(|text| !text.is_empty());
    let base = set(xdg)
        .map(PathBuf::from)
        .or_else(|| set(home).map(|home| PathBuf::from(home).join(".cache")));
    base.map(|base| base.join("nvmeof-lab")).ok_or_else(|| {
        Trouble::SetUp("no folder for the guest image: set HOME or XDG_CACHE_HOME".to_owned())
    })
}

/// Allows one build at a time; closing the file releases the lock.
fn lock(path: &Path) -> Result<File, Trouble> {
    let file = File::create(path).map_err(|error| Trouble::file("create", path, &error))?;
    if file.try_lock().is_err() {
        eprintln!("lab image: another build is in progress; waiting for it");
        file.lock()
            .map_err(|error| Trouble::file("lock", path, &error))?;
    }
    Ok(file)
}

/// Builds next to `folder` and moves the result there, so that an interrupted
/// build never looks finished.
fn build(recipe: &Path, folder: &Path) -> Result<(), Trouble> {
    let started = Instant::now();
    let unfinished = folder.with_extension("unfinished");
    discard(&unfinished)?;
    fs::create_dir_all(&unfinished)
        .map_err(|error| Trouble::file("create", &unfinished, &error))?;
    let log_path = folder.with_extension("log");
    let log =
        File::create(&log_path).map_err(|error| Trouble::file("create", &log_path, &error))?;
    eprintln!(
        "lab image: building it once in {}; the log is {}",
        folder.display(),
        log_path.display()
    );
    let mut child = Command::new("bash")
        .arg(recipe.join("build.sh"))
        .arg(&unfinished)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(
            log.try_clone()
                .map_err(|error| Trouble::file("open", &log_path, &error))?,
        )
        .spawn()
        .map_err(|error| Trouble::SetUp(format!("cannot start bash: {error}")))?;
    if let Some(output) = child.stdout.take() {
        show_progress(output, log);
    }
    let status = child
        .wait()
        .map_err(|error| Trouble::file("build", folder, &error))?;
    if !status.success() {
        discard(&unfinished)?;
        let text = fs::read_to_string(&log_path).unwrap_or_default();
        let last: Vec<_> = text.lines().rev().take(5).collect();
        let last: Vec<_> = last.into_iter().rev().collect();
        return Err(Trouble::SetUp(format!(
            "cannot build the guest image ({status}); see the log {}:\n{}",
            log_path.display(),
            last.join("\n")
        )));
    }
    discard(folder)?;
    fs::rename(&unfinished, folder).map_err(|error| Trouble::file("create", folder, &error))?;
    eprintln!("lab image: done in {} s", started.elapsed().as_secs());
    Ok(())
}

/// Writes all lines to the log, and those of the build script to standard error.
fn show_progress(output: impl std::io::Read, mut log: File) {
    use std::io::{BufRead as _, BufReader, Write as _};
    for line in BufReader::new(output).lines().map_while(Result::ok) {
        // The build reports a full disk.
        drop(writeln!(log, "{line}"));
        if line.starts_with("lab image:") {
            eprintln!("{line}");
        }
    }
}

fn discard(folder: &Path) -> Result<(), Trouble> {
    if !folder.exists() {
        return Ok(());
    }
    fs::remove_dir_all(folder).map_err(|error| Trouble::file("remove", folder, &error))
}

/// Hash of the names and contents of the files of the recipe.
pub(crate) fn hash(recipe: &Path) -> Result<String, Trouble> {
    let entries = fs::read_dir(recipe).map_err(|error| Trouble::file("read", recipe, &error))?;
    let mut files = Vec::new();
    for entry in entries {
        let path = entry
            .map_err(|error| Trouble::file("read", recipe, &error))?
            .path();
        let content = fs::read(&path).map_err(|error| Trouble::file("read", &path, &error))?;
        let name = path.file_name().unwrap_or_default().to_owned();
        files.push((name, content));
    }
    files.sort();
    let mut hash = Fnv::default();
    for (name, content) in files {
        hash.add(name.as_encoded_bytes());
        hash.add(&content);
    }
    Ok(format!("{:016x}", hash.0))
}

/// Fowler–Noll–Vo 1a with 64 bits, which is the same in every version of Rust.
struct Fnv(u64);

impl Default for Fnv {
    fn default() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }
}

impl Fnv {
    /// Adds bytes and their number, so that moving a byte from one file to the
    /// next changes the hash.
    fn add(&mut self, bytes: &[u8]) {
        let length = bytes.len().to_le_bytes();
        for byte in bytes.iter().chain(&length) {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hash_follows_names_and_contents() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).unwrap();
        write("a", "one");
        write("b", "two");
        let first = hash(folder.path()).unwrap();
        assert_eq!(first.len(), 16);
        assert_eq!(first, hash(folder.path()).unwrap());
        write("a", "onet");
        write("b", "wo");
        assert_ne!(first, hash(folder.path()).unwrap());
        write("a", "one");
        write("b", "two");
        assert_eq!(first, hash(folder.path()).unwrap());
        fs::rename(folder.path().join("b"), folder.path().join("c")).unwrap();
        assert_ne!(first, hash(folder.path()).unwrap());
    }

    #[test]
    fn unused_images_are_removed() {
        let cache = tempfile::tempdir().unwrap();
        for name in ["old", "used"] {
            let folder = cache.path().join(name);
            fs::create_dir(&folder).unwrap();
            let file = File::create(folder.join(VERSIONS)).unwrap();
            file.set_modified(SystemTime::now() - KEPT * 2).unwrap();
        }
        fs::write(cache.path().join("lock"), "").unwrap();
        mark_used(&cache.path().join("used"));
        forget_old(cache.path()).unwrap();
        assert!(!cache.path().join("old").exists());
        assert!(cache.path().join("used").exists());
    }

    #[test]
    fn cache_folder_follows_environment() {
        let path = |xdg: &str, home: &str| cache(Some(xdg.into()), Some(home.into()));
        assert_eq!(path("/x", "/h").unwrap(), Path::new("/x/nvmeof-lab"));
        assert_eq!(path("", "/h").unwrap(), Path::new("/h/.cache/nvmeof-lab"));
        assert!(cache(None, None).is_err());
    }

    #[test]
    fn unfinished_builds_are_built_again() {
        let recipe = tempfile::tempdir().unwrap();
        let cache = tempfile::tempdir().unwrap();
        let folder = cache.path().join("hash");
        let script = |text: &str| fs::write(recipe.path().join("build.sh"), text).unwrap();
        script("touch \"$1/root.img\"; echo why >&2; exit 1");
        let trouble = build(recipe.path(), &folder).unwrap_err().to_string();
        assert!(trouble.contains("why"), "{trouble}");
        assert!(!folder.exists());
        script("echo 'lab image: working'; echo 'nvme-cli 2.13-2' >\"$1/versions.txt\"");
        build(recipe.path(), &folder).unwrap();
        let image = Image { folder };
        assert_eq!(image.version("nvme-cli").unwrap(), "2.13-2");
        assert_eq!(image.version("nvme"), None);
        // `--rebuild` replaces what is there.
        build(recipe.path(), &image.folder).unwrap();
    }
}
