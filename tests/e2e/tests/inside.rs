//! Commands without data transfer: Verify, Copy, fused Compare and Write.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests"
)]

use std::fs;

use nvmeof_e2e::{Setup, pattern, same_bytes};

const MIB: usize = 1 << 20;

#[test]
fn verify_covers_range_up_to_the_end() {
    // More than the limit of one command (VSL is 32 MiB).
    let setup = Setup::new().file_with(80 * MIB, "block_size = 4096");
    let target = setup.start();
    for range in ["", "--start-block 5", "--start-block 20479 --block-count 1"] {
        let ended = target.on(1, "verify").args(range).ok();
        assert!(
            ended.stdout.is_empty() && ended.stderr.is_empty(),
            "{ended}"
        );
    }
    let beyond = "--start-block 20479 --block-count 2";
    target.on(1, "verify").args(beyond).fails(1, &["20480"]);
    // Write Zeroes is split at its limit as well (WZSL).
    let zeroes = "--start-block 0 --block-count 20480";
    target.on(1, "write-zeroes").args(zeroes).ok();
    same_bytes(&target.read(1, 0, Some(256)), &vec![0; MIB]);
}

#[test]
fn blocks_are_copied_within_a_namespace() {
    let setup = Setup::new().file(8 * MIB).file_with(MIB, "readonly = true");
    let target = setup.start();
    let before = pattern(1, 8 * MIB);
    // Three ranges to one destination, one of them a single block.
    target
        .on(1, "copy")
        .args("--slbs 0,4000,7 --block-count 2000,1,1000 --to 8192 --force-unit-access")
        .ok();
    let block = |at: usize, count: usize| &before[at * 512..(at + count) * 512];
    let expected = [block(0, 2000), block(4000, 1), block(7, 1000)].concat();
    same_bytes(&target.read(1, 8192, Some(3001)), &expected);
    let disk = fs::read(setup.image_path(1)).unwrap();
    same_bytes(&disk[..8192 * 512], &before[..8192 * 512]);
    same_bytes(&disk[(8192 + 3001) * 512..], &before[(8192 + 3001) * 512..]);

    let overlap = "--slbs 0,100 --block-count 8,8 --to 104";
    target
        .on(1, "copy")
        .args(overlap)
        .fails(1, &["overlap", "104"]);
    let beyond = "--slbs 0 --block-count 8 --to 16380";
    target.on(1, "copy").args(beyond).fails(1, &["16384"]);
    let odd = "--slbs 0,1 --block-count 8 --to 100";
    target
        .on(1, "copy")
        .args(odd)
        .fails(1, &["--block-count has 1"]);
    let words = ["amespace", "read-only"];
    target
        .on(2, "copy")
        .args("--slbs 0 --block-count 8 --to 100")
        .fails(1, &words);
    same_bytes(&fs::read(setup.image_path(1)).unwrap(), &disk);
}

#[test]
fn long_copies_are_split_into_commands() {
    // One range is longer than MSSRL (65,535 blocks), all are longer than MCL
    // (64 MiB), and there are more than MSRC says (128).
    let setup = Setup::new().file(160 * MIB);
    let target = setup.start();
    let long = "--slbs 0 --block-count 150000 --to 160000";
    target.on(1, "copy").args(long).ok();
    let before = pattern(1, 160 * MIB);
    let disk = fs::read(setup.image_path(1)).unwrap();
    same_bytes(
        &disk[160_000 * 512..310_000 * 512],
        &before[..150_000 * 512],
    );

    let join = |all: Vec<String>| all.join(",");
    let starts = join((0..200).map(|n| (n * 3).to_string()).collect());
    let counts = join((0..200).map(|_| "2".to_owned()).collect());
    let many = format!("--slbs {starts} --block-count {counts} --to 100000");
    target.on(1, "copy").args(&many).ok();
    let expected: Vec<u8> = (0..200)
        .flat_map(|n| before[n * 3 * 512..(n * 3 + 2) * 512].to_vec())
        .collect();
    same_bytes(&target.read(1, 100_000, Some(400)), &expected);
}

#[test]
fn compare_and_write_is_atomic() {
    let setup = Setup::new().file_with(MIB, "block_size = 512");
    let target = setup.start();
    let before = pattern(1, MIB);
    let (old, new) = (setup.path("old"), setup.path("new"));
    fs::write(&old, &before[8 * 512..16 * 512]).unwrap();
    fs::write(&new, vec![0x5a; 4096]).unwrap();
    let exchange = || {
        target
            .on(1, "compare-write")
            .args("--start-block 8 --compare")
            .arg(&old)
            .args("--data")
            .arg(&new)
    };
    exchange().ok();
    let mut expected = before;
    expected[8 * 512..16 * 512].fill(0x5a);
    same_bytes(&fs::read(setup.image_path(1)).unwrap(), &expected);
    // Now their content differs from the expected one.
    exchange().fails(1, &["Compare", "differ from the data given"]);
    same_bytes(&fs::read(setup.image_path(1)).unwrap(), &expected);

    target
        .on(1, "compare-write")
        .args("--start-block 8 --compare - --data")
        .arg(&new)
        .stdin(&[0x5a; 4096])
        .ok();
    exchange().args("-Q 2").fails(1, &["three entries"]);
    fs::write(&old, vec![0; 512]).unwrap();
    exchange().fails(1, &["512", "4096", "same length"]);
    fs::write(&old, vec![0; 8192]).unwrap();
    fs::write(&new, vec![0; 8192]).unwrap();
    exchange().fails(1, &["16 blocks", "8 blocks (NACWU)", "id-ns: nacwu"]);
    same_bytes(&fs::read(setup.image_path(1)).unwrap(), &expected);
}

/// Many processes increment a counter in one block, with retries.
#[test]
fn concurrent_compare_and_write_counts_correctly() {
    let setup = Setup::new().namespace("ram:1M", "block_size = 512");
    let target = setup.start();
    let number = |bytes: &[u8]| u64::from_le_bytes(bytes[..8].try_into().unwrap());
    std::thread::scope(|scope| {
        for name in 0..3 {
            let (setup, target) = (&setup, &target);
            scope.spawn(move || {
                let (old, new) = (
                    setup.path(&format!("old{name}")),
                    setup.path(&format!("new{name}")),
                );
                for _ in 0..4 {
                    loop {
                        let block = target.read(1, 3, Some(1));
                        let mut next = block.clone();
                        next[..8].copy_from_slice(&(number(&block) + 1).to_le_bytes());
                        fs::write(&old, &block).unwrap();
                        fs::write(&new, &next).unwrap();
                        let ended = target
                            .on(1, "compare-write")
                            .args("--start-block 3 --compare")
                            .arg(&old)
                            .args("--data")
                            .arg(&new)
                            .end();
                        if ended.status == Some(0) {
                            break;
                        }
                        assert!(ended.stderr.contains("Compare Failure"), "{ended}");
                    }
                }
            });
        }
    });
    assert_eq!(number(&target.read(1, 3, Some(1))), 12);
}
