//! Reads and writes allocate no memory on either side, after warm-up.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

mod rounds;

use std::fs::File;

use allocation_counter::measure;
use nvmeof_backend::Spec;
use nvmeof_guards::{Direction, Engine, Long, Medium, Pipes, Stage, Submit};
use nvmeof_initiator::Operation;

use rounds::{COUNTED, WARM, allocations};

const OPERATIONS: [Operation; 2] = [Operation::Read, Operation::Write];
#[test]
fn allocation_counter_counts() {
    let info = measure(|| drop(std::hint::black_box(vec![1u8; 100])));
    assert_eq!(info.count_total, 1);
}

#[test]
fn reads_and_writes_allocate_nothing() {
    for (operation, submit) in both_ways() {
        for depth in [1, 16, 128] {
            let mut stage = Stage::new();
            stage.submits(submit);
            let calls = allocations(&mut stage, operation, depth);
            let what = format!("{operation:?} at depth {depth}, {submit:?}");
            assert_eq!(calls, (0, 0), "{what}: {SIDES}");
        }
    }
}

/// Reads and writes, submitted one by one and in batches.
fn both_ways() -> impl Iterator<Item = (Operation, Submit)> {
    let ways = [Submit::Each, Submit::Batch];
    OPERATIONS
        .into_iter()
        .flat_map(move |operation| ways.map(|way| (operation, way)))
}

const SIDES: &str = "allocations by target and initiator";

#[test]
fn over_sockets_reads_and_writes_allocate_nothing() {
    let folder = tempfile::tempdir().unwrap();
    for unix in [false, true] {
        for (operation, submit) in both_ways() {
            for depth in [1, 16, 128] {
                let medium = match unix {
                    false => Medium::tcp(),
                    true => Medium::unix(folder.path()),
                };
                let mut stage = Stage::on(&medium, &Stage::null());
                stage.submits(submit);
                let calls = allocations(&mut stage, operation, depth);
                let what = format!("{medium:?}, {operation:?} at depth {depth}, {submit:?}");
                assert_eq!(calls, (0, 0), "{what}: {SIDES}");
            }
        }
    }
}

/// Commands that arrive while all slots of their queue are in use wait in a list. The list
/// grows when that first happens, up to the entries of the queue: doubled seven times, for
/// any number of operations.
const OF_ROOM: u64 = 8;

/// Through shared memory, with a null device and with a file: io_uring reads into the
/// initiator's buffers and writes from them, which are registered.
#[test]
fn io_in_place_allocates_and_registers_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("disk.img");
    File::create(&path).unwrap().set_len(4 << 30).unwrap();
    let file = Spec::File {
        path,
        readonly: false,
    };
    let stores = [Stage::null(), file];
    for (store, operation) in stores
        .iter()
        .flat_map(|store| OPERATIONS.map(|op| (store, op)))
    {
        for depth in [1, 64] {
            let sockets = tempfile::tempdir().unwrap();
            let medium = Medium::Shm(sockets.path().join("meet"));
            let mut stage = Stage::on(&medium, store);
            let (target, initiator) = allocations(&mut stage, operation, depth);
            let what = format!("{operation:?} at depth {depth}, {store}");
            assert!(
                target <= OF_ROOM && initiator == 0,
                "{what}: {target}, {initiator}"
            );
            let counts = stage.ring_counts();
            let all = match store {
                Spec::File { .. } => (WARM + COUNTED) as u64,
                _ => 0,
            };
            assert_eq!((counts.operations, counts.not_fixed), (all, 0), "{what}");
        }
    }
}

/// With few commands at a time, a reactor may sleep before each.
#[test]
fn sleeps_allocate_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let medium = [
        Medium::Pipes(Pipes::default()),
        Medium::Shm(folder.path().join("meet")),
    ];
    for medium in medium {
        let mut stage = Stage::on(&medium, &Stage::null());
        let info = measure(|| (0..64).for_each(|_| stage.doze()));
        assert_eq!(info.count_total, 0, "{medium:?}");
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

#[test]
fn long_writes_and_reads_allocate_nothing() {
    for direction in [Direction::Write, Direction::Read] {
        let mut long = Long::new(direction);
        for _ in 0..WARM / 16 {
            long.round(16);
        }
        let info = measure(|| (0..64).for_each(|_| long.round(16)));
        assert_eq!(info.count_total, 0, "{direction:?}");
    }
}
