//! Tests of RDMA Read Responses with any segments, and any messages between them.

use super::*;

/// Starts a Read and returns its request.
fn reading(len: usize) -> (Raw, QpId, ReadRequest) {
    let (mut raw, qp) = Raw::running(SoftConfig::default());
    // The first FPDU is the initiator's.
    raw.send(&tagged(Opcode::WRITE, 0, b""));
    raw.poll_once();
    let mut local = raw.pool.take().unwrap();
    local.set_view(0..len).unwrap();
    let remote = RemoteSlice {
        key: RemoteKey(7),
        addr: 1 << 32,
        len: u32::try_from(len).unwrap(),
    };
    let work = Work::Read { local, remote };
    raw.provider.post(qp, Tag(1), work).unwrap();
    raw.poll_once();
    let asked = ReadRequest::parse(raw.receive()[20..].first_chunk().unwrap());
    assert_eq!(asked.len as usize, len);
    (raw, qp, asked)
}

/// The segment of the response with the bytes from `start` to `end`.
fn segment(asked: &ReadRequest, start: usize, end: usize) -> Vec<u8> {
    let header = Header {
        opcode: Opcode::READ_RESPONSE,
        last: end == asked.len as usize,
        payload: end - start,
        kind: Kind::Tagged {
            stag: asked.sink_stag,
            to: asked.sink_to + start as u64,
        },
    };
    framed(&header, &content(end)[start..])
}

/// Checks that the events are `messages` messages of 8 bytes and the complete response.
fn assert_came(raw: &mut Raw, messages: usize, len: usize) {
    let (mut arrived, mut read) = (0, false);
    for event in raw.events.drain(..) {
        match event {
            Event::Received(received) => {
                assert_eq!(received.buf[..received.len], *b"8 bytes.");
                arrived += 1;
            }
            Event::Completion(done) => {
                assert!(*done.buf.unwrap() == content(len));
                read = true;
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!((arrived, read), (messages, true));
}

proptest! {
    /// Bytes received before their header are correct, or moved.
    #[test]
    fn read_response_in_any_segments_is_accepted(
        sizes in prop::collection::vec(prop_oneof![1..100_usize, 8192..16_384_usize], 1..5),
        messages in prop::collection::vec(any::<bool>(), 5),
        pieces in prop::collection::vec(prop_oneof![1..64_usize, 1..50_000_usize], 1..12),
    ) {
        let len = sizes.iter().sum();
        let (mut raw, qp, asked) = reading(len);
        for tag in 0..4 {
            let buf = raw.pool.take().unwrap();
            raw.provider.post_recv(qp, Tag(tag), buf).unwrap();
        }
        let (mut bytes, mut start, mut msn) = (Vec::new(), 0, 0);
        for (size, message) in sizes.iter().zip(messages) {
            bytes.extend(segment(&asked, start, start + size));
            start += size;
            if message && start < len {
                msn += 1;
                bytes.extend(untagged(Opcode::SEND, 0, msn, b"8 bytes."));
            }
        }
        let mut left = &bytes[..];
        for piece in pieces.iter().cycle() {
            let (now, rest) = left.split_at((*piece).min(left.len()));
            raw.send(now);
            raw.poll_once();
            left = rest;
            if left.is_empty() {
                break;
            }
        }
        assert_came(&mut raw, msn as usize, len);
    }
}

#[test]
fn two_large_segments_take_one_call() {
    let (mut raw, _, asked) = reading(65536);
    let first = segment(&asked, 0, 40_000);
    // So that a large one is expected.
    raw.send(&first[..20]);
    raw.poll_once();
    raw.send(&first[20..]);
    raw.send(&segment(&asked, 40_000, 65536));
    let before = raw.peer.received();
    raw.poll_once();
    assert_eq!(raw.peer.received() - before, 1);
    assert_came(&mut raw, 0, 65536);
}
