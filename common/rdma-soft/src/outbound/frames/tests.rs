//! Tests of frames with any number of bytes accepted by the stream.

use super::*;
use crate::iwarp::{Kind, Opcode};
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
fn send_all(frames: &mut Frames, memory: &[u8], step: usize, slices: usize) -> (Vec<u8>, Vec<u64>) {
    let (mut sent, mut done) = (Vec::new(), Vec::new());
    while !frames.is_empty() {
        let mut room = vec![IoSlice::new(&[]); slices];
        let (used, offered) =
            frames.gather(&mut room, |_, offset, len| &memory[offset..offset + len]);
        let bytes: Vec<u8> = room[..used]
            .iter()
            .flat_map(|slice| slice.to_vec())
            .collect();
        assert_eq!(bytes.len(), offered);
        assert!(offered > 0 && used <= frames.slices());
        let count = step.min(offered);
        sent.extend_from_slice(&bytes[..count]);
        for what in frames.sent(count) {
            if let Done::Work(number) = what {
                done.push(number);
            }
        }
    }
    (sent, done)
}

proptest! {
    #[test]
    fn partial_sends_yield_same_bytes(
        lens in proptest::collection::vec((0usize..300, 0usize..64), 1..20),
        step in 1usize..500,
        slices in 1usize..9,
        crc: bool,
    ) {
        let memory: Vec<u8> = (0..=255).cycle().take(1000).collect();
        let fill = || {
            let mut frames = Frames::new();
            frames.crc = crc;
            for (number, (len, head)) in (0u64..).zip(&lens) {
                let bytes = &memory[7..7 + len];
                let head = Inline::new(&memory[..*head]).unwrap();
                let done = Done::Work(number);
                frames.frame(&header(head.len() + len), &head, payload(number, 7, bytes), done);
            }
            frames
        };
        let (whole, _) = send_all(&mut fill(), &memory, usize::MAX, 512);
        let mut frames = fill();
        let (parts, done) = send_all(&mut frames, &memory, step, slices);
        prop_assert_eq!(whole, parts);
        prop_assert_eq!(done.len(), lens.len());
        prop_assert_eq!((frames.payload, frames.with_payload, frames.used), (0, 0, 0));
    }
}

#[test]
fn cutting_keeps_partly_sent_frame() {
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
        let mut frames = Frames::new();
        for number in 0..3 {
            let rest = payload(number, 0, &memory);
            frames.frame(&header(100), &Inline::empty(), rest, Done::Work(number));
        }
        // Into the second frame.
        frames.sent(frame + extra).for_each(drop);
        let dropped = frames
            .cut_to_frame()
            .filter(|done| matches!(done, Done::Work(_)));
        assert_eq!(dropped.count(), 2 - extra / frame - kept.len());
        let (rest, done) = send_all(&mut frames, &memory, 7, 4);
        assert_eq!((rest.len(), &done), (kept.len() * (frame - extra), &kept));
    }
}

#[test]
fn waiting_frames_are_bounded() {
    let memory = [5; 100];
    let mut frames = Frames::new();
    while frames.has_room() {
        frames.frame(
            &header(164),
            &Inline::new(&[0; 64]).unwrap(),
            payload(0, 0, &memory),
            Done::Nothing,
        );
    }
    assert!(frames.arena.len() <= ARENA && frames.queue.len() <= MAX_FRAMES);
}

#[test]
fn cutting_at_frame_boundary_leaves_nothing() {
    let head = Inline::new(&[0; 64]).unwrap();
    let mut frames = Frames::new();
    for number in 0..3 {
        frames.frame(&header(64), &head, Payload::NONE, Done::Work(number));
    }
    // They are adjacent and are sent in one slice.
    let mut slices = [IoSlice::new(&[]); 4];
    let (used, offered) = frames.gather(&mut slices, |_, _, _| &[]);
    assert_eq!(used, 1);
    assert_eq!(frames.sent(offered / 3 * 2).count(), 2);
    assert_eq!(frames.cut_to_frame().count(), 1);
    assert!(frames.is_empty());
    frames.raw(&[0; 4]);
    assert_eq!(send_all(&mut frames, &[], 3, 1).0.len(), 8);
}

/// Two responses, with the message of each as a frame of its own or behind its data.
fn answers(crc: bool, memory: &[u8], behind: bool) -> Frames {
    let mut frames = Frames::new();
    frames.crc = crc;
    let head = Inline::of([7; 16]);
    for number in 0..2 {
        let data = payload(number, 0, memory);
        let done = Done::Work(number);
        if behind {
            frames.frame_with(&header(100), data, (&header(16), &head), done);
        } else {
            frames.frame(&header(100), NO_HEAD, data, Done::Nothing);
            frames.frame(&header(16), &head, Payload::NONE, done);
        }
    }
    frames
}

#[test]
fn message_behind_its_data_yields_same_bytes() {
    let memory: Vec<u8> = (0..100).collect();
    for (crc, step) in [(false, 1), (true, 3), (true, 50), (false, usize::MAX)] {
        let mut apart = answers(crc, &memory, false);
        let mut together = answers(crc, &memory, true);
        assert_eq!((apart.queue.len(), together.queue.len()), (4, 2));
        let (bytes, done) = send_all(&mut apart, &memory, step, 4);
        assert_eq!(done, [0, 1]);
        assert_eq!(send_all(&mut together, &memory, step, 4), (bytes, done));
        assert_eq!((together.payload, together.with_payload), (0, 0));
    }
}

#[test]
fn partly_sent_data_keep_their_message() {
    let memory = [5; 100];
    let whole = send_all(&mut answers(true, &memory, true), &memory, 1000, 8);
    let one = whole.0.len() / 2;
    for sent in [1, 60, 115, one - 1] {
        let mut frames = answers(true, &memory, true);
        assert_eq!(frames.sent(sent).count(), 0, "its message is not sent");
        assert_eq!(frames.cut_to_frame().count(), 1, "the other answer");
        let (rest, done) = send_all(&mut frames, &memory, 7, 4);
        assert_eq!((&rest[..], done), (&whole.0[sent..one], vec![0]));
    }
}
