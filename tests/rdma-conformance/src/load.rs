//! Cases: load, repeated connections, and idle connections.

use crate::Endpoint::{A, B};
use crate::pattern::fill;
use crate::rig::Rig;
use nvmeof_rdma::{QpConfig, RemoteSlice, Rights};

/// Hundreds of large writes while the peer does not poll; then it polls and all of them
/// arrive, in order.
pub fn writes_wait_for_sleeping_peer(rig: &mut Rig<'_>) {
    let most = rig[A].provider().limits().max_sends;
    let config = QpConfig {
        sends: most.min(320),
        ..rig.config()
    };
    let link = rig.link_with(&config, &config);
    let len = 6 << 20;
    let window = rig[B].buf(len);
    let slice = rig[B].expose(link.b, window, Rights::REMOTE_WRITE);
    rig[B].recv(link.b, 1, 64);
    let mut model = vec![0xEE; len];
    let count = u64::from(config.sends - 1).min(300);
    for tag in 0..count {
        let len = if tag % 3 == 0 { 120_000 } else { 8000 };
        let offset = usize::try_from(tag * 16_384).unwrap();
        let remote = RemoteSlice {
            addr: slice.addr + offset as u64,
            len: u32::try_from(len).unwrap(),
            ..slice
        };
        rig[A].write(link.a, tag, len, remote);
        fill(&mut model[offset..offset + len], tag);
    }
    rig[A].send(link.a, 1000, 64);
    rig.settle_at(&[A]);
    rig.message(B, link.b, 1000, 64);
    assert!(rig[B].withdraw(slice.key)[..] == model[..]);
    for tag in 0..count {
        rig.success(A, link.a, tag);
    }
}

/// Both sides send as fast as the other's receives allow.
pub fn messages_both_ways_keep_order(rig: &mut Rig<'_>) {
    let link = rig.link();
    let len = |tag: u64| usize::try_from(tag * 131 % 8000).unwrap();
    for end in [A, B] {
        for tag in 0..32 {
            rig[end].recv(link.at(end), tag, 8192);
        }
    }
    // A starts, so that B may send at once (RFC 5044, section 7.1).
    let mut sent = [0, 0];
    let mut got = [0, 0];
    while got.iter().any(|got| *got < 500) {
        for (side, end) in [A, B].into_iter().enumerate() {
            let (qp, other) = (link.at(end), end.other());
            // Never more than the other side has receives for.
            while sent[side] < (got[1 - side] + 32).min(500) && rig[end].outstanding_work(qp) < 32 {
                rig[end].send(qp, sent[side], len(sent[side]));
                sent[side] += 1;
            }
            if got[1 - side] < sent[side] {
                rig.message(other, link.at(other), got[1 - side], len(got[1 - side]));
                rig[other].recv(link.at(other), got[1 - side] + 32, 8192);
                got[1 - side] += 1;
            }
        }
        rig.step();
    }
    rig.settle();
    for end in [A, B] {
        for tag in 0..500 {
            rig.success(end, link.at(end), tag);
        }
    }
}

/// Slots of closed connections are reused.
pub fn connection_slots_are_reused(rig: &mut Rig<'_>) {
    let before = rig.link();
    for round in 0..60 {
        let link = rig.link();
        rig.assert_alive(link);
        let end = if round % 2 == 0 { A } else { B };
        rig[end].disconnect(link.at(end));
        rig.closed(A, link.a);
        rig.closed(B, link.b);
    }
    rig.assert_alive(before);
}

/// The descriptor becomes readable for requests, responses, messages and ends.
pub fn descriptor_becomes_readable_for_events(rig: &mut Rig<'_>) {
    rig.listening();
    let config = rig.config();
    rig.settle();
    let a = rig.call();
    rig.settle_at(&[A]);
    assert!(rig.wakes(B), "for a request");
    let b = rig.request(B).qp;
    rig.settle();
    rig.accept(B, b, &config, "");
    rig.settle_at(&[B]);
    assert!(rig.wakes(A), "for an answer");
    rig.established(A, a);
    rig.established(B, b);
    for round in 0..3 {
        for end in [A, B] {
            let (from, to) = if end == A { (a, b) } else { (b, a) };
            let other = end.other();
            rig[other].recv(to, round, 64);
            rig.settle();
            rig[end].send(from, round, 64);
            rig.settle_at(&[end]);
            assert!(rig.wakes(other), "for a message");
            rig.message(other, to, round, 64);
        }
    }
    rig.settle();
    rig[A].disconnect(a);
    rig.settle_at(&[A]);
    assert!(rig.wakes(B), "for the end");
    rig.closed(B, b);
}

/// A sleeping side is woken, even for an event just before it sleeps.
pub fn sleeping_side_is_woken(rig: &mut Rig<'_>) {
    let link = rig.link();
    for round in 0..50 {
        for end in [A, B] {
            let (from, sleeper) = (link.at(end), end.other());
            let to = link.at(sleeper);
            rig[sleeper].recv(to, round, 64);
            rig.goes_to_sleep(sleeper);
            rig[end].send(from, round, 64);
            rig.poll_at(end);
            assert!(rig.wakes(sleeper), "for a message");
            rig.message(sleeper, to, round, 64);
        }
    }
}

/// An idle connection keeps no side awake.
pub fn idle_provider_has_nothing_to_do(rig: &mut Rig<'_>) {
    let link = rig.link();
    rig.assert_alive(link);
    // Both have received a message: a side that has not may send something after a while.
    rig[A].recv(link.a, 2, 64);
    rig[B].send(link.b, 2, 64);
    rig.message(A, link.a, 2, 64);
    rig[A].recv(link.a, 1, 64);
    rig.settle();
    for end in [A, B] {
        assert!(rig.rests(end), "{end:?} is kept awake");
        // A timer may expire now, however long the machine took until here.
        let comes_to_rest = (0..100).any(|_| !rig.poll_at(end));
        assert!(comes_to_rest, "{end:?} makes progress for ever");
    }
}
