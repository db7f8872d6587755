//! Tests of the receiving side with all splits of a stream.

use super::*;
use crate::iwarp::{Kind, MAX_PAYLOAD, Opcode, TAGGED_LEN};
use proptest::prelude::*;

/// Remembers every segment.
#[derive(Debug, Default, PartialEq)]
struct Record {
    segments: Vec<(Header, Vec<u8>)>,
    payload: Vec<u8>,
    at: usize,
}

impl Sink for Record {
    fn start(&mut self, header: &Header) -> Result<(), WireFault> {
        self.payload = vec![0; header.payload];
        self.at = 0;
        Ok(())
    }

    fn place(&mut self, remaining: usize) -> Result<&mut [u8], WireFault> {
        let place = &mut self.payload[self.at..];
        assert_eq!(place.len(), remaining);
        Ok(place)
    }

    fn advance(&mut self, len: usize) {
        self.at += len;
    }

    fn finish(&mut self, header: &Header) -> Result<(), WireFault> {
        assert_eq!(self.at, header.payload);
        let payload = std::mem::take(&mut self.payload);
        self.segments.push((*header, payload));
        self.at = 0;
        Ok(())
    }
}

fn frame(header: &Header, payload: &[u8], crc: bool) -> Vec<u8> {
    let mut out = Vec::new();
    header.write(&mut out);
    out.extend_from_slice(payload);
    out.resize(out.len() + pad_len(out.len() - MPA_LEN), 0);
    assert_eq!(out.len() % 4, 0);
    let crc = if crc { crc32c::crc32c(&out) } else { 0 };
    out.extend_from_slice(&crc_bytes(crc));
    out
}

/// Header of an RDMA Write of one segment.
fn write(payload: usize) -> Header {
    Header {
        opcode: Opcode::WRITE,
        last: true,
        payload,
        kind: Kind::Tagged { stag: 1, to: 2 },
    }
}

/// Feeds `bytes` in pieces; `direct` ones go to the destination of the payload, as in a
/// vectored read.
fn feed(bytes: &[u8], crc: bool, cuts: &[(usize, bool)]) -> (Record, Result<(), WireFault>) {
    let (mut rx, mut sink) = (Rx::new(crc), Record::default());
    let mut rest = bytes;
    let mut cuts = cuts.iter().cycle();
    while !rest.is_empty() {
        let (len, direct) = cuts.next().copied().unwrap_or((usize::MAX, false));
        let (mut now, later) = rest.split_at(len.clamp(1, rest.len()));
        rest = later;
        if direct && let Some((_, missing)) = rx.payload() {
            let count = missing.min(now.len());
            let place = sink.place(missing).unwrap();
            place[..count].copy_from_slice(&now[..count]);
            now = &now[count..];
            if let Err(fault) = rx.placed(count, &mut sink) {
                return (sink, Err(fault));
            }
        }
        if let Err(fault) = rx.consume(now, &mut sink) {
            return (sink, Err(fault));
        }
    }
    (sink, Ok(()))
}

fn segments() -> impl Strategy<Value = Vec<(Header, Vec<u8>)>> {
    let payload = prop_oneof![
        proptest::collection::vec(any::<u8>(), 0..40),
        proptest::collection::vec(any::<u8>(), 3000..5000),
    ];
    let segment = (any::<bool>(), any::<bool>(), any::<u32>(), payload).prop_map(
        |(tagged, last, number, bytes)| {
            let (opcode, kind) = if tagged {
                let to = u64::from(number) << 20;
                (Opcode::WRITE, Kind::Tagged { stag: number, to })
            } else {
                let kind = Kind::Untagged {
                    invalidate: 0,
                    queue: 0,
                    msn: number,
                    offset: 0,
                };
                (Opcode::SEND, kind)
            };
            let header = Header {
                opcode,
                last,
                payload: bytes.len(),
                kind,
            };
            (header, bytes)
        },
    );
    proptest::collection::vec(segment, 1..8)
}

fn cuts() -> impl Strategy<Value = Vec<(usize, bool)>> {
    let len = prop_oneof![1usize..4, 1usize..64, 1usize..4000];
    proptest::collection::vec((len, any::<bool>()), 1..20)
}

proptest! {
    #[test]
    fn any_split_yields_same_segments(segments in segments(), crc: bool, cuts in cuts()) {
        let bytes: Vec<u8> = segments
            .iter()
            .flat_map(|(header, payload)| frame(header, payload, crc))
            .collect();
        let (record, result) = feed(&bytes, crc, &cuts);
        prop_assert_eq!(result, Ok(()));
        prop_assert_eq!(record.segments, segments);
    }

    #[test]
    fn any_split_of_hostile_bytes_yields_same_error(
        segments in segments(),
        flips in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        crc: bool,
        cuts in cuts(),
    ) {
        let mut bytes: Vec<u8> = segments
            .iter()
            .flat_map(|(header, payload)| frame(header, payload, crc))
            .collect();
        for (at, value) in flips {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        let whole = feed(&bytes, crc, &[(usize::MAX, false)]);
        let split = feed(&bytes, crc, &cuts);
        prop_assert_eq!(whole.1, split.1);
        prop_assert_eq!(whole.0.segments, split.0.segments);
    }

    #[test]
    fn arbitrary_bytes_never_panic(
        bytes in proptest::collection::vec(any::<u8>(), 0..400),
        cuts in cuts(),
    ) {
        let _ = feed(&bytes, true, &cuts);
    }
}

#[test]
fn crc_detects_flipped_bit() {
    let header = write(5);
    let good = frame(&header, b"hello", true);
    assert!(feed(&good, true, &[(3, false)]).1.is_ok());
    // Steering tag, payload, padding, CRC.
    for at in [5, MPA_LEN + TAGGED_LEN, good.len() - 5, good.len() - 1] {
        let mut bad = good.clone();
        bad[at] ^= 1;
        let (record, result) = feed(&bad, true, &[(3, true)]);
        assert_eq!(result.unwrap_err().code(), codes::MPA_CRC);
        assert!(record.segments.is_empty());
        assert!(feed(&bad, false, &[(3, true)]).1.is_ok());
    }
}

/// RFC 5040, section 4.8: a Terminate carries a copy of the header at fault.
#[test]
fn header_of_faulty_segment_is_kept() {
    let header = write(5);
    let good = frame(&header, b"hello", true);
    let mut bytes = [&good[..], &good[..]].concat();
    *bytes.last_mut().unwrap() ^= 1;
    // Both complete, and in pieces.
    for step in [bytes.len(), 7] {
        let (mut rx, mut sink) = (Rx::new(true), Record::default());
        let mut pieces = bytes.chunks(step);
        let result = pieces.try_for_each(|piece| rx.consume(piece, &mut sink));
        assert_eq!(result.unwrap_err().code(), codes::MPA_CRC);
        assert_eq!(rx.header_bytes(), &good[..MPA_LEN + TAGGED_LEN]);
        assert_eq!((rx.frames(), sink.segments.len()), (1, 1));
    }
}

#[test]
fn boundary_between_frames_is_known() {
    let header = write(MAX_PAYLOAD);
    let bytes = frame(&header, &vec![1; MAX_PAYLOAD], false);
    let (mut rx, mut sink) = (Rx::new(false), Record::default());
    assert!(rx.at_boundary());
    for piece in bytes.chunks(1000) {
        rx.consume(piece, &mut sink).unwrap();
    }
    assert!(rx.at_boundary());
    rx.consume(&bytes[..1], &mut sink).unwrap();
    assert!(!rx.at_boundary());
    assert_eq!(rx.frames(), 1);
}

#[test]
fn large_segment_is_expected_after_large_one() {
    let segment = |payload| frame(&write(payload), &vec![1; payload], false);
    let (small, large) = (segment(4096), segment(LARGE));
    let (mut rx, mut sink) = (Rx::new(false), Record::default());
    rx.consume(&small, &mut sink).unwrap();
    assert!(!rx.expects_large());
    // Complete, and with its payload still missing.
    for step in [large.len(), 100] {
        for piece in large.chunks(step) {
            rx.consume(piece, &mut sink).unwrap();
            assert!(rx.expects_large());
        }
        for n in (0..EXPECTED).rev() {
            rx.consume(&small, &mut sink).unwrap();
            assert_eq!(rx.expects_large(), n > 0);
        }
    }
}
