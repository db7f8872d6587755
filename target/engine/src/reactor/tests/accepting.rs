//! Connection requests while commands of others are served.

use std::time::Duration;

use nvmeof_rdma::{ACCEPT_PACE, Provider, QpId};
use nvmeof_wire::cm::Request;
use nvmeof_wire::nvm::Io;
use nvmeof_wire::opcode::io;

use super::Bench;
use super::host::{Host, Sent, ready, run};

const ASKING: u8 = 8;

/// Hosts that request one connection each, at the same time.
fn asking(bench: &mut Bench) -> (Vec<Host>, Vec<QpId>) {
    let ask = |_| {
        let mut host = bench.host();
        let qp = host.open(bench.net.now(), &Request::new(0, 32));
        (host, qp)
    };
    (0..ASKING).map(ask).unzip()
}

fn read(host: &mut Host, qp: QpId) -> Sent {
    host.send_with(qp, Io::new(1, 0, 1).to_sqe(io::READ), &[0; 512])
}

/// Runs until all requests are accepted, while `busy` always has a command outstanding on
/// `qp` if there is one. Returns when each was accepted.
fn accepted(
    bench: &mut Bench,
    asking: &mut [Host],
    busy: &mut Host,
    qp: Option<QpId>,
) -> Vec<Duration> {
    let first = bench.reactor.counters().connection_requests().0;
    let mut sent = qp.map(|qp| read(busy, qp));
    let mut times = Vec::new();
    let mut hosts: Vec<_> = [busy].into_iter().chain(asking).collect();
    bench.until(&mut hosts, |bench, hosts| {
        let now = bench.net.now();
        let count = bench.reactor.counters().connection_requests().0 - first;
        times.resize(usize::try_from(count).unwrap(), now);
        if sent.is_some_and(|sent| hosts[0].take(sent).is_some()) {
            sent = qp.map(|qp| read(hosts[0], qp));
        }
        times.len() == usize::from(ASKING)
    });
    times
}

#[test]
fn connections_are_accepted_at_a_pace_while_commands_are_served() {
    let mut bench = Bench::new(31);
    let mut busy = bench.host();
    let (_, qp) = ready(&mut bench, &mut busy);
    let (mut hosts, _) = asking(&mut bench);
    let times = accepted(&mut bench, &mut hosts, &mut busy, Some(qp));
    let pauses = times.windows(2).map(|pair| pair[1] - pair[0]);
    let most = ACCEPT_PACE + Duration::from_micros(100);
    for pause in pauses {
        assert!((ACCEPT_PACE..most).contains(&pause), "{times:?}");
    }
}

#[test]
fn connections_are_accepted_at_once_while_no_command_is_served() {
    let mut bench = Bench::new(32);
    let mut idle = bench.host();
    ready(&mut bench, &mut idle);
    bench.run_for(&mut [&mut idle], Duration::from_millis(10));
    let (mut hosts, _) = asking(&mut bench);
    let times = accepted(&mut bench, &mut hosts, &mut idle, None);
    assert!(times[7] - times[0] < ACCEPT_PACE, "{times:?}");
}

#[test]
fn request_of_disconnected_peer_is_dropped() {
    let mut bench = Bench::new(33);
    let mut host = bench.host();
    let (_, qp) = ready(&mut bench, &mut host);
    let sent = read(&mut host, qp);
    run(&mut bench, &mut host, sent);
    let (mut hosts, queue_pairs) = asking(&mut bench);
    let mut all: Vec<_> = hosts.iter_mut().collect();
    let most = usize::from(ASKING) - 1;
    bench.until(&mut all, |bench, _| {
        bench.reactor.requests_waiting() >= most
    });
    let asked = bench.reactor.counters().connection_requests();
    for (host, qp) in all.iter_mut().zip(queue_pairs) {
        host.provider.disconnect(qp);
    }
    bench.until(&mut all, |bench, _| {
        bench.reactor.requests_waiting() == 0 && bench.reactor.queue_pairs() == 2
    });
    assert_eq!(bench.reactor.counters().connection_requests(), asked);
}
