//! Checks of every command: SQE, PSDT, SGL, flow control.

use nvmeof_wire::admin::{Cns, Identify};
use nvmeof_wire::nvm::Io;
use nvmeof_wire::opcode::{Opcode, io};
use nvmeof_wire::{Sgl, Sqe, Status};

use crate::CloseCause;
use crate::testing::{Completion, Host, Outcome, keyed, target};

fn io_of(opcode: Opcode, blocks: u32) -> Sqe {
    Io::new(1, 0, blocks).to_sqe(opcode)
}

fn run(host: &mut Host, sqe: Sqe, in_capsule: &[u8]) -> Completion {
    match host.run(sqe, &[], in_capsule) {
        Outcome::Answered(completion) => completion,
        other => panic!("{other:?}"),
    }
}

#[test]
fn less_than_a_command_closes_the_connection() {
    let (_admin, mut host) = Host::ready(&target());
    let mut request = crate::Request::default();
    let action = host.queue.begin(host.now, &[0; 63], &mut request);
    let crate::Action::Close(CloseCause::BadCapsule { len: 63, .. }) = action else {
        panic!("{action:?}");
    };
    assert!(host.close_cause().is_some());
}

#[test]
fn half_of_a_fused_read_and_prps_are_refused() {
    let (_admin, mut host) = Host::ready(&target());
    let rows = [
        (0x41, Status::INVALID_FIELD),
        (0x42, Status::ABORTED_FAILED_FUSED),
        (0x43, Status::INVALID_FIELD),
        (0x00, Status::INVALID_FIELD),
        (0xc0, Status::INVALID_FIELD),
    ];
    for (flags, status) in rows {
        let mut sqe = io_of(io::READ, 1);
        sqe.flags = flags;
        assert_eq!(host.read(sqe, 512).status(), status, "{flags:#x}");
    }
    let mut sqe = io_of(io::READ, 1);
    sqe.flags = 0x80;
    assert_eq!(host.read(sqe, 512).status(), Status::SUCCESS);
}

#[test]
fn wrong_data_length_is_refused() {
    let (mut admin, mut host) = Host::ready(&target());
    for len in [0, 511, 513, 1024] {
        let completion = host.read(io_of(io::READ, 1), len);
        assert_eq!(completion.status(), Status::DATA_SGL_LENGTH_INVALID);
        let completion = host.write(io_of(io::WRITE, 1), &vec![0; len]);
        assert_eq!(completion.status(), Status::DATA_SGL_LENGTH_INVALID);
        let identify = Identify::new(Cns::CONTROLLER, 0).to_sqe();
        let completion = admin.read(identify, len);
        assert_eq!(completion.status(), Status::DATA_SGL_LENGTH_INVALID);
    }
    let completion = run(&mut host, io_of(io::READ, 1), &[]);
    assert_eq!(completion.status(), Status::DATA_SGL_LENGTH_INVALID);
    assert!(host.ops.is_empty());
}

#[test]
fn descriptors_that_rdma_does_not_have_are_refused() {
    let (_admin, mut host) = Host::ready(&target());
    for identifier in [0x10, 0x20, 0x30, 0x41, 0x50, 0xf0] {
        for opcode in [io::READ, io::WRITE] {
            let mut sqe = io_of(opcode, 1);
            sqe.dptr = keyed(512).to_descriptor();
            sqe.dptr.identifier = identifier;
            let completion = run(&mut host, sqe, &[]);
            assert_eq!(
                completion.status(),
                Status::SGL_DESCRIPTOR_TYPE_INVALID,
                "{identifier:#x}"
            );
        }
    }
    let mut sqe = io_of(io::READ, 1);
    sqe.dptr = Sgl::InCapsule {
        offset: 0,
        len: 512,
    }
    .to_descriptor();
    let completion = run(&mut host, sqe, &[0; 512]);
    assert_eq!(completion.status(), Status::SGL_DESCRIPTOR_TYPE_INVALID);
}

#[test]
fn in_capsule_data_are_used_in_place() {
    let (_admin, mut host) = Host::ready(&target());
    let rows = [
        (0, 512, Status::SUCCESS),
        (0, 511, Status::DATA_SGL_LENGTH_INVALID),
        (512, 1024, Status::SUCCESS),
        (513, 1024, Status::DATA_SGL_LENGTH_INVALID),
        (1024, 1024, Status::DATA_SGL_LENGTH_INVALID),
        (1025, 1024, Status::SGL_OFFSET_INVALID),
        (u64::MAX, 1024, Status::SGL_OFFSET_INVALID),
    ];
    for (offset, room, status) in rows {
        let mut sqe = io_of(io::WRITE, 1);
        sqe.dptr = Sgl::InCapsule { offset, len: 512 }.to_descriptor();
        let completion = run(&mut host, sqe, &vec![0; room]);
        assert_eq!(completion.status(), status, "{offset} in {room}");
    }
    assert_eq!(host.ops.len(), 2);
}

#[test]
fn the_key_is_invalidated_whether_the_command_succeeds_or_not() {
    let (_admin, mut host) = Host::ready(&target());
    for (blocks, status) in [(1, Status::SUCCESS), (2, Status::DATA_SGL_LENGTH_INVALID)] {
        let mut sqe = io_of(io::READ, blocks);
        let (addr, len, key, invalidate) = (0, 512, 0x1234, true);
        let sgl = Sgl::Keyed {
            addr,
            len,
            key,
            invalidate,
        };
        sqe.dptr = sgl.to_descriptor();
        let completion = run(&mut host, sqe, &[]);
        assert_eq!(
            (completion.status(), completion.invalidate),
            (status, Some(0x1234))
        );
    }
    assert_eq!(host.read(io_of(io::READ, 1), 512).invalidate, None);
}

#[test]
fn sq_head_advances_with_each_completion_and_wraps() {
    let (mut admin, _) = Host::admin(&target());
    // Connect and Property Set were the first two.
    for expected in (3..32).chain(0..40) {
        let completion = admin.identify(Cns::CONTROLLER, 0);
        assert_eq!(completion.cqe.sqhd.get(), expected % 32);
    }
}
