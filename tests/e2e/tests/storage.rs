//! Backing stores that fail under the target.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests"
)]

use std::fs::{self, OpenOptions};
use std::process::{Command, Stdio};

use nvmeof_e2e::{Setup, Target, binary, is_root, pattern, same_bytes};

const MIB: usize = 1 << 20;

#[test]
fn truncated_file_is_reported() {
    let setup = Setup::new().file(4 * MIB);
    let mut target = setup.start();
    let file = OpenOptions::new()
        .write(true)
        .open(setup.image_path(1))
        .unwrap();
    file.set_len(MIB as u64).unwrap();
    // Data before the end are read; reads beyond it are errors, not zeroes.
    same_bytes(&target.read(1, 0, Some(2048)), &pattern(1, MIB));
    let missing = "--start-block 4096 --block-count 8 --data -";
    let words = ["Read", "4096"];
    target.on(1, "read").args(missing).fails(1, &words);
    let path = setup.image_path(1).display().to_string();
    let offset = (4096 * 512).to_string();
    // The host tries again (at most 5 times) until the target has the new size.
    let logged = target.lines(&[&path, &offset, "ERROR"]);
    assert!((1..=6).contains(&logged.len()), "{}", target.log());
    // It is not a media error.
    let smart = target.nvmeof("smart-log").json();
    assert_eq!(smart["media_errors"], 0);
    assert!(smart["num_err_log_entries"].as_u64().unwrap() > 0);
    target.assert_healthy();
    target.stop();
}

/// A command in a mount namespace of its own: as root, or as a user if the machine allows
/// user namespaces.
fn unshare() -> Option<Command> {
    let mut command = Command::new("unshare");
    command.arg("--mount");
    if !is_root() {
        command.args(["--user", "--map-root-user"]);
    }
    let mut probe = Command::new("unshare");
    probe
        .args(command.get_args())
        .args(["mount", "-t", "tmpfs", "none", "/mnt"]);
    let allowed = probe
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success());
    allowed.then_some(command)
}

/// A target with a backing file on a small file system.
fn on_a_small_disk(setup: &Setup) -> Option<Target> {
    let mut command = unshare()?;
    let folder = setup.path("small");
    fs::create_dir(&folder).unwrap();
    let script = "mount -t tmpfs -o size=4m none \"$1\" && truncate -s 64M \"$1/disk.img\" && \
                  exec \"$2\" serve --config \"$3\"";
    command.args(["sh", "-c", script, "sh"]);
    command
        .arg(&folder)
        .arg(binary("nvmeof-target"))
        .arg(setup.config());
    Some(setup.start_as(&mut command))
}

#[test]
fn full_file_system_is_reported() {
    let setup = Setup::new();
    let path = setup.path("small/disk.img").display().to_string();
    let setup = setup.namespace(&path, "");
    let Some(mut target) = on_a_small_disk(&setup) else {
        eprintln!("skipped: no permission to mount a tmpfs");
        return;
    };
    let data = pattern(3, MIB);
    target.write(1, 0, &data);
    let more = pattern(4, 8 * MIB);
    let run = target
        .on(1, "write")
        .args("--start-block 8192 --data -")
        .stdin(&more);
    run.fails(1, &["Capacity Exceeded", "full"]);
    let logged = target.lines(&[&path, "ERROR", "No space left"]);
    assert!(!logged.is_empty(), "{}", target.log());
    // Written data are kept, and writes succeed again after a deallocation.
    same_bytes(&target.read(1, 0, Some(2048)), &data);
    target
        .on(1, "dsm")
        .args("--ad --start-block 0 --block-count 131072")
        .ok();
    target.write(1, 0, &data);
    same_bytes(&target.read(1, 0, Some(2048)), &data);
    target.assert_healthy();
    target.stop();
}

#[test]
fn read_only_file_is_served_read_only() {
    let setup = Setup::new().file_with(MIB, "readonly = true");
    let mut mode = fs::metadata(setup.image_path(1)).unwrap().permissions();
    mode.set_readonly(true);
    fs::set_permissions(setup.image_path(1), mode).unwrap();
    let target = setup.start();
    same_bytes(&target.read(1, 0, None), &pattern(1, MIB));
    target.stop();
}

#[test]
fn file_with_unusual_name_is_served() {
    let setup = Setup::new();
    let path = setup.path("disk mit Umlauten äöü and #.img");
    nvmeof_e2e::image(&path, 1, MIB);
    let setup = setup.namespace(&path.display().to_string(), "");
    let target = setup.start();
    same_bytes(&target.read(1, 0, None), &pattern(1, MIB));
    target.stop();
}
