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
use nvmeof_wire::log::ana::{AnaGroup, AnaHeader, AnaState};
use serde_json::Value;
use zerocopy::IntoBytes;

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
fn connect_all_fails_after_its_report_if_a_subsystem_has_no_path() {
    use nvmeof_wire::log::DiscoveryEntry;
    use nvmeof_wire::log::discovery::{AddressFamily, SubsystemType, TransportType};
    let (addr, _stop) = target(|_| {});
    let entry = |port: u16, subnqn: &str| {
        let mut entry = DiscoveryEntry::zeroed();
        entry.trtype = TransportType::RDMA;
        entry.adrfam = AddressFamily::IPV4;
        entry.subtype = SubsystemType::NVM;
        entry.traddr = nvmeof_wire::Ascii::new("127.0.0.1");
        entry.trsvcid = nvmeof_wire::Ascii::new(&port.to_string());
        entry.subnqn = nvmeof_wire::Nqn::new(subnqn).unwrap().to_field();
        entry
    };
    let absent = "nqn.2026-11.org.example:absent";
    let entries = vec![entry(addr.port().unwrap(), SUBNQN), entry(1, absent)];
    let (service, _stop) = target(|fake| fake.discovery.entries = entries);
    let output = nvmeof(service, "connect-all --provider iwarp")
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    let text = String::from_utf8(output.stdout.clone()).unwrap();
    for line in [
        format!("{SUBNQN}\n  live       {addr}\n  namespace  1        4.0 MiB  11111111-"),
        format!("{absent}\n  failed     127.0.0.1:1: connection refused"),
    ] {
        assert!(text.contains(&line), "{text}");
    }
    assert!(err(&output).contains("1 of 2 subsystems have no path"));

    let mut command = nvmeof(service, "connect-all --provider iwarp -o json");
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["subsystems"][0]["paths"][0]["state"], "failed");
    let error: Value = serde_json::from_slice(&output.stderr).unwrap();
    assert!(error["error"].as_str().unwrap().contains(absent));
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
const COMMANDS: [&str; 22] = [
    "id-ctrl",
    "id-ns --namespace-id 1",
    "list-ns",
    "smart-log",
    "error-log",
    "get-log --log-id 1 --log-len 64",
    "ana-log",
    "get-feature --feature-id 6 --sel current",
    "set-feature --feature-id 6 --value 1",
    "read --namespace-id 1 --data /dev/null",
    "write --namespace-id 1 --data /dev/null",
    "compare --namespace-id 1 --data /dev/null",
    "compare-write --namespace-id 1 --start-block 0 --compare /dev/null --data /dev/null",
    "verify --namespace-id 1",
    "copy --namespace-id 1 --start-block 0 --block-count 1 --to 9",
    "flush --namespace-id 1",
    "write-zeroes --namespace-id 1 --start-block 0 --block-count 1",
    "dsm --namespace-id 1 --start-block 0 --block-count 1",
    "resv-register --namespace-id 1 --nrkey 1",
    "resv-acquire --namespace-id 1 --crkey 1 --rtype 1",
    "resv-release --namespace-id 1 --crkey 1 --rtype 1",
    "resv-report --namespace-id 1",
];

/// Two targets of one subsystem.
fn two_targets(prepare: impl Fn(&mut Fake<Iwarp>, u16)) -> [Counting; 2] {
    [1, 2].map(|cntlid| {
        counting_target(|fake| {
            fake.persona.cntlid = cntlid;
            prepare(fake, cntlid);
        })
    })
}

type Counting = (Address, mpsc::Sender<()>, Arc<AtomicUsize>);

/// `nvmeof` over paths to two targets; spaces separate arguments.
fn over_both([first, second]: &[Counting; 2], words: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_nvmeof"));
    command
        .args(words.split_whitespace())
        .args(["-a", &format!("{},{}", first.0, second.0), "-n", SUBNQN])
        .args(["-q", "nqn.2026-11.org.example:host"]);
    command
}

#[test]
fn bench_over_two_paths_continues_after_the_loss_of_one() {
    for interface in ["polled", "async"] {
        let targets = two_targets(|fake, cntlid| {
            if cntlid == 1 {
                fake.manners.hangs_up_at = Some(200);
            }
        });
        let words = format!(
            "bench --namespace-id 1 --rw randread --iodepth 8 --nr-io-queues 2 --runtime 3 \
             --interface {interface}"
        );
        let output = over_both(&targets, &words).args(["-o", "json"]).output();
        let output = output.unwrap();
        let result: Value = serde_json::from_str(&out(&output)).unwrap();
        assert!(result["iops"].as_f64().unwrap() > 0.0, "{result}");
        let lines = err(&output);
        let path = targets[0].0;
        for line in ["lost: ", "recovered after "] {
            let line = format!("nvmeof: path {path} {line}");
            assert!(lines.contains(&line), "{interface}: {lines}");
        }
        // A recovered path is not preferred for a while.
        for (_, _, served) in &targets {
            assert!(served.load(Ordering::Relaxed) >= 200, "{interface}");
        }
    }
}

#[test]
fn bench_without_a_path_fails_like_the_other_commands() {
    let mut targets = two_targets(|_, _| {});
    for target in &mut targets {
        target.0 = "127.0.0.1:1".parse().unwrap();
    }
    targets[1].0 = "127.0.0.1:2".parse().unwrap();
    let absent = two_targets(|_, _| {});
    let inaccessible = two_targets(|fake, _| {
        fake.persona.anagrpid = 1;
        fake.persona.groups = Some(vec![(1, AnaState::INACCESSIBLE)]);
    });
    for interface in ["polled", "async"] {
        let words =
            |nsid| format!("bench --namespace-id {nsid} --runtime 1 --interface {interface}");
        for (targets, nsid, said) in [
            (&targets, 1, "nothing listens"),
            (&absent, 9, "no namespace 9"),
            (&inaccessible, 1, "access"),
        ] {
            let output = over_both(targets, &words(nsid)).output().unwrap();
            assert_eq!(output.status.code(), Some(1), "{interface}");
            assert!(err(&output).contains(said), "{}", err(&output));
        }
    }
}

/// A copy of two and a half pieces, whose path is lost in the second one.
#[test]
fn copy_resumes_with_the_piece_whose_path_was_lost() {
    // Each command copies 128 blocks of 4096 bytes at most.
    let piece = (1 << 30) / 4096 / 128;
    let (addr, _stop, served) = counting_target(|fake| {
        fake.persona.block_shift = 12;
        fake.persona.blocks = 1 << 30;
        fake.manners.hangs_up_at = Some(piece + 100);
    });
    let count = 5 * piece / 2 * 128;
    let words =
        format!("copy --namespace-id 1 --start-block 0 --block-count {count} --to 1000000 -k 1");
    let output = on_subsystem(addr, &words).output().unwrap();
    out(&output);
    assert!(err(&output).contains("lost: "), "{}", err(&output));
    let commands = served.load(Ordering::Relaxed);
    assert_eq!(commands, 5 * piece / 2 + 100);
}

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
        "get-feature --feature-id 14 -b",
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
        if ["compare", "verify", "copy", "ana-log"]
            .iter()
            .any(|one| words.starts_with(one))
        {
            continue;
        }
        let output = on_subsystem(addr, words).output().unwrap();
        assert_eq!(err(&output), "", "{words}");
    }
}

/// A page with change count `count` and the given groups, each with one namespace.
fn ana_page(count: u64, groups: std::ops::RangeInclusive<u32>) -> Vec<u8> {
    let ngrps = u16::try_from(groups.clone().count()).unwrap();
    let mut page = AnaHeader::new(count, ngrps).as_bytes().to_vec();
    for agid in groups {
        let group = AnaGroup::new(agid, 1, 1, AnaState::OPTIMIZED);
        page.extend_from_slice(group.as_bytes());
        page.extend(agid.to_le_bytes());
    }
    page
}

#[test]
fn ana_log_of_several_commands_is_read_whole() {
    // 1000 groups of 36 bytes: nine commands, and one for the header.
    let (addr, _stop) = target(|fake| fake.manners.ana = Some(|_| ana_page(3, 1..=1000)));
    let log = json(&mut on_subsystem(addr, "ana-log"));
    let groups = log["ANA DESC LIST "].as_array().unwrap();
    assert_eq!((groups.len(), &log["chgcnt"]), (1000, &3.into()));
    assert_eq!(groups[999]["NSIDS"][0]["nsid"], 1000);
    let text = out(&on_subsystem(addr, "ana-log").output().unwrap());
    assert!(
        text.ends_with("state  : optimized\nnsids  : 1000\n"),
        "{text}"
    );
}

#[test]
fn ana_log_that_changes_is_read_again() {
    // Two commands an attempt: the page, and its header. The first page is invalid, too.
    let (addr, _stop) = target(|fake| {
        fake.manners.ana = Some(|read| match read {
            0 => ana_page(1, 0..=1),
            1 | 2 => ana_page(2, 1..=1),
            _ => ana_page(3, 1..=2),
        });
    });
    let log = json(&mut on_subsystem(addr, "ana-log"));
    assert_eq!((&log["chgcnt"], &log["ngrps"]), (&3.into(), &2.into()));

    let (addr, _stop) = target(|fake| {
        fake.manners.ana = Some(|read| ana_page(read.try_into().unwrap(), 1..=1));
    });
    let output = on_subsystem(addr, "ana-log").output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let error = err(&output).replace("\n        ", " ");
    assert!(
        error.contains("changed during each of 5 attempts"),
        "{error}"
    );
    assert!(
        error.contains("help: the state of the target is changing"),
        "{error}"
    );
}

#[test]
fn invalid_ana_log_is_refused() {
    type Page = fn(usize) -> Vec<u8>;
    let pages: [(Page, &str); 5] = [
        (|_| vec![0xff; 64], "65535 groups (ngrps), at most 1024"),
        (|_| ana_page(1, 0..=0), "group 0"),
        (
            |_| ana_page(1, 2001..=2001),
            "group 2001, which is out of range",
        ),
        // The page ends within a group: the rest is zero.
        (
            |_| ana_page(1, 1..=2)[..60].to_vec(),
            "namespace 0 in group 2",
        ),
        (
            |_| [ana_page(1, 1..=2), ana_page(1, 1..=1)].concat()[..52].to_vec(),
            "group 0",
        ),
    ];
    for (page, said) in pages {
        let (addr, _stop) = target(move |fake| fake.manners.ana = Some(page));
        let output = on_subsystem(addr, "ana-log").output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{said}");
        let error = err(&output).replace("\n        ", " ");
        assert!(error.contains("the ANA log page has "), "{error}");
        assert!(error.contains(said), "{said}: {error}");
        assert!(error.contains("help: please report it"), "{error}");
    }
    let (addr, _stop) = target(|_| {});
    let output = on_subsystem(addr, "ana-log").output().unwrap();
    let error = err(&output).replace("\n        ", " ");
    assert!(error.contains("CMIC bit 3 is 0"), "{error}");
    assert!(error.contains("help: all of its namespaces"), "{error}");
}

#[test]
fn features_of_hostile_target_are_printed() {
    let (addr, _stop) = target(|fake| {
        fake.manners.features = Some((Status::SUCCESS, u32::MAX));
    });
    // Every feature below C0h, with data that the target never sends.
    let all = json(&mut on_subsystem(addr, "get-feature"));
    assert_eq!(all.as_object().unwrap().len(), 2 * 0xbf, "{all}");
    assert_eq!(all["feature: 0x1f"][0]["name"], "unknown");
    assert_eq!(all["feature: 0x06"][0]["Current"], "0xffffffff");
    assert_eq!(all["Feature: 0x0e"][0]["timestamp"], 0, "data are zeroed");
    assert_eq!(
        all["Feature: 0x84"][0]["Namespace Write Protect"],
        "Reserved"
    );
    let text = out(&on_subsystem(addr, "get-feature -H").output().unwrap());
    // The lines of nvme-cli may be longer.
    let mut others = text.lines().filter(|line| line.starts_with(' '));
    assert_eq!(others.find(|line| line.chars().count() > 80), None);
    let can = json(&mut on_subsystem(addr, "get-feature -f 6 --sel supported"));
    let can = can["Feature: 0x06: select"].as_array().unwrap();
    assert_eq!(can.len(), 3);
}

#[test]
fn failures_of_features_name_feature_and_remedy() {
    for (status, words, said) in [
        (
            Status::FEATURE_NOT_SAVEABLE,
            "set-feature -f 6 -V 1 --save",
            "leave --save out",
        ),
        (
            Status::FEATURE_NOT_CHANGEABLE,
            "set-feature -f 6 -V 1",
            "is changeable",
        ),
        (
            Status::FEATURE_NOT_NAMESPACE_SPECIFIC,
            "set-feature -f 6 -V 1 --namespace-id 1",
            "leave --namespace-id out",
        ),
        (
            Status::INVALID_FIELD,
            "get-feature -f 6",
            "may not support this feature",
        ),
        (
            Status::COMMAND_SEQUENCE_ERROR,
            "set-feature -f 6 -V 1",
            "after Connect",
        ),
        (
            Status::INVALID_NAMESPACE,
            "get-feature -f 6",
            "nvmeof list-ns",
        ),
    ] {
        let (addr, _stop) = target(move |fake| fake.manners.features = Some((status, 0)));
        let output = on_subsystem(addr, words).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{words}");
        let error = err(&output).replace("\n        ", " ");
        assert!(
            error.contains("feature 0x06 (Volatile Write Cache): "),
            "{error}"
        );
        assert!(error.contains(&status.to_string()), "{error}");
        assert!(error.contains("help: ") && error.contains(said), "{error}");
        let output = on_subsystem(addr, words).args(["-o", "json"]).output();
        let json: Value = serde_json::from_slice(&output.unwrap().stdout).unwrap();
        assert_eq!(json["value"], status.to_field(), "{json}");
    }
    let status = Status::INVALID_NAMESPACE;
    let (addr, _stop) = target(move |fake| fake.manners.features = Some((status, 0)));
    let error = err(&on_subsystem(addr, "get-feature -f 0x84").output().unwrap());
    assert!(error.contains("give --namespace-id N"), "{error}");
    // A list of features has no unsupported ones, but other errors end it.
    let status = Status::INVALID_FIELD;
    let (addr, _stop) = target(move |fake| fake.manners.features = Some((status, 0)));
    let error = err(&on_subsystem(addr, "get-feature").output().unwrap());
    assert!(error.contains("reports no feature"), "{error}");
    assert!(
        error.contains("help: give one with --feature-id"),
        "{error}"
    );
    let status = Status::INTERNAL_ERROR;
    let (addr, _stop) = target(move |fake| fake.manners.features = Some((status, 0)));
    let output = on_subsystem(addr, "get-feature").output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(output.stdout.is_empty());
    assert!(
        err(&output).contains("feature 0x01 (Arbitration): "),
        "{}",
        err(&output)
    );
}

#[test]
fn unfit_values_and_data_of_features_are_refused() {
    let no_target: Address = "127.0.0.1:1".parse().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    fs::write(&data, [0; 9]).unwrap();
    let data = data.display();
    for (words, status, said) in [
        (
            "-f 6".to_owned(),
            2,
            "there is no value help: give --value N",
        ),
        (
            "-f 6 -V 0x100000000".to_owned(),
            2,
            "--value 0x100000000 is out of range (0-0xffffffff) help: dword 11",
        ),
        (
            format!("-f 6 -d {data}"),
            2,
            "--data: the feature has no data help: leave --data out",
        ),
        (
            "-f 0x16 -V 1".to_owned(),
            2,
            "the feature has 512 bytes of data, and there is no --data help: give --data FILE",
        ),
        (
            format!("-f 0xe -d {data}"),
            1,
            "has more than 8 bytes, the data of the feature has 8 help: give data of that",
        ),
        (
            format!("-f 0x16 -d {data}"),
            1,
            "has 9 bytes, the data of the feature has 512",
        ),
        (
            "-f 0xe -V 281474976710656".to_owned(),
            2,
            "--value 281474976710656 is out of range (0-281474976710655) help: give milli",
        ),
        ("-f 0xe -d /nonexistent".to_owned(), 1, "/nonexistent: "),
    ] {
        let output = on_subsystem(no_target, &format!("set-feature {words}"));
        let output = { output }.output().unwrap();
        let error = err(&output);
        let error = error.split_whitespace().collect::<Vec<_>>().join(" ");
        assert_eq!(output.status.code(), Some(status), "{error}");
        assert!(error.contains(said), "{words}: {error}");
        assert!(error.starts_with("nvmeof: feature 0x"), "{error}");
    }
}

#[test]
fn ambiguous_short_options_are_refused_before_a_connection() {
    let no_target: Address = "127.0.0.1:1".parse().unwrap();
    for (words, said) in [
        (
            "read --namespace-id 1 -d - -c 0",
            "-s 1 is the port (--trsvcid); with --nlb (-c)",
        ),
        (
            "write --namespace-id 1 -d /dev/null -z 512",
            "with --data-size (-z)",
        ),
        (
            "compare --namespace-id 1 -d /dev/null -z 512",
            "add --start-block",
        ),
        ("verify --namespace-id 1 -c 0", "with --nlb (-c)"),
        (
            "get-feature -f 6",
            "replace -s by --sel, or add --sel current",
        ),
        (
            "write-zeroes --namespace-id 1 --start-block 0",
            "give --block-count N, or --nlb N",
        ),
    ] {
        let output = on_subsystem(no_target, words).output().unwrap();
        let error = err(&output);
        let error = error.split_whitespace().collect::<Vec<_>>().join(" ");
        assert_eq!(output.status.code(), Some(2), "{error}");
        assert!(error.contains(said), "{words}: {error}");
    }
    for (words, said) in [
        (
            "set-feature -a ::1 -n x -f 6 -V 1 -s",
            "to save a feature, write --save",
        ),
        (
            "set-feature -f 6 -V 1 -s -a ::1 -n x",
            "-s is the port (--trsvcid <PORT>)",
        ),
        ("set-feature -a ::1 -n x -V 1 -f", "--feature-id"),
        (
            "read -a ::1 -n x --namespace-id 1 -d f -s",
            "a value is required for '--trsvcid",
        ),
    ] {
        for json in ["", " -o=json"] {
            let words = match words.ends_with(['s', 'f']) && !json.is_empty() {
                true => words.replacen(' ', &format!("{json} "), 1),
                false => format!("{words}{json}"),
            };
            let output = Command::new(env!("CARGO_BIN_EXE_nvmeof"))
                .args(words.split_whitespace())
                .output()
                .unwrap();
            assert_eq!(output.status.code(), Some(2), "{words}");
            let text = if json.is_empty() {
                &output.stderr
            } else {
                &output.stdout
            };
            let text = String::from_utf8_lossy(text).into_owned();
            assert!(text.contains(said), "{words}: {text}");
        }
    }
}

#[test]
fn block_counts_of_nvme_cli_transfer_the_same_blocks() {
    let (addr, _stop) = target(|_| {});
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("data");
    fs::write(&file, [5; 2 * BLOCK]).unwrap();
    let write = |options: &str| {
        let path = file.display();
        let line = format!("write --namespace-id 1 --start-block 4 {options} -d {path}");
        on_subsystem(addr, &line).output().unwrap()
    };
    out(&write("-c 1 -z 1024 -f"));
    for (options, blocks) in [("-c 0", 1), ("-c 2", 3), ("-z 1KiB", 2), ("-z 512 -c 0", 1)] {
        let line = format!("read --namespace-id 1 --start-block 4 {options} -d -");
        let output = on_subsystem(addr, &line).output().unwrap();
        assert_eq!(output.stdout.len(), blocks * BLOCK, "{options}");
        let expected = [vec![5; 2 * BLOCK], vec![0; BLOCK]].concat();
        assert!(output.stdout == expected[..blocks * BLOCK], "{options}");
    }
    for (options, said) in [
        (
            "-c 2",
            "has 2 blocks, --nlb is 3 blocks help: leave --nlb out",
        ),
        ("-z 512", "has 2 blocks, --data-size is 1 blocks"),
        (
            "-z 1000",
            "--data-size 1000 is not a whole number of blocks of 512 bytes",
        ),
        (
            "-z 1024 -c 0",
            "--data-size 1024 is 2 blocks of 512 bytes, --nlb is 1 blocks",
        ),
    ] {
        let error = err(&write(options));
        let error = error.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(error.contains(said), "{options}: {error}");
    }
    let zero = "write-zeroes --namespace-id 1 --start-block 4 -c 0";
    out(&on_subsystem(addr, zero).output().unwrap());
    let line = "read --namespace-id 1 --start-block 4 -c 1 -d -";
    let output = on_subsystem(addr, line).output().unwrap();
    assert!(output.stdout == [vec![0; BLOCK], vec![5; BLOCK]].concat());
}
