//! Tests of segments that cost their sender nothing: other connections wait for few of them
//! only.

use super::*;

/// Maximum segments that one poll processes of a connection which sends nothing else.
pub(super) const IN_ONE_POLL: u64 = 128;

/// An empty segment of a Send, not the last.
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

/// Maximum frames that one poll processed, of `count`.
fn most_in_one_poll(segment: &[u8], count: usize) -> u64 {
    let (mut raw, qp) = Raw::running(SoftConfig::default());
    let buf = raw.pool.take().unwrap();
    raw.provider.post_recv(qp, Tag(1), buf).unwrap();
    raw.send(&segment.repeat(count));
    let mut most = 0;
    while frames(&raw, qp) < count as u64 {
        let before = frames(&raw, qp);
        assert!(raw.provider.poll(raw.now, &mut raw.events), "it stopped");
        most = most.max(frames(&raw, qp) - before);
    }
    most
}

#[test]
fn other_connections_wait_for_few_empty_send_segments() {
    let most = most_in_one_poll(&empty_send(), 20_000);
    assert!(most <= IN_ONE_POLL, "{most} in one poll");
}

#[test]
fn other_connections_wait_for_few_empty_writes() {
    let most = most_in_one_poll(&tagged(Opcode::WRITE, 0, b""), 20_000);
    assert!(most <= IN_ONE_POLL, "{most} in one poll");
}

/// Segments with payload are received as fast as before.
#[test]
fn messages_after_first_are_received_together() {
    let (mut raw, qp) = Raw::running(SoftConfig::default());
    for round in 0..40_u32 {
        let mut bytes = Vec::new();
        for at in 1..=4 {
            let buf = raw.pool.take().unwrap();
            raw.provider.post_recv(qp, Tag(1), buf).unwrap();
            bytes.extend(untagged(Opcode::SEND, 0, 4 * round + at, &[1; 4000]));
        }
        raw.send(&bytes);
        let before = frames(&raw, qp);
        assert!(raw.provider.poll(raw.now, &mut raw.events));
        let received = frames(&raw, qp) - before;
        if round > 20 {
            assert_eq!(received, 4, "in round {round}");
        }
        raw.poll_once();
        raw.events.clear();
    }
}
