//! Log lines about peers name them.

use std::io;
use std::sync::{Arc, Mutex, Once};
use std::time::Duration;

use nix::errno::Errno;
use nvmeof_rdma::{Event, Provider, QpId, QpOwner};
use nvmeof_rdma_sim::Sim;
use nvmeof_wire::Nqn;
use nvmeof_wire::cm::Request;
use nvmeof_wire::fabrics::{Connect, ConnectData, disconnect};
use nvmeof_wire::nqn::DISCOVERY;
use nvmeof_wire::nvm::Io;
use nvmeof_wire::opcode::io::WRITE;
use tracing_subscriber::fmt::MakeWriter;
use zerocopy::IntoBytes;

use super::host::{admin, connect, establish, ready, run, try_connect};
use super::{Bench, NQN, few_buffers, limits};

#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<u8>>>);

impl io::Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Lines {
    type Writer = Self;

    fn make_writer(&'a self) -> Self {
        self.clone()
    }
}

/// What is logged during `act`.
pub(super) fn logged(act: impl FnOnce()) -> Vec<String> {
    static FOR_ALL: Once = Once::new();
    // A log statement asks once whether there is a subscriber. Another test may do so at
    // the moment when this one subscribes: one subscriber always exists.
    FOR_ALL.call_once(|| {
        let all = tracing_subscriber::fmt().with_writer(io::sink).finish();
        tracing::subscriber::set_global_default(all).unwrap();
        tracing::callsite::rebuild_interest_cache();
    });
    let lines = Lines::default();
    let log = tracing_subscriber::fmt()
        .with_writer(lines.clone())
        .with_ansi(false)
        .without_time()
        .finish();
    tracing::subscriber::with_default(log, act);
    let bytes = lines.0.lock().unwrap().clone();
    let text = String::from_utf8(bytes).unwrap();
    text.lines().map(str::to_owned).collect()
}

const HOST: &str = "nqn.2026-11.org.example:host";

/// The lines with `words`, each of which has all fields.
fn named(lines: &[String], words: &str, queue: u16) {
    let queue = format!("queue={queue}");
    let mut found = lines
        .iter()
        .filter(|line| line.contains(words) && line.contains(&queue));
    let line = found
        .next()
        .unwrap_or_else(|| panic!("{words} {queue}: {lines:#?}"));
    for word in ["peer=10.0.0.2:", HOST, NQN] {
        assert!(line.contains(word), "{word} is not in: {line}");
    }
}

#[test]
fn lines_about_a_queue_name_host_address_subsystem_and_queue() {
    let lines = logged(|| {
        let mut bench = Bench::new(1);
        let mut host = bench.host();
        let (_admin, io) = ready(&mut bench, &mut host);
        let sent = host.send(io, disconnect(), &[]);
        run(&mut bench, &mut host, sent);
        bench.until(&mut [&mut host], |bench, _| {
            bench.reactor.queue_pairs() == 1
        });
        drop(host);
        let mut other = bench.host();
        bench.until(&mut [&mut other], |bench, _| {
            bench.reactor.queue_pairs() == 0
        });
    });
    named(&lines, "connected by", 0);
    named(&lines, "connected, 128 entries", 1);
    named(&lines, "closing: the host disconnected the queue", 1);
    named(&lines, "disconnected: ", 1);
    assert!(
        lines.iter().all(|line| line.contains("peer=10.0.0.2:")),
        "{lines:#?}"
    );
}

/// The log may be the only place that knows a host after its controller is lost.
#[test]
fn lost_controller_names_the_address_of_its_host() {
    let mut bench = Bench::new(3);
    let mut host = bench.host();
    let _queues = ready(&mut bench, &mut host);
    let target = &bench.reactor.target;
    let it = &target.connected()[0];
    let lost = target.disconnect(&it.hostnqn, None);
    assert_eq!(lost.len(), 1);
    assert!(lost[0].peer.starts_with("10.0.0.2:"), "{lost:?}");
    assert!(lost[0].hostnqn.to_string().starts_with(HOST), "{lost:?}");
    assert_eq!(lost[0].subnqn.to_string(), NQN);
}

#[test]
fn stalled_transfer_names_the_host() {
    let lines = logged(|| {
        let mut bench = Bench::new(2);
        let mut host = bench.host();
        let (_, cntlid) = admin(&mut bench, &mut host, 0);
        let (io, _) = connect(&mut bench, &mut host, &Connect::new(1, 128, 0), cntlid);
        host.send_with(io, Io::new(1, 0, 8).to_sqe(WRITE), &[7; 4096]);
        host.provider.submit(bench.net.now());
        // It transfers nothing any more, but is still connected.
        bench.run_for(&mut [], Duration::from_secs(40));
        drop(host);
    });
    named(&lines, "did not transfer the data", 1);
}

#[test]
fn refused_connect_names_the_host() {
    let lines = logged(|| {
        let mut bench = Bench::new(3);
        let mut host = bench.host();
        let qp = establish(&mut bench, &mut host, &Request::new(1, 128));
        let cqe = try_connect(&mut bench, &mut host, qp, &Connect::new(1, 128, 0), 77);
        assert!(!cqe.status().is_success());
    });
    named(&lines, "Connect refused: ", 1);
    assert!(
        lines
            .iter()
            .any(|line| line.contains("controller 77 does not exist")),
        "{lines:#?}"
    );
}

#[test]
fn store_failure_names_the_host_of_the_command() {
    let lines = logged(|| {
        let mut bench = Bench::new(4);
        let mut host = bench.host();
        let (_admin, io) = ready(&mut bench, &mut host);
        bench.reactor.stores_mut().fails = Some(Errno::EIO);
        let sent = host.send_with(io, Io::new(1, 0, 8).to_sqe(WRITE), &[7; 4096]);
        assert!(!run(&mut bench, &mut host, sent).0.status().is_success());
    });
    named(&lines, "memory: write at byte 0 failed", 1);
}

#[test]
fn rejected_connection_names_the_address() {
    let lines = logged(|| {
        let mut bench = Bench::new(5);
        let mut host = bench.host();
        let mut wrong = Request::new(1, 128);
        wrong.hsqsize = 1000.into();
        host.open(bench.net.now(), &wrong);
        bench.until(&mut [&mut host], |_, hosts| !hosts[0].closed.is_empty());
    });
    let line = lines
        .iter()
        .find(|line| line.contains("connection rejected"));
    let line = line.unwrap_or_else(|| panic!("{lines:#?}"));
    assert!(line.contains("peer=10.0.0.2:"), "{line}");
    assert!(line.contains("queue=1"), "{line}");
}

/// A provider that records the owners of its queue pairs.
struct Recorder {
    inner: Sim,
    owners: Arc<Mutex<Vec<QpOwner>>>,
}

impl Provider for Recorder {
    nvmeof_rdma_layers::forward!(inner: limits name register listen unlisten connect local_addr
        peer_may_invalidate prepare accept reject post_recv post expose withdraw
        disconnect submit wait_fd next_deadline rest);

    fn set_owner(&mut self, _qp: QpId, owner: QpOwner) {
        self.owners.lock().unwrap().push(owner);
    }

    fn poll(&mut self, now: Duration, events: &mut Vec<Event>) -> bool {
        self.inner.poll(now, events)
    }
}

/// The log lines of providers name a peer as far as it is known then: tests of the
/// providers check that.
#[test]
fn provider_knows_the_host_of_a_queue_pair() {
    let owners = Arc::default();
    let recorder = |inner| -> Box<dyn Provider> {
        let owners = Arc::clone(&owners);
        Box::new(Recorder { inner, owners })
    };
    let mut bench = Bench::over(6, few_buffers(), limits(), recorder);
    let mut host = bench.host();
    let _queues = ready(&mut bench, &mut host);
    let owners = owners.lock().unwrap();
    let names = |one: &QpOwner| {
        let host = one.host().map(|host| host.starts_with(HOST));
        (host, one.subsystem() == Some(NQN), one.queue())
    };
    let known: Vec<_> = owners.iter().map(names).collect();
    let stranger = |queue| (None, false, Some(queue));
    let known_as = |queue| (Some(true), true, Some(queue));
    assert_eq!(known, [stranger(0), known_as(0), stranger(1), known_as(1)]);
}

/// Any peer that reaches a port can have a discovery controller, again and again.
#[test]
fn discovery_connect_flood_writes_few_lines() {
    const CONNECTS: u64 = 5_000;
    let name = |text: &str| Nqn::new(text).unwrap();
    let discovery = name(DISCOVERY);
    let mut quiet = Vec::new();
    let lines = logged(|| {
        let mut bench = Bench::new(5);
        let mut host = bench.host();
        host.depth = 32;
        let data = ConnectData::new(host.id, 0xffff, &discovery, &name(HOST));
        for _ in 0..CONNECTS {
            let qp = establish(&mut bench, &mut host, &Request::new(0, 32));
            let sent = host.send_with(qp, Connect::new(0, 32, 0).to_sqe(), data.as_bytes());
            let (cqe, _) = run(&mut bench, &mut host, sent);
            assert!(cqe.status().is_success(), "{:?}", cqe.status());
            host.provider.disconnect(qp);
            let gone = |bench: &mut Bench| bench.reactor.queue_pairs() == 0;
            bench.until(&mut [&mut host], |bench, _| gone(bench));
        }
        let mut other = bench.host();
        quiet = logged(|| {
            let _queues = ready(&mut bench, &mut other);
        });
    });
    assert!((10..=200).contains(&lines.len()), "{}", lines.len());
    // The first lines are written, and later ones say how many were left out.
    named_line(&lines, "connected by");
    let left_out: u64 = lines
        .iter()
        .chain(&quiet)
        .filter_map(|line| left_out(line))
        .sum();
    let written = u64::try_from(lines.len()).unwrap();
    assert!(
        left_out + written >= 2 * CONNECTS - 10,
        "{left_out} and {written}"
    );
    // Lines about another host are not suppressed.
    named_line(&quiet, "connected, 128 entries");
}

#[track_caller]
fn named_line(lines: &[String], words: &str) {
    let found = lines.iter().any(|line| line.contains(words));
    assert!(found, "{words}: {lines:#?}");
}

/// How many lines were left out before this one.
fn left_out(line: &str) -> Option<u64> {
    let (_, count) = line.split_once("left_out=")?;
    count.split_whitespace().next()?.parse().ok()
}
