//! Memory of idle connections, as in docs/memory.md.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests"
)]

use std::fs::{File, OpenOptions};
use std::path::Path;

use nix::sys::prctl;
use nix::sys::resource::{Resource, getrlimit};
use nvmeof_e2e::{
    Peer, Running, Setup, Target, eventually, is_debug_build, is_root, own_kib, usable_cpus,
};
use nvmeof_wire::fabrics::PropertyAccess;
use nvmeof_wire::registers::{Cc, Property, PropertyValue};

/// Tolerance of measured figures: allocators allocate memory in steps.
const MARGIN: f64 = 1.25;
/// Tolerance of small figures in KiB.
const SLACK_KIB: f64 = 2.0;

/// The documented figure in the row that begins with `name`, in KiB, in the first or second
/// column of figures.
fn documented(name: &str, column: usize) -> f64 {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/memory.md");
    let text = std::fs::read_to_string(path).unwrap();
    let row = text
        .lines()
        .find(|line| line.starts_with(&format!("| {name} |")))
        .unwrap_or_else(|| panic!("docs/memory.md has no row `{name}`"));
    let cell = row.split('|').nth(2 + column).unwrap().trim();
    let number = cell.trim_end_matches(" KiB").replace(',', "");
    number.parse().unwrap_or_else(|_| panic!("{name}: {cell}"))
}

/// Fails when `kib` is more than documented, or less.
#[track_caller]
fn as_documented(name: &str, column: usize, kib: f64) {
    let output = documented(name, column);
    println!("{name}: {kib:.1} KiB, documented {output:.1}");
    assert!(
        agrees(kib, output),
        "{name}: {kib:.1} KiB are in use, docs/memory.md says {output:.1}"
    );
}

/// Whether all pages of the buffers of reactors are allocated at the start: io_uring can lock
/// them, and they are no hugepages.
fn buffers_are_in_use() -> bool {
    let (locked, _) = getrlimit(Resource::RLIMIT_MEMLOCK).unwrap();
    let memory = std::fs::read_to_string("/proc/meminfo").unwrap();
    let free = memory
        .lines()
        .find(|line| line.starts_with("HugePages_Free:"));
    let none = free.is_none_or(|line| line.ends_with(" 0"));
    none && (is_root() || locked >= 1 << 30)
}

/// Memory of reactors, mostly buffers: at most the documented figure, and equal to it where
/// all pages are in use.
#[track_caller]
fn with_buffers(name: &str, kib: f64) {
    let output = documented(name, 0);
    as_documented(
        name,
        0,
        if buffers_are_in_use() {
            kib
        } else {
            kib.max(output)
        },
    );
}

fn agrees(kib: f64, output: f64) -> bool {
    kib <= output * MARGIN + SLACK_KIB && output <= kib * MARGIN + SLACK_KIB
}

#[test]
fn figures_are_checked_in_both_directions() {
    for (kib, output) in [(10.0, 10.0), (14.0, 10.0), (10.0, 14.0), (1.0, 3.0)] {
        assert!(agrees(kib, output), "{kib} {output}");
    }
    for (kib, output) in [(15.0, 10.0), (10.0, 15.0), (0.0, 3.0), (10_000.0, 70_000.0)] {
        assert!(!agrees(kib, output), "{kib} {output}");
    }
}

/// KiB that each of `count` adds: `after` less `before`.
fn each(before: u64, after: u64, count: u32) -> f64 {
    let grown = u32::try_from(after.saturating_sub(before)).unwrap();
    f64::from(grown) / f64::from(count)
}

fn in_use(target: &Target) -> u64 {
    settled(target.pid())
}

/// KiB of a process as soon as they are stable.
fn settled(pid: u32) -> u64 {
    let mut seen = [0; 4];
    let same = || {
        std::thread::sleep(std::time::Duration::from_millis(100));
        seen.rotate_left(1);
        seen[3] = own_kib(pid);
        seen.iter().all(|one| *one == seen[3]).then_some(seen[3])
    };
    eventually(same).unwrap()
}

/// A target with a reactor on each of these cores.
fn start(cores: &[usize]) -> Target {
    let head =
        format!("[limits]\nhost_memory = 100\nport_memory = 100\n[reactor]\ncores = {cores:?}\n");
    Setup::new().head(&head).namespace("null:1G", "").start()
}

/// Disables transparent hugepages for processes that are started from now on: with them each
/// allocation takes at least 2 MiB.
fn ordinary_pages() {
    prctl::set_thp_disable(true).unwrap();
}

#[test]
fn memory_of_target_and_reactors_is_documented() {
    ordinary_pages();
    let cores = usable_cpus();
    let one = start(&cores[..1]);
    let alone = in_use(&one);
    with_buffers("target with one reactor", each(0, alone, 1));
    // At most one reactor per core.
    if let Some(two) = cores.get(..2) {
        let more = each(alone, in_use(&start(two)), 1);
        with_buffers("each further reactor", more);
    }
}

/// An admin queue that is connected and enabled.
fn admin(target: &Target) -> (Peer, u16) {
    let (mut peer, cntlid) = Peer::connected(target.address(), 0, 0xffff);
    let enable = PropertyAccess::set(Property::CC, PropertyValue::Dword(Cc::ENABLE.0));
    peer.capsule(&enable.to_bytes());
    assert!(peer.response().status().is_success());
    (peer, cntlid)
}

#[test]
fn memory_of_iwarp_connections_is_documented() {
    ordinary_pages();
    let mut target = start(&usable_cpus()[..1]);
    // Pages that the first one uses remain allocated.
    let first = admin(&target);
    let _queue = Peer::connected(target.address(), 1, first.1);
    let mut before = in_use(&target);
    let mut grown = |name: &str, count: u16| {
        let after = in_use(&target);
        as_documented(name, 0, each(before, after, count.into()));
        before = after;
    };
    let count = 32;
    let strangers: Vec<Peer> = (0..count)
        .map(|_| Peer::queue(target.address(), 0))
        .collect();
    grown("connection before its Connect", count);
    let admins: Vec<_> = (0..count).map(|_| admin(&target)).collect();
    grown("admin queue pair", count);
    let count = 14;
    let mut queues = Vec::new();
    for (size, (_, cntlid)) in [(32, &admins[0]), (128, &admins[1])] {
        let queue = |qid| Peer::connected_sized(target.address(), qid, size, *cntlid);
        queues.extend((1..=count).map(queue));
        grown(&format!("I/O queue pair of {size} entries"), count);
    }
    // Memory of unconnected peers would be reused.
    drop(strangers);
    target.assert_healthy();
}

/// A host that is connected and waits for data of a pipe.
fn waiting(target: &Target, setup: &Setup, medium: &str, queues: usize) -> (Running, File) {
    let fifo = setup.path(&format!("fifo{queues}"));
    nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU).unwrap();
    // Both ends, so that neither blocks.
    let writer = OpenOptions::new().read(true).write(true).open(&fifo);
    let options = format!("--provider {medium} -i {queues} -Q 128 --shm-folder");
    let before = target.lines(&["connected"]).len();
    let host = target.on(1, "write").args(&options);
    let host = host.arg(setup.shm_folder()).arg("--data").arg(&fifo);
    let host = host.start();
    let connected = || (target.lines(&["connected"]).len() > before + queues).then_some(());
    assert!(eventually(connected).is_some(), "{}", target.log());
    (host, writer.unwrap())
}

#[test]
fn memory_of_both_sides_is_documented_for_each_provider() {
    ordinary_pages();
    for (column, medium) in ["iwarp", "shm"].into_iter().enumerate() {
        let setup = Setup::new().namespace("null:1G", "");
        let setup = setup.provider("[\"iwarp\", \"shm\"]");
        let target = setup.start();
        let (first, _pipe) = waiting(&target, &setup, medium, 1);
        let (host, before) = (settled(first.pid()), in_use(&target));
        // Some 200 KiB of a debug build are its own: constants with pointers in them, which
        // the loader writes to. The document is about the released programs.
        if !is_debug_build() {
            as_documented(
                "nvmeof write with one I/O queue pair",
                column,
                each(0, host, 1),
            );
        }
        let (second, _pipe) = waiting(&target, &setup, medium, 13);
        let target_side = each(before, in_use(&target), 14);
        as_documented("target, for each queue pair of a host", column, target_side);
        let host_side = each(host, settled(second.pid()), 12);
        as_documented("initiator, for each I/O queue pair", column, host_side);
    }
}
