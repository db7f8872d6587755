//! Force Unit Access of commands that read: the backing store is flushed before it reads.

use nix::errno::Errno;
use nvmeof_rdma::QpId;
use nvmeof_wire::nvm::{Io, IoFlags};
use nvmeof_wire::opcode::{Opcode, io};
use nvmeof_wire::sqe::PSDT_SGL;
use nvmeof_wire::{Sgl, Sqe, Status};

use super::Bench;
use super::host::{Host, Sent, ready, run};
use super::io::command;

/// Two blocks from block 4 on.
fn fua(opcode: Opcode) -> Sqe {
    Io {
        nsid: 1,
        slba: 4,
        blocks: 2,
        flags: IoFlags::FUA,
    }
    .to_sqe(opcode)
}

fn send(host: &mut Host, qp: QpId, opcode: Opcode, in_capsule: bool) -> Sent {
    let data = [7; 1024];
    let mut sqe = fua(opcode);
    if opcode == io::VERIFY {
        return host.send(qp, sqe, &[]);
    }
    if in_capsule {
        let len = 1024;
        sqe.dptr = Sgl::InCapsule { offset: 0, len }.to_descriptor();
        return host.send(qp, sqe, &data);
    }
    host.send_with(qp, sqe, &data)
}

const READING: [(Opcode, bool); 4] = [
    (io::READ, false),
    (io::COMPARE, false),
    (io::COMPARE, true),
    (io::VERIFY, false),
];

#[test]
fn fua_read_returns_committed_data() {
    let mut bench = Bench::new(80);
    let mut host = bench.host();
    let (_, qp) = ready(&mut bench, &mut host);
    let free = bench.reactor.free_buffers();
    for (opcode, in_capsule) in READING {
        let sent = host.send_with(qp, command(io::WRITE, 4, 2), &[7; 1024]);
        assert!(run(&mut bench, &mut host, sent).0.status().is_success());
        let sent = send(&mut host, qp, opcode, in_capsule);
        let (cqe, data) = run(&mut bench, &mut host, sent);
        assert!(cqe.status().is_success(), "{opcode:?} {:?}", cqe.status());
        assert!(opcode != io::READ || data == [7; 1024]);
        let verbs = std::mem::take(&mut bench.reactor.stores_mut().verbs);
        assert_eq!(verbs, ["write", "flush", "read"], "{opcode:?}");
    }
    assert_eq!(bench.reactor.free_buffers(), free);
}

#[test]
fn fua_read_fails_if_the_flush_fails() {
    let mut bench = Bench::new(81);
    let mut host = bench.host();
    let (_, qp) = ready(&mut bench, &mut host);
    let free = bench.reactor.free_buffers();
    bench.reactor.stores_mut().fails = Some(Errno::EIO);
    for (opcode, in_capsule) in READING {
        let sent = send(&mut host, qp, opcode, in_capsule);
        let (cqe, data) = run(&mut bench, &mut host, sent);
        assert_eq!(cqe.status().kind(), Status::WRITE_FAULT, "{opcode:?}");
        assert!(
            opcode != io::READ || data == [7; 1024],
            "as the host had it"
        );
        let verbs = std::mem::take(&mut bench.reactor.stores_mut().verbs);
        assert_eq!(verbs, ["flush"], "{opcode:?}");
    }
    assert_eq!(bench.reactor.free_buffers(), free);
}

/// A fused operation holds its lock from its first operation on.
#[test]
fn fused_operation_excludes_writes_after_its_commit() {
    let mut bench = Bench::new(82);
    let (mut host, mut other) = (bench.host(), bench.host());
    let (_, qp) = ready(&mut bench, &mut host);
    let (_, qp2) = ready(&mut bench, &mut other);
    let free = bench.reactor.free_buffers();
    bench.reactor.stores_mut().hold = true;
    let pair = [(io::COMPARE, 1, 0), (io::WRITE, 2, 5)].map(|(opcode, fuse, byte)| {
        let mut sqe = fua(opcode);
        sqe.flags = PSDT_SGL | fuse;
        host.send_with(qp, sqe, &[byte; 1024])
    });
    let settle = |bench: &mut Bench, hosts: &mut [&mut Host]| {
        bench.run_for(hosts, std::time::Duration::from_millis(100));
    };
    settle(&mut bench, &mut [&mut host, &mut other]);
    assert_eq!(bench.reactor.stores_mut().in_flight(), 1, "the commit");
    let there = other.send_with(qp2, command(io::WRITE, 5, 1), &[9; 512]);
    let elsewhere = other.send_with(qp2, command(io::WRITE, 6, 1), &[8; 512]);
    settle(&mut bench, &mut [&mut host, &mut other]);
    assert_eq!(bench.reactor.stores_mut().in_flight(), 2, "one waits");
    bench.reactor.stores_mut().hold = false;
    let mut left = vec![there, elsewhere];
    let mut statuses = Vec::new();
    bench.until(&mut [&mut host, &mut other], |_, hosts| {
        left.retain(|sent| hosts[1].take(*sent).is_none());
        for half in pair {
            statuses.extend(hosts[0].take(half).map(|(cqe, _)| cqe.status()));
        }
        left.is_empty() && statuses.len() == 2
    });
    assert_eq!(statuses, [Status::SUCCESS; 2]);
    let stores = bench.reactor.stores_mut();
    let expected = ["flush", "write", "read", "write", "write"];
    assert_eq!(stores.verbs, expected);
    let at = |block: usize| stores.contents[0][block * 512];
    assert_eq!((at(4), at(5), at(6)), (5, 9, 8));
    settle(&mut bench, &mut [&mut host, &mut other]);
    assert_eq!(bench.reactor.free_buffers(), free);
    assert!(bench.reactor.target.locks().join(0).is_idle());
}
