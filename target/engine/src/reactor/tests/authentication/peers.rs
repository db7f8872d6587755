//! Peers that start an authentication and never finish it.

use std::sync::atomic::{AtomicBool, Ordering};

use nvmeof_wire::admin::SetFeatures;
use nvmeof_wire::features::FeatureId;

use super::super::late::Late;
use super::*;

/// A queue whose peer knows the name of a host with a key, and sent its Negotiate.
fn started(bench: &mut Bench, host: &mut Host) -> QpId {
    let (qp, _) = unproven(bench, host, &Connect::new(0, 32, 0), 0xffff);
    let (_, step) = start(host, right(host, false));
    let sent = send_step(host, qp, &step);
    assert!(run(bench, host, sent).0.status().is_success());
    qp
}

#[test]
fn peers_that_never_finish_do_not_keep_out_honest_hosts() {
    let limits = Limits {
        unconnected: 8,
        ..limits()
    };
    let mut bench = inline(1, limits);
    let mut peers: Vec<Host> = (0..25).map(|_| bench.host()).collect();
    let mut honest = bench.host();
    for round in 0..40 {
        for peer in &mut peers {
            // All of them have the name of the honest host.
            peer.id = honest.id;
            started(&mut bench, peer);
            assert!(bench.reactor.queue_pairs() <= 16);
        }
        if round % 10 == 0 {
            let (admin, io) = ready(&mut bench, &mut honest, true);
            assert!(read(&mut bench, &mut honest, io).is_success());
            for qp in [admin, io] {
                honest.provider.disconnect(qp);
            }
            bench.until(&mut [&mut honest], |bench, _| {
                bench.reactor.target.connected().is_empty()
            });
        }
    }
    // A thousand.
    assert_eq!(peers.len() * 40, 1000);
    for peer in &mut peers {
        bench.run_for(&mut [peer], Duration::from_millis(10));
    }
}

#[test]
fn idle_connection_is_replaced_before_one_with_progress() {
    let limits = Limits {
        unconnected: 2,
        ..limits()
    };
    let mut bench = inline(2, limits);
    let [mut first, mut second, mut third] = [bench.host(), bench.host(), bench.host()];
    let (qp, _) = unproven(&mut bench, &mut first, &Connect::new(0, 32, 0), 0xffff);
    bench.run_for(&mut [&mut first], Duration::from_secs(1));
    unproven(&mut bench, &mut second, &Connect::new(0, 32, 0), 0xffff);
    bench.run_for(&mut [&mut second], Duration::from_secs(1));
    // The older one continues.
    let (_, step) = start(&first, right(&first, false));
    let sent = send_step(&mut first, qp, &step);
    assert!(run(&mut bench, &mut first, sent).0.status().is_success());
    establish(&mut bench, &mut third, &Request::new(0, 32));
    bench.until(&mut [&mut first, &mut second, &mut third], |_, hosts| {
        !hosts[1].closed.is_empty()
    });
    assert!(first.closed.is_empty());
}

#[test]
fn connection_that_waits_for_a_worker_is_not_replaced() {
    let limits = Limits {
        unconnected: 2,
        ..limits()
    };
    let (mut bench, workers) = held(3, limits);
    let [mut first, mut second, mut third] = [bench.host(), bench.host(), bench.host()];
    let (qp, _) = unproven(&mut bench, &mut first, &Connect::new(0, 32, 0), 0xffff);
    let (_, step) = start(&first, right(&first, false));
    send_step(&mut first, qp, &step);
    bench.until(&mut [&mut first], |_, _| workers.count() == 1);
    bench.run_for(&mut [&mut first], Duration::from_secs(1));
    unproven(&mut bench, &mut second, &Connect::new(0, 32, 0), 0xffff);
    establish(&mut bench, &mut third, &Request::new(0, 32));
    bench.until(&mut [&mut first, &mut second, &mut third], |_, hosts| {
        !hosts[1].closed.is_empty()
    });
    assert!(first.closed.is_empty());
}

/// A queue that got a controller counts as long as the message that it was told so by may be in
/// flight: otherwise new connections could find no message buffer.
#[test]
fn queue_counts_as_unconnected_until_its_message_buffers_return() {
    let limits = Limits {
        unconnected: 1,
        ..limits()
    };
    let withholds = Arc::<AtomicBool>::default();
    let late = |sim| -> Box<dyn Provider> { Box::new(Late::new(sim, &withholds).with_writes()) };
    let mut bench = Bench::authenticating(4, few_buffers(), limits, keys(), late);
    bench.reactor.set_workers(Arc::new(Inline));
    let [mut first, mut second, mut third] = [bench.host(), bench.host(), bench.host()];
    let (qp, _) = unproven(&mut bench, &mut first, &Connect::new(0, 32, 0), 0xffff);
    let (mut auth, mut step) = start(&first, right(&first, false));
    let mut commands = 0;
    while !matches!(step, HostStep::Done) {
        commands += 1;
        // The last one fetches Success1.
        withholds.store(commands == 4, Ordering::Relaxed);
        let sent = send_step(&mut first, qp, &step);
        let (cqe, data) = run(&mut bench, &mut first, sent);
        assert!(cqe.status().is_success());
        step = next(&mut auth, &step, &data);
    }
    assert_eq!((commands, bench.reactor.target.connected().len()), (4, 1));
    assert!(!has_all_messages(&bench));
    let request = Request::new(0, 32);
    establish(&mut bench, &mut second, &request);
    third.open(bench.net.now(), &request);
    bench.until(&mut [&mut third], |_, hosts| !hosts[0].rejected.is_empty());
    withholds.store(false, Ordering::Relaxed);
    bench.run_for(&mut [&mut first], Duration::from_millis(1));
    assert!(has_all_messages(&bench));
    establish(&mut bench, &mut third, &request);
    bench.until(&mut [&mut second], |_, hosts| !hosts[0].closed.is_empty());
    assert!(first.closed.is_empty());
}

#[test]
fn message_buffers_suffice_at_the_limit_of_connections() {
    let limits = Limits {
        unconnected: 3,
        ..limits()
    };
    let mut bench = inline(5, limits);
    let mut hosts: Vec<Host> = (0..3).map(|_| bench.host()).collect();
    for _ in 0..20 {
        for host in &mut hosts {
            ready(&mut bench, host, true);
        }
        for host in &mut hosts {
            let queues = std::mem::take(&mut host.established);
            for qp in queues {
                host.provider.disconnect(qp);
            }
        }
        let mut all: Vec<&mut Host> = hosts.iter_mut().collect();
        bench.until(&mut all, |bench, _| bench.reactor.queue_pairs() == 0);
        assert!(has_all_messages(&bench));
    }
}

/// All queues that hosts were granted may wait for their proofs at once.
#[test]
fn message_buffers_suffice_for_all_queues_that_hosts_were_granted() {
    let limits = Limits {
        unconnected: 4,
        ..limits()
    };
    let mut config = few_buffers();
    config.capsules = 4096;
    let mut bench = bench_with(6, config, limits);
    bench.reactor.set_workers(Arc::new(Inline));
    let mut hosts: Vec<Host> = (0..2).map(|_| bench.host()).collect();
    let mut unproven_queues = Vec::new();
    for host in &mut hosts {
        let (admin, cntlid) = unproven(&mut bench, host, &Connect::new(0, 32, 0), 0xffff);
        let keys = right(host, false);
        assert_eq!(authenticate(&mut bench, host, admin, keys), Ok(()));
        enable(&mut bench, host, admin);
        let grant = SetFeatures::new(FeatureId::NUMBER_OF_QUEUES, 0x0003_0003);
        let sent = host.send(admin, grant.to_sqe(), &[]);
        assert!(run(&mut bench, host, sent).0.status().is_success());
        let queues = (1..=4).map(|qid| {
            let connect = Connect::new(qid, 32, 0);
            unproven(&mut bench, host, &connect, cntlid).0
        });
        unproven_queues.push(queues.collect::<Vec<_>>());
    }
    // Those of peers that are no hosts yet, as many as there may be.
    let mut strangers: Vec<Host> = (0..4).map(|_| bench.host()).collect();
    for stranger in &mut strangers {
        let (qp, _) = unproven(&mut bench, stranger, &Connect::new(0, 32, 0), 0xffff);
        unproven_queues.push(vec![qp]);
    }
    hosts.append(&mut strangers);
    assert_eq!(bench.reactor.resources.messages.counts(), (32, 32));
    // All messages are pulled at once.
    let mut sent = Vec::new();
    for (at, (host, queues)) in hosts.iter_mut().zip(unproven_queues).enumerate() {
        for qp in queues {
            let (_, step) = start(host, right(host, false));
            sent.push((at, send_step(host, qp, &step)));
        }
    }
    let mut all: Vec<&mut Host> = hosts.iter_mut().collect();
    bench.until(&mut all, |_, hosts| {
        sent.retain(|(host, sent)| {
            let reply = hosts[*host].take(*sent);
            reply.is_none_or(|(cqe, _)| !cqe.status().is_success())
        });
        sent.is_empty()
    });
    assert_eq!(bench.reactor.queue_pairs(), 2 * (1 + 4) + 4);
}
