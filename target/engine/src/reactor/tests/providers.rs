//! Several providers on one reactor, and hosts with few resources.

use nvmeof_wire::nvm::Io;
use nvmeof_wire::opcode::{Opcode, io};
use nvmeof_wire::{Sqe, cm::Request};

use super::Bench;
use super::host::{Host, establish, ready, run};

fn blocks(opcode: Opcode, slba: u64) -> Sqe {
    Io::new(1, slba, 8).to_sqe(opcode)
}

#[test]
fn providers_are_independent() {
    let mut bench = Bench::new(1);
    let address = bench.listen_on_second();
    assert_eq!(address.port(), bench.address.port());
    let mut one = bench.host();
    let mut other = bench.host_by(address);
    let (_, a) = ready(&mut bench, &mut one);
    let (_, b) = ready(&mut bench, &mut other);
    // Both providers use the same numbers for their queue pairs.
    let sent = one.send_with(a, blocks(io::WRITE, 0), &[1; 4096]);
    let also = other.send_with(b, blocks(io::WRITE, 8), &[2; 4096]);
    let mut replies = (None, None);
    bench.until(&mut [&mut one, &mut other], |_, hosts| {
        replies.0 = replies.0.take().or_else(|| hosts[0].take(sent));
        replies.1 = replies.1.take().or_else(|| hosts[1].take(also));
        replies.0.is_some() && replies.1.is_some()
    });
    let store = &bench.reactor.stores_mut().contents[0];
    assert_eq!(store[..4096], [1; 4096]);
    assert_eq!(store[4096..8192], [2; 4096]);
    // Closing one does not affect the other.
    drop(one);
    bench.until(&mut [&mut other], |bench, _| {
        bench.reactor.queue_pairs() == 2
    });
    let sent = other.send_with(b, blocks(io::READ, 8), &[0; 4096]);
    assert_eq!(run(&mut bench, &mut other, sent).1, [2; 4096]);
    bench.reactor.start_drain(bench.net.now());
    bench.until(&mut [&mut other], |bench, _| bench.drained);
}

#[test]
fn rdma_reads_respect_the_limit_of_the_host() {
    let mut bench = Bench::new(2);
    let mut host = bench.host();
    host.reads_in = 1;
    let (_, qp) = ready(&mut bench, &mut host);
    let sent: Vec<_> = (0..16)
        .map(|at| host.send_with(qp, blocks(io::WRITE, at * 8), &[7; 4096]))
        .collect();
    for sent in sent {
        let (cqe, _) = run(&mut bench, &mut host, sent);
        assert!(cqe.status().is_success());
    }
    let store = &bench.reactor.stores_mut().contents[0];
    assert_eq!(store[..16 * 4096], [7; 16 * 4096]);
}

#[test]
fn private_data_may_be_padded() {
    let mut bench = Bench::new(3);
    let mut host: Host = bench.host();
    let request = Request::new(0, 32);
    let mut padded = zerocopy::IntoBytes::as_bytes(&request).to_vec();
    padded.resize(56, 0);
    let qp = host.open_raw(bench.net.now(), &padded);
    bench.until(&mut [&mut host], |_, hosts| {
        hosts[0].established.contains(&qp)
    });
    establish(&mut bench, &mut host, &request);
}
