//! Whether the device of a backing store can be polled (`IOPOLL`).

use std::fs::File;
use std::os::unix::fs::{FileTypeExt, MetadataExt};

use nix::errno::Errno;
use nix::sys::stat::{major, minor};
use nvmeof_memory::{Pages, Pool, PoolLayout};
use nvmeof_uring::{PolledError, Ring, RingConfig, RingError};

use crate::{Geometry, NoPolling};

/// Checks it with a polled read of one block of `file`.
pub(crate) fn check(file: &File, geometry: &Geometry) -> Result<(), NoPolling> {
    if !geometry.direct {
        return Err(NoPolling::Buffered);
    }
    // Without poll queues some kernels complete such a read by an interrupt.
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

/// The result of reading the first block.
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

/// Whether the block device that the file is, or is on, has poll queues.
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
    // A partition uses the queue of the whole device.
    ["", "../"].iter().any(|up| {
        let value = std::fs::read_to_string(format!("{folder}/{up}queue/io_poll"));
        value.is_ok_and(|value| value.trim() == "1")
    })
}
