//! Tests of floods with frames that cost their sender next to nothing, beside an honest
//! connection. They count the frames that one poll processes.

use super::idle::IN_ONE_POLL;
use super::*;
use nvmeof_rdma::Rights;

/// Frames of a flood.
const COUNT: usize = 20_000;

/// A connection that is flooded, and an honest one.
struct Beside {
    raw: Raw,
    flooded: (QpId, StreamId),
    honest: (QpId, StreamId),
    sent: u32,
}

impl Beside {
    fn new() -> Self {
        let (mut raw, qp) = Raw::running(SoftConfig::default());
        let flooded = (qp, raw.stream);
        raw.stream = raw.peer.connect(addr()).unwrap();
        let honest = (raw.establish(), raw.stream);
        let sent = 0;
        Self {
            raw,
            flooded,
            honest,
            sent,
        }
    }

    fn flood(&mut self, bytes: &[u8]) {
        self.raw.stream = self.flooded.1;
        self.raw.send(bytes);
    }

    /// Frames received on the flooded connection; `None` once it has ended.
    fn frames(&self) -> Option<u64> {
        let conn = self.raw.provider.conns.get(self.flooded.0)?;
        (conn.phase == Phase::Running).then(|| conn.rx.frames())
    }

    /// The honest peer sends a message, which one poll has to receive.
    fn poll(&mut self, flood: &str) {
        self.sent += 1;
        let buf = self.raw.pool.take().unwrap();
        let posted = self.raw.provider.post_recv(self.honest.0, Tag(9), buf);
        posted.unwrap();
        self.raw.stream = self.honest.1;
        self.raw
            .send(&untagged(Opcode::SEND, 0, self.sent, &[1; 64]));
        self.raw.provider.poll(self.raw.now, &mut self.raw.events);
        let honest = |event: &Event| match event {
            Event::Received(one) => one.qp == self.honest.0 && one.outcome.is_success(),
            _ => false,
        };
        let came = self.raw.events.drain(..).filter(honest).count();
        assert_eq!(came, 1, "beside {flood}");
    }

    /// Maximum frames of the flood that one poll processed, until its end.
    fn most_in_one_poll(&mut self, flood: &str) -> u64 {
        let (mut before, mut most) = (self.frames().unwrap(), 0);
        for _ in 0..COUNT {
            self.poll(flood);
            let Some(now) = self.frames() else {
                return most;
            };
            if now == before {
                return most;
            }
            most = most.max(now - before);
            before = now;
        }
        panic!("{flood} does not end");
    }
}

fn piece(opcode: Opcode, kind: Kind, payload: &[u8]) -> Vec<u8> {
    let header = Header {
        opcode,
        last: false,
        payload: payload.len(),
        kind,
    };
    framed(&header, payload)
}

/// Pieces of one message with `len` bytes each.
fn pieces_of_a_send(len: usize) -> Vec<u8> {
    let piece = |at: usize| {
        let kind = Kind::Untagged {
            invalidate: 0,
            queue: 0,
            msn: 1,
            offset: u32::try_from(at * len).unwrap(),
        };
        piece(Opcode::SEND, kind, &[1; 1][..len])
    };
    (0..COUNT).flat_map(piece).collect()
}

/// Pieces of the response to a Read, with `len` bytes each.
fn pieces_of_an_answer(asked: &ReadRequest, len: usize) -> Vec<u8> {
    let piece = |at: usize| {
        let kind = Kind::Tagged {
            stag: asked.sink_stag,
            to: asked.sink_to + (at * len) as u64,
        };
        piece(Opcode::READ_RESPONSE, kind, &[1; 1][..len])
    };
    (0..COUNT).flat_map(piece).collect()
}

#[test]
fn honest_connection_waits_for_few_pieces_of_a_send() {
    for len in [0, 1] {
        let mut beside = Beside::new();
        let buf = beside.raw.pool.take().unwrap();
        let posted = beside.raw.provider.post_recv(beside.flooded.0, Tag(1), buf);
        posted.unwrap();
        beside.flood(&pieces_of_a_send(len));
        let most = beside.most_in_one_poll("pieces of a Send");
        assert!(most <= IN_ONE_POLL, "{most} pieces of {len} bytes");
        assert_eq!(beside.frames(), Some(COUNT as u64));
    }
}

#[test]
fn honest_connection_waits_for_few_writes() {
    for len in [0, 1] {
        let mut beside = Beside::new();
        let window = beside.raw.pool.take().unwrap();
        let rights = Rights::REMOTE_WRITE;
        let exposed = beside.raw.provider.expose(beside.flooded.0, window, rights);
        let exposed = exposed.unwrap();
        let kind = Kind::Tagged {
            stag: exposed.key.0,
            to: exposed.addr,
        };
        let header = Header {
            opcode: Opcode::WRITE,
            last: true,
            payload: len,
            kind,
        };
        beside.flood(&framed(&header, &[1; 1][..len]).repeat(COUNT));
        let most = beside.most_in_one_poll("Writes");
        assert!(most <= IN_ONE_POLL, "{most} Writes of {len} bytes");
        assert_eq!(beside.frames(), Some(COUNT as u64));
    }
}

#[test]
fn honest_connection_waits_for_few_pieces_of_a_response() {
    for len in [0, 1] {
        let mut beside = Beside::new();
        // The first frame is the initiator's.
        beside.flood(&tagged(Opcode::WRITE, 0, b""));
        beside.poll("nothing");
        let local = beside.raw.pool.take().unwrap();
        let remote = RemoteSlice {
            key: RemoteKey(7),
            addr: 0,
            len: u32::try_from(local.len()).unwrap(),
        };
        let read = Work::Read { local, remote };
        let (provider, qp) = (&mut beside.raw.provider, beside.flooded.0);
        provider.post(qp, Tag(1), read).unwrap();
        provider.submit(Duration::ZERO);
        beside.raw.stream = beside.flooded.1;
        let asked = ReadRequest::parse(beside.raw.receive()[20..].first_chunk().unwrap());
        beside.flood(&pieces_of_an_answer(&asked, len));
        let most = beside.most_in_one_poll("pieces of an answer");
        assert!(most <= IN_ONE_POLL, "{most} pieces of {len} bytes");
        assert_eq!(beside.frames(), Some(1 + COUNT as u64));
    }
}

/// The burst that an honest connection may send is accepted once.
#[test]
fn flood_after_honest_traffic_affects_one_poll() {
    let mut beside = Beside::new();
    for msn in 1..=100 {
        let buf = beside.raw.pool.take().unwrap();
        let posted = beside.raw.provider.post_recv(beside.flooded.0, Tag(1), buf);
        posted.unwrap();
        beside.flood(&untagged(Opcode::SEND, 0, msn, &[1; 64]));
        beside.poll("messages");
    }
    beside.flood(&tagged(Opcode::WRITE, 0, b"").repeat(COUNT));
    let before = beside.frames().unwrap();
    beside.poll("Writes");
    let burst = beside.frames().unwrap() - before;
    let writes = tagged(Opcode::WRITE, 0, b"").len();
    assert!(burst <= (SCRATCH / writes) as u64 + 1, "{burst} Writes");
    let most = beside.most_in_one_poll("Writes");
    assert!(most <= IN_ONE_POLL, "{most} Writes");
}

/// Reads of no bytes: more than the peer may have in flight end the connection, and no poll
/// processes more than these.
#[test]
fn honest_connection_waits_for_no_more_reads_than_may_be_in_flight() {
    let reads = |from: u32, count: u32| -> Vec<u8> {
        let read = |msn| untagged(Opcode::READ_REQUEST, 1, msn, &read_request(0));
        (from..from + count).flat_map(read).collect()
    };
    let mut beside = Beside::new();
    beside.flood(&reads(1, u32::try_from(COUNT).unwrap()));
    let most = beside.most_in_one_poll("Reads of no bytes");
    assert!(most <= CONFIG.reads_in.into(), "{most} in one poll");
    assert_eq!(beside.frames(), None, "there were too many in flight");

    // A peer that waits for the responses.
    let mut beside = Beside::new();
    for round in 0..100 {
        beside.flood(&reads(1 + 2 * round, 2));
        let before = beside.frames().unwrap();
        beside.poll("Reads of no bytes");
        assert_eq!(beside.frames(), Some(before + 2));
    }
}

#[test]
fn honest_connection_waits_for_one_terminate() {
    let mut beside = Beside::new();
    let terminate = untagged(Opcode::TERMINATE, 2, 1, &[0; 4]);
    beside.flood(&terminate.repeat(COUNT));
    let most = beside.most_in_one_poll("Terminates");
    assert_eq!((most, beside.frames()), (0, None), "the first one ends it");
}

/// Of frames that arrive byte by byte a poll takes the available bytes.
#[test]
fn honest_connection_waits_for_one_receive_call_of_a_trickle() {
    let mut beside = Beside::new();
    let trickling = beside.raw.peer.connect(addr()).unwrap();
    let asks = request(2, 0x10, Some(Reads::new(4, 4)), b"");
    let frame = tagged(Opcode::WRITE, 0, b"");
    for (ask, byte) in asks.iter().zip(frame.iter().cycle()) {
        beside.raw.stream = trickling;
        beside.raw.send(&[*ask]);
        beside.flood(&[*byte]);
        let before = beside.raw.peer.received();
        beside.poll("a trickle");
        // One of the honest connection, one of each that trickles.
        assert_eq!(beside.raw.peer.received() - before, 3);
    }
    assert_eq!(beside.frames(), Some((asks.len() / frame.len()) as u64));
}
