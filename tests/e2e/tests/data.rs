//! Data: writes reach the backing store, reads return its data.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests"
)]

use std::fs;

use nvmeof_e2e::{Setup, Target, pattern, same_bytes};

const MIB: usize = 1 << 20;

fn disk(setup: &Setup, nsid: u32) -> Vec<u8> {
    fs::read(setup.image_path(nsid)).unwrap()
}

fn started(setup: Setup) -> (Setup, Target) {
    let target = setup.start();
    (setup, target)
}

#[test]
fn whole_namespace_is_copied_to_a_file_and_back() {
    // Not a multiple of a transfer.
    let len = 20 * MIB + 512 * 3;
    let (setup, target) = started(Setup::new().file(len).file(len));
    let copy = setup.path("copy.img");
    let ended = target
        .on(1, "read")
        .args("--start-block 0 --data")
        .arg(&copy)
        .ok();
    // Without a terminal no progress is shown.
    assert!(
        ended.stdout.is_empty() && ended.stderr.is_empty(),
        "{ended}"
    );
    same_bytes(&fs::read(&copy).unwrap(), &disk(&setup, 1));

    let ended = target
        .on(2, "write")
        .args("--start-block 0 --data")
        .arg(&copy)
        .ok();
    assert!(
        ended.stdout.is_empty() && ended.stderr.is_empty(),
        "{ended}"
    );
    same_bytes(&disk(&setup, 2), &disk(&setup, 1));
    target.on(2, "compare").args("--data").arg(&copy).ok();
    target.stop();
}

#[test]
fn pipes() {
    let (setup, target) = started(Setup::new().file(4 * MIB));
    same_bytes(&target.read(1, 0, None), &disk(&setup, 1));
    let data = pattern(9, 3 * MIB);
    target.write(1, 0, &data);
    same_bytes(&disk(&setup, 1)[..data.len()], &data);
    same_bytes(
        &disk(&setup, 1)[data.len()..],
        &pattern(1, 4 * MIB)[data.len()..],
    );
}

#[test]
fn partial_ranges_and_block_sizes() {
    let setup = Setup::new()
        .file_with(2 * MIB, "block_size = 512")
        .file_with(2 * MIB, "block_size = 4096");
    let (setup, target) = started(setup);
    for (nsid, block) in [(1, 512), (2, 4096)] {
        let mut expected = disk(&setup, nsid);
        let blocks = 2 * MIB / block;
        // The first block, the last one, some at odd offsets, and more than one command
        // transfers.
        for (start, count) in [(0, 1), (blocks - 1, 1), (7, 9), (1, blocks - 2), (3, 128)] {
            let range = start * block..(start + count) * block;
            let (lba, count) = (u64::try_from(start).unwrap(), u64::try_from(count).unwrap());
            same_bytes(
                &target.read(nsid, lba, Some(count)),
                &expected[range.clone()],
            );
            let data = pattern(u32::try_from(start).unwrap() + 77, range.len());
            target.write(nsid, lba, &data);
            expected[range].copy_from_slice(&data);
            same_bytes(&disk(&setup, nsid), &expected);
        }
    }
}

#[test]
fn ram_and_null_namespaces_are_served() {
    let setup = Setup::new()
        .namespace("ram:4M", "")
        .namespace("null:16G", "block_size = 4096");
    let (_setup, target) = started(setup);
    same_bytes(&target.read(1, 0, None), &vec![0; 4 * MIB]);
    let data = pattern(5, MIB);
    target.write(1, 100, &data);
    same_bytes(&target.read(1, 100, Some(2048)), &data);
    same_bytes(&target.read(1, 0, Some(100)), &vec![0; 51200]);

    target.write(2, 1 << 20, &data);
    same_bytes(&target.read(2, 1 << 20, Some(256)), &vec![0; MIB]);
    let json = target.on(2, "id-ns").json();
    assert_eq!(json["nsze"], 4 << 20, "{json}");
}

#[test]
fn writes_to_read_only_namespace_fail() {
    let setup = Setup::new().file_with(MIB, "readonly = true");
    let (setup, target) = started(setup);
    let before = disk(&setup, 1);
    same_bytes(&target.read(1, 0, None), &before);
    let words = ["amespace", "read-only"];
    target
        .on(1, "write")
        .args("--data -")
        .stdin(&[1; 4096])
        .fails(1, &words);
    target
        .on(1, "write-zeroes")
        .args("--start-block 0 --block-count 8")
        .fails(1, &words);
    target
        .on(1, "dsm")
        .args("--ad --start-block 0 --block-count 8")
        .fails(1, &words);
    target.on(1, "flush").ok();
    same_bytes(&disk(&setup, 1), &before);
}

#[test]
fn zeroes_and_trims() {
    let (setup, target) = started(Setup::new().file(4 * MIB));
    let mut expected = disk(&setup, 1);
    target
        .on(1, "write-zeroes")
        .args("--start-block 3 --block-count 5")
        .ok();
    expected[3 * 512..8 * 512].fill(0);
    same_bytes(&disk(&setup, 1), &expected);
    target
        .on(1, "write-zeroes")
        .args("--start-block 1024 --block-count 2048 --deac")
        .ok();
    expected[1024 * 512..3072 * 512].fill(0);
    same_bytes(&disk(&setup, 1), &expected);

    // Deallocated blocks read as zeroes; the file keeps its length.
    target
        .on(1, "dsm")
        .args("--ad --start-block 4096,6000 --block-count 1024,16")
        .ok();
    let read = target.read(1, 0, None);
    same_bytes(&read[..4096 * 512], &expected[..4096 * 512]);
    assert_eq!(disk(&setup, 1).len(), 4 * MIB);
    same_bytes(&disk(&setup, 1), &read);
    target.on(1, "flush").ok();
}

#[test]
fn compare_reports_differences() {
    let (setup, target) = started(Setup::new().file(4 * MIB));
    let mut data = disk(&setup, 1);
    target.on(1, "compare").args("--data -").stdin(&data).ok();
    target
        .on(1, "compare")
        .args("--start-block 1 --data -")
        .stdin(&data[512..1024])
        .ok();
    data[3 * MIB + 17] ^= 1;
    let words = ["ompare", "differ"];
    let ended = target.on(1, "compare").args("--data -").stdin(&data).end();
    assert_eq!(ended.status, Some(1), "{ended}");
    let output = ended.stderr.to_lowercase();
    assert!(words.iter().any(|word| output.contains(word)), "{ended}");
    same_bytes(&disk(&setup, 1), &pattern(1, 4 * MIB));
}

#[test]
fn ranges_beyond_the_end_are_refused() {
    let (setup, target) = started(Setup::new().file(MIB));
    let before = disk(&setup, 1);
    target
        .on(1, "read")
        .args("--start-block 2047 --block-count 2 --data -")
        .fails(1, &["2048"]);
    target
        .on(1, "read")
        .args("--start-block 99999999999 --data -")
        .fails(1, &["2048"]);
    target
        .on(1, "write")
        .args("--start-block 2048 --data -")
        .stdin(&[1; 512])
        .fails(1, &[]);
    target
        .on(1, "write")
        .args("--data -")
        .stdin(&[1; 513])
        .fails(1, &["512"]);
    target
        .on(1, "write-zeroes")
        .args("--start-block 2040 --block-count 9")
        .fails(1, &["namespace"]);
    target
        .on(7, "read")
        .args("--data -")
        .fails(1, &["amespace", "7"]);
    let nowhere = "--start-block 0 --block-count 8 --data /nonexistent/file";
    target
        .on(1, "read")
        .args(nowhere)
        .fails(1, &["/nonexistent/file"]);
    target
        .on(1, "write")
        .args(nowhere)
        .fails(1, &["/nonexistent/file"]);
    assert_eq!(disk(&setup, 1).len(), before.len());
    same_bytes(&disk(&setup, 1)[1024..], &before[1024..]);
}

#[test]
fn several_queues_and_small_ones() {
    let (setup, target) = started(Setup::new().file(8 * MIB));
    for line in [
        "--nr-io-queues 4",
        "--queue-size 2",
        "--nr-io-queues 3 --queue-size 5",
    ] {
        let ended = target.on(1, "read").args(line).args("--data -").ok();
        same_bytes(&ended.stdout, &disk(&setup, 1));
    }
}

#[test]
fn two_hosts_access_one_namespace() {
    let setup = Setup::new().file(8 * MIB).file(8 * MIB);
    let (setup, target) = started(setup);
    let data = [1, 2].map(|nsid| pattern(nsid + 40, 8 * MIB));
    let writers = [1, 2].map(|nsid: u32| {
        let address = target.address();
        let line = format!(
            "write -t rdma -a {} -s {} -n {} -q nqn.2026-11.org.example:host{nsid} \
             --namespace-id {nsid} --data -",
            address.ip(),
            address.port(),
            nvmeof_e2e::NQN
        );
        nvmeof_e2e::Run::nvmeof(&line)
            .stdin(&data[nsid as usize - 1])
            .start()
    });
    for writer in writers {
        let ended = writer.end();
        assert_eq!(ended.status, Some(0), "{ended}");
    }
    for nsid in [1, 2] {
        same_bytes(&disk(&setup, nsid), &data[nsid as usize - 1]);
    }
}

#[test]
fn many_clients_access_one_namespace() {
    // Room for the queues of 32 hosts at once: 160 capsules of 8 KiB each, in
    // half of the memory.
    let setup = Setup::new().head("[reactor]\nbuffer_memory = \"128M\"");
    let setup = setup.file(4 * MIB).file(8 * MIB);
    let (setup, target) = started(setup);
    // Each writes a range of its own, and some read a range that is not written.
    let part = MIB / 2;
    let clients: Vec<_> = (0..16_u32)
        .map(|number| {
            let at = u64::from(number) * (part as u64 / 512);
            let write = format!("--start-block {at} --data -");
            let data = pattern(number + 60, part);
            let read = target.on(1, "read").args("--data -").start();
            (
                target.on(2, "write").args(&write).stdin(&data).start(),
                read,
            )
        })
        .collect();
    for (writer, reader) in clients {
        let (writer, reader) = (writer.end(), reader.end());
        assert_eq!(writer.status, Some(0), "{writer}");
        assert_eq!(reader.status, Some(0), "{reader}");
        same_bytes(&reader.stdout, &disk(&setup, 1));
    }
    for (number, written) in (60..).zip(disk(&setup, 2).chunks(part)) {
        same_bytes(written, &pattern(number, part));
    }
    target.stop();
}
