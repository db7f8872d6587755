//! Records in a ring: a header of 32 bytes, then payload; the next record starts at the next
//! multiple of 64 bytes.

use nvmeof_rdma::Fault;

use crate::fault::{codes, fault};

/// Bytes from the start of a record to its payload.
pub(crate) const HEADER: usize = 32;
/// Records start at multiples of this, a cache line.
pub(crate) const GRAIN: usize = 64;
/// Maximum payload of one record. Long transfers take several records, so that one side fills
/// the ring while the other empties it.
pub(crate) const SEGMENT: usize = 16 << 10;

/// A length of a record as a length of memory.
pub(crate) fn count(len: u32) -> usize {
    usize::try_from(len).unwrap_or(usize::MAX)
}

/// Kind of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A piece of a message.
    Send,
    /// A piece of a write.
    Write,
    /// A request to read.
    Read,
    /// A piece of the response to the oldest read.
    Response,
    /// A [`Grant`](crate::grant::Grant) and nothing else.
    Grant,
}

impl Kind {
    fn number(self) -> u64 {
        match self {
            Self::Send => 1,
            Self::Write => 2,
            Self::Read => 3,
            Self::Response => 4,
            Self::Grant => 5,
        }
    }

    fn parse(number: u64) -> Option<Self> {
        Some(match number {
            1 => Self::Send,
            2 => Self::Write,
            3 => Self::Read,
            4 => Self::Response,
            5 => Self::Grant,
            _ => return None,
        })
    }
}

/// The header of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Record {
    pub(crate) kind: Kind,
    /// Flags as in the first word: [`LAST`] and the following constants.
    pub(crate) flags: u32,
    /// Bytes of payload in this record.
    pub(crate) len: u32,
    /// The key of the memory that is written or read.
    pub(crate) key: u32,
    /// Bytes from `addr` on that are written or read by this record and its continuations;
    /// for a response the remaining bytes.
    pub(crate) rest: u32,
    /// Address of the memory that is written or read.
    pub(crate) addr: u64,
}

/// Last piece of its message.
pub(crate) const LAST: u32 = 1 << 8;
/// The sender requests a solicited event.
pub(crate) const SOLICITED: u32 = 1 << 9;
/// The message invalidates `key`.
pub(crate) const INVALIDATES: u32 = 1 << 10;
/// For a message: `key`, `rest` and `addr` are a grant.
pub(crate) const GRANTS: u32 = 1 << 11;
const FLAGS: u32 = LAST | SOLICITED | INVALIDATES | GRANTS;

impl Record {
    /// A record without payload or flags.
    pub(crate) fn new(kind: Kind) -> Self {
        Self {
            kind,
            flags: 0,
            len: 0,
            key: 0,
            rest: 0,
            addr: 0,
        }
    }

    /// Whether `flag` is among its flags.
    pub(crate) fn has(&self, flag: u32) -> bool {
        self.flags & flag != 0
    }

    /// As words: kind, flags and length; key and rest; address.
    pub(crate) fn to_words(self) -> [u64; 3] {
        [
            self.kind.number() | u64::from(self.flags) | u64::from(self.len) << 32,
            u64::from(self.key) | u64::from(self.rest) << 32,
            self.addr,
        ]
    }

    /// Parses words of a peer. `None` if they are invalid.
    #[inline]
    pub(crate) fn parse([first, second, addr]: [u64; 3]) -> Option<Self> {
        let (low, len) = halves(first);
        let (key, rest) = halves(second);
        let kind = Kind::parse(u64::from(low) & 0xff)?;
        (low & !(0xff | FLAGS) == 0).then_some(Self {
            kind,
            flags: low & FLAGS,
            len,
            key,
            rest,
            addr,
        })
    }
}

/// The fault for invalid words of a peer.
#[cold]
pub(crate) fn wrong(words: [u64; 3]) -> Fault {
    let text = match Record::parse(words) {
        Some(Record { len, .. }) => format!("a record of {len} bytes is incomplete"),
        None => {
            let (low, _) = halves(words[0]);
            format!("a record starts with {low:#010x}, which is not a valid header")
        }
    };
    fault(codes::RECORD, text)
}

/// The low and the high half of a word.
fn halves(word: u64) -> (u32, u32) {
    let [a, b, c, d, e, f, g, h] = word.to_le_bytes();
    (
        u32::from_le_bytes([a, b, c, d]),
        u32::from_le_bytes([e, f, g, h]),
    )
}

/// Bytes of ring that a record with `len` bytes of payload takes.
pub(crate) fn size(len: usize) -> usize {
    len.saturating_add(HEADER + GRAIN - 1) & !(GRAIN - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn record_round_trips() {
        for number in 0..64u32 {
            let record = Record {
                kind: Kind::parse(u64::from(number % 5) + 1).unwrap(),
                flags: number << 8 & FLAGS,
                len: number.wrapping_mul(0x0123_4567),
                key: !number,
                rest: number << 20,
                addr: u64::MAX - u64::from(number),
            };
            assert_eq!(Record::parse(record.to_words()), Some(record));
        }
    }

    #[test]
    fn unknown_kind_or_flag_is_a_fault() {
        for first in [0, 6, 0xff, 1 | 1 << 12, 1 | 1 << 31] {
            assert_eq!(Record::parse([first, 0, 0]), None);
            let fault = wrong([first, 0, 0]);
            assert_eq!(fault.code, codes::RECORD);
            assert!(fault.text.contains("not a valid header"), "{fault}");
        }
    }

    #[test]
    fn records_take_whole_cache_lines() {
        for (len, bytes) in [(0, 64), (32, 64), (33, 128), (4096, 4160)] {
            assert_eq!(size(len), bytes);
        }
    }
}
