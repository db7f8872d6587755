//! Cases: sends and receives.

use crate::Endpoint::{A, B};
use crate::pattern::{check, check_all};
use crate::rig::{Link, Rig};
use nvmeof_rdma::{Inline, Outcome, PostError, QpConfig, Rights, Work};

/// Messages of one connection arrive in the order they were sent, each in the
/// next receive.
pub fn messages_arrive_in_order(rig: &mut Rig<'_>) {
    let link = rig.link();
    for round in 0..4 {
        for tag in 0..32 {
            rig[B].recv(link.b, tag, 4096);
        }
        for tag in 0..32u64 {
            let len = usize::try_from(tag * 97 + round).unwrap();
            rig[A].send(link.a, tag, len);
        }
        for tag in 0..32u64 {
            let len = usize::try_from(tag * 97 + round).unwrap();
            assert_eq!(rig.message(B, link.b, tag, len).tag.0, tag);
            rig.success(A, link.a, tag);
        }
    }
}

/// The body follows the head without a gap.
pub fn head_and_body_are_one_message(rig: &mut Rig<'_>) {
    let link = rig.link();
    for (head, body) in [(0, 100), (1, 0), (64, 0), (16, 1), (64, 4096), (3, 5000)] {
        rig[B].recv(link.b, 1, 8192);
        let work = Work::Send {
            head: Inline::new(&[0x11; 64][..head]).unwrap(),
            body: (body > 0).then(|| rig[A].filled(body, 5)),
            invalidate: None,
            solicited: false,
        };
        rig[A].post(link.a, 1, work);
        let received = rig.received(B, link.b);
        assert_eq!(
            (received.outcome, received.len),
            (Outcome::Success, head + body)
        );
        check_all(&received.buf[..head], 0x11);
        check(&received.buf[head..head + body], 5);
    }
}

/// Messages without a body arrive in order with other work. Each is done at once or returns, and
/// in order.
pub fn messages_without_body_keep_order(rig: &mut Rig<'_>) {
    let link = rig.link();
    let window = rig[B].buf(100_000);
    let slice = rig[B].expose(link.b, window, Rights::all());
    for round in 0..8u64 {
        for tag in 0..4 {
            rig[B].recv(link.b, tag, 4096);
        }
        let head = Inline::of([0x22; 16]);
        let first = rig[A].post_message(link.a, 0, &head, None);
        assert!(first.is_ok(), "{first:?}");
        if !round.is_multiple_of(2) {
            rig[A].write(link.a, 10, 100_000, slice);
        }
        rig[A].post_message(link.a, 1, &head, None).unwrap();
        rig[A].send(link.a, 2, 3000);
        rig[A].post_message(link.a, 3, &head, None).unwrap();
        for (tag, len) in [16, 16, 3000, 16].into_iter().enumerate() {
            let received = rig.received(B, link.b);
            assert_eq!(received.tag.0, tag as u64);
            assert_eq!((received.outcome, received.len), (Outcome::Success, len));
        }
        while rig[A].outstanding_work(link.a) > 0 {
            let done = rig.completion(A, link.a);
            assert!(done.outcome.is_success(), "{done:?}");
        }
    }
    rig[B].withdraw(slice.key);
}

/// As other work, they need an entry of the queue and an open queue pair.
pub fn messages_without_body_are_refused(rig: &mut Rig<'_>) {
    let config = QpConfig {
        sends: 1,
        ..rig.config()
    };
    let link = rig.link_with(&config, &rig.config());
    rig[B].recv(link.b, 1, 64);
    rig[A].send(link.a, 1, 64);
    let head = Inline::of([0x22; 16]);
    let full = rig[A].post_message(link.a, 2, &head, None);
    assert_eq!(full, Err(PostError::QueueFull { depth: 1 }));
    rig.message(B, link.b, 1, 64);
    rig.success(A, link.a, 1);
    rig[A].provider().disconnect(link.a);
    rig.closed(A, link.a);
    let gone = rig[A].post_message(link.a, 3, &head, None);
    assert_eq!(gone, Err(PostError::Closed));
}

/// A message of no bytes takes a receive and has length 0.
pub fn empty_message_arrives(rig: &mut Rig<'_>) {
    let link = rig.link();
    for len in [64, 0] {
        rig[B].recv(link.b, 1, len);
        rig[A].send(link.a, 2, 0);
        let received = rig.message(B, link.b, 2, 0);
        check_all(&received.buf, 0xEE);
    }
    rig.assert_alive(link);
}

/// A message as long as the receive is not too long.
pub fn message_may_fill_receive(rig: &mut Rig<'_>) {
    let link = rig.link();
    for len in [1, 63, 64, 65, 4096, 8192, 100_000] {
        rig[B].recv(link.b, 1, len);
        rig[A].send(link.a, 3, len);
        rig.message(B, link.b, 3, len);
    }
}

/// Bytes outside the view of either buffer are neither sent nor changed.
pub fn only_view_is_sent_and_filled(rig: &mut Rig<'_>) {
    let link = rig.link();
    let sink = rig[B].buf_at(100, 300);
    rig[B].try_recv(link.b, 1, sink).unwrap();
    let mut source = rig[A].buf_at(1000, 200);
    crate::pattern::fill(&mut source, 9);
    let work = Work::Send {
        head: Inline::empty(),
        body: Some(source),
        invalidate: None,
        solicited: false,
    };
    rig[A].post(link.a, 1, work);
    let mut buf = rig.message(B, link.b, 9, 200).buf;
    assert_eq!(buf.view(), 100..400);
    check_all(&buf[200..], 0xEE);
    buf.set_view(0..100).unwrap();
    check_all(&buf, 0xEE);
    buf.set_view(400..1000).unwrap();
    check_all(&buf, 0xEE);
}

/// Messages may have the maximum length of the provider.
pub fn large_messages_arrive(rig: &mut Rig<'_>) {
    let link = rig.link();
    let most = rig[A].provider().limits().max_message as usize;
    for (tag, len) in (0u64..).zip([65_536, 100_001, 1 << 20, (5 << 20) + 3]) {
        let len = len.min(most);
        rig[B].recv(link.b, tag, len);
        rig[A].send(link.a, tag, len);
        rig.message(B, link.b, tag, len);
        rig.success(A, link.a, tag);
    }
}

/// Only a message sent with it carries the flag.
pub fn solicited_flag_arrives(rig: &mut Rig<'_>) {
    let link = rig.link();
    for solicited in [true, false, true] {
        rig[B].recv(link.b, 1, 64);
        let work = Work::Send {
            head: Inline::new(b"hello").unwrap(),
            body: None,
            invalidate: None,
            solicited,
        };
        rig[A].post(link.a, 1, work);
        let reported = rig.received(B, link.b).solicited;
        let unreported = rig.deviations().solicited_unreported && !reported;
        assert!(reported == solicited || unreported, "{reported}");
    }
}

/// Checks that the peer of B violated the protocol, and that both sides report it.
fn assert_fault(rig: &mut Rig<'_>, link: Link) {
    rig.assert_peer_fault(B, link);
}

/// One byte too many ends the connection, and no byte is placed behind the receive.
pub fn message_longer_than_receive_is_a_fault(rig: &mut Rig<'_>) {
    for (room, len) in [(63, 64), (0, 1), (4096, 100_000), (100, 101)] {
        let other = rig.link();
        let link = rig.link();
        rig[B].recv(link.b, 1, room);
        rig[B].recv(link.b, 2, 4096);
        rig[A].send(link.a, 3, len);
        let mut received = rig.received(B, link.b);
        assert!(!received.outcome.is_success());
        received.buf.set_view(room..room + 1024).unwrap();
        check_all(&received.buf, 0xEE);
        assert_eq!(rig.received(B, link.b).outcome, Outcome::Flushed);
        assert_fault(rig, link);
        rig.assert_alive(other);
    }
}

/// A message without a posted receive ends the connection, or waits for one on devices that
/// do that.
pub fn message_without_receive_is_a_fault(rig: &mut Rig<'_>) {
    let (other, link) = (rig.link(), rig.link());
    rig[B].recv(link.b, 1, 64);
    rig[A].send(link.a, 1, 64);
    rig[A].send(link.a, 2, 64);
    rig.message(B, link.b, 1, 64);
    if rig.deviations().sends_wait {
        rig.settle();
        assert!(rig[A].outstanding_work(link.a) > 0, "it waits");
        rig[B].recv(link.b, 2, 64);
        rig.message(B, link.b, 2, 64);
        rig.success(A, link.a, 1);
        rig.success(A, link.a, 2);
    } else {
        assert_fault(rig, link);
    }
    rig.assert_alive(other);
}
