//! Admin commands are subject to fair queueing as others are, and a Keep Alive counts
//! from its arrival.

use std::time::Duration;

use nvmeof_rdma::QpId;
use nvmeof_target_core::Limits;
use nvmeof_wire::admin::{GetFeatures, Select, bare};
use nvmeof_wire::features::FeatureId;
use nvmeof_wire::opcode::{admin as opcode, io};

use super::fairness::{arrive, command};
use super::host::{Host, Sent, admin, ready_with};
use super::{Bench, few_buffers, limits};

/// Commands that a reactor starts in one iteration with several hosts: as they arrive,
/// and from the fair queue, where the last queue may start some more.
const IN_ONE_TURN: usize = 64 + 64 + 3;
/// Commands that an admin queue has outstanding.
const OUTSTANDING: usize = 31;

fn with_room(seed: u64, limits: Limits) -> Bench {
    let mut config = few_buffers();
    config.capsules = 4096;
    Bench::limited(seed, config, limits)
}

/// Sends so many commands over each of these admin queues.
fn flood(host: &mut Host, queues: &[QpId], each: usize) -> Vec<Sent> {
    let get = GetFeatures {
        fid: FeatureId::NUMBER_OF_QUEUES,
        select: Select::Current,
        cdw11: 0,
        nsid: 0,
    };
    let all = queues.iter().cycle().take(each * queues.len());
    all.map(|queue| host.send(*queue, get.to_sqe(), &[]))
        .collect()
}

fn answered(host: &mut Host, sent: &mut Vec<Sent>) -> usize {
    let before = sent.len();
    sent.retain(|sent| host.take(*sent).is_none());
    before - sent.len()
}

#[test]
fn admin_command_flood_does_not_starve_other_hosts() {
    let mut bench = with_room(90, limits());
    let (mut greedy, mut modest) = (bench.host(), bench.host());
    let queues: Vec<_> = (0..6)
        .map(|_| admin(&mut bench, &mut greedy, 0).0)
        .collect();
    let (_, qp) = ready_with(&mut bench, &mut modest, 128);
    bench.reactor.stores_mut().hold = true;
    let mut much = flood(&mut greedy, &queues, OUTSTANDING);
    arrive(&mut bench, &mut [&mut greedy]);
    let one = modest.send(qp, command(io::WRITE_ZEROES, 8, 8), &[]);
    arrive(&mut bench, &mut [&mut modest]);
    let polled = bench.reactor.poll_once(bench.net.now()).unwrap();
    assert!(polled.did_work, "there is more");
    let started = bench.reactor.stores_mut().in_flight_at(8 * 512);
    assert_eq!(started, 1, "it is served in this iteration");
    arrive(&mut bench, &mut [&mut greedy]);
    let in_time = answered(&mut greedy, &mut much);
    assert!((64..=IN_ONE_TURN).contains(&in_time), "{in_time}");
    bench.reactor.stores_mut().hold = false;
    bench.until(&mut [&mut greedy, &mut modest], |_, hosts| {
        answered(hosts[0], &mut much);
        much.is_empty() && hosts[1].take(one).is_some()
    });
    assert!(bench.reactor.resources.due.is_empty());
}

/// Others use up what an iteration starts, before it and after. A Keep Alive that is
/// first in its queue starts nevertheless, one of them.
#[test]
fn keep_alive_first_in_its_queue_starts_at_once() {
    let mut bench = with_room(92, limits());
    let mut hosts: Vec<Host> = (0..20).map(|_| bench.host()).collect();
    let queues: Vec<_> = hosts
        .iter_mut()
        .map(|host| admin(&mut bench, host, 0).0)
        .collect();
    let mut lively = bench.host();
    let (queue, _) = admin(&mut bench, &mut lively, 1000);
    for (host, queue) in hosts.iter_mut().zip(queues) {
        flood(host, &[queue], OUTSTANDING);
        arrive(&mut bench, &mut [host]);
    }
    let alive = [(); 2].map(|()| lively.send(queue, bare(opcode::KEEP_ALIVE), &[]));
    arrive(&mut bench, &mut [&mut lively]);
    let polled = bench.reactor.poll_once(bench.net.now()).unwrap();
    assert!(polled.did_work);
    arrive(&mut bench, &mut [&mut lively]);
    let started = alive.map(|alive| lively.take(alive).is_some());
    assert_eq!(started, [true, false]);
}

/// With an admin queue alone, and behind a flood on its own queue, while two other hosts
/// flood theirs.
#[test]
fn keep_alive_behind_a_flood_counts_from_arrival() {
    let limits = Limits {
        traffic_keep_alive: false,
        ..limits()
    };
    let mut bench = with_room(91, limits);
    let mut hosts = [bench.host(), bench.host()];
    let queues = hosts
        .each_mut()
        .map(|host| [(); 3].map(|()| admin(&mut bench, host, 0).0));
    let mut lively = bench.host();
    let (queue, _) = admin(&mut bench, &mut lively, 1000);
    for (host, queues) in hosts.iter_mut().zip(queues) {
        flood(host, &queues, OUTSTANDING);
        arrive(&mut bench, &mut [host]);
    }
    flood(&mut lively, &[queue], OUTSTANDING - 1);
    let alive = lively.send(queue, bare(opcode::KEEP_ALIVE), &[]);
    let end = bench.net.now() + Duration::from_secs(2);
    while bench.net.now() < end {
        arrive(&mut bench, &mut [&mut lively]);
    }
    let polled = bench.reactor.poll_once(bench.net.now()).unwrap();
    assert!(polled.did_work);
    arrive(&mut bench, &mut [&mut lively]);
    assert!(lively.take(alive).is_none(), "it waits");
    let [first, second] = &mut hosts;
    bench.until(&mut [first, second, &mut lively], |_, hosts| {
        hosts[2]
            .take(alive)
            .is_some_and(|(cqe, _)| cqe.status().is_success())
    });
}
