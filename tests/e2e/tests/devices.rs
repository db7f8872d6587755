//! The programs over RDMA devices, which `tests/verbs-standin` replaces: each program has a
//! device of its own, and connections are between the processes.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests"
)]

use std::fs;

use nix::sys::signal::Signal;
use nvmeof_e2e::{
    Ended, NQN, Running, Setup, Target, eventually, fds, nsids, pattern, same_bytes, start_io,
    wait_for_io,
};

const MIB: usize = 1 << 20;

/// Devices of both transports, with windows and without.
const KINDS: [(&str, &str); 3] = [
    ("profile=roce", "roce-v2"),
    ("profile=no-windows read_delay=2", "roce-v2"),
    ("profile=iwarp", "iwarp"),
];

fn setup(settings: &str) -> Setup {
    Setup::new().devices(settings).file(4 * MIB)
}

fn bench(target: &Target, line: &str) -> Running {
    let mut bench = target.on(1, "bench").args(line).start();
    wait_for_io(|| target.nvmeof("smart-log"), &mut bench);
    bench
}

/// A program that lost its target: it says so once, and ends.
#[track_caller]
fn lost_connection(ended: &Ended) {
    assert_eq!(ended.status, Some(1), "{ended}");
    assert!(ended.stderr.starts_with("nvmeof: "), "{ended}");
    assert!(!ended.stderr.contains("panicked"), "{ended}");
}

#[test]
fn data_are_read_and_written_over_each_kind_of_device() {
    for (settings, kind) in KINDS {
        let setup = setup(settings);
        let mut target = setup.start();
        let json = target.fabrics("discover").json();
        let records = json["records"].as_array().unwrap();
        let entry = records.iter().find(|entry| entry["subnqn"] == NQN);
        assert_eq!(entry.unwrap()["rdma_prtype"], kind, "{json}");
        let mut expected = pattern(1, 4 * MIB);
        same_bytes(&target.read(1, 0, None), &expected);
        // In capsules, in parts of a command, and in many commands.
        for (round, len) in [512, 4096, 128 * 1024, MIB + 512].into_iter().enumerate() {
            let data = pattern(100 + u32::try_from(round).unwrap(), len);
            let at = round * MIB / 2;
            target.write(1, u64::try_from(at / 512).unwrap(), &data);
            expected[at..at + len].copy_from_slice(&data);
        }
        same_bytes(&target.read(1, 0, None), &expected);
        target.on(1, "flush").ok();
        same_bytes(&fs::read(setup.image_path(1)).unwrap(), &expected);
        target.assert_healthy();
        target.stop();
    }
}

/// Several connections of one process, under load from both directions.
#[test]
fn benchmark_with_several_queues_completes() {
    for (settings, _) in KINDS {
        let mut target = setup(settings).start();
        for line in [
            "--rw randrw --bs 4k --iodepth 16 --nr-io-queues 2",
            "--rw write --bs 128k --iodepth 8",
        ] {
            let bench = target.on(1, "bench").args(line).args("--runtime 0.5");
            let json = bench.json();
            assert!(json["iops"].as_f64().unwrap() > 0.0, "{json}");
        }
        target.assert_healthy();
        target.stop();
    }
}

/// A host that is killed under load: the target detects that, and releases what it had.
#[test]
fn killed_host_leaks_nothing() {
    for (settings, _) in KINDS {
        let setup = setup(settings);
        let mut target = setup.start();
        let _ = target.read(1, 0, Some(1));
        let idle = target.idle_fds(2);
        let mut bench = bench(&target, "--rw randread --bs 64k --iodepth 32 --runtime 60");
        assert!(fds(target.pid()) > idle);
        bench.kill();
        let back = eventually(|| (fds(target.pid()) <= idle).then_some(()));
        assert!(back.is_some(), "{}", target.log());
        // Its device reports the end, and no timer has to detect it.
        let ends = || target.lines(&["disconnected: closed by the peer", "queue=1"]);
        let both = eventually(|| (ends().len() == 2).then_some(()));
        assert!(both.is_some(), "{}", target.log());
        same_bytes(&target.read(1, 0, None), &pattern(1, 4 * MIB));
        target.assert_healthy();
        target.stop();
    }
}

/// A target that is killed under load: the host detects that, and connects to its successor at
/// the same address.
#[test]
fn host_of_killed_target_continues_with_its_successor() {
    for (settings, _) in KINDS {
        // More than is read before the target is killed.
        let setup = setup(settings).port(4420).namespace("null:1024G", "");
        let mut target = setup.start();
        let line = "--ctrl-loss-tmo 60 --reconnect-delay 1 --data /dev/null";
        let mut patient = target.on(2, "read").args(line).start();
        wait_for_io(|| target.nvmeof("smart-log"), &mut patient);
        let lost = bench(&target, "--rw randread --bs 4k --iodepth 32 --runtime 60");
        target.kill();
        lost_connection(&lost.end());
        let again = setup.start();
        assert_eq!(again.address().port(), 4420);
        wait_for_io(|| again.nvmeof("smart-log"), &mut patient);
        same_bytes(&again.read(1, 0, None), &pattern(1, 4 * MIB));
        again.stop();
    }
}

/// The socket of a killed target's listener, without a successor.
#[test]
fn killed_target_refuses_connections() {
    let setup = setup("profile=roce");
    let mut target = setup.start();
    target.kill();
    lost_connection(&target.nvmeof("id-ctrl").end());
}

#[test]
fn reload_and_stop_do_not_lose_io() {
    let setup = setup("profile=roce");
    let mut target = setup.start();
    let mut bench = start_io(&target);
    let setup = setup.file(MIB);
    fs::write(setup.path("target.toml"), setup.text()).unwrap();
    target.signal(Signal::SIGHUP);
    target.wait_for_log("reloaded: 1 changes");
    assert_eq!(nsids(&target), [1, 2]);
    same_bytes(&target.read(2, 0, None), &pattern(2, MIB));
    assert!(bench.runs(), "{}", target.log());
    target.signal(Signal::SIGTERM);
    assert_eq!(target.wait().code(), Some(0), "{}", target.log());
    lost_connection(&bench.end());
}

/// A target that stops responding: commands of its host time out, and it recovers.
#[test]
fn stalled_target_times_out() {
    let target = setup("profile=roce").start();
    let line = "--rw randread --runtime 60 --command-timeout 1";
    let bench = bench(&target, line);
    target.signal(Signal::SIGSTOP);
    let ended = bench.end();
    target.signal(Signal::SIGCONT);
    assert_eq!(ended.status, Some(1), "{ended}");
    same_bytes(&target.read(1, 0, Some(1)), &pattern(1, 512));
}
