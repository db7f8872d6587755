//! Tests in which the provider connects to a hand-made peer.

use super::*;

/// A provider that connects; the replies are hand-made.
struct Active {
    provider: SoftRdma<Pipes>,
    peer: Pipes,
    events: Vec<Event>,
    qp: QpId,
    pool: Pool,
}

impl Active {
    fn new() -> Self {
        let (streams, mut peer) = Pipes::pair(1 << 20, 1 << 20);
        peer.listen(addr()).unwrap();
        let (mut provider, pool) = Raw::provider(SoftConfig::default(), streams);
        let private_data = PrivateData::new(b"hello").unwrap();
        let qp = provider.connect(addr(), &CONFIG, &private_data, Duration::ZERO);
        Self {
            provider,
            peer,
            events: Vec::new(),
            qp: qp.unwrap(),
            pool,
        }
    }

    fn poll_once(&mut self) {
        while self.provider.poll(Duration::ZERO, &mut self.events) {}
    }

    /// Takes the next connection and its request of `revision`.
    fn asked(&mut self, revision: u8) -> StreamId {
        self.poll_once();
        let mut events = Vec::new();
        self.peer.poll(Duration::ZERO, &mut events);
        let stream = events.iter().find_map(|event| match event {
            StreamEvent::Incoming { stream, .. } => Some(*stream),
            _ => None,
        });
        let stream = stream.expect("a connection");
        let mut bytes = vec![0; 512];
        let bufs = &mut [IoSliceMut::new(&mut bytes)];
        let count = self.peer.recv(stream, bufs).unwrap();
        let frame = Frame::parse(FrameKind::Request, bytes.first_chunk().unwrap()).unwrap();
        assert_eq!((frame.revision, frame.enhanced), (revision, revision == 2));
        assert!(bytes[..count].ends_with(b"hello"));
        stream
    }

    fn reply(&mut self, stream: StreamId, flags: u8, revision: u8, private: &[u8]) {
        let mut bytes = request(revision, flags & !0x10, None, private);
        bytes[..16].copy_from_slice(b"MPA ID Rep Frame");
        bytes[16] = flags;
        self.peer.send(stream, &[IoSlice::new(&bytes)]).unwrap();
        self.poll_once();
    }
}

#[test]
fn connect_falls_back_to_revision_1() {
    for how in 0..3 {
        let mut active = Active::new();
        let stream = active.asked(2);
        match how {
            0 => active.peer.close(stream),
            1 => active.reply(stream, 0x20, 1, b""),
            _ => active.reply(stream, 0, 1, b""),
        }
        let stream = active.asked(1);
        active.reply(stream, 0, 1, b"fine");
        match &active.events[..] {
            [Event::Established { private_data, .. }] => assert_eq!(&**private_data, b"fine"),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn active_side_respects_segment_size() {
    for (segment, count) in [(Some(1460), 3), (None, 1)] {
        let mut active = Active::new();
        active.peer.set_segment(segment);
        let stream = active.asked(2);
        active.reply(stream, 0x10, 2, &Reads::new(2, 2).to_bytes());
        let mut local = active.pool.take().unwrap();
        local.set_view(0..4096).unwrap();
        let remote = RemoteSlice {
            key: RemoteKey(1),
            addr: 0,
            len: 4096,
        };
        let work = Work::Write { local, remote };
        active.provider.post(active.qp, Tag(1), work).unwrap();
        active.poll_once();
        let mut bytes = vec![0; 8192];
        let bufs = &mut [IoSliceMut::new(&mut bytes)];
        let received = active.peer.recv(stream, bufs).unwrap();
        assert_eq!(segments::fpdus(&bytes[..received]).len(), count);
    }
}

#[test]
fn invalid_reply_ends_connection() {
    let reads = Reads::new(2, 2).to_bytes();
    for (flags, revision, private) in [
        (0x90, 2, &reads[..]),
        (0x00, 2, &reads[..]),
        (0x10, 3, &reads[..]),
        (0x10, 2, &[0; 3]),
        (0x10, 2, &[0; 300]),
    ] {
        let mut active = Active::new();
        let stream = active.asked(2);
        active.reply(stream, flags, revision, private);
        match &active.events[..] {
            [
                Event::Closed {
                    qp,
                    reason: CloseReason::PeerFault(_),
                },
            ] => assert_eq!(*qp, active.qp),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn reply_with_too_many_reads_gets_terminate() {
    let mut active = Active::new();
    let stream = active.asked(2);
    active.reply(stream, 0x10, 2, &Reads::new(2, 3).to_bytes());
    let mut bytes = vec![0; 64];
    let bufs = &mut [IoSliceMut::new(&mut bytes)];
    assert_eq!(active.peer.recv(stream, bufs).unwrap(), 28);
    assert_eq!(Terminate::parse(&bytes[20..]).code, codes::MPA_IRD);
    assert!(matches!(&active.events[..], [Event::Closed { .. }]));
}

/// Starts an RDMA Read of 100 bytes and returns its request.
fn reading() -> (Active, StreamId, ReadRequest, RemoteSlice) {
    let mut active = Active::new();
    let stream = active.asked(2);
    active.reply(stream, 0x10, 2, &Reads::new(2, 2).to_bytes());
    let mut local = active.pool.take().unwrap();
    local.set_len(100).unwrap();
    let remote = RemoteSlice {
        key: RemoteKey(77),
        addr: 4096,
        len: 100,
    };
    let exposed = active.pool.take().unwrap();
    let rights = Rights::all();
    let exposed = active.provider.expose(active.qp, exposed, rights).unwrap();
    let work = Work::Read { local, remote };
    active.provider.post(active.qp, Tag(1), work).unwrap();
    active.poll_once();
    active.events.clear();
    let mut bytes = vec![0; 128];
    let bufs = &mut [IoSliceMut::new(&mut bytes)];
    assert_eq!(active.peer.recv(stream, bufs).unwrap(), 52);
    let request = ReadRequest::parse(bytes[20..].first_chunk().unwrap());
    assert_eq!((request.len, request.source_stag), (100, 77));
    (active, stream, request, exposed)
}

fn piece(opcode: Opcode, stag: u32, to: u64, len: usize, last: bool) -> Vec<u8> {
    let header = Header {
        opcode,
        last,
        payload: len,
        kind: Kind::Tagged { stag, to },
    };
    framed(&header, &vec![9; len])
}

#[test]
fn read_response_in_pieces_is_accepted() {
    let (mut active, stream, request, _) = reading();
    let (stag, to) = (request.sink_stag, request.sink_to);
    let first = piece(Opcode::READ_RESPONSE, stag, to, 60, false);
    let last = piece(Opcode::READ_RESPONSE, stag, to + 60, 40, true);
    for bytes in [first, last] {
        assert!(active.events.is_empty());
        active.peer.send(stream, &[IoSlice::new(&bytes)]).unwrap();
        active.poll_once();
    }
    match active.events.pop() {
        Some(Event::Completion(completion)) => {
            assert!(completion.outcome.is_success());
            assert_eq!(completion.buf.as_deref(), Some(&[9; 100][..]));
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn mismatched_read_response_is_a_fault() {
    let (_, _, request, exposed) = reading();
    let (stag, to) = (request.sink_stag, request.sink_to);
    let respond = Opcode::READ_RESPONSE;
    for (code, opcode, stag_offset, to_offset, len, last) in [
        (codes::DDP_STAG, respond, 1, 0, 100, true),
        (codes::DDP_BOUNDS, respond, 0, 1, 99, true),
        (codes::DDP_BOUNDS, respond, 0, 0, 101, true),
        (codes::RDMAP_UNSPECIFIED, respond, 0, 0, 99, true),
        (codes::RDMAP_UNSPECIFIED, respond, 0, 0, 100, false),
        // A sink accepts only the Read Response.
        (codes::DDP_STAG, Opcode::WRITE, 0, 0, 100, true),
    ] {
        let (mut active, stream, request, _) = reading();
        // Both providers use the same random numbers; the addresses differ.
        assert_eq!(request.sink_stag, stag);
        let to = request.sink_to + to_offset;
        let bytes = piece(opcode, stag + stag_offset, to, len, last);
        active.peer.send(stream, &[IoSlice::new(&bytes)]).unwrap();
        active.poll_once();
        let flushed = active.events.iter().any(|event| match event {
            Event::Completion(done) => done.outcome == nvmeof_rdma::Outcome::Flushed,
            _ => false,
        });
        assert!(flushed);
        match active.events.pop() {
            Some(Event::Closed {
                reason: CloseReason::PeerFault(fault),
                ..
            }) => assert_eq!(fault.code, code, "{fault}"),
            other => panic!("{other:?}"),
        }
    }
    // Nor does exposed memory accept Read Responses.
    let (mut active, stream, _, again) = reading();
    assert_eq!((again.key, to > 0), (exposed.key, true));
    let bytes = piece(respond, again.key.0, again.addr, 100, true);
    active.peer.send(stream, &[IoSlice::new(&bytes)]).unwrap();
    active.poll_once();
    assert!(matches!(active.events.last(), Some(Event::Closed { .. })));
    let untouched = active.provider.withdraw(again.key).unwrap().unwrap();
    assert!(untouched.iter().all(|byte| *byte == 0));
}

impl Active {
    /// Number of frames of `len` bytes that the peer received by `ms`.
    fn frames_at(&mut self, ms: u64, stream: StreamId, len: usize) -> usize {
        let now = Duration::from_millis(ms);
        while self.provider.poll(now, &mut self.events) {}
        let mut bytes = vec![0; 4096];
        match self.peer.recv(stream, &mut [IoSliceMut::new(&mut bytes)]) {
            Ok(count) => count / len,
            Err(error) => {
                assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock);
                0
            }
        }
    }
}

/// Length of an empty Write: MPA length, tagged header, CRC.
const NOTHING: usize = 2 + 14 + 4;

#[test]
fn silent_peer_gets_empty_writes() {
    let mut active = Active::new();
    let stream = active.asked(2);
    active.reply(stream, 0x10, 2, &Reads::new(2, 2).to_bytes());
    let due = [100, 400, 1300, 4000, 12_100];
    for ms in due {
        assert_eq!(active.frames_at(ms - 1, stream, NOTHING), 0, "{ms}");
        assert_eq!(active.frames_at(ms, stream, NOTHING), 1, "{ms}");
    }
    assert_eq!(active.provider.next_deadline(), None);
    assert!(matches!(active.events[..], [Event::Established { .. }]));
}

#[test]
fn peer_that_sent_gets_no_empty_writes() {
    let mut active = Active::new();
    let stream = active.asked(2);
    active.reply(stream, 0x10, 2, &Reads::new(2, 2).to_bytes());
    let mut buf = active.pool.take().unwrap();
    buf.set_len(64).unwrap();
    active.provider.post_recv(active.qp, Tag(1), buf).unwrap();
    let kind = Kind::Untagged {
        invalidate: 0,
        queue: 0,
        msn: 1,
        offset: 0,
    };
    let header = Header {
        opcode: Opcode::SEND,
        last: true,
        payload: 0,
        kind,
    };
    let (bytes, len) = header.to_bytes();
    let mut frame = bytes[..len].to_vec();
    frame.extend_from_slice(&[0; 4]);
    active.peer.send(stream, &[IoSlice::new(&frame)]).unwrap();
    active.poll_once();
    assert!(
        matches!(active.events[..], [_, Event::Received(_)]),
        "{:?}",
        active.events
    );
    assert_eq!(active.frames_at(60_000, stream, NOTHING), 0);
    assert_eq!(active.provider.next_deadline(), None);
}
