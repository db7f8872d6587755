//! The examples of the crate, which its documentation and the README show, with both block
//! sizes.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::path::{Path, PathBuf};
use std::process::Command;

use nvmeof_e2e::{NQN, Run, Setup};

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
