//! Status of a target: over its control socket, over TCP, in a terminal and in its log.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests"
)]

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;

use nvmeof_e2e::{
    HOST, NQN, Run, Setup, TIMEOUT, Target, ctl, eventually, exchange, over_socket, sample,
    target_command,
};
use serde_json::Value;

const MIB: usize = 1 << 20;

/// A target with a control socket, and metrics over TCP.
fn watched() -> Setup {
    let setup = Setup::new();
    let socket = setup.path("control.sock");
    let head = format!(
        "[control]\nsocket = '{}'\nstate = \"\"\n[metrics]\nlisten = \"127.0.0.1:0\"\n",
        socket.display()
    );
    setup.head(&head).file(16 * MIB)
}

fn over_tcp(target: &mut Target, path: &str) -> (String, String) {
    let line = target.wait_for_log("metrics listening on http://");
    let (_, rest) = line.split_once("http://").unwrap();
    let stream = TcpStream::connect(rest.split('/').next().unwrap()).unwrap();
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    exchange(stream, path)
}

#[test]
fn metrics_of_a_host_are_served_over_socket_and_tcp() {
    let setup = watched();
    let mut target = setup.start();
    target.write(1, 0, &[7; 64 << 10]);
    assert_eq!(target.read(1, 0, Some(8)), [7; 4096]);
    let compare = target.on(1, "compare").args("--start-block 0 --data -");
    let differs = compare.stdin(&[9; 512]).end();
    assert_ne!(differs.status, Some(0), "{differs}");
    let (head, text) = over_socket(&setup, "/metrics");
    assert!(head.starts_with("http/1.1 200"), "{head}");
    assert!(
        head.contains("content-type: application/openmetrics-text; version=1.0.0"),
        "{head}"
    );
    assert!(text.ends_with("# EOF\n"));
    let subsystem = format!("subsystem=\"{NQN}\"");
    let host = format!("host=\"{HOST}\"");
    let prefixed = |name: &str| format!("nvmeof_target_{name}");
    for (name, labels, expected) in [
        (
            "namespace_written_bytes_total",
            vec![&*subsystem, "nsid=\"1\""],
            65536.0,
        ),
        (
            "namespace_read_bytes_total",
            vec![&*subsystem, "nsid=\"1\""],
            4096.0,
        ),
        (
            "host_written_bytes_total",
            vec![&*subsystem, &*host],
            65536.0,
        ),
        ("host_connected", vec![&*subsystem, &*host], 0.0),
        (
            "namespace_errors_total",
            vec!["Compare Failure", "nsid=\"1\""],
            1.0,
        ),
        ("namespace_size_bytes", vec![&*subsystem], 16777216.0),
        ("reactor_up", vec!["reactor=\"0\""], 1.0),
        ("controllers", vec![], 0.0),
    ] {
        let value = sample(&text, &prefixed(name), &labels);
        assert!((value - expected).abs() < 0.5, "{name}: {value}");
    }
    let times = sample(
        &text,
        "nvmeof_target_namespace_command_duration_seconds_count",
        &["class=\"write\""],
    );
    assert!(times >= 1.0, "{times}");
    // The same over TCP, and no other path.
    let (head, by_tcp) = over_tcp(&mut target, "/metrics");
    assert!(head.starts_with("http/1.1 200"), "{head}");
    let written = "nvmeof_target_namespace_written_bytes_total";
    assert!((sample(&by_tcp, written, &[]) - 65536.0).abs() < 0.5);
    let (head, body) = over_tcp(&mut target, "/v1/status");
    assert!(head.starts_with("http/1.1 404"), "{head}");
    // Each path that the error lists exists.
    let error: Value = serde_json::from_str(&body).unwrap();
    let message = error["error"]["message"].as_str().unwrap();
    let (_, remedy) = message.split_once("; ").unwrap();
    let paths = remedy
        .split([' ', ','])
        .filter(|word| word.starts_with('/'));
    let paths: Vec<_> = paths.collect();
    assert!(paths.contains(&"/metrics"), "{message}");
    for path in paths {
        let (head, _) = over_tcp(&mut target, path);
        assert!(head.starts_with("http/1.1 200"), "{path}: {head}");
    }
    target.assert_healthy();
    target.stop();
}

#[test]
fn plain_text_request_gets_the_older_format() {
    let setup = watched();
    let target = setup.start();
    let ask = |accept: &str| {
        let mut stream = UnixStream::connect(setup.path("control.sock")).unwrap();
        let head = format!("GET /metrics HTTP/1.1\r\nhost: a\r\naccept: {accept}\r\n\r\n");
        stream.write_all(head.as_bytes()).unwrap();
        let mut response = String::new();
        stream.read_to_string(&mut response).unwrap();
        response
    };
    let plain = ask("text/plain;version=0.0.4");
    assert!(
        plain.contains("content-type: text/plain; version=0.0.4"),
        "{plain}"
    );
    let type_of = "# TYPE nvmeof_target_reactor_turns_total counter\n";
    assert!(
        plain.contains(type_of) && !plain.contains("# EOF"),
        "{plain}"
    );
    let both = ask("application/openmetrics-text;version=1.0.0,text/plain;q=0.5");
    assert!(
        both.contains("# TYPE nvmeof_target_reactor_turns counter\n"),
        "{both}"
    );
    assert!(both.ends_with("# EOF\n"));
    target.stop();
}

#[test]
fn lost_store_and_its_recovery_are_reported() {
    let setup = watched();
    let target = setup.start();
    let state = |state: &str, expected: f64| {
        let labels = ["nsid=\"1\"", &format!("state=\"{state}\"")];
        let name = "nvmeof_target_namespace_state";
        let value = || sample(&over_socket(&setup, "/metrics").1, name, &labels);
        let there = eventually(|| ((value() - expected).abs() < 0.5).then_some(()));
        assert!(there.is_some(), "{state} is not {expected}");
    };
    state("ready", 1.0);
    let image = std::fs::OpenOptions::new()
        .write(true)
        .open(setup.image_path(1))
        .unwrap();
    image.set_len(0).unwrap();
    state("faulted", 1.0);
    state("ready", 0.0);
    let (_, text) = over_socket(&setup, "/metrics");
    let faults = |cause| sample(&text, "nvmeof_target_namespace_faults_total", &[cause]);
    assert!((faults("cause=\"size\"") - 1.0).abs() < 0.5 && faults("removed") < 0.5);
    image.set_len(16 << 20).unwrap();
    let mut ctl = target_command();
    ctl.args(["ctl", "--socket"])
        .arg(setup.path("control.sock"));
    Run::new(ctl).args("namespace enable 1").ok();
    state("ready", 1.0);
    let group = ["group=\"1\"", "state=\"optimized\""];
    let ana = sample(&text, "nvmeof_target_ana_state", &group);
    assert!((ana - 1.0).abs() < 0.5);
    target.stop();
}

#[test]
fn descriptor_shortage_faults_no_namespace() {
    let setup = watched();
    let mut target = setup.start();
    let pid = target.pid();
    let soft = |limit: &str| {
        let mut prlimit = std::process::Command::new("prlimit");
        prlimit
            .arg(format!("--pid={pid}"))
            .arg(format!("--nofile={limit}"));
        assert!(prlimit.status().unwrap().success());
    };
    let (_, text) = over_socket(&setup, "/metrics");
    let limit = sample(&text, "nvmeof_target_file_descriptors", &["limit"]);
    let open = sample(&text, "nvmeof_target_file_descriptors", &["open"]);
    assert!(open >= 10.0 && open < limit, "{open} of {limit}");
    // No free descriptor is below the limit.
    soft("5:");
    let image = std::fs::OpenOptions::new()
        .write(true)
        .open(setup.image_path(1))
        .unwrap();
    image.set_len(32 << 20).unwrap();
    let warned = target.wait_for_log("cannot reopen a resized backing store");
    assert!(warned.contains("EMFILE"), "{warned}");
    soft(&format!("{limit}:"));
    let size = || {
        let (_, text) = over_socket(&setup, "/metrics");
        sample(&text, "nvmeof_target_namespace_size_bytes", &[])
    };
    assert!(eventually(|| (size() > 33e6).then_some(())).is_some());
    assert!(target.lines(&["faulted"]).is_empty(), "{}", target.log());
    target.assert_healthy();
    target.stop();
}

#[test]
fn api_description_is_printed_and_has_manual_page() {
    let mut command = target_command();
    command.arg("openapi");
    let printed = Run::new(command).ok();
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/openapi.json");
    let printed = String::from_utf8(printed.stdout).unwrap();
    assert_eq!(printed, std::fs::read_to_string(file).unwrap());
    let words = |words: &[&str]| {
        let mut command = target_command();
        command.args(words);
        Run::new(command).ok().text()
    };
    assert!(words(&["completions", "bash"]).contains("openapi"));
    let folder = Setup::new().path("man");
    let _ = words(&["man", folder.to_str().unwrap()]);
    let page = std::fs::read_to_string(folder.join("man8/nvmeof-target-openapi.8")).unwrap();
    assert!(page.contains("OpenAPI"), "{page}");
}

#[test]
fn healthy_target_reports_health() {
    let setup = watched();
    let mut target = setup.start();
    for (head, body) in [
        over_socket(&setup, "/healthz"),
        over_tcp(&mut target, "/healthz"),
    ] {
        assert!(head.starts_with("http/1.1 200"), "{head}");
        let health: Value = serde_json::from_str(&body).unwrap();
        assert_eq!(health["healthy"], true);
        assert_eq!(
            (&health["reactors"], &health["stalled"]),
            (&1.into(), &Value::Array(vec![]))
        );
    }
    target.stop();
}

#[test]
fn busy_host_is_listed_until_it_leaves() {
    let setup = watched();
    let mut target = setup.start();
    let bench = target.on(1, "bench");
    let mut bench = bench
        .args("--rw randread --bs 4k --iodepth 16 --runtime 3600")
        .start();
    let snapshot =
        || -> Value { serde_json::from_str(&over_socket(&setup, "/snapshot").1).unwrap() };
    let reads =
        |snapshot: &Value| snapshot["namespaces"][0]["counts"]["operations"]["read"].as_u64();
    let first = eventually(|| reads(&snapshot()).filter(|n| *n > 0)).unwrap();
    let seen = eventually(|| {
        let snapshot = snapshot();
        (reads(&snapshot) > Some(first + 100)).then_some(snapshot)
    });
    let seen = seen.unwrap();
    assert_eq!(seen["hosts"][0]["host"], HOST);
    assert_eq!(seen["hosts"][0]["connected"], true);
    let queues = seen["queues"].as_array().unwrap();
    let io = queues.iter().find(|one| one["queue"] == 1).unwrap();
    assert_eq!((&io["host"], &io["subsystem"]), (&HOST.into(), &NQN.into()));
    assert!(
        io["peer"].as_str().unwrap().starts_with("127.0.0.1:"),
        "{io}"
    );
    assert!(seen["reactors"][0]["seconds"]["working"].as_f64().unwrap() > 0.0);
    // In a terminal.
    let shown = top(&setup, "--once --interval 0.5").ok().text();
    for words in ["nvmeof-target ", "REACTOR", "NAMESPACE", "HOST"] {
        assert!(shown.contains(words), "{words}: {shown}");
    }
    let row = shown.lines().find(|line| line.contains("e2e 1 ")).unwrap();
    assert!(row.chars().count() <= 80, "{row}");
    let json = top(&setup, "--once --interval 0.5").json();
    assert!(json["total"]["iops"].as_f64().unwrap() > 1.0, "{json}");
    bench.kill();
    let left = eventually(|| (snapshot()["hosts"][0]["connected"] == false).then_some(()));
    assert!(left.is_some());
    // Counters of a subsystem remain after its namespace is removed.
    let of_subsystem = |snapshot: &Value| {
        let one = &snapshot["subsystems"][0];
        assert_eq!(one["subsystem"], NQN);
        let reads = one["counts"]["operations"]["read"].as_u64().unwrap();
        (one["hosts"].as_u64().unwrap(), reads)
    };
    assert_eq!(of_subsystem(&seen).0, 1);
    let (hosts, before) = of_subsystem(&snapshot());
    assert!(hosts == 0 && before > first, "{before}");
    ctl(&setup, "namespace remove 1").ok();
    let after = snapshot();
    assert_eq!(of_subsystem(&after), (0, before));
    target.assert_healthy();
    target.stop();
}

/// `nvmeof-target top` with these arguments.
fn top(setup: &Setup, line: &str) -> Run {
    let mut command = target_command();
    command
        .arg("top")
        .arg("--socket")
        .arg(setup.path("control.sock"));
    Run::new(command).args(line)
}

#[test]
fn top_without_target_or_terminal_reports_remedy() {
    let setup = Setup::new();
    top(&setup, "--once").fails(1, &["control.sock", "does the target run?"]);
    top(&setup, "").fails(1, &["not a terminal; use --once"]);
    top(&setup, "--once --interval 0").fails(2, &["must be 0.1 to 3600"]);
}

#[test]
fn metrics_address_in_use_is_retried() {
    let setup = watched();
    let mut target = setup.start();
    let line = target.wait_for_log("metrics listening on http://");
    let address = line
        .split_once("http://")
        .unwrap()
        .1
        .split('/')
        .next()
        .unwrap()
        .to_owned();
    let second = watched();
    let text = second.text().replace("127.0.0.1:0", &address);
    let file = second.path("second.toml");
    std::fs::write(&file, text).unwrap();
    let mut command = target_command();
    command.arg("serve").arg("--config").arg(&file);
    let mut second = second.start_anyhow_as(&mut command);
    let line = second.wait_for_log("WARN waiting for listener metrics.listen");
    assert!(line.contains("is in use; choose another port"), "{line}");
    target.stop();
    second.wait_for_log("metrics listening on http://");
    second.stop();
}

#[test]
fn log_lines_have_host_address_subsystem_and_queue() {
    let setup = watched();
    let target = setup.start();
    let _ = target.read(1, 0, Some(8));
    let gone = eventually(|| {
        let lines = target.lines(&["disconnected: ", "queue=1"]);
        lines.first().cloned()
    });
    for lines in [vec![gone.unwrap()], target.lines(&["connected", "queue=1"])] {
        for line in lines {
            for word in [HOST, NQN, "peer=127.0.0.1:", "cntlid="] {
                assert!(line.contains(word), "{word}: {line}");
            }
        }
    }
    target.stop();
}
