//! Tests of the byte streams of the network alone.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "tests"
)]

use std::io::{ErrorKind, IoSlice, IoSliceMut};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use nvmeof_rdma::ListenError;
use nvmeof_rdma_layers::OneIn;
use nvmeof_rdma_sim::{NetworkFault, SimChances, SimConfig, SimNet, SimStreams};
use nvmeof_rdma_soft::{StreamEvent, StreamId, Streams};

const A: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1));
const B: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2));

/// Two endpoints with a connection.
struct Ends {
    net: SimNet,
    a: SimStreams,
    b: SimStreams,
    at_a: StreamId,
    at_b: StreamId,
}

fn ends(seed: u64, config: SimConfig) -> Ends {
    let net = SimNet::new(seed, config);
    let (mut a, mut b) = (net.streams(A), net.streams(B));
    let (_, addr) = b.listen(SocketAddr::new(B, 0).into()).unwrap();
    let at_a = a.connect(addr).unwrap();
    while net.advance_to_next(None) {}
    let at_b = match &poll(&mut b)[..] {
        [StreamEvent::Incoming { stream, peer, .. }] => {
            assert_eq!(peer.ip(), Some(A));
            *stream
        }
        other => panic!("unexpected {other:?}"),
    };
    let events = poll(&mut a);
    assert!(matches!(events[..], [StreamEvent::Connected(id)] if id == at_a));
    Ends {
        net,
        a,
        b,
        at_a,
        at_b,
    }
}

fn poll(streams: &mut SimStreams) -> Vec<StreamEvent> {
    let mut events = Vec::new();
    streams.poll(Duration::ZERO, &mut events);
    events
}

fn is_ready(events: &[StreamEvent], id: StreamId) -> bool {
    let ready = |event: &StreamEvent| matches!(event, StreamEvent::Ready(one) if *one == id);
    events.iter().any(ready)
}

/// Receives everything available, and the error or end behind it.
fn drain(streams: &mut SimStreams, id: StreamId) -> (Vec<u8>, Option<ErrorKind>) {
    let mut all = Vec::new();
    loop {
        let (mut one, mut two) = ([0; 100], [0; 7000]);
        let mut bufs = [IoSliceMut::new(&mut one), IoSliceMut::new(&mut two)];
        match streams.recv(id, &mut bufs) {
            Ok(0) => return (all, None),
            Ok(len) => {
                let both = [&one[..], &two[..]].concat();
                all.extend(&both[..len]);
            }
            Err(error) => return (all, Some(error.kind())),
        }
    }
}

#[test]
fn bytes_arrive_in_order_with_any_window() {
    for seed in 0..50 {
        let mut ends = ends(seed, SimConfig::default());
        let data: Vec<u8> = (0..300_000u32).flat_map(u32::to_le_bytes).collect();
        let (mut sent, mut got) = (0, Vec::new());
        ends.a.want_send(ends.at_a, true).unwrap();
        while got.len() < data.len() {
            if is_ready(&poll(&mut ends.a), ends.at_a) {
                let middle = data.len().min(sent + 100);
                let bufs = [
                    IoSlice::new(&data[sent..middle]),
                    IoSlice::new(&data[middle..]),
                ];
                match ends.a.send(ends.at_a, &bufs) {
                    Ok(len) => sent += len,
                    Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
                }
                ends.a.want_send(ends.at_a, sent < data.len()).unwrap();
            }
            if is_ready(&poll(&mut ends.b), ends.at_b) {
                let (bytes, stopped) = drain(&mut ends.b, ends.at_b);
                assert_eq!(stopped, Some(ErrorKind::WouldBlock));
                got.extend(bytes);
            }
            ends.net.advance_to_next(None);
        }
        assert!(got == data, "seed {seed}");
    }
}

#[test]
fn sender_waits_for_receiver() {
    let config = SimConfig {
        window: 1000..=1000,
        ..SimConfig::default()
    };
    let mut ends = ends(1, config);
    let mut sent = 0;
    loop {
        match ends.a.send(ends.at_a, &[IoSlice::new(&[7; 400])]) {
            Ok(len) => sent += len,
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::WouldBlock);
                break;
            }
        }
    }
    assert_eq!(sent, 1000);
    ends.a.want_send(ends.at_a, true).unwrap();
    while ends.net.advance_to_next(None) {}
    assert!(poll(&mut ends.a).is_empty());
    assert_eq!(drain(&mut ends.b, ends.at_b).0.len(), 1000);
    while ends.net.advance_to_next(None) {}
    assert!(is_ready(&poll(&mut ends.a), ends.at_a));
}

#[test]
fn unread_bytes_are_reported_once() {
    let mut ends = ends(1, SimConfig::default());
    ends.a.send(ends.at_a, &[IoSlice::new(b"hello")]).unwrap();
    while ends.net.advance_to_next(None) {}
    assert!(is_ready(&poll(&mut ends.b), ends.at_b));
    assert!(poll(&mut ends.b).is_empty());
    let mut one = [0];
    let mut bufs = [IoSliceMut::new(&mut one)];
    ends.b.recv(ends.at_b, &mut bufs).unwrap();
    assert!(is_ready(&poll(&mut ends.b), ends.at_b), "some are left");
}

#[test]
fn end_follows_bytes_and_keeps_other_direction() {
    let mut ends = ends(2, SimConfig::default());
    ends.a.send(ends.at_a, &[IoSlice::new(&[1; 10])]).unwrap();
    ends.a.shutdown_send(ends.at_a);
    while ends.net.advance_to_next(None) {}
    let (bytes, stopped) = drain(&mut ends.b, ends.at_b);
    assert!(bytes.len() <= 10 && stopped.is_none());
    ends.b.send(ends.at_b, &[IoSlice::new(&[2; 3])]).unwrap();
    ends.b.close(ends.at_b);
    while ends.net.advance_to_next(None) {}
    let (bytes, stopped) = drain(&mut ends.a, ends.at_a);
    assert!(!bytes.is_empty() && stopped.is_none());
    let refused = ends.b.send(ends.at_b, &[IoSlice::new(&[2])]);
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::NotConnected);
}

#[test]
fn close_with_unread_bytes_is_reset() {
    let mut ends = ends(3, SimConfig::default());
    ends.a.send(ends.at_a, &[IoSlice::new(&[1; 10])]).unwrap();
    while ends.net.advance_to_next(None) {}
    drop(ends.b);
    while ends.net.advance_to_next(None) {}
    assert!(is_ready(&poll(&mut ends.a), ends.at_a));
    let (_, stopped) = drain(&mut ends.a, ends.at_a);
    assert_eq!(stopped, Some(ErrorKind::ConnectionReset));
    let refused = ends.a.send(ends.at_a, &[IoSlice::new(&[1])]).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::BrokenPipe);
}

#[test]
fn cut_delays_everything_until_healed() {
    let mut ends = ends(4, SimConfig::default());
    ends.net.inject(NetworkFault::Cut(B, A));
    let sent = ends.a.send(ends.at_a, &[IoSlice::new(&[1; 900])]).unwrap();
    ends.a.close(ends.at_a);
    ends.net.advance(Duration::from_secs(3600));
    assert!(poll(&mut ends.b).is_empty());
    ends.net.inject(NetworkFault::Heal(A, B));
    assert!(is_ready(&poll(&mut ends.b), ends.at_b));
    let (bytes, stopped) = drain(&mut ends.b, ends.at_b);
    assert_eq!((bytes.len(), stopped), (sent, None));
}

#[test]
fn connections_are_refused_reset_and_half_closed() {
    let mut ends = ends(5, SimConfig::default());
    ends.net.inject(NetworkFault::HalfClose(A, B));
    while ends.net.advance_to_next(None) {}
    assert_eq!(drain(&mut ends.b, ends.at_b), (vec![], None));
    assert_eq!(drain(&mut ends.a, ends.at_a).1, Some(ErrorKind::WouldBlock));
    ends.net.inject(NetworkFault::Reset(A, B));
    while ends.net.advance_to_next(None) {}
    for (streams, id) in [(&mut ends.a, ends.at_a), (&mut ends.b, ends.at_b)] {
        assert_eq!(drain(streams, id).1, Some(ErrorKind::ConnectionReset));
    }
    let (_, addr) = ends.b.listen(SocketAddr::new(B, 0).into()).unwrap();
    ends.net.inject(NetworkFault::Refuse(B, 1));
    poll(&mut ends.a);
    for refused in [true, false] {
        ends.a.connect(addr).unwrap();
        while ends.net.advance_to_next(None) {}
        let events = poll(&mut ends.a);
        let failed = matches!(&events[..], [StreamEvent::ConnectFailed(_, error)]
            if error.kind() == ErrorKind::ConnectionRefused);
        assert_eq!(failed, refused, "{events:?}");
    }
}

#[test]
fn invalid_address_is_refused() {
    let net = SimNet::new(0, SimConfig::default());
    let mut a = net.streams(A);
    let (listener, addr) = a.listen(SocketAddr::new(A, 0).into()).unwrap();
    assert!(matches!(a.listen(addr), Err(ListenError::InUse { .. })));
    let elsewhere = a.listen(SocketAddr::new(B, 4420).into());
    assert!(matches!(elsewhere, Err(ListenError::NoSuchAddress { .. })));
    a.unlisten(listener);
    assert_eq!(a.listen(addr).unwrap().1, addr);
    drop(a);
    assert_eq!(net.streams(A).listen(addr).unwrap().1, addr);
}

#[test]
fn random_faults_flip_bits_and_stall() {
    let config = SimConfig {
        window: 1 << 20..=1 << 20,
        ..SimConfig::default()
    };
    let mut ends = ends(6, config);
    ends.net.set_chances(SimChances {
        corrupt: OneIn(1),
        stall: OneIn(1),
        stall_for: Duration::from_secs(5),
        ..SimChances::default()
    });
    let sent = ends.a.send(ends.at_a, &[IoSlice::new(&[0; 5000])]).unwrap();
    ends.net.advance(Duration::from_secs(4));
    assert!(poll(&mut ends.b).is_empty(), "stalled");
    while ends.net.advance_to_next(None) {}
    let (bytes, _) = drain(&mut ends.b, ends.at_b);
    assert_eq!(bytes.len(), sent);
    assert!(bytes.iter().any(|byte| *byte != 0), "a bit was turned");
}

#[test]
fn same_seed_yields_same_run() {
    let run = |seed| {
        let mut ends = ends(seed, SimConfig::default());
        let mut log = Vec::new();
        for _ in 0..200 {
            let sent = ends.a.send(ends.at_a, &[IoSlice::new(&[3; 9000])]);
            log.push((ends.net.now(), sent.unwrap_or(0)));
            ends.net.advance_to_next(None);
            log.push((ends.net.now(), drain(&mut ends.b, ends.at_b).0.len()));
        }
        log
    };
    assert_eq!(run(7), run(7));
    assert_ne!(run(7), run(8));
}
