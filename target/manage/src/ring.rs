//! The io_uring of each reactor, as the configuration asks for it.

use nvmeof_uring::{KernelThread, RingConfig};

use crate::files;
use crate::processors::ReactorCpu;
use nvmeof_target_config::Running;

/// Disks that may be added while hosts are served, and others that are being
/// closed meanwhile.
const SPARE_DISKS: usize = 256;
/// Pieces of memory of hosts that are registered with io_uring at once, by all
/// reactors together: 1 GiB.
const LENT: usize = 512;

/// The ring of a reactor that begins with so many disks.
pub(crate) fn ring_config(
    disks: usize,
    running: &Running,
    cpu: ReactorCpu,
    reactors: usize,
) -> RingConfig {
    // The kernel makes no table with more places than a process may have files.
    let files = (disks + SPARE_DISKS).min(files::limit());
    let processor = cpu.sqpoll.and_then(|core| u32::try_from(core).ok());
    let thread = running.sqpoll.as_ref().map(|sqpoll| KernelThread {
        idle: sqpoll.idle,
        processor,
    });
    RingConfig {
        files: u32::try_from(files).unwrap_or(u32::MAX),
        thread,
        lent: u16::try_from(LENT / reactors.max(1)).unwrap_or_default(),
        ..RingConfig::default()
    }
}
