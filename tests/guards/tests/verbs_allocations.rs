//! Reads and writes over RDMA devices allocate no memory on either side, after warm-up.
//!
//! The devices are those of `tests/verbs-standin`, whose own allocations must not count: a
//! process of its own loads it as the two libraries, with an allocator of its own.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use allocation_counter::measure;
use nvmeof_guards::{Medium, Stage};
use nvmeof_initiator::Operation;
use nvmeof_rdma::Provider;
use nvmeof_rdma_verbs::VerbsConfig;

/// Operations for warm-up: until each window was used, and every queue has its size.
const WARM: usize = 4096;
/// Operations that are counted.
const COUNTED: usize = 4096;
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

/// Allocations in the iterations of each side: target, initiator.
fn allocations(stage: &mut Stage, operation: Operation, depth: usize) -> (u64, u64) {
    let (mut target, mut initiator) = (0, 0);
    let warm = WARM / depth;
    for round in 0..warm + COUNTED / depth {
        let counts = u64::from(round >= warm);
        stage.round(
            operation,
            depth,
            |step| target += counts * measure(step).count_total,
            |step| initiator += counts * measure(step).count_total,
        );
    }
    (target, initiator)
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
