//! Tests of the length of FPDUs: they fit the segments of the path.

use nvmeof_rdma::Inline;

use super::*;
use crate::iwarp::{MAX_PAYLOAD, MPA_LEN, pad_len};

const SEGMENTS: [usize; 4] = [536, 1460, 8960, 65483];

/// A sent FPDU: its header, payload and length.
pub(super) type Fpdu = (Header, Vec<u8>, usize);

/// Parses FPDUs.
pub(super) fn fpdus(mut bytes: &[u8]) -> Vec<Fpdu> {
    let mut all = Vec::new();
    while !bytes.is_empty() {
        let len = Header::framed_len(*bytes.first_chunk().unwrap()).unwrap();
        let header = Header::parse(&bytes[..len]).unwrap();
        let end = len + header.payload;
        let whole = end + pad_len(end - MPA_LEN) + 4;
        all.push((header, bytes[len..end].to_vec(), whole));
        bytes = &bytes[whole..];
    }
    all
}

/// An established connection over a path with this segment size.
fn over(segment: Option<usize>) -> (Raw, QpId) {
    let mut raw = Raw::passive(SoftConfig::default());
    raw.peer.set_segment(segment);
    raw.send(&request(2, 0x10, Some(Reads::new(4, 4)), b""));
    raw.poll_once();
    let qp = raw.request().qp;
    raw.provider.prepare(qp, &CONFIG).unwrap();
    raw.provider.accept(qp, &PrivateData::empty()).unwrap();
    raw.poll_once();
    raw.events.clear();
    raw.receive();
    // The first FPDU is the initiator's.
    raw.send(&tagged(Opcode::WRITE, 0, b""));
    raw.poll_once();
    (raw, qp)
}

impl Raw {
    fn filled(&mut self, len: usize) -> Buf {
        let mut buf = self.pool.take().unwrap();
        buf.set_view(0..len).unwrap();
        buf.copy_from_slice(&content(len));
        buf
    }

    /// The FPDUs of a Write of `len` bytes, a Send of 8 and `len`, and the response to a Read
    /// of `len`.
    fn all_kinds(&mut self, qp: QpId, len: usize) -> [Vec<Fpdu>; 3] {
        let local = self.filled(len);
        let remote = RemoteSlice {
            key: RemoteKey(7),
            addr: 1 << 32,
            len: u32::try_from(len).unwrap(),
        };
        let work = Work::Write { local, remote };
        self.provider.post(qp, Tag(1), work).unwrap();
        self.poll_once();
        let write = fpdus(&self.receive());
        let work = Work::Send {
            head: Inline::new(b"8 bytes.").unwrap(),
            body: Some(self.filled(len)),
            invalidate: None,
            solicited: false,
        };
        self.provider.post(qp, Tag(2), work).unwrap();
        self.poll_once();
        let send = fpdus(&self.receive());
        let source = self.filled(len);
        let source = self.provider.expose(qp, source, Rights::REMOTE_READ);
        let source = source.unwrap_or_else(|refused| panic!("{:?}", refused.why));
        let asks = ReadRequest {
            sink_stag: 5,
            sink_to: 1 << 33,
            len: u32::try_from(len).unwrap(),
            source_stag: source.key.0,
            source_to: source.addr,
        };
        let mut bytes = Vec::new();
        asks.write(&mut bytes);
        self.send(&untagged(Opcode::READ_REQUEST, 1, 1, &bytes));
        self.poll_once();
        let reply = fpdus(&self.receive());
        assert_eq!(self.events.len(), 2, "{:?}", self.events);
        [write, send, reply]
    }
}

/// Checks that the payload is complete and in order, and that only the last FPDU is marked as
/// last.
fn assert_whole(message: &[Fpdu], first: &[u8], len: usize) {
    let mut so_far = Vec::new();
    for (number, (header, payload, _)) in message.iter().enumerate() {
        assert_eq!(header.last, number + 1 == message.len());
        assert!(header.last || !payload.is_empty());
        match header.kind {
            Kind::Tagged { to, .. } => {
                assert_eq!(to & 0xffff_ffff, so_far.len() as u64);
            }
            Kind::Untagged { offset, .. } => assert_eq!(offset as usize, so_far.len()),
        }
        so_far.extend_from_slice(payload);
    }
    assert!(so_far == [first, &content(len)].concat());
}

/// Sizes around the boundary where a message gets one more FPDU.
fn sizes() -> impl Strategy<Value = (usize, usize)> {
    let border = |segment: usize| {
        let most = 65536 / segment + 1;
        (Just(segment), 0..=most, 0..80_usize).prop_map(|(segment, count, around)| {
            let len = (count * segment + around).saturating_sub(60);
            (segment, len.min(65536))
        })
    };
    prop::sample::select(&SEGMENTS[..]).prop_flat_map(border)
}

proptest! {
    #[test]
    fn fpdus_fit_segment_and_all_but_last_fill_it((segment, len) in sizes()) {
        let (mut raw, qp) = over(Some(segment));
        let messages = raw.all_kinds(qp, len);
        for (message, head) in messages.iter().zip([&b""[..], b"8 bytes.", b""]) {
            assert_whole(message, head, len);
            let (last, others) = message.split_last().unwrap();
            prop_assert!(last.2 <= segment);
            for (_, _, whole) in others {
                prop_assert_eq!(*whole, segment - segment % 4);
            }
        }
    }
}

#[test]
fn fpdus_are_long_without_segments() {
    let (mut raw, qp) = over(None);
    for message in raw.all_kinds(qp, 65536) {
        let [(first, ..), (_, _, last)] = &message[..] else {
            panic!("{} FPDUs", message.len());
        };
        assert_eq!(first.payload, MAX_PAYLOAD);
        assert!(*last < 128);
    }
}
