//! The command as a process, against a small target on a thread.
#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "tests"
)]

#[path = "../../client/tests/it/fake/mod.rs"]
mod fake;

use std::fs;
use std::io::Write;
use std::process::{Command, Output, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use fake::{BLOCK, BLOCKS, Fake, SUBNQN};
use nvmeof_initiator::Address;
use nvmeof_rdma_iwarp::{Iwarp, IwarpConfig};
use nvmeof_wire::Status;
use nvmeof_wire::fabrics::InvalidParameter;
use serde_json::Value;

/// Runs a target with `prepare` done to it until the sender is dropped.
fn target(prepare: impl FnOnce(&mut Fake<Iwarp>)) -> (Address, mpsc::Sender<()>) {
    let provider = nvmeof_rdma_iwarp::new(IwarpConfig::default()).unwrap();
    let (mut fake, addr) = Fake::listen(provider, "127.0.0.1:0".parse().unwrap());
    prepare(&mut fake);
    let (stop, stopped) = mpsc::channel();
    std::thread::spawn(move || {
        let start = Instant::now();
        while stopped.try_recv() != Err(mpsc::TryRecvError::Disconnected) {
            if !fake.poll(start.elapsed()) {
                std::thread::sleep(Duration::from_micros(50));
            }
        }
    });
    (addr, stop)
}

/// `nvmeof` with the target's address; words are separated by spaces.
fn nvmeof(addr: Address, words: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_nvmeof"));
    let mut words = words.split_whitespace();
    command
        .arg(words.next().unwrap())
        .args(["-t", "rdma", "-a", "127.0.0.1", "-s"])
        .arg(addr.port().unwrap().to_string())
        .args(words)
        .args(["-q", "nqn.2026-11.org.example:host"]);
    command
}

/// The same for the subsystem there is.
fn on_subsystem(addr: Address, words: &str) -> Command {
    let mut command = nvmeof(addr, words);
    command.args(["-n", SUBNQN]);
    command
}

fn out(output: &Output) -> String {
    assert!(output.status.success(), "{}", err(output));
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn err(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

fn json(command: &mut Command) -> Value {
    serde_json::from_str(&out(&command.args(["-o", "json"]).output().unwrap())).unwrap()
}

#[test]
fn controllers_and_logs_are_shown() {
    let (addr, _stop) = target(|_| {});
    let discovery = json(&mut nvmeof(addr, "discover"));
    assert_eq!(discovery["genctr"], 4);
    assert_eq!(discovery["records"].as_array().unwrap().len(), 5);
    assert_eq!(json(&mut on_subsystem(addr, "id-ctrl"))["cntlid"], 1);
    let namespace = json(&mut on_subsystem(addr, "id-ns --namespace-id 1"));
    assert_eq!(namespace["nsze"], BLOCKS);
    let list = json(&mut on_subsystem(addr, "list-ns"));
    assert_eq!(list["nsid_list"][0]["nsid"], 1);
    json(&mut on_subsystem(addr, "smart-log"));
    json(&mut on_subsystem(addr, "error-log"));
    let words = "get-log --log-id 0xc0 --log-len 5000 -b";
    let raw = on_subsystem(addr, words).output().unwrap();
    assert_eq!(raw.stdout, vec![0x11; 5000]);
    for words in [
        "id-ctrl",
        "id-ns --namespace-id 1",
        "smart-log",
        "error-log",
    ] {
        let text = out(&on_subsystem(addr, words).output().unwrap());
        let long = text.lines().find(|line| line.chars().count() > 80);
        assert_eq!(long, None, "{words}");
    }
}

#[test]
fn files_and_pipes_go_both_ways() {
    let (addr, _stop) = target(|_| {});
    let dir = tempfile::tempdir().unwrap();
    let [from, to] = ["from", "to"].map(|name| dir.path().join(name));
    let len = BLOCK * BLOCKS;
    let data: Vec<u8> = (0..len)
        .map(|n| u8::try_from(n / 3 % 251).unwrap())
        .collect();
    fs::write(&from, &data).unwrap();
    let path = |path: &std::path::Path| path.display().to_string();

    let words = format!("write --namespace-id 1 --data {}", path(&from));
    let output = on_subsystem(addr, &words).output().unwrap();
    assert_eq!((out(&output), err(&output)), (String::new(), String::new()));
    let words = format!("read --namespace-id 1 --data {}", path(&to));
    out(&on_subsystem(addr, &words).output().unwrap());
    assert!(fs::read(&to).unwrap() == data);

    let words = "read --namespace-id 1 --start-block 100 --block-count 3 --data -";
    let output = on_subsystem(addr, words).output().unwrap();
    assert!(output.stdout == data[100 * BLOCK..103 * BLOCK]);

    let mut child = on_subsystem(addr, "write --namespace-id 1 --start-block 7 --data -")
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child
        .stdin
        .take()
        .unwrap()
        .write_all(&[9; 2 * BLOCK])
        .unwrap();
    out(&child.wait_with_output().unwrap());
    let words = "read --namespace-id 1 --start-block 6 --block-count 4 --data -";
    let output = on_subsystem(addr, words).output().unwrap();
    let mut expected = data[6 * BLOCK..10 * BLOCK].to_vec();
    expected[BLOCK..3 * BLOCK].fill(9);
    assert!(output.stdout == expected);

    // The file is not what is there any more.
    let words = format!("compare --namespace-id 1 --data {}", path(&from));
    let output = on_subsystem(addr, &words).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(err(&output).contains("Compare Failure"), "{}", err(&output));

    for words in [
        "flush --namespace-id 1",
        "dsm --namespace-id 1 --start-block 0,8 --block-count 8,8",
        "write-zeroes --namespace-id 1 --start-block 0 --block-count 16",
    ] {
        out(&on_subsystem(addr, words).output().unwrap());
    }
}

#[test]
fn data_that_does_not_fit_is_refused_before_anything_is_written() {
    let (addr, _stop) = target(|fake| fake.manners.status = Some(Status::INTERNAL_ERROR));
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("data");
    for (len, words, said) in [
        (
            1000,
            "",
            "1000 bytes, which is not a whole number of blocks of 512",
        ),
        (
            BLOCK * (BLOCKS + 1),
            "",
            "8193 blocks from block 0 do not fit",
        ),
        (
            BLOCK,
            "--start-block 8192",
            "1 blocks from block 8192 do not fit",
        ),
        (
            BLOCK,
            "--block-count 2",
            "has 1 blocks, --block-count says 2",
        ),
    ] {
        fs::write(&file, vec![0; len]).unwrap();
        let words = format!("write --namespace-id 1 {words} --data {}", file.display());
        let output = on_subsystem(addr, &words).output().unwrap();
        assert_eq!(output.status.code(), Some(1));
        let error = err(&output).replace("\n        ", " ");
        assert!(error.contains(said), "{error}");
    }
}

#[test]
fn failures_say_what_to_do() {
    let unknown = fake::refused(InvalidParameter::InData(256));
    let (addr, _stop) = target(move |fake| fake.manners.connect = unknown);
    let output = on_subsystem(addr, "id-ctrl").output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let line = format!(
        "nvmeof discover -t rdma -a 127.0.0.1 -s {}\n",
        addr.port().unwrap()
    );
    assert!(err(&output).contains(&line), "{}", err(&output));

    let (addr, _stop) =
        target(|fake| fake.manners.connect = Some((Status::CONNECT_INVALID_HOST, 0)));
    let error = err(&on_subsystem(addr, "list-ns").output().unwrap());
    assert!(error.contains("nqn.2026-11.org.example:host"), "{error}");
    assert!(error.contains("allowed_hosts"), "{error}");

    let nobody: Address = "127.0.0.1:1".parse().unwrap();
    let output = nvmeof(nobody, "discover").output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(err(&output).contains("is nvmeof-target running there?"));

    let output = on_subsystem(nobody, "read").output().unwrap();
    assert_eq!(output.status.code(), Some(2), "wrong usage");
}

#[test]
fn a_benchmark_counts() {
    let (addr, _stop) = target(|_| {});
    for kind in ["randread", "randrw", "write"] {
        let words = format!(
            "bench --namespace-id 1 --rw {kind} --bs 4k --iodepth 8 --io-queues 2 --runtime 1"
        );
        let report = json(&mut on_subsystem(addr, &words));
        let figure = |value: &Value| value.as_f64().unwrap();
        assert!(figure(&report["iops"]) > 0.0, "{report}");
        let bytes = figure(&report["iops"]) * 4096.0;
        assert!((figure(&report["bytes_per_s"]) - bytes).abs() < 1.0);
        let latency = &report["lat_ns"];
        assert!(figure(&latency["p50"]) <= figure(&latency["p99"]));
        assert!(figure(&latency["p99"]) <= figure(&latency["p99_9"]));
        assert_eq!(figure(&report["read"]["iops"]) > 0.0, kind != "write");
        assert_eq!(figure(&report["write"]["iops"]) > 0.0, kind != "randread");
    }
}
