//! A host that has all the I/O queues it can get locks out no other host and no
//! discovery.

use nvmeof_rdma::Provider;
use nvmeof_target_core::Limits;
use nvmeof_wire::cm::Request;
use nvmeof_wire::fabrics::{Connect, ConnectData};
use nvmeof_wire::opcode::io;
use nvmeof_wire::{Nqn, nqn};
use zerocopy::IntoBytes;

use super::host::{Host, admin, connect, establish, run, try_connect};
use super::io::command;
use super::{Bench, few_buffers};
use crate::ReactorConfig;

/// As many capsules as a reactor has by default.
fn bench(seed: u64) -> Bench {
    let config = ReactorConfig {
        capsules: 4096,
        ..few_buffers()
    };
    let limits = Limits {
        max_transfer: 256 << 10,
        ..Limits::default()
    };
    Bench::limited(seed, config, limits)
}

/// 16 controllers, each with as many I/O queues of 256 entries, up to 14, as it gets.
fn greedy(bench: &mut Bench) -> Host {
    let mut host = bench.host();
    // Receives: it only connects.
    host.depth = 4;
    let mut refused = false;
    for _ in 0..16 {
        let (_, cntlid) = admin(bench, &mut host, 0);
        for qid in 1..=14 {
            let queue = establish(bench, &mut host, &Request::new(qid, 256));
            let connect = Connect::new(qid, 256, 0);
            let cqe = try_connect(bench, &mut host, queue, &connect, cntlid);
            if !cqe.status().is_success() {
                refused = true;
                host.provider.disconnect(queue);
                break;
            }
        }
    }
    assert!(refused, "there is enough for all of them");
    host
}

#[test]
fn host_with_all_its_queues_locks_out_no_other() {
    let mut bench = bench(1);
    let _greedy = greedy(&mut bench);
    let mut other = bench.host();
    let (_, cntlid) = admin(&mut bench, &mut other, 0);
    let (qp, _) = connect(&mut bench, &mut other, &Connect::new(1, 128, 0), cntlid);
    let read = other.send_with(qp, command(io::READ, 0, 8), &[0; 4096]);
    let (cqe, _) = run(&mut bench, &mut other, read);
    assert!(cqe.status().is_success());
}

#[test]
fn host_with_all_its_queues_does_not_stop_discovery() {
    let mut bench = bench(2);
    let _greedy = greedy(&mut bench);
    // The maximum number.
    for _ in 0..Limits::default().discovery_controllers {
        let mut host = bench.host();
        host.depth = 4;
        let queue = establish(&mut bench, &mut host, &Request::new(0, 32));
        let name = Nqn::new(&format!("nqn.2026-11.org.example:finder{}", host.id[0]));
        let discovery = Nqn::new(nqn::DISCOVERY).unwrap();
        let data = ConnectData::new(host.id, 0xffff, &discovery, &name.unwrap());
        let sent = host.send_with(queue, Connect::new(0, 32, 0).to_sqe(), data.as_bytes());
        let (cqe, _) = run(&mut bench, &mut host, sent);
        assert!(cqe.status().is_success(), "{:?}", cqe.status());
    }
}
