//! Requests of one host do not prevent another from being served.

use std::time::Duration;

use nvmeof_memory::ClassSpec;
use nvmeof_rdma::Provider;
use nvmeof_target_core::{Limit, Limits};
use nvmeof_wire::Sqe;
use nvmeof_wire::fabrics::Connect;
use nvmeof_wire::nvm::Io;
use nvmeof_wire::opcode::{Opcode, io};

use super::host::*;
use super::{Bench, few_buffers};
use crate::ReactorConfig;

/// The limit of a port does not matter here.
fn limits() -> Limits {
    Limits {
        port_memory: 100,
        ..super::limits()
    }
}

/// One host may hold every buffer, so that waiting hosts depend on the fair queue.
pub(super) fn by_turns(seed: u64) -> Bench {
    let limits = Limits {
        host_memory: 100,
        ..limits()
    };
    Bench::limited(seed, few_buffers(), limits)
}

pub(super) fn command(opcode: Opcode, slba: u64, blocks: u32) -> Sqe {
    Io::new(1, slba, blocks).to_sqe(opcode)
}

#[test]
fn stalled_transfers_hold_no_more_buffers_than_reads() {
    let mut bench = Bench::new(1);
    let (mut slow, mut good) = (bench.host(), bench.host());
    slow.reads_in = 4;
    let (_, stuck) = ready(&mut bench, &mut slow);
    let (_, qp) = ready(&mut bench, &mut good);
    show(&mut bench, &mut slow, stuck);
    let all = bench.reactor.free_buffers().0;
    for _ in 0..100 {
        slow.send_with(stuck, command(io::WRITE, 0, 8), &[1; 4096]);
    }
    // It sends them, and then nothing any more.
    slow.provider.submit(bench.net.now());
    let mut least = all;
    for _ in 0..50 {
        let sent = good.send_with(qp, command(io::READ, 0, 8), &[0; 4096]);
        assert!(run(&mut bench, &mut good, sent).0.status().is_success());
        least = least.min(bench.reactor.free_buffers().0);
    }
    assert_eq!(least, all - 4);
    let mut sent: Vec<_> = (0..20)
        .map(|_| slow.send_with(stuck, command(io::WRITE, 0, 8), &[1; 4096]))
        .collect();
    bench.until(&mut [&mut slow, &mut good], |_, hosts| {
        sent.retain(|sent| hosts[0].take(*sent).is_none());
        sent.is_empty()
    });
    assert_eq!(bench.reactor.free_buffers().0, all);
}

#[test]
fn queues_awaiting_buffers_are_served_round_robin() {
    let mut bench = by_turns(2);
    let (mut greedy, mut modest) = (bench.host(), bench.host());
    let (_, many) = ready(&mut bench, &mut greedy);
    let (_, qp) = ready(&mut bench, &mut modest);
    show(&mut bench, &mut greedy, many);
    bench.reactor.stores_mut().hold = true;
    let all: Vec<_> = (0..100)
        .map(|_| greedy.send_with(many, command(io::READ, 0, 8), &[0; 4096]))
        .collect();
    bench.until(&mut [&mut greedy, &mut modest], |bench, _| {
        bench.reactor.free_buffers().0 == 0
    });
    bench.run_for(&mut [&mut greedy], Duration::from_millis(10));
    let one = modest.send_with(qp, command(io::READ, 0, 8), &[0; 4096]);
    bench.run_for(&mut [&mut greedy, &mut modest], Duration::from_millis(10));
    // The backing store gets as many buffers at a time as there are.
    for _ in 0..2 {
        bench.reactor.stores_mut().hold = false;
        bench.reactor.poll_once(bench.net.now()).unwrap();
        bench.reactor.stores_mut().hold = true;
        bench.run_for(&mut [&mut greedy, &mut modest], Duration::from_millis(10));
    }
    let served = all.iter().filter(|sent| greedy.take(**sent).is_some());
    assert!(served.count() < 50);
    assert!(
        modest.take(one).is_some(),
        "it waits for all of the other's"
    );
}

/// A host with five queues and many commands, followed by one with a single queue, while
/// backing stores are held. Their commands in this order.
fn many_queues_and_one(bench: &mut Bench, hosts: &mut [Host; 2]) -> [Vec<Sent>; 2] {
    let [greedy, modest] = hosts;
    let (_, cntlid) = admin(bench, greedy, 0);
    let queues: Vec<_> = (1..6)
        .map(|qid| connect(bench, greedy, &Connect::new(qid, 32, 0), cntlid).0)
        .collect();
    let (_, one) = ready(bench, modest);
    show(bench, greedy, queues[0]);
    show(bench, modest, one);
    bench.reactor.stores_mut().hold = true;
    let read = |host: &mut Host, qp| host.send_with(qp, command(io::READ, 0, 8), &[0; 4096]);
    let much = queues.iter().cycle().take(5 * 30);
    let much = much.map(|queue| read(greedy, *queue)).collect();
    bench.run_for(&mut [greedy], Duration::from_millis(10));
    let little = (0..40).map(|_| read(modest, one)).collect();
    bench.run_for(&mut [greedy, modest], Duration::from_millis(10));
    [much, little]
}

/// Completes all operations of the backing stores, so many times. Returns how many
/// commands of each host have a response.
pub(super) fn served(
    bench: &mut Bench,
    hosts: [Host; 2],
    sent: [Vec<Sent>; 2],
    times: usize,
) -> [usize; 2] {
    let [mut greedy, mut modest] = hosts;
    for _ in 0..times {
        bench.reactor.stores_mut().hold = false;
        bench.reactor.poll_once(bench.net.now()).unwrap();
        bench.reactor.stores_mut().hold = true;
        let pause = Duration::from_millis(10);
        bench.run_for(&mut [&mut greedy, &mut modest], pause);
    }
    let [much, little] = sent;
    let count = |host: &mut Host, sent: Vec<Sent>| {
        let answered = sent.into_iter().filter(|sent| host.take(*sent).is_some());
        answered.count()
    };
    [count(&mut greedy, much), count(&mut modest, little)]
}

#[test]
fn buffers_do_not_grow_with_queues_of_a_host() {
    let mut bench = by_turns(4);
    let mut hosts = [bench.host(), bench.host()];
    let sent = many_queues_and_one(&mut bench, &mut hosts);
    assert_eq!(bench.reactor.free_buffers().0, 0, "they wait for buffers");
    let [greedy, modest] = served(&mut bench, hosts, sent, 4);
    // There are 20 buffers, which the first host had when the other connected. After
    // that, each gets every second one.
    assert_eq!(greedy + modest, 80);
    assert!((28..=32).contains(&modest), "{modest} of 60");
}

#[test]
fn store_slots_do_not_grow_with_queues_of_a_host() {
    let mut config = few_buffers();
    config.data[0].count = 512;
    let mut bench = Bench::with(5, config);
    bench.reactor.stores_mut().room = 8;
    let mut hosts = [bench.host(), bench.host()];
    let sent = many_queues_and_one(&mut bench, &mut hosts);
    assert!(
        bench.reactor.free_buffers().0 > 300,
        "buffers are not exhausted"
    );
    let [greedy, modest] = served(&mut bench, hosts, sent, 6);
    // Eight at a time, of which the first were all of the first host.
    assert_eq!(greedy + modest, 48);
    assert!((18..=22).contains(&modest), "{modest} of 40");
}

#[test]
fn closed_queues_leave_the_fair_queue() {
    let mut bench = Bench::new(3);
    bench.reactor.stores_mut().hold = true;
    for _ in 0..3 {
        let mut host = bench.host();
        let (_, qp) = ready(&mut bench, &mut host);
        for _ in 0..60 {
            host.send_with(qp, command(io::READ, 0, 8), &[0; 4096]);
        }
        bench.run_for(&mut [&mut host], Duration::from_millis(10));
        drop(host);
        let mut other = bench.host();
        bench.until(&mut [&mut other], |bench, _| {
            bench.reactor.queue_pairs() == 0
        });
        bench.run_for(&mut [&mut other], Duration::from_millis(1));
        assert!(bench.reactor.resources.awaiting.is_empty());
    }
}

/// Whatever a host requests, some buffers of each kind are reserved for others, and they
/// are served at once.
#[test]
fn buffers_per_host_are_limited() {
    let mut bench = Bench::new(6);
    let (mut greedy, mut modest) = (bench.host(), bench.host());
    let (_, many) = ready(&mut bench, &mut greedy);
    let (_, qp) = ready(&mut bench, &mut modest);
    show(&mut bench, &mut greedy, many);
    bench.reactor.stores_mut().hold = true;
    for _ in 0..60 {
        greedy.send_with(many, command(io::READ, 0, 8), &[0; 4096]);
    }
    for _ in 0..6 {
        greedy.send_with(many, command(io::READ, 0, 512), &vec![0; 256 << 10]);
    }
    let pause = Duration::from_millis(10);
    bench.run_for(&mut [&mut greedy, &mut modest], pause);
    // Three quarters of 16 and of 4.
    assert_eq!(bench.reactor.stores_mut().in_flight(), 12);
    assert_eq!(bench.reactor.free_buffers().0, 4 + 4);
    assert!(bench.reactor.target.limit_counters().get(Limit::HostMemory) > 0);
    let own: Vec<_> = [8, 512]
        .map(|blocks: u32| {
            let data = vec![0; blocks as usize * 512];
            modest.send_with(qp, command(io::READ, 0, blocks), &data)
        })
        .to_vec();
    bench.run_for(&mut [&mut greedy, &mut modest], pause);
    assert_eq!(bench.reactor.stores_mut().in_flight(), 14);
    bench.reactor.stores_mut().hold = false;
    for sent in own {
        assert!(run(&mut bench, &mut modest, sent).0.status().is_success());
    }
    // Without other hosts, a host may have everything.
    drop(modest);
    bench.run_for(&mut [&mut greedy], Duration::from_secs(1));
    bench.reactor.stores_mut().hold = true;
    for _ in 0..60 {
        greedy.send_with(many, command(io::READ, 0, 8), &[0; 4096]);
    }
    bench.run_for(&mut [&mut greedy], pause);
    assert_eq!(bench.reactor.free_buffers().0, 0);
}

/// The limit of a host applies whatever identifiers it uses, and still applies when it
/// reconnects while backing stores have its buffers.
#[test]
fn reconnected_host_keeps_its_charges() {
    let mut bench = Bench::new(60);
    let (mut greedy, mut modest) = (bench.host(), bench.host());
    let (_, qp) = ready(&mut bench, &mut greedy);
    let (_, its) = ready(&mut bench, &mut modest);
    show(&mut bench, &mut greedy, qp);
    let pause = Duration::from_millis(10);
    bench.reactor.stores_mut().hold = true;
    let read = |host: &mut Host, qp| host.send_with(qp, command(io::READ, 0, 8), &[0; 4096]);
    for _ in 0..8 {
        read(&mut greedy, qp);
    }
    bench.run_for(&mut [&mut greedy, &mut modest], pause);
    assert_eq!(bench.reactor.stores_mut().in_flight(), 8);
    greedy.provider.disconnect(qp);
    bench.run_for(&mut [&mut greedy, &mut modest], pause);
    // The same name, another identifier.
    greedy.id[15] = 99;
    let (_, second) = ready(&mut bench, &mut greedy);
    for _ in 0..60 {
        read(&mut greedy, second);
    }
    bench.run_for(&mut [&mut greedy, &mut modest], pause);
    let held = bench.reactor.stores_mut().in_flight();
    assert_eq!(held, 12, "three quarters of 16");
    let own = read(&mut modest, its);
    bench.run_for(&mut [&mut greedy, &mut modest], pause);
    assert_eq!(bench.reactor.stores_mut().in_flight(), 13);
    // The backing store returns the buffers of the first queue: the second gets them.
    bench.reactor.stores_mut().hold = false;
    bench.reactor.poll_once(bench.net.now()).unwrap();
    bench.reactor.stores_mut().hold = true;
    bench.run_for(&mut [&mut greedy, &mut modest], pause);
    assert_eq!(bench.reactor.stores_mut().in_flight(), 12);
    bench.reactor.stores_mut().hold = false;
    assert!(run(&mut bench, &mut modest, own).0.status().is_success());
}

/// A host that uses the identifier of another is charged to its own account.
#[test]
fn host_identifier_of_another_host_charges_its_own_account() {
    let mut bench = Bench::new(61);
    let (mut liar, mut honest) = (bench.host(), bench.host());
    liar.id = [honest.id[0]; 16];
    liar.name = Some(50);
    let (_, qp) = ready(&mut bench, &mut liar);
    let (_, its) = ready(&mut bench, &mut honest);
    show(&mut bench, &mut liar, qp);
    show(&mut bench, &mut honest, its);
    bench.reactor.stores_mut().hold = true;
    let read = |host: &mut Host, qp| host.send_with(qp, command(io::READ, 0, 8), &[0; 4096]);
    for _ in 0..60 {
        read(&mut liar, qp);
    }
    let pause = Duration::from_millis(10);
    bench.run_for(&mut [&mut liar, &mut honest], pause);
    assert_eq!(bench.reactor.stores_mut().in_flight(), 12);
    for _ in 0..4 {
        read(&mut honest, its);
    }
    bench.run_for(&mut [&mut liar, &mut honest], pause);
    // With the short ones used up, the first gets its share of the longer ones as well.
    assert_eq!(bench.reactor.stores_mut().in_flight(), 12 + 4 + 3);
}

/// A Compare holds two buffers, and both count.
#[test]
fn every_buffer_of_a_command_counts() {
    let mut config = few_buffers();
    config.data[1].count = 15;
    let mut bench = Bench::with(62, config);
    let (mut greedy, mut modest) = (bench.host(), bench.host());
    let (_, qp) = ready(&mut bench, &mut greedy);
    ready(&mut bench, &mut modest);
    show(&mut bench, &mut greedy, qp);
    bench.reactor.stores_mut().hold = true;
    for _ in 0..10 {
        greedy.send_with(qp, command(io::COMPARE, 0, 512), &vec![0; 256 << 10]);
    }
    bench.run_for(&mut [&mut greedy, &mut modest], Duration::from_secs(1));
    assert_eq!(
        bench.reactor.stores_mut().in_flight(),
        6,
        "of 15, 11 are its part: two each, and one beside the reserve"
    );
    assert_eq!(bench.reactor.free_buffers().0, 16 + 4);
    bench.reactor.stores_mut().hold = false;
    bench.run_for(&mut [&mut greedy, &mut modest], Duration::from_secs(1));
    assert_eq!(bench.reactor.free_buffers().0, 31);
}

/// A command that needs more than its host's share of a kind is served nevertheless.
#[test]
fn single_command_may_exceed_the_limit() {
    let mut config = few_buffers();
    config.data[1].count = 2;
    let mut bench = Bench::with(65, config);
    let (mut one, mut other) = (bench.host(), bench.host());
    let (_, qp) = ready(&mut bench, &mut one);
    ready(&mut bench, &mut other);
    let compare = one.send_with(qp, command(io::COMPARE, 0, 512), &vec![0; 256 << 10]);
    assert!(run(&mut bench, &mut one, compare).0.status().is_success());
}

/// As many kinds as there may be are distinguished.
#[test]
fn each_kind_of_buffer_has_its_own_limit() {
    let mut config = few_buffers();
    config.data = (0..8)
        .map(|shift| ClassSpec {
            len: 2048 << shift,
            count: 8,
        })
        .collect();
    let mut bench = Bench::with(63, config.clone());
    let (mut greedy, mut modest) = (bench.host(), bench.host());
    let (_, cntlid) = admin(&mut bench, &mut greedy, 0);
    let queues = [1, 2].map(|qid| {
        let queue = Connect::new(qid, 32, 0);
        connect(&mut bench, &mut greedy, &queue, cntlid).0
    });
    ready(&mut bench, &mut modest);
    show(&mut bench, &mut greedy, queues[0]);
    bench.reactor.stores_mut().hold = true;
    // The two longest kinds, of 128 and 256 KiB.
    for (queue, blocks) in queues.into_iter().zip([256u32, 512]) {
        for _ in 0..8 {
            let data = vec![0; blocks as usize * 512];
            greedy.send_with(queue, command(io::READ, 0, blocks), &data);
        }
    }
    bench.run_for(&mut [&mut greedy, &mut modest], Duration::from_secs(1));
    assert_eq!(bench.reactor.stores_mut().in_flight(), 6 + 6);
    config.data.push(ClassSpec {
        len: 1 << 20,
        count: 2,
    });
    let made = crate::Reactor::new(
        config,
        bench.reactor.target.clone(),
        super::memory::MemoryStores::new(1, 512),
        bench.reactor.mailbox().clone(),
        std::sync::Arc::from([]),
    );
    let refused = crate::ReactorError::TooManyKinds { there: 9 };
    assert_eq!(
        made.err().map(|error| error.to_string()),
        Some(refused.to_string())
    );
}

/// A single host leaves one queue for the next, not a quarter of everything.
#[test]
fn lone_host_leaves_room_for_another_queue() {
    let limits = Limits {
        queue_depth: 32,
        host_memory: 50,
        ..limits()
    };
    let config = ReactorConfig {
        capsules: 256,
        ..few_buffers()
    };
    let mut bench = Bench::limited(64, config, limits);
    let mut large = bench.host();
    let (_, cntlid) = admin(&mut bench, &mut large, 0);
    let mut queues = 0;
    for qid in 1..=8 {
        let connect = Connect::new(qid, 32, 0);
        let request = nvmeof_wire::cm::Request::new(qid, 32);
        let queue = establish(&mut bench, &mut large, &request);
        let cqe = try_connect(&mut bench, &mut large, queue, &connect, cntlid);
        if !cqe.status().is_success() {
            large.provider.disconnect(queue);
            break;
        }
        queues += 1;
    }
    // Of 256 capsules 64 are for another host, and admin queues have their own. With
    // half of all for others it would get 4.
    assert_eq!(queues, 6);
    let mut other = bench.host();
    let (_, qp) = ready_with(&mut bench, &mut other, 32);
    let read = other.send_with(qp, command(io::READ, 0, 8), &[0; 4096]);
    assert!(run(&mut bench, &mut other, read).0.status().is_success());
}

/// Whatever others hold, a host can connect, its Keep Alive is served, and so is its
/// first command.
#[test]
fn host_connects_while_others_hold_all_resources() {
    let mut config = few_buffers();
    config.capsules = 256;
    let mut bench = Bench::limited(7, config, limits());
    bench.reactor.stores_mut().hold = true;
    let mut greedy = bench.host();
    let (_, cntlid) = admin(&mut bench, &mut greedy, 0);
    let mut queues = Vec::new();
    for qid in 1..=8 {
        let connect = Connect::new(qid, 32, 0);
        let request = nvmeof_wire::cm::Request::new(qid, 32);
        let queue = establish(&mut bench, &mut greedy, &request);
        let cqe = try_connect(&mut bench, &mut greedy, queue, &connect, cntlid);
        if !cqe.status().is_success() {
            break;
        }
        queues.push(queue);
    }
    // Of 256 capsules a quarter is for the first queues of others.
    assert_eq!(queues.len(), 6);
    assert_eq!(
        bench.reactor.target.limit_counters().get(Limit::HostMemory),
        1
    );
    for queue in &queues {
        for _ in 0..31 {
            greedy.send_with(*queue, command(io::READ, 0, 8), &[0; 4096]);
        }
    }
    let pause = Duration::from_millis(10);
    bench.run_for(&mut [&mut greedy], pause);
    assert_eq!(bench.reactor.free_buffers().0, 0, "it has them all");
    let mut modest = bench.host();
    let (first, cntlid) = admin(&mut bench, &mut modest, 5000);
    let alive = nvmeof_wire::admin::bare(nvmeof_wire::opcode::admin::KEEP_ALIVE);
    let sent = modest.send(first, alive, &[]);
    assert!(run(&mut bench, &mut modest, sent).0.status().is_success());
    let (qp, _) = connect(&mut bench, &mut modest, &Connect::new(1, 32, 0), cntlid);
    let read = modest.send_with(qp, command(io::READ, 0, 8), &[0; 4096]);
    bench.run_for(&mut [&mut greedy, &mut modest], pause);
    bench.reactor.stores_mut().hold = false;
    assert!(run(&mut bench, &mut modest, read).0.status().is_success());
}

/// Commands whose data stay in the target release their buffer between two pieces: their
/// length does not affect other hosts.
#[test]
fn long_commands_release_buffers_between_pieces() {
    let mut bench = by_turns(8);
    let mut host = bench.host();
    let (_, qp) = ready(&mut bench, &mut host);
    bench.reactor.stores_mut().hold = true;
    let pause = Duration::from_millis(10);
    // Eight pieces each; there are four buffers for pieces.
    let long: Vec<_> = (0..4)
        .map(|_| host.send(qp, command(io::VERIFY, 0, 2048), &[]))
        .collect();
    bench.run_for(&mut [&mut host], pause);
    assert_eq!(bench.reactor.stores_mut().in_flight(), 4);
    let short = host.send_with(qp, command(io::READ, 0, 512), &vec![0; 256 << 10]);
    bench.run_for(&mut [&mut host], pause);
    for _ in 0..2 {
        bench.reactor.stores_mut().hold = false;
        bench.reactor.poll_once(bench.net.now()).unwrap();
        bench.reactor.stores_mut().hold = true;
        bench.run_for(&mut [&mut host], pause);
    }
    assert!(host.take(short).is_some(), "it waits for whole commands");
    bench.reactor.stores_mut().hold = false;
    for sent in long {
        assert!(run(&mut bench, &mut host, sent).0.status().is_success());
    }
    assert_eq!(bench.reactor.free_buffers().0, 20);
}

/// Commands arrive while the reactor does not run.
pub(super) fn arrive(bench: &mut Bench, hosts: &mut [&mut Host]) {
    let end = bench.net.now() + Duration::from_millis(10);
    while bench.net.now() < end {
        let now = bench.net.now();
        let polled = hosts.iter_mut().map(|host| host.poll_once(now));
        let busy = polled.fold(false, |any, one| any | one);
        if !busy && !bench.net.advance_to_next(Some(end)) {
            break;
        }
    }
}

/// Commands of a host that arrived while the reactor did not run do not all start before
/// those of another, even if there are buffers and slots for them.
#[test]
fn commands_of_hosts_start_round_robin() {
    let mut config = few_buffers();
    (config.capsules, config.data[0].count) = (4096, 2048);
    let mut bench = Bench::with(9, config);
    let (mut greedy, mut modest) = (bench.host(), bench.host());
    let (_, cntlid) = admin(&mut bench, &mut greedy, 0);
    let queues = (1..11).map(|qid| {
        let connect_to = Connect::new(qid, 32, 0);
        connect(&mut bench, &mut greedy, &connect_to, cntlid).0
    });
    let queues: Vec<_> = queues.collect();
    let (_, qp) = ready_with(&mut bench, &mut modest, 128);
    bench.reactor.stores_mut().hold = true;
    let zero = |host: &mut Host, qp, slba| host.send(qp, command(io::WRITE_ZEROES, slba, 8), &[]);
    let much = queues.iter().cycle().take(10 * 30);
    let much: Vec<_> = much.map(|queue| zero(&mut greedy, *queue, 0)).collect();
    let little: Vec<_> = (0..30).map(|_| zero(&mut modest, qp, 8)).collect();
    arrive(&mut bench, &mut [&mut greedy, &mut modest]);
    let polled = bench.reactor.poll_once(bench.net.now()).unwrap();
    assert!(polled.did_work, "there is more");
    let started = [0, 8].map(|slba| bench.reactor.stores_mut().in_flight_at(slba * 512));
    // 64 as they arrived, 64 from the fair queue.
    assert_eq!(started[1], 30, "{started:?}");
    assert!((80..=110).contains(&started[0]), "{started:?}");
    bench.reactor.stores_mut().hold = false;
    let mut left = [much, little];
    bench.until(&mut [&mut greedy, &mut modest], |_, hosts| {
        for (host, left) in hosts.iter_mut().zip(&mut left) {
            left.retain(|sent| host.take(*sent).is_none());
        }
        left.iter().all(Vec::is_empty)
    });
    assert_eq!(bench.reactor.free_buffers().0, 2048 + 4);
    assert!(bench.reactor.resources.due.is_empty());
}

/// The same for queues of one host: the program that uses one queue does not wait for all
/// that others sent.
#[test]
fn commands_of_queues_of_one_host_start_round_robin() {
    let mut config = few_buffers();
    config.capsules = 4096;
    let mut bench = Bench::with(11, config);
    let mut host = bench.host();
    let (_, cntlid) = admin(&mut bench, &mut host, 0);
    let mut queue = |qid| connect(&mut bench, &mut host, &Connect::new(qid, 32, 0), cntlid).0;
    let deep: Vec<_> = (1..11).map(&mut queue).collect();
    let shallow = queue(11);
    bench.reactor.stores_mut().hold = true;
    let mut zero = |qp, slba| host.send(qp, command(io::WRITE_ZEROES, slba, 8), &[]);
    let much = deep.iter().cycle().take(10 * 30);
    let mut sent: Vec<_> = much.map(|queue| zero(*queue, 0)).collect();
    sent.push(zero(shallow, 8));
    arrive(&mut bench, &mut [&mut host]);
    bench.reactor.poll_once(bench.net.now()).unwrap();
    let started = [0, 8].map(|slba| bench.reactor.stores_mut().in_flight_at(slba * 512));
    assert_eq!(started[1], 1, "{started:?}");
    assert!((80..=130).contains(&started[0]), "{started:?}");
    bench.reactor.stores_mut().hold = false;
    bench.until(&mut [&mut host], |_, hosts| {
        sent.retain(|one| hosts[0].take(*one).is_none());
        sent.is_empty()
    });
    assert!(bench.reactor.resources.due.is_empty());
}

/// The only queue is not limited.
#[test]
fn all_commands_of_a_lone_queue_start_at_once() {
    let mut config = few_buffers();
    config.data[0].count = 512;
    let mut bench = Bench::with(10, config);
    let mut host = bench.host();
    let (_, qp) = ready_with(&mut bench, &mut host, 256);
    bench.reactor.stores_mut().hold = true;
    for _ in 0..255 {
        host.send_with(qp, command(io::READ, 0, 8), &[0; 4096]);
    }
    arrive(&mut bench, &mut [&mut host]);
    bench.reactor.poll_once(bench.net.now()).unwrap();
    assert_eq!(bench.reactor.stores_mut().in_flight(), 255);
}

/// Its data are sent with the response, in one work request if the provider can.
#[test]
fn reading_host_widens_its_window() {
    let mut bench = Bench::new(66);
    let (mut reader, mut other) = (bench.host(), bench.host());
    let (_, qp) = ready(&mut bench, &mut reader);
    ready(&mut bench, &mut other);
    let read = |host: &mut Host| host.send_with(qp, command(io::READ, 0, 8), &[0; 4096]);
    for _ in 0..8 {
        let sent = read(&mut reader);
        assert!(run(&mut bench, &mut reader, sent).0.status().is_success());
    }
    bench.reactor.stores_mut().hold = true;
    for _ in 0..12 {
        read(&mut reader);
    }
    bench.run_for(&mut [&mut reader, &mut other], Duration::from_millis(10));
    assert_eq!(bench.reactor.stores_mut().in_flight(), 12);
}
