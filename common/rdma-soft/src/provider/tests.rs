//! Tests of the provider over pipes with hand-made peers, which the conformance suite does
//! not have.

mod active;
mod answers;
mod floods;
mod idle;
mod kept;
mod segments;

use super::*;
use crate::iwarp::mpa::{FRAME_LEN, Frame, FrameKind, Reads};
use crate::iwarp::{Header, Kind, Opcode, ReadRequest, Terminate, codes};
use crate::testing::Pipes;
use nvmeof_memory::{Pages, Pool, PoolLayout};
use nvmeof_rdma::Inline;
use proptest::prelude::*;
use std::io::{IoSlice, IoSliceMut};

const CONFIG: QpConfig = QpConfig {
    recvs: 4,
    sends: 4,
    reads_out: 2,
    reads_in: 2,
    exposes: 16,
    trusts_peer: false,
};

fn addr() -> Address {
    "192.0.2.2:4420".parse().unwrap()
}

/// A provider and a raw stream to it: all bytes of the peer are hand-made.
struct Raw {
    provider: SoftRdma<Pipes>,
    peer: Pipes,
    stream: StreamId,
    pool: Pool,
    now: Duration,
    events: Vec<Event>,
}

impl Raw {
    fn provider(config: SoftConfig, streams: Pipes) -> (SoftRdma<Pipes>, Pool) {
        let mut provider = SoftRdma::new(streams, config);
        let layout = PoolLayout {
            count: 8,
            stride: 65536,
            lead: 0,
        };
        let pool = Pool::new(layout, Pages::Normal).unwrap();
        provider.register(pool.region()).unwrap();
        (provider, pool)
    }

    /// The provider listens, the peer is connected.
    fn passive(config: SoftConfig) -> Self {
        let (mut peer, streams) = Pipes::pair(1 << 20, 1 << 20);
        let (mut provider, pool) = Self::provider(config, streams);
        provider.listen(addr()).unwrap();
        let stream = peer.connect(addr()).unwrap();
        Self {
            provider,
            peer,
            stream,
            pool,
            now: Duration::ZERO,
            events: Vec::new(),
        }
    }

    /// As `passive`, with the connection established.
    fn running(config: SoftConfig) -> (Self, QpId) {
        let mut raw = Self::passive(config);
        let qp = raw.establish();
        (raw, qp)
    }

    /// Establishes the connection of the stream.
    fn establish(&mut self) -> QpId {
        self.send(&request(2, 0x10, Some(Reads::new(4, 4)), b""));
        self.poll_once();
        let qp = self.request().qp;
        self.provider.prepare(qp, &CONFIG).unwrap();
        self.provider.accept(qp, &PrivateData::empty()).unwrap();
        self.poll_once();
        assert!(matches!(self.events.remove(0), Event::Established { .. }));
        assert_eq!(self.receive().len(), FRAME_LEN + 4);
        qp
    }

    fn send(&mut self, bytes: &[u8]) {
        let sent = self.peer.send(self.stream, &[IoSlice::new(bytes)]);
        assert_eq!(sent.unwrap(), bytes.len());
    }

    /// Everything that the provider sent since the last call.
    fn receive(&mut self) -> Vec<u8> {
        let mut bytes = vec![0; 1 << 20];
        let received = self
            .peer
            .recv(self.stream, &mut [IoSliceMut::new(&mut bytes)]);
        bytes.truncate(received.unwrap_or(0));
        bytes
    }

    /// Whether the provider ended the stream.
    fn ended(&mut self) -> bool {
        let mut byte = [0];
        let received = self
            .peer
            .recv(self.stream, &mut [IoSliceMut::new(&mut byte)]);
        received.is_ok_and(|count| count == 0)
    }

    fn poll_once(&mut self) {
        while self.provider.poll(self.now, &mut self.events) {}
    }

    fn request(&mut self) -> nvmeof_rdma::ConnectRequest {
        match self.events.remove(0) {
            Event::ConnectRequest(request) => request,
            other => panic!("{other:?}"),
        }
    }

    fn reason(&mut self) -> CloseReason {
        match self.events.pop() {
            Some(Event::Closed { reason, .. }) => reason,
            other => panic!("{other:?}"),
        }
    }

    /// The code of the Terminate that the provider sent last.
    fn terminate(&mut self) -> u16 {
        let bytes = self.receive();
        let header = Header::parse(&bytes[..20]).unwrap();
        assert_eq!(header.opcode, Opcode::TERMINATE);
        assert_eq!(bytes.len(), (20 + header.payload).next_multiple_of(4) + 4);
        Terminate::parse(&bytes[20..]).code
    }

    /// Sends `bytes` and expects a Terminate with `code`.
    fn fault(bytes: &[u8], code: u16) {
        let (mut raw, qp) = Self::running(SoftConfig::default());
        let buf = raw.pool.take().unwrap();
        raw.provider.post_recv(qp, Tag(1), buf).unwrap();
        raw.send(bytes);
        raw.poll_once();
        assert_eq!(raw.terminate(), code);
        assert!(raw.ended());
        match raw.reason() {
            CloseReason::PeerFault(fault) => assert_eq!(fault.code, code, "{fault}"),
            other => panic!("{other}"),
        }
        let ending = |event: &Event| matches!(event, Event::Ending { qp: its } if *its == qp);
        assert!(raw.events.iter().any(ending), "the peer may know first");
        assert_eq!(raw.pool.available(), 7, "the receive is in the events");
    }
}

fn request(revision: u8, flags: u8, reads: Option<Reads>, private: &[u8]) -> Vec<u8> {
    let len = u16::try_from(private.len() + if reads.is_some() { 4 } else { 0 }).unwrap();
    let frame = Frame {
        kind: FrameKind::Request,
        markers: flags & 0x80 != 0,
        crc: flags & 0x40 != 0,
        reject: false,
        enhanced: flags & 0x10 != 0,
        revision,
        private_len: len,
    };
    let mut bytes = frame.to_bytes().to_vec();
    bytes.extend(reads.iter().flat_map(Reads::to_bytes));
    bytes.extend_from_slice(private);
    bytes
}

fn reply(bytes: &[u8]) -> (Frame, Option<Reads>) {
    let frame = Frame::parse(FrameKind::Reply, bytes.first_chunk().unwrap()).unwrap();
    let reads = frame
        .enhanced
        .then(|| Reads::parse(*bytes[20..].first_chunk().unwrap()));
    assert_eq!(bytes.len(), FRAME_LEN + usize::from(frame.private_len));
    (frame, reads)
}

/// Bytes that depend on their offset.
fn content(len: usize) -> Vec<u8> {
    (0..len)
        .map(|at| (at ^ (at >> 8)).to_le_bytes()[0])
        .collect()
}

fn untagged(opcode: Opcode, queue: u32, msn: u32, payload: &[u8]) -> Vec<u8> {
    let header = Header {
        opcode,
        last: true,
        payload: payload.len(),
        kind: Kind::Untagged {
            invalidate: 0,
            queue,
            msn,
            offset: 0,
        },
    };
    framed(&header, payload)
}

fn tagged(opcode: Opcode, stag: u32, payload: &[u8]) -> Vec<u8> {
    let header = Header {
        opcode,
        last: true,
        payload: payload.len(),
        kind: Kind::Tagged { stag, to: 0 },
    };
    framed(&header, payload)
}

fn framed(header: &Header, payload: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    header.write(&mut bytes);
    bytes.extend_from_slice(payload);
    bytes.resize(bytes.len().next_multiple_of(4) + 4, 0);
    bytes
}

fn read_request(len: u32) -> Vec<u8> {
    let request = ReadRequest {
        sink_stag: 9,
        sink_to: 0,
        len,
        source_stag: 0x1234,
        source_to: 0,
    };
    let mut bytes = Vec::new();
    request.write(&mut bytes);
    bytes
}

#[test]
fn reply_has_revision_of_request() {
    for (revision, flags, reads, crc) in [
        (1, 0, None, false),
        (1, 0x40, None, true),
        (2, 0x10, Some(Reads::new(1, 128)), false),
    ] {
        let mut raw = Raw::passive(SoftConfig::default());
        raw.send(&request(revision, flags, reads, b"hello"));
        raw.poll_once();
        let asked = raw.request();
        assert_eq!(&*asked.private_data, b"hello");
        raw.provider.prepare(asked.qp, &CONFIG).unwrap();
        let private_data = PrivateData::new(b"yes").unwrap();
        raw.provider.accept(asked.qp, &private_data).unwrap();
        raw.poll_once();
        let bytes = raw.receive();
        let (frame, answered) = reply(&bytes);
        assert_eq!(
            (frame.revision, frame.crc, frame.reject),
            (revision, crc, false)
        );
        assert_eq!(answered, reads.map(|_| Reads::new(2, 1)));
        assert!(bytes.ends_with(b"yes"));
    }
}

/// Captured from Linux 6.12: nvme-rdma over siw.
#[test]
fn linux_host_connects() {
    let mut raw = Raw::passive(SoftConfig::default());
    let mut asks = b"MPA ID Req Frame".to_vec();
    asks.extend_from_slice(&[0x10, 2, 0, 0x24, 0, 0x80, 0, 0]);
    asks.extend_from_slice(&[0, 0, 0, 0, 0x20, 0, 0x1f, 0]);
    asks.resize(56, 0);
    raw.send(&asks);
    raw.poll_once();
    let asked = raw.request();
    assert_eq!((asked.reads_in, asked.reads_out), (0, 128));
    assert_eq!(*asked.private_data, asks[24..]);
    raw.provider.prepare(asked.qp, &CONFIG).unwrap();
    let buf = raw.pool.take().unwrap();
    raw.provider.post_recv(asked.qp, Tag(3), buf).unwrap();
    let private_data = PrivateData::empty();
    raw.provider.accept(asked.qp, &private_data).unwrap();
    raw.poll_once();
    assert_eq!(raw.receive()[16..], [0x10, 2, 0, 4, 0, 2, 0, 2]);
    let mut command = vec![0x7f, 0x40, 0, 0, 1, 0, 0, 0];
    command.resize(64, 0x55);
    let mut frame = vec![0, 0x52, 0x41, 0x43, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];
    frame.resize(20, 0);
    frame.extend_from_slice(&command);
    frame.extend_from_slice(&[0; 4]);
    assert_eq!(frame.len(), 88);
    raw.send(&frame);
    raw.poll_once();
    match raw.events.pop() {
        Some(Event::Received(received)) => {
            assert_eq!((received.len, received.tag), (64, Tag(3)));
            assert_eq!(received.buf[..64], command);
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn unsupported_request_is_rejected() {
    let long = vec![0; 300];
    for bytes in [
        request(2, 0x90, Some(Reads::new(1, 1)), b""),
        request(1, 0x80, None, b""),
        request(3, 0x10, Some(Reads::new(1, 1)), b""),
        request(1, 0, None, &long),
    ] {
        let mut raw = Raw::passive(SoftConfig::default());
        raw.send(&bytes);
        raw.poll_once();
        assert!(raw.events.is_empty(), "{:?}", raw.events);
        assert!(reply(&raw.receive()).0.reject);
        assert!(raw.ended());
    }
}

#[test]
fn connection_without_valid_request_is_closed() {
    let mut too_long = request(1, 0, None, b"");
    too_long[18] = 0xff;
    for bytes in [b"GET / HTTP/1.0\r\n\r\n".to_vec(), too_long] {
        let mut raw = Raw::passive(SoftConfig::default());
        raw.send(&bytes);
        raw.poll_once();
        assert!(raw.ended() && raw.events.is_empty());
    }
}

#[test]
fn data_before_reply_end_connection() {
    let mut raw = Raw::passive(SoftConfig::default());
    let mut bytes = request(1, 0, None, b"");
    bytes.extend(untagged(Opcode::SEND, 0, 1, b"too soon"));
    raw.send(&bytes);
    raw.poll_once();
    assert!(matches!(raw.reason(), CloseReason::PeerFault(_)));
}

#[test]
fn responder_sends_nothing_before_first_frame() {
    let (mut raw, qp) = Raw::running(SoftConfig::default());
    let buf = raw.pool.take().unwrap();
    raw.provider.post_recv(qp, Tag(1), buf).unwrap();
    let work = Work::Send {
        head: Inline::new(b"hi").unwrap(),
        body: None,
        invalidate: None,
        solicited: false,
    };
    raw.provider.post(qp, Tag(2), work).unwrap();
    raw.poll_once();
    assert!(raw.receive().is_empty() && raw.events.is_empty());
    raw.send(&untagged(Opcode::SEND, 0, 1, b"go"));
    raw.poll_once();
    assert_eq!(raw.receive().len(), 28);
    assert_eq!(raw.events.len(), 2);
}

#[test]
fn every_violation_has_matching_terminate() {
    Raw::fault(&untagged(Opcode::SEND, 0, 2, b""), codes::DDP_MSN);
    let too_long = vec![0; 65000];
    let mut twice = untagged(Opcode::SEND, 0, 1, b"");
    Raw::fault(
        &[&twice[..], &untagged(Opcode::SEND, 0, 2, b"")].concat(),
        codes::DDP_NO_BUFFER,
    );
    twice[19] = 1;
    Raw::fault(&twice, codes::DDP_MO);
    let mut open = untagged(Opcode::SEND, 0, 1, &too_long);
    open[2] &= !0x40;
    let mut more = untagged(Opcode::SEND, 0, 1, &too_long);
    more[16..20].copy_from_slice(&65000u32.to_be_bytes());
    Raw::fault(&[&open[..], &more].concat(), codes::DDP_TOO_LONG);
    more[3] = 0x45;
    Raw::fault(&[&open[..], &more].concat(), codes::RDMAP_OPCODE);
    Raw::fault(&untagged(Opcode::SEND, 3, 1, b""), codes::DDP_QUEUE);
    Raw::fault(
        &untagged(Opcode::READ_REQUEST, 1, 1, b"short"),
        codes::DDP_TOO_LONG,
    );
    Raw::fault(
        &untagged(Opcode::READ_REQUEST, 1, 1, &read_request(9)),
        codes::RDMAP_STAG,
    );
    Raw::fault(
        &untagged(Opcode::SEND_INVALIDATE, 0, 1, b""),
        codes::RDMAP_INVALIDATE,
    );
    Raw::fault(&tagged(Opcode::WRITE, 1, b"x"), codes::DDP_STAG);
    Raw::fault(&tagged(Opcode::READ_RESPONSE, 1, b"x"), codes::RDMAP_OPCODE);
    Raw::fault(&[0, 3, 0x41, 0x43], codes::MPA_FRAME);
}

#[test]
fn terminate_arrives_while_peer_keeps_sending() {
    let mut bytes = tagged(Opcode::WRITE, 1, b"x");
    bytes.resize(SCRATCH * 3, 0);
    Raw::fault(&bytes, codes::DDP_STAG);
}

#[test]
fn operations_without_payload_check_no_key() {
    let (mut raw, qp) = Raw::running(SoftConfig::default());
    raw.send(&tagged(Opcode::WRITE, 0xdead, b""));
    raw.send(&untagged(Opcode::READ_REQUEST, 1, 1, &read_request(0)));
    raw.poll_once();
    assert!(raw.events.is_empty());
    let answer = raw.receive();
    let header = Header::parse(&answer[..16]).unwrap();
    assert_eq!((header.opcode, header.payload), (Opcode::READ_RESPONSE, 0));
    assert_eq!(header.kind, Kind::Tagged { stag: 9, to: 0 });
    raw.provider.disconnect(qp);
    raw.poll_once();
    assert_eq!(raw.reason(), CloseReason::Local);
}

#[test]
fn reads_above_negotiated_number_are_a_fault() {
    let (mut raw, qp) = Raw::running(SoftConfig::default());
    let buf = raw.pool.take().unwrap();
    let slice = raw.provider.expose(qp, buf, Rights::REMOTE_READ).unwrap();
    let request = |msn| {
        let request = ReadRequest {
            sink_stag: 9,
            sink_to: 0,
            len: 4096,
            source_stag: slice.key.0,
            source_to: slice.addr,
        };
        let mut payload = Vec::new();
        request.write(&mut payload);
        untagged(Opcode::READ_REQUEST, 1, msn, &payload)
    };
    // In one call, so that none is completed before the third arrives.
    raw.send(&[request(1), request(2), request(3)].concat());
    raw.poll_once();
    assert_eq!(raw.terminate(), codes::DDP_NO_BUFFER);
    assert!(raw.provider.withdraw(slice.key).is_ok());
}

#[test]
fn terminate_is_described() {
    let (mut raw, _) = Raw::running(SoftConfig::default());
    raw.send(&untagged(Opcode::TERMINATE, 2, 1, &[0x11, 0x01, 0, 0]));
    raw.poll_once();
    let reason = raw.reason();
    assert!(matches!(&reason, CloseReason::Terminated(fault) if fault.code == codes::DDP_BOUNDS));
    assert!(reason.to_string().contains("base or bounds"), "{reason}");
}

#[test]
fn end_inside_frame_is_a_fault() {
    for (bytes, good) in [(&[][..], true), (&[0], false)] {
        let (mut raw, _) = Raw::running(SoftConfig::default());
        if !bytes.is_empty() {
            raw.send(bytes);
        }
        raw.peer.shutdown_send(raw.stream);
        raw.poll_once();
        match raw.reason() {
            CloseReason::Peer => assert!(good),
            CloseReason::PeerFault(fault) => {
                assert!(!good && fault.text.contains("inside a frame"));
            }
            other => panic!("{other}"),
        }
    }
}

#[test]
fn oldest_silent_connection_is_closed() {
    let mut config = SoftConfig::default();
    config.limits.max_pending = 2;
    let mut raw = Raw::passive(config);
    let mut streams = vec![raw.stream];
    for _ in 0..3 {
        raw.poll_once();
        raw.stream = raw.peer.connect(addr()).unwrap();
        streams.push(raw.stream);
    }
    raw.poll_once();
    let ended: Vec<bool> = streams
        .into_iter()
        .map(|stream| {
            raw.stream = stream;
            raw.ended()
        })
        .collect();
    assert_eq!(ended, [true, true, false, false]);
}

#[test]
fn silent_peer_times_out() {
    let mut raw = Raw::passive(SoftConfig::default());
    raw.send(b"MPA ID");
    raw.poll_once();
    assert_eq!(raw.provider.next_deadline(), Some(Duration::from_secs(10)));
    raw.now = Duration::from_secs(9);
    raw.poll_once();
    assert!(!raw.ended());
    raw.now = Duration::from_secs(10);
    raw.poll_once();
    assert!(raw.ended() && raw.events.is_empty());
    assert_eq!(raw.provider.next_deadline(), None);
}

proptest! {
    /// For any bytes of a peer and any split, the connection waits or ends, and everything
    /// returns.
    #[test]
    fn hostile_bytes_cause_fault_or_waiting(
        frames in proptest::collection::vec((0u8..8, 0u32..4, 0u32..4, 0usize..100), 0..12),
        flips in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
        step in 1usize..200,
    ) {
        let mut bytes = Vec::new();
        for (opcode, queue, msn, len) in frames {
            let payload = vec![7; len];
            bytes.extend(match opcode {
                0 | 2 => tagged(Opcode(opcode), msn, &payload),
                1 => untagged(Opcode(1), 1, msn, &read_request(queue)),
                _ => untagged(Opcode(opcode), queue, msn, &payload),
            });
        }
        if !bytes.is_empty() {
            for (at, value) in flips {
                let at = at.index(bytes.len());
                bytes[at] = value;
            }
        }
        let run = |step: usize| {
            let (mut raw, qp) = Raw::running(SoftConfig::default());
            for tag in 0..4 {
                let buf = raw.pool.take().unwrap();
                raw.provider.post_recv(qp, Tag(tag), buf).unwrap();
            }
            for piece in bytes.chunks(step) {
                if raw.peer.send(raw.stream, &[IoSlice::new(piece)]).is_err() {
                    break;
                }
                raw.poll_once();
            }
            let described: Vec<String> = raw.events.iter().map(|event| match event {
                Event::Received(received) => format!("{:?} {:?}", received.len, received.outcome),
                other => format!("{other:?}"),
            }).collect();
            raw.provider.disconnect(qp);
            raw.poll_once();
            raw.events.clear();
            assert_eq!(raw.pool.available(), 8);
            described
        };
        prop_assert_eq!(run(step), run(usize::MAX));
    }
}
