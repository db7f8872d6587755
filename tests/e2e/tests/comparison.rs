//! The runner of `cargo xtask bench`: comparisons, reports and charts, and external peers; not
//! its figures.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests"
)]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use nvmeof_e2e::{Ended, Run, engine, free_port, target_command};
use serde_json::Value;
use tempfile::TempDir;

/// A run of workloads with the shortest rounds.
struct Bench {
    folder: TempDir,
    run: Run,
    works: Vec<&'static str>,
}

impl Bench {
    /// Each of `works` is the name of one, in the order of `--list`.
    fn of(works: &[&'static str]) -> Self {
        let runner = nvmeof_e2e::runner();
        // Not a temporary folder, which may be memory: the file is opened without
        // the page cache.
        let folder = TempDir::new_in(runner.parent().unwrap()).unwrap();
        let run = Run::new(Command::new(runner)).args("--seconds 0.1 --tries 1 --file-mib 16");
        let run = run.args(&works.join(" "));
        let run = run.arg("--folder").arg(folder.path());
        let works = works.to_vec();
        Self { folder, run, works }
    }

    fn with(mut self, option: &str, value: &str) -> Self {
        self.run = self.run.arg(option).arg(value);
        self
    }

    /// Runs it, which must succeed; returns its output and a row for each workload.
    fn rows(self) -> (Ended, Vec<Value>, TempDir) {
        let ended = self.run.ok();
        let result = fs::read(self.folder.path().join("result.json")).unwrap();
        let result: Value = serde_json::from_slice(&result).unwrap();
        assert!(result["machine"].is_object(), "{result}");
        let rows = result["works"].as_array().unwrap().clone();
        let names: Vec<_> = rows.iter().map(|row| row["work"].as_str()).collect();
        let wanted: Vec<_> = self.works.into_iter().map(Some).collect();
        assert_eq!(names, wanted, "{ended}");
        (ended, rows, self.folder)
    }
}

/// Asserts that each participant was measured in each round, and compared with the yardstick.
/// Returns their names.
#[track_caller]
fn contestants(row: &Value, rounds: usize) -> Vec<String> {
    let measured = row["contestants"].as_object().unwrap();
    let yardstick = row["yardstick"].as_str().unwrap();
    let metric = match row["metric"].as_str().unwrap() {
        "latency" => "p50_us",
        "rate" => "iops",
        "busy" => "busy_us",
        _ => "busy",
    };
    for (name, one) in measured {
        let samples = one["rounds"].as_array().unwrap();
        assert_eq!(samples.len(), rounds, "{row}");
        let figures = samples.iter().map(|sample| sample[metric].as_f64());
        // CPU time of an idle process may be below the resolution of the kernel.
        let least = if metric == "busy" { -1.0 } else { 0.0 };
        assert!(figures.into_iter().all(|it| it > Some(least)), "{row}");
        let compared = one["ratio"]["median"].as_f64().is_some();
        assert_eq!(compared, name != yardstick, "{row}");
    }
    measured.keys().cloned().collect()
}

#[test]
fn each_medium_is_compared_with_its_yardstick() {
    let bench = Bench::of(&[
        "null-randread-4k-qd1",
        "null-randwrite-4k-qd1",
        "null-randread-4k-qd16",
        "null-randwrite-4k-qd16",
        "null-randread-4k-qd16-1core",
        "shm-null-randread-4k-qd1",
        "shm-null-randwrite-4k-qd16",
        "shm-null-randread-4k-qd1-1core",
        "unix-null-randread-4k-qd16",
        "unix-tcp-read-128k-qd32",
        "crc-null-randread-4k-qd16",
        "zerocopy-read-128k-qd32",
        "async-null-randwrite-4k-qd1",
    ]);
    let (ended, rows, folder) = bench.with("--rounds", "1").rows();
    let who = |at: usize| contestants(&rows[at], 1);
    for at in 0..5 {
        assert_eq!(who(at), ["iwarp", "tcp"]);
    }
    assert_eq!(who(5), ["shm", "shm-bare"]);
    assert_eq!(who(6), ["shm", "shm-bare"]);
    assert_eq!(who(7), ["shm", "shm-bare"]);
    assert_eq!(who(8), ["unix", "unix-bare"]);
    assert_eq!(who(9), ["iwarp", "unix"]);
    assert_eq!(who(10), ["iwarp", "iwarp-crc"]);
    assert_eq!(who(11), ["tcp", "tcp-zerocopy"]);
    assert_eq!(who(12), ["shm", "shm-async"]);

    // The table has a line for each, with a ratio.
    let text = ended.text();
    for row in &rows {
        let name = row["work"].as_str().unwrap();
        let line = text
            .lines()
            .find(|line| line.split(' ').next() == Some(name));
        let line = line.unwrap_or_else(|| panic!("no line for {name}: {text}"));
        // Name, this target with its unit, the yardstick with its unit, the ratio.
        // On a busy machine it may be anything, and 0 when rounded.
        let ratio: Option<f64> = line.split_whitespace().nth(5).map(|it| it.parse().unwrap());
        assert!(ratio >= Some(0.0), "{line}");
    }
    let plot = |name: &str| fs::read_to_string(folder.path().join(name)).unwrap();
    for name in ["iops.svg", "latency.svg"] {
        let svg = plot(name);
        assert!(
            svg.starts_with("<svg ") && svg.ends_with("</svg>\n"),
            "{svg}"
        );
        for word in ["<polyline", "tcp", "iwarp"] {
            assert!(svg.contains(word), "{name}: {svg}");
        }
    }
}

#[test]
fn files_are_compared_with_fio() {
    let bench = Bench::of(&[
        "file-randread-4k-qd32",
        "shm-file-randwrite-4k-qd32",
        "sqpoll-file-randread-4k-qd32",
    ]);
    let bench = bench.with("--rounds", "1");
    // The last one requires more cores than this machine may have.
    let (_, rows, folder) = Bench {
        run: bench.run.arg("--force"),
        ..bench
    }
    .rows();
    assert_eq!(contestants(&rows[0], 1), ["iwarp", "local"]);
    assert_eq!(contestants(&rows[1], 1), ["local", "shm"]);
    assert!(rows[1]["contestants"]["shm"]["p99_ratio"].is_object());
    // The target with SQPOLL, compared with the target without it.
    assert_eq!(contestants(&rows[2], 1), ["shm", "shm-sqpoll"]);
    assert_eq!(rows[2]["yardstick"], "shm");
    let sqpoll = |name: &str| {
        let text = fs::read_to_string(folder.path().join(name)).unwrap();
        text.contains("sqpoll = true")
    };
    assert!(sqpoll("target-sqpoll.toml") && !sqpoll("target.toml"));
}

/// Scenes with processes of their own: many connections, two reactors (also with too few
/// cores), an idle target, hostile peers.
#[test]
fn scenes_with_other_processes_are_measured() {
    let works = [
        "crowd-shm-4k-qd16",
        "reactors-iwarp-4k-qd32",
        "idle-shm",
        "hostile-4-64k",
        "hostile-4-1m-same",
    ];
    let bench = Bench::of(&works).with("--rounds", "1");
    let (ended, rows, _) = Bench {
        run: bench.run.arg("--force"),
        ..bench
    }
    .rows();
    assert_eq!(contestants(&rows[0], 1), ["alone", "crowd"]);
    assert_eq!(contestants(&rows[1], 1), ["1-reactor", "2-reactors"]);
    assert_eq!(contestants(&rows[2], 1), ["initiator", "limit", "target"]);
    for (row, line) in [(3, "   4 their own   64k "), (4, "   4 the host's   1m ")] {
        assert_eq!(contestants(&rows[row], 1), ["beside", "quiet"]);
        let longest = &rows[row]["contestants"]["beside"]["rounds"][0]["longest_ms"];
        assert!(longest.as_f64() > Some(0.0), "{longest}");
        assert!(ended.text().contains(line), "{ended}");
    }
}

/// Workloads that external peers support.
const SHARED: [&str; 2] = ["null-randread-4k-qd1", "null-randwrite-4k-qd16"];

/// Scripts that start external peers.
fn peers() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../bench/peers")
}

fn quoted(path: &Path) -> String {
    format!("'{}'", path.display())
}

/// fio instead of the initiator, and a second target of this project as a stand-in for an
/// external one.
#[test]
fn external_peers_are_measured_on_both_sides() {
    let bench = Bench::of(&SHARED).with("--rounds", "2");
    let config = bench.folder.path().join("peer.toml");
    let program = target_command().get_program().to_owned();
    // The environment contains the NQN of the subsystem and the address.
    let serve = format!(
        "cat > {config} <<END\n\
         [[port]]\ntraddr = \"$BENCH_TRADDR\"\ntrsvcid = 0\nprovider = \"iwarp\"\n\
         [[subsystem]]\nnqn = \"$BENCH_NQN\"\nallow_any_host = true\n\
         [[subsystem.namespace]]\nnsid = 1\npath = \"null:1G\"\nEND\n\
         exec {} serve --config {config}",
        quoted(Path::new(&program)),
        config = quoted(&config),
    );
    let fio = format!(
        "NVMEOF_FIO_ENGINE={} {}",
        quoted(&engine()),
        quoted(&peers().join("fio-engine"))
    );
    let bench = bench.with("--peer-target", &serve).with("--peer", &fio);
    let (ended, rows, _) = bench.rows();
    for row in &rows {
        assert_eq!(contestants(row, 2), ["iwarp", "peer", "peer-target", "tcp"]);
    }
    let text = ended.text();
    for name in ["  peer ", "  peer-target "] {
        let lines = text.lines().filter(|line| line.starts_with(name));
        assert_eq!(lines.count(), SHARED.len(), "{text}");
    }
}

/// Stand-ins for the programs of SPDK in a folder of the run. Its target is one of this project;
/// the file `asked` lists the commands that configure it, and the arguments of its initiator.
struct Spdk {
    folder: PathBuf,
    asked: PathBuf,
    port: u16,
}

impl Spdk {
    fn in_folder_of(bench: &Bench) -> Self {
        let this = Self {
            folder: bench.folder.path().join("spdk"),
            asked: bench.folder.path().join("asked"),
            port: free_port(),
        };
        let program = target_command().get_program().to_owned();
        let target = format!(
            "exec {} serve --namespace null:1G --nqn \"$BENCH_NQN\" --provider iwarp \
             --listen 127.0.0.1:{} > {}.log 2>&1\n",
            quoted(Path::new(&program)),
            this.port,
            quoted(&this.asked)
        );
        // When it ends, the target is listening. Between two calls, the target is busy for 10 ms.
        let rpc = format!(
            "shift 4; echo \"$*\" >> {asked}\n\
             for try in $(seq 600); do grep -q ': serving' {asked}.log && break; sleep 0.1; done\n\
             busy=$(wc -l < {asked})\n\
             printf ' \"tick_rate\": 1000000,\\n \"name\": \"nvmf_tgt_poll_group_000\",\\n'\n\
             printf ' \"busy\": %d0000,\\n' $busy\n",
            asked = quoted(&this.asked)
        );
        this.program("build/bin/nvmf_tgt", &target);
        this.program("scripts/rpc.py", &rpc);
        this
    }

    fn program(&self, name: &str, script: &str) {
        let path = self.folder.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        executable(&path, script);
    }

    /// A command line for the script of that name.
    fn script(&self, name: &str) -> String {
        format!(
            "export SPDK={} SPDK_PORT={}; exec {}",
            quoted(&self.folder),
            self.port,
            quoted(&peers().join(name))
        )
    }

    /// Lines of `asked`, each without the words after the first `count`.
    fn asked(&self, count: usize) -> Vec<String> {
        let asked = fs::read_to_string(&self.asked).unwrap();
        let words = |line: &str| line.split(' ').take(count).collect::<Vec<_>>().join(" ");
        asked.lines().map(words).collect()
    }
}

/// The scripts configure a target in a valid order, and report when it is ready.
#[test]
fn spdk_script_starts_and_configures_spdk() {
    let bench = Bench::of(&SHARED[..1]).with("--rounds", "1");
    let spdk = Spdk::in_folder_of(&bench);
    let (_, rows, _folder) = bench
        .with("--peer-target", &spdk.script("spdk-target"))
        .rows();
    assert_eq!(contestants(&rows[0], 1), ["iwarp", "peer-target", "tcp"]);
    let wanted = [
        "framework_wait_init",
        "nvmf_create_transport",
        "nvmf_create_subsystem",
        "bdev_null_create",
        "nvmf_subsystem_add_ns",
        "nvmf_subsystem_add_listener",
    ];
    assert_eq!(spdk.asked(1), wanted);
}

/// The table of SPDK's initiator.
const PERF: &str = "\
Device Information                                   :       IOPS      MiB/s    Average        min
TCP (addr:127.0.0.1 subnqn:a) NSID 1 from core  1:  123456.00     402.42     155.36      16.93
Total                                            :  123456.00     402.42     155.36      16.93

Summary latency data for TCP (addr:127.0.0.1 subnqn:a) NSID 1      from core 1:
 50.00000% :    20.905us
 99.00000% :  8027.598us
 99.90000% : 12016.153us
";

#[test]
fn spdk_pair_is_the_yardstick_of_its_workloads() {
    let works = [
        "pair-null-randread-4k-qd16",
        "pair-queues-null-randwrite-4k-qd16",
        "pair-busy-null-randread-4k-qd128",
    ];
    let bench = Bench::of(&works).with("--rounds", "2");
    let spdk = Spdk::in_folder_of(&bench);
    let perf = format!(
        "echo \"$*\" | sed 's/^-c 0x[^ ]* //' >> {}\ncat <<END\n{PERF}END\n",
        quoted(&spdk.asked)
    );
    spdk.program("build/bin/spdk_nvme_perf", &perf);
    // It begins lines with a carriage return.
    let perf = PERF.replace("Total", "\r Total");
    spdk.program(
        "build/examples/bdevperf",
        &format!("cat <<END\n{perf}END\n"),
    );
    let script = format!("export SPDK_ARGS='-s 512'; {}", spdk.script("spdk-tcp"));
    let (_, rows, _folder) = bench.with("--peer-pair", &script).rows();
    assert_eq!(contestants(&rows[0], 2), ["iwarp", "peer-pair"]);
    assert_eq!(contestants(&rows[1], 2), ["peer-pair", "queues"]);
    // At a limited rate, busy times are compared: 10 ms for as many operations.
    assert_eq!(contestants(&rows[2], 2), ["iwarp", "peer-pair"]);
    let busy = |name: &str| rows[2]["contestants"][name]["median"]["busy_us"].as_f64();
    assert_eq!(busy("peer-pair"), Some(0.081));
    assert!(busy("iwarp") > Some(0.0), "{:?}", rows[2]);
    for row in &rows {
        assert_eq!(row["yardstick"], "peer-pair");
        let pair = &row["contestants"]["peer-pair"]["median"];
        let figures = ["iops", "bytes_per_s", "p50_us", "p99_us", "p99_9_us"].map(|it| &pair[it]);
        assert_eq!(
            figures,
            [123_456.0, 505_675_776.0, 20.905, 8027.598, 12016.153]
                .map(Value::from)
                .each_ref()
        );
    }
    let asked = spdk.asked(usize::MAX);
    let perf: Vec<_> = asked
        .iter()
        .filter(|line| line.starts_with("-s 512"))
        .collect();
    let ends = [
        "-w randread -o 4096 -q 16 -P 1 -t 1 -L",
        "-w randwrite -o 4096 -q 128 -P 8 -t 1 -L",
    ];
    // Both workloads in each round.
    assert_eq!(perf.len(), 4, "{asked:?}");
    for (line, end) in perf.iter().zip(ends.iter().cycle()) {
        assert!(line.ends_with(end) && line.contains(" ns:1 "), "{line}");
    }
}

/// Another process writes it: a file that a child of this process has open for writing cannot
/// be executed.
fn executable(path: &Path, script: &str) {
    let write = format!("cat > {0} && chmod +x {0}", quoted(path));
    let mut shell = Command::new("sh");
    shell.args(["-c", &write]);
    let script = format!("#!/bin/sh\n{script}");
    Run::new(shell).stdin(script.as_bytes()).ok();
}

#[test]
fn error_of_failed_peer_is_quoted() {
    let bench = Bench::of(&SHARED[..1]);
    let peer = "echo it has no network >&2; exit 3";
    let words = ["peer", "null-randread-4k-qd1", "it has no network"];
    bench.with("--peer", peer).run.fails(1, &words);
    let bench = Bench::of(&SHARED[..1]);
    let peer = "echo it has no memory >&2; exit 3";
    bench
        .with("--peer-target", peer)
        .run
        .fails(2, &["it has no memory"]);
}

/// A complete run requires perf(1) for the breakdown of CPU time: without it nothing is
/// measured, and documents do not change.
#[test]
fn complete_run_without_perf_is_refused() {
    let folder = TempDir::new().unwrap();
    let mut command = Command::new(nvmeof_e2e::runner());
    // No program exists.
    command.env("PATH", folder.path());
    let run = Run::new(command).arg("--folder").arg(folder.path());
    run.fails(2, &["`linux-perf`", "--no-refresh"]);
}
