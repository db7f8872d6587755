//! The 16-byte completion queue entry (NVMe Base 2.0, 3.3.3.2).

use core::mem::offset_of;

use zerocopy::little_endian::{U16, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::status::Status;

/// Length of a completion queue entry in bytes.
pub const CQE_LEN: usize = 16;

/// A completion queue entry, which is the whole response capsule of the RDMA
/// transport.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct Cqe {
    /// Dwords 0 and 1: command specific.
    pub result: U64,
    /// Submission queue head pointer; FFFFh when SQ flow control is disabled
    /// (NVMe over Fabrics, "Disable SQ Flow Control").
    pub sqhd: U16,
    /// Reserved over fabrics: a connection has one submission queue.
    pub sqid: U16,
    /// Command identifier.
    pub cid: U16,
    /// Bit 0 is the phase tag, reserved over fabrics; the status above it.
    pub status: U16,
}

const _: () = {
    assert!(size_of::<Cqe>() == CQE_LEN);
    assert!(offset_of!(Cqe, sqhd) == 8);
    assert!(offset_of!(Cqe, cid) == 12);
    assert!(offset_of!(Cqe, status) == 14);
};

impl Cqe {
    /// A completion of command `cid`.
    #[must_use]
    pub fn new(cid: u16, sqhd: u16, status: Status, result: u64) -> Self {
        Self {
            result: U64::new(result),
            sqhd: U16::new(sqhd),
            sqid: U16::ZERO,
            cid: U16::new(cid),
            status: U16::new(status.to_field() << 1),
        }
    }

    /// The status of the command.
    #[must_use]
    pub fn status(&self) -> Status {
        Status::from_field(self.status.get() >> 1)
    }

    /// Dword 0 of the result.
    #[must_use]
    pub fn dw0(&self) -> u32 {
        let [a, b, c, d, ..] = self.result.get().to_le_bytes();
        u32::from_le_bytes([a, b, c, d])
    }

    /// The entry of a response capsule; `None` if it is shorter.
    #[must_use]
    pub fn from_capsule(capsule: &[u8]) -> Option<Self> {
        Self::read_from_prefix(capsule).ok().map(|(cqe, _rest)| cqe)
    }

    /// The bytes as on the wire.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; CQE_LEN] {
        zerocopy::transmute!(*self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden_failure() {
        let status = Status::INVALID_FIELD.with_dnr();
        let cqe = Cqe::new(7, 3, status, 0x1_0000_0002);
        let golden = [2, 0, 0, 0, 1, 0, 0, 0, 3, 0, 0, 0, 7, 0, 0x04, 0x80];
        assert_eq!(cqe.to_bytes(), golden);
        let back = Cqe::from_capsule(&golden).unwrap();
        assert_eq!((back, back.status(), back.dw0()), (cqe, status, 2));
        assert!(Cqe::from_capsule(&golden[..15]).is_none());
    }
}
