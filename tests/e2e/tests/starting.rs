//! Missing files and addresses at the start are retried; permanent errors are refused.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests"
)]

use std::fs;
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use nix::sys::signal::Signal;
use nvmeof_e2e::{
    NQN, Run, Setup, Target, ask, binary, ctl, free_port, image, managed, over_socket, pattern,
    same_bytes, sample, target_command,
};

const MIB: usize = 1 << 20;
const SERVED: &str = "is available and served";

fn check(setup: &Setup) -> Run {
    let mut check = target_command();
    check.arg("check-config").arg(setup.config());
    Run::new(check)
}

/// Creates the complete file of namespace `nsid` atomically.
fn make(setup: &Setup, nsid: u32, len: usize) {
    let new = setup.path("new");
    image(&new, nsid, len);
    fs::rename(new, setup.image_path(nsid)).unwrap();
}

fn active(target: &Target) -> Vec<u64> {
    let json = target.nvmeof("list-ns").json();
    let list = json["nsid_list"].as_array().unwrap().iter();
    list.map(|one| one["nsid"].as_u64().unwrap()).collect()
}

fn metrics(setup: &Setup) -> String {
    over_socket(setup, "/metrics").1
}

#[test]
fn missing_file_is_inactive_until_created() {
    let setup = managed().file(MIB);
    let path = setup.image_path(2).display().to_string();
    let setup = setup.namespace(&path, "");
    let checked = check(&setup).ok();
    let output = String::from_utf8_lossy(&checked.stdout).into_owned();
    for words in ["valid", "would wait", "target.toml:", "no such file"] {
        assert!(output.contains(words), "{words}: {output}");
    }
    let mut target = setup.start();
    target.wait_for_log("WARN waiting for namespace 2");
    assert_eq!(active(&target), [1]);
    let status = ask(&setup, "status");
    assert_eq!(status["waiting"][0]["kind"], "namespace", "{status}");
    let text = String::from_utf8(ctl(&setup, "status").ok().stdout).unwrap();
    assert!(text.contains("WAITING for namespace 2"), "{text}");
    let labels = ["kind=\"namespace\""];
    assert_eq!(
        sample(&metrics(&setup), "nvmeof_target_waiting", &labels),
        1.0
    );
    make(&setup, 2, MIB);
    target.wait_for_log(SERVED);
    assert_eq!(active(&target), [1, 2]);
    same_bytes(&target.read(2, 0, None), &fs::read(&path).unwrap());
    assert_eq!(
        ask(&setup, "status")["waiting"].as_array().unwrap().len(),
        0
    );
    target.stop();
}

#[test]
fn waiting_namespace_keeps_its_size_and_is_inaccessible() {
    let setup = managed().file_with(2 * MIB, "block_size = 4096").file(MIB);
    setup.start().stop();
    let path = setup.image_path(1);
    fs::rename(&path, setup.path("elsewhere")).unwrap();
    let mut target = setup.start();
    assert_eq!(active(&target), [1, 2]);
    let id = target.on(1, "id-ns").json();
    assert_eq!(
        (&id["nsze"], &id["anagrpid"]),
        (&512.into(), &129.into()),
        "{id}"
    );
    let read = target.on(1, "read").args("--block-count 1 --data -");
    read.fails(1, &["Asymmetric Access Inaccessible"]);
    // The other one is served, and can be changed.
    let _ = target.read(2, 0, Some(1));
    ctl(&setup, "namespace add ram:1M --nsid 3").ok();
    assert_eq!(active(&target), [1, 2, 3]);
    fs::rename(setup.path("elsewhere"), &path).unwrap();
    target.wait_for_log(SERVED);
    same_bytes(&target.read(1, 0, None), &fs::read(&path).unwrap());
    assert_eq!(target.on(1, "id-ns").json()["anagrpid"], 1);
    target.stop();
}

#[test]
fn locked_file_is_served_after_unlock() {
    let setup = Setup::new().file(MIB);
    let mut first = setup.start();
    let path = setup.image_path(1).display().to_string();
    let other = Setup::new().namespace("ram:1M", "").namespace(&path, "");
    let mut second = other.start();
    let line = second.wait_for_log("WARN waiting for namespace 2");
    assert!(line.contains("locked"), "{line}");
    assert_eq!(active(&second), [1]);
    first.kill();
    second.wait_for_log(SERVED);
    assert_eq!(active(&second), [1, 2]);
    second.stop();
}

/// As after `kill -9` while the kernel still executes writes: hosts that reconnect would find a
/// namespace that is not ready, which is an I/O error for them.
#[test]
fn lock_of_an_ended_process_is_awaited_before_listening() {
    let port = free_port();
    let setup = Setup::new().port(port).file(MIB);
    // The lock belongs to flock(1), which ends; its grandchild has the file open for a while.
    let mut flock = Command::new("flock");
    flock.arg(setup.image_path(1));
    flock.args(["sh", "-c", "sleep 3 >/dev/null 2>&1 &"]);
    assert!(flock.status().unwrap().success());
    let mut target = setup.start_anyhow();
    let line = target.wait_for_log("has ended, but still locks it");
    let path = setup.image_path(1).display().to_string();
    assert!(line.contains(&path), "{line}");
    assert!(
        TcpStream::connect(("127.0.0.1", port)).is_err(),
        "it listens"
    );
    target.wait_for_log("ready: serving 1 namespace");
    assert!(TcpStream::connect(("127.0.0.1", port)).is_ok());
    assert!(!target.log().contains("waiting for namespace"));
    target.stop();
}

/// The target notifies the service manager that it is ready without any listener.
#[test]
fn target_without_listener_runs_and_retries() {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    let setup = Setup::new().file(MIB).port(port);
    let output = String::from_utf8(check(&setup).ok().stdout).unwrap();
    assert!(
        output.contains("would wait") && output.contains("in use"),
        "{output}"
    );
    let socket = setup.path("notify");
    let manager = UnixDatagram::bind(&socket).unwrap();
    manager
        .set_read_timeout(Some(Duration::from_secs(60)))
        .unwrap();
    let receive = |words: &str| {
        let mut bytes = [0; 4096];
        loop {
            let len = manager.recv(&mut bytes).unwrap();
            let text = String::from_utf8_lossy(&bytes[..len]).into_owned();
            if text.contains(words) {
                return text;
            }
        }
    };
    let mut command = setup.command();
    command.env("NOTIFY_SOCKET", &socket);
    let mut target = setup.start_anyhow_as(&mut command);
    let ready = receive("READY=1");
    assert!(
        ready.contains("on no port; waiting for port 127.0.0.1:"),
        "{ready}"
    );
    drop(listener);
    target.wait_for_log(SERVED);
    let status = receive("STATUS=serving 1 namespace on 127.0.0.1:");
    assert!(!status.contains("waiting"), "{status}");
    let line = format!("discover -t rdma -a 127.0.0.1 -s {port}");
    let json = Run::nvmeof(&line).json();
    assert_eq!(json["records"][0]["subnqn"], NQN, "{json}");
    target.stop();
}

#[test]
fn conflicting_ports_are_configuration_error() {
    let free = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let port = free.local_addr().unwrap().port();
    drop(free);
    let all = format!("[[port]]\ntraddr = \"0.0.0.0\"\ntrsvcid = {port}\nprovider = \"iwarp\"\n");
    let setup = Setup::new().head(&all).port(port).file(MIB);
    let words = [
        "target.toml:",
        "traddr: ",
        "conflicts with port",
        "of this configuration",
    ];
    check(&setup).fails(2, &words);
    Run::new(setup.command()).fails(2, &words);
}

#[test]
fn permanent_error_is_refused_despite_transient_ones() {
    let setup = Setup::new().namespace("/nonexistent/disk", "");
    let setup = setup.namespace("/proc", "");
    let words = ["path: ", "is a directory"];
    check(&setup).fails(2, &words);
    Run::new(setup.command()).fails(2, &words);
}

/// The control socket and the metrics address are in use by another target.
#[test]
fn listeners_in_use_are_retried() {
    let setup = managed().namespace("ram:1M", "");
    let text = setup.text();
    let mut first = setup.start();
    // Another state file: its lock is awaited before anything is served.
    let text = text.replace("state.json", "other.json");
    let path = setup.path("second.toml");
    fs::write(&path, text).unwrap();
    let mut command = target_command();
    command.arg("serve").arg("--config").arg(&path);
    let other = Setup::new();
    let mut second = other.start_anyhow_as(&mut command);
    let line = second.wait_for_log("WARN waiting for listener control.socket");
    assert!(line.contains("another process listens there"), "{line}");
    first.kill();
    second.wait_for_log("control socket listening on");
    ctl(&setup, "status").ok();
    second.stop();
}

#[test]
fn locked_state_file_is_retried() {
    let setup = managed().namespace("ram:1M", "");
    let mut first = setup.start();
    let other = Setup::new();
    let mut second = other.start_anyhow_as(&mut setup.command());
    let line = second.wait_for_log("waiting: ");
    assert!(
        line.contains("another target uses the state file"),
        "{line}"
    );
    // It reads its file at each retry, and SIGHUP triggers one.
    second.signal(Signal::SIGHUP);
    // Not `check`, which writes the file that the target reads.
    let mut check = target_command();
    check.arg("check-config").arg(setup.path("target.toml"));
    let output = String::from_utf8(Run::new(check).ok().stdout).unwrap();
    for words in [
        "control.state: another target uses the state file",
        "control.socket: another process listens there",
    ] {
        assert!(output.contains(words), "{words}: {output}");
    }
    first.kill();
    second.wait_for_log("ready: serving 1 namespace");
    second.stop();
}

#[test]
fn check_config_reports_metrics_address_in_use() {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let taken = listener.local_addr().unwrap();
    for (address, words) in [
        (taken.to_string(), "is in use"),
        (
            "[fe80::1%nosuch0]:9400".to_owned(),
            "the interface of [fe80::1%nosuch0]:9400 does not exist",
        ),
    ] {
        let setup = Setup::new().head(&format!("[metrics]\nlisten = \"{address}\""));
        let output = String::from_utf8(check(&setup).ok().stdout).unwrap();
        let line = output.lines().find(|line| line.contains("metrics.listen"));
        let line = line.unwrap_or_else(|| panic!("{output}"));
        assert!(
            line.contains("would wait") && line.contains(words),
            "{output}"
        );
    }
}

/// On the command line as well, the interface name is kept until the interface exists.
#[test]
fn absent_interface_is_waited_for_by_its_name() {
    let setup = Setup::new();
    let mut command = target_command();
    let listen = "[fe80::1%nosuch0]:4420";
    command.args(["serve", "--namespace", "ram:1M", "--listen", listen]);
    let mut target = setup.start_anyhow_as(&mut command);
    let line = target.wait_for_log("WARN waiting for port");
    let words = format!("port {listen}: ");
    assert!(line.contains(&words), "{line}");
    assert!(line.contains("fe80::1%nosuch0 does not exist"), "{line}");
    target.stop();
}

#[test]
fn soft_descriptor_limit_is_raised_for_many_files() {
    let mut setup = Setup::new();
    for nsid in 1..=300 {
        image(&setup.path(&format!("{nsid}")), 1, 4096);
        let path = setup.path(&format!("{nsid}")).display().to_string();
        setup = setup.namespace(&path, "");
    }
    let config = setup.config();
    let limited = |verb: &str| {
        let mut command = Command::new("sh");
        let line = "ulimit -Sn 256; program=$1; shift; exec \"$program\" \"$@\"";
        command
            .args(["-c", line, "sh"])
            .arg(binary("nvmeof-target"));
        command.args(verb.split(' ')).arg(&config);
        command
    };
    let output = Run::new(limited("check-config")).ok();
    let output = String::from_utf8(output.stdout).unwrap();
    assert!(!output.contains("would wait"), "{output}");
    let target = setup.start_as(&mut limited("serve --config"));
    assert_eq!(active(&target).len(), 300);
    target.stop();
}

#[test]
fn sighup_without_configuration_file_is_ignored() {
    let setup = Setup::new();
    let mut command = target_command();
    command.args(["serve", "--namespace", "ram:1M", "--listen", "127.0.0.1:0"]);
    let mut target = setup.start_as(&mut command);
    target.signal(Signal::SIGHUP);
    target.wait_for_log("SIGHUP ignored");
    let _ = target.fabrics("discover").json();
    target.stop();
}

#[test]
fn invalid_log_level_is_refused_by_every_program() {
    let words = ["nonsense", "error, warn, info, debug, trace"];
    for line in ["check-config x", "ctl status", "serve --namespace ram:1M"] {
        let mut command = target_command();
        command
            .args(["--log-level", "nonsense"])
            .args(line.split(' '));
        Run::new(command).fails(2, &[&["--log-level"][..], &words].concat());
        let mut command = target_command();
        command.env("RUST_LOG", "nonsense").args(line.split(' '));
        Run::new(command).fails(2, &[&["RUST_LOG"][..], &words].concat());
    }
    let mut command = Command::new(binary("nvmeof"));
    command
        .env("NVMEOF_LOG", "nonsense")
        .args(["discover", "-a", "127.0.0.1"]);
    Run::new(command).fails(2, &[&["NVMEOF_LOG"][..], &words].concat());
}

/// <https://no-color.org>
#[test]
fn log_has_no_colors_without_terminal() {
    let program = binary("nvmeof-target");
    let line = format!(
        "timeout 2 {} serve --namespace ram:1M --listen 127.0.0.1:0",
        program.display()
    );
    let logged = |no_color: &str| {
        let mut command = Command::new("script");
        command.env_remove("RUST_LOG").env("NO_COLOR", no_color);
        command.args(["-q", "-c", &line, "/dev/null"]);
        String::from_utf8_lossy(&Run::new(command).end().stdout).into_owned()
    };
    for (no_color, colors) in [("", true), ("1", false)] {
        let log = logged(no_color);
        assert!(log.contains("ready: serving"), "{log}");
        assert_eq!(log.contains('\x1b'), colors, "{no_color:?}: {log:?}");
    }
}

#[test]
fn deleted_file_is_reported_once() {
    let setup = managed().file(MIB);
    let mut target = setup.start();
    let unlinked = || sample(&metrics(&setup), "nvmeof_target_namespace_unlinked", &[]);
    assert_eq!(unlinked(), 0.0);
    let path = setup.image_path(1);
    fs::rename(&path, setup.path("kept")).unwrap();
    target.wait_for_log("the file was deleted or renamed");
    assert_eq!(unlinked(), 1.0);
    let text = String::from_utf8(ctl(&setup, "status").ok().stdout).unwrap();
    assert!(text.contains("WARNING: "), "{text}");
    // It is still served, and checked repeatedly.
    let _ = target.read(1, 0, Some(1));
    std::thread::sleep(Duration::from_secs(5));
    let logged = target.lines(&["the file was deleted or renamed"]);
    assert_eq!(logged.len(), 1, "{logged:?}");
    fs::rename(setup.path("kept"), &path).unwrap();
    assert!(Path::new(&path).exists());
    nvmeof_e2e::eventually(|| (unlinked() == 0.0).then_some(())).unwrap();
    target.stop();
}

/// The command in the warning saves the data of the file.
#[test]
fn deleted_file_is_saved_as_its_warning_says() {
    let setup = managed().file(MIB);
    let path = setup.image_path(1);
    let mut target = setup.start();
    let data = pattern(7, 64 << 10);
    target.write(1, 0, &data);
    fs::remove_file(&path).unwrap();
    let warning = target.wait_for_log("the file was deleted or renamed");
    let commands: Vec<_> = warning.split('`').skip(1).step_by(2).collect();
    let [drain, copy] = commands.as_slice() else {
        panic!("{warning}");
    };
    let drain = drain.strip_prefix("nvmeof-target ctl ").unwrap();
    ctl(&setup, drain).ok();
    let saved = setup.path("saved");
    let copy: Vec<_> = copy.split(' ').collect();
    let [program, from, "COPY"] = copy.as_slice() else {
        panic!("{warning}");
    };
    let mut command = Command::new(program);
    command.arg(from).arg(&saved);
    Run::new(command).ok();
    fs::rename(&saved, &path).unwrap();
    target.stop();
    let target = setup.start();
    same_bytes(&target.read(1, 0, Some(128)), &data);
    target.stop();
}

/// Checking the configuration of a running target does not require stopping it.
#[test]
fn check_of_a_served_file_names_the_target_that_serves_it() {
    let setup = managed().file(MIB);
    assert!(!check(&setup).ok().stderr.contains("a target is running"));
    let target = setup.start();
    let output = check(&setup).ok().stderr;
    assert!(
        output.contains("a target is running with the control.socket"),
        "{output}"
    );
    // The recommended command shows that nothing would change.
    let command = output.split('`').nth(1).unwrap();
    let plan = command.strip_prefix("nvmeof-target ctl ").unwrap();
    let planned = ctl(&setup, plan).ok().text();
    assert!(planned.contains("nothing"), "{planned}");
    target.stop();
}

/// A host that is allowed at run time reconnects all the time. While the target restarts, is
/// killed, drained or reloaded, its failures are such that a host tries again: no connection,
/// but never a refusal of the host or of the subsystem.
#[test]
fn restarts_never_refuse_an_allowed_host() {
    const HOST: &str = "nqn.2026-11.org.example:allowed";
    let port = free_port();
    let setup = managed().access("allowed_hosts = []").port(port).file(MIB);
    let list = |host: &str| {
        let line = format!("list-ns -t rdma -a 127.0.0.1 -s {port} -q {host} -n {NQN}");
        let ended = Run::nvmeof(&line).end();
        let words: Vec<_> = ended.stderr.split_whitespace().collect();
        (ended.status, words.join(" "))
    };
    let mut target = setup.start();
    ctl(&setup, &format!("host allow {HOST}")).ok();
    assert_eq!(list(HOST), (Some(0), String::new()));
    let (_, refused) = list("nqn.2026-11.org.example:other");
    assert!(refused.contains("is not allowed"), "{refused}");
    let ends = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let host = scope.spawn(|| {
            let (mut connected, mut failed) = (0, 0);
            while !ends.load(Ordering::Relaxed) {
                let (status, error) = list(HOST);
                match status {
                    Some(0) => connected += 1,
                    _ => failed += 1,
                }
                for refusal in ["is not allowed", "there is no", "Invalid"] {
                    assert!(!error.contains(refusal), "{error}");
                }
            }
            (connected, failed)
        });
        for nsid in 10..13 {
            target.kill();
            target = setup.start();
            ctl(&setup, "drain").ok();
            ctl(&setup, "resume").ok();
            target.signal(Signal::SIGHUP);
            ctl(&setup, &format!("namespace add ram:1M --nsid {nsid}")).ok();
            target.signal(Signal::SIGTERM);
            target.wait();
            target = setup.start();
        }
        ends.store(true, Ordering::Relaxed);
        let (connected, failed) = host.join().unwrap();
        assert!(connected > 0 && failed > 0, "{connected} {failed}");
    });
    target.stop();
}
