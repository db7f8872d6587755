//! What one host asks for does not keep another from being served.

use nvmeof_rdma::Provider;
use nvmeof_wire::Sqe;
use nvmeof_wire::nvm::{Io, IoFlags};
use nvmeof_wire::opcode::{Opcode, io};

use super::Bench;
use super::host::{ready, run};

fn command(opcode: Opcode, slba: u64, blocks: u32) -> Sqe {
    let (nsid, flags) = (1, IoFlags::empty());
    Io {
        nsid,
        slba,
        blocks,
        flags,
    }
    .to_sqe(opcode)
}

#[test]
fn data_that_never_come_hold_no_more_buffers_than_reads() {
    let mut bench = Bench::new(1);
    let (mut slow, mut good) = (bench.host(), bench.host());
    slow.reads_in = 4;
    let (_, stuck) = ready(&mut bench, &mut slow);
    let (_, qp) = ready(&mut bench, &mut good);
    let all = bench.reactor.free_buffers().0;
    for _ in 0..100 {
        slow.send_with(stuck, command(io::WRITE, 0, 8), &[1; 4096]);
    }
    // It sends them and then does nothing any more.
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
fn queues_that_wait_for_buffers_take_turns() {
    let mut bench = Bench::new(2);
    let (mut greedy, mut modest) = (bench.host(), bench.host());
    let (_, many) = ready(&mut bench, &mut greedy);
    let (_, qp) = ready(&mut bench, &mut modest);
    bench.reactor.storage_mut().hold = true;
    let all: Vec<_> = (0..100)
        .map(|_| greedy.send_with(many, command(io::READ, 0, 8), &[0; 4096]))
        .collect();
    bench.until(&mut [&mut greedy, &mut modest], |bench, _| {
        bench.reactor.free_buffers().0 == 0
    });
    bench.run_for(&mut [&mut greedy], std::time::Duration::from_millis(10));
    let one = modest.send_with(qp, command(io::READ, 0, 8), &[0; 4096]);
    bench.run_for(
        &mut [&mut greedy, &mut modest],
        std::time::Duration::from_millis(10),
    );
    // As many buffers as there are go to the disk at a time.
    for _ in 0..2 {
        bench.reactor.storage_mut().hold = false;
        bench.reactor.turn(bench.net.now()).unwrap();
        bench.reactor.storage_mut().hold = true;
        bench.run_for(
            &mut [&mut greedy, &mut modest],
            std::time::Duration::from_millis(10),
        );
    }
    let served = all.iter().filter(|sent| greedy.take(**sent).is_some());
    assert!(served.count() < 50);
    assert!(
        modest.take(one).is_some(),
        "it waits for all of the other's"
    );
}

#[test]
fn queues_that_are_gone_have_no_turn() {
    let mut bench = Bench::new(3);
    bench.reactor.storage_mut().hold = true;
    for _ in 0..3 {
        let mut host = bench.host();
        let (_, qp) = ready(&mut bench, &mut host);
        for _ in 0..60 {
            host.send_with(qp, command(io::READ, 0, 8), &[0; 4096]);
        }
        bench.run_for(&mut [&mut host], std::time::Duration::from_millis(10));
        drop(host);
        let mut other = bench.host();
        bench.until(&mut [&mut other], |bench, _| {
            bench.reactor.queue_pairs() == 0
        });
        bench.run_for(&mut [&mut other], std::time::Duration::from_millis(1));
        assert!(bench.reactor.hungry.is_empty());
    }
}
