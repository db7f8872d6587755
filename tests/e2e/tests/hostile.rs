//! Invalid bytes of hostile hosts. Each closes its own connection, is logged with peer and
//! cause, and affects no other host.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests"
)]

use nvmeof_e2e::{Peer, Setup, Target, eventually, fds, request, rss_kib, same_bytes};
use nvmeof_wire::cm::Request;
use nvmeof_wire::opcode::{Opcode, io};
use nvmeof_wire::{Cqe, Sgl, Sqe, Status};
use zerocopy::IntoBytes;

const MIB: usize = 1 << 20;

/// Waits until the log has a line about `peer` with all of `words`, and asserts that it is the
/// only warning. Such lines are limited to ten per second, so tests cause no more.
#[track_caller]
fn assert_logged(target: &Target, peer: &Peer, words: &[&str]) {
    let address = peer.own_address().to_string();
    let words = [&[address.as_str()], words].concat();
    let found = eventually(|| (!target.lines(&words).is_empty()).then_some(()));
    assert!(found.is_some(), "no line with {words:?}:\n{}", target.log());
}

/// An admin queue that is connected and enabled.
fn admin(target: &Target) -> (Peer, u16) {
    let (mut peer, cntlid) = Peer::connected(target.address(), 0, 0xffff);
    peer.enable();
    (peer, cntlid)
}

fn ask(peer: &mut Peer, sqe: &Sqe, data: &[u8]) -> Cqe {
    peer.capsule(&[&sqe.to_bytes()[..], data].concat());
    peer.response()
}

#[test]
fn garbage_before_first_frame_is_refused() {
    let setup = Setup::new().file(MIB);
    let mut target = setup.start();
    for garbage in [
        &b"GET / HTTP/1.1\r\nHost: disk\r\n\r\n"[..],
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        &[0; 64],
        &[0xff; 4096],
        b"MPA ID Rep Frame\x00\x01\x00\x00",
        b"MPA ID Req Frame\x00\x01\xff\xff",
        b"MPA ID Req Frame\x10\x02\x00\x03abc",
    ] {
        let mut peer = Peer::connect(target.address());
        peer.say(garbage);
        peer.receive_all();
        assert_logged(&target, &peer, &["MPA"]);
    }
    target.assert_healthy();
    same_bytes(&target.read(1, 0, None), &nvmeof_e2e::pattern(1, MIB));
    target.stop();
}

#[test]
fn truncated_mpa_request_is_refused() {
    let setup = Setup::new().file(MIB);
    let mut target = setup.start();
    let whole = request(Request::new(0, 32).as_bytes());
    for len in [1, 15, 19, 20, 30, whole.len() - 1] {
        let mut peer = Peer::connect(target.address());
        peer.say(&whole[..len]);
        peer.shut_down();
        peer.receive_all();
        assert_logged(&target, &peer, &[]);
    }
    target.assert_healthy();
    let _ = target.read(1, 0, Some(1));
}

#[test]
fn invalid_private_data_is_refused() {
    let setup = Setup::new().file(MIB);
    let mut target = setup.start();
    let refused = |private_data: &[u8], status: u16, words: &[&str]| {
        let mut peer = Peer::connect(target.address());
        peer.say(&request(private_data));
        let output = peer.receive_all();
        assert_eq!(output[..16], *b"MPA ID Rep Frame");
        assert_ne!(output[16] & 0x20, 0, "not rejected: {output:02x?}");
        // IRD and ORD, record format 0, the status.
        assert_eq!(
            output[24..28],
            [0, 0, status.to_le_bytes()[0], 0],
            "{output:02x?}"
        );
        assert_logged(&target, &peer, words);
    };
    let with = |at: usize, bytes: &[u8]| {
        let mut data = Request::new(0, 32).as_bytes().to_vec();
        data[at..at + bytes.len()].copy_from_slice(bytes);
        data
    };
    refused(&[], 1, &["private data"]);
    refused(&[0; 31], 1, &["31"]);
    refused(&with(0, &[1, 0]), 2, &["format"]);
    refused(&with(2, &[0xff, 0xff]), 3, &["65535"]);
    refused(&with(6, &[0, 0]), 4, &["HSQSIZE"]);
    refused(&with(6, &[0xff, 0xff]), 4, &["HSQSIZE"]);
    refused(&with(4, &[0, 0]), 5, &["HRQSIZE"]);
    target.assert_healthy();
}

#[test]
fn frames_that_break_the_rules() {
    let setup = Setup::new().file(MIB);
    let mut target = setup.start();
    // Bytes after a valid request, and layer, type and code of the Terminate.
    let long = [&0x43_u8.to_be_bytes()[..], &[0; 70]].concat();
    let frames: [(&str, Vec<u8>, [u8; 2]); 7] = [
        (
            "too short for a header",
            vec![0, 1, 0x41, 0x43, 0, 0, 0, 0],
            [0x20, 0x03],
        ),
        (
            "DDP version 3",
            frame(0x43, 0x43, 0, 1, &[0; 64]),
            [0x12, 0x06],
        ),
        (
            "RDMAP version 0",
            frame(0x41, 0x03, 0, 1, &[0; 64]),
            [0x02, 0x05],
        ),
        ("queue 9", frame(0x41, 0x43, 9, 1, &[0; 64]), [0x12, 0x01]),
        (
            "message 7 first",
            frame(0x41, 0x43, 0, 7, &[0; 64]),
            [0x12, 0x03],
        ),
        (
            "a Write to a key nobody gave",
            write_frame(0xdead_beef, &long),
            [0x11, 0x00],
        ),
        (
            "longer than a capsule",
            frame(0x41, 0x43, 0, 1, &[0; 60_000]),
            [0x12, 0x05],
        ),
    ];
    for (what, bytes, code) in frames {
        let mut peer = Peer::queue(target.address(), 0);
        peer.say(&bytes);
        let output = peer.receive_all();
        // MPA length, DDP and RDMAP control, ..., then the code.
        assert!(
            output.len() >= 24 && output[3] == 0x47,
            "{what}: no Terminate: {output:02x?}"
        );
        assert_eq!(output[20..22], code, "{what}: {output:02x?}");
        assert_logged(&target, &peer, &[]);
    }
    target.assert_healthy();
    same_bytes(&target.read(1, 0, None), &nvmeof_e2e::pattern(1, MIB));
}

#[test]
fn invalid_frames_close_the_connection() {
    let setup = Setup::new().file(MIB);
    let mut target = setup.start();
    for len in [1_usize, 2, 3, 17, 88, 1000, 70_000] {
        let mut peer = Peer::queue(target.address(), 0);
        peer.say(&nvmeof_e2e::pattern(0xfeed_f00d, len));
        peer.shut_down();
        peer.receive_all();
        assert_logged(&target, &peer, &[]);
    }
    target.assert_healthy();
    same_bytes(&target.read(1, 0, None), &nvmeof_e2e::pattern(1, MIB));
}

/// A segment with control bytes of its own.
fn frame(ddp: u8, rdmap: u8, queue: u32, msn: u32, payload: &[u8]) -> Vec<u8> {
    let len = u16::try_from(18 + payload.len()).unwrap();
    let mut bytes = len.to_be_bytes().to_vec();
    bytes.extend([ddp, rdmap, 0, 0, 0, 0]);
    bytes.extend([queue.to_be_bytes(), msn.to_be_bytes(), [0; 4]].concat());
    bytes.extend(payload);
    bytes.resize(bytes.len().next_multiple_of(4) + 4, 0);
    bytes
}

/// An RDMA Write.
fn write_frame(stag: u32, payload: &[u8]) -> Vec<u8> {
    let len = u16::try_from(14 + payload.len()).unwrap();
    let mut bytes = len.to_be_bytes().to_vec();
    bytes.extend([0xc1, 0x40]);
    bytes.extend(stag.to_be_bytes());
    bytes.extend(0x1000_u64.to_be_bytes());
    bytes.extend(payload);
    bytes.resize(bytes.len().next_multiple_of(4) + 4, 0);
    bytes
}

#[test]
fn invalid_capsules_are_refused() {
    let setup = Setup::new().file(MIB);
    let mut target = setup.start();

    // Shorter than a command.
    let mut peer = Peer::queue(target.address(), 0);
    peer.capsule(&[0x7f; 63]);
    peer.receive_all();
    assert_logged(&target, &peer, &["63"]);

    // Commands before Connect.
    let mut peer = Peer::queue(target.address(), 0);
    let mut identify = Sqe::new(Opcode(6));
    identify.dptr = keyed(4096);
    let response = ask(&mut peer, &identify, &[]);
    assert!(!response.status().is_success(), "{response:?}");

    let (mut admin, cntlid) = admin(&target);
    for opcode in 0..=255 {
        // Asynchronous Event Request is held; Fabrics has more forms below.
        if opcode == 0x0c || opcode == 0x7f {
            continue;
        }
        let mut sqe = Sqe::new(Opcode(opcode));
        sqe.nsid = 0x55.into();
        sqe.cdw10 = 0xffff_ffff.into();
        // No data pointer, or one of another transport.
        sqe.dptr.identifier = 0xe0;
        sqe.cid = u16::from(opcode).into();
        let response = ask(&mut admin, &sqe, &[]);
        assert_eq!(response.cid.get(), u16::from(opcode));
        // Keep Alive has no data, and an Abort that aborts nothing succeeds.
        if opcode != 0x18 && opcode != 0x08 {
            assert!(!response.status().is_success(), "{opcode:#x}: {response:?}");
        }
    }

    let mut queue = Peer::connected(target.address(), 1, cntlid).0;
    let status = |queue: &mut Peer, sqe: &Sqe| ask(queue, sqe, &[]).status().kind();
    let mut read = Sqe::new(io::READ);
    read.dptr = keyed(512);
    read.nsid = 9.into();
    assert_eq!(status(&mut queue, &read), Status::INVALID_FIELD);
    read.nsid = 1025.into();
    assert_eq!(status(&mut queue, &read), Status::INVALID_NAMESPACE);
    read.nsid = 1.into();
    read.cdw10 = 2048.into();
    assert_eq!(status(&mut queue, &read), Status::LBA_OUT_OF_RANGE);
    read.cdw10 = u32::MAX.into();
    read.cdw11 = u32::MAX.into();
    assert_eq!(status(&mut queue, &read), Status::LBA_OUT_OF_RANGE);
    read.cdw10 = 0.into();
    read.cdw11 = 0.into();
    // More blocks than the descriptor or one command allows.
    read.cdw12 = 7.into();
    assert!(!status(&mut queue, &read).is_success());
    read.cdw12 = 0xffff.into();
    read.dptr = keyed(0xff_ffff);
    assert!(!status(&mut queue, &read).is_success());
    // In-capsule data that is not in the capsule.
    let mut write = Sqe::new(io::WRITE);
    write.nsid = 1.into();
    for (offset, len) in [(0, 512), (u64::MAX, 512), (64, 448), (1 << 40, 512)] {
        write.dptr = Sgl::InCapsule { offset, len }.to_descriptor();
        assert!(!status(&mut queue, &write).is_success(), "{offset} {len}");
    }
    // The queue still accepts commands.
    write.dptr = Sgl::InCapsule {
        offset: 0,
        len: 512,
    }
    .to_descriptor();
    assert!(ask(&mut queue, &write, &[0x5a; 512]).status().is_success());
    assert_eq!(target.read(1, 0, Some(1)), [0x5a; 512]);
    target.assert_healthy();
    target.stop();
}

fn keyed(len: u32) -> nvmeof_wire::SglDescriptor {
    Sgl::keyed(0x1000, len, 7).to_descriptor()
}

#[test]
fn host_that_ignores_rdma_reads_is_disconnected() {
    let setup = Setup::new().file(MIB);
    let mut target = setup.start();
    let (_admin, cntlid) = admin(&target);
    let mut queue = Peer::connected(target.address(), 1, cntlid).0;
    let mut write = Sqe::new(io::WRITE);
    write.nsid = 1.into();
    write.dptr = keyed(512);
    queue.capsule(&write.to_bytes());
    // The response to an RDMA Read Request has a wrong key.
    let read = queue.receive(2);
    assert!(u16::from_be_bytes([read[0], read[1]]) >= 46);
    let mut response = write_frame(0x1234_5678, &[0xee; 512]);
    response[3] = 0x42;
    queue.say(&response);
    queue.receive_all();
    assert_logged(&target, &queue, &[]);
    target.assert_healthy();
    same_bytes(&target.read(1, 0, None), &nvmeof_e2e::pattern(1, MIB));
}

#[test]
fn thousands_of_unconnected_peers_use_bounded_memory() {
    let setup = Setup::new().file(4 * MIB);
    let mut target = setup.start();
    let strangers = |count: usize| {
        for number in 0..count {
            let Ok(mut peer) = Peer::try_connect(target.address()) else {
                continue;
            };
            match number % 4 {
                0 => peer.say(&nvmeof_e2e::pattern(7, number % 300)),
                1 => peer.say(&request(&[0; 512 - 4])[..number % 500]),
                2 => peer.say(&request(Request::new(0, 32).as_bytes())),
                _ => {}
            }
        }
    };
    let settled = |most: usize| {
        eventually(|| (fds(target.pid()) <= most).then_some(()))
            .unwrap_or_else(|| panic!("{} of {most} fds\n", fds(target.pid())));
    };
    let before = fds(target.pid());
    strangers(500);
    settled(before);
    let memory = rss_kib(target.pid());
    strangers(3000);
    settled(before);
    let grown = rss_kib(target.pid()).saturating_sub(memory);
    assert!(grown < 4 << 10, "memory grew by {grown} KiB");
    // Other hosts are served meanwhile.
    let clients = [(); 2].map(|()| target.on(1, "read").args("--data -").start());
    strangers(1000);
    for client in clients {
        let ended = client.end();
        assert_eq!(ended.status, Some(0), "{ended}");
        same_bytes(&ended.stdout, &nvmeof_e2e::pattern(1, 4 * MIB));
    }
    settled(before);
    target.assert_healthy();
    target.stop();
}

#[test]
fn silent_connections_do_not_block_others() {
    let setup = Setup::new().file(MIB);
    let mut target = setup.start();
    let before = fds(target.pid());
    // More than may be pending: the oldest are closed.
    let silent: Vec<_> = (0..200).map(|_| Peer::connect(target.address())).collect();
    same_bytes(&target.read(1, 0, None), &nvmeof_e2e::pattern(1, MIB));
    assert!(fds(target.pid()) < before + 150, "{}", fds(target.pid()));
    drop(silent);
    let gone = eventually(|| (fds(target.pid()) <= before).then_some(()));
    assert!(gone.is_some(), "{} fds are left", fds(target.pid()));
    target.assert_healthy();
}
