//! Peers that do not use the protocol, or send nothing.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use std::io::{ErrorKind, IoSlice, IoSliceMut};
use std::net::IpAddr;
use std::time::Duration;

use crate::fabric::SimFabric;
use nvmeof_rdma::{CloseReason, Event};
use nvmeof_rdma_conformance::Endpoint::B;
use nvmeof_rdma_conformance::Rig;
use nvmeof_rdma_layers::Dice;
use nvmeof_rdma_sim::SimStreams;
use nvmeof_rdma_soft::{StreamId, Streams};

/// Bytes of an MPA request of revision 2 with neither markers nor checksum,
/// IRD 4 and ORD 4 and no private data of the user (RFC 5044, section 7.1.1,
/// and RFC 6581, section 5.1).
const REQUEST: &[u8; 24] = b"MPA ID Req Frame\x10\x02\x00\x04\x00\x04\x00\x04";

fn stranger() -> IpAddr {
    "10.0.0.3".parse().unwrap()
}

/// Runs `test` with a stranger's streams on the networks of some seeds, then checks that two
/// peers that use the protocol still connect.
fn with_stranger(seeds: u64, test: impl Fn(&mut Rig<'_>, &mut SimStreams, &mut Dice)) {
    for seed in 0..seeds {
        println!("seed {seed}");
        let mut fabric = SimFabric::new(seed, |sim| Box::new(sim));
        let mut streams = fabric.net().streams(stranger());
        let mut rig = Rig::new(&mut fabric);
        let before = rig.link();
        test(&mut rig, &mut streams, &mut Dice::new(seed));
        rig.assert_alive(before);
        let after = rig.link();
        rig.assert_alive(after);
        drop(streams);
        rig.finish();
    }
}

fn send(rig: &mut Rig<'_>, streams: &mut SimStreams, stream: StreamId, mut bytes: &[u8]) {
    while !bytes.is_empty() {
        match streams.send(stream, &[IoSlice::new(bytes)]) {
            Ok(count) => bytes = bytes.get(count..).unwrap_or_default(),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            // The other side closed the stream.
            Err(_) => return,
        }
        rig.step();
    }
}

/// Whether the other side ended the stream.
fn is_over(streams: &mut SimStreams, stream: StreamId) -> bool {
    let mut bytes = [0; 4096];
    loop {
        match streams.recv(stream, &mut [IoSliceMut::new(&mut bytes)]) {
            Ok(0) => return true,
            Ok(_) => {}
            Err(error) => return error.kind() != ErrorKind::WouldBlock,
        }
    }
}

#[test]
fn silent_connections_do_not_block_others() {
    with_stranger(6, |rig, streams, _| {
        let addr = rig.listening();
        let silent: Vec<_> = (0..500).map(|_| streams.connect(addr).unwrap()).collect();
        rig.settle();
        let link = rig.link();
        rig.assert_alive(link);
        let most = 500 - 64;
        let over = |streams: &mut SimStreams| {
            let over = silent.iter().filter(|one| is_over(streams, **one));
            over.count()
        };
        assert!(over(streams) >= most, "{} are closed", over(streams));
        // The others may wait, but not for ever.
        let late = rig.now() + Duration::from_secs(60);
        rig.wait("the silent ones are closed", |rig| {
            let done = over(streams) == silent.len();
            assert!(done || rig.now() < late, "{} closed", over(streams));
            done.then_some(())
        });
    });
}

#[test]
fn invalid_bytes_end_only_their_connection() {
    with_stranger(60, |rig, streams, dice| {
        for _ in 0..10 {
            let addr = rig.listening();
            let stream = streams.connect(addr).unwrap();
            rig.settle();
            // Some start with a valid request.
            let start = dice.below(REQUEST.len() + 1);
            let mut noise = REQUEST.get(..start).unwrap_or_default().to_vec();
            noise.extend((0..300).map(|_| dice.roll().to_le_bytes()[0]));
            send(rig, streams, stream, &noise);
            rig.wait("noise is closed", |rig| {
                while let Some(event) = rig.take_event(B) {
                    // A connection that started with a valid request is closed again.
                    let harmless = matches!(event, Event::ConnectRequest(_) | Event::Closed { .. });
                    assert!(harmless, "{event:?}");
                }
                is_over(streams, stream).then_some(())
            });
        }
    });
}

#[test]
fn invalid_bytes_after_set_up_are_a_fault() {
    with_stranger(100, |rig, streams, dice| {
        let addr = rig.listening();
        let stream = streams.connect(addr).unwrap();
        rig.settle();
        send(rig, streams, stream, REQUEST);
        let (config, request) = (rig.config(), rig.request(B));
        assert_eq!(request.peer.ip(), Some(stranger()));
        assert_eq!((request.reads_in, request.reads_out), (4, 4));
        rig.accept(B, request.qp, &config, "");
        for tag in 0..8 {
            rig[B].recv(request.qp, tag, 4096);
        }
        rig.established(B, request.qp);
        // Small lengths, so that the announced bytes arrive.
        let noise: Vec<u8> = (0..200)
            .flat_map(|_| {
                let mut frame = [0; 100].map(|_: u8| dice.roll().to_le_bytes()[0]);
                frame[0] = 0;
                // DDP and RDMAP control fields that may be valid (RFC 5041, section 4.1, and
                // RFC 5040, section 4.1).
                frame[2] &= 0xC1;
                frame[3] = 0x40 | frame[3] & 0x0F;
                frame
            })
            .collect();
        send(rig, streams, stream, &noise);
        let reason = rig.closed(B, request.qp);
        assert!(matches!(reason, CloseReason::PeerFault(_)), "{reason}");
        streams.close(stream);
    });
}
