//! Target and initiator on one host, through a Unix socket.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests"
)]

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

use nvmeof_e2e::{
    NQN, Run, Setup, Target, copy_of, eventually, fds, is_root, pattern, reactors_on_one_cpu,
    same_bytes, target_command, wait_for_io,
};
use tempfile::TempDir;

const MIB: usize = 1 << 20;
/// A user that no machine has.
const STRANGER: u32 = 54_321;

/// A folder with a short enough path for a socket, and a port there.
fn served() -> (Setup, TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("nvmeof.sock");
    (Setup::new().socket(&path), folder, path)
}

#[test]
fn every_command_works() {
    let (setup, _folder, path) = served();
    // Beside the default: reactors that share the socket.
    let setup = setup.head(&reactors_on_one_cpu(2)).file(16 * MIB);
    let mut target = setup.start();
    let socket = format!("unix:{}", path.display());
    let line = target.lines(&["port unix:", &socket, "for this host"]);
    assert_eq!(line.len(), 1, "{}", target.log());
    let mode = fs::metadata(&path).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o660);

    let json = target.fabrics("discover").json();
    let records = json["records"].as_array().unwrap();
    assert_eq!(records.len(), 1, "{json}");
    assert_eq!(records[0]["trtype"], "rdma", "{json}");
    assert_eq!(records[0]["adrfam"], "loop", "{json}");
    assert_eq!(records[0]["traddr"], socket, "{json}");
    assert_eq!(records[0]["trsvcid"], "none", "{json}");
    assert_eq!(records[0]["subnqn"], NQN, "{json}");
    assert_eq!(target.nvmeof("id-ctrl").json()["subnqn"], NQN);
    target.on(1, "id-ns").ok();
    target.nvmeof("smart-log").ok();

    let mut expected = pattern(1, 16 * MIB);
    same_bytes(&target.read(1, 0, None), &expected);
    let data = pattern(7, 3 * MIB + 512);
    target.write(1, 3, &data);
    expected[3 * 512..][..data.len()].copy_from_slice(&data);
    let over_iwarp = target
        .on(1, "read")
        .args("--data - -i 3 --provider iwarp --crc");
    same_bytes(&over_iwarp.ok().stdout, &expected);
    same_bytes(&fs::read(setup.image_path(1)).unwrap(), &expected);
    let compare = target.on(1, "compare").args("--start-block 3 --data -");
    compare.stdin(&data).ok();
    for line in ["randrw --bs 4k", "read --bs 128k", "randwrite --bs 64k"] {
        let bench = target
            .on(1, "bench")
            .args("--runtime 1 --nr-io-queues 4 --rw");
        bench.args(line).ok();
    }
    // Peers are identified by process and user.
    let uid = nix::unistd::geteuid();
    let known = target.lines(&["peer=process ", &format!("of user {uid}")]);
    assert!(!known.is_empty(), "{}", target.log());
    target.assert_healthy();
    target.stop();
    assert!(!path.exists(), "the socket goes with its target");
}

#[test]
fn other_providers_and_ports_are_refused_with_reason() {
    let (setup, _folder, path) = served();
    let target = setup.file(MIB).start();
    for provider in ["verbs", "shm"] {
        let run = target.fabrics("discover").args("--provider").arg(provider);
        run.fails(2, &[provider, "Unix", "iwarp"]);
    }
    let run = target.fabrics("discover").args("-s 4420");
    run.fails(2, &["no port", "(-s)"]);
    target.stop();

    // Without a listener, in several ways.
    let discover = |path: &str| Run::nvmeof("discover -a").arg(format!("unix:{path}"));
    let gone = path.display().to_string();
    discover(&gone).fails(1, &[&gone, "check that nvmeof-target is running"]);
    fs::write(&path, "").unwrap();
    discover(&gone).fails(1, &[&gone, "not a socket"]);
    discover("relative").fails(2, &["absolute"]);
    discover(&format!("/{}", "x".repeat(107))).fails(2, &["107 bytes", "108"]);
}

/// A missing folder and a socket in use are retried.
#[test]
fn unavailable_unix_socket_is_retried() {
    let (setup, folder, path) = served();
    let setup = setup.namespace("null:1M", "");
    let other = UnixListener::bind(&path).unwrap();
    let mut target = setup.start_anyhow();
    let line = target.wait_for_log("WARN waiting for port unix:");
    assert!(
        line.contains("in use") && line.contains("ss -lxp"),
        "{line}"
    );
    drop(other);
    target.wait_for_log("is available and served");
    // It has the lock until it is killed.
    let second = Setup::new().socket(&path).namespace("null:1M", "");
    let mut second = second.start_anyhow();
    second.wait_for_log("in use");
    target.kill();
    second.wait_for_log("is available and served");
    second.stop();
    let missing = Setup::new().socket(&folder.path().join("none/a.sock"));
    let mut missing = missing.namespace("null:1M", "").start_anyhow();
    missing.wait_for_log("No such file");
    fs::create_dir(folder.path().join("none")).unwrap();
    missing.wait_for_log("is available and served");
    missing.stop();
}

#[test]
fn invalid_unix_port_names_file_line_and_key() {
    let (setup, _folder, path) = served();
    let setup = setup.namespace("null:1M", "");
    fs::write(&path, "precious").unwrap();
    let words = ["target.toml:2: traddr: ", "not a socket"];
    Run::new(setup.command()).fails(2, &words);
    assert_eq!(fs::read(&path).unwrap(), b"precious");
    fs::remove_file(&path).unwrap();
    let twice = format!(
        "[[port]]\ntraddr = 'unix:{}/./nvmeof.sock'\n",
        path.parent().unwrap().display()
    );
    let twice = Setup::new()
        .socket(&path)
        .head(&twice)
        .namespace("null:1M", "");
    let words = ["target.toml:", "traddr: ", "of this configuration"];
    Run::new(twice.command()).fails(2, &words);
    let provider = Setup::new().socket(&path).provider("[\"iwarp\", \"shm\"]");
    let words = ["target.toml:3: provider: ", "shm", "Unix"];
    Run::new(provider.namespace("null:1M", "").command()).fails(2, &words);
}

#[test]
fn killed_target_fails_hosts_and_restarts_immediately() {
    let (setup, _folder, path) = served();
    let setup = setup.file(4 * MIB);
    let mut target = setup.start();
    let bench = target.on(1, "bench").args("--runtime 60 --rw randwrite");
    let mut bench = bench.start();
    wait_for_io(|| target.nvmeof("smart-log"), &mut bench);
    target.kill();
    let ended = bench.end();
    assert_eq!(ended.status, Some(1), "{ended}");
    assert!(ended.stderr.contains("lost: closed"), "{ended}");
    assert!(!ended.stderr.contains("panicked"), "{ended}");
    assert!(path.exists(), "a killed target cannot tidy up");
    let nobody = target.fabrics("discover");
    nobody.fails(
        1,
        &["nothing listens", "check that nvmeof-target is running"],
    );
    let again = setup.start();
    let data = pattern(9, 2 * MIB);
    again.write(1, 0, &data);
    same_bytes(&again.read(1, 0, Some(4096)), &data);
    again.stop();
}

#[test]
fn killed_hosts_leak_nothing() {
    let (setup, _folder, _path) = served();
    let mut target = setup.file(16 * MIB).start();
    let _ = target.read(1, 0, Some(1));
    let idle = target.idle_fds(2);
    for line in [
        "--rw write --bs 128k --nr-io-queues 2",
        "--rw randread --bs 4k",
    ] {
        let bench = target.on(1, "bench").args(line).args("--runtime 60");
        let mut bench = bench.args("--iodepth 32").start();
        wait_for_io(|| target.nvmeof("smart-log"), &mut bench);
        assert!(fds(target.pid()) > idle);
        bench.kill();
        let back = eventually(|| (fds(target.pid()) <= idle).then_some(()));
        assert!(back.is_some(), "{}", target.log());
    }
    target.assert_healthy();
    target.stop();
}

#[test]
fn address_option_selects_unix_socket() {
    let (setup, _folder, path) = served();
    let mut command = target_command();
    command.args(["serve", "--namespace", "ram:1M", "--listen"]);
    command.arg(format!("unix:{}", path.display()));
    let target = setup.start_as(&mut command);
    let printed = target.printed();
    let at = format!("-a unix:{}\n", path.display());
    assert!(
        printed.contains(&format!("nvmeof discover -t rdma {at}")),
        "{printed}"
    );
    assert!(!printed.contains("nvme connect"), "{printed}");
    let lines = printed
        .lines()
        .map(|line| line.trim_start_matches("nvmeof "));
    for line in lines {
        Run::nvmeof(line).ok();
    }
    target.stop();
}

/// Hosts that connect by IP get IP addresses only; hosts that connect through the socket get
/// all addresses.
#[test]
fn discovery_lists_reachable_addresses_only() {
    let (setup, _folder, path) = served();
    let head = "[[port]]\ntraddr = \"0.0.0.0\"\ntrsvcid = 0\nprovider = \"iwarp\"";
    let target = setup.head(head).file(MIB).start();
    // The first port is that of the head.
    let traddrs = |run: Run| {
        let json = run.json();
        let records = json["records"].as_array().unwrap();
        let all = records.iter().map(|one| one["traddr"].as_str().unwrap());
        all.map(str::to_owned).collect::<Vec<_>>()
    };
    let port = target.address().port();
    let by_ip = Run::nvmeof(&format!("discover -a 127.0.0.1 -s {port} --provider iwarp"));
    assert_eq!(traddrs(by_ip), ["127.0.0.1"]);
    let socket = format!("unix:{}", path.display());
    let by_path = Run::nvmeof("discover -a").arg(&socket);
    assert_eq!(traddrs(by_path), ["127.0.0.1".to_owned(), socket]);
    target.stop();
}

#[test]
fn users_without_socket_permission_are_refused() {
    if !is_root() {
        eprintln!("skipped: only root can be other users");
        return;
    }
    let (setup, folder, _path) = served();
    fs::set_permissions(folder.path(), Permissions::from_mode(0o755)).unwrap();
    let program = copy_of("nvmeof", folder.path());
    let setup = setup.file(MIB);
    let stranger = |target: &Target| {
        let at = target.printed();
        assert!(at.is_empty(), "{at}");
        let mut command = Command::new(&program);
        command.args(["discover", "-q", nvmeof_e2e::HOST, "-a"]);
        let path = folder.path().join("nvmeof.sock");
        command.arg(format!("unix:{}", path.display()));
        command.uid(STRANGER).gid(STRANGER);
        Run::new(command)
    };
    let target = setup.start();
    stranger(&target).fails(1, &["ermission", "unix.mode"]);
    target.stop();
    let setup = setup.head("[unix]\nmode = 0o666\n");
    let target = setup.start();
    stranger(&target).ok();
    let known = eventually(|| (!target.lines(&["of user 54321"]).is_empty()).then_some(()));
    assert!(known.is_some(), "{}", target.log());
    target.stop();
}
