//! Processes that are killed under I/O.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests"
)]

use std::fs;
use std::time::Duration;

use nix::sys::signal::Signal;
use nvmeof_e2e::{
    Running, Setup, Target, eventually, fds, own_ip, pattern, same_bytes, wait_for_io,
};

const MIB: usize = 1 << 20;

/// Waits for I/O of the client.
#[track_caller]
fn await_io(target: &Target, bench: &mut Running) {
    wait_for_io(|| target.nvmeof("smart-log"), bench);
}

#[track_caller]
fn fds_are_back(target: &Target, before: usize) {
    let back = eventually(|| (fds(target.pid()) <= before).then_some(()));
    let now = fds(target.pid());
    assert!(
        back.is_some(),
        "{now} fds, {before} before:\n{}",
        target.log()
    );
}

#[test]
fn killed_initiator_leaks_nothing() {
    let setup = Setup::new().file(16 * MIB).file(4 * MIB);
    let mut target = setup.start();
    let _ = target.read(1, 0, Some(1));
    let idle = target.idle_fds(2);
    for line in [
        "--rw write --bs 128k --iodepth 32 --nr-io-queues 2",
        "--rw randwrite --bs 4k --iodepth 64",
        "--rw randread --bs 64k --iodepth 64",
    ] {
        let bench = target.on(1, "bench").args(line).args("--runtime 60");
        let mut bench = bench.start();
        await_io(&target, &mut bench);
        assert!(fds(target.pid()) > idle);
        bench.kill();
        fds_are_back(&target, idle);
        same_bytes(&target.read(2, 0, None), &pattern(2, 4 * MIB));
    }
    target.assert_healthy();
    // All its controllers are removed, so none counts towards limits.
    target.stop();
}

#[test]
fn clients_of_killed_target_report_connection_loss() {
    let setup = Setup::new().file(16 * MIB);
    for line in [
        "--rw randread --bs 4k",
        "--rw write --bs 128k --nr-io-queues 2",
    ] {
        let mut target = setup.start();
        let mut bench = target
            .on(1, "bench")
            .args(line)
            .args("--iodepth 32 --runtime 60")
            .start();
        await_io(&target, &mut bench);
        target.kill();
        let ended = bench.end();
        assert_eq!(ended.status, Some(1), "{ended}");
        assert!(ended.stderr.starts_with("nvmeof: "), "{ended}");
        assert!(!ended.stderr.contains("panicked"), "{ended}");
    }
}

#[test]
fn copy_from_killed_target_reports_connection_loss() {
    // Larger than it can be read before the signal.
    let setup = Setup::new().namespace("null:1024G", "");
    let mut target = setup.start();
    let mut clients = [
        target
            .on(1, "read")
            .args("--ctrl-loss-tmo 0 --data /dev/null")
            .start(),
        target
            .on(1, "write")
            .args("--ctrl-loss-tmo 0 --block-count 2000000000 --data /dev/zero")
            .start(),
    ];
    let begun = || {
        let json = target.nvmeof("smart-log").json();
        let of = |name: &str| json[name].as_u64().unwrap() > 0;
        (of("host_read_commands") && of("host_write_commands")).then_some(())
    };
    assert!(eventually(begun).is_some(), "no I/O is done");
    for client in &mut clients {
        assert!(client.runs());
    }
    target.kill();
    for client in clients {
        let ended = client.end();
        assert_eq!(ended.status, Some(1), "{ended}");
        assert!(
            !ended.stderr.is_empty() && !ended.stderr.contains("panicked"),
            "{ended}"
        );
    }
}

#[test]
fn stalled_target_times_out() {
    let setup = Setup::new().file(16 * MIB);
    let target = setup.start();
    let mut bench = target
        .on(1, "bench")
        .args("--rw randread --runtime 60 --command-timeout 2")
        .start();
    await_io(&target, &mut bench);
    target.signal(Signal::SIGSTOP);
    let ended = bench.end();
    target.signal(Signal::SIGCONT);
    assert_eq!(ended.status, Some(1), "{ended}");
    // The target recovers.
    same_bytes(&target.read(1, 0, Some(1)), &pattern(1, 512));
}

#[test]
fn acknowledged_data_survives_a_kill() {
    let setup = Setup::new().file(8 * MIB);
    let mut expected = pattern(1, 8 * MIB);
    let mut target = setup.start();
    for round in 0..4_u32 {
        let data = pattern(100 + round, MIB);
        let at = round as usize * 2 * MIB;
        let blocks = format!("--start-block {} --data -", at / 512);
        let write = target.on(1, "write").args(&blocks).stdin(&data);
        if round % 2 == 0 {
            write.args("--force-unit-access").ok();
        } else {
            write.ok();
            target.on(1, "flush").ok();
        }
        target.kill();
        expected[at..at + MIB].copy_from_slice(&data);
        same_bytes(&fs::read(setup.image_path(1)).unwrap(), &expected);
        target = setup.start();
        same_bytes(&target.read(1, 0, None), &expected);
    }
    target.stop();
}

#[test]
fn sigterm_completes_commands_in_flight() {
    let setup = Setup::new().file(16 * MIB);
    let mut target = setup.start();
    let mut bench = target
        .on(1, "bench")
        .args("--rw randwrite --bs 64k --iodepth 32 --runtime 60")
        .start();
    await_io(&target, &mut bench);
    target.signal(Signal::SIGTERM);
    let status = target.wait();
    assert_eq!(status.code(), Some(0), "{}", target.log());
    let log = target.log();
    assert!(log.contains("SIGTERM"), "{log}");
    let ended = bench.end();
    assert_eq!(ended.status, Some(1), "{ended}");
    assert!(!ended.stderr.contains("panicked"), "{ended}");
}

#[test]
fn sigterm_completes_outstanding_commands() {
    // A write of one command, and SIGTERM at an early moment: the write either completes or
    // fails with a message.
    let setup = Setup::new().file(4 * MIB);
    for round in 0..4_u32 {
        let mut target = setup.start();
        let data = pattern(200 + round, 2 * MIB);
        let writer = target.on(1, "write").args("--ctrl-loss-tmo 0 --data -");
        let writer = writer.stdin(&data).start();
        std::thread::sleep(Duration::from_millis(u64::from(round) * 7));
        target.signal(Signal::SIGTERM);
        assert_eq!(target.wait().code(), Some(0), "{}", target.log());
        let ended = writer.end();
        match ended.status {
            Some(0) => same_bytes(&fs::read(setup.image_path(1)).unwrap()[..2 * MIB], &data),
            Some(1) => assert!(!ended.stderr.is_empty(), "{ended}"),
            _ => panic!("{ended}"),
        }
    }
}

#[test]
fn killed_target_restarts_immediately() {
    let setup = Setup::new().ip(own_ip()).file(MIB);
    let mut target = setup.start();
    let port = target.address().port();
    let mut bench = target.on(1, "bench").args("--runtime 60").start();
    await_io(&target, &mut bench);
    target.kill();
    drop(bench);
    let setup = setup.port(port);
    let again = setup.start();
    assert_eq!(again.address().port(), port);
    let _ = again.read(1, 0, None);
    again.stop();
}
