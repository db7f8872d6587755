//! Durability of Flush and FUA: the operations that are submitted to the kernel and, with a
//! loop device, the flushes that reach the device.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::print_stderr,
    reason = "tests"
)]

use std::io::Write;
use std::os::fd::{AsFd, AsRawFd};
use std::path::{Path, PathBuf};
use std::process::Command;

use nvmeof_backend::{BlockSize, Claim, Op, OpenError, Request, Spec};
use nvmeof_backend_conformance::{Bench, Keeps, all};
use tempfile::NamedTempFile;

fn claim(path: &Path, block_size: Option<BlockSize>) -> Result<Claim, OpenError> {
    let (path, readonly) = (path.to_owned(), false);
    Claim::take(&Spec::File { path, readonly }, block_size)
}

fn file(size: u64) -> NamedTempFile {
    let file = NamedTempFile::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    file.as_file().set_len(size).unwrap();
    file
}

/// The entries of the submission queue, which the kernel decodes in the fdinfo of the ring
/// (Linux 6.0 and later).
fn submitted(bench: &Bench) -> Vec<String> {
    let ring = bench.stores.ring().as_fd().as_raw_fd();
    let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{ring}")).unwrap();
    let entries = info.lines().filter(|line| line.contains("opcode:"));
    entries.map(str::to_owned).collect()
}

/// Submits `op`, returns its entries in the submission queue, and waits for its completion.
fn watch(bench: &mut Bench, op: Op) -> Vec<String> {
    let tag = 1000;
    let taken = bench.try_submit(&mut Request { tag, op });
    let mut done = Vec::from_iter(taken.unwrap());
    let seen = submitted(bench);
    while done.is_empty() {
        bench.poll_once(&mut done);
    }
    assert_eq!(done[0].result, Ok(()));
    seen
}

#[test]
fn flush_and_fua_are_submitted_as_fdatasync_and_dsync() {
    let file = file(1 << 20);
    let claim = claim(file.path(), None).unwrap();
    let mut bench = Bench::new(&claim, Keeps::Bytes, |backend| backend);
    let seen = watch(&mut bench, Op::Flush);
    if seen.is_empty() {
        eprintln!("this kernel does not show submitted requests: nothing was checked");
        return;
    }
    assert_eq!(seen.len(), 1);
    // rw_flags and fsync_flags are the same field; 1 is IORING_FSYNC_DATASYNC.
    assert!(seen[0].contains("opcode:FSYNC,"), "{seen:?}");
    assert!(seen[0].contains("rw_flags:0x1,"), "{seen:?}");
    let durable = match claim.geometry().direct {
        true => "rw_flags:0x2,",
        false => "rw_flags:0x0,",
    };
    for (fua, flags) in [(false, "rw_flags:0x0,"), (true, durable)] {
        let (offset, buf) = (0, bench.buf(4096, 1));
        let seen = watch(&mut bench, Op::Write { offset, buf, fua });
        assert_eq!(seen.len(), 1);
        assert!(seen[0].contains("opcode:WRITE"), "{seen:?}");
        // 2 is RWF_DSYNC. A buffered write is followed by an fsync.
        assert!(seen[0].contains(flags), "{seen:?}");
    }
}

/// A loop device over a file, detached when dropped.
struct Loop {
    device: PathBuf,
    _file: NamedTempFile,
}

impl Loop {
    /// `None`, with the reason on stderr, where no loop device can be created.
    fn new(of: &str, size: u64, sector: u32) -> Option<Self> {
        let file = file(size);
        let made = Command::new("losetup")
            .args(["--find", "--show", "--direct-io=on", "--sector-size"])
            .arg(sector.to_string())
            .arg(file.path())
            .output();
        let made = match made {
            Ok(made) if made.status.success() => made,
            Ok(made) => return skipped(of, sector, String::from_utf8_lossy(&made.stderr).trim()),
            Err(error) => return skipped(of, sector, &error.to_string()),
        };
        let device = String::from_utf8(made.stdout).unwrap().trim().into();
        Some(Self {
            device,
            _file: file,
        })
    }

    /// Number of flushes that the device got. Source: the kernel's
    /// Documentation/block/stat.rst, field 16.
    fn flushes(&self) -> u64 {
        let name = self.device.file_name().unwrap().to_str().unwrap();
        let stat = std::fs::read_to_string(format!("/sys/block/{name}/stat")).unwrap();
        stat.split_whitespace().nth(15).unwrap().parse().unwrap()
    }
}

/// Reports a skipped test and the reason. The output of `eprintln!` is shown for failed tests
/// only, this output always.
fn skipped(of: &str, sector: u32, why: &str) -> Option<Loop> {
    let _ = writeln!(
        std::io::stderr(),
        "SKIPPED {of}: no loop device with sectors of {sector} bytes, which root can make \
         where the kernel has them: losetup: {why}"
    );
    None
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = Command::new("losetup")
            .arg("--detach")
            .arg(&self.device)
            .status();
    }
}

#[test]
fn flush_and_fua_reach_the_device() {
    let Some(device) = Loop::new("flush_and_fua_reach_the_device", 4 << 20, 512) else {
        return;
    };
    let claim = claim(&device.device, None).unwrap();
    let mut bench = Bench::new(&claim, Keeps::Bytes, |backend| backend);
    // One operation at a time, so that flushes are attributed to it.
    let step = |bench: &mut Bench, op| {
        let before = device.flushes();
        bench.ok(op);
        device.flushes() - before
    };
    let (offset, fua) = (0, false);
    let buf = bench.buf(4096, 1);
    assert_eq!(step(&mut bench, Op::Write { offset, buf, fua }), 0);
    assert!(
        step(&mut bench, Op::Flush) > 0,
        "a flush reaches the device"
    );
    let (buf, fua) = (bench.buf(4096, 2), true);
    let flushed = step(&mut bench, Op::Write { offset, buf, fua });
    assert!(flushed > 0, "a loop device has no FUA: the kernel flushes");
    let zeroes = |fua| Op::WriteZeroes {
        offset,
        len: 8192,
        may_deallocate: false,
        fua,
    };
    assert!(step(&mut bench, zeroes(true)) > 0);
}

#[test]
fn block_devices_conform() {
    for (sector, block_size) in [(512, BlockSize::B512), (4096, BlockSize::B4096)] {
        let Some(device) = Loop::new("block_devices_conform", 4 << 20, sector) else {
            return;
        };
        let store = claim(&device.device, None).unwrap();
        let geometry = store.geometry();
        assert_eq!((geometry.size, geometry.block_size), (4 << 20, block_size));
        all(&store, Keeps::Bytes, |backend| backend);
        drop(store);
        let small = claim(&device.device, Some(BlockSize::B512));
        match small {
            Ok(claim) => assert_eq!((sector, claim.geometry().size), (512, 4 << 20)),
            Err(error) => {
                assert!(matches!(error, OpenError::DeviceBlocks { .. }), "{error}");
                assert!(error.to_string().contains("block_size = 4096"), "{error}");
                assert_eq!(sector, 4096);
            }
        }
    }
}
