//! Frames as pieces, whatever the stream takes of them.

use super::*;
use proptest::prelude::*;

fn header(payload: usize) -> Header {
    Header {
        opcode: Opcode::WRITE,
        last: true,
        payload,
        kind: Kind::Tagged { stag: 1, to: 2 },
    }
}

fn payload(number: u64, offset: usize, bytes: &[u8]) -> Payload<'_> {
    Payload {
        source: Source::Work(number),
        offset,
        bytes,
    }
}

/// Sends at most `step` bytes per call until nothing is left.
fn send_all(pieces: &mut Pieces, memory: &[u8], step: usize, slices: usize) -> (Vec<u8>, Vec<u64>) {
    let (mut sent, mut done) = (Vec::new(), Vec::new());
    while !pieces.is_empty() {
        let mut room = vec![IoSlice::new(&[]); slices];
        let (used, offered) =
            pieces.gather(&mut room, |_, offset, len| &memory[offset..offset + len]);
        let bytes: Vec<u8> = room[..used]
            .iter()
            .flat_map(|slice| slice.to_vec())
            .collect();
        assert_eq!(bytes.len(), offered);
        let count = step.min(offered);
        sent.extend_from_slice(&bytes[..count]);
        pieces.sent(count);
        while let Some(what) = pieces.take_done() {
            if let Done::Work(number) = what {
                done.push(number);
            }
        }
    }
    (sent, done)
}

proptest! {
    #[test]
    fn partial_sends_change_nothing(
        lens in proptest::collection::vec((0usize..300, 0usize..64), 1..20),
        step in 1usize..500,
        slices in 1usize..9,
        crc: bool,
    ) {
        let memory: Vec<u8> = (0..=255).cycle().take(1000).collect();
        let fill = || {
            let mut pieces = Pieces::new();
            pieces.crc = crc;
            for (number, (len, head)) in (0u64..).zip(&lens) {
                let bytes = &memory[7..7 + len];
                let head = &memory[..*head];
                let done = Done::Work(number);
                pieces.frame(&header(head.len() + len), head, payload(number, 7, bytes), done);
            }
            pieces
        };
        let (whole, _) = send_all(&mut fill(), &memory, usize::MAX, 512);
        let mut pieces = fill();
        let (parts, done) = send_all(&mut pieces, &memory, step, slices);
        prop_assert_eq!(whole, parts);
        prop_assert_eq!(done.len(), lens.len());
        prop_assert_eq!((pieces.payload, pieces.arena.len()), (0, 0));
    }
}

#[test]
fn cutting_keeps_the_frame_that_is_half_sent() {
    let memory = [5; 100];
    let header_len = MPA_LEN + 14;
    let frame = header_len + 100 + 4;
    for (extra, kept) in [
        (0, vec![]),
        (1, vec![1]),
        (header_len, vec![1]),
        (header_len + 30, vec![1]),
        (header_len + 100, vec![1]),
        (frame, vec![]),
    ] {
        let mut pieces = Pieces::new();
        for number in 0..3 {
            let rest = payload(number, 0, &memory);
            pieces.frame(&header(100), &[], rest, Done::Work(number));
        }
        // Into the second frame.
        pieces.sent(frame + extra);
        while pieces.take_done().is_some() {}
        let dropped = pieces
            .cut_to_frame()
            .filter(|done| matches!(done, Done::Work(_)));
        assert_eq!(dropped.count(), 2 - extra / frame - kept.len());
        let (rest, done) = send_all(&mut pieces, &memory, 7, 4);
        assert_eq!((rest.len(), &done), (kept.len() * (frame - extra), &kept));
    }
}

#[test]
fn framing_ahead_is_bounded() {
    let memory = [5; 100];
    let mut pieces = Pieces::new();
    while pieces.has_room() {
        pieces.frame(
            &header(164),
            &[0; 64],
            payload(0, 0, &memory),
            Done::Nothing,
        );
    }
    assert!(pieces.arena.len() <= ARENA && pieces.queue.len() <= MAX_PIECES);
}
