//! Data in several ranges of host memory.

use nvmeof_rdma::{Provider, QpId, RemoteSlice};
use nvmeof_wire::nvm::{DatasetManagement, DsmRange};
use nvmeof_wire::opcode::io;
use nvmeof_wire::sqe::PSDT_SGL;
use nvmeof_wire::{Sgl, Sqe, Status};
use zerocopy::IntoBytes;

use super::Bench;
use super::host::{Host, Sent, ready, run};
use super::io::command;

/// Sends a command with a list of `slices`.
fn send(host: &mut Host, qp: QpId, mut sqe: Sqe, slices: &[RemoteSlice]) -> Sent {
    let len = u32::try_from(slices.len() * 16).unwrap();
    sqe.dptr = Sgl::LastSegment { offset: 0, len }.to_descriptor();
    let mut list = Vec::new();
    for slice in slices {
        let one = Sgl::keyed(slice.addr, slice.len, slice.key.0);
        list.extend_from_slice(one.to_descriptor().as_bytes());
    }
    host.send(qp, sqe, &list)
}

/// Registers `data`, cut into pieces of those lengths.
fn pieces(host: &mut Host, qp: QpId, data: &[u8], lens: &[usize]) -> Vec<RemoteSlice> {
    let mut rest = data;
    let mut slices = Vec::new();
    for len in lens {
        let (piece, later) = rest.split_at(*len);
        slices.push(host.expose(qp, piece));
        rest = later;
    }
    assert!(rest.is_empty());
    slices
}

fn take_back(host: &mut Host, slices: &[RemoteSlice]) -> Vec<u8> {
    let slices = slices.iter();
    slices
        .flat_map(|slice| host.provider.withdraw(slice.key).unwrap().unwrap().to_vec())
        .collect()
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|at| u8::try_from(at % 253).unwrap()).collect()
}

#[test]
fn data_of_a_list_are_moved_in_order() {
    let mut bench = Bench::new(60);
    let mut host = bench.host();
    let (_, qp) = ready(&mut bench, &mut host);
    let free = bench.reactor.free_buffers();
    let data = pattern(16 * 512);
    for lens in [
        vec![100, 412, 7680],
        vec![8192],
        vec![512; 16],
        vec![1, 8190, 1],
    ] {
        bench.reactor.stores_mut().contents[0].fill(0);
        let from = pieces(&mut host, qp, &data, &lens);
        let sent = send(&mut host, qp, command(io::WRITE, 3, 16), &from);
        assert!(run(&mut bench, &mut host, sent).0.status().is_success());
        let store = &bench.reactor.stores_mut().contents[0];
        assert_eq!(store[3 * 512..19 * 512], data, "{lens:?}");
        take_back(&mut host, &from);
        let to = pieces(&mut host, qp, &vec![0; data.len()], &lens);
        // Other commands meanwhile, whose responses come in between.
        let others = [0; 3].map(|_| host.send_with(qp, command(io::READ, 3, 1), &[0; 512]));
        let sent = send(&mut host, qp, command(io::READ, 3, 16), &to);
        assert!(run(&mut bench, &mut host, sent).0.status().is_success());
        assert_eq!(take_back(&mut host, &to), data, "{lens:?}");
        for other in others {
            let (cqe, read) = run(&mut bench, &mut host, other);
            assert!(cqe.status().is_success());
            assert_eq!(read, data[..512]);
        }
    }
    bench.run_for(&mut [&mut host], std::time::Duration::from_millis(100));
    assert_eq!(bench.reactor.free_buffers(), free);
}

#[test]
fn compare_and_ranges_use_lists() {
    let mut bench = Bench::new(61);
    let mut host = bench.host();
    let (_, qp) = ready(&mut bench, &mut host);
    bench.reactor.stores_mut().contents[0].fill(3);
    for (byte, status) in [(3, Status::SUCCESS), (4, Status::COMPARE_FAILURE)] {
        let mut data = [3; 1024];
        data[1023] = byte;
        let from = pieces(&mut host, qp, &data, &[1000, 24]);
        let sent = send(&mut host, qp, command(io::COMPARE, 0, 2), &from);
        assert_eq!(run(&mut bench, &mut host, sent).0.status().kind(), status);
    }
    let dsm = DatasetManagement {
        nsid: 1,
        ranges: 2,
        deallocate: true,
    };
    let ranges = [DsmRange::new(4, 4), DsmRange::new(100, 1)];
    let from = pieces(&mut host, qp, ranges.as_bytes(), &[8, 24]);
    let sent = send(&mut host, qp, dsm.to_sqe(), &from);
    assert!(run(&mut bench, &mut host, sent).0.status().is_success());
    let store = &bench.reactor.stores_mut().contents[0];
    assert_eq!(store.iter().filter(|byte| **byte == 0).count(), 5 * 512);
}

/// The list of a fused command is where its data go: it is parsed first.
#[test]
fn fused_commands_may_have_lists() {
    let mut bench = Bench::new(62);
    let mut host = bench.host();
    let (_, qp) = ready(&mut bench, &mut host);
    let halves = [(io::COMPARE, 1, [0; 1024]), (io::WRITE, 2, [8; 1024])];
    let sent = halves.map(|(opcode, fuse, data)| {
        let mut sqe = command(opcode, 0, 2);
        sqe.flags = PSDT_SGL | fuse;
        let from = pieces(&mut host, qp, &data, &[16, 1000, 8]);
        send(&mut host, qp, sqe, &from)
    });
    for sent in sent {
        assert!(run(&mut bench, &mut host, sent).0.status().is_success());
    }
    let store = &bench.reactor.stores_mut().contents[0];
    assert_eq!((store[0], store[1023], store[1024]), (8, 8, 0));
}
