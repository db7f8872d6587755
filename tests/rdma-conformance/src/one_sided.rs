//! Cases: valid RDMA Writes and Reads.

use crate::Endpoint::{A, B};
use crate::pattern::{check, check_all, fill};
use crate::rig::{Link, Rig};
use nvmeof_rdma::{Outcome, QpConfig, RemoteSlice, Rights, Work, WorkKind};

const SIZES: [usize; 7] = [0, 1, 100, 4096, 65_537, 1 << 20, (5 << 20) + 1];

/// The part of `slice` from `offset` on, `len` bytes.
fn part(slice: RemoteSlice, offset: usize, len: usize) -> RemoteSlice {
    RemoteSlice {
        addr: slice.addr + offset as u64,
        len: u32::try_from(len).unwrap(),
        ..slice
    }
}

/// Sends an empty message after everything else and waits for it.
fn fence(rig: &mut Rig<'_>, link: Link) {
    rig[B].recv(link.b, 1000, 64);
    rig[A].send(link.a, 1000, 10);
    rig.message(B, link.b, 1000, 10);
}

/// Bytes are placed at the address in the slice, and nowhere else.
pub fn write_is_placed_at_its_address(rig: &mut Rig<'_>) {
    let link = rig.link();
    let window = rig[B].buf_at(500, 1000);
    let slice = rig[B].expose(link.b, window, Rights::REMOTE_WRITE);
    for (tag, start, len) in [(1, 0, 10), (2, 990, 10), (3, 100, 1), (4, 333, 334)] {
        rig[A].write(link.a, tag, len, part(slice, start, len));
        rig.success(A, link.a, tag);
    }
    fence(rig, link);
    let mut window = rig[B].withdraw(slice.key);
    assert_eq!(window.view(), 500..1500);
    check(&window[0..10], 1);
    check_all(&window[10..100], 0xEE);
    check(&window[100..101], 3);
    check_all(&window[101..333], 0xEE);
    check(&window[333..667], 4);
    check_all(&window[667..990], 0xEE);
    check(&window[990..], 2);
    window.set_view(0..500).unwrap();
    check_all(&window, 0xEE);
    window.set_view(1500..2500).unwrap();
    check_all(&window, 0xEE);
}

/// From no bytes to several megabytes.
pub fn writes_of_all_sizes_arrive(rig: &mut Rig<'_>) {
    let link = rig.link();
    let most = rig[A].provider().limits().max_message as usize;
    for (tag, len) in (0u64..).zip(SIZES) {
        let len = len.min(most);
        let window = rig[B].buf(len + 64);
        let slice = rig[B].expose(link.b, window, Rights::REMOTE_WRITE);
        rig[A].write(link.a, tag, len, slice);
        rig.success(A, link.a, tag);
        fence(rig, link);
        let window = rig[B].withdraw(slice.key);
        check(&window[..len], tag);
        check_all(&window[len..], 0xEE);
        // The fence's own completion.
        rig.success(A, link.a, 1000);
    }
}

/// From no bytes to several megabytes.
pub fn reads_of_all_sizes_arrive(rig: &mut Rig<'_>) {
    let link = rig.link();
    let most = rig[A].provider().limits().max_message as usize;
    for (tag, len) in (0u64..).zip(SIZES) {
        let len = len.min(most);
        let window = rig[B].filled(len, tag);
        let slice = rig[B].expose(link.b, window, Rights::REMOTE_READ);
        rig[A].read(link.a, tag, len, slice);
        let read = rig.success(A, link.a, tag).buf.unwrap();
        check(&read, tag);
        check(&rig[B].withdraw(slice.key), tag);
    }
}

/// A read fills its view from any offset of the remote memory, and nothing else.
pub fn read_fills_only_view(rig: &mut Rig<'_>) {
    let link = rig.link();
    let window = rig[B].filled(4096, 3);
    let slice = rig[B].expose(link.b, window, Rights::REMOTE_READ);
    // Pattern words are 8 bytes: byte 800 starts one.
    let local = rig[A].buf_at(64, 1000);
    let remote = part(slice, 800, 1500);
    rig[A].post(link.a, 1, Work::Read { local, remote });
    let mut read = rig.success(A, link.a, 1).buf.unwrap();
    let mut expected = vec![0; 4096];
    fill(&mut expected, 3);
    assert!(read[..] == expected[800..1800]);
    read.set_view(0..64).unwrap();
    check_all(&read, 0xEE);
    read.set_view(1064..2000).unwrap();
    check_all(&read, 0xEE);
}

/// When a message arrives, the data of the writes before it are in place.
pub fn send_arrives_after_earlier_writes(rig: &mut Rig<'_>) {
    let link = rig.link();
    for (tag, len) in [(1, 100), (2, 70_000), (3, 4096), (4, 500_000), (5, 1)] {
        let window = rig[B].buf(len);
        let slice = rig[B].expose(link.b, window, Rights::REMOTE_WRITE);
        rig[B].recv(link.b, tag, 64);
        let half = len / 2 / 8 * 8;
        let mut whole = rig[A].filled(len, tag);
        let mut rest = rig[A].buf(len - half);
        rest.copy_from_slice(&whole[half..]);
        whole.set_view(0..half).unwrap();
        for (local, remote) in [(whole, slice), (rest, part(slice, half, len - half))] {
            rig[A].post(link.a, tag, Work::Write { local, remote });
        }
        rig[A].send(link.a, tag, 24);
        rig.message(B, link.b, tag, 24);
        check(&rig[B].withdraw(slice.key), tag);
    }
}

/// Reads beyond the negotiated number are accepted and completed.
pub fn reads_beyond_depth_are_queued(rig: &mut Rig<'_>) {
    let config = QpConfig {
        reads_out: 2.min(rig.config().reads_out),
        ..rig.config()
    };
    let link = rig.link_with(&config, &config);
    many_reads(rig, link);
}

/// One side requests more reads than the other allows.
pub fn reads_are_lowered_to_common_limit(rig: &mut Rig<'_>) {
    let (many, one) = (
        rig.config(),
        QpConfig {
            reads_in: 1,
            reads_out: 1,
            ..rig.config()
        },
    );
    for (a, b) in [(&many, &one), (&one, &many)] {
        let link = rig.link_with(a, b);
        many_reads(rig, link);
    }
}

fn many_reads(rig: &mut Rig<'_>, link: Link) {
    let window = rig[B].filled(4096, 8);
    let slice = rig[B].expose(link.b, window, Rights::REMOTE_READ);
    for tag in 0..50 {
        rig[A].read(link.a, tag, 4096, slice);
    }
    for tag in 0..50 {
        check(&rig.success(A, link.a, tag).buf.unwrap(), 8);
    }
    rig[B].withdraw(slice.key);
}

/// Both sides write to and read from each other at the same time.
pub fn both_sides_read_and_write_at_once(rig: &mut Rig<'_>) {
    let link = rig.link();
    let len = 100_000;
    let mut slices = Vec::new();
    for end in [A, B] {
        let qp = link.at(end);
        let (sink, source) = (rig[end].buf(len), rig[end].filled(len, 7));
        let sink = rig[end].expose(qp, sink, Rights::REMOTE_WRITE);
        let source = rig[end].expose(qp, source, Rights::REMOTE_READ);
        slices.push((end, sink, source));
    }
    // A message needs a posted receive, so each side posts one.
    for end in [A, B] {
        rig[end].recv(link.at(end), 0, 64);
    }
    for (owner, sink, source) in &slices {
        let (end, qp) = (owner.other(), link.at(owner.other()));
        for tag in 0..4 {
            rig[end].read(qp, tag, len, *source);
            rig[end].write(qp, tag, len, *sink);
        }
        rig[end].send(qp, 9, 20);
    }
    for (owner, sink, source) in slices {
        let (end, qp) = (owner.other(), link.at(owner.other()));
        for tag in 0..4 {
            check(&rig.success(end, qp, tag).buf.unwrap(), 7);
            rig.success(end, qp, tag);
        }
        rig.message(owner, link.at(owner), 9, 20);
        check(&rig[owner].withdraw(sink.key), 3);
        rig[owner].withdraw(source.key);
    }
}

/// Sends, writes and reads complete in the order they were posted, whichever
/// is faster.
pub fn all_kinds_complete_in_order(rig: &mut Rig<'_>) {
    let link = rig.link();
    let (sink, source) = (rig[B].buf(4096), rig[B].filled(65_536, 1));
    let sink = rig[B].expose(link.b, sink, Rights::REMOTE_WRITE);
    let source = rig[B].expose(link.b, source, Rights::REMOTE_READ);
    let kind = |tag: u64| [WorkKind::Read, WorkKind::Send, WorkKind::Write][(tag % 3) as usize];
    for tag in 0..60 {
        match kind(tag) {
            WorkKind::Read => rig[A].read(link.a, tag, 65_536, source),
            WorkKind::Write => rig[A].write(link.a, tag, 512, sink),
            WorkKind::Send => {
                rig[B].recv(link.b, tag, 64);
                rig[A].send(link.a, tag, 32);
            }
        }
    }
    // The rig checks order, tags and kinds.
    for tag in 0..60 {
        let completion = rig.completion(A, link.a);
        assert_eq!(completion.outcome, Outcome::Success);
        assert_eq!((completion.tag.0, completion.kind), (tag, kind(tag)));
    }
}
