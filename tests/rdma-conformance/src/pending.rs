//! Cases: pending connection requests.

use crate::Endpoint::{A, B};
use crate::rig::{Link, Rig, private};
use nvmeof_rdma::{Event, QpId};

/// A request whose peer has gone ends with `Closed`, with or without a response.
pub fn request_ends_when_peer_closes(rig: &mut Rig<'_>) {
    let config = rig.config();
    for reply in [false, true] {
        let a = rig.call();
        let b = rig.request(B).qp;
        rig[B].prepare(b, &config);
        rig[B].recv(b, 1, 64);
        rig[A].disconnect(a);
        rig.closed(A, a);
        if reply {
            // Too late, which is detected now or soon.
            let _ = rig[B].provider().accept(b, &private(""));
        }
        rig.closed(B, b);
        assert_eq!(rig[B].outstanding_recvs(b), 0);
    }
    let link = rig.link();
    rig.assert_alive(link);
}

/// The passive side may close a request without a response.
pub fn requests_may_be_disconnected(rig: &mut Rig<'_>) {
    let config = rig.config();
    for prepare in [false, true] {
        let a = rig.call();
        let b = rig.request(B).qp;
        if prepare {
            rig[B].prepare(b, &config);
            rig[B].recv(b, 1, 64);
        }
        rig[B].disconnect(b);
        rig.closed(B, b);
        rig.closed(A, a);
    }
}

/// At no time more than [`Limits::max_pending`](nvmeof_rdma::Limits::max_pending) requests
/// are pending, and every refused client is notified.
pub fn pending_requests_are_bounded(rig: &mut Rig<'_>) {
    let most = rig[B].provider().limits().max_pending as usize;
    let callers: Vec<QpId> = (0..most.min(256) + 4).map(|_| rig.call()).collect();
    rig.settle();
    let waiting = requests(rig);
    assert!(waiting.len() <= most, "{} requests wait", waiting.len());
    assert!(!waiting.is_empty());
    for qp in waiting {
        // Some may be closed already.
        let _ = rig[B].provider().reject(qp, &private("full"));
    }
    rig.wait("every client is notified", |rig| {
        for qp in requests(rig) {
            let _ = rig[B].provider().reject(qp, &private("full"));
        }
        callers.iter().all(|qp| rig[A].is_closed(*qp)).then_some(())
    });
    let link = rig.link();
    rig.assert_alive(link);
}

/// Takes the requests that arrived, without waiting.
fn requests(rig: &mut Rig<'_>) -> Vec<QpId> {
    let inbox = std::mem::take(&mut rig[B].inbox);
    let mut found = Vec::new();
    for event in inbox {
        match event {
            Event::ConnectRequest(request) => found.push(request.qp),
            other => rig[B].inbox.push_back(other),
        }
    }
    found
}

/// Requests may be accepted and rejected in any order.
pub fn many_requests_get_individual_responses(rig: &mut Rig<'_>) {
    let (addr, config) = (rig.listening(), rig.config());
    let most = rig[B].provider().limits().max_pending as usize;
    let count = most.min(10);
    let callers: Vec<(String, QpId)> = (0..count)
        .map(|number| {
            let name = format!("caller {number}");
            let qp = rig.connect(A, addr, &config, &name);
            (name, qp)
        })
        .collect();
    let mut asked: Vec<_> = (0..count).map(|_| rig.request(B)).collect();
    asked.reverse();
    let mut links = Vec::new();
    for (number, request) in asked.iter().enumerate() {
        let caller = callers
            .iter()
            .find(|(name, _)| request.private_data.starts_with(name.as_bytes()));
        let (_, a) = *caller.expect("a caller of that name");
        if number % 2 == 0 {
            rig.accept(B, request.qp, &config, "");
            links.push(Link { a, b: request.qp });
        } else {
            rig[B].provider().reject(request.qp, &private("")).unwrap();
        }
    }
    for link in links {
        rig.established(A, link.a);
        rig.established(B, link.b);
        rig.assert_alive(link);
    }
}
