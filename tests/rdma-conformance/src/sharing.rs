//! Cases: shared receive queues. A provider without them passes.

use nvmeof_memory::{Pages, Pool, PoolLayout};

use crate::Endpoint::{A, B};
use crate::rig::{Link, Rig};
use nvmeof_rdma::{CloseReason, Event, Outcome, PostError, SharedReceives, SrqId};

/// Minimum size of a queue in these cases.
const ENTRIES: u32 = 16;

/// Connects A to B, whose queue pair uses a shared receive queue. `None` if there are none.
fn drawing(rig: &mut Rig<'_>) -> Option<(Link, SharedReceives)> {
    let config = rig.config();
    let addr = rig.listening();
    let a = rig.connect(A, addr, &config, "");
    let b = rig.request(B).qp;
    let shared = rig[B].share(b, ENTRIES)?;
    rig.accept(B, b, &config, "");
    rig.established(A, a);
    rig.established(B, b);
    Some((Link { a, b }, shared))
}

/// Some connections that use the same queue.
fn drawing_together(rig: &mut Rig<'_>, count: usize) -> Option<(Vec<Link>, SharedReceives)> {
    let (first, shared) = drawing(rig)?;
    let mut links = vec![first];
    while links.len() < count {
        let (link, same) = drawing(rig)?;
        assert_eq!(same, shared, "one queue for one device");
        links.push(link);
    }
    Some((links, shared))
}

/// Posts a receive and sends a message over `link` into it.
fn assert_shared_alive(rig: &mut Rig<'_>, link: Link, srq: SrqId, tag: u64) {
    rig[B].shared(srq, tag, 256);
    rig[A].send(link.a, tag, 200);
    rig.message(B, link.b, tag, 200);
    rig.success(A, link.a, tag);
}

/// The queue pair of a message takes the next receive, and is reported; messages of one queue
/// pair stay in order.
pub fn queue_pairs_share_one_queue(rig: &mut Rig<'_>) {
    const LENS: [usize; 3] = [64, 164, 264];
    let Some((links, shared)) = drawing_together(rig, LENS.len()) else {
        return;
    };
    assert!(shared.entries >= ENTRIES, "{shared:?}");
    for round in 0..4u64 {
        for tag in 0..12 {
            rig[B].shared(shared.srq, round * 100 + tag, 4096);
        }
        for ((index, len), link) in (0u64..).zip(LENS).zip(&links) {
            for message in 0..4 {
                rig[A].send(link.a, 10 * index + message, len);
            }
        }
        for ((index, len), link) in (0u64..).zip(LENS).zip(&links) {
            for message in 0..4 {
                rig.message(B, link.b, 10 * index + message, len);
                rig.success(A, link.a, 10 * index + message);
            }
        }
        assert_eq!(rig[B].outstanding_shared(shared.srq), 0);
    }
}

/// A message without a receive waits for one, and the connection continues.
pub fn message_waits_for_shared_receive(rig: &mut Rig<'_>) {
    let Some((links, shared)) = drawing_together(rig, 2) else {
        return;
    };
    for link in &links {
        rig[A].send(link.a, 1, 100);
        rig[A].send(link.a, 2, 200);
    }
    rig.settle();
    let early = rig[B]
        .inbox
        .iter()
        .any(|event| matches!(event, Event::Received(_)));
    assert!(!early, "nothing was posted");
    for tag in 0..4 {
        rig[B].shared(shared.srq, tag, 256);
    }
    for link in &links {
        rig.message(B, link.b, 1, 100);
        rig.message(B, link.b, 2, 200);
        rig.success(A, link.a, 1);
        rig.success(A, link.a, 2);
    }
}

/// Receives that a closed queue pair did not take are available to the others.
pub fn shared_receives_outlive_queue_pair(rig: &mut Rig<'_>) {
    let Some((links, shared)) = drawing_together(rig, 3) else {
        return;
    };
    for tag in 0..6 {
        rig[B].shared(shared.srq, tag, 256);
    }
    rig[A].send(links[0].a, 1, 10);
    rig.message(B, links[0].b, 1, 10);
    rig[B].disconnect(links[0].b);
    rig.closed(B, links[0].b);
    rig[A].disconnect(links[1].a);
    rig.closed(B, links[1].b);
    assert_eq!(rig[B].outstanding_shared(shared.srq), 5);
    for message in 0..5 {
        rig[A].send(links[2].a, message, 100);
        rig.message(B, links[2].b, message, 100);
        rig.success(A, links[2].a, message);
    }
    assert_shared_alive(rig, links[2], shared.srq, 100);
}

/// The queue is destroyed with its last queue pair and its buffers are free; the next queue
/// pair gets another one.
pub fn shared_queue_ends_with_last_queue_pair(rig: &mut Rig<'_>) {
    let mut before: Option<SrqId> = None;
    for round in 0..3 {
        let Some((links, shared)) = drawing_together(rig, 2) else {
            return;
        };
        assert_ne!(before, Some(shared.srq), "an identifier is used once");
        for tag in 0..8 {
            rig[B].shared(shared.srq, 100 * round + tag, 256);
        }
        rig[A].send(links[0].a, 7, 77);
        rig.message(B, links[0].b, 7, 77);
        for link in links {
            rig[A].disconnect(link.a);
            rig.closed(B, link.b);
        }
        let buf = rig[B].buf(256);
        let refused = rig[B].try_shared(shared.srq, 1, buf).unwrap_err();
        assert_eq!(refused.why, PostError::Closed);
        before = Some(shared.srq);
    }
}

/// Too many receives, unregistered memory, and receives of the queue pair itself are refused,
/// and the buffers return.
pub fn invalid_shared_receives_are_refused(rig: &mut Rig<'_>) {
    let Some((link, shared)) = drawing(rig) else {
        return;
    };
    let buf = rig[B].buf(64);
    let refused = rig[B].try_recv(link.b, 1, buf).unwrap_err();
    assert!(
        matches!(refused.why, PostError::WrongState { .. }),
        "{refused}"
    );
    let layout = PoolLayout {
        count: 1,
        stride: 4096,
        lead: 0,
    };
    let foreign = Pool::new(layout, Pages::Normal).unwrap();
    let refused = rig[B].try_shared(shared.srq, 1, foreign.take().unwrap());
    assert_eq!(refused.unwrap_err().why, PostError::NotRegistered);
    let unknown = SrqId(shared.srq.0 ^ 0x55);
    let buf = rig[B].buf(64);
    let refused = rig[B].try_shared(unknown, 1, buf);
    assert_eq!(refused.unwrap_err().why, PostError::Closed);
    for tag in 0..u64::from(shared.entries) {
        rig[B].shared(shared.srq, tag, 64);
    }
    let buf = rig[B].buf(64);
    let full = rig[B].try_shared(shared.srq, 999, buf);
    let depth = shared.entries;
    assert_eq!(full.unwrap_err().why, PostError::QueueFull { depth });
    rig[A].send(link.a, 5, 50);
    rig.message(B, link.b, 5, 50);
    rig[B].shared(shared.srq, 1000, 64);
}

/// Only the queue pair of a request without sizes can use a shared queue.
pub fn only_requests_can_use_shared_queue(rig: &mut Rig<'_>) {
    let link = rig.link();
    assert_eq!(
        rig[B].share(link.b, ENTRIES),
        None,
        "it is established already"
    );
    assert_eq!(rig[A].share(link.a, ENTRIES), None, "it is not a request");
    let config = rig.config();
    let addr = rig.listening();
    let a = rig.connect(A, addr, &config, "");
    let b = rig.request(B).qp;
    rig[B].prepare(b, &config);
    assert_eq!(rig[B].share(b, ENTRIES), None, "it has sizes");
    rig[B].disconnect(b);
    rig.closed(B, b);
    assert_eq!(rig[B].share(b, ENTRIES), None, "it is gone");
    rig.closed(A, a);
    rig.assert_alive(link);
}

/// A failed queue pair returns its receives, and takes at most one.
pub fn fault_costs_others_no_receive(rig: &mut Rig<'_>) {
    let Some((links, shared)) = drawing_together(rig, 2) else {
        return;
    };
    let (bad, good) = (links[0], links[1]);
    for tag in 0..6 {
        rig[B].shared(shared.srq, tag, 100);
    }
    rig[A].send(bad.a, 1, 5000);
    let reason = rig.closed(B, bad.b);
    assert!(matches!(reason, CloseReason::PeerFault(_)), "{reason}");
    rig.closed(A, bad.a);
    let mut taken = 0;
    while let Some(at) = rig[B].inbox.iter().position(|event| event.qp() == bad.b) {
        if let Some(Event::Received(received)) = rig[B].inbox.remove(at) {
            assert_ne!(received.outcome, Outcome::Success);
            taken += 1;
        }
    }
    assert!(taken <= 1, "it took {taken}");
    assert_eq!(rig[B].outstanding_shared(shared.srq), 6 - taken);
    for message in 0..6 - taken as u64 {
        rig[A].send(good.a, message, 64);
        rig.message(B, good.b, message, 64);
        rig.success(A, good.a, message);
    }
}

/// Many messages on several queue pairs use fewer receives than the queue pairs have entries
/// in all.
pub fn few_shared_receives_serve_many_queue_pairs(rig: &mut Rig<'_>) {
    const EACH: u64 = 100;
    let Some((links, shared)) = drawing_together(rig, 4) else {
        return;
    };
    for tag in 0..3 {
        rig[B].shared(shared.srq, tag, 512);
    }
    let mut next_tag = 3;
    let mut sent = vec![0; links.len()];
    let mut seen = vec![0; links.len()];
    while seen.iter().any(|count| *count < EACH) {
        for (index, link) in links.iter().enumerate() {
            if sent[index] < EACH && sent[index] - seen[index] < 8 {
                rig[A].send(link.a, sent[index], 300);
                sent[index] += 1;
            }
        }
        rig.step();
        while let Some(event) = rig.take_event(B) {
            let Event::Received(received) = event else {
                panic!("unexpected {event:?}");
            };
            assert_eq!(received.outcome, Outcome::Success);
            let index = links.iter().position(|link| link.b == received.qp);
            let count = &mut seen[index.unwrap()];
            crate::check_pattern(&received.buf[..received.len], *count);
            *count += 1;
            rig[B].shared(shared.srq, next_tag, 512);
            next_tag += 1;
        }
        while rig.take_event(A).is_some() {}
    }
}
