//! The command as a process, with a small target on a thread.
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
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use fake::{BLOCK, BLOCKS, Fake, SUBNQN};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use nvmeof_initiator::Address;
use nvmeof_rdma_iwarp::{Iwarp, IwarpConfig};
use nvmeof_wire::Status;
use nvmeof_wire::fabrics::InvalidParameter;
use serde_json::Value;

/// Runs a target, prepared by `prepare`, until the sender is dropped.
fn target(prepare: impl FnOnce(&mut Fake<Iwarp>)) -> (Address, mpsc::Sender<()>) {
    let (addr, stop, _) = counting_target(prepare);
    (addr, stop)
}

/// The same, with the number of commands that it has served.
fn counting_target(
    prepare: impl FnOnce(&mut Fake<Iwarp>),
) -> (Address, mpsc::Sender<()>, Arc<AtomicUsize>) {
    let provider = nvmeof_rdma_iwarp::new(IwarpConfig::default()).unwrap();
    let (mut fake, addr) = Fake::listen(provider, "127.0.0.1:0".parse().unwrap());
    prepare(&mut fake);
    let (stop, stopped) = mpsc::channel();
    let served = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&served);
    std::thread::spawn(move || {
        let start = Instant::now();
        while stopped.try_recv() != Err(mpsc::TryRecvError::Disconnected) {
            if !fake.poll(start.elapsed()) {
                std::thread::sleep(Duration::from_micros(50));
            }
            count.store(fake.served.len(), Ordering::Relaxed);
        }
    });
    (addr, stop, served)
}

/// Waits until the target has served `least` commands.
fn wait_for(served: &AtomicUsize, least: usize) {
    let start = Instant::now();
    while served.load(Ordering::Relaxed) < least {
        assert!(start.elapsed() < Duration::from_secs(60), "no I/O");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn signal(child: &Child, signal: Signal) {
    let pid = Pid::from_raw(child.id().try_into().unwrap());
    kill(pid, signal).unwrap();
}

/// `nvmeof` with the address of the target; spaces separate arguments.
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

/// The same, with the NQN of the subsystem.
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
fn identify_and_log_commands_print_json_and_text() {
    let (addr, _stop) = target(|_| {});
    let discovery = json(&mut nvmeof(addr, "discover"));
    assert_eq!(discovery["genctr"], 4);
    assert_eq!(discovery["records"].as_array().unwrap().len(), 5);
    let controller = json(&mut on_subsystem(addr, "id-ctrl"));
    assert_eq!(controller["cntlid"], 1);
    assert!(controller["ieee"].is_u64() && controller["fcatt"].is_u64());
    assert_eq!(controller["fguid"].as_str().unwrap().len(), 36);
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
fn data_is_transferred_to_and_from_files_and_pipes() {
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

    // The namespace differs from the file now.
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
fn unfit_data_is_refused_before_any_write() {
    let (addr, _stop) = target(|fake| fake.manners.status = Some(Status::INTERNAL_ERROR));
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("data");
    for (len, words, stdout) in [
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
        (BLOCK, "--block-count 2", "has 1 blocks, --block-count is 2"),
    ] {
        fs::write(&file, vec![0; len]).unwrap();
        let words = format!("write --namespace-id 1 {words} --data {}", file.display());
        let output = on_subsystem(addr, &words).output().unwrap();
        assert_eq!(output.status.code(), Some(1));
        let error = err(&output).replace("\n        ", " ");
        assert!(error.contains(stdout), "{error}");
    }
}

#[test]
fn failures_have_remedies() {
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

    let no_target: Address = "127.0.0.1:1".parse().unwrap();
    let output = nvmeof(no_target, "discover").output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(err(&output).contains("check that nvmeof-target is running there"));

    let output = on_subsystem(no_target, "read").output().unwrap();
    assert_eq!(output.status.code(), Some(2), "wrong usage");
}

#[test]
fn bench_reports_rates_and_latencies() {
    let (addr, _stop) = target(|_| {});
    for kind in ["randread", "randrw", "write"] {
        let words = format!(
            "bench --namespace-id 1 --rw {kind} --bs 4k --iodepth 8 --nr-io-queues 2 --runtime 1"
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

/// Every command, with its required options besides target and subsystem.
const COMMANDS: [&str; 15] = [
    "id-ctrl",
    "id-ns --namespace-id 1",
    "list-ns",
    "smart-log",
    "error-log",
    "get-log --log-id 1 --log-len 64",
    "read --namespace-id 1 --data /dev/null",
    "write --namespace-id 1 --data /dev/null",
    "compare --namespace-id 1 --data /dev/null",
    "compare-write --namespace-id 1 --start-block 0 --compare /dev/null --data /dev/null",
    "verify --namespace-id 1",
    "copy --namespace-id 1 --start-block 0 --block-count 1 --to 9",
    "flush --namespace-id 1",
    "write-zeroes --namespace-id 1 --start-block 0 --block-count 1",
    "dsm --namespace-id 1 --start-block 0 --block-count 1",
];

#[test]
fn errors_are_json_with_output_format_json() {
    let no_target: Address = "127.0.0.1:1".parse().unwrap();
    let bench = [
        "bench --namespace-id 1",
        "bench --namespace-id 1 --interface async",
    ];
    let mut all: Vec<Command> = COMMANDS
        .into_iter()
        .chain(bench)
        .map(|words| on_subsystem(no_target, words))
        .collect();
    all.push(nvmeof(no_target, "discover"));
    for command in &mut all {
        let output = command.args(["-o", "json"]).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{command:?}");
        assert_eq!(err(&output), "", "{command:?}");
        let stdout: Value = serde_json::from_slice(&output.stdout).unwrap();
        let text = |key: &str| stdout[key].as_str().unwrap().to_owned();
        assert!(text("error").contains("connection refused"), "{stdout}");
        assert!(text("remedy").contains("--traddr"), "{stdout}");
    }
    // With data on standard output.
    for words in [
        "read --namespace-id 1 --data -",
        "get-log --log-id 1 --log-len 64 -b",
    ] {
        let output = on_subsystem(no_target, words)
            .args(["-o", "json"])
            .output()
            .unwrap();
        assert!(output.stdout.is_empty());
        let stdout: Value = serde_json::from_slice(&output.stderr).unwrap();
        assert!(stdout["error"].is_string(), "{stdout}");
    }
    // Invalid command lines.
    for words in [
        "read -o json",
        "id-ns --namespace-id 0 -o json",
        "--output-format=json x",
    ] {
        let output = Command::new(env!("CARGO_BIN_EXE_nvmeof"))
            .args(words.split_whitespace())
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(2), "{words}");
        let stdout: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert!(
            stdout["error"].is_string() && err(&output).is_empty(),
            "{stdout}"
        );
    }
}

#[test]
fn nvme_status_is_a_number_in_json() {
    let (addr, _stop) = target(|_| {});
    let mut flush = on_subsystem(addr, "write-zeroes --namespace-id 1 --block-count 1");
    let output = flush
        .args(["--start-block", "0x2000", "-o", "json"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    let stdout: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(
        stdout["error"].as_str().unwrap().contains("beyond the end"),
        "{stdout}"
    );

    let (addr, _stop) =
        target(|fake| fake.manners.connect = Some((Status::CONNECT_INVALID_HOST, 0)));
    let output = on_subsystem(addr, "list-ns")
        .args(["-o", "json"])
        .output()
        .unwrap();
    let stdout: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(stdout["type"], "nvme");
    assert_eq!(stdout["value"], Status::CONNECT_INVALID_HOST.to_field());
}

#[test]
fn absent_queues_and_namespaces_have_the_same_error_in_all_commands() {
    let (addr, _stop) = target(|fake| fake.manners.queues = Some(4));
    for (option, stdout) in [
        (
            "-i 999 --namespace-id 1",
            "the controller grants 4 I/O queues, 999 were requested",
        ),
        (
            "--namespace-id 9",
            "the subsystem has no namespace 9; it has 1",
        ),
    ] {
        let texts = ["read --data -", "bench", "bench --interface async"].map(|words| {
            let output = on_subsystem(addr, &format!("{words} {option}"))
                .output()
                .unwrap();
            assert_eq!(output.status.code(), Some(1));
            err(&output).replace("\n        ", " ")
        });
        assert!(texts[0].contains(stdout), "{}", texts[0]);
        assert!(texts.iter().all(|text| *text == texts[0]), "{texts:?}");
    }
}

#[test]
fn interrupted_bench_prints_partial_results() {
    let (addr, _stop, served) = counting_target(|_| {});
    for (interface, which, status) in [
        ("polled", Signal::SIGINT, 130),
        ("async", Signal::SIGTERM, 143),
    ] {
        let words = format!("bench --namespace-id 1 --runtime 600 --interface {interface} -o json");
        let before = served.load(Ordering::Relaxed);
        let child = on_subsystem(addr, &words)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        wait_for(&served, before + 200);
        signal(&child, which);
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(status), "{}", err(&output));
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(report["interrupted"], which.as_str());
        assert!(
            report["read"]["operations"].as_u64().unwrap() >= 100,
            "{report}"
        );
        assert!(report["runtime_s"].as_f64().unwrap() < 300.0, "{report}");
        assert!(
            err(&output).contains("interrupted by SIG"),
            "{}",
            err(&output)
        );
    }
}

#[test]
fn interrupted_write_reports_acknowledged_blocks() {
    const CHUNK: usize = 256 << 10;
    let (addr, _stop, served) = counting_target(|_| {});
    for (which, status) in [(Signal::SIGTERM, 143), (Signal::SIGINT, 130)] {
        let before = served.load(Ordering::Relaxed);
        let mut child = on_subsystem(addr, "write --namespace-id 1 --start-block 8 --data -")
            .stdin(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        // Two transfers, and data that is too short for a third: it waits for more.
        let mut stdin = child.stdin.take().unwrap();
        stdin.write_all(&vec![7; 2 * CHUNK + BLOCK]).unwrap();
        stdin.flush().unwrap();
        // Set-up takes a few commands, the data two.
        let read = || {
            let words = "read --namespace-id 1 --start-block 1031 --block-count 1 --data -";
            on_subsystem(addr, words).output().unwrap().stdout
        };
        let start = Instant::now();
        while read() != [7; BLOCK] {
            assert!(
                start.elapsed() < Duration::from_secs(60),
                "nothing is written"
            );
        }
        assert!(served.load(Ordering::Relaxed) > before);
        signal(&child, which);
        let output = child.wait_with_output().unwrap();
        drop(stdin);
        assert_eq!(output.status.code(), Some(status), "{}", err(&output));
        let stdout = err(&output).replace("\n        ", " ");
        let expected = format!(
            "interrupted by {}: 1024 blocks from block 8 were acknowledged",
            which.as_str()
        );
        assert!(stdout.contains(&expected), "{stdout}");
        out(&on_subsystem(
            addr,
            "write-zeroes --namespace-id 1 --start-block 0 --block-count 2048",
        )
        .output()
        .unwrap());
    }
}

#[test]
fn successful_commands_log_nothing() {
    let (addr, _stop) = target(|_| {});
    for words in COMMANDS {
        // The others fail, or this target does not support them.
        if ["compare", "verify", "copy"]
            .iter()
            .any(|one| words.starts_with(one))
        {
            continue;
        }
        let output = on_subsystem(addr, words).output().unwrap();
        assert_eq!(err(&output), "", "{words}");
    }
}
