//! The initiator over several paths: no call fails while paths fail and come back, and calls end
//! when none may be waited for.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests"
)]

use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use nvmeof_e2e::{HOST, NQN, Setup, TIMEOUT, ctl, free_port, managed};
use nvmeof_initiator::multipath::{
    FenceMethod, Multipath, MultipathOptions, PathPolicy, ReconnectOptions,
};
use nvmeof_initiator::{
    ConnectOptions, Error, Host, HostConfig, Identity, MultipathNamespace, Nqn, Transport,
    WriteOptions,
};

const LEN: usize = 4096;
const SECOND: Duration = Duration::from_secs(1);

/// A target with one namespace, two ports and a state file.
fn two_ports() -> (Setup, [u16; 2]) {
    two_ports_of(managed(), 2)
}

/// The same, without a state file unless `setup` has one, and with another CQT, in seconds.
fn two_ports_of(setup: Setup, quiesce_time_s: u32) -> (Setup, [u16; 2]) {
    let ports = [free_port(), free_port()];
    let second = format!(
        "[limits]\nquiesce_time_s = {quiesce_time_s}\n\
         [[port]]\nid = 7\ntraddr = \"127.0.0.1\"\ntrsvcid = {}\nprovider = \"iwarp\"\n",
        ports[1]
    );
    let setup = setup.head(&second).port(ports[0]).file(1 << 20);
    (setup, ports)
}

fn host() -> Host {
    let mut config = HostConfig::new(Identity::of_name(Nqn::new(HOST).unwrap()));
    config.transport = Transport::Iwarp;
    Host::new(config).unwrap()
}

fn paths(ports: &[u16]) -> Vec<ConnectOptions> {
    let each = ports.iter().map(|port| {
        let addr = format!("127.0.0.1:{port}").parse().unwrap();
        let mut path = ConnectOptions::new(addr, Nqn::new(NQN).unwrap());
        path.keep_alive = 2 * SECOND;
        path.connect_timeout = 2 * SECOND;
        path
    });
    each.collect()
}

fn run(test: impl Future<Output = ()>) {
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    let runtime = runtime.enable_all().worker_threads(2).build().unwrap();
    let test = async { tokio::time::timeout(TIMEOUT, test).await.unwrap() };
    runtime.block_on(test);
}

/// Writes other data each time and reads them back, at blocks of its own, until `until`. Returns
/// the number of writes.
async fn write_and_verify(host: Host, disk: MultipathNamespace, own: u8, until: Instant) -> u64 {
    let blocks = LEN as u64 / u64::from(disk.block_size());
    let mut writes = 0u64;
    while Instant::now() < until {
        let lba = (u64::from(own) * 16 + writes % 16) * blocks;
        let data = u8::try_from(writes % 251).unwrap() ^ own;
        let mut buf = host.buffer(LEN).unwrap();
        buf.fill(data);
        let mut buf = disk.write(lba, buf, WriteOptions::default()).await.unwrap();
        buf.fill(!data);
        let buf = disk.read(lba, buf).await.unwrap();
        assert!(
            buf.iter().all(|byte| *byte == data),
            "write {writes} at {lba}"
        );
        writes += 1;
    }
    writes
}

#[test]
fn calls_survive_the_loss_of_each_path_and_of_the_target() {
    let (setup, ports) = two_ports();
    let mut target = setup.start();
    let port = format!("127.0.0.1:{}", ports[1]);
    run(async {
        let host = host();
        let options = MultipathOptions::default();
        let multipath = Multipath::connect(&host, &paths(&ports), options)
            .await
            .unwrap();
        let disk = multipath.namespace(1).await.unwrap();
        let until = Instant::now() + 12 * SECOND;
        let work: Vec<_> = (0..4)
            .map(|own| tokio::spawn(write_and_verify(host.clone(), disk.clone(), own, until)))
            .collect();
        let pause = || tokio::time::sleep(SECOND);
        pause().await;
        for _ in 0..2 {
            ctl(&setup, &format!("port remove {port}")).ok();
            pause().await;
            ctl(&setup, &format!("port add {port} --id 7 --provider iwarp")).ok();
            pause().await;
        }
        target.kill();
        target = setup.start();
        for writer in work {
            assert!(writer.await.unwrap() > 0);
        }
        let status = multipath.paths();
        assert!(status.iter().all(|path| path.is_live), "{status:?}");
        assert!(status[1].losses >= 2, "{status:?}");
        // The port was removed while the other path was live.
        let reset = |(method, _): &(FenceMethod, u64)| *method == FenceMethod::CrossControllerReset;
        assert!(status[1].fenced.iter().any(reset), "{status:?}");
        multipath.disconnect().await;
    });
    target.stop();
}

#[test]
fn calls_follow_the_ana_state_of_each_path() {
    let (setup, ports) = two_ports();
    let target = setup.start();
    run(async {
        let host = host();
        let options = MultipathOptions {
            policy: PathPolicy::QueueDepth,
            ..MultipathOptions::default()
        };
        let multipath = Multipath::connect(&host, &paths(&ports), options)
            .await
            .unwrap();
        let disk = multipath.namespace(1).await.unwrap();
        let until = Instant::now() + 6 * SECOND;
        let work: Vec<_> = (0..4)
            .map(|own| tokio::spawn(write_and_verify(host.clone(), disk.clone(), own, until)))
            .collect();
        for access in [
            "inaccessible",
            "non-optimized",
            "change",
            "persistent-loss",
            "optimized",
        ] {
            ctl(&setup, &format!("ana set 1 {access} --port 7")).ok();
            tokio::time::sleep(SECOND).await;
        }
        for writer in work {
            assert!(writer.await.unwrap() > 0);
        }
        let status = multipath.paths();
        assert!(status.iter().all(|path| path.losses == 0), "{status:?}");
        multipath.disconnect().await;
    });
    target.stop();
}

#[test]
fn calls_fail_with_their_buffer_when_no_path_may_be_waited_for() {
    let (setup, ports) = two_ports();
    let mut target = setup.start();
    run(async {
        let host = host();
        let options = |fast_io_fail, ctrl_loss| MultipathOptions {
            reconnect: ReconnectOptions {
                ctrl_loss: Some(ctrl_loss),
                fast_io_fail,
                ..ReconnectOptions::default()
            },
            ..MultipathOptions::default()
        };
        let fast = options(Some(SECOND / 2), 600 * SECOND);
        let fast = Multipath::connect(&host, &paths(&ports), fast)
            .await
            .unwrap();
        let short = options(None, SECOND);
        let short = Multipath::connect(&host, &paths(&ports[..1]), short)
            .await
            .unwrap();
        let disks = [
            fast.namespace(1).await.unwrap(),
            short.namespace(1).await.unwrap(),
        ];
        target.kill();
        for disk in &disks {
            let failed = disk.read(0, host.buffer(LEN).unwrap()).await.unwrap_err();
            assert!(failed.buf.is_some());
            assert!(matches!(failed.error, Error::NoPath(_)), "{failed}");
            let text = failed.to_string();
            assert!(text.contains(NQN) && text.contains("127.0.0.1"), "{text}");
            // A write may have been executed: it is not said to be refused.
            let failed = disk.flush().await.unwrap_err();
            assert!(matches!(failed, Error::NoPath(_)), "{failed}");
        }
        assert!(short.paths()[0].is_given_up);
        // The other one is connected again, and not the one that was given up.
        target = setup.start();
        while !fast.paths().iter().all(|path| path.is_live) {
            tokio::time::sleep(SECOND / 10).await;
        }
        let _ = disks[0].read(0, host.buffer(LEN).unwrap()).await.unwrap();
        assert!(disks[1].flush().await.is_err());
    });
    target.stop();
}

#[test]
fn paths_that_cannot_be_used_are_refused() {
    let (setup, ports) = two_ports();
    let target = setup.start();
    let unused = free_port();
    run(async {
        let host = host();
        let connect = |paths: Vec<ConnectOptions>| {
            let host = host.clone();
            async move { Multipath::connect(&host, &paths, MultipathOptions::default()).await }
        };
        let error = connect(Vec::new()).await.err().unwrap().to_string();
        assert!(error.contains("no path is given"), "{error}");
        let mut two = paths(&ports);
        two[1].subnqn = Nqn::new("nqn.2026-11.org.example:other").unwrap();
        let error = connect(two.clone()).await.err().unwrap().to_string();
        assert!(error.contains("two subsystems"), "{error}");
        two.remove(0);
        let error = connect(two).await.err().unwrap().to_string();
        assert!(error.contains("there is no subsystem"), "{error}");
        let error = connect(paths(&[unused])).await.err().unwrap().to_string();
        assert!(error.contains("127.0.0.1"), "{error}");
        // One path is enough; the other one is tried again.
        let multipath = connect(paths(&[unused, ports[0]])).await.unwrap();
        let error = multipath.namespace(9).await.err().unwrap().to_string();
        assert!(error.contains("no namespace 9"), "{error}");
        let disk = multipath.namespace(1).await.unwrap();
        let _ = disk.read(0, host.buffer(LEN).unwrap()).await.unwrap();
        assert!(!multipath.paths()[0].is_live && multipath.paths()[0].last_error.is_some());
        // A dropped call returns its buffer; the next one works.
        for _ in 0..300 {
            let read = disk.read(0, host.buffer(LEN).unwrap());
            let _ = tokio::time::timeout(Duration::ZERO, read).await;
        }
        let _ = disk.read(0, host.buffer(LEN).unwrap()).await.unwrap();
        multipath.disconnect().await;
    });
    target.stop();
}

/// Reads until that fails; returns the error.
async fn error_of_reads(host: &Host, disk: &MultipathNamespace) -> Error {
    loop {
        match disk.read(0, host.buffer(LEN).unwrap()).await {
            Ok(_) => tokio::time::sleep(SECOND / 20).await,
            Err(failed) => return failed.error,
        }
    }
}

#[test]
fn namespace_with_other_identifiers_is_not_used() {
    const OTHER: &str = "uuid = \"1ab00000-0000-4000-8000-00000000abcd\"";
    let ports = [free_port(), free_port()];
    let first = managed().port(ports[0]).file(1 << 20);
    let second = managed().port(ports[1]).file_with(1 << 20, OTHER);
    let mut first_target = first.start();
    let mut second_target = second.start();
    let before = std::fs::read(second.image_path(1)).unwrap();
    run(async {
        let host = host();
        let options = MultipathOptions {
            reconnect: ReconnectOptions {
                ctrl_loss: Some(SECOND),
                ..ReconnectOptions::default()
            },
            ..MultipathOptions::default()
        };
        let multipath = Multipath::connect(&host, &paths(&ports), options)
            .await
            .unwrap();
        let disk = multipath.namespace(1).await.unwrap();
        let until = Instant::now() + 2 * SECOND;
        assert!(write_and_verify(host.clone(), disk.clone(), 0, until).await > 0);
        // With both targets of one kind gone, the error says why the other one is not used.
        let is_first = std::fs::read(second.image_path(1)).unwrap() == before;
        match is_first {
            true => first_target.kill(),
            false => second_target.kill(),
        }
        let error = error_of_reads(&host, &disk).await.to_string();
        assert!(error.contains("identifiers"), "{error}");
        multipath.disconnect().await;
    });
    let unchanged =
        [&first, &second].map(|one| std::fs::read(one.image_path(1)).unwrap() == before);
    assert!(
        unchanged[0] != unchanged[1],
        "one of both was written, and only one"
    );
}

#[test]
fn namespace_that_is_replaced_is_not_used_any_more() {
    let (setup, ports) = two_ports();
    let target = setup.start();
    run(async {
        let host = host();
        let options = MultipathOptions::default();
        let multipath = Multipath::connect(&host, &paths(&ports), options)
            .await
            .unwrap();
        let disk = multipath.namespace(1).await.unwrap();
        let _ = disk.read(0, host.buffer(LEN).unwrap()).await.unwrap();
        ctl(&setup, "namespace remove 1").ok();
        let error = error_of_reads(&host, &disk).await.to_string();
        assert!(
            error.contains("namespace 1") || error.contains("Namespace"),
            "{error}"
        );
        let uuid = "1ab00000-0000-4000-8000-00000000abcd";
        ctl(
            &setup,
            &format!("namespace add ram:1M --nsid 1 --uuid {uuid}"),
        )
        .ok();
        let identifiers = async {
            while !error_of_reads(&host, &disk)
                .await
                .to_string()
                .contains("identifiers")
            {}
        };
        tokio::time::timeout(20 * SECOND, identifiers)
            .await
            .unwrap();
        // Opened again, it is the new one, over both paths.
        drop(disk);
        let disk = multipath.namespace(1).await.unwrap();
        let _ = disk.read(0, host.buffer(LEN).unwrap()).await.unwrap();
        ctl(&setup, &format!("port remove 127.0.0.1:{}", ports[0])).ok();
        let _ = disk.read(0, host.buffer(LEN).unwrap()).await.unwrap();
        multipath.disconnect().await;
    });
    target.stop();
}

/// The new target does not know the lost controller: the write waits for the keep-alive and
/// quiesce times, two seconds each.
#[test]
fn lost_write_without_a_state_file_waits_for_the_quiesce_time() {
    let (setup, ports) = two_ports_of(Setup::new(), 2);
    let (read, write, method) = lose_a_read_and_a_write(&setup, &ports);
    assert!(read < 3 * SECOND, "{read:?}");
    assert!(write >= 3 * SECOND + SECOND / 2, "{write:?}");
    assert_eq!(method, FenceMethod::QuiesceTime);
}

/// The new target proves that nothing of the lost controller is in flight: it has the lock of
/// the incarnations file beside the state file.
#[test]
fn lost_write_with_a_state_file_is_fenced_by_the_restarted_target() {
    let (setup, ports) = two_ports_of(managed(), 60);
    let (read, write, method) = lose_a_read_and_a_write(&setup, &ports);
    assert!(read < 20 * SECOND, "{read:?}");
    assert!(write < 20 * SECOND, "{write:?}");
    assert_eq!(method, FenceMethod::CrossControllerReset);
}

/// Kills and restarts the target with a read and a write in flight. Returns how long both take
/// from then on, and how the lost controller was fenced. The read waits for no fence.
fn lose_a_read_and_a_write(setup: &Setup, ports: &[u16]) -> (Duration, Duration, FenceMethod) {
    let mut target = setup.start();
    let mut outcome = None;
    run(async {
        let host = host();
        let options = MultipathOptions::default();
        let multipath = Multipath::connect(&host, &paths(&ports[..1]), options)
            .await
            .unwrap();
        let disk = multipath.namespace(1).await.unwrap();
        let _ = disk.read(0, host.buffer(LEN).unwrap()).await.unwrap();
        target.signal(Signal::SIGSTOP);
        let mut data = host.buffer(LEN).unwrap();
        data.fill(0x77);
        let (reader, writer) = (disk.clone(), disk.clone());
        let buf = host.buffer(LEN).unwrap();
        let read = tokio::spawn(async move {
            reader.read(0, buf).await.unwrap();
            Instant::now()
        });
        let write = tokio::spawn(async move {
            writer
                .write(64, data, WriteOptions::default())
                .await
                .unwrap();
            Instant::now()
        });
        tokio::time::sleep(SECOND / 2).await;
        assert!(!read.is_finished() && !write.is_finished());
        target.kill();
        let lost = Instant::now();
        target = setup.start();
        let (read, write) = (read.await.unwrap() - lost, write.await.unwrap() - lost);
        let buf = disk.read(64, host.buffer(LEN).unwrap()).await.unwrap();
        assert!(buf.iter().all(|byte| *byte == 0x77));
        let fenced = &multipath.paths()[0].fenced;
        let [(method, 1)] = fenced[..] else {
            panic!("{fenced:?}");
        };
        outcome = Some((read, write, method));
        multipath.disconnect().await;
    });
    target.stop();
    outcome.unwrap()
}
