//! A backing store that does not complete anything: commands that wait for it delay no
//! others, and end when their namespace is removed.

use std::net::IpAddr;
use std::sync::mpsc::channel;
use std::time::Duration;

use nvmeof_backend::Losses;
use nvmeof_target_core::{Fabric, Model, PortSpec, SubsystemSpec};
use nvmeof_wire::nvm::Io;
use nvmeof_wire::opcode::{Opcode, io};
use nvmeof_wire::sqe::PSDT_SGL;
use nvmeof_wire::{Sqe, Status};

use super::host::{ready, run};
use super::orders::claim;
use super::{BLOCKS, Bench, NQN, limits, namespace};
use crate::mailbox::Order;

/// Makes the target serve these namespaces.
fn serve(bench: &Bench, nsids: &[u32]) {
    let ports = [[10u8, 0, 0, 1], [10, 0, 1, 1]];
    let ports = ports.map(|ip| PortSpec::new(IpAddr::from(ip), 4420, vec![Fabric::Iwarp.into()]));
    let subsystem = SubsystemSpec {
        nqn: NQN.into(),
        allow_any_host: true,
        namespaces: nsids.iter().copied().map(namespace).collect(),
        ..SubsystemSpec::default()
    };
    let model = Model::build(limits(), &ports, &[subsystem]).unwrap();
    let _ = bench.reactor.target.clone().apply(model).unwrap();
}

/// Namespaces 1 and 2. The backing store of the second accepts four operations and
/// completes none.
fn bench(seed: u64) -> Bench {
    let mut bench = Bench::new(seed);
    serve(&bench, &[1, 2]);
    let stores = bench.reactor.stores_mut();
    stores.contents.push(vec![0; stores.contents[0].len()]);
    stores.losses.push(Losses::of_its_own());
    (stores.room, stores.stalled_store) = (4, Some(1));
    bench
}

fn command(nsid: u32, opcode: Opcode, lba: u64) -> Sqe {
    assert!(lba + 8 <= BLOCKS);
    Io::new(nsid, lba, 8).to_sqe(opcode)
}

#[test]
fn full_backing_store_does_not_block_others() {
    let mut bench = bench(90);
    let mut host = bench.host();
    let (_, qp) = ready(&mut bench, &mut host);
    for _ in 0..8 {
        host.send_with(qp, command(2, io::READ, 0), &[0; 4096]);
    }
    bench.run_for(&mut [&mut host], Duration::from_millis(10));
    assert_eq!(bench.reactor.resources.backlog.len(), 4);
    for _ in 0..8 {
        let read = host.send_with(qp, command(1, io::READ, 0), &[0; 4096]);
        assert!(run(&mut bench, &mut host, read).0.status().is_success());
    }
    bench.reactor.stores_mut().stalled_store = None;
    bench.run_for(&mut [&mut host], Duration::from_millis(10));
    assert!(bench.reactor.resources.backlog.is_empty());
    assert_eq!(bench.reactor.free_buffers().0, 16 + 4);
}

/// Commands in the backing store end with its operations.
#[test]
fn removed_namespace_ends_commands_that_wait_for_its_backing_store() {
    let mut bench = bench(91);
    let mut host = bench.host();
    let (_, qp) = ready(&mut bench, &mut host);
    let mut sqe = command(2, io::COMPARE, 0);
    sqe.flags = PSDT_SGL | 1;
    let compare = host.send_with(qp, sqe, &[0; 4096]);
    let mut sqe = command(2, io::WRITE, 0);
    sqe.flags = PSDT_SGL | 2;
    let pair = [compare, host.send_with(qp, sqe, &[1; 4096])];
    bench.run_for(&mut [&mut host], Duration::from_millis(10));
    let locked = host.send_with(qp, command(2, io::WRITE, 0), &[2; 4096]);
    let mut reads: Vec<_> = (0..6)
        .map(|_| host.send_with(qp, command(2, io::READ, 8), &[0; 4096]))
        .collect();
    bench.run_for(&mut [&mut host], Duration::from_millis(10));
    assert_eq!(bench.reactor.stores_mut().in_flight(), 4);
    serve(&bench, &[1]);
    let (reply, closed) = channel();
    let stores = vec![(1, claim())];
    let close = Order::Close { stores, reply };
    bench.reactor.mailbox().order(close);
    bench.run_for(&mut [&mut host], Duration::from_millis(100));
    let (cqe, _) = host.take(locked).expect("it waits for a range lock");
    assert_eq!(cqe.status().kind(), Status::INVALID_FIELD);
    reads.retain(|read| match host.take(*read) {
        Some((cqe, _)) => {
            assert_eq!(cqe.status().kind(), Status::INVALID_FIELD);
            false
        }
        None => true,
    });
    assert_eq!(reads.len(), 3, "those that the backing store has");
    assert!(bench.reactor.resources.backlog.is_empty());
    assert!(closed.try_recv().is_err(), "it is in use");
    bench.reactor.stores_mut().stalled_store = None;
    bench.run_for(&mut [&mut host], Duration::from_secs(1));
    assert!(
        reads
            .into_iter()
            .chain(pair)
            .all(|one| host.take(one).is_some())
    );
    assert_eq!(closed.try_recv(), Ok(1), "the number of its backing store");
    assert_eq!(bench.reactor.free_buffers().0, 16 + 4);
}
