//! Nothing is allocated for a read or a write, on either side, once both are
//! warm.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use allocation_counter::{AllocationInfo, measure};
use nvmeof_guards::{Engine, Stage};
use nvmeof_initiator::Operation;

/// Operations after which every queue and table has the size it needs: keys
/// rest until 1024 others are free.
const WARM: usize = 4096;
/// Operations that are counted.
const COUNTED: usize = 4096;

/// Calls of the allocator in each side's turns: target, initiator.
fn calls(operation: Operation, depth: usize) -> (u64, u64) {
    let mut stage = Stage::new();
    let count = |info: AllocationInfo| info.count_total;
    let (mut target, mut initiator) = (0, 0);
    let warm = WARM / depth;
    for round in 0..warm + COUNTED / depth {
        let counts = u64::from(round >= warm);
        stage.round(
            operation,
            depth,
            |turn| target += counts * count(measure(turn)),
            |turn| initiator += counts * count(measure(turn)),
        );
    }
    (target, initiator)
}

#[test]
fn the_counter_counts() {
    let info = measure(|| drop(std::hint::black_box(vec![1u8; 100])));
    assert_eq!(info.count_total, 1);
}

#[test]
fn reads_and_writes_allocate_nothing() {
    for operation in [Operation::Read, Operation::Write] {
        for depth in [1, 16, 128] {
            let (target, initiator) = calls(operation, depth);
            assert_eq!(
                (target, initiator),
                (0, 0),
                "allocations by target and initiator, {operation:?} at depth {depth}"
            );
        }
    }
}

#[test]
fn messages_allocate_nothing() {
    const AT_ONCE: usize = 16;
    for crc in [false, true] {
        let mut engine = Engine::new(crc);
        for _ in 0..WARM / AT_ONCE {
            engine.round(AT_ONCE);
        }
        let info = measure(|| (0..COUNTED / AT_ONCE).for_each(|_| engine.round(AT_ONCE)));
        assert_eq!(info.count_total, 0, "crc {crc}");
    }
}
