//! Commands that take one buffer after the other complete, whoever else is connected.

use std::time::Duration;

use nvmeof_wire::nvm::{Copy, CopyRange};
use nvmeof_wire::opcode::io;
use zerocopy::IntoBytes;

use super::host::{Host, Sent, admin, ready};
use super::io::command;
use super::{Bench, few_buffers};

/// Commands of several pieces, more than there are buffers for, in flight before the
/// first piece of any is done. Returns how many complete within ten seconds.
fn completed(bench: &mut Bench, send: impl Fn(&mut Host) -> Vec<Sent>, host: &mut Host) -> usize {
    bench.reactor.storage_mut().hold = true;
    let sent = send(host);
    bench.run_for(&mut [host], Duration::from_millis(10));
    bench.reactor.storage_mut().hold = false;
    bench.run_for(&mut [host], Duration::from_secs(10));
    let completed = sent.into_iter().filter_map(|sent| host.take(sent));
    completed
        .filter(|(cqe, _)| cqe.status().is_success())
        .count()
}

#[test]
fn long_verifies_beside_another_host_complete() {
    let mut bench = Bench::new(70);
    let (mut host, mut other) = (bench.host(), bench.host());
    let (_, qp) = ready(&mut bench, &mut host);
    admin(&mut bench, &mut other, 0);
    let send = |host: &mut Host| -> Vec<Sent> {
        let verify = |_| host.send(qp, command(io::VERIFY, 0, 2048), &[]);
        (0..32).map(verify).collect()
    };
    assert_eq!(completed(&mut bench, send, &mut host), 32);
    assert_eq!(bench.reactor.free_buffers().0, 16 + 4);
}

#[test]
fn long_copies_beside_another_host_complete() {
    let mut config = few_buffers();
    config.data[0].count = 64;
    let mut bench = Bench::with(71, config);
    let (mut host, mut other) = (bench.host(), bench.host());
    let (_, qp) = ready(&mut bench, &mut host);
    admin(&mut bench, &mut other, 0);
    let copy = Copy {
        nsid: 1,
        slba: 1024,
        ranges: 1,
        format: 0,
        protected: false,
        fua: false,
    };
    let source = CopyRange::new(0, 1024);
    let send = |host: &mut Host| -> Vec<Sent> {
        let copy = |_| host.send_with(qp, copy.to_sqe(), source.as_bytes());
        (0..32).map(copy).collect()
    };
    assert_eq!(completed(&mut bench, send, &mut host), 32);
    assert_eq!(bench.reactor.free_buffers().0, 64 + 4);
}
