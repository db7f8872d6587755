//! A hostile peer of the software RDMA provider: any bytes, split anywhere, mixed with
//! almost valid frames, while this side uses the connection.
//!
//! Each work request completes once, a peer changes exposed memory only where it has write
//! permission, and the connection ends with the stream.
#![no_main]

use std::collections::BTreeSet;
use std::time::Duration;

use libfuzzer_sys::fuzz_target;
use nvmeof_fuzz::{ADDR, Line, Script};
use nvmeof_memory::{Pages, Pool, PoolLayout};
use nvmeof_rdma::{
    Event, Inline, PrivateData, Provider, QpConfig, QpId, RemoteKey, RemoteSlice, Rights, Tag,
    Work, WorkKind, WriteAndSend,
};
use nvmeof_rdma_soft::iwarp::mpa::{Frame, FrameKind, Reads};
use nvmeof_rdma_soft::iwarp::{Header, Kind, Opcode, pad_len};
use nvmeof_rdma_soft::{SoftConfig, SoftRdma};

const CONFIG: QpConfig = QpConfig {
    recvs: 4,
    sends: 4,
    reads_out: 2,
    reads_in: 2,
    exposes: 16,
    trusts_peer: false,
};
const BUF: usize = 512;
/// Contents of memory that a peer may not write to.
const FILL: u8 = 0xa5;

fuzz_target!(|input: &[u8]| {
    let mut script = Script::new(input);
    let flags = script.byte();
    let mut side = Side::new(flags & 1 != 0);
    if flags & 2 != 0 {
        side.active();
    } else {
        side.rdma.streams_mut().arrive();
    }
    if flags & 4 != 0 {
        side.shake_hands(flags);
    }
    for _ in 0..64 {
        if script.is_empty() {
            break;
        }
        side.step(&mut script);
    }
    side.finish();
});

struct Side {
    rdma: SoftRdma<Line>,
    pool: Pool,
    now: Duration,
    qp: Option<QpId>,
    crc: bool,
    /// Tags of outstanding work requests.
    out: BTreeSet<u64>,
    /// Of these, RDMA Reads whose data were not returned separately.
    answers: BTreeSet<u64>,
    next_tag: u64,
    exposed: Vec<(RemoteSlice, Rights)>,
    closed: bool,
    events: Vec<Event>,
}

impl Side {
    fn new(crc: bool) -> Self {
        let layout = PoolLayout {
            count: 16,
            stride: BUF,
            lead: 0,
        };
        let pool = Pool::new(layout, Pages::Normal).expect("memory");
        let config = SoftConfig {
            crc,
            ..SoftConfig::default()
        };
        let mut rdma = SoftRdma::new(Line::default(), config);
        rdma.register(pool.region()).expect("a region");
        rdma.listen(ADDR.into()).expect("a listener");
        Self {
            rdma,
            pool,
            now: Duration::ZERO,
            qp: None,
            crc,
            out: BTreeSet::new(),
            answers: BTreeSet::new(),
            next_tag: 0,
            exposed: Vec::new(),
            closed: false,
            events: Vec::new(),
        }
    }

    fn active(&mut self) {
        let data = PrivateData::empty();
        let qp = self.rdma.connect(ADDR.into(), &CONFIG, &data, self.now);
        self.qp = Some(qp.expect("a connection"));
    }

    /// A valid peer's half of the set-up.
    fn shake_hands(&mut self, flags: u8) {
        let reads = Reads::new(4, 4);
        let active = self.qp.is_some();
        let frame = Frame {
            kind: if active {
                FrameKind::Reply
            } else {
                FrameKind::Request
            },
            markers: false,
            crc: flags & 8 != 0,
            reject: false,
            enhanced: true,
            revision: 2,
            private_len: 4,
        };
        self.crc |= frame.crc;
        self.poll();
        self.say(&frame.to_bytes());
        self.say(&reads.to_bytes());
        self.poll();
        self.accept();
        self.poll();
    }

    fn say(&mut self, bytes: &[u8]) {
        self.rdma.streams_mut().inbound.extend(bytes);
    }

    fn step(&mut self, script: &mut Script<'_>) {
        match script.byte() % 16 {
            0 => {
                let bytes = script.short();
                self.say(bytes);
            }
            1 | 2 => self.say_frame(script),
            3 => self.rdma.streams_mut().step = usize::from(script.byte()) + 1,
            4 => self.rdma.streams_mut().room = usize::from(script.u16()),
            5 => self.rdma.streams_mut().ended = true,
            6 => self.now += Duration::from_millis(script.u16().into()),
            7 => self.accept(),
            8 => self.reject(),
            9 => self.post_recv(),
            10 => self.post(script),
            11 => self.expose(script),
            12 => self.withdraw(script),
            13 => self.disconnect(script),
            _ => self.poll(),
        }
    }

    /// A complete frame, with a header of expected values and values of the script.
    fn say_frame(&mut self, script: &mut Script<'_>) {
        let (slice, _) = self.exposed.get(script.index(4)).copied().unwrap_or((
            RemoteSlice {
                key: RemoteKey(script.u32()),
                addr: script.u64(),
                len: 0,
            },
            Rights::empty(),
        ));
        let len = usize::from(script.byte());
        let opcode = Opcode(script.byte() & 7);
        let kind = if opcode == Opcode::WRITE || opcode == Opcode::READ_RESPONSE {
            let to = slice
                .addr
                .wrapping_add(script.u16().into())
                .wrapping_sub(16);
            Kind::Tagged {
                stag: slice.key.0,
                to,
            }
        } else {
            Kind::Untagged {
                invalidate: slice.key.0,
                queue: match opcode {
                    Opcode::READ_REQUEST => 1,
                    Opcode::TERMINATE => 2,
                    _ => 0,
                },
                msn: script.byte().into(),
                offset: script.byte().into(),
            }
        };
        let last = script.byte() & 3 != 0;
        let mut bytes = Vec::new();
        Header {
            opcode,
            last,
            payload: len,
            kind,
        }
        .write(&mut bytes);
        if opcode == Opcode::READ_REQUEST {
            // Sink, length, and exposed memory as the source.
            bytes.extend(script.array::<12>());
            bytes.extend(u32::from(script.u16()).to_be_bytes());
            bytes.extend(slice.key.0.to_be_bytes());
            bytes.extend(slice.addr.to_be_bytes());
            bytes.resize(20 + len.max(28), 0);
            let ulpdu = u16::try_from(18 + len.max(28)).expect("a short frame");
            bytes[..2].copy_from_slice(&ulpdu.to_be_bytes());
        } else {
            bytes.extend(script.filled(len));
        }
        let ulpdu = bytes.len() - 2;
        bytes.resize(bytes.len() + pad_len(ulpdu), 0);
        let crc = crc32c::crc32c(&bytes);
        bytes.extend(crc.to_le_bytes());
        self.say(&bytes);
    }

    fn tag(&mut self) -> Tag {
        self.next_tag += 1;
        Tag(self.next_tag)
    }

    fn accept(&mut self) {
        if let Some(qp) = self.qp
            && self.rdma.prepare(qp, &CONFIG).is_ok()
        {
            let _ = self.rdma.accept(qp, &PrivateData::empty());
        }
    }

    fn reject(&mut self) {
        if let Some(qp) = self.qp {
            let _ = self.rdma.reject(qp, &PrivateData::empty());
        }
    }

    fn post_recv(&mut self) {
        let tag = self.tag();
        if let (Some(qp), Some(buf)) = (self.qp, self.pool.take())
            && self.rdma.post_recv(qp, tag, buf).is_ok()
        {
            self.out.insert(tag.0);
        }
    }

    fn post(&mut self, script: &mut Script<'_>) {
        let (Some(qp), Some(mut buf)) = (self.qp, self.pool.take()) else {
            return;
        };
        let len = usize::from(script.u16()) % BUF + 1;
        buf.set_len(len).expect("inside the buffer");
        let key = RemoteKey(script.u32());
        let remote = RemoteSlice {
            key,
            addr: script.u64(),
            len: u32::MAX,
        };
        let tag = self.tag();
        let work = match script.byte() % 4 {
            3 => {
                let reply = WriteAndSend {
                    local: buf,
                    remote,
                    head: [7; 16],
                    invalidate: (script.byte() & 1 == 1).then_some(key),
                };
                if self.rdma.post_response(qp, tag, reply).is_ok() {
                    self.answers.insert(tag.0);
                    self.out.insert(tag.0);
                }
                return;
            }
            0 => Work::Send {
                head: Inline::new(script.bytes(16)).expect("at most 16 bytes"),
                body: Some(buf),
                invalidate: (script.byte() & 1 == 1).then_some(key),
                solicited: false,
            },
            1 => Work::Write { local: buf, remote },
            _ => Work::Read { local: buf, remote },
        };
        if self.rdma.post(qp, tag, work).is_ok() {
            self.out.insert(tag.0);
        }
    }

    fn expose(&mut self, script: &mut Script<'_>) {
        let (Some(qp), Some(mut buf)) = (self.qp, self.pool.take()) else {
            return;
        };
        let rights = Rights::from_bits_truncate(script.byte() & 3);
        buf.fill(FILL);
        buf.set_view(64..BUF - 64).expect("inside the buffer");
        if let Ok(slice) = self.rdma.expose(qp, buf, rights) {
            self.exposed.push((slice, rights));
        }
    }

    fn withdraw(&mut self, script: &mut Script<'_>) {
        if self.exposed.is_empty() {
            return;
        }
        let at = script.index(self.exposed.len());
        self.take_back(at);
    }

    fn take_back(&mut self, at: usize) {
        let (slice, rights) = self.exposed[at];
        let Ok(Some(mut buf)) = self.rdma.withdraw(slice.key) else {
            return;
        };
        self.exposed.swap_remove(at);
        if !rights.contains(Rights::REMOTE_WRITE) {
            assert!(
                buf.iter().all(|byte| *byte == FILL),
                "written without permission"
            );
        }
        buf.reset_view();
        let edges = buf[..64].iter().chain(&buf[BUF - 64..]);
        assert!(
            edges.copied().all(|byte| byte == FILL),
            "written out of bounds"
        );
    }

    fn disconnect(&mut self, script: &mut Script<'_>) {
        if let Some(qp) = self.qp.filter(|_| script.byte() & 7 == 0) {
            self.rdma.disconnect(qp);
        }
    }

    fn poll(&mut self) {
        self.rdma.submit(self.now);
        let mut events = std::mem::take(&mut self.events);
        self.rdma.poll(self.now, &mut events);
        for event in events.drain(..) {
            assert!(!self.closed, "{event:?} after the last event");
            match event {
                Event::ConnectRequest(request) => self.qp = Some(request.qp),
                Event::Received(received) => {
                    assert!(
                        self.out.remove(&received.tag.0),
                        "{received:?} came back twice"
                    );
                    assert!(received.len <= received.buf.len());
                }
                Event::Completion(completion)
                    if completion.kind == WorkKind::Write
                        && self.answers.remove(&completion.tag.0) => {}
                Event::Completion(completion) => {
                    assert!(
                        self.out.remove(&completion.tag.0),
                        "{completion:?} came back twice"
                    );
                }
                Event::Closed { qp, reason } => {
                    assert!(self.qp.is_none_or(|own| own == qp));
                    assert!(!reason.to_string().is_empty());
                    assert!(
                        self.out.is_empty(),
                        "work requests are lost: {:?}",
                        self.out
                    );
                    self.closed = true;
                }
                Event::Withdrawn { .. } => panic!("memory returns at once"),
                Event::Established { .. } | Event::Rejected { .. } | Event::Ending { .. } => {}
            }
        }
        self.events = events;
    }

    /// The stream ends: the connection must end, and all memory must be returned.
    fn finish(&mut self) {
        let line = self.rdma.streams_mut();
        (line.ended, line.step, line.room) = (true, usize::MAX, usize::MAX);
        for _ in 0..64 {
            self.poll();
            self.now += Duration::from_secs(1);
        }
        assert!(
            !self.rdma.streams().is_open(),
            "the connection does not end"
        );
        assert!(
            self.qp.is_none() || self.closed,
            "it ended without an event"
        );
        for at in (0..self.exposed.len()).rev() {
            self.take_back(at);
        }
        assert!(self.exposed.is_empty(), "memory is lost");
        assert_eq!(self.pool.available(), self.pool.count(), "buffers are lost");
    }
}
