//! Cases: the end of connections.

use crate::Endpoint::{A, B};
use crate::pattern::{check, check_all};
use crate::rig::{Rig, private};
use nvmeof_rdma::{CloseReason, ExposeError, PostError, Rights};

/// Outstanding receives, sends, writes and reads return, then `Closed`, on both sides,
/// whichever side disconnects.
pub fn everything_returns_before_closed(rig: &mut Rig<'_>) {
    for iterations in [0, 1, 5, 20] {
        for end in [A, B] {
            let link = rig.link();
            let source = rig[B].filled(100_000, 1);
            let source = rig[B].expose(link.b, source, Rights::REMOTE_READ);
            let sink = rig[B].buf(100_000);
            let sink = rig[B].expose(link.b, sink, Rights::REMOTE_WRITE);
            for tag in 0..10 {
                rig[A].recv(link.a, tag, 64);
                rig[B].recv(link.b, tag, 64);
                rig[A].read(link.a, tag, 100_000, source);
                rig[A].write(link.a, tag, 100_000, sink);
                rig[A].send(link.a, tag, 64);
            }
            for _ in 0..iterations {
                rig.step();
            }
            rig[end].disconnect(link.at(end));
            rig[end].disconnect(link.at(end));
            assert_eq!(rig.closed(end, link.at(end)), CloseReason::Local);
            let other = end.other();
            let reason = rig.closed(other, link.at(other));
            let silent = rig.deviations().silent_faults;
            let unsaid = silent && matches!(reason, CloseReason::Network { .. });
            assert!(reason == CloseReason::Peer || unsaid, "{reason}");
            // The rig checks that everything returned before.
            rig[A].inbox.clear();
            rig[B].inbox.clear();
            check(&rig[B].withdraw(source.key), 1);
            rig[B].withdraw(sink.key);
        }
    }
}

/// An owner may sleep at once after it disconnects a queue pair: it is woken for what is left to
/// do.
pub fn owner_that_disconnects_does_not_sleep(rig: &mut Rig<'_>) {
    for aborts in [false, true] {
        let link = rig.link();
        rig.goes_to_sleep(A);
        match aborts {
            true => rig[A].provider().abort(link.a),
            false => rig[A].disconnect(link.a),
        }
        let now = rig.now();
        let until = rig[A].rest();
        let is_due = until.is_some_and(|until| until <= now);
        assert!(is_due || rig.wakes(A), "it sleeps until {until:?}");
        rig.closed(A, link.a);
        rig.closed(B, link.b);
    }
}

/// Orderly close delivers everything submitted before.
pub fn submitted_work_arrives_before_end(rig: &mut Rig<'_>) {
    let link = rig.link();
    let sink = rig[B].buf(65_536);
    let sink = rig[B].expose(link.b, sink, Rights::REMOTE_WRITE);
    for tag in 0..10 {
        rig[B].recv(link.b, tag, 4096);
    }
    rig[A].write(link.a, 77, 65_536, sink);
    for tag in 0..10 {
        rig[A].send(link.a, tag, 4000);
    }
    let now = rig.now();
    rig[A].provider().submit(now);
    rig[A].disconnect(link.a);
    for tag in 0..10 {
        rig.message(B, link.b, tag, 4000);
    }
    assert_eq!(rig.closed(B, link.b), CloseReason::Peer);
    assert_eq!(rig.closed(A, link.a), CloseReason::Local);
    check(&rig[B].withdraw(sink.key), 77);
}

/// Each side closes with its own reason, or with the other's.
pub fn both_sides_may_disconnect_at_once(rig: &mut Rig<'_>) {
    let link = rig.link();
    for end in [A, B] {
        rig[end].recv(link.at(end), 1, 64);
        rig[end].disconnect(link.at(end));
    }
    for end in [A, B] {
        let reason = rig.closed(end, link.at(end));
        let expected = matches!(reason, CloseReason::Local | CloseReason::Peer);
        assert!(expected, "{end:?}: {reason}");
    }
}

/// A connection that is not established yet can be closed at any time.
pub fn connecting_may_be_canceled(rig: &mut Rig<'_>) {
    let config = rig.config();
    for iterations in 0..8 {
        let a = rig.call();
        rig[A].recv(a, 1, 64);
        for _ in 0..iterations {
            rig.step();
        }
        rig[A].disconnect(a);
        assert_eq!(rig.closed(A, a), CloseReason::Local);
        rig.settle();
        for event in std::mem::take(&mut rig[B].inbox) {
            let b = event.qp();
            if !rig[B].is_closed(b) {
                let _ = rig[B].provider().prepare(b, &config);
                let _ = rig[B].provider().accept(b, &private(""));
                rig.closed(B, b);
            }
        }
    }
    let link = rig.link();
    rig.assert_alive(link);
}

/// Everything returns when the peer dies.
pub fn death_of_peer_is_detected(rig: &mut Rig<'_>) {
    let (idle, busy) = (rig.link(), rig.link());
    let source = rig[B].filled(4096, 1);
    let source = rig[B].expose(busy.b, source, Rights::REMOTE_READ);
    rig[A].recv(idle.a, 1, 64);
    rig[A].recv(busy.a, 1, 64);
    rig[A].read(busy.a, 2, 4096, source);
    rig[A].send(busy.a, 3, 64);
    let waiting = rig.call();
    rig[B].vanish();
    for qp in [idle.a, busy.a, waiting] {
        let reason = rig.closed(A, qp);
        let expected = match reason {
            CloseReason::Network { .. } | CloseReason::Peer => true,
            CloseReason::Rejected => qp == waiting && rig.deviations().rejects_for_the_dead,
            _ => false,
        };
        assert!(expected, "{reason}");
    }
}

/// Exposed buffers can be withdrawn after the queue pair is closed.
pub fn exposed_memory_survives_its_queue_pair(rig: &mut Rig<'_>) {
    let link = rig.link();
    let exposed = [A, B].map(|end| {
        let buf = rig[end].buf_at(10, 100);
        let slice = rig[end].expose(link.at(end), buf, Rights::all());
        (end, slice)
    });
    rig[A].disconnect(link.a);
    rig.closed(A, link.a);
    rig.closed(B, link.b);
    for (end, slice) in exposed {
        let buf = rig[end].withdraw(slice.key);
        assert_eq!(buf.view(), 10..110);
        check_all(&buf, 0xEE);
        let again = rig[end].try_withdraw(slice.key).map(|_| ());
        assert_eq!(again, Err(ExposeError::UnknownKey));
    }
}

/// The identifier of a closed queue pair is invalid, also when its slot is reused.
pub fn closed_queue_pair_ids_are_refused(rig: &mut Rig<'_>) {
    let config = rig.config();
    let gone = rig.link();
    rig[A].disconnect(gone.a);
    assert!(rig[A].refusal(gone.a).is_some(), "closing takes no work");
    rig.closed(A, gone.a);
    rig.closed(B, gone.b);
    for replaced in [false, true] {
        let other = replaced.then(|| rig.link());
        for end in [A, B] {
            let qp = gone.at(end);
            assert_eq!(rig[end].refusal(qp), Some(PostError::Closed));
            let buf = rig[end].buf(64);
            let refused = rig[end].try_recv(qp, 1, buf).unwrap_err();
            assert_eq!(refused.why, PostError::Closed);
            let provider = rig[end].provider();
            let refused = provider.expose(qp, refused.back, Rights::all());
            assert_eq!(refused.unwrap_err().why, ExposeError::Closed);
            assert_eq!(provider.prepare(qp, &config), Err(PostError::Closed));
            assert_eq!(provider.accept(qp, &private("")), Err(PostError::Closed));
            assert_eq!(provider.reject(qp, &private("")), Err(PostError::Closed));
            provider.disconnect(qp);
        }
        if let Some(other) = other {
            rig.settle();
            rig.assert_alive(other);
        }
    }
}

/// The end of one connection does not affect others.
pub fn other_connections_are_not_affected(rig: &mut Rig<'_>) {
    let links: Vec<_> = (0..6).map(|_| rig.link()).collect();
    for (number, link) in links.iter().enumerate() {
        let end = if number % 2 == 0 { A } else { B };
        rig[end].disconnect(link.at(end));
        rig.closed(A, link.a);
        rig.closed(B, link.b);
        for other in &links[number + 1..] {
            rig.assert_alive(*other);
        }
    }
}

/// Buffers of a provider return to their pool when it is dropped.
pub fn dropped_provider_frees_everything(rig: &mut Rig<'_>) {
    let link = rig.link();
    let source = rig[B].filled(1 << 20, 1);
    let source = rig[B].expose(link.b, source, Rights::REMOTE_READ);
    for tag in 0..10 {
        rig[A].recv(link.a, tag, 4096);
        rig[B].recv(link.b, tag, 4096);
        rig[A].read(link.a, tag, 8192, source);
        rig[A].send(link.a, tag, 4096);
    }
    for _ in 0..3 {
        rig.step();
    }
    rig[A].vanish();
    rig[B].vanish();
    rig[A].assert_all_back();
    rig[B].assert_all_back();
}
