//! Private data of RDMA connect requests, accepts and rejects (NVMe RDMA
//! transport 1.0, 3.1, figures 5 to 7).

use core::fmt;
use core::mem::offset_of;

use zerocopy::little_endian::U16;
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Record format 0, the only one defined.
pub const RECFMT: u16 = 0;

/// Private data of a connection request of a host: 32 bytes.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct Request {
    /// Record format: 0.
    pub recfmt: U16,
    /// Queue identifier: 0 for the admin queue.
    pub qid: U16,
    /// Host receive queue size: entries of the host's receive queue.
    pub hrqsize: U16,
    /// Host send queue size: entries of its send queue, zero-based.
    pub hsqsize: U16,
    /// Controller identifier, for I/O queues (later revisions of the
    /// transport).
    pub cntlid: U16,
    /// Reserved.
    pub reserved: [u8; 22],
}

/// Private data of an accept: 32 bytes.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct Accept {
    /// Record format: 0.
    pub recfmt: U16,
    /// Controller receive queue size.
    pub crqsize: U16,
    /// Reserved.
    pub reserved: [u8; 28],
}

/// Private data of a reject: 4 bytes.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct Reject {
    /// Record format: 0.
    pub recfmt: U16,
    /// The reason.
    pub status: RejectStatus,
}

const _: () = {
    assert!(size_of::<Request>() == 32);
    assert!(offset_of!(Request, hrqsize) == 4);
    assert!(offset_of!(Request, hsqsize) == 6);
    assert!(offset_of!(Request, cntlid) == 8);
    assert!(size_of::<Accept>() == 32);
    assert!(offset_of!(Accept, crqsize) == 2);
    assert!(size_of::<Reject>() == 4);
};

/// The reason for a reject.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(transparent)]
pub struct RejectStatus(U16);

impl RejectStatus {
    /// The private data has the wrong length.
    pub const INVALID_LENGTH: Self = Self(U16::new(1));
    /// The record format is unknown.
    pub const INVALID_RECFMT: Self = Self(U16::new(2));
    /// The queue identifier is invalid.
    pub const INVALID_QID: Self = Self(U16::new(3));
    /// The host send queue size is invalid.
    pub const INVALID_HSQSIZE: Self = Self(U16::new(4));
    /// The host receive queue size is invalid.
    pub const INVALID_HRQSIZE: Self = Self(U16::new(5));
    /// The controller lacks resources.
    pub const NO_RESOURCES: Self = Self(U16::new(6));
    /// IRD is invalid.
    pub const INVALID_IRD: Self = Self(U16::new(7));
    /// ORD is invalid.
    pub const INVALID_ORD: Self = Self(U16::new(8));
    /// The controller identifier is invalid.
    pub const INVALID_CNTLID: Self = Self(U16::new(9));

    /// The number.
    #[must_use]
    pub fn get(self) -> u16 {
        self.0.get()
    }
}

impl fmt::Display for RejectStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words = match *self {
            Self::INVALID_LENGTH => "invalid private data length",
            Self::INVALID_RECFMT => "unknown record format of the private data",
            Self::INVALID_QID => "invalid queue identifier",
            Self::INVALID_HSQSIZE => "invalid host send queue size",
            Self::INVALID_HRQSIZE => "invalid host receive queue size",
            Self::NO_RESOURCES => "no resources for another queue",
            Self::INVALID_IRD => "invalid number of incoming reads (IRD)",
            Self::INVALID_ORD => "invalid number of outgoing reads (ORD)",
            Self::INVALID_CNTLID => "invalid controller identifier",
            _ => return write!(f, "unknown reject status {}", self.get()),
        };
        f.write_str(words)
    }
}

impl Request {
    /// A connection request for queue `qid` with `entries` entries. HSQSIZE is 0's based
    /// and HRQSIZE is not.
    #[must_use]
    pub fn new(qid: u16, entries: u16) -> Self {
        Self {
            recfmt: U16::new(RECFMT),
            qid: U16::new(qid),
            hrqsize: U16::new(entries),
            hsqsize: U16::new(entries.saturating_sub(1)),
            ..Self::new_zeroed()
        }
    }

    /// Parses private data, which some providers deliver padded.
    ///
    /// # Errors
    /// The status to reject with if it is too short or has another format.
    pub fn parse(private_data: &[u8]) -> Result<Self, RejectStatus> {
        let (request, _padding) =
            Self::read_from_prefix(private_data).map_err(|_| RejectStatus::INVALID_LENGTH)?;
        if request.recfmt.get() != RECFMT {
            return Err(RejectStatus::INVALID_RECFMT);
        }
        Ok(request)
    }
}

impl Accept {
    /// The accept of a controller that has posted `entries` receives.
    #[must_use]
    pub fn new(entries: u16) -> Self {
        Self {
            crqsize: U16::new(entries),
            ..Self::new_zeroed()
        }
    }

    /// Parses private data, padded or not; `None` if it is too short for its fields or
    /// has another format.
    #[must_use]
    pub fn parse(private_data: &[u8]) -> Option<Self> {
        let (head, _rest) = <[U16; 2]>::read_from_prefix(private_data).ok()?;
        let [recfmt, crqsize] = head;
        (recfmt.get() == RECFMT).then(|| Self::new(crqsize.get()))
    }
}

impl Reject {
    /// A reject for the reason `status`.
    #[must_use]
    pub fn new(status: RejectStatus) -> Self {
        Self {
            recfmt: U16::new(RECFMT),
            status,
        }
    }

    /// Parses private data, padded or not; `None` if it is too short or has another
    /// format.
    #[must_use]
    pub fn parse(private_data: &[u8]) -> Option<Self> {
        let (reject, _padding) = Self::read_from_prefix(private_data).ok()?;
        (reject.recfmt.get() == RECFMT).then_some(reject)
    }
}

#[cfg(test)]
mod tests {
    use std::string::ToString;
    use std::vec::Vec;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn golden_request_of_linux() {
        let mut golden = [0; 32];
        golden[4..8].copy_from_slice(&[0x20, 0x00, 0x1f, 0x00]);
        assert_eq!(Request::new(0, 32).as_bytes(), golden);
        assert_eq!(Request::parse(&golden), Ok(Request::new(0, 32)));
    }

    #[test]
    fn padded_private_data_are_accepted_and_short_are_not() {
        let mut padded = [0; 56];
        assert!(Request::parse(&padded).is_ok());
        assert_eq!(
            Request::parse(&padded[..31]),
            Err(RejectStatus::INVALID_LENGTH)
        );
        padded[0] = 1;
        assert_eq!(Request::parse(&padded), Err(RejectStatus::INVALID_RECFMT));
        assert_eq!(Accept::parse(&[0, 0, 128, 0]).unwrap().crqsize.get(), 128);
        assert!(Accept::parse(&[0, 0, 128]).is_none());
        assert!(Reject::parse(&[1, 0, 1, 0]).is_none());
    }

    #[test]
    fn reject_statuses_have_names() {
        let reject = Reject::parse(&[0, 0, 4, 0]).unwrap();
        assert_eq!(reject, Reject::new(RejectStatus::INVALID_HSQSIZE));
        assert_eq!(reject.status.to_string(), "invalid host send queue size");
        assert_eq!(
            RejectStatus(U16::new(99)).to_string(),
            "unknown reject status 99"
        );
    }

    proptest! {
        #[test]
        fn any_bytes_parse_or_are_rejected(bytes: Vec<u8>) {
            if let Ok(request) = Request::parse(&bytes) {
                prop_assert_eq!(Request::parse(request.as_bytes()), Ok(request));
            }
            if let Some(accept) = Accept::parse(&bytes) {
                prop_assert_eq!(Accept::parse(accept.as_bytes()), Some(accept));
            }
            if let Some(reject) = Reject::parse(&bytes) {
                prop_assert_eq!(Reject::parse(reject.as_bytes()), Some(reject));
            }
        }
    }
}
