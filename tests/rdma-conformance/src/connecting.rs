//! Cases: listening, connecting, accepting, rejecting.

use std::io;

use crate::Endpoint::{A, B};
use crate::rig::{Link, Rig, private};
use nvmeof_rdma::{Address, CloseReason, ConnectError, Event, ListenError, PrivateData, QpConfig};

/// Each side gets the private data of the other, from its start.
pub fn private_data_travels_both_ways(rig: &mut Rig<'_>) {
    let (addr, config) = (rig.listening(), rig.config());
    let a = rig.connect(A, addr, &config, "may I?");
    let request = rig.request(B);
    assert!(request.private_data.starts_with(b"may I?"));
    assert_eq!(request.listener, rig.listener());
    rig.accept(B, request.qp, &config, "you may");
    assert!(rig.established(A, a).starts_with(b"you may"));
    rig.established(B, request.qp);
    rig.assert_alive(Link { a, b: request.qp });
}

/// 196 bytes fit in a request, an accept and a reject; or the maximum of the devices.
pub fn full_private_data_travels_both_ways(rig: &mut Rig<'_>) {
    let all: Vec<u8> = (1..=196).collect();
    let deviations = rig.deviations();
    let [asked, accepted, refused] = deviations.private_data.map(|most| &all[..most]);
    let request_data = PrivateData::new(asked).unwrap();
    let (addr, config) = (rig.listening(), rig.config());
    for accept in [true, false] {
        let now = rig.now();
        let provider = rig[A].provider();
        let a = provider.connect(addr, &config, &request_data, now);
        let a = a.unwrap();
        rig[A].outstanding.open(a);
        let request = rig.request(B);
        assert!(deviations.same(&request.private_data, asked), "{request:?}");
        rig[B].prepare(request.qp, &config);
        if accept {
            let data = PrivateData::new(accepted).unwrap();
            rig[B].provider().accept(request.qp, &data).unwrap();
            let got = rig.established(A, a);
            assert!(deviations.same(&got, accepted), "{got:?}");
        } else {
            let data = PrivateData::new(refused).unwrap();
            rig[B].provider().reject(request.qp, &data).unwrap();
            let got = rejected(rig, a);
            assert!(deviations.same(&got, refused), "{got:?}");
        }
    }
}

/// The active side gets `Rejected`, then `Closed`; the passive side `Closed`.
pub fn rejection_carries_private_data(rig: &mut Rig<'_>) {
    let a = rig.call();
    rig[A].recv(a, 1, 64);
    let b = rig.request(B).qp;
    rig[B].provider().reject(b, &private("no")).unwrap();
    assert!(rejected(rig, a).starts_with(b"no"));
    assert_eq!(rig.closed(A, a), CloseReason::Rejected);
    assert_eq!(rig.closed(B, b), CloseReason::Local);
    assert_eq!(rig[A].outstanding_recvs(a), 0);
    let link = rig.link();
    rig.assert_alive(link);
}

fn rejected(rig: &mut Rig<'_>, qp: nvmeof_rdma::QpId) -> Vec<u8> {
    let event = rig.event(A, "Rejected", |event| {
        (matches!(event, Event::Rejected { .. }) && event.qp() == qp).then_some(())
    });
    let Event::Rejected { private_data, .. } = event else {
        unreachable!("picked")
    };
    private_data.to_vec()
}

/// The peer's ORD is the number of incoming reads, its IRD that of outgoing ones.
pub fn request_reports_reads_of_peer(rig: &mut Rig<'_>) {
    let addr = rig.listening();
    let config = QpConfig {
        reads_out: 1,
        reads_in: rig.config().reads_in,
        ..rig.config()
    };
    rig.connect(A, addr, &config, "");
    let request = rig.request(B);
    assert_eq!(
        (request.reads_in, request.reads_out),
        (config.reads_out, config.reads_in)
    );
}

/// Connecting without a listener fails with an error of the network.
pub fn connect_without_listener_is_network_failure(rig: &mut Rig<'_>) {
    let free = rig.free_addr(B);
    let (listener, addr) = rig[B].provider().listen(free).unwrap();
    rig[B].provider().unlisten(listener);
    rig.settle();
    let config = rig.config();
    let a = rig.connect(A, addr, &config, "");
    // Receives may be posted immediately, so they return too.
    rig[A].recv(a, 1, 64);
    let received = rig.received(A, a);
    assert!(!received.outcome.is_success());
    let reason = rig.closed(A, a);
    let refused = matches!(&reason, CloseReason::Network { kind, .. }
        if *kind == io::ErrorKind::ConnectionRefused);
    assert!(refused, "{reason}");
}

/// After `unlisten` connections are refused; established ones are not affected.
pub fn closed_listener_refuses_connections(rig: &mut Rig<'_>) {
    let link = rig.link();
    let (addr, listener) = (rig.listening(), rig.listener());
    rig[B].provider().unlisten(listener);
    rig[B].provider().unlisten(listener);
    rig.settle();
    let config = rig.config();
    let a = rig.connect(A, addr, &config, "");
    assert!(matches!(rig.closed(A, a), CloseReason::Network { .. }));
    rig.assert_alive(link);
    let again = rig[B].provider().listen(addr);
    assert_eq!(again.expect("the address is free again").1, addr);
}

/// A provider of IP addresses refuses Unix sockets.
pub fn unsupported_kind_of_address_is_refused(rig: &mut Rig<'_>) {
    if rig.serves_unix() {
        return;
    }
    let addr: Address = "unix:/nonexistent/nvmeof.sock".parse().unwrap();
    let refused = rig[B].provider().listen(addr);
    assert!(matches!(refused, Err(ListenError::Kind(_))), "{refused:?}");
    let (config, now) = (rig.config(), rig.now());
    let refused = rig[A].provider().connect(addr, &config, &private(""), now);
    assert!(matches!(refused, Err(ConnectError::Kind(_))), "{refused:?}");
}

/// Two listeners cannot have one address.
pub fn address_in_use_is_refused(rig: &mut Rig<'_>) {
    let addr = rig.listening();
    assert_ne!(addr.port(), Some(0));
    let second = rig[B].provider().listen(addr);
    assert!(
        matches!(second, Err(ListenError::InUse { addr: named }) if named == addr),
        "{second:?}"
    );
    let link = rig.link();
    rig.assert_alive(link);
}

/// Either side may listen.
pub fn either_side_may_listen(rig: &mut Rig<'_>) {
    let (free, config) = (rig.free_addr(A), rig.config());
    let (_, addr) = rig[A].provider().listen(free).unwrap();
    let b = rig.connect(B, addr, &config, "");
    let a = rig.request(A).qp;
    rig.accept(A, a, &config, "");
    rig.established(A, a);
    rig.established(B, b);
    let other = rig.link();
    rig[A].recv(a, 1, 64);
    rig[B].send(b, 2, 64);
    rig.message(A, a, 2, 64);
    rig.assert_alive(other);
}

/// Each message arrives on its own connection.
pub fn messages_stay_on_their_connection(rig: &mut Rig<'_>) {
    let links: Vec<Link> = (0..8).map(|_| rig.link()).collect();
    for (link, first) in links.iter().zip((0u64..).step_by(100)) {
        for tag in first..first + 4 {
            rig[B].recv(link.b, tag, 1000);
        }
    }
    for tag in 0..4 {
        for (link, first) in links.iter().zip((0u64..).step_by(100)) {
            rig[A].send(link.a, first + tag, 1000);
        }
    }
    for (link, first) in links.iter().zip((0u64..).step_by(100)) {
        for tag in first..first + 4 {
            assert_eq!(rig.message(B, link.b, tag, 1000).tag.0, tag);
        }
    }
}

/// Receives posted by the passive side before its accept get messages that the active side
/// sends immediately.
pub fn early_receives_get_first_message(rig: &mut Rig<'_>) {
    let a = rig.call();
    // Posted while connecting, for the first response.
    rig[A].recv(a, 1, 64);
    let (config, request) = (rig.config(), rig.request(B));
    let b = request.qp;
    rig[B].prepare(b, &config);
    for tag in 0..8 {
        rig[B].recv(b, tag, 128);
    }
    rig[B].provider().accept(b, &private("")).unwrap();
    rig.established(A, a);
    for tag in 0..8 {
        rig[A].send(a, tag, 100);
    }
    for tag in 0..8 {
        rig.message(B, b, tag, 100);
    }
    rig.established(B, b);
    rig[B].send(b, 9, 50);
    rig.message(A, a, 9, 50);
}

/// Work may be posted as soon as the connection is established, on either side. Work of the
/// passive side may wait for the first message of the active side: iWARP does not allow it to
/// start (RFC 5044, section 7.1.2).
pub fn passive_side_may_post_first(rig: &mut Rig<'_>) {
    let link = rig.link();
    rig[A].recv(link.a, 1, 64);
    rig[B].send(link.b, 5, 64);
    rig.settle();
    rig.assert_alive(link);
    rig.message(A, link.a, 5, 64);
    rig.success(B, link.b, 5);
}
