//! Errors of the tool and their remedies.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests"
)]

use std::net::TcpListener;

use nvmeof_e2e::{NQN, Run, Setup};

const MIB: usize = 1 << 20;

#[test]
fn unknown_subsystem_is_reported() {
    let target = Setup::new().file(MIB).start();
    let other = "nqn.2026-11.org.example:other";
    let run = target.fabrics("id-ctrl").args(&format!("-n {other}"));
    run.fails(1, &["no subsystem", other, "nvmeof discover"]);
    assert!(!target.lines(&[other]).is_empty(), "{}", target.log());
}

#[test]
fn host_that_is_not_allowed_is_reported() {
    let friend = "nqn.2026-11.org.example:friend";
    let setup = Setup::new()
        .access(&format!("allowed_hosts = [\"{friend}\"]"))
        .file(MIB);
    let target = setup.start();
    target
        .nvmeof("id-ctrl")
        .fails(1, &["not allowed", NQN, "allowed_hosts"]);
    assert!(
        !target.lines(&[nvmeof_e2e::HOST]).is_empty(),
        "{}",
        target.log()
    );
    let address = target.address();
    let line = format!(
        "id-ctrl -t rdma -a {} -s {} -n {NQN}",
        address.ip(),
        address.port()
    );
    Run::nvmeof(&line).args(&format!("-q {friend}")).ok();
}

#[test]
fn invalid_queue_size_is_reported() {
    let setup = Setup::new().head("[limits]\nqueue_depth = 16").file(MIB);
    let target = setup.start();
    // The tool either uses fewer queues or reports the error.
    let ended = target
        .on(1, "read")
        .args("--queue-size 1000 --block-count 1 --data -")
        .end();
    match ended.status {
        Some(0) => assert_eq!(ended.stdout.len(), 512, "{ended}"),
        Some(1) => assert!(ended.stderr.contains("queue"), "{ended}"),
        _ => panic!("{ended}"),
    }
    for size in ["0", "1", "70000"] {
        let line = format!("--queue-size {size} --data -");
        target.on(1, "read").args(&line).fails(2, &[size]);
    }
}

#[test]
fn unreachable_target_is_reported() {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    drop(listener);
    let line = format!("-t rdma -a 127.0.0.1 -s {port}");
    let place = format!("127.0.0.1:{port}");
    let words = [place.as_str(), "refused"];
    Run::nvmeof("discover").args(&line).fails(1, &words);
    for command in ["id-ctrl", "list-ns", "smart-log"] {
        Run::nvmeof(command)
            .args(&line)
            .args(&format!("-n {NQN}"))
            .fails(1, &words);
    }
    let line = format!("{line} -n {NQN} --namespace-id 1");
    Run::nvmeof("read")
        .args(&line)
        .args("--data -")
        .fails(1, &words);
    Run::nvmeof("bench").args(&line).fails(1, &words);
}

#[test]
fn foreign_server_is_reported() {
    // Servers that send other data, close the connection, or are silent.
    for output in [&b"SSH-2.0-OpenSSH_9.2\r\n"[..], b""] {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let server = std::thread::spawn(move || {
            for stream in listener.incoming().take(2) {
                let mut stream = stream.unwrap();
                // With what it asked taken in, the end is no reset.
                let mut asked = [0; 64];
                let _ = std::io::Read::read(&mut stream, &mut asked);
                std::io::Write::write_all(&mut stream, output).unwrap();
            }
        });
        let line = format!("discover -t rdma -a 127.0.0.1 -s {port}");
        Run::nvmeof(&line).fails(1, &["127.0.0.1"]);
        // It may or may not have tried a second time.
        let _ = std::net::TcpStream::connect(("127.0.0.1", port));
        let _ = server.join();
    }
}

#[test]
fn usage_errors_are_reported() {
    let target = Setup::new().file(MIB).start();
    target
        .fabrics("id-ctrl")
        .args(&format!("-n {}", "x".repeat(224)))
        .fails(2, &["224 bytes"]);
    target.fabrics("id-ctrl").fails(2, &["--nqn"]);
    target.nvmeof("id-ns").fails(2, &["--namespace-id"]);
    target
        .nvmeof("read")
        .args("--namespace-id 1")
        .fails(2, &["--data"]);
    let address = target.address();
    let line = format!("-a {} -s {}", address.ip(), address.port());
    Run::nvmeof("discover -t tcp")
        .args(&line)
        .fails(2, &["tcp", "rdma"]);
    Run::nvmeof("discover -t rdma")
        .args(&line)
        .args(&format!("-q {}", "x".repeat(224)))
        .fails(2, &["224 bytes"]);
    Run::nvmeof("discover -t rdma")
        .args(&line)
        .args("-I zero")
        .fails(2, &["zero"]);
    Run::nvmeof("discover -t rdma -a 127.0.0.1 -s 70000").fails(2, &["70000"]);
    Run::nvmeof("discover -t rdma -a no.such.host.invalid -s 4420").fails(1, &["no.such.host"]);
    Run::nvmeof("discover -t rdma").fails(2, &["--traddr"]);
    Run::nvmeof("fly").fails(2, &["fly"]);
    assert_eq!(Run::nvmeof("").end().status, Some(2));
}

#[test]
fn connection_limit_is_reported() {
    let setup = Setup::new().head("[limits]\ncontrollers = 1").file(MIB);
    let mut target = setup.start();
    let line = "--rw randread --runtime 20";
    let mut busy = target.on(1, "bench").args(line).start();
    target.wait_for_log("controller 1 ");
    let ended = target.nvmeof("id-ctrl").fails(1, &[]);
    assert!(
        ended.stderr.contains("limit") || ended.stderr.contains("busy"),
        "{ended}"
    );
    busy.kill();
    // Resources are free as soon as the target has detected the disconnect.
    let again =
        nvmeof_e2e::eventually(|| (target.nvmeof("id-ctrl").end().status == Some(0)).then_some(()));
    assert!(again.is_some(), "{}", target.log());
}

#[test]
fn queue_limit_is_reported() {
    let setup = Setup::new().head("[limits]\nio_queues = 2").file(MIB);
    let target = setup.start();
    target
        .on(1, "bench")
        .args("--nr-io-queues 3 --runtime 1")
        .fails(1, &["grants 2 I/O queues, 3 were requested"]);
    target
        .on(1, "bench")
        .args("--nr-io-queues 2 --runtime 1")
        .ok();
}
