//! Fused Compare and Write: which commands form a pair, and what happens
//! to others.

use nvmeof_wire::fabrics::PropertyAccess;
use nvmeof_wire::nvm::Io;
use nvmeof_wire::opcode::{Opcode, io};
use nvmeof_wire::registers::{Cc, Property};
use nvmeof_wire::sqe::PSDT_SGL;
use nvmeof_wire::{Sgl, Sqe, Status};

use crate::testing::{Host, keyed, target};
use crate::{Action, Event, Executed, IoKind, IoOp, Request};

const FIRST: u8 = 1;
const SECOND: u8 = 2;

/// Begins a command of `blocks` blocks, whose data are in its capsule.
fn begin(host: &mut Host, fuse: u8, opcode: Opcode, slba: u64, blocks: u32) -> (Request, Action) {
    let range = Io::new(1, slba, blocks);
    half(host, fuse, range.to_sqe(opcode), blocks * 512)
}

/// The same for a command with `len` bytes.
pub(super) fn half(host: &mut Host, fuse: u8, mut sqe: Sqe, len: u32) -> (Request, Action) {
    sqe.flags = PSDT_SGL | fuse;
    let bytes = usize::try_from(len).unwrap();
    sqe.dptr = match sqe.opcode {
        io::READ => keyed(bytes).to_descriptor(),
        _ => Sgl::InCapsule { offset: 0, len }.to_descriptor(),
    };
    let mut capsule = sqe.to_bytes().to_vec();
    capsule.resize(64 + bytes, 0xee);
    let mut request = Request::default();
    let action = host.queue.begin(host.now, &capsule, &mut request);
    (request, action)
}

fn status(action: Action) -> Status {
    match action {
        Action::Respond(response) => response.cqe.status().kind(),
        other => panic!("{other:?}"),
    }
}

pub(super) fn execute(host: &mut Host, request: &mut Request) -> IoOp {
    match host.queue.step(host.now, request, Event::Execute) {
        Action::Execute(op) => op,
        other => panic!("{other:?}"),
    }
}

pub(super) fn executed(host: &mut Host, request: &mut Request, outcome: Executed) -> Status {
    let event = Event::Executed { outcome, data: &[] };
    status(host.queue.step(host.now, request, event))
}

#[test]
fn fused_compare_and_write_execute_in_order() {
    let (_admin, mut host) = Host::ready(&target());
    let (mut first, action) = begin(&mut host, FIRST, io::COMPARE, 8, 8);
    assert!(matches!(action, Action::Fuse) && first.is_fusing() && !first.is_second_half());
    let (mut second, action) = begin(&mut host, SECOND, io::WRITE, 8, 8);
    assert!(matches!(action, Action::Fuse) && second.is_second_half());
    assert_eq!(host.queue.take_unfused(), None);
    assert_eq!(execute(&mut host, &mut first).kind, IoKind::Compare);
    assert_eq!(
        executed(&mut host, &mut first, Executed::Ok),
        Status::SUCCESS
    );
    assert_eq!(execute(&mut host, &mut second).kind, IoKind::Write);
    let its = |store| store == 10;
    assert!(second.may_write(its, &(8191..8192)) && !second.may_write(its, &(0..4096)));
    assert_eq!(
        executed(&mut host, &mut second, Executed::Ok),
        Status::SUCCESS
    );
}

#[test]
fn fused_miscompare_fails_both_halves() {
    let (_admin, mut host) = Host::ready(&target());
    let (mut first, _) = begin(&mut host, FIRST, io::COMPARE, 0, 1);
    let (mut second, _) = begin(&mut host, SECOND, io::WRITE, 0, 1);
    execute(&mut host, &mut first);
    let reported = executed(&mut host, &mut first, Executed::Miscompare);
    assert_eq!(reported, Status::COMPARE_FAILURE);
    let failed = host.queue.fail(&mut second, Status::ABORTED_FAILED_FUSED);
    assert_eq!(status(failed), Status::ABORTED_FAILED_FUSED);
    assert!(second.is_complete());
}

/// Base 2.1, 3.4.2.
#[test]
fn fused_half_without_a_partner_fails() {
    let (_admin, mut host) = Host::ready(&target());
    let (_, action) = begin(&mut host, SECOND, io::WRITE, 0, 1);
    assert_eq!(status(action), Status::ABORTED_MISSING_FUSED);
    assert_eq!(host.queue.take_unfused(), None);
    for next in [0, FIRST] {
        let _ = begin(&mut host, FIRST, io::COMPARE, 0, 1);
        let opcode = if next == 0 { io::READ } else { io::COMPARE };
        let (_, action) = begin(&mut host, next, opcode, 0, 1);
        assert!(matches!(action, Action::Execute(_) | Action::Fuse));
        let missing = Some(Status::ABORTED_MISSING_FUSED);
        assert_eq!(host.queue.take_unfused(), missing, "{next}");
    }
    // The last one still waits.
    let (_, action) = begin(&mut host, SECOND, io::WRITE, 0, 1);
    assert!(matches!(action, Action::Fuse));
}

#[test]
fn refused_first_half_fails_the_second() {
    let (_admin, mut host) = Host::ready(&target());
    let rows = [
        (io::COMPARE, 1000, 1, Status::LBA_OUT_OF_RANGE),
        (io::COMPARE, 0, 9, Status::ATOMIC_WRITE_UNIT_EXCEEDED),
        (io::WRITE, 0, 1, Status::INVALID_FIELD),
    ];
    for (opcode, slba, blocks, expected) in rows {
        let (_, action) = begin(&mut host, FIRST, opcode, slba, blocks);
        assert_eq!(status(action), expected);
        let (_, action) = begin(&mut host, SECOND, io::WRITE, 0, 1);
        assert_eq!(status(action), Status::ABORTED_FAILED_FUSED);
        assert_eq!(host.queue.take_unfused(), None);
    }
}

#[test]
fn refused_second_half_fails_the_first() {
    let (_admin, mut host) = Host::ready(&target());
    let rows = [
        (io::WRITE, 1, 1, Status::INVALID_FIELD),
        (io::WRITE, 0, 2, Status::INVALID_FIELD),
        (io::COMPARE, 0, 1, Status::INVALID_FIELD),
        (io::WRITE, 1000, 1, Status::LBA_OUT_OF_RANGE),
    ];
    for (opcode, slba, blocks, expected) in rows {
        let _ = begin(&mut host, FIRST, io::COMPARE, 0, 1);
        let (_, action) = begin(&mut host, SECOND, opcode, slba, blocks);
        assert_eq!(status(action), expected);
        let failed = Some(Status::ABORTED_FAILED_FUSED);
        assert_eq!(host.queue.take_unfused(), failed);
    }
}

#[test]
fn the_reserved_value_is_refused_and_breaks_a_pair() {
    let (_admin, mut host) = Host::ready(&target());
    let _ = begin(&mut host, FIRST, io::COMPARE, 0, 1);
    let (_, action) = begin(&mut host, 3, io::WRITE, 0, 1);
    assert_eq!(status(action), Status::INVALID_FIELD);
    let missing = Some(Status::ABORTED_MISSING_FUSED);
    assert_eq!(host.queue.take_unfused(), missing);
}

/// Base 2.1, 3.4.2: the halves "shall be inserted next to each other in the same
/// Submission Queue", and a Fabrics command has an entry there as any other.
#[test]
fn a_fabrics_command_breaks_a_pair() {
    let (_admin, mut host) = Host::ready(&target());
    let _ = begin(&mut host, FIRST, io::COMPARE, 0, 1);
    let between = host.plain(PropertyAccess::get(Property::CSTS, false));
    assert_eq!(between.status(), Status::INVALID_QUEUE_TYPE);
    let missing = Some(Status::ABORTED_MISSING_FUSED);
    assert_eq!(host.queue.take_unfused(), missing);
    let (_, action) = begin(&mut host, SECOND, io::WRITE, 0, 1);
    assert_eq!(status(action), Status::ABORTED_MISSING_FUSED);
    assert_eq!(host.queue.take_unfused(), None);
    // One with the fused bits is not a half.
    for fuse in [FIRST, SECOND] {
        let mut sqe = PropertyAccess::get(Property::CSTS, false);
        sqe.flags |= fuse;
        assert_eq!(host.plain(sqe).status(), Status::INVALID_FIELD);
        assert!(!host.queue.expects_second_half());
    }
}

/// A controller that is shut down processes no command, also no second half.
#[test]
fn a_second_half_after_a_shutdown_is_refused() {
    let (mut admin, mut host) = Host::ready(&target());
    let _ = begin(&mut host, FIRST, io::COMPARE, 0, 1);
    admin.set_cc(Cc::ENABLE.0 | 1 << 14);
    let (_, action) = begin(&mut host, SECOND, io::WRITE, 0, 1);
    assert_eq!(status(action), Status::COMMAND_SEQUENCE_ERROR);
    let failed = Some(Status::ABORTED_FAILED_FUSED);
    assert_eq!(host.queue.take_unfused(), failed);
}

/// After a reset, neither half of an earlier pair executes.
#[test]
fn fused_half_does_not_execute_after_reset() {
    for first_done in [false, true] {
        let (mut admin, mut host) = Host::ready(&target());
        let (mut first, _) = begin(&mut host, FIRST, io::COMPARE, 0, 1);
        let (mut second, _) = begin(&mut host, SECOND, io::WRITE, 0, 1);
        if first_done {
            execute(&mut host, &mut first);
            executed(&mut host, &mut first, Executed::Ok);
        }
        admin.set_cc(0);
        let half = if first_done { &mut second } else { &mut first };
        let action = host.queue.step(host.now, half, Event::Execute);
        assert!(matches!(action, Action::Close(_)), "{action:?}");
    }
}
