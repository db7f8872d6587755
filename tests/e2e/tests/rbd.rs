//! RBD images behind the target, in a real cluster. `cargo xtask test ceph` starts one and sets the
//! variables `NVMEOF_CEPH_*`.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests"
)]

use std::fs;
use std::process::Command;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use nvmeof_e2e::{
    Run, Setup, Target, assert_io_continues, blocks, eventually, pattern, same_bytes, start_io,
    target_command,
};

const MIB: usize = 1 << 20;

fn variable(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| panic!("{name} is not set: run `cargo xtask test ceph`"))
}

/// Runs a program of the cluster, and returns its output.
fn run(program: &str, line: &str) -> String {
    let output = Command::new(program)
        .args(line.split(' '))
        .output()
        .unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {line}: {error}");
    String::from_utf8(output.stdout).unwrap()
}

/// `[ceph]` with another keyring.
fn access(keyring: &str) -> String {
    format!(
        "[ceph]\nconf = '{}'\nuser = '{}'\nkeyring = '{keyring}'\n",
        variable("NVMEOF_CEPH_CONF"),
        variable("NVMEOF_CEPH_USER"),
    )
}

/// A target whose namespace 1 is a new image of 16 MiB.
fn setup(image: &str) -> Setup {
    let name = format!("rbd/{image}");
    let _ = Command::new("rbd")
        .args(["rm", "--no-progress", &name])
        .output();
    run("rbd", &format!("create --size 16M {name}"));
    let head = access(&variable("NVMEOF_CEPH_KEYRING"));
    Setup::new()
        .head(&head)
        .namespace(&format!("rbd:{name}"), "")
}

/// The address of the client that has the lock of the image.
fn lock_owner(image: &str) -> Option<String> {
    let locks = run("rbd", &format!("lock ls --format json rbd/{image}"));
    let start = locks.find("\"address\":\"")?;
    let rest = &locks[start + "\"address\":\"".len()..];
    rest.split_once('"').map(|(address, _)| address.to_owned())
}

#[test]
fn image_is_served_and_its_lock_is_released_at_the_end() {
    let setup = setup("served");
    let mut target = setup.start();
    assert_eq!(blocks(&target, 1), 32768);
    let data = pattern(3, MIB);
    target.write(1, 8192, &data);
    target.on(1, "flush").ok();
    target
        .on(1, "dsm")
        .args("--ad --start-block 8192 --block-count 8")
        .ok();
    target
        .on(1, "write-zeroes")
        .args("--start-block 8208 --block-count 8")
        .ok();
    let mut expected = data;
    expected[..4096].fill(0);
    expected[8192..8192 + 4096].fill(0);
    same_bytes(&target.read(1, 8192, Some(2048)), &expected);
    assert!(lock_owner("served").is_some());
    target.assert_healthy();
    target.stop();
    assert_eq!(lock_owner("served"), None);
    // The next one serves the same data, at once.
    let begun = Instant::now();
    let target = setup.start();
    assert!(begun.elapsed() < Duration::from_secs(20));
    same_bytes(&target.read(1, 8192, Some(2048)), &expected);
    target.stop();
}

#[test]
fn killed_target_loses_nothing_and_its_successor_serves_at_once() {
    let busy = setup("killed-busy");
    let _ = setup("killed");
    let setup = busy.namespace("rbd:rbd/killed", "");
    let mut target = setup.start();
    let data = pattern(5, MIB);
    target.write(2, 0, &data);
    let owner = lock_owner("killed").unwrap();
    let mut bench = start_io(&target);
    target.kill();
    let mut target = setup.start();
    let line = target.wait_for_log("broken");
    assert!(
        line.contains(&owner) && line.contains("blocklisted"),
        "{line}"
    );
    same_bytes(&target.read(2, 0, Some(2048)), &data);
    assert!(run("ceph", "osd blocklist ls").contains(&owner));
    bench.kill();
    target.stop();
}

#[test]
fn new_size_is_detected_without_a_command() {
    let setup = setup("grown");
    let mut target = setup.start();
    let mut bench = start_io(&target);
    run("rbd", "resize --no-progress --size 32M rbd/grown");
    assert!(eventually(|| (blocks(&target, 1) == 65536).then_some(())).is_some());
    assert_io_continues(&target, &mut bench);
    let data = pattern(9, MIB);
    target.write(1, 40000, &data);
    same_bytes(&target.read(1, 40000, Some(2048)), &data);
    bench.kill();
    target.assert_healthy();
    target.stop();
}

/// An OSD that does not respond delays I/O, and ends nothing.
#[test]
fn io_waits_for_the_cluster() {
    let setup = setup("waits");
    let mut target = setup.start();
    let mut bench = start_io(&target);
    let osd = Pid::from_raw(variable("NVMEOF_CEPH_OSD_PID").parse().unwrap());
    kill(osd, Signal::SIGSTOP).unwrap();
    std::thread::sleep(Duration::from_secs(3));
    // Namespaces elsewhere are not affected, and neither is the admin queue.
    target.nvmeof("id-ctrl").ok();
    assert!(bench.runs());
    kill(osd, Signal::SIGCONT).unwrap();
    assert_io_continues(&target, &mut bench);
    bench.kill();
    target.assert_healthy();
    target.stop();
}

/// Reservations are stored beside the image, so that another target with another state finds them.
#[test]
fn reservation_moves_with_its_image() {
    let first = setup("moved");
    let target = first.start();
    target
        .on(1, "resv-register")
        .args("--nrkey 7 --cptpl 3")
        .ok();
    target
        .on(1, "resv-acquire")
        .args("-c 7 --rtype exclusive-access")
        .ok();
    let before = target.on(1, "resv-report").json();
    assert_eq!(before["regctl"], 1, "{before}");
    target.stop();
    let head = access(&variable("NVMEOF_CEPH_KEYRING"));
    let second = Setup::new().head(&head).namespace(
        "rbd:rbd/moved",
        "uuid = '6a2a7e6c-0f1c-4a53-8a3c-1d2f1f2b7c11'",
    );
    // Another UUID is another namespace.
    let target = second.start();
    let other = target.on(1, "resv-report").json();
    assert_eq!(other["regctl"], 0, "{other}");
    target.stop();
    let second = Setup::new().head(&head).namespace("rbd:rbd/moved", "");
    let target = second.start();
    let after = target.on(1, "resv-report").json();
    assert_eq!(
        (&after["regctl"], &after["rtype"]),
        (&before["regctl"], &before["rtype"])
    );
    target
        .on(1, "resv-release")
        .args("-c 7 --rtype exclusive-access")
        .ok();
    target
        .on(1, "resv-register")
        .args("-r unregister -c 7")
        .ok();
    target.stop();
}

/// Another client has taken over: hosts use another path, and an administrator decides.
#[test]
fn fenced_target_serves_nothing_until_it_is_enabled() {
    let setup = setup("fenced");
    let _ = setup.config();
    let mut target = setup.start();
    let data = pattern(7, MIB);
    target.write(1, 0, &data);
    let owner = lock_owner("fenced").unwrap();
    run("ceph", &format!("osd blocklist add {owner}"));
    let failed = || {
        run("rbd", "info rbd/fenced");
        let write = target.on(1, "write").args("--start-block 0 --data -");
        let ended = write.stdin(&data[..4096]).end();
        (ended.status != Some(0)).then(|| ended.to_string())
    };
    let ended = eventually(failed).unwrap();
    assert!(
        ended.contains("Internal Path Error") || ended.contains("Not Ready"),
        "{ended}"
    );
    let line = target.wait_for_log("is faulted: ");
    assert!(
        line.contains("blocklisted") && line.contains("rbd:rbd/fenced"),
        "{line}"
    );
    let recovered = || {
        target.signal(Signal::SIGHUP);
        std::thread::sleep(Duration::from_millis(500));
        let ended = target
            .on(1, "read")
            .args("--block-count 2048 --data -")
            .end();
        (ended.status == Some(0)).then_some(())
    };
    assert!(eventually(recovered).is_some(), "{}", target.log());
    same_bytes(&target.read(1, 0, Some(2048)), &data);
    target.stop();
}

fn check_config(setup: &Setup) -> Run {
    let mut command = target_command();
    command.arg("check-config").arg(setup.config());
    Run::new(command)
}

#[test]
fn check_config_names_key_and_remedy() {
    let good = setup("checked");
    check_config(&good).ok();
    assert_eq!(lock_owner("checked"), None, "it is released");
    let running: Target = good.start();
    let waits = check_config(&good).ok().text();
    assert!(waits.contains("in use by the client at"), "{waits}");
    running.stop();
    let text = fs::read_to_string(good.config()).unwrap();
    let line = |key: &str| 1 + text.lines().position(|line| line.starts_with(key)).unwrap();
    let with = |from: &str, to: &str| {
        let changed = good.path("changed.toml");
        fs::write(&changed, text.replace(from, to)).unwrap();
        let mut command = target_command();
        command.arg("check-config").arg(&changed);
        Run::new(command)
    };
    let keyring = variable("NVMEOF_CEPH_KEYRING");
    let ended = with(&keyring, "/nonexistent/keyring").ok().text();
    let place = format!("changed.toml:{}: ceph.keyring: ", line("keyring"));
    assert!(
        ended.contains(&place) && ended.contains("no key for client."),
        "{ended}"
    );
    let key = fs::read_to_string(&keyring).unwrap();
    let key = key
        .lines()
        .find_map(|line| line.trim().strip_prefix("key = "))
        .unwrap();
    assert!(!ended.contains(key), "the key is not printed");
    let ended = with("rbd:rbd/checked", "rbd:rbd/absent").ok().text();
    assert!(
        ended.contains("no image \"absent\"") && ended.contains("rbd create"),
        "{ended}"
    );
    with("rbd:rbd/checked", "rbd:checked").fails(2, &["rbd:POOL/IMAGE"]);
    with("user = '", "user = 'client.").fails(2, &["ceph.user", "without client."]);
    with(&keyring, "keyring").fails(2, &["ceph.keyring", "absolute path"]);
    run("rbd", "feature enable rbd/checked journaling");
    check_config(&good).fails(2, &["path", "journaled", "rbd feature disable rbd/checked"]);
}

#[test]
fn missing_libraries_are_reported_with_the_package() {
    let setup = setup("libraries");
    let mut command = target_command();
    command
        .arg("check-config")
        .arg(setup.config())
        .env_remove("LD_LIBRARY_PATH");
    // On machines with librbd1, there is nothing to report.
    let ended = Run::new(command).end();
    let text = ended.text();
    let is_missing = text.contains("librados.so.2 cannot be loaded");
    assert!(
        ended.status == Some(0) || (is_missing && text.contains("librbd1")),
        "{text}"
    );
}
