//! Tests of providers on networks with faults: all promises hold.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "tests"
)]

use std::cell::Cell;
use std::time::Duration;

use crate::fabric::{SimFabric, ip};
use nvmeof_rdma::{CloseReason, Event, Provider, QpId, Rights, Work, WorkKind};
use nvmeof_rdma_conformance::Endpoint::{A, B};
use nvmeof_rdma_conformance::{Link, Rig, check_pattern};
use nvmeof_rdma_layers::{OneIn, Trace, TraceLog};
use nvmeof_rdma_sim::{NetworkFault, SimChances, SimNet};

/// Runs `test` on the networks of some seeds. Seeds that are not multiples of 4 use
/// checksums.
fn on_seeds(seeds: impl Iterator<Item = u64>, test: impl Fn(&mut Rig<'_>, &SimNet)) {
    for seed in seeds {
        println!("seed {seed}");
        let mut fabric = SimFabric::new(seed, |sim| Box::new(sim));
        let net = fabric.net();
        let mut rig = Rig::new(&mut fabric);
        test(&mut rig, &net);
        net.set_chances(SimChances::default());
        net.inject(NetworkFault::Heal(ip(A), ip(B)));
        rig.finish();
    }
}

/// Work of all kinds that cannot complete immediately.
fn load(rig: &mut Rig<'_>, link: Link) {
    let source = rig[B].filled(100_000, 1);
    let source = rig[B].expose(link.b, source, Rights::REMOTE_READ);
    let sink = rig[B].buf(100_000);
    let sink = rig[B].expose(link.b, sink, Rights::REMOTE_WRITE);
    for tag in 0..6 {
        rig[A].recv(link.a, tag, 64);
        rig[B].recv(link.b, tag, 4096);
        rig[A].read(link.a, tag, 100_000, source);
        rig[A].write(link.a, tag, 100_000, sink);
        rig[A].send(link.a, tag, 4000);
    }
}

#[test]
fn reset_closes_both_sides() {
    on_seeds(0..20, |rig, net| {
        let link = rig.link();
        load(rig, link);
        for _ in 0..net.now().subsec_nanos() % 16 {
            rig.step();
        }
        net.inject(NetworkFault::Reset(ip(A), ip(B)));
        for end in [A, B] {
            let reason = rig.closed(end, link.at(end));
            let network = matches!(reason, CloseReason::Network { .. } | CloseReason::Peer);
            assert!(network, "{end:?}: {reason}");
        }
        let link = rig.link();
        rig.assert_alive(link);
    });
}

#[test]
fn healed_cut_loses_nothing() {
    on_seeds(0..8, |rig, net| {
        let link = rig.link();
        rig.assert_alive(link);
        net.inject(NetworkFault::Cut(ip(A), ip(B)));
        rig[B].recv(link.b, 1, 64);
        rig[A].send(link.a, 2, 64);
        rig.settle();
        net.advance(Duration::from_secs(60));
        rig.settle();
        assert_eq!(rig[B].outstanding_recvs(link.b), 1);
        net.inject(NetworkFault::Heal(ip(A), ip(B)));
        rig.message(B, link.b, 2, 64);
    });
}

#[test]
fn connection_across_cut_is_closed() {
    on_seeds(0..8, |rig, net| {
        let link = rig.link();
        rig[A].recv(link.a, 1, 64);
        let before = net.now();
        net.inject(NetworkFault::Cut(ip(A), ip(B)));
        // One side waits until its bytes are sent, the other sent none.
        let waiting = rig[A].buf(64);
        let waiting = rig[A].expose(link.a, waiting, Rights::REMOTE_READ);
        rig[B].recv(link.b, 1, 64);
        rig[A].send(link.a, 1, 64);
        rig[B].read(link.b, 2, 64, waiting);
        for end in [A, B] {
            rig[end].disconnect(link.at(end));
            assert_eq!(rig.closed(end, link.at(end)), CloseReason::Local);
        }
        assert!(net.now() < before + Duration::from_secs(60));
    });
}

#[test]
fn handshake_across_cut_times_out() {
    on_seeds(0..8, |rig, net| {
        rig.listening();
        net.inject(NetworkFault::Cut(ip(A), ip(B)));
        let a = rig.call();
        rig[A].recv(a, 1, 64);
        let reason = rig.closed(A, a);
        assert!(matches!(reason, CloseReason::Timeout { .. }), "{reason}");
    });
}

#[test]
fn refused_connection_is_network_failure() {
    on_seeds(0..4, |rig, net| {
        rig.listening();
        net.inject(NetworkFault::Refuse(ip(B), 2));
        for _ in 0..2 {
            let a = rig.call();
            let reason = rig.closed(A, a);
            assert!(matches!(reason, CloseReason::Network { .. }), "{reason}");
        }
        let link = rig.link();
        rig.assert_alive(link);
    });
}

#[test]
fn half_close_ends_connection() {
    on_seeds(0..20, |rig, net| {
        let link = rig.link();
        rig[A].recv(link.a, 1, 64);
        rig[B].recv(link.b, 1, 64);
        net.inject(NetworkFault::HalfClose(ip(B), ip(A)));
        assert_eq!(rig.closed(A, link.a), CloseReason::Peer);
        rig.closed(B, link.b);
    });
}

#[test]
fn flipped_bits_are_never_delivered() {
    let faults = Cell::new(0);
    let with_checksums = (0..100).filter(|seed| seed % 4 != 0);
    on_seeds(with_checksums, |rig, net| {
        let link = rig.link();
        rig.assert_alive(link);
        let source = rig[B].filled(30_000, 3);
        let source = rig[B].expose(link.b, source, Rights::REMOTE_READ);
        net.set_chances(SimChances {
            corrupt: OneIn(30),
            ..SimChances::default()
        });
        for tag in 0..200 {
            let buf = rig[B].buf(8000);
            if rig[B].try_recv(link.b, tag, buf).is_ok() {
                let work = rig[A].message(tag, 8000);
                let _ = rig[A].try_post(link.a, tag, work);
            }
            let (local, remote) = (rig[A].buf(30_000), source);
            let _ = rig[A].try_post(link.a, tag, Work::Read { local, remote });
            for _ in 0..20 {
                rig.step();
                faults.set(faults.get() + check_what_came(rig));
            }
        }
    });
    assert!(faults.get() > 50, "only {} faults were found", faults.get());
}

/// Checks that delivered data match the sent data. Returns the number of detected protocol
/// violations.
fn check_what_came(rig: &mut Rig<'_>) -> u32 {
    let mut faults = 0;
    for end in [A, B] {
        while let Some(event) = rig.take_event(end) {
            match event {
                Event::Completion(done)
                    if done.kind == WorkKind::Read && done.outcome.is_success() =>
                {
                    check_pattern(&done.buf.unwrap(), 3);
                }
                // Each message is posted with its receive.
                Event::Received(message) if message.outcome.is_success() => {
                    assert_eq!(message.len, 8000);
                    check_pattern(&message.buf, message.tag.0);
                }
                Event::Closed { reason, .. } => {
                    faults += u32::from(matches!(reason, CloseReason::PeerFault(_)));
                    assert_ne!(reason, CloseReason::Local);
                }
                _ => {}
            }
        }
    }
    faults
}

/// A connection of the chaos test: its number is its private data.
#[derive(Default)]
struct Life {
    a: Option<QpId>,
    b: Option<QpId>,
    sent: u64,
    got: u64,
}

/// Connections are opened, used and closed while the network refuses, resets and stalls. The
/// checks of the rig always hold; data arrive in order.
#[test]
fn buffers_and_events_survive_network_chaos() {
    let delivered = Cell::new(0);
    on_seeds(0..60, |rig, net| {
        let mut lives: Vec<Life> = Vec::new();
        rig.listening();
        net.set_chances(SimChances {
            reset: OneIn(100),
            refuse: OneIn(5),
            stall: OneIn(50),
            stall_for: Duration::from_millis(500),
            ..SimChances::default()
        });
        for round in 0..200u64 {
            if round % 10 == 0 {
                let (addr, config) = (rig.listening(), rig.config());
                let number = lives.len().to_string();
                let a = rig.connect(A, addr, &config, &number);
                lives.push(Life {
                    a: Some(a),
                    ..Life::default()
                });
            }
            for (number, life) in (0u64..).zip(&mut lives) {
                if let (Some(a), Some(b)) = (life.a, life.b) {
                    let buf = rig[B].buf(6000);
                    let ready = rig[B].try_recv(b, life.sent, buf).is_ok();
                    let work = rig[A].message(number << 32 | life.sent, 6000);
                    if ready && rig[A].try_post(a, life.sent, work).is_ok() {
                        life.sent += 1;
                    } else if ready {
                        // Its receive does not belong to the next message.
                        rig[B].disconnect(b);
                    }
                    if (number + round) % 37 == 0 {
                        rig[A].disconnect(a);
                    }
                }
            }
            for _ in 0..10 {
                rig.step();
                live(rig, &mut lives);
            }
        }
        delivered.set(delivered.get() + lives.iter().map(|life| life.got).sum::<u64>());
    });
    assert!(delivered.get() > 1000, "{} messages", delivered.get());
}

fn live(rig: &mut Rig<'_>, lives: &mut [Life]) {
    while let Some(event) = rig.take_event(A) {
        if let Event::Closed { qp, .. } = event {
            let life = lives.iter_mut().find(|life| life.a == Some(qp));
            life.unwrap().a = None;
        }
    }
    while let Some(event) = rig.take_event(B) {
        match event {
            Event::ConnectRequest(request) => {
                let number = std::str::from_utf8(&request.private_data).unwrap();
                let life = &mut lives[number.parse::<usize>().unwrap()];
                let config = rig.config();
                rig.accept(B, request.qp, &config, "");
                life.b = Some(request.qp);
            }
            Event::Received(message) if message.outcome.is_success() => {
                let mut all = (0u64..).zip(lives.iter_mut());
                let (number, life) = all.find(|(_, life)| life.b == Some(message.qp)).unwrap();
                assert_eq!(message.tag.0, life.got);
                check_pattern(&message.buf[..message.len], number << 32 | life.got);
                life.got += 1;
            }
            Event::Closed { qp, .. } => {
                let life = lives.iter_mut().find(|life| life.b == Some(qp));
                life.unwrap().b = None;
            }
            _ => {}
        }
    }
}

/// One seed is one run, to the last line of the trace.
#[test]
fn same_seed_yields_same_trace() {
    let run = |seed| {
        let log = TraceLog::new(100_000);
        let copy = log.clone();
        let wrap = move |sim| -> Box<dyn Provider> { Box::new(Trace::new(sim, "x", copy.clone())) };
        let mut fabric = SimFabric::new(seed, wrap);
        let net = fabric.net();
        let mut rig = Rig::new(&mut fabric);
        for _ in 0..4 {
            let link = rig.link();
            load(&mut rig, link);
            for _ in 0..40 {
                rig.step();
            }
        }
        net.inject(NetworkFault::Reset(ip(A), ip(B)));
        rig.finish();
        (net.now(), log.lines())
    };
    for seed in 0..8 {
        let (first, second) = (run(seed), run(seed));
        assert!(first.1.len() > 100);
        for (one, other) in first.1.iter().zip(&second.1) {
            assert_eq!(one, other, "seed {seed}");
        }
        assert_eq!(first.0, second.0);
    }
    assert_ne!(run(1).1, run(2).1);
}
