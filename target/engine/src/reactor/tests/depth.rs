//! A full queue of the maximum length.

use std::collections::BTreeSet;
use std::time::Duration;

use nvmeof_memory::ClassSpec;
use nvmeof_target_core::Limits;
use nvmeof_wire::fabrics::Connect;
use nvmeof_wire::opcode::io;
use nvmeof_wire::{Sgl, Status};

use super::host::{admin, connect};
use super::io::command;
use super::{Bench, few_buffers, limits};
use crate::reactor::ReactorConfig;

const ENTRIES: u16 = Limits::MAX_QUEUE_DEPTH;
/// Base 2.1, 3.3.1: a queue is full with one entry less than it has.
const OUTSTANDING: u16 = ENTRIES - 1;

fn bench(data: Vec<ClassSpec>) -> Bench {
    let config = ReactorConfig {
        capsules: 2048,
        data,
        ..few_buffers()
    };
    let limits = Limits {
        queue_depth: ENTRIES,
        ..limits()
    };
    Bench::limited(90, config, limits)
}

/// The backing store has as many commands at once as a queue of 1024 entries takes, and
/// each gets one response, round after round.
fn full_queue(mut bench: Bench, store_ops: impl Fn(usize) -> bool) {
    let mut host = bench.host();
    host.depth = ENTRIES;
    let (_, cntlid) = admin(&mut bench, &mut host, 0);
    let (qp, _) = connect(&mut bench, &mut host, &Connect::new(1, ENTRIES, 0), cntlid);
    let free = bench.reactor.free_buffers();
    for round in 1..=3u8 {
        bench.reactor.stores_mut().hold = true;
        let sent: Vec<_> = (0..OUTSTANDING)
            .map(|at| {
                // Blocks that are read are those of the previous round.
                let write = at % 2 == u16::from(round % 2);
                let opcode = if write { io::WRITE } else { io::READ };
                let mut sqe = command(opcode, at.into(), 1);
                if !write {
                    return host.send_with(qp, sqe, &[0xee; 512]);
                }
                let len = 512;
                sqe.dptr = Sgl::InCapsule { offset: 0, len }.to_descriptor();
                host.send(qp, sqe, &[round; 512])
            })
            .collect();
        bench.run_for(&mut [&mut host], Duration::from_secs(1));
        assert!(store_ops(bench.reactor.stores_mut().in_flight()));
        assert!(host.replies.is_empty());
        bench.reactor.stores_mut().hold = false;
        let all = usize::from(OUTSTANDING);
        bench.until(&mut [&mut host], |_, hosts| hosts[0].replies.len() == all);
        bench.run_for(&mut [&mut host], Duration::from_secs(1));
        assert_eq!(host.replies.len(), all, "each once");
        let heads: BTreeSet<_> = host.replies.values().map(|cqe| cqe.sqhd.get()).collect();
        assert_eq!(heads.len(), all, "each moves the head on");
        assert!(heads.last().is_some_and(|head| *head < ENTRIES));
        for (at, sent) in (0..OUTSTANDING).zip(sent) {
            let (cqe, data) = host.take(sent).unwrap();
            assert_eq!(cqe.status(), Status::SUCCESS, "{at}");
            let read = at % 2 != u16::from(round % 2);
            assert!(!read || data == [round - 1; 512], "{at}");
        }
    }
    assert_eq!(bench.reactor.free_buffers(), free);
}

#[test]
fn queue_of_1024_entries_has_1023_commands_in_flight() {
    let (len, count) = (4096, 1024);
    let longest = ClassSpec {
        len: 256 << 10,
        count: 4,
    };
    let bench = bench(vec![ClassSpec { len, count }, longest]);
    full_queue(bench, |count| count == usize::from(OUTSTANDING));
}

/// With few buffers the others wait, and none is lost.
#[test]
fn queue_of_1024_entries_works_with_few_buffers() {
    let bench = bench(few_buffers().data);
    full_queue(bench, |count| count < usize::from(OUTSTANDING));
}
