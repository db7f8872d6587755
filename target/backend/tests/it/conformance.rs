//! The conformance suite, on each backend and with wrappers.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use std::collections::VecDeque;
use std::path::Path;
use std::time::Duration;

use nix::errno::Errno;
use nvmeof_backend::{BlockSize, Claim, Spec};
use nvmeof_backend_conformance::{Keeps, Wrap, all, all_over, readonly};
use nvmeof_backend_layers::{Delayed, Faulty, Plan};
use nvmeof_uring::{KernelThread, RingConfig};
use tempfile::NamedTempFile;

const BARE: Wrap = |backend| backend;

/// A file of `size` bytes in the build folder, which is on a disk.
fn on_disk(size: u64) -> NamedTempFile {
    sized(
        NamedTempFile::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap(),
        size,
    )
}

/// A file of `size` bytes in memory, where there is no direct I/O.
fn in_memory(size: u64) -> NamedTempFile {
    sized(NamedTempFile::new_in("/dev/shm").unwrap(), size)
}

fn sized(file: NamedTempFile, size: u64) -> NamedTempFile {
    file.as_file().set_len(size).unwrap();
    file
}

fn claim(path: &Path, block_size: BlockSize) -> Claim {
    let spec = Spec::File {
        path: path.to_owned(),
        readonly: false,
    };
    Claim::take(&spec, Some(block_size)).unwrap()
}

#[test]
fn file_on_disk_conforms() {
    for block_size in BlockSize::ALL {
        let file = on_disk(3 << 20);
        let claim = claim(file.path(), block_size);
        all(&claim, Keeps::Bytes, BARE);
        assert_eq!(file.as_file().metadata().unwrap().len(), 3 << 20);
    }
}

#[test]
fn file_in_tmpfs_conforms() {
    for block_size in BlockSize::ALL {
        let file = in_memory(3 << 20);
        let claim = claim(file.path(), block_size);
        assert!(!claim.geometry().direct);
        all(&claim, Keeps::Bytes, BARE);
    }
}

/// A submission thread on any CPU.
fn thread(idle: Duration) -> KernelThread {
    KernelThread { idle, cpu: None }
}

#[test]
fn file_with_sqpoll_ring_conforms() {
    // With the first the thread sleeps in between, with the other never.
    for idle in [Duration::from_millis(1), Duration::from_secs(600)] {
        let ring = RingConfig {
            thread: Some(thread(idle)),
            ..RingConfig::default()
        };
        for file in [on_disk(3 << 20), in_memory(3 << 20)] {
            let claim = claim(file.path(), BlockSize::B512);
            all_over(&claim, Keeps::Bytes, BARE, ring);
        }
    }
}

/// On a block device with poll queues that `NVMEOF_POLLED_DEVICE` names. Its data are lost.
#[test]
fn polled_device_conforms() {
    let Some(device) = std::env::var_os("NVMEOF_POLLED_DEVICE") else {
        return;
    };
    let path = device.into();
    let spec = Spec::File {
        path,
        readonly: false,
    };
    for block_size in [BlockSize::B512, BlockSize::B4096] {
        let claim = Claim::take_polled(&spec, Some(block_size)).unwrap();
        all(&claim, Keeps::Bytes, BARE);
        let ring = RingConfig {
            thread: Some(thread(Duration::from_millis(1))),
            ..RingConfig::default()
        };
        all_over(&claim, Keeps::Bytes, BARE, ring);
    }
}

#[test]
fn file_of_odd_size_conforms() {
    let file = on_disk((2 << 20) + 512);
    all(&claim(file.path(), BlockSize::B512), Keeps::Bytes, BARE);
}

#[test]
fn ram_and_null_conform() {
    for block_size in BlockSize::ALL {
        for (spec, keeps) in [("ram:3M", Keeps::Bytes), ("null:1T", Keeps::Nothing)] {
            let claim = Claim::take(&spec.parse().unwrap(), Some(block_size)).unwrap();
            all(&claim, keeps, BARE);
        }
    }
}

#[test]
fn file_with_short_transfers_and_delays_conforms() {
    let wrap: Wrap = |backend| {
        let plan = Plan::Seeded {
            seed: 7,
            error_one_in: 0,
            short_one_in: 2,
            errno: Errno::EIO,
        };
        Box::new(Delayed::new(Box::new(Faulty::new(backend, plan)), 8, 3))
    };
    for file in [on_disk(3 << 20), in_memory(3 << 20)] {
        all(&claim(file.path(), BlockSize::B512), Keeps::Bytes, wrap);
    }
}

#[test]
fn ram_with_wrappers_conforms() {
    let wrap: Wrap = |backend| {
        let nothing = Faulty::new(backend, Plan::Script(VecDeque::new()));
        Box::new(Delayed::new(Box::new(nothing), 9, 4))
    };
    let claim = Claim::take(&"ram:3M".parse().unwrap(), None).unwrap();
    all(&claim, Keeps::Bytes, wrap);
}

#[test]
fn read_only_stores_conform() {
    let file = on_disk(2 << 20);
    std::fs::write(file.path(), vec![7; 2 << 20]).unwrap();
    let path = file.path().to_owned();
    for spec in [
        Spec::File {
            path,
            readonly: true,
        },
        "ram:2M".parse::<Spec>().unwrap().with_readonly(true),
        "null:2M".parse::<Spec>().unwrap().with_readonly(true),
    ] {
        readonly(&Claim::take(&spec, None).unwrap(), BARE);
    }
}
