//! Low memlock limit, no privileges, no load.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests"
)]

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use nvmeof_e2e::{
    Setup, Target, binary, copy_of, cpu_time, ctl, is_root, managed, nsids, pattern, same_bytes,
};

const MIB: usize = 1 << 20;
/// Unused user ids. The memlock limit applies to all processes of a user, so each test has its
/// own user.
const NOBODIES: u32 = 64_200;

/// A folder with access for all users, and a copy of the target in it: folders of root are not
/// accessible.
fn open_to_all() -> Setup {
    let setup = Setup::in_folder(&std::env::temp_dir());
    let folder = setup.path("x");
    let everybody = std::fs::Permissions::from_mode(0o777);
    let folder = folder.parent().unwrap();
    std::fs::set_permissions(folder, everybody).unwrap();
    let _program = copy_of("nvmeof-target", folder);
    setup
}

/// The target of `setup` as an ordinary user with a limit of `memlock` bytes.
fn ordinary(setup: &Setup, memlock: u32) -> Target {
    let mut command = Command::new("prlimit");
    command.arg(format!("--memlock={memlock}:{memlock}"));
    if is_root() {
        let nobody = NOBODIES + memlock.leading_zeros();
        let id = nobody.to_string();
        command.args(["setpriv", "--reuid", &id, "--regid", &id, "--clear-groups"]);
        std::os::unix::fs::chown(setup.image_path(1), Some(nobody), Some(nobody)).unwrap();
    }
    command.arg(setup.path("nvmeof-target"));
    command.arg("serve").arg("--config").arg(setup.config());
    command.env_remove("RUST_LOG");
    setup.start_as(&mut command)
}

#[test]
fn target_with_low_memlock_limit_serves_and_warns() {
    let limits: [u32; 2] = [8 << 20, 64 << 10];
    // Other tests lock memory of the same user, unless the user can be changed.
    let count = if is_root() { 2 } else { 1 };
    for memlock in limits.into_iter().take(count) {
        let setup = open_to_all().file(4 * MIB);
        let mut target = ordinary(&setup, memlock);
        let lines = target.lines(&["memlock"]).len() + target.lines(&["MEMLOCK"]).len();
        assert!(lines <= 2, "more than one line about it:\n{}", target.log());
        let output = target.lines(&["RLIMIT_MEMLOCK"]);
        assert_eq!(output.len(), 1, "{}", target.log());
        for word in [&memlock.to_string(), "ulimit -l", "LimitMEMLOCK", "cost"] {
            assert!(output[0].contains(word), "{word}: {}", output[0]);
        }
        same_bytes(&target.read(1, 0, None), &pattern(1, 4 * MIB));
        let data = pattern(2, 3 * MIB);
        target.write(1, 1, &data);
        same_bytes(&target.read(1, 1, Some(6144)), &data);
        let line = "--rw randrw --bs 64k --iodepth 16 --runtime 1";
        assert!(
            target.on(1, "bench").args(line).json()["iops"]
                .as_f64()
                .unwrap()
                > 0.0
        );
        target.assert_healthy();
        target.stop();
    }
}

#[test]
fn initiator_with_low_memlock_limit_works() {
    let setup = Setup::new().file(4 * MIB);
    let target = setup.start();
    let mut command = Command::new("prlimit");
    command
        .args(["--memlock=65536:65536"])
        .arg(binary("nvmeof"));
    let address = target.address();
    let line = format!(
        "read -t rdma -a {} -s {} -n {} --namespace-id 1 --data -",
        address.ip(),
        address.port(),
        nvmeof_e2e::NQN
    );
    let ended = nvmeof_e2e::Run::new(command).args(&line).ok();
    same_bytes(&ended.stdout, &pattern(1, 4 * MIB));
}

#[test]
fn hugepages_are_not_needed() {
    let setup = Setup::new().head("[reactor]\nhugepages = true").file(MIB);
    let target = setup.start();
    same_bytes(&target.read(1, 0, None), &pattern(1, MIB));
    target.stop();
}

#[test]
fn low_descriptor_limit_is_reported() {
    let setup = Setup::new().file(MIB);
    let mut command = Command::new("prlimit");
    command.arg("--nofile=64:64").arg(binary("nvmeof-target"));
    command.arg("serve").arg("--config").arg(setup.config());
    let mut target = setup.start_as(&mut command);
    let peers: Vec<_> = (0..100)
        .filter_map(|_| nvmeof_e2e::Peer::try_connect(target.address()).ok())
        .collect();
    std::thread::sleep(Duration::from_millis(300));
    drop(peers);
    same_bytes(&target.read(1, 0, None), &pattern(1, MIB));
    target.assert_healthy();
}

/// The goal: less than 0.5 % of a core in 10 s.
#[test]
fn idle_target_uses_almost_no_cpu() {
    costs_almost_nothing(Setup::new(), "--provider iwarp");
}

#[test]
fn idle_target_with_shared_memory_uses_almost_no_cpu() {
    let setup = Setup::new().provider("\"shm\"");
    let folder = setup.shm_folder();
    costs_almost_nothing(
        setup,
        &format!("--provider shm --shm-folder {}", folder.display()),
    );
}

#[track_caller]
fn costs_almost_nothing(setup: Setup, over: &str) {
    let setup = setup.file(MIB);
    let target = setup.start();
    // A host that is connected, sends Keep Alive and no other command: its output is
    // blocked.
    let fifo = setup.path("fifo");
    nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU).unwrap();
    let writer = open_fifo(&fifo);
    let idle = target
        .on(1, "write")
        .args(over)
        .args("--keep-alive-tmo 5 --data")
        .arg(&fifo)
        .start();
    let connected = || (target.lines(&["connected"]).len() >= 2).then_some(());
    assert!(
        nvmeof_e2e::eventually(connected).is_some(),
        "{}",
        target.log()
    );
    // On a busy machine it may still be at what the host asked first, or each iteration may cost
    // more because the caches are others'. Neither lasts; one that polls has more than that
    // in every window, whatever else runs.
    let mut shares = Vec::new();
    let is_idle = nvmeof_e2e::eventually(|| {
        let (from, start) = (cpu_time(target.pid()), Instant::now());
        std::thread::sleep(Duration::from_secs(10));
        let used = cpu_time(target.pid()) - from;
        let share = used.as_secs_f64() / start.elapsed().as_secs_f64();
        shares.push(share);
        // Where the kernel does not count, it is 0.
        (share > 0.0 && share < 0.005).then_some(())
    });
    assert!(is_idle.is_some(), "shares of a CPU: {shares:?}");
    drop(writer);
    let ended = idle.end();
    assert_eq!(ended.status, Some(0), "{ended}");
    target.stop();
}

/// Opens both ends, so that neither blocks.
fn open_fifo(path: &Path) -> std::fs::File {
    let mut options = std::fs::OpenOptions::new();
    options.read(true).write(true).open(path).unwrap()
}

/// The error recommends a restart, after which the namespaces are served.
#[test]
fn namespaces_beyond_file_table_are_served_after_restart() {
    let mut setup = managed().file(512);
    let target = setup.start();
    for _ in 0..300 {
        setup = setup.file(512);
    }
    let _written = setup.config();
    let refused = ctl(&setup, "reload").end();
    assert_eq!(refused.status, Some(2), "{refused}");
    let words: Vec<_> = refused.stderr.split_whitespace().collect();
    assert!(words.join(" ").contains("restart the target"), "{refused}");
    assert_eq!(nsids(&target), [1]);
    target.stop();
    let target = setup.start();
    assert_eq!(nsids(&target).len(), 301);
    target.stop();
}
