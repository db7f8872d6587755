//! Relative paths of files.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests")]

use std::fs;
use std::path::Path;

use nvmeof_e2e::{Run, Setup, ask, ctl, managed, pattern, same_bytes, target_command};

const MIB: usize = 1 << 20;

/// `nvmeof-target ctl` in a folder of its own.
fn ctl_in(folder: &Path, setup: &Setup, line: &str) -> Run {
    let mut command = target_command();
    command
        .current_dir(folder)
        .args(["ctl", "--socket"])
        .arg(setup.path("control.sock"));
    Run::new(command).args(line)
}

#[test]
fn relative_path_is_resolved_by_the_client() {
    let setup = managed().file(4 * MIB);
    let target = setup.start();
    let folder = setup.path("of-the-client");
    fs::create_dir_all(folder.join("images")).unwrap();
    for (seed, name) in [(5, "second.img"), (6, "images/third.img"), (7, "copy.img")] {
        fs::write(folder.join(name), pattern(seed, MIB)).unwrap();
    }
    ctl_in(&folder, &setup, "namespace add second.img").ok();
    ctl_in(
        &folder.join("images"),
        &setup,
        "namespace add ./../images/third.img",
    )
    .ok();
    same_bytes(&target.read(2, 0, None), &pattern(5, MIB));
    same_bytes(&target.read(3, 0, None), &pattern(6, MIB));
    ctl_in(&folder, &setup, "namespace set 2 path=copy.img").ok();
    same_bytes(&target.read(2, 0, None), &pattern(7, MIB));
    let nqn = "nqn.2026-11.org.example:other";
    let add = format!("subsystem add {nqn} --namespace path=second.img");
    ctl_in(&folder, &setup, &add).ok();
    let shown = ask(&setup, "show")["text"].as_str().unwrap().to_owned();
    let absolute = folder.join("second.img").display().to_string();
    assert!(shown.contains(&absolute), "{shown}");
    target.stop();
}

#[test]
fn document_with_relative_path_is_refused() {
    let setup = managed().file(4 * MIB);
    let target = setup.start();
    let other = setup.path("other.toml");
    let more = "[[subsystem.namespace]]\nnsid = 9\npath = 'second.img'\n";
    fs::write(&other, setup.text() + more).unwrap();
    for verb in ["plan", "apply"] {
        let line = format!("{verb} {}", other.display());
        ctl(&setup, &line).fails(2, &["other.toml:", "second.img", "must be absolute"]);
    }
    target.stop();
}
