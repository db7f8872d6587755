//! Abort from a foreign host: raw commands as the `abort` example of SPDK sends them, over a
//! queue of depth 20, each followed by an Abort.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests"
)]

use nvmeof_e2e::{NQN, Peer, Setup, Target, connect, connect_capsule, eventually, request};
use nvmeof_wire::cm::Request;
use nvmeof_wire::fabrics::PropertyAccess;
use nvmeof_wire::registers::{Cc, Property, PropertyValue};
use nvmeof_wire::{Cqe, Status};
use zerocopy::IntoBytes;

const MIB: usize = 1 << 20;
const DEPTH: u16 = 20;
/// Bytes of each write: more than a capsule contains.
const LEN: usize = 64 << 10;
/// Maximum number of concurrent RDMA Reads of the host (IRD of RFC 6581).
const READS: u16 = 4;

/// A message of the target on a queue.
enum Said {
    Read(Read),
    Response(Cqe),
}

/// An RDMA Read Request (RFC 5040, 4.4), the fields that its response requires.
struct Read {
    sink_key: [u8; 4],
    sink_addr: u64,
    len: usize,
    key: u32,
}

fn receive(peer: &mut Peer) -> Said {
    let head = peer.receive(2);
    let len = usize::from(u16::from_be_bytes([head[0], head[1]]));
    let body = peer.receive((2 + len).next_multiple_of(4) - 2 + 4);
    let word = |at: usize| u32::from_be_bytes(body[at..at + 4].try_into().unwrap());
    // The opcode of RDMAP; the headers are 18 bytes long.
    match body[1] & 0xf {
        1 => Said::Read(Read {
            sink_key: body[18..22].try_into().unwrap(),
            sink_addr: u64::from_be_bytes(body[22..30].try_into().unwrap()),
            len: word(30).try_into().unwrap(),
            key: word(34),
        }),
        _ => Said::Response(Cqe::from_capsule(&body[18..34]).unwrap()),
    }
}

/// RDMA Read Responses (RFC 5040, 4.5): tagged, each with a part of the data.
fn answer(peer: &mut Peer, read: &Read) {
    const PART: usize = 16 << 10;
    for at in (0..read.len).step_by(PART) {
        let part = PART.min(read.len - at);
        let last = if at + part == read.len { 0x40 } else { 0 };
        let mut frame = u16::try_from(14 + part).unwrap().to_be_bytes().to_vec();
        frame.extend([0x81 | last, 0x42]);
        frame.extend(read.sink_key);
        frame.extend((read.sink_addr + at as u64).to_be_bytes());
        frame.resize(frame.len() + part, read.key.to_le_bytes()[0]);
        frame.resize(frame.len().next_multiple_of(4) + 4, 0);
        peer.say(&frame);
    }
}

/// A Write as SPDK builds it (`nvme_rdma_build_sgl_request`): a keyed data block, whose
/// key is not to be invalidated. Its key, identifier and offset are the same number.
fn write(cid: u16) -> [u8; 64] {
    let blocks = u32::try_from(LEN / 512).unwrap();
    let mut sqe = [0; 64];
    sqe[0] = 0x01;
    sqe[1] = 0x40;
    sqe[2..4].copy_from_slice(&cid.to_le_bytes());
    sqe[4] = 1;
    sqe[24..32].copy_from_slice(&0x7f00_0000_u64.to_le_bytes());
    sqe[32..35].copy_from_slice(&u32::try_from(LEN).unwrap().to_le_bytes()[..3]);
    sqe[35..39].copy_from_slice(&u32::from(cid).to_le_bytes());
    sqe[39] = 0x40;
    sqe[40..44].copy_from_slice(&(u32::from(cid - 1) * blocks).to_le_bytes());
    sqe[48..52].copy_from_slice(&(blocks - 1).to_le_bytes());
    sqe
}

/// An Abort as SPDK builds it: with a keyed data block of no bytes.
fn abort(cid: u16) -> [u8; 64] {
    let mut sqe = [0; 64];
    sqe[0] = 0x08;
    sqe[1] = 0x40;
    sqe[2] = 77;
    sqe[39] = 0x40;
    sqe[40..42].copy_from_slice(&1_u16.to_le_bytes());
    sqe[42..44].copy_from_slice(&cid.to_le_bytes());
    sqe
}

fn connected(target: &Target) -> (Peer, Peer) {
    let (mut admin, cntlid) = Peer::connected(target.address(), 0, 0xffff);
    let enable = PropertyAccess::set(Property::CC, PropertyValue::Dword(Cc::ENABLE.0));
    admin.capsule(&enable.to_bytes());
    assert!(admin.response().status().is_success());
    let mut queue = Peer::connect(target.address());
    let mut bytes = request(Request::new(1, 32).as_bytes());
    bytes[20..22].copy_from_slice(&READS.to_be_bytes());
    queue.say(&bytes);
    let reply = queue.receive(20);
    let _ = queue.receive(u16::from_be_bytes([reply[18], reply[19]]).into());
    queue.capsule(&connect_capsule(&connect(1, cntlid)));
    assert!(queue.response().status().is_success(), "{NQN}");
    (admin, queue)
}

/// Base 2.1, 5.1.1: bit 0 of dword 0 is 0 when the command was aborted, which then ends
/// with Command Abort Requested (07h) and without any of its data written.
#[test]
fn queued_writes_are_aborted_and_executing_ones_are_not() {
    let setup = Setup::new().namespace("ram:4M", "");
    let mut target = setup.start();
    let (mut admin, mut queue) = connected(&target);
    for cid in 1..=DEPTH {
        queue.capsule(&write(cid));
    }
    let mut is_aborted = |cid: u16| {
        admin.capsule(&abort(cid));
        let response = admin.response();
        assert!(response.status().is_success(), "{response:?}");
        response.dw0() & 1 == 0
    };
    // The target has read its data.
    let Said::Read(first) = receive(&mut queue) else {
        panic!("a response before the data")
    };
    assert_eq!(first.key, 1);
    assert!(!is_aborted(1), "it has begun");
    // The others wait, because the number of concurrent RDMA Reads is limited. They may arrive
    // after the Abort, which uses another connection.
    let aborted = [DEPTH, DEPTH - 1, DEPTH - 2];
    for cid in aborted {
        let done = eventually(|| is_aborted(cid).then_some(()));
        assert!(done.is_some(), "command {cid} is not aborted");
        assert!(!is_aborted(cid), "it is over");
    }
    let mut ended = Vec::new();
    answer(&mut queue, &first);
    while ended.len() < usize::from(DEPTH) {
        match receive(&mut queue) {
            Said::Read(read) => answer(&mut queue, &read),
            Said::Response(cqe) => ended.push((cqe.cid.get(), cqe.status())),
        }
    }
    ended.sort_by_key(|(cid, _)| *cid);
    for (cid, (of, status)) in (1..).zip(ended) {
        let expected = match aborted.contains(&cid) {
            true => Status::ABORT_REQUESTED,
            false => Status::SUCCESS,
        };
        assert_eq!((of, status), (cid, expected));
    }
    let blocks = LEN / 512 * usize::from(DEPTH);
    let disk = target.read(1, 0, Some(blocks as u64));
    for (cid, data) in (1..=DEPTH).zip(disk.chunks(LEN)) {
        let byte = if aborted.contains(&cid) {
            0
        } else {
            cid.to_le_bytes()[0]
        };
        assert!(data.iter().all(|one| *one == byte), "command {cid}");
    }
    assert!(blocks * 512 <= 4 * MIB);
    target.assert_healthy();
    target.stop();
}
