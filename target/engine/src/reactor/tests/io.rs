//! Commands that move data.

use nvmeof_wire::Status;
use nvmeof_wire::admin::{Cns, Identify};
use nvmeof_wire::nvm::{Copy, CopyRange, DatasetManagement, DsmRange, Io, flush};
use nvmeof_wire::opcode::{Opcode, io};
use nvmeof_wire::{Sgl, Sqe};
use zerocopy::IntoBytes;

use super::host::{admin, ready, run};
use super::{Bench, NQN};

pub(super) fn command(opcode: Opcode, slba: u64, blocks: u32) -> Sqe {
    Io::new(1, slba, blocks).to_sqe(opcode)
}

fn in_capsule(mut sqe: Sqe, len: usize) -> Sqe {
    let len = u32::try_from(len).unwrap();
    sqe.dptr = Sgl::InCapsule { offset: 0, len }.to_descriptor();
    sqe
}

fn pattern(seed: u8, len: usize) -> Vec<u8> {
    (0..len)
        .map(|at| seed.wrapping_add(u8::try_from(at % 251).unwrap()))
        .collect()
}

#[test]
fn identify_is_pushed_to_the_host() {
    let mut bench = Bench::new(1);
    let mut host = bench.host();
    let (qp, _) = admin(&mut bench, &mut host, 0);
    let identify = Identify::new(Cns::CONTROLLER, 0).to_sqe();
    let sent = host.send_with(qp, identify, &[0; 4096]);
    let (cqe, data) = run(&mut bench, &mut host, sent);
    assert!(cqe.status().is_success());
    assert_eq!(&data[768..768 + NQN.len()], NQN.as_bytes());
}

#[test]
fn written_data_are_read_back() {
    let mut bench = Bench::new(2);
    let mut host = bench.host();
    let (_, qp) = ready(&mut bench, &mut host);
    for (seed, blocks) in [(1, 1), (2, 8), (3, 512)] {
        let len = usize::try_from(blocks).unwrap() * 512;
        let data = pattern(seed, len);
        let sent = host.send_with(qp, command(io::WRITE, 7, blocks), &data);
        assert!(run(&mut bench, &mut host, sent).0.status().is_success());
        let sent = host.send_with(qp, command(io::READ, 7, blocks), &vec![0; len]);
        let (cqe, read) = run(&mut bench, &mut host, sent);
        assert!(cqe.status().is_success());
        assert_eq!(read, data);
    }
}

#[test]
fn in_capsule_data_are_written_without_copy() {
    let mut bench = Bench::new(3);
    let mut host = bench.host();
    let (_, qp) = ready(&mut bench, &mut host);
    let data = pattern(9, 4096);
    let sqe = in_capsule(command(io::WRITE, 16, 8), data.len());
    let sent = host.send(qp, sqe, &data);
    assert!(run(&mut bench, &mut host, sent).0.status().is_success());
    assert_eq!(
        bench.reactor.stores_mut().contents[0][16 * 512..24 * 512],
        data
    );
}

#[test]
fn in_capsule_data_at_an_offset_are_aligned_for_the_store() {
    let mut bench = Bench::new(8);
    let mut host = bench.host();
    let (_, qp) = ready(&mut bench, &mut host);
    for offset in [1, 512, 700] {
        let mut sqe = command(io::WRITE, 3, 2);
        let len = 1024;
        let at = u64::try_from(offset).unwrap();
        sqe.dptr = Sgl::InCapsule { offset: at, len }.to_descriptor();
        let data = pattern(u8::try_from(offset % 256).unwrap(), offset + 1024);
        let sent = host.send(qp, sqe, &data);
        assert!(run(&mut bench, &mut host, sent).0.status().is_success());
        let store = &bench.reactor.stores_mut().contents[0];
        assert_eq!(store[3 * 512..5 * 512], data[offset..]);
    }
}

/// An error of the host ends its connection only, whatever the address.
#[test]
fn invalid_memory_key_closes_its_connection_only() {
    for (seed, addr) in [(20, 0), (21, u64::MAX), (22, u64::MAX - 511), (23, 1 << 63)] {
        for opcode in [io::WRITE, io::READ] {
            let mut bench = Bench::new(seed);
            let (mut bad, mut good) = (bench.host(), bench.host());
            let (_, qp) = ready(&mut bench, &mut bad);
            let (_, other) = ready(&mut bench, &mut good);
            let (len, key, invalidate) = (512, 0x1234_5678, true);
            let mut sqe = command(opcode, 0, 1);
            let sgl = Sgl::Keyed {
                addr,
                len,
                key,
                invalidate,
            };
            sqe.dptr = sgl.to_descriptor();
            bad.send(qp, sqe, &[]);
            bench.until(&mut [&mut bad, &mut good], |_, hosts| {
                !hosts[0].closed.is_empty()
            });
            let sent = good.send(other, flush(1), &[]);
            assert!(run(&mut bench, &mut good, sent).0.status().is_success());
        }
    }
}

#[test]
fn compare_distinguishes_equal_from_different() {
    let mut bench = Bench::new(4);
    let mut host = bench.host();
    let (_, qp) = ready(&mut bench, &mut host);
    bench.reactor.stores_mut().contents[0][..1024].fill(5);
    for (byte, status) in [(5, Status::SUCCESS), (6, Status::COMPARE_FAILURE)] {
        let mut data = vec![5; 1024];
        data[1023] = byte;
        let sent = host.send_with(qp, command(io::COMPARE, 0, 2), &data);
        assert_eq!(run(&mut bench, &mut host, sent).0.status().kind(), status);
        let sent = host.send(qp, in_capsule(command(io::COMPARE, 0, 2), 1024), &data);
        assert_eq!(run(&mut bench, &mut host, sent).0.status().kind(), status);
    }
}

#[test]
fn zeroes_deallocate_and_flush_reach_the_store() {
    let mut bench = Bench::new(5);
    let mut host = bench.host();
    let (_, qp) = ready(&mut bench, &mut host);
    bench.reactor.stores_mut().contents[0].fill(1);
    let sent = host.send(qp, command(io::WRITE_ZEROES, 0, 4), &[]);
    assert!(run(&mut bench, &mut host, sent).0.status().is_success());
    let dsm = DatasetManagement {
        nsid: 1,
        ranges: 2,
        deallocate: true,
    };
    let ranges = [DsmRange::new(4, 4), DsmRange::new(100, 1)];
    let sent = host.send_with(qp, dsm.to_sqe(), ranges.as_bytes());
    assert!(run(&mut bench, &mut host, sent).0.status().is_success());
    let sent = host.send(qp, flush(1), &[]);
    assert!(run(&mut bench, &mut host, sent).0.status().is_success());
    let stores = bench.reactor.stores_mut();
    assert_eq!(stores.flushes, 1);
    let zeroes = stores.contents[0].iter().filter(|byte| **byte == 0).count();
    assert_eq!(zeroes, 9 * 512);
}

/// Reads the whole backing store through one buffer, which is free afterwards.
#[test]
fn verify_reads_a_store_through_one_buffer() {
    let mut bench = Bench::new(9);
    let mut host = bench.host();
    let (_, qp) = ready(&mut bench, &mut host);
    let free = bench.reactor.free_buffers();
    let sent = host.send(qp, command(io::VERIFY, 0, 2048), &[]);
    assert!(run(&mut bench, &mut host, sent).0.status().is_success());
    let sent = host.send(qp, command(io::VERIFY, 1, 300), &[]);
    assert!(run(&mut bench, &mut host, sent).0.status().is_success());
    assert_eq!(bench.reactor.free_buffers(), free);
    let stores = bench.reactor.stores_mut();
    assert_eq!(stores.bytes_read, (2048 + 300) * 512);
}

/// The ranges come by RDMA Read or in the capsule.
#[test]
fn copy_copies_through_one_buffer() {
    let mut bench = Bench::new(10);
    let mut host = bench.host();
    let (_, qp) = ready(&mut bench, &mut host);
    let free = bench.reactor.free_buffers();
    let data = pattern(3, 1000 * 512);
    bench.reactor.stores_mut().contents[0][..data.len()].copy_from_slice(&data);
    let ranges = [CopyRange::new(100, 600), CopyRange::new(3, 2)];
    for capsule in [false, true] {
        let command = Copy {
            nsid: 1,
            slba: 1100,
            ranges: 2,
            format: 0,
            protected: false,
            fua: false,
        };
        let bytes = ranges.as_bytes();
        let sent = if capsule {
            host.send(qp, in_capsule(command.to_sqe(), bytes.len()), bytes)
        } else {
            host.send_with(qp, command.to_sqe(), bytes)
        };
        assert!(run(&mut bench, &mut host, sent).0.status().is_success());
        assert_eq!(bench.reactor.free_buffers(), free);
        let store = &mut bench.reactor.stores_mut().contents[0];
        assert_eq!(store[1100 * 512..1700 * 512], data[100 * 512..700 * 512]);
        assert_eq!(store[1700 * 512..1702 * 512], data[3 * 512..5 * 512]);
        assert!(store[1702 * 512..].iter().all(|byte| *byte == 0));
        store[1100 * 512..].fill(0);
    }
}

/// Far more commands than buffers and slots: all complete, and everything is free
/// afterwards.
#[test]
fn commands_wait_when_buffers_are_scarce() {
    let mut bench = Bench::new(6);
    bench.reactor.stores_mut().room = 3;
    let free = bench.reactor.free_buffers();
    let mut host = bench.host();
    let (_, qp) = ready(&mut bench, &mut host);
    let held = bench.reactor.free_buffers();
    assert_eq!(held.0, free.0);
    for round in 0..5u8 {
        let mut sent = Vec::new();
        for at in 0..120u64 {
            let data = pattern(round, 4096);
            let sqe = match at % 4 {
                0 => command(io::COMPARE, at * 8, 8),
                1 => command(io::READ, at * 8, 8),
                _ => command(io::WRITE, at * 8, 8),
            };
            sent.push(host.send_with(qp, sqe, &data));
        }
        bench.until(&mut [&mut host], |_, hosts| {
            sent.retain(|sent| hosts[0].take(*sent).is_none());
            sent.is_empty()
        });
    }
    assert_eq!(bench.reactor.free_buffers(), held);
}

/// A backing store had no free slot for a command, and completes it at submission later.
#[test]
fn reactor_does_not_sleep_with_pending_completions() {
    let mut bench = Bench::new(9);
    let mut host = bench.host();
    let (_, qp) = ready(&mut bench, &mut host);
    bench.reactor.stores_mut().room = 0;
    let sent = host.send_with(qp, command(io::READ, 0, 8), &pattern(1, 4096));
    bench.until(&mut [&mut host], |bench, _| {
        !bench.reactor.resources.backlog.is_empty()
    });
    let now = bench.net.now();
    assert!(bench.reactor.rest(now).unwrap(), "it waits for room");
    let stores = bench.reactor.stores_mut();
    (stores.room, stores.at_once) = (usize::MAX, true);
    bench.reactor.poll_once(now).unwrap();
    assert!(bench.reactor.resources.backlog.is_empty() && host.take(sent).is_none());
    assert!(!bench.reactor.rest(now).unwrap());
    bench.until(&mut [&mut host], |_, hosts| hosts[0].take(sent).is_some());
}

#[test]
fn long_transfers_wait_for_long_buffers() {
    let mut bench = Bench::new(7);
    let mut host = bench.host();
    let (_, qp) = ready(&mut bench, &mut host);
    let data = pattern(1, 256 << 10);
    let mut sent: Vec<_> = (0..12)
        .map(|at| {
            let opcode = if at % 2 == 0 { io::WRITE } else { io::READ };
            host.send_with(qp, command(opcode, 0, 512), &data)
        })
        .collect();
    bench.until(&mut [&mut host], |_, hosts| {
        sent.retain(|sent| hosts[0].take(*sent).is_none());
        sent.is_empty()
    });
    assert_eq!(bench.reactor.stores_mut().contents[0][..256 << 10], data);
}
