//! The examples of the crate, which its documentation and the README show, with both block
//! sizes.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::path::{Path, PathBuf};
use std::process::Command;

use nvmeof_e2e::{NQN, Run, Setup, blocks, pattern};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Builds the examples, unless a run of all tests has; returns their folder.
fn build() -> PathBuf {
    let status = Command::new(env!("CARGO"))
        .current_dir(root())
        .args(["build", "--quiet", "--locked", "--workspace"])
        .arg("--all-targets")
        .status();
    assert!(status.unwrap().success());
    // This program is in the folder `deps` beside the one of examples.
    let program = std::env::current_exe().unwrap();
    program.ancestors().nth(2).unwrap().join("examples")
}

fn example(folder: &Path, name: &str, arguments: &[&str]) -> Run {
    let mut example = Command::new(folder.join(name));
    example.args(arguments);
    Run::new(example)
}

#[test]
fn every_example_runs_against_a_target() {
    let examples = build();
    // `.file` adds a namespace with the defaults of the target.
    for setup in [
        Setup::new().file(1 << 20),
        Setup::new().file_with(1 << 20, "block_size = 512"),
        Setup::new().file_with(1 << 20, "block_size = 4096"),
    ] {
        let mut target = setup.start();
        let addr = target.address().to_string();
        let place = [addr.as_str(), NQN, "1"];
        let ended = example(&examples, "write_and_verify", &place).ok();
        assert!(ended.to_string().contains("read back: the same"), "{ended}");
        let ended = example(&examples, "polled_reads", &place).ok();
        assert!(ended.to_string().contains("and flushed"), "{ended}");
        let folder = tempfile::tempdir().unwrap();
        let copy = folder.path().join("copy.img");
        let copied = [place.as_slice(), &[copy.to_str().unwrap()]].concat();
        example(&examples, "copy_namespace", &copied).ok();
        let copy = std::fs::read(copy).unwrap();
        assert_eq!((copy.len(), &copy[..4096]), (1 << 20, &[0xa5; 4096][..]));
        target.assert_healthy();
        target.stop();
    }
}

/// The checksum of the example `parallel_load`.
fn checksum(bytes: &[u8]) -> u64 {
    let (words, rest) = bytes.as_chunks();
    assert!(rest.is_empty());
    words.iter().fold(0xcbf2_9ce4_8422_2325, |sum, word| {
        (sum ^ u64::from_le_bytes(*word))
            .wrapping_mul(0x9e37_79b9_7f4a_7c15)
            .rotate_left(29)
    })
}

#[test]
fn parallel_load_verifies_what_it_reads() {
    const LEN: usize = 5 << 20;
    let examples = build();
    let target = Setup::new().file(8 << 20).start();
    let data = pattern(7, LEN);
    target.write(1, 0, &data);
    let sums = data
        .chunks(1 << 20)
        .map(|chunk| checksum(chunk).to_le_bytes());
    let sums: Vec<u8> = sums.flatten().collect();
    let sum = format!("{:016x}", checksum(&sums));
    let (addr, len) = (target.address().to_string(), LEN.to_string());
    let load = |sum: &str| example(&examples, "parallel_load", &[&addr, NQN, "1", &len, sum]);
    let ended = load(&sum).ok();
    assert!(
        ended.text().contains(&format!("{LEN} bytes loaded")),
        "{ended}"
    );
    load("0").fails(1, &["differs from the expected one"]);
    target.stop();
}

#[test]
fn kv_log_recovers_what_was_committed_up_to_a_torn_batch() {
    let examples = build();
    let target = Setup::new().file(1 << 20).start();
    let addr = target.address().to_string();
    let log = |pairs: &[&str]| {
        let arguments = [&[addr.as_str(), NQN, "1"], pairs].concat();
        example(&examples, "kv_log", &arguments).ok().text()
    };
    let text = log(&["color=red", "size=7", "shape="]);
    assert!(text.starts_with("0 keys in 0 batches\n"), "{text}");
    assert!(text.contains("3 records committed"), "{text}");
    let text = log(&["color=blue"]);
    assert!(text.contains("color=red\nshape=\nsize=7\n"), "{text}");
    let text = log(&[]);
    assert!(text.contains("color=blue\nshape=\nsize=7\n"), "{text}");
    // The value of the last record: its batch begins a block, and blocks have no such text else.
    let data = target.read(1, 0, None);
    let at = data.windows(4).rposition(|bytes| bytes == b"blue").unwrap();
    let len = data.len() / usize::try_from(blocks(&target, 1)).unwrap();
    let block = at / len;
    let mut torn = data[block * len..][..len].to_vec();
    torn[at % len] ^= 1;
    target.write(1, u64::try_from(block).unwrap(), &torn);
    let text = log(&["color=green"]);
    assert!(text.contains("was not written completely"), "{text}");
    assert!(text.contains("color=red\nshape=\nsize=7\n"), "{text}");
    let text = log(&[]);
    assert!(text.contains("color=green\nshape=\nsize=7\n"), "{text}");
    assert!(!text.contains("completely"), "{text}");
    target.stop();
}

/// The README shows a part of an example, which this test runs.
#[test]
fn rust_code_in_readme_is_part_of_an_example() {
    let squeeze = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    let folder = root().join("initiator/client/examples");
    let examples = std::fs::read_dir(folder).unwrap();
    let examples = examples.map(|file| std::fs::read_to_string(file.unwrap().path()).unwrap());
    let examples: Vec<String> = examples.map(|text| squeeze(&text)).collect();
    let readme = std::fs::read_to_string(root().join("README.md")).unwrap();
    let shown: Vec<&str> = readme.split("```rust\n").skip(1).collect();
    assert!(!shown.is_empty());
    for rest in shown {
        let block = squeeze(rest.split("```").next().unwrap());
        assert!(examples.iter().any(|text| text.contains(&block)), "{block}");
    }
}
