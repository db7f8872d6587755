//! The iWARP protocols without I/O: frames, headers, faults, and the receiving side.

pub(crate) mod crc;
mod ddp;
mod fault;
mod fpdu;
pub mod mpa;
mod rx;
mod terminate;

pub use ddp::{
    Header, Kind, Opcode, QUEUE_READ, QUEUE_SEND, QUEUE_TERMINATE, ReadRequest, TAGGED_LEN,
    UNTAGGED_LEN,
};
pub use fault::{WireFault, codes};
pub(crate) use fpdu::{CRC_LEN, crc_bytes};
pub use fpdu::{MAX_PAYLOAD, MPA_LEN, PayloadLimit, pad_len};
pub(crate) use rx::{LARGE, in_parts};
pub use rx::{Rx, Sink};
pub use terminate::Terminate;
