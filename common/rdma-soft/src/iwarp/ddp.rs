//! DDP and RDMAP headers (RFC 5041, section 4; RFC 5040, section 4).

use super::MPA_LEN;
use super::fault::{WireFault, codes};

/// Bytes of a tagged header, without the MPA length before it.
pub const TAGGED_LEN: usize = 14;
/// Bytes of an untagged header, without the MPA length before it.
pub const UNTAGGED_LEN: usize = 18;
/// Queue of Send messages.
pub const QUEUE_SEND: u32 = 0;
/// Queue of RDMA Read Requests.
pub const QUEUE_READ: u32 = 1;
/// Queue of Terminate.
pub const QUEUE_TERMINATE: u32 = 2;

const TAGGED: u16 = 0x8000;
const LAST: u16 = 0x4000;
const VERSIONS_MASK: u16 = 0x03c0;
const DDP_VERSION_MASK: u16 = 0x0300;
/// DDP version 1 and RDMAP version 1.
const VERSIONS: u16 = 0x0140;
const DDP_VERSION: u16 = 0x0100;

/// RDMAP operation (RFC 5040, section 4.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Opcode(pub u8);

impl Opcode {
    /// RDMA Write.
    pub const WRITE: Self = Self(0);
    /// RDMA Read Request.
    pub const READ_REQUEST: Self = Self(1);
    /// RDMA Read Response.
    pub const READ_RESPONSE: Self = Self(2);
    /// Send.
    pub const SEND: Self = Self(3);
    /// Send with Invalidate.
    pub const SEND_INVALIDATE: Self = Self(4);
    /// Send with Solicited Event.
    pub const SEND_SOLICITED: Self = Self(5);
    /// Send with Solicited Event and Invalidate.
    pub const SEND_SOLICITED_INVALIDATE: Self = Self(6);
    /// Terminate.
    pub const TERMINATE: Self = Self(7);

    /// The Send with these extras.
    #[must_use]
    pub fn send(solicited: bool, invalidate: bool) -> Self {
        match (solicited, invalidate) {
            (false, false) => Self::SEND,
            (false, true) => Self::SEND_INVALIDATE,
            (true, false) => Self::SEND_SOLICITED,
            (true, true) => Self::SEND_SOLICITED_INVALIDATE,
        }
    }

    /// Whether it is a Send with Solicited Event.
    #[must_use]
    pub fn solicited(self) -> bool {
        matches!(self, Self::SEND_SOLICITED | Self::SEND_SOLICITED_INVALIDATE)
    }

    /// Whether it is a Send with Invalidate.
    #[must_use]
    pub fn invalidates(self) -> bool {
        matches!(
            self,
            Self::SEND_INVALIDATE | Self::SEND_SOLICITED_INVALIDATE
        )
    }

    /// Whether the operation may have this kind of header and this queue (RFC 5040, section
    /// 4.1, figure 4).
    #[inline]
    fn suits(self, kind: &Kind) -> bool {
        match kind {
            Kind::Tagged { .. } => matches!(self, Self::WRITE | Self::READ_RESPONSE),
            Kind::Untagged { queue, .. } => self.queue() == Some(*queue),
        }
    }

    /// Its queue; `None` for tagged and unknown operations.
    #[inline]
    fn queue(self) -> Option<u32> {
        match self.0 {
            3..=6 => Some(QUEUE_SEND),
            1 => Some(QUEUE_READ),
            7 => Some(QUEUE_TERMINATE),
            _ => None,
        }
    }
}

/// The header of one DDP segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Operation.
    pub opcode: Opcode,
    /// Whether it is the last segment of its message.
    pub last: bool,
    /// Bytes of payload.
    pub payload: usize,
    /// The part that depends on the kind of header.
    pub kind: Kind,
}

/// Fields of tagged and untagged headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Tagged: to the memory named in the header.
    Tagged {
        /// Steering tag.
        stag: u32,
        /// Tagged offset: the address.
        to: u64,
    },
    /// Untagged: to the next buffer of a queue.
    Untagged {
        /// The steering tag to invalidate, if the opcode is one with Invalidate.
        invalidate: u32,
        /// Queue number.
        queue: u32,
        /// Message sequence number, from 1.
        msn: u32,
        /// Offset in the message.
        offset: u32,
    },
}

impl Header {
    /// Maximum length of MPA length and header.
    pub const MAX_LEN: usize = MPA_LEN + UNTAGGED_LEN;

    /// Length of the MPA length and header together, from the first 4 bytes.
    ///
    /// # Errors
    /// When the MPA length is too short for a header.
    #[inline]
    pub fn framed_len(first: [u8; 4]) -> Result<usize, WireFault> {
        let [a, b, control, _] = first;
        let ulpdu = usize::from(u16::from_be_bytes([a, b]));
        let len = if control & 0x80 != 0 {
            TAGGED_LEN
        } else {
            UNTAGGED_LEN
        };
        if ulpdu < len {
            return Err(WireFault::new(
                codes::MPA_FRAME,
                format!("a frame of {ulpdu} bytes arrived, its DDP header alone takes {len}"),
            ));
        }
        Ok(MPA_LEN + len)
    }

    /// Parses MPA length and header. `bytes` has the length returned by
    /// [`framed_len`](Self::framed_len).
    ///
    /// # Errors
    /// When versions, opcode or queue are invalid.
    pub fn parse(bytes: &[u8]) -> Result<Self, WireFault> {
        let mut whole = [0; Self::MAX_LEN];
        for (to, from) in whole.iter_mut().zip(bytes) {
            *to = *from;
        }
        let (header, control) = Self::read(&whole);
        check_versions(control, control & TAGGED != 0)?;
        check_opcode(header.opcode, header.kind)?;
        Ok(header)
    }

    /// Parses MPA length and header at the start of an FPDU of any kind, and returns their
    /// length. `None` if they are invalid.
    #[inline]
    pub(super) fn parse_first(bytes: &[u8; Self::MAX_LEN]) -> Option<(Self, usize)> {
        let (header, control) = Self::read(bytes);
        let len = match header.kind {
            Kind::Tagged { .. } => TAGGED_LEN,
            Kind::Untagged { .. } => UNTAGGED_LEN,
        };
        let [a, b, ..] = *bytes;
        let good = usize::from(u16::from_be_bytes([a, b])) >= len
            && control & VERSIONS_MASK == VERSIONS
            && header.opcode.suits(&header.kind);
        good.then_some((header, MPA_LEN + len))
    }

    /// The header in the bytes, and the control field.
    #[inline]
    fn read(bytes: &[u8; Self::MAX_LEN]) -> (Self, u16) {
        let mut take = Take(bytes);
        let ulpdu = usize::from(take.u16());
        let control = take.u16();
        let (kind, len) = if control & TAGGED != 0 {
            let (stag, to) = (take.u32(), take.u64());
            (Kind::Tagged { stag, to }, TAGGED_LEN)
        } else {
            let kind = Kind::Untagged {
                invalidate: take.u32(),
                queue: take.u32(),
                msn: take.u32(),
                offset: take.u32(),
            };
            (kind, UNTAGGED_LEN)
        };
        let header = Self {
            opcode: Opcode(control.to_be_bytes()[1] & 0x0f),
            last: control & LAST != 0,
            payload: ulpdu.saturating_sub(len),
            kind,
        };
        (header, control)
    }

    /// MPA length and header, and their length.
    #[inline(always)]
    #[must_use]
    pub fn to_bytes(&self) -> ([u8; Self::MAX_LEN], usize) {
        let (flag, len) = match self.kind {
            Kind::Tagged { .. } => (TAGGED, TAGGED_LEN),
            Kind::Untagged { .. } => (0, UNTAGGED_LEN),
        };
        let last = if self.last { LAST } else { 0 };
        let control = flag | last | VERSIONS | u16::from(self.opcode.0);
        let ulpdu = u16::try_from(len + self.payload);
        debug_assert!(ulpdu.is_ok(), "segments are cut to MAX_PAYLOAD");
        let first = u32::from(ulpdu.unwrap_or(u16::MAX)) << 16 | u32::from(control);
        let (second, end, fifth) = match self.kind {
            Kind::Tagged { stag, to } => (stag, to, 0),
            Kind::Untagged {
                invalidate,
                queue,
                msn,
                offset,
            } => (invalidate, u64::from(queue) << 32 | u64::from(msn), offset),
        };
        let start = u64::from(first) << 32 | u64::from(second);
        let mut bytes = [0; Self::MAX_LEN];
        let (words, rest) = bytes.split_at_mut(16);
        words.copy_from_slice(&(u128::from(start) << 64 | u128::from(end)).to_be_bytes());
        rest.copy_from_slice(&fifth.to_be_bytes());
        (bytes, MPA_LEN + len)
    }

    /// Appends MPA length and header.
    pub fn write(&self, out: &mut Vec<u8>) {
        let (bytes, len) = self.to_bytes();
        out.extend(bytes.iter().take(len));
    }
}

fn check_versions(control: u16, tagged: bool) -> Result<(), WireFault> {
    if control & VERSIONS_MASK == VERSIONS {
        return Ok(());
    }
    let code = match (control & DDP_VERSION_MASK == DDP_VERSION, tagged) {
        (true, _) => codes::RDMAP_VERSION,
        (false, true) => codes::DDP_TAGGED_VERSION,
        (false, false) => codes::DDP_UNTAGGED_VERSION,
    };
    let (ddp, rdmap) = (control >> 8 & 3, control >> 6 & 3);
    Err(WireFault::new(
        code,
        format!("a segment of DDP version {ddp} and RDMAP version {rdmap} arrived, both must be 1"),
    ))
}

fn check_opcode(opcode: Opcode, kind: Kind) -> Result<(), WireFault> {
    if opcode.suits(&kind) {
        return Ok(());
    }
    let number = opcode.0;
    Err(match kind {
        Kind::Tagged { .. } => WireFault::new(
            codes::RDMAP_OPCODE,
            format!(
                "opcode {number} arrived in a tagged segment, only Write and Read Response may"
            ),
        ),
        Kind::Untagged { queue, .. } if queue > QUEUE_TERMINATE => WireFault::new(
            codes::DDP_QUEUE,
            format!("a segment for queue {queue} arrived, there are only 0 to 2"),
        ),
        Kind::Untagged { queue, .. } => WireFault::new(
            codes::RDMAP_OPCODE,
            format!("opcode {number} arrived on queue {queue}, where it does not belong"),
        ),
    })
}

/// The payload of an RDMA Read Request (RFC 5040, section 4.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadRequest {
    /// Steering tag of the sink.
    pub sink_stag: u32,
    /// Offset there.
    pub sink_to: u64,
    /// Bytes to read.
    pub len: u32,
    /// Steering tag of the source.
    pub source_stag: u32,
    /// Offset there.
    pub source_to: u64,
}

impl ReadRequest {
    /// Bytes on the wire.
    pub const LEN: usize = 28;

    /// Parses the payload.
    #[must_use]
    pub fn parse(bytes: &[u8; Self::LEN]) -> Self {
        let mut take = Take(bytes);
        Self {
            sink_stag: take.u32(),
            sink_to: take.u64(),
            len: take.u32(),
            source_stag: take.u32(),
            source_to: take.u64(),
        }
    }

    /// The payload.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        let sink = u128::from(self.sink_stag) << 96 | u128::from(self.sink_to) << 32;
        let mut bytes = [0; Self::LEN];
        let (words, rest) = bytes.split_at_mut(16);
        words.copy_from_slice(&(sink | u128::from(self.len)).to_be_bytes());
        let (stag, to) = rest.split_at_mut(4);
        stag.copy_from_slice(&self.source_stag.to_be_bytes());
        to.copy_from_slice(&self.source_to.to_be_bytes());
        bytes
    }

    /// Appends the payload.
    pub fn write(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.to_bytes());
    }
}

/// Takes big-endian numbers from a slice; missing bytes count as 0.
struct Take<'a>(&'a [u8]);

impl Take<'_> {
    #[inline]
    fn bytes<const N: usize>(&mut self) -> [u8; N] {
        match self.0.split_first_chunk() {
            Some((chunk, rest)) => {
                self.0 = rest;
                *chunk
            }
            None => [0; N],
        }
    }

    #[inline]
    fn u16(&mut self) -> u16 {
        u16::from_be_bytes(self.bytes())
    }

    #[inline]
    fn u32(&mut self) -> u32 {
        u32::from_be_bytes(self.bytes())
    }

    #[inline]
    fn u64(&mut self) -> u64 {
        u64::from_be_bytes(self.bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn first_frame_of_linux_host_is_parsed() {
        let bytes = [
            0, 0x52, 0x41, 0x43, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0,
        ];
        assert_eq!(Header::framed_len([0, 0x52, 0x41, 0x43]), Ok(20));
        let header = Header::parse(&bytes).unwrap();
        let expected = Header {
            opcode: Opcode::SEND,
            last: true,
            payload: 64,
            kind: Kind::Untagged {
                invalidate: 0,
                queue: 0,
                msn: 1,
                offset: 0,
            },
        };
        assert_eq!(header, expected);
        let mut out = Vec::new();
        header.write(&mut out);
        assert_eq!(out, bytes);
    }

    #[test]
    fn invalid_header_has_matching_code() {
        let code = |control: u16, queue: u32| {
            let mut bytes = vec![1, 0];
            bytes.extend_from_slice(&control.to_be_bytes());
            bytes.extend_from_slice(&[0; 4]);
            bytes.extend_from_slice(&queue.to_be_bytes());
            bytes.extend_from_slice(&[0; 8]);
            Header::parse(&bytes).map_err(|fault| fault.code())
        };
        assert!(code(0x0143, 0).is_ok());
        assert_eq!(code(0x0243, 0), Err(codes::DDP_UNTAGGED_VERSION));
        assert_eq!(code(0x8040, 0), Err(codes::DDP_TAGGED_VERSION));
        assert_eq!(code(0x0103, 0), Err(codes::RDMAP_VERSION));
        assert_eq!(code(0x0143, 3), Err(codes::DDP_QUEUE));
        assert_eq!(code(0x0143, 1), Err(codes::RDMAP_OPCODE));
        assert_eq!(code(0x0140, 0), Err(codes::RDMAP_OPCODE));
        assert_eq!(code(0x8143, 0), Err(codes::RDMAP_OPCODE));
        assert_eq!(code(0x0148, 0), Err(codes::RDMAP_OPCODE));
        assert_eq!(
            Header::framed_len([0, 17, 0x41, 0x43]).map_err(|f| f.code()),
            Err(codes::MPA_FRAME)
        );
    }

    proptest! {
        #[test]
        fn parsed_header_round_trips(bytes: [u8; 20]) {
            let mut bytes = bytes;
            // Reserved bits are ignored.
            bytes[2] &= 0xc3;
            bytes[3] &= 0xcf;
            if let Ok(len) = Header::framed_len(*bytes.first_chunk().unwrap())
                && let Ok(header) = Header::parse(&bytes[..len])
            {
                let mut out = Vec::new();
                header.write(&mut out);
                prop_assert_eq!(&out[..], &bytes[..len]);
            }
        }

        #[test]
        fn read_request_round_trips(bytes: [u8; 28]) {
            let mut out = Vec::new();
            ReadRequest::parse(&bytes).write(&mut out);
            prop_assert_eq!(&out[..], &bytes[..]);
        }
    }
}
