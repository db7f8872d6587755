//! Transfers that stall while other hosts wait for their buffers.

use std::time::Duration;

use nvmeof_rdma::Provider;
use nvmeof_target_core::Limit;
use nvmeof_wire::opcode::io;

use super::fairness::command;
use super::host::{Host, Sent, ready, run, show};
use super::{Bench, few_buffers};
use crate::ReactorConfig;

const LONG: usize = 256 << 10;

fn long_write(host: &mut Host, qp: nvmeof_rdma::QpId) -> Sent {
    host.send_with(qp, command(io::WRITE, 0, 512), &vec![1; LONG])
}

/// How often a connection was closed for others that waited.
fn given_up(bench: &Bench) -> u64 {
    bench
        .reactor
        .target
        .limit_counters()
        .get(Limit::StalledTransfer)
}

#[test]
fn stalled_transfer_is_closed_for_a_waiting_host() {
    let mut bench = Bench::new(120);
    let (mut silent, mut good) = (bench.host(), bench.host());
    let (_, stuck) = ready(&mut bench, &mut silent);
    let (_, qp) = ready(&mut bench, &mut good);
    // Of four buffers of this length one is for hosts without a record.
    long_write(&mut silent, stuck);
    silent.provider.submit(bench.net.now());
    bench.run_for(&mut [&mut good], Duration::from_millis(20));
    let sent = long_write(&mut good, qp);
    let from = bench.net.now();
    assert!(run(&mut bench, &mut good, sent).0.status().is_success());
    let took = bench.net.now() - from;
    assert!(took < Duration::from_millis(300), "{took:?}");
    assert_eq!(given_up(&bench), 1);
}

#[test]
fn stalled_transfer_is_kept_without_waiting_hosts() {
    let mut bench = Bench::new(121);
    let (mut silent, mut good) = (bench.host(), bench.host());
    let (_, stuck) = ready(&mut bench, &mut silent);
    let (_, qp) = ready(&mut bench, &mut good);
    show(&mut bench, &mut good, qp);
    let sent = long_write(&mut silent, stuck);
    silent.provider.submit(bench.net.now());
    for _ in 0..20 {
        let sent = long_write(&mut good, qp);
        assert!(run(&mut bench, &mut good, sent).0.status().is_success());
        bench.run_for(&mut [&mut good], Duration::from_millis(100));
    }
    assert_eq!(given_up(&bench), 0);
    assert!(run(&mut bench, &mut silent, sent).0.status().is_success());
}

/// Whatever its queues wait for, they wait for their own host.
#[test]
fn transfers_of_a_lone_host_are_kept() {
    let config = ReactorConfig {
        capsules: 512,
        ..few_buffers()
    };
    let mut bench = Bench::with(122, config);
    let mut host = bench.host();
    let (_, qp) = ready(&mut bench, &mut host);
    let sent: Vec<_> = (0..8).map(|_| long_write(&mut host, qp)).collect();
    host.provider.submit(bench.net.now());
    bench.run_for(&mut [], Duration::from_secs(2));
    assert_eq!(given_up(&bench), 0);
    for sent in sent {
        assert!(run(&mut bench, &mut host, sent).0.status().is_success());
    }
}
