//! Shortage of file descriptors. In a file of its own, because the limit applies to the whole
//! process.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::fs::{File, OpenOptions};

use nix::errno::Errno;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nvmeof_backend::{Claim, OpenError, Spec, UringStores};
use nvmeof_uring::RingConfig;

#[test]
fn descriptor_shortage_is_transient_error() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("disk");
    File::create(&path).unwrap().set_len(1 << 20).unwrap();
    let spec: Spec = path.to_str().unwrap().parse().unwrap();
    let claim = Claim::take(&spec, None).unwrap();
    let mut stores = UringStores::new(RingConfig::default()).unwrap();
    let file = OpenOptions::new().write(true).open(&path).unwrap();
    file.set_len(2 << 20).unwrap();
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    // The lowest number that is free is the first beyond the limit.
    let free = std::os::fd::AsRawFd::as_raw_fd(&file.try_clone().unwrap());
    setrlimit(Resource::RLIMIT_NOFILE, u64::try_from(free).unwrap(), hard).unwrap();
    let resized = claim.resized();
    let opened = stores.open(0, &claim);
    setrlimit(Resource::RLIMIT_NOFILE, soft, hard).unwrap();
    let size = resized.unwrap().unwrap().geometry().size;
    assert_eq!(size, 2 << 20, "resizing needs no descriptor");
    let error = opened.err().unwrap();
    assert!(
        matches!(&error, OpenError::System { errno, .. } if *errno == Errno::EMFILE),
        "{error}"
    );
    assert!(error.is_transient());
    stores.open(0, &claim).unwrap();
    // An error of the file itself is not transient.
    file.set_len(0).unwrap();
    assert!(!claim.resized().err().unwrap().is_transient());
}
