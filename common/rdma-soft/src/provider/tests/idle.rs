//! Segments that cost their sender nothing: others do not wait for more than a few.

use super::*;

/// Segments that one poll takes at most of a connection which sends nothing else.
pub(super) const IN_ONE_POLL: u64 = 128;

/// An empty segment of a Send that goes on.
fn empty_send() -> Vec<u8> {
    let header = Header {
        opcode: Opcode::SEND,
        last: false,
        payload: 0,
        kind: Kind::Untagged {
            invalidate: 0,
            queue: 0,
            msn: 1,
            offset: 0,
        },
    };
    framed(&header, &[])
}

fn frames(raw: &Raw, qp: QpId) -> u64 {
    raw.provider.conns.get(qp).unwrap().rx.frames()
}

/// The most frames that one poll took of `count` of them.
fn most_in_one_poll(segment: &[u8], count: usize) -> u64 {
    let (mut raw, qp) = Raw::running(SoftConfig::default());
    let buf = raw.pool.take().unwrap();
    raw.provider.post_recv(qp, Tag(1), buf).unwrap();
    raw.say(&segment.repeat(count));
    let mut most = 0;
    while frames(&raw, qp) < count as u64 {
        let before = frames(&raw, qp);
        assert!(raw.provider.poll(raw.now, &mut raw.events), "it stopped");
        most = most.max(frames(&raw, qp) - before);
    }
    most
}

#[test]
fn empty_segments_of_a_send_wait_for_other_connections() {
    let most = most_in_one_poll(&empty_send(), 20_000);
    assert!(most <= IN_ONE_POLL, "{most} in one poll");
}

#[test]
fn empty_writes_wait_for_other_connections() {
    let most = most_in_one_poll(&tagged(Opcode::WRITE, 0, b""), 20_000);
    assert!(most <= IN_ONE_POLL, "{most} in one poll");
}

/// What brings something is taken as fast as before.
#[test]
fn messages_are_received_together_after_the_first() {
    let (mut raw, qp) = Raw::running(SoftConfig::default());
    for round in 0..40_u32 {
        let mut bytes = Vec::new();
        for at in 1..=4 {
            let buf = raw.pool.take().unwrap();
            raw.provider.post_recv(qp, Tag(1), buf).unwrap();
            bytes.extend(untagged(Opcode::SEND, 0, 4 * round + at, &[1; 4000]));
        }
        raw.say(&bytes);
        let before = frames(&raw, qp);
        assert!(raw.provider.poll(raw.now, &mut raw.events));
        let received = frames(&raw, qp) - before;
        if round > 20 {
            assert_eq!(received, 4, "in round {round}");
        }
        raw.turn();
        raw.events.clear();
    }
}
