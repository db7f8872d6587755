//! Opening files and devices, and the errors of unsuitable ones.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};

use nvmeof_backend::{BlockSize, Claim, CloseError, Numbers, OpenError, Spec, UringStores};
use nvmeof_uring::RingConfig;

fn spec(path: &Path, readonly: bool) -> Spec {
    let path = path.to_owned();
    Spec::File { path, readonly }
}

fn take(path: &Path) -> Result<Claim, OpenError> {
    Claim::take(&spec(path, false), None)
}

/// The error of claiming `path`, whose message must contain all `words`.
fn refused(path: &Path, words: &[&str]) -> OpenError {
    says(take(path).err().unwrap(), words)
}

fn says(error: OpenError, words: &[&str]) -> OpenError {
    let message = error.to_string();
    for word in words {
        assert!(message.contains(word), "{message:?} lacks {word:?}");
    }
    error
}

fn file(dir: &tempfile::TempDir, size: u64) -> PathBuf {
    let path = dir.path().join("disk.img");
    std::fs::File::create(&path).unwrap().set_len(size).unwrap();
    path
}

#[test]
fn missing_and_unsuitable_files_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let missing = dir.path().join("no").join("disk.img");
    let error = refused(&missing, &["no such file", "truncate -s 1G", "disk.img"]);
    assert!(matches!(error, OpenError::Missing(path) if path == missing));
    let error = refused(dir.path(), &["is a directory"]);
    assert!(matches!(error, OpenError::Directory(_)));
    let error = refused(Path::new("/dev/null"), &["neither"]);
    assert!(matches!(error, OpenError::NotStorage(_)));
    // A pipe without a writer: opening it would block forever.
    let pipe = dir.path().join("pipe");
    nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
    assert!(matches!(
        refused(&pipe, &["neither"]),
        OpenError::NotStorage(_)
    ));
    assert!(matches!(
        refused(&file(&dir, 0), &["0 bytes", "truncate"]),
        OpenError::Empty(_)
    ));
}

/// A copied command changes the right file.
#[test]
fn commands_in_errors_quote_paths() {
    let dir = tempfile::tempdir().unwrap();
    let missing = dir.path().join("my disk.img");
    let command = format!("`truncate -s 1G '{}'`", missing.display());
    refused(&missing, &[&command]);
    std::fs::write(&missing, "").unwrap();
    refused(&missing, &[&command]);
    std::fs::write(&missing, [0; 512]).unwrap();
    let _first = take(&missing).unwrap();
    refused(&missing, &[&format!("`fuser '{}'`", missing.display())]);
}

/// A regular file in /dev is not a device, and is lost at the next boot.
#[test]
fn missing_device_error_does_not_suggest_truncate() {
    let error = refused(Path::new("/dev/no-such-disk"), &["no such file", "lsblk"]);
    assert!(!error.to_string().contains("truncate"), "{error}");
}

#[test]
fn size_of_partial_blocks_is_refused_with_remedy() {
    let dir = tempfile::tempdir().unwrap();
    let path = file(&dir, 10_240);
    assert_eq!(take(&path).unwrap().geometry().size, 10_240);
    let large = Claim::take(&spec(&path, false), Some(BlockSize::B4096));
    let numbers = [
        "10240 bytes",
        "block size of 4096",
        "which keeps its data",
        "truncate -s 12288",
        "block_size = 2048",
    ];
    let large = large.err().unwrap();
    assert!(
        !large.to_string().contains("8192"),
        "it would truncate data"
    );
    says(large, &numbers);
    let path = file(&dir, 1000);
    let error = refused(&path, &["truncate -s 1024 "]);
    assert!(!error.to_string().contains("block_size ="), "{error}");
    let ram = Claim::take(&"ram:1000".parse().unwrap(), None);
    says(ram.err().unwrap(), &["ram:1000", "the next size is 1024"]);
}

#[test]
fn missing_permission_is_reported() {
    if nix::unistd::geteuid().is_root() {
        return; // Root may do everything.
    }
    let dir = tempfile::tempdir().unwrap();
    let path = file(&dir, 4096);
    let mode = |bits| std::fs::set_permissions(&path, PermissionsExt::from_mode(bits)).unwrap();
    mode(0o400);
    let words = ["no permission", "reading and writing", "read-only"];
    let error = refused(&path, &words);
    assert!(matches!(error, OpenError::Permission { .. }));
    Claim::take(&spec(&path, true), None).unwrap();
    mode(0);
    let error = Claim::take(&spec(&path, true), None).err().unwrap();
    says(error, &["no permission", "for reading;"]);
}

#[test]
fn writable_file_is_served_only_once() {
    let dir = tempfile::tempdir().unwrap();
    let path = file(&dir, 4096);
    let first = take(&path).unwrap();
    let error = refused(&path, &["locked", "fuser"]);
    assert!(matches!(error, OpenError::Locked { .. }));
    let reader = Claim::take(&spec(&path, true), None);
    assert!(matches!(reader, Err(OpenError::Locked { .. })));

    // Open backing stores keep the claim: it ends with the last of them.
    let mut stores = UringStores::new(RingConfig::default()).unwrap();
    stores.open(0, &first).unwrap();
    drop(first.clone());
    drop(first);
    refused(&path, &["locked"]);
    stores.close(0).unwrap();
    let again = take(&path).unwrap();
    stores.open(0, &again).unwrap();
    drop(again);
    drop(stores);

    let readers = [0; 2].map(|_| Claim::take(&spec(&path, true), None).unwrap());
    refused(&path, &["locked"]);
    drop(readers);
    take(&path).unwrap();
}

#[test]
fn full_file_table_refuses_another_store() {
    let dir = tempfile::tempdir().unwrap();
    let claim = take(&file(&dir, 4096)).unwrap();
    let config = RingConfig {
        files: 1,
        ..RingConfig::default()
    };
    let mut stores = UringStores::new(config).unwrap();
    let mut numbers = Numbers::default();
    let [store, another] = [0; 2].map(|_| numbers.take().unwrap());
    stores.open(store, &claim).unwrap();
    let error = stores.open(another, &claim).unwrap_err();
    says(error, &["disk.img", "all 1 slots", "fewer namespaces"]);
    stores.close(store).unwrap();
    numbers.free(store);
    // It reuses the slot of the file.
    let next = numbers.take().unwrap();
    stores.open(next, &claim).unwrap();
    assert_ne!(next, store);
    assert!(stores.geometry(store).is_none() && stores.geometry(next).is_some());
    assert!(matches!(stores.close(store), Err(CloseError::NotOpen)));
}

#[test]
fn mounted_block_devices_are_refused() {
    let mounts = std::fs::read_to_string("/proc/mounts").unwrap();
    let device = |line: &str| {
        let path = Path::new(line.split(' ').next()?).canonicalize().ok()?;
        let kind = path.metadata().ok()?.file_type();
        kind.is_block_device().then_some(path)
    };
    if let Some(path) = mounts.lines().find_map(device) {
        let error = take(&path).err().unwrap();
        let expected = matches!(
            error,
            OpenError::DeviceInUse(_) | OpenError::Permission { .. }
        );
        assert!(expected, "{error}");
    }
}

#[test]
fn claim_opens_on_another_thread() {
    fn any_thread<T: Send + Sync + Clone + 'static>(_: &T) {}
    let claim = Claim::take(&"ram:1G".parse().unwrap(), None).unwrap();
    any_thread(&claim);
    let other = claim.clone();
    let reactor = std::thread::spawn(move || {
        let mut stores = UringStores::new(RingConfig::default()).unwrap();
        stores.open(0, &other).unwrap();
        stores.geometry(0).unwrap().clone()
    });
    assert_eq!(&reactor.join().unwrap(), claim.geometry());
}

#[test]
fn unpollable_store_is_reported_with_a_remedy() {
    for name in ["ram:1048576", "null:1048576"] {
        let error = Claim::take_polled(&name.parse().unwrap(), None).map(drop);
        says(
            error.unwrap_err(),
            &[name, "in memory", "block device", "iopoll"],
        );
    }
    // Buffered, so that no device is polled.
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let error = Claim::take_polled(&spec(&file(&dir, 1 << 20), false), None).map(drop);
    says(error.unwrap_err(), &["disk.img", "O_DIRECT", "iopoll"]);
    // This may be a device that can be polled.
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    if let Err(error) = Claim::take_polled(&spec(&file(&dir, 1 << 20), false), None) {
        says(error, &["disk.img", "iopoll"]);
    }
}

#[test]
fn resized_claim_shares_lock() {
    let dir = tempfile::tempdir().unwrap();
    let path = file(&dir, 8192);
    let claim = take(&path).unwrap();
    assert!(claim.resized().unwrap().is_none());
    let resize = |len| {
        let file = std::fs::OpenOptions::new().write(true).open(&path);
        file.unwrap().set_len(len).unwrap();
    };
    resize(16384);
    let larger = claim.resized().unwrap().unwrap();
    assert_eq!(
        (claim.geometry().size, larger.geometry().size),
        (8192, 16384)
    );
    assert!(larger.resized().unwrap().is_none());
    let mut stores = UringStores::new(RingConfig::default()).unwrap();
    stores.open(0, &larger).unwrap();
    assert_eq!(stores.geometry(0).unwrap().size, 16384);
    drop((claim, larger));
    refused(&path, &["locked"]);
    drop(stores);
    let claim = take(&path).unwrap();
    resize(1000);
    let error = claim.resized().err().unwrap();
    says(error, &["1000", "512"]);
    resize(0);
    assert!(matches!(claim.resized(), Err(OpenError::Empty(_))));
    let ram = Claim::take(&"ram:1M".parse().unwrap(), None).unwrap();
    assert!(ram.resized().unwrap().is_none());
}
