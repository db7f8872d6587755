//! Backing stores that change under I/O: they grow, shrink, disappear and return.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests"
)]

use std::fs;

use nix::sys::signal::Signal;
use nvmeof_e2e::{
    Setup, Target, assert_io_continues, blocks, eventually, image, pattern, same_bytes, start_io,
};

const MIB: usize = 1 << 20;

fn becomes(target: &Target, nsid: u32, expected: u64) {
    let there = eventually(|| (blocks(target, nsid) == expected).then_some(()));
    assert!(there.is_some(), "{}", target.log());
}

fn set_len(setup: &Setup, nsid: u32, len: usize) {
    let file = fs::OpenOptions::new()
        .write(true)
        .open(setup.image_path(nsid))
        .unwrap();
    file.set_len(u64::try_from(len).unwrap()).unwrap();
}

#[test]
fn changed_size_is_detected_without_a_command() {
    let setup = Setup::new().file(4 * MIB).file(4 * MIB);
    let mut target = setup.start();
    let mut bench = start_io(&target);
    assert_eq!(blocks(&target, 2), 8192);
    set_len(&setup, 2, 6 * MIB);
    becomes(&target, 2, 12288);
    let data = pattern(9, MIB);
    target.write(2, 8192, &data);
    same_bytes(&target.read(2, 8192, Some(2048)), &data);
    // Reads beyond the new end fail.
    set_len(&setup, 2, 2 * MIB);
    becomes(&target, 2, 4096);
    same_bytes(&target.read(2, 0, None), &pattern(2, 4 * MIB)[..2 * MIB]);
    assert_eq!(target.lines(&["detected: ", "namespace 2"]).len(), 2);
    assert_io_continues(&target, &mut bench);
    target.assert_healthy();
    bench.kill();
    target.stop();
}

#[test]
fn lost_store_affects_no_other_and_recovers() {
    let setup = Setup::new().file(4 * MIB).file(4 * MIB);
    let _ = setup.config();
    let mut target = setup.start();
    let mut bench = start_io(&target);
    let mut other = target
        .on(2, "bench")
        .args("--rw randread --bs 4k --iodepth 16 --runtime 3600")
        .start();
    assert!(other.runs());
    set_len(&setup, 2, 0);
    let line = target.wait_for_log("is faulted: ");
    for word in ["namespace 2", "0 bytes", "namespace enable", "disk2.img"] {
        assert!(line.contains(word), "{word}: {line}");
    }
    assert_eq!(other.end().status, Some(1));
    target
        .on(2, "read")
        .args("--data -")
        .fails(1, &["Not Ready"]);
    let warning = target.nvmeof("smart-log").json()["critical_warning"].clone();
    assert_eq!(warning, 4, "reliability is degraded");
    // The namespace keeps its size.
    assert_eq!(blocks(&target, 2), 8192);
    assert_io_continues(&target, &mut bench);
    target.signal(Signal::SIGHUP);
    let line = target.wait_for_log("still faulted");
    assert!(line.contains("0 bytes"), "{line}");
    image(&setup.image_path(2), 2, 4 * MIB);
    target.signal(Signal::SIGHUP);
    target.wait_for_log("namespace 2 is recovered");
    let warning = target.nvmeof("smart-log").json()["critical_warning"].clone();
    assert_eq!(warning, 0);
    same_bytes(&target.read(2, 0, None), &pattern(2, 4 * MIB));
    assert_eq!(target.lines(&["ERROR", "is faulted: "]).len(), 1);
    assert_io_continues(&target, &mut bench);
    target.assert_healthy();
    bench.kill();
    target.stop();
}

#[test]
fn namespace_is_disabled_and_enabled() {
    let setup = Setup::new().file(4 * MIB).file(MIB);
    let on = setup.text();
    let off = format!("{on}enabled = false\n");
    let mut target = setup.start();
    let mut bench = start_io(&target);
    let active = || {
        let json = target.nvmeof("list-ns").json();
        json["nsid_list"].as_array().unwrap().len()
    };
    for (text, count) in [(&off, 1), (&on, 2)] {
        fs::write(setup.path("target.toml"), text).unwrap();
        target.signal(Signal::SIGHUP);
        assert!(eventually(|| (active() == count).then_some(())).is_some());
        assert_io_continues(&target, &mut bench);
    }
    assert_eq!(target.lines(&["namespace 2 is disabled"]).len(), 1);
    assert_eq!(target.lines(&["namespace 2 is enabled"]).len(), 1);
    same_bytes(&target.read(2, 0, None), &pattern(2, MIB));
    target.assert_healthy();
    bench.kill();
    target.stop();
}
