//! Whether a disk's device can be asked for what is done.

use std::fs::File;
use std::os::unix::fs::{FileTypeExt, MetadataExt};

use nix::errno::Errno;
use nix::sys::stat::{major, minor};
use nvmeof_memory::{Pages, Pool, PoolLayout};
use nvmeof_uring::{PolledError, Ring, RingConfig, RingError};

use crate::{Geometry, NoPolling};

/// Reads a block of `file` that way.
pub(crate) fn check(file: &File, geometry: &Geometry) -> Result<(), NoPolling> {
    if !geometry.direct {
        return Err(NoPolling::Buffered);
    }
    // Without such queues some kernels complete by interrupt all the same.
    if !device_polls(file) {
        return Err(NoPolling::Device);
    }
    let duplicate = file.try_clone();
    let duplicate = duplicate.map_err(|error| {
        let errno = error.raw_os_error().map(Errno::from_raw);
        PolledError::Duplicate(errno.unwrap_or(Errno::UnknownErrno))
    })?;
    let config = RingConfig {
        entries: 1,
        in_flight: 1,
        files: 1,
        thread: None,
        ..RingConfig::default()
    };
    let mut ring = Ring::new(config).map_err(PolledError::from)?;
    let id = ring.add_polled_file(duplicate)?;
    match read_block(&mut ring, id, geometry)? {
        Ok(_) => Ok(()),
        Err(errno) => Err(NoPolling::Refused(errno)),
    }
}

/// What came of reading the first block.
fn read_block(
    ring: &mut Ring,
    file: nvmeof_uring::FileId,
    geometry: &Geometry,
) -> Result<Result<u32, Errno>, NoPolling> {
    let layout = PoolLayout {
        count: 1,
        stride: geometry.block_size.bytes() as usize,
        lead: 0,
    };
    let pool = Pool::new(layout, Pages::Normal).map_err(|_| NoPolling::Buffer)?;
    let buf = pool.take().ok_or(NoPolling::Buffer)?;
    if ring.read(0, file, 0, buf).is_err() {
        return Err(NoPolling::Buffer);
    }
    let mut done = Vec::new();
    loop {
        ring.submit().map_err(PolledError::from)?;
        if ring.reap(&mut done).is_err() {
            return Err(PolledError::from(RingError::Enter(Errno::EPROTO)).into());
        }
        if let Some(done) = done.pop() {
            return Ok(done.result);
        }
        std::hint::spin_loop();
    }
}

/// Whether the block device that the file is, or lies on, has queues to poll.
/// Source: Documentation/ABI/stable/sysfs-block (`queue/io_poll`).
fn device_polls(file: &File) -> bool {
    let Ok(metadata) = file.metadata() else {
        return false;
    };
    let device = if metadata.file_type().is_block_device() {
        metadata.rdev()
    } else {
        metadata.dev()
    };
    let folder = format!("/sys/dev/block/{}:{}", major(device), minor(device));
    // A partition's queue is that of the whole device.
    ["", "../"].iter().any(|up| {
        let told = std::fs::read_to_string(format!("{folder}/{up}queue/io_poll"));
        told.is_ok_and(|told| told.trim() == "1")
    })
}
