//! The io_uring configuration of each reactor.

use nvmeof_uring::{KernelThread, RingConfig};

use crate::cpus::ReactorCpu;
use crate::files;
use nvmeof_target_config::ReactorSettings;

/// Slots for backing stores that are added while hosts are connected, and for those that are
/// being closed meanwhile.
const SPARE_STORES: usize = 256;
/// Most segments of host memory that all reactors together register with io_uring: 1 GiB.
const LENT: usize = 512;

/// The ring of a reactor that starts with `stores` backing stores.
pub(crate) fn ring_config(
    stores: usize,
    settings: &ReactorSettings,
    cpu: ReactorCpu,
    reactors: usize,
) -> RingConfig {
    // The kernel refuses a file table with more slots than the limit of file descriptors.
    let files = (stores + SPARE_STORES).min(files::limit());
    let sqpoll_cpu = cpu.sqpoll.and_then(|core| u32::try_from(core).ok());
    let thread = settings.sqpoll.as_ref().map(|sqpoll| KernelThread {
        idle: sqpoll.idle,
        cpu: sqpoll_cpu,
    });
    RingConfig {
        files: u32::try_from(files).unwrap_or(u32::MAX),
        thread,
        lent: u16::try_from(LENT / reactors.max(1)).unwrap_or_default(),
        ..RingConfig::default()
    }
}
