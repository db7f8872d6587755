//! Reads and writes over RDMA devices allocate no memory on either side, after warm-up.
//!
//! The devices are those of `tests/verbs-standin`, whose own allocations must not count: a
//! process of its own loads it as the two libraries, with an allocator of its own.
#![allow(clippy::unwrap_used, reason = "tests")]

mod rounds;

use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use nvmeof_guards::{Medium, Stage};
use nvmeof_initiator::Operation;
use nvmeof_rdma::Provider;
use nvmeof_rdma_verbs::VerbsConfig;

use rounds::allocations;

/// Shared receives.
const SHARED: u32 = 256;

/// The shared object, which cargo builds beside the tests.
fn shared_object() -> PathBuf {
    let tests = std::env::current_exe().unwrap();
    let folder = tests.parent().unwrap();
    let places = [folder, folder.parent().unwrap()];
    let file = |folder: &Path| folder.join("libnvmeof_verbs_standin.so");
    let found = places.map(file).into_iter().find(|file| file.exists());
    found.unwrap()
}

/// Runs a test of this file in a process whose RDMA libraries are the stand-in, with two devices
/// of that profile.
fn run_over(profile: &str, test: &str) {
    if std::env::var_os("ASAN_OPTIONS").is_some() {
        // The runtime of AddressSanitizer does not find the links.
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    for name in ["libibverbs.so.1", "librdmacm.so.1"] {
        symlink(shared_object(), folder.path().join(name)).unwrap();
    }
    let devices = format!(
        "host profile={profile} addr=10.74.0.2; target profile={profile} addr=10.74.0.1 from=host"
    );
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", test, "--nocapture"])
        .env("LD_LIBRARY_PATH", folder.path())
        .env(nvmeof_verbs_standin::VARIABLE, devices)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{profile}: {text}");
    assert!(text.contains("1 passed"), "{profile}: {text}");
}

fn provider() -> Box<dyn Provider> {
    Box::new(nvmeof_rdma_verbs::new(VerbsConfig::default()).unwrap())
}

#[test]
fn over_devices_reads_and_writes_allocate_nothing() {
    for profile in ["roce", "no-windows", "iwarp"] {
        run_over(profile, "io_over_devices_of_process_allocates_nothing");
    }
}

#[test]
#[ignore = "started by another test, with devices of its own"]
fn io_over_devices_of_process_allocates_nothing() {
    let mut ports = 4420..;
    for operation in [Operation::Read, Operation::Write] {
        for depth in [1, 16] {
            let mut address = || {
                let port = ports.next().unwrap();
                SocketAddr::from((Ipv4Addr::new(10, 74, 0, 1), port)).into()
            };
            let media = [
                ("own", Medium::Other(provider, address())),
                ("shared", Medium::Shared(provider, address(), SHARED)),
                ("pulled", Medium::Pulled(provider, address())),
            ];
            for (name, medium) in media {
                let mut stage = Stage::on(&medium, &Stage::null());
                let counts = allocations(&mut stage, operation, depth);
                assert_eq!(counts, (0, 0), "{operation:?} at depth {depth}, {name}");
            }
        }
    }
}
