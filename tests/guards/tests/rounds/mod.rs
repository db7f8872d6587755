//! Counts allocations of reads and writes, after warm-up.

use allocation_counter::measure;
use nvmeof_guards::Stage;
use nvmeof_initiator::Operation;

/// Operations for warm-up, until all queues and tables have their final size: a key is not
/// reused until 1024 others are free.
pub(crate) const WARM: usize = 4096;
/// Operations that are counted.
pub(crate) const COUNTED: usize = 4096;

/// Allocations in the iterations of each side: target, initiator.
pub(crate) fn allocations(stage: &mut Stage, operation: Operation, depth: usize) -> (u64, u64) {
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
