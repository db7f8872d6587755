//! Target and initiator on one host, through shared memory.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests"
)]

use std::fs::{self, Permissions};
use std::net::{IpAddr, Ipv4Addr};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use nix::sys::signal::Signal;
use nvmeof_e2e::{
    HOST, NQN, Run, Setup, Target, binary, copy_of, ctl, eventually, fds, is_root, managed,
    over_socket, pattern, reactors_on_one_cpu, same_bytes, sample, wait_for_io,
};
use tempfile::TempDir;

const MIB: usize = 1 << 20;
/// User ids that no machine has.
const STRANGER: u32 = 54_321;
const FRIEND: u32 = 54_322;

/// Runs `nvmeof` over shared memory.
fn over_shm(run: Run, setup: &Setup) -> Run {
    let run = run.args("--provider shm --shm-folder");
    run.arg(setup.shm_folder())
}

/// The provider is new to the target; hosts of other ports are not disturbed.
#[test]
fn shared_memory_port_is_added_at_run_time() {
    let head = reactors_on_one_cpu(2);
    let setup = managed().head(&head).provider("\"iwarp\"").file(16 * MIB);
    let mut target = setup.start();
    let other = target
        .on(1, "bench")
        .args("--rw randread --bs 4k --iodepth 4");
    let mut other = other.args("--runtime 3600").start();
    ctl(&setup, "port add 127.0.0.2:14420 --provider shm --id 2").ok();
    let here = |command: &str| {
        let line = format!("{command} -t rdma -a 127.0.0.2 -s 14420 -q {HOST} -n {NQN}");
        over_shm(Run::nvmeof(&line), &setup)
    };
    let data = pattern(3, MIB);
    let write = here("write --namespace-id 1 --start-block 0 --data -");
    write.stdin(&data).ok();
    same_bytes(&target.read(1, 0, Some(2048)), &data);
    let back = here("read --namespace-id 1 --start-block 0 --block-count 2048 --data -");
    same_bytes(&back.ok().stdout, &data);
    // Its metrics are the same as those of an initial port.
    let bench = here("bench --namespace-id 1 --rw randread --bs 4k --iodepth 4");
    let bench = bench.args("--runtime 3600").start();
    let counted = || {
        let (_, text) = over_socket(&setup, "/metrics");
        let mut providers = ["iwarp", "shm"].iter();
        providers.all(|name| text.contains(&format!("provider=\"{name}\"")))
            && sample(&text, "nvmeof_target_lent_memory_bytes", &[]) > 0.0
    };
    assert!(eventually(|| counted().then_some(())).is_some());
    ctl(&setup, "port remove 2").ok();
    assert_eq!(bench.end().status, Some(1));
    target.assert_healthy();
    other.kill();
    target.stop();
}

fn read(target: &Target, setup: &Setup, range: &str) -> Vec<u8> {
    let run = target.on(1, "read").args(range).args("--data -");
    over_shm(run, setup).ok().stdout
}

fn write(target: &Target, setup: &Setup, range: &str, data: &[u8]) {
    let run = target.on(1, "write").args(range).args("--data -");
    over_shm(run.stdin(data), setup).ok();
}

fn socket(target: &Target, setup: &Setup) -> PathBuf {
    let address = target.address();
    let name = format!("{}-{}.sock", address.ip(), address.port());
    setup.shm_folder().join(name)
}

#[test]
fn every_command_works() {
    let setup = Setup::new().provider("\"shm\"").file(16 * MIB);
    let mut target = setup.start();
    let words = ["port 127.0.0.1:", "shm (this host"];
    assert_eq!(target.lines(&words).len(), 1, "{}", target.log());
    // There is no listener except the socket file.
    let refused = target.fabrics("discover").args("--provider iwarp");
    refused.fails(1, &["refused"]);

    let json = over_shm(target.fabrics("discover"), &setup).json();
    let records = json["records"].as_array().unwrap();
    assert_eq!(records.len(), 1, "{json}");
    assert_eq!(records[0]["trtype"], "rdma", "{json}");
    assert_eq!(records[0]["traddr"], "127.0.0.1", "{json}");
    assert_eq!(records[0]["rdma_prtype"], "not specified", "{json}");
    assert_eq!(records[0]["subnqn"], NQN, "{json}");
    let json = over_shm(target.nvmeof("id-ctrl"), &setup).json();
    assert_eq!(json["subnqn"], NQN, "{json}");
    over_shm(target.on(1, "id-ns"), &setup).ok();
    over_shm(target.nvmeof("list-ns"), &setup).ok();
    over_shm(target.nvmeof("smart-log"), &setup).ok();

    let mut expected = pattern(1, 16 * MIB);
    same_bytes(&read(&target, &setup, ""), &expected);
    let data = pattern(7, 3 * MIB + 512);
    write(&target, &setup, "--start-block 3 -i 2", &data);
    expected[3 * 512..][..data.len()].copy_from_slice(&data);
    same_bytes(&read(&target, &setup, "-i 3"), &expected);
    same_bytes(&fs::read(setup.image_path(1)).unwrap(), &expected);
    let compare = |bytes: &[u8]| {
        let run = target.on(1, "compare").args("--start-block 3 --data -");
        over_shm(run.stdin(bytes), &setup)
    };
    compare(&data).ok();
    compare(&expected[..4096]).fails(1, &[]);
    over_shm(target.on(1, "flush"), &setup).ok();
    let zeroes = target.on(1, "write-zeroes");
    over_shm(zeroes.args("--start-block 0 --block-count 8"), &setup).ok();
    let trim = target.on(1, "dsm");
    over_shm(trim.args("--slbs 8 --blocks 8 --ad"), &setup).ok();
    same_bytes(&read(&target, &setup, "--block-count 8"), &[0; 4096]);
    for line in ["randrw --bs 4k", "read --bs 128k", "randwrite --bs 64k"] {
        let bench = target
            .on(1, "bench")
            .args("--runtime 1 --nr-io-queues 2 --rw");
        over_shm(bench.args(line), &setup).ok();
    }
    target.assert_healthy();
    let path = socket(&target, &setup);
    assert!(path.exists());
    target.stop();
    assert!(!path.exists(), "the socket goes with its target");
}

#[test]
fn auto_uses_shared_memory_on_port_shared_with_iwarp() {
    let setup = Setup::new().provider("\"auto\"").file(MIB);
    let setup = setup.head(&reactors_on_one_cpu(2));
    let target = setup.start();
    let read = |line: &str| {
        let run = target.on(1, "read").args("--data -").args(line);
        run.arg("--shm-folder").arg(setup.shm_folder()).ok().stdout
    };
    for line in ["--provider auto", "--provider iwarp", "--provider shm"] {
        same_bytes(&read(line), &pattern(1, MIB));
    }
    // The log shows the provider.
    let path = |provider: &str, folder: &Path| {
        let mut command = Command::new(binary("nvmeof"));
        command.env("NVMEOF_LOG", "info").args(["discover", "-a"]);
        let address = target.address();
        command.arg(address.ip().to_string());
        command.args(["-s", &address.port().to_string()]);
        command.args(["--provider", provider, "--shm-folder"]);
        command.arg(folder);
        Run::new(command).ok().stderr
    };
    let log = path("auto", &setup.shm_folder());
    assert!(log.contains("connecting over shared memory"), "{log}");
    // Without a listener it is another provider, without a warning.
    let log = path("auto", &setup.path("elsewhere"));
    assert!(log.contains("connecting over software iWARP"), "{log}");
    assert!(!log.contains("WARN"), "{log}");
    // The discovery log has only addresses that all hosts can use.
    let json = target.fabrics("discover").json();
    let records = json["records"].as_array().unwrap();
    assert_eq!(records.len(), 1, "{json}");
    assert_eq!(records[0]["rdma_prtype"], "iwarp", "{json}");
    // A failed attempt causes no warning of the target.
    assert_eq!(target.lines(&["WARN"]), [""; 0]);
    // I/O over one provider does not block the other.
    let bench = target.on(1, "bench").args("--runtime 60 --iodepth 8");
    let mut bench = over_shm(bench, &setup).start();
    for _ in 0..3 {
        same_bytes(&read("--provider iwarp"), &pattern(1, MIB));
    }
    assert!(bench.runs(), "{}", bench.end());
    bench.kill();
    target.stop();
}

/// Data that one mode writes are read in the other one, byte by byte, and each side logs its
/// mode.
#[test]
fn buffers_are_used_in_place_unless_the_host_copies() {
    let setup = Setup::new().provider("\"shm\"").file(4 * MIB);
    let target = setup.start();
    let run = |verb: &str, copies: bool, data: &[u8]| {
        let range = "--start-block 256 --block-count 3000 --data -";
        let run = target.on(1, verb).args(range).stdin(data);
        let run = over_shm(run, &setup);
        let run = if copies { run.args("--shm-copy") } else { run };
        run.ok().stdout
    };
    for copies in [false, true] {
        let in_place = format!("in_place={}", !copies);
        let data = pattern(7 + u32::from(copies), 3000 * 512);
        run("write", copies, &data);
        for read_copies in [copies, !copies] {
            same_bytes(&run("read", read_copies, &[]), &data);
        }
        run("compare", copies, &data);
        let lines = target.lines(&[&in_place]);
        // The host identifies itself only later.
        let named = |line: &String| line.contains("peer=") && line.contains("queue=");
        assert!(!lines.is_empty() && lines.iter().all(named), "{lines:?}");
    }
    target.stop();
}

#[test]
fn wildcard_port_lists_address_of_connection() {
    let any = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
    let setup = Setup::new().ip(any).provider("\"shm\"").file(MIB);
    let target = setup.start();
    let port = target.address().port();
    let discover = Run::nvmeof(&format!("discover -a 127.0.0.2 -s {port} -q {HOST}"));
    let json = over_shm(discover, &setup).json();
    assert_eq!(json["records"][0]["traddr"], "127.0.0.2", "{json}");
    // Another machine has no shared memory.
    let other = Run::nvmeof(&format!("discover -a 192.0.2.1 -s {port}"));
    over_shm(other, &setup).fails(1, &["192.0.2.1", "--shm-folder"]);
    target.stop();
}

#[test]
fn killed_target_fails_hosts_and_restarts_immediately() {
    let setup = Setup::new().provider("\"shm\"").file(4 * MIB);
    let mut target = setup.start();
    let port = target.address().port();
    let bench = target.on(1, "bench").args("--runtime 60 --rw randwrite");
    let mut bench = over_shm(bench, &setup).start();
    wait_for_io(|| over_shm(target.nvmeof("smart-log"), &setup), &mut bench);
    let path = socket(&target, &setup);
    target.kill();
    let ended = bench.end();
    assert_eq!(ended.status, Some(1), "{ended}");
    assert!(
        ended.stderr.contains("the peer's process is gone"),
        "{ended}"
    );
    assert!(!ended.stderr.contains("panicked"), "{ended}");
    assert!(path.exists(), "a killed target cannot tidy up");
    let nobody = over_shm(target.fabrics("discover"), &setup);
    nobody.fails(1, &["nothing listens", "provider \"shm\"", "--shm-folder"]);
    let setup = setup.port(port);
    let again = setup.start();
    assert_eq!(again.address().port(), port);
    let data = pattern(9, 2 * MIB);
    write(&again, &setup, "", &data);
    same_bytes(&read(&again, &setup, "--block-count 4096"), &data);
    // A second target waits as long as the first one runs.
    let second = Setup::new().provider("\"shm\"").port(port);
    let second = second.shm(&format!("folder = {:?}", setup.shm_folder()));
    let mut second = second.namespace("null:1M", "").start_anyhow();
    second.wait_for_log("in use");
    again.stop();
    second.wait_for_log("is available and served");
    second.stop();
}

#[test]
fn killed_hosts_leak_nothing() {
    let setup = Setup::new().provider("[\"shm\"]").file(16 * MIB);
    let mut target = setup.start();
    let _ = read(&target, &setup, "--block-count 1");
    let idle = target.idle_fds(2);
    for line in [
        "--rw write --bs 128k --nr-io-queues 2",
        "--rw randread --bs 4k",
    ] {
        let bench = target.on(1, "bench").args(line).args("--runtime 60");
        let mut bench = over_shm(bench.args("--iodepth 32"), &setup).start();
        wait_for_io(|| over_shm(target.nvmeof("smart-log"), &setup), &mut bench);
        assert!(fds(target.pid()) > idle);
        bench.kill();
        let back = eventually(|| (fds(target.pid()) <= idle).then_some(()));
        assert!(back.is_some(), "{}", target.log());
    }
    target.assert_healthy();
    let _ = read(&target, &setup, "");
    target.stop();
}

/// KiB that the kernel has locked for io_uring in a process.
fn locked(target: &Target) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", target.pid())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmPin:"));
    let words = line.unwrap_or_default().split_whitespace().next();
    words.unwrap_or("0").parse().unwrap()
}

/// The value as soon as it does not change any more.
fn settled(look: impl Fn() -> u64) -> u64 {
    let mut last = look();
    let same = || {
        std::thread::sleep(Duration::from_millis(200));
        let now = look();
        (std::mem::replace(&mut last, now) == now).then_some(now)
    };
    eventually(same).unwrap()
}

/// The backing store accesses the memory of the host, which the target locks only as long as
/// the host is connected.
#[test]
fn memory_of_killed_host_is_unmapped() {
    let setup = Setup::new().provider("\"shm\"").file(16 * MIB);
    let mut target = setup.start();
    let idle = fds(target.pid());
    let _ = read(&target, &setup, "--block-count 1");
    let gone = eventually(|| (fds(target.pid()) <= idle).then_some(()));
    assert!(gone.is_some(), "{}", target.log());
    let own = settled(|| locked(&target));
    let is_unregistered = !target.lines(&["not registered with io_uring"]).is_empty();
    for line in ["--rw randwrite --bs 128k", "--rw randread --bs 4k"] {
        let bench = target.on(1, "bench").args(line).args("--runtime 60");
        let mut bench = over_shm(bench.args("--iodepth 32"), &setup).start();
        if !is_unregistered {
            let more = eventually(|| (locked(&target) > own).then_some(()));
            assert!(more.is_some(), "{own} KiB as before: {}", target.log());
        }
        bench.kill();
        let back = eventually(|| (locked(&target) <= own).then_some(()));
        assert!(back.is_some(), "{} of {own} KiB", locked(&target));
    }
    target.assert_healthy();
    target.stop();
}

#[test]
fn missing_requirements_of_shared_memory_are_reported_at_start() {
    let setup = Setup::new().provider("\"shm\"").file(MIB);
    fs::write(setup.shm_folder(), "not a folder").unwrap();
    let words = ["target.toml:4: provider: shm: ", "shm.folder"];
    Run::new(setup.command()).fails(2, &words);
    // With `auto`, shared memory is optional.
    let setup = setup.provider("\"auto\"");
    let target = setup.start();
    let warned = target.lines(&["WARN", "without shared memory", "shm.folder"]);
    assert_eq!(warned.len(), 1, "{}", target.log());
    assert_eq!(target.lines(&["ready: ", "(iwarp)"]).len(), 1);
    same_bytes(&target.read(1, 0, None), &pattern(1, MIB));
    target.stop();
}

/// A folder with access for all users, with `nvmeof` in it.
fn open_folder() -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    fs::set_permissions(folder.path(), Permissions::from_mode(0o755)).unwrap();
    let program = copy_of("nvmeof", folder.path());
    (folder, program)
}

/// Whether this test is to be left out.
fn cannot_be_others() -> bool {
    let cannot = !is_root();
    if cannot {
        eprintln!("skipped: only root can be other users");
    }
    cannot
}

#[test]
fn other_users_are_refused_unless_configured() {
    if cannot_be_others() {
        return;
    }
    let (folder, program) = open_folder();
    let shm = folder.path().join("shm");
    let setup = |users: &str| {
        let lines = format!("folder = {shm:?}\nusers = [{users}]");
        Setup::new().provider("\"auto\"").file(MIB).shm(&lines)
    };
    let as_stranger = |target: &Target, provider: &str| {
        let address = target.address();
        let mut command = Command::new(&program);
        command.args(["discover", "-a", &address.ip().to_string(), "-s"]);
        command.args([&address.port().to_string(), "-q", HOST]);
        command.args(["--provider", provider, "--shm-folder"]);
        Run::new(command).arg(&shm).user(STRANGER)
    };
    // The permissions of the folder exclude other users.
    let target = setup("").start();
    as_stranger(&target, "shm").fails(1, &["ermission denied"]);
    as_stranger(&target, "auto").ok();
    assert_eq!(target.lines(&["WARN"]), [""; 0]);
    target.stop();
    // If it is open for one user, the target checks the user.
    fs::remove_dir_all(&shm).unwrap();
    let target = setup(&FRIEND.to_string()).start();
    let words = ["user 54321", "not permitted to connect"];
    as_stranger(&target, "shm").fails(1, &words);
    let warned = target.lines(&["WARN", "user 54321", "shm.users"]);
    assert_eq!(warned.len(), 1, "{}", target.log());
    as_stranger(&target, "auto").ok();
    target.stop();
    let target = setup(&format!("\"root\", {STRANGER}")).start();
    as_stranger(&target, "shm").ok();
    target.stop();
}

#[test]
fn target_of_another_user_is_trusted_only_in_configured_folder() {
    if cannot_be_others() {
        return;
    }
    let (folder, nvmeof) = open_folder();
    let shm = folder.path().join("shm");
    fs::create_dir(&shm).unwrap();
    fs::set_permissions(&shm, Permissions::from_mode(0o711)).unwrap();
    nix::unistd::chown(&shm, Some(STRANGER.into()), None).unwrap();
    let program = copy_of("nvmeof-target", folder.path());
    let config = folder.path().join("target.toml");
    let setup = Setup::new().provider("\"shm\"").namespace("ram:1M", "");
    let setup = setup.shm(&format!("folder = {shm:?}\nusers = [{FRIEND}]"));
    fs::write(&config, setup.text()).unwrap();
    let mut command = Command::new(&program);
    command.arg("serve").arg("--config").arg(&config);
    command.uid(STRANGER);
    let target = setup.start_as(&mut command);
    let named = target.fabrics("discover").args("--provider shm");
    named.arg("--shm-folder").arg(&shm).ok();
    // Another user created a link in place of the folder of this user.
    let trap = folder.path().join("run");
    fs::create_dir(&trap).unwrap();
    symlink(&shm, trap.join("nvmeof")).unwrap();
    let mut command = Command::new(&nvmeof);
    command.args(["discover", "-a", "127.0.0.1", "--provider", "shm", "-s"]);
    command.arg(target.address().port().to_string());
    command.env("XDG_RUNTIME_DIR", &trap);
    let words = ["user 54321", "not permitted to connect"];
    Run::new(command).user(FRIEND).fails(1, &words);
    target.stop();
}

/// The backing store of a stalled target may still write to the buffers of the client, which
/// waits and reports the target. With several attempts, at least one is at such a moment.
#[test]
fn stalled_target_with_client_memory_is_reported() {
    let setup = Setup::new().provider("\"shm\"").file(16 * MIB);
    let target = setup.start();
    // Long ones, so that the backing store accesses some of them most of the time.
    let line = "--rw randread --bs 1m --iodepth 32 --runtime 60 --command-timeout 2";
    let waits = || {
        let mut bench = over_shm(target.on(1, "bench").args(line), &setup).start();
        wait_for_io(|| over_shm(target.nvmeof("smart-log"), &setup), &mut bench);
        target.signal(Signal::SIGSTOP);
        let remedy = format!("`kill -CONT {}`", target.pid());
        // It may also report it just before it ends.
        let waited = eventually(|| match bench.runs() {
            true => bench.stderr().contains(&remedy).then_some(true),
            false => Some(false),
        });
        target.signal(Signal::SIGCONT);
        let ended = bench.end();
        assert_eq!(ended.status, Some(1), "{ended}");
        // Otherwise it neither ended nor reported the target.
        assert_eq!(Some(ended.stderr.contains(&remedy)), waited, "{ended}");
        waited == Some(true)
    };
    assert!((0..4).any(|_| waits()), "no client waited for the target");
    target.stop();
}
