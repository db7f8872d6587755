//! Faults for invalid segments of a peer.

use nvmeof_rdma::RemoteKey;

use crate::iwarp::{Opcode, ReadRequest, WireFault, codes};
use crate::keys::{Access, KeyFault};

#[cold]
pub(super) fn after_terminate() -> WireFault {
    WireFault::new(codes::MPA_FRAME, "a frame after a Terminate")
}

#[cold]
pub(super) fn no_memory() -> WireFault {
    WireFault::new(
        codes::DDP_CATASTROPHIC,
        "no memory for a payload that was accepted",
    )
}

#[cold]
pub(super) fn msn(msn: u32, expected: u32, what: &str) -> WireFault {
    WireFault::new(
        codes::DDP_MSN,
        format!("{what} message {msn} arrived, {expected} was next"),
    )
}

#[cold]
pub(super) fn other_opcode(first: Opcode, now: Opcode) -> WireFault {
    WireFault::new(
        codes::RDMAP_OPCODE,
        format!(
            "a message started with opcode {} and continued with {}",
            first.0, now.0
        ),
    )
}

#[cold]
pub(super) fn no_receive(msn: u32) -> WireFault {
    WireFault::new(
        codes::DDP_NO_BUFFER,
        format!("message {msn} arrived and no receive is posted"),
    )
}

#[cold]
pub(super) fn offset(offset: u32, next: usize) -> WireFault {
    WireFault::new(
        codes::DDP_MO,
        format!("a segment for offset {offset} arrived, {next} was next"),
    )
}

#[cold]
pub(super) fn too_long(len: usize, room: usize) -> WireFault {
    WireFault::new(
        codes::DDP_TOO_LONG,
        format!("a message of {len} bytes or more arrived for a receive of {room}"),
    )
}

#[cold]
pub(super) fn invalidate(key: RemoteKey, why: KeyFault) -> WireFault {
    WireFault::new(
        codes::RDMAP_INVALIDATE,
        format!("a Send invalidates {key:?}, which {}", describe(why)),
    )
}

#[cold]
pub(super) fn read_request(len: usize, offset: u32) -> WireFault {
    WireFault::new(
        codes::DDP_TOO_LONG,
        format!(
            "a Read Request of {len} bytes at offset {offset} arrived, it has {} at 0",
            ReadRequest::LEN
        ),
    )
}

#[cold]
pub(super) fn too_many_reads(agreed: usize) -> WireFault {
    WireFault::new(
        codes::DDP_NO_BUFFER,
        format!("an RDMA Read arrived while {agreed} were in flight, no more were agreed"),
    )
}

#[cold]
pub(super) fn terminate(len: usize, longest: usize) -> WireFault {
    WireFault::new(
        codes::DDP_TOO_LONG,
        format!("a Terminate of {len} bytes arrived, at most {longest} are possible"),
    )
}

fn describe(why: KeyFault) -> &'static str {
    match why {
        KeyFault::Unknown => "is not the key of any memory",
        KeyFault::Foreign => "belongs to another connection",
        KeyFault::Rights => "does not give that right",
        KeyFault::Bounds => "covers other bytes",
        KeyFault::Wrap => "cannot cover bytes beyond the last address",
        KeyFault::Busy => "is being read by this peer",
    }
}

fn access_text(why: KeyFault, access: &Access, what: &str) -> String {
    format!(
        "{what} of {} bytes at {:#x} names key {:#010x}, which {}",
        access.len,
        access.addr,
        access.key,
        describe(why)
    )
}

/// RFC 5041, section 7: DDP checks tags and bounds of what is placed; RFC
/// 5040, section 7: RDMAP checks the rights.
#[cold]
pub(super) fn tagged(why: KeyFault, access: &Access) -> WireFault {
    let code = match why {
        KeyFault::Unknown | KeyFault::Busy => codes::DDP_STAG,
        KeyFault::Foreign => codes::DDP_FOREIGN,
        KeyFault::Rights => codes::RDMAP_RIGHTS,
        KeyFault::Bounds => codes::DDP_BOUNDS,
        KeyFault::Wrap => codes::DDP_WRAP,
    };
    WireFault::new(code, access_text(why, access, "an RDMA Write"))
}

/// RFC 5040, section 7: the source of a Read is RDMAP's to check.
#[cold]
pub(super) fn source(why: KeyFault, access: &Access) -> WireFault {
    let code = match why {
        KeyFault::Unknown | KeyFault::Busy => codes::RDMAP_STAG,
        KeyFault::Foreign => codes::RDMAP_FOREIGN,
        KeyFault::Rights => codes::RDMAP_RIGHTS,
        KeyFault::Bounds => codes::RDMAP_BOUNDS,
        KeyFault::Wrap => codes::RDMAP_WRAP,
    };
    WireFault::new(code, access_text(why, access, "an RDMA Read"))
}
