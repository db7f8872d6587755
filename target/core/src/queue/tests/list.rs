//! Lists of descriptors in the capsule.

use nvmeof_wire::nvm::Io;
use nvmeof_wire::opcode::{Opcode, io};
use nvmeof_wire::{Sgl, Status};
use zerocopy::IntoBytes;

use crate::testing::{Host, target, target_with};
use crate::{Action, Event, Executed, Remote, Request};

fn keyed(addr: u64, len: u32, invalidate: bool) -> Sgl {
    Sgl::Keyed {
        addr,
        len,
        key: 7,
        invalidate,
    }
}

/// A command of four blocks whose list is `skip` bytes after the command.
fn capsule(opcode: Opcode, skip: u64, len: u32, list: &[Sgl]) -> Vec<u8> {
    let range = Io::new(1, 0, 4);
    let mut sqe = range.to_sqe(opcode);
    sqe.dptr = Sgl::LastSegment { offset: skip, len }.to_descriptor();
    let mut capsule = sqe.to_bytes().to_vec();
    capsule.resize(64 + usize::try_from(skip).unwrap().min(64), 0xff);
    for one in list {
        capsule.extend_from_slice(one.to_descriptor().as_bytes());
    }
    capsule
}

fn begin(host: &mut Host, capsule: &[u8]) -> (Request, Action) {
    let mut request = Request::default();
    let action = host.queue.begin(host.now, capsule, &mut request);
    (request, action)
}

fn status(action: &Action) -> Status {
    match action {
        Action::Respond(response) => response.cqe.status().kind(),
        other => panic!("{other:?}"),
    }
}

fn places(pieces: &[Remote]) -> Vec<(u64, u32)> {
    pieces.iter().map(|one| (one.addr, one.len)).collect()
}

#[test]
fn write_pulls_all_descriptors() {
    let (_admin, mut host) = Host::ready(&target());
    let list = [
        keyed(100, 1000, false),
        keyed(9, 0, false),
        keyed(5000, 1048, false),
    ];
    let capsule = capsule(io::WRITE, 5, 48, &list);
    let (request, action) = begin(&mut host, &capsule);
    let Action::Pull { remote, spare: 0 } = action else {
        panic!("{action:?}");
    };
    assert_eq!(remote.len, 2048);
    let pieces = request.pieces(&capsule);
    assert_eq!(places(&pieces), [(100, 1000), (5000, 1048)]);
}

#[test]
fn read_pushes_all_descriptors_and_invalidates_one_key() {
    let (_admin, mut host) = Host::ready(&target());
    for invalidate in [false, true] {
        let list = [keyed(0, 2000, false), keyed(4096, 48, invalidate)];
        let capsule = capsule(io::READ, 0, 32, &list);
        let (mut request, action) = begin(&mut host, &capsule);
        assert!(matches!(action, Action::Execute(_)));
        let outcome = Executed::Ok;
        let event = Event::Executed { outcome, data: &[] };
        let Action::Respond(response) = host.queue.step(host.now, &mut request, event) else {
            panic!()
        };
        assert_eq!(response.push.map(|push| push.len), Some(2048));
        assert_eq!(response.invalidate, invalidate.then_some(7));
        assert_eq!(places(&request.pieces(&capsule)), [(0, 2000), (4096, 48)]);
    }
}

/// A command may transfer less than its list describes: Linux describes a page for
/// ranges.
#[test]
fn list_segments_are_limited_to_the_data() {
    let (_admin, mut host) = Host::ready(&target());
    let list = [keyed(0, 8, false), keyed(4096, 4096, false)];
    let mut bytes = capsule(io::DATASET_MANAGEMENT, 0, 32, &list);
    bytes[40..44].copy_from_slice(&[1, 0, 0, 0]);
    let (request, action) = begin(&mut host, &bytes);
    assert!(matches!(
        action,
        Action::Pull {
            remote: Remote { len: 32, .. },
            ..
        }
    ));
    assert_eq!(places(&request.pieces(&bytes)), [(0, 8), (4096, 24)]);
}

#[test]
fn each_sgl_list_error_has_its_status() {
    let (_admin, mut host) = Host::ready(&target());
    let whole = keyed(0, 2048, false);
    let many = [keyed(0, 120, false); 17];
    let inside = Sgl::InCapsule {
        offset: 0,
        len: 2048,
    };
    let segment = Sgl::LastSegment {
        offset: 16,
        len: 16,
    };
    let rows: [(&[Sgl], u64, u32, Status); 15] = [
        (&[whole], 0, 0, Status::INVALID_SGL_SEGMENT),
        (&[whole], 0, 15, Status::INVALID_SGL_SEGMENT),
        (&[whole], 0, 32, Status::INVALID_SGL_COUNT),
        (&[whole], 5, 32, Status::INVALID_SGL_COUNT),
        (&[], 16, 16, Status::SGL_OFFSET_INVALID),
        (&[whole], u64::MAX - 63, 16, Status::SGL_OFFSET_INVALID),
        (&[whole], u64::MAX, 16, Status::SGL_OFFSET_INVALID),
        (&many, 0, 17 * 16, Status::INVALID_SGL_COUNT),
        (&[inside], 0, 16, Status::SGL_DESCRIPTOR_TYPE_INVALID),
        (&[Sgl::None], 0, 16, Status::SGL_DESCRIPTOR_TYPE_INVALID),
        (&[segment], 0, 16, Status::INVALID_SGL_SEGMENT),
        (&[whole, segment], 0, 32, Status::INVALID_SGL_SEGMENT),
        (&[segment, whole], 0, 32, Status::INVALID_SGL_COUNT),
        (&[whole, whole], 0, 32, Status::DATA_SGL_LENGTH_INVALID),
        (&many[..2], 0, 32, Status::DATA_SGL_LENGTH_INVALID),
    ];
    for (list, skip, len, expected) in rows {
        for opcode in [io::WRITE, io::READ] {
            let capsule = capsule(opcode, skip, len, list);
            let (request, action) = begin(&mut host, &capsule);
            assert_eq!(status(&action), expected, "{list:?} {skip} {len}");
            assert!(request.pieces(&capsule).is_empty());
        }
    }
    let most = [keyed(0, 128, false); 16];
    let (_, action) = begin(&mut host, &capsule(io::READ, 0, 256, &most));
    assert!(matches!(action, Action::Execute(_)));
}

/// Identify Controller, IOCCSZ: 4 KiB behind the command.
#[test]
fn sgl_list_beyond_the_capsule_is_refused() {
    let (_admin, mut host) = Host::ready(&target());
    let two = [keyed(1, 1024, false), keyed(2, 1024, false)];
    let rows = [
        (4096 - 32, None),
        (4096 - 31, Some(Status::INVALID_SGL_COUNT)),
        (4096 - 16, Some(Status::INVALID_SGL_COUNT)),
        (4096, Some(Status::SGL_OFFSET_INVALID)),
    ];
    for (skip, expected) in rows {
        let mut message = capsule(io::READ, skip, 32, &[]);
        message.resize(64 + usize::try_from(skip).unwrap(), 0);
        for one in &two {
            message.extend_from_slice(one.to_descriptor().as_bytes());
        }
        let (_request, action) = begin(&mut host, &message);
        match expected {
            None => assert!(matches!(action, Action::Execute(_)), "{skip} {action:?}"),
            Some(expected) => assert_eq!(status(&action), expected, "{skip}"),
        }
    }
}

/// Identify Controller, MSDBD.
#[test]
fn sgl_list_is_limited_to_msdbd() {
    let limits = crate::Limits {
        max_descriptors: 2,
        ..crate::Limits::default()
    };
    let (_admin, mut host) = Host::ready(&target_with(limits));
    let all = [
        keyed(1, 1024, false),
        keyed(2, 512, false),
        keyed(3, 512, false),
    ];
    let (_request, action) = begin(&mut host, &capsule(io::WRITE, 0, 48, &all));
    assert_eq!(status(&action), Status::INVALID_SGL_COUNT);
    let two = [keyed(1, 1024, false), keyed(2, 1024, false)];
    let (_request, action) = begin(&mut host, &capsule(io::WRITE, 0, 32, &two));
    assert!(matches!(action, Action::Pull { .. }), "{action:?}");
}

/// Rare commands do not increase the size of a request.
#[test]
fn request_size_is_bounded() {
    assert!(size_of::<Request>() <= 152, "{}", size_of::<Request>());
    assert!(size_of::<Action>() <= 64, "{}", size_of::<Action>());
}
