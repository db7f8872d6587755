//! Tests of streams that refer to sent memory until they release it.

use super::*;

/// A connection whose stream keeps all payload.
fn keeping() -> (Raw, QpId) {
    let (mut raw, qp) = Raw::running(SoftConfig::default());
    // The first FPDU is the initiator's.
    raw.send(&tagged(Opcode::WRITE, 0, b""));
    raw.poll_once();
    raw.peer.keep(0);
    (raw, qp)
}

fn send(raw: &mut Raw, qp: QpId, tag: u64, body: bool) {
    let body = body.then(|| raw.pool.take().unwrap());
    let work = Work::Send {
        head: Inline::new(b"head").unwrap(),
        body,
        invalidate: None,
        solicited: false,
    };
    raw.provider.post(qp, Tag(tag), work).unwrap();
    raw.poll_once();
}

/// Polls until the stream was reset: that is one poll, and looking for what it released is
/// another one.
fn poll_reset(raw: &mut Raw) {
    raw.poll_once();
    raw.poll_once();
    assert!(raw.peer.was_reset() && raw.events.is_empty());
}

/// Tags, outcomes and whether there is a buffer, of the completions so far.
fn completed(raw: &mut Raw) -> Vec<(u64, bool, bool)> {
    let completion = |event: Event| match event {
        Event::Completion(done) => {
            Some((done.tag.0, done.outcome.is_success(), done.buf.is_some()))
        }
        _ => None,
    };
    raw.events.drain(..).filter_map(completion).collect()
}

#[test]
fn work_completes_in_order_when_its_calls_are_released() {
    let (mut raw, qp) = keeping();
    for (tag, body) in [(1, true), (2, false), (3, true)] {
        send(&mut raw, qp, tag, body);
    }
    assert_eq!((raw.peer.kept(), completed(&mut raw)), (2, vec![]));
    // The peer may have the data: an owner must not take it for a stalled one.
    assert_eq!(raw.provider.progress(qp), None);
    raw.peer.keep(1);
    raw.poll_once();
    // The second one was sent without keeping anything, but after the first one.
    let done = completed(&mut raw);
    assert_eq!(done, [(1, true, true), (2, true, false)]);
    raw.peer.keep(2);
    raw.poll_once();
    assert_eq!(completed(&mut raw), [(3, true, true)]);
    assert!(raw.provider.progress(qp).unwrap().sent > 2 * 65536);
}

#[test]
fn responses_to_reads_are_not_kept() {
    let (mut raw, qp) = keeping();
    let source = raw.pool.take().unwrap();
    let source = raw
        .provider
        .expose(qp, source, Rights::REMOTE_READ)
        .unwrap();
    let read = ReadRequest {
        sink_stag: 1,
        sink_to: 0,
        len: 65536,
        source_stag: source.key.0,
        source_to: source.addr,
    };
    raw.send(&untagged(Opcode::READ_REQUEST, 1, 1, &read.to_bytes()));
    raw.poll_once();
    assert_eq!(raw.peer.kept(), 0);
    assert!(raw.receive().len() > 65536);
    // The owner withdraws the memory as soon as the peer has it.
    assert!(raw.provider.withdraw(source.key).is_ok());
}

#[test]
fn end_waits_for_release() {
    for ending in [SoftRdma::disconnect, SoftRdma::abort] {
        let (mut raw, qp) = keeping();
        send(&mut raw, qp, 1, true);
        ending(&mut raw.provider, qp);
        raw.poll_once();
        raw.now += SoftConfig::default().linger;
        raw.poll_once();
        assert!(raw.peer.was_reset() && raw.events.is_empty());
        raw.peer.keep(1);
        raw.poll_once();
        // Perhaps it was not transmitted.
        assert!(matches!(raw.reason(), CloseReason::Local));
        assert_eq!(completed(&mut raw), [(1, false, true)]);
        assert_eq!(raw.provider.next_deadline(), None);
    }
}

#[test]
fn work_whose_release_arrived_before_the_end_succeeds() {
    let (mut raw, qp) = keeping();
    send(&mut raw, qp, 1, true);
    send(&mut raw, qp, 2, true);
    raw.peer.release_unread(1);
    raw.provider.abort(qp);
    poll_reset(&mut raw);
    raw.peer.keep(2);
    raw.poll_once();
    assert!(matches!(raw.reason(), CloseReason::Local));
    assert_eq!(completed(&mut raw), [(1, true, true), (2, false, true)]);
}

#[test]
fn stream_that_released_everything_is_not_reset() {
    let (mut raw, qp) = keeping();
    send(&mut raw, qp, 1, true);
    raw.peer.release_unread(1);
    raw.provider.abort(qp);
    raw.poll_once();
    assert!(matches!(raw.reason(), CloseReason::Local));
    assert_eq!(completed(&mut raw), [(1, true, true)]);
    assert!(!raw.peer.was_reset());
}

#[test]
fn end_by_peer_is_announced_while_it_waits_for_release() {
    let (mut raw, qp) = keeping();
    send(&mut raw, qp, 1, true);
    let stream = raw.stream;
    raw.peer.shutdown_send(stream);
    raw.poll_once();
    let [Event::Ending { qp: ending }] = raw.events[..] else {
        panic!("{:?}", raw.events);
    };
    assert_eq!(ending, qp);
    raw.peer.keep(1);
    raw.poll_once();
    assert!(matches!(raw.reason(), CloseReason::Peer));
}

#[test]
fn memory_that_is_never_released_is_not_used_again() {
    let (mut raw, qp) = keeping();
    let available = raw.pool.available();
    send(&mut raw, qp, 1, true);
    raw.provider.abort(qp);
    poll_reset(&mut raw);
    let due = raw.provider.next_deadline().unwrap();
    assert_eq!(due, Duration::from_secs(30));
    raw.now = due;
    raw.poll_once();
    assert!(matches!(raw.reason(), CloseReason::Local));
    assert_eq!(completed(&mut raw), [(1, false, false)]);
    assert_eq!(raw.pool.available(), available - 1);
}

/// Of the work after the first call, which was released after the reset: sent, partly sent with
/// so many bytes, and never sent.
#[test]
fn only_memory_that_is_not_released_is_given_up() {
    // The first bytes of a message are its header.
    for (bytes, has_payload) in [(10, false), (1000, true)] {
        let (mut raw, qp) = keeping();
        let available = raw.pool.available();
        send(&mut raw, qp, 1, true);
        send(&mut raw, qp, 2, true);
        raw.peer.leave_room(bytes);
        send(&mut raw, qp, 3, true);
        send(&mut raw, qp, 4, true);
        raw.provider.abort(qp);
        poll_reset(&mut raw);
        raw.peer.keep(1);
        raw.poll_once();
        raw.now = raw.provider.next_deadline().unwrap();
        raw.poll_once();
        assert!(matches!(raw.reason(), CloseReason::Local));
        let expected = [(1, true), (2, false), (3, !has_payload), (4, true)];
        let done = completed(&mut raw);
        assert_eq!(done, expected.map(|(tag, buf)| (tag, false, buf)));
        let lost = 1 + usize::from(has_payload);
        assert_eq!(raw.pool.available(), available - lost, "{bytes}");
    }
}
