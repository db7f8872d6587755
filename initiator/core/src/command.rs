//! Commands without identifier and memory, and responses.

use nvmeof_wire::opcode::{Direction, Opcode, io};
use nvmeof_wire::sqe::SQE_LEN;
use nvmeof_wire::{Cqe, Sgl, Sqe, Status};
use zerocopy::little_endian::U16;

use crate::slots::Cid;

/// A command without its identifier and the location of its payload.
#[derive(Clone, Debug)]
pub struct Command {
    sqe: Sqe,
    name: &'static str,
    direction: Direction,
    len: u32,
    place: Option<BlockRange>,
}

/// I/O commands that change nothing.
const UNCHANGING: [Opcode; 5] = [
    io::FLUSH,
    io::READ,
    io::COMPARE,
    io::VERIFY,
    io::RESERVATION_REPORT,
];

/// A run of blocks, for messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct BlockRange {
    /// Namespace.
    pub nsid: u32,
    /// First block.
    pub slba: u64,
    /// Number of blocks.
    pub count: u64,
}

/// Where the payload of a command is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Payload {
    /// Nowhere: the command has none.
    None,
    /// In our memory, which the controller reads or writes by RDMA.
    Keyed {
        /// Address of the first byte.
        addr: u64,
        /// Length in bytes, below 2^24.
        len: u32,
        /// Remote key.
        key: u32,
        /// Whether the controller is to invalidate the key with its response.
        invalidate: bool,
    },
    /// In the capsule, right after the command.
    InCapsule {
        /// Length in bytes.
        len: u32,
    },
}

/// A response, checked as far as possible without the command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Response {
    /// The command that completed.
    pub cid: Cid,
    /// Submission queue head.
    pub sqhd: u16,
    /// Status and result.
    pub completion: CommandCompletion,
}

/// Status and result of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CommandCompletion {
    /// How the command ended.
    pub status: Status,
    /// Command specific dwords 0 and 1.
    pub result: u64,
}

/// A response capsule of the wrong length.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a response capsule has {len} bytes, 16 were expected")]
pub struct BadResponse {
    /// Bytes received.
    pub len: usize,
}

impl Command {
    /// A command called `name` that moves `len` bytes of payload.
    pub(crate) fn new(sqe: Sqe, name: &'static str, direction: Direction, len: u32) -> Self {
        Self {
            sqe,
            name,
            direction,
            len,
            place: None,
        }
    }

    /// The same, about a run of blocks.
    pub(crate) fn at(mut self, place: BlockRange) -> Self {
        self.place = Some(place);
        self
    }

    /// The specification's name of the command.
    #[must_use]
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Which way the payload goes.
    #[must_use]
    pub fn direction(&self) -> Direction {
        self.direction
    }

    /// Bytes of payload.
    #[must_use]
    pub fn len(&self) -> u32 {
        self.len
    }

    /// Whether there is no payload.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether it may change data or reservations of a namespace: an I/O command that is neither
    /// Flush nor one that only reads. Not for admin commands.
    #[must_use]
    pub fn changes_data(&self) -> bool {
        !UNCHANGING.contains(&self.sqe.opcode)
    }

    /// The blocks it is about, if any.
    #[must_use]
    pub fn place(&self) -> Option<BlockRange> {
        self.place
    }

    /// The submission queue entry, without identifier and payload.
    #[must_use]
    pub fn sqe(&self) -> Sqe {
        self.sqe
    }

    /// The submission queue entry to send, with identifier and payload.
    #[must_use]
    pub fn capsule(&self, cid: Cid, payload: Payload) -> [u8; SQE_LEN] {
        payload.capsule(self.sqe, cid)
    }
}

impl Payload {
    /// A submission queue entry to send, with identifier and payload.
    #[inline]
    #[must_use]
    pub fn capsule(self, mut sqe: Sqe, cid: Cid) -> [u8; SQE_LEN] {
        sqe.cid = U16::new(cid.0);
        sqe.dptr = self.sgl().to_descriptor();
        sqe.to_bytes()
    }

    #[inline]
    fn sgl(self) -> Sgl {
        match self {
            // Linux sends a keyed descriptor of length 0, SPDK an unkeyed one; every
            // RDMA target supports the keyed one.
            Self::None => Sgl::keyed(0, 0, 0),
            Self::Keyed {
                addr,
                len,
                key,
                invalidate,
            } => Sgl::Keyed {
                addr,
                len,
                key,
                invalidate,
            },
            // The in-capsule data offset (ICDOFF) is checked to be 0.
            Self::InCapsule { len } => Sgl::InCapsule { offset: 0, len },
        }
    }
}

impl Response {
    /// Reads a response capsule.
    ///
    /// # Errors
    /// [`BadResponse`] when it is not 16 bytes long.
    pub fn parse(capsule: &[u8]) -> Result<Self, BadResponse> {
        let len = capsule.len();
        let cqe = Cqe::from_capsule(capsule)
            .filter(|_| len == size_of::<Cqe>())
            .ok_or(BadResponse { len })?;
        Ok(Self {
            cid: Cid(cqe.cid.get()),
            sqhd: cqe.sqhd.get(),
            completion: CommandCompletion {
                status: cqe.status(),
                result: cqe.result.get(),
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capsule_has_identifier_and_key() {
        let command = Command::new(Sqe::new(io::READ), "Read", Direction::ToHost, 512);
        let payload = Payload::Keyed {
            addr: 0x1000,
            len: 512,
            key: 7,
            invalidate: true,
        };
        let sqe = Sqe::from_capsule(&command.capsule(Cid(0x1234), payload)).unwrap();
        assert_eq!(sqe.cid.get(), 0x1234);
        assert!(sqe.uses_sgl());
        let expected = Sgl::Keyed {
            addr: 0x1000,
            len: 512,
            key: 7,
            invalidate: true,
        };
        assert_eq!(Sgl::parse(&sqe.dptr), Ok(expected));
    }

    #[test]
    fn only_sixteen_bytes_are_a_response() {
        let cqe = Cqe::new(3, 4, Status::LBA_OUT_OF_RANGE, 5);
        let response = Response::parse(&cqe.to_bytes()).unwrap();
        assert_eq!((response.cid, response.sqhd), (Cid(3), 4));
        let completion = CommandCompletion {
            status: Status::LBA_OUT_OF_RANGE,
            result: 5,
        };
        assert_eq!(response.completion, completion);
        for len in [0, 15, 17] {
            assert_eq!(Response::parse(&vec![0; len]), Err(BadResponse { len }));
        }
    }
}
