//! MPA connection set-up: request and reply frames (RFC 5044, section 7.1;
//! RFC 6581, sections 6 to 9).

use std::fmt;

/// Bytes of a frame before its private data.
pub const FRAME_LEN: usize = 20;
/// Private data a frame may carry (RFC 5044, section 7.1.1).
pub const MAX_PRIVATE: usize = 512;
/// The revision of RFC 5044.
pub const REVISION_1: u8 = 1;
/// The revision of RFC 6581.
pub const REVISION_2: u8 = 2;
/// Largest IRD or ORD; it means that the number is not negotiated here (RFC 6581, section 9).
pub const READS_UNSAID: u16 = 0x3fff;

const KEY_REQUEST: &[u8; 16] = b"MPA ID Req Frame";
const KEY_REPLY: &[u8; 16] = b"MPA ID Rep Frame";
const MARKERS: u8 = 0x80;
const CRC: u8 = 0x40;
const REJECT: u8 = 0x20;
const ENHANCED: u8 = 0x10;

/// Kind of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameKind {
    /// From the initiator.
    Request,
    /// From the responder.
    Reply,
}

/// A frame without its private data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame {
    /// Request or reply.
    pub kind: FrameKind,
    /// The sender requests markers.
    pub markers: bool,
    /// The sender requests CRCs.
    pub crc: bool,
    /// The responder rejects. Without meaning in a request.
    pub reject: bool,
    /// The private data starts with [`Reads`].
    pub enhanced: bool,
    /// Revision of MPA.
    pub revision: u8,
    /// Length of the private data, [`Reads`] included.
    pub private_len: u16,
}

/// IRD, ORD and the control flags A to D of an enhanced frame (RFC 6581,
/// section 9): 4 bytes in front of the private data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reads {
    /// RDMA Reads that the sender can process at once: 14 bits.
    pub ird: u16,
    /// RDMA Reads that the sender wants in flight: 14 bits.
    pub ord: u16,
    /// A: peer-to-peer, the initiator sends a ready-to-receive frame first.
    pub peer_to_peer: bool,
    /// B: that may be an empty FPDU.
    pub rtr_empty: bool,
    /// C: that may be an RDMA Write without data.
    pub rtr_write: bool,
    /// D: that may be an RDMA Read without data.
    pub rtr_read: bool,
}

/// Why a frame is invalid.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FrameError {
    /// It does not start with the key.
    Key {
        /// The expected kind of frame.
        expected: FrameKind,
    },
    /// It has more private data than allowed.
    PrivateTooLong {
        /// Length of the private data.
        len: u16,
    },
    /// It is enhanced and has no room for IRD and ORD.
    NoReads,
}

impl fmt::Display for FrameError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Key { expected } => {
                write!(
                    f,
                    "the first bytes are not those of an MPA {expected:?} frame"
                )
            }
            Self::PrivateTooLong { len } => write!(
                f,
                "an MPA frame announces {len} bytes of private data, at most {MAX_PRIVATE} \
                    are allowed"
            ),
            Self::NoReads => f.write_str(
                "an enhanced MPA frame has fewer than the 4 bytes that IRD and ORD take",
            ),
        }
    }
}

impl FrameKind {
    fn key(self) -> &'static [u8; 16] {
        match self {
            Self::Request => KEY_REQUEST,
            Self::Reply => KEY_REPLY,
        }
    }

    /// Whether `bytes`, the first of a stream, may be the start of this frame.
    #[must_use]
    pub fn may_start(self, bytes: &[u8]) -> bool {
        self.key().iter().zip(bytes).all(|(key, byte)| key == byte)
    }
}

impl Frame {
    /// Parses the first [`FRAME_LEN`] bytes.
    ///
    /// # Errors
    /// [`FrameError`] when they are not a frame of this kind.
    pub fn parse(expected: FrameKind, bytes: &[u8; FRAME_LEN]) -> Result<Self, FrameError> {
        let [key @ .., flags, revision, high, low] = bytes;
        if key != expected.key() {
            return Err(FrameError::Key { expected });
        }
        let frame = Self {
            kind: expected,
            markers: flags & MARKERS != 0,
            crc: flags & CRC != 0,
            reject: flags & REJECT != 0,
            // In revision 1 the bit is reserved and ignored.
            enhanced: flags & ENHANCED != 0 && *revision >= REVISION_2,
            revision: *revision,
            private_len: u16::from_be_bytes([*high, *low]),
        };
        if usize::from(frame.private_len) > MAX_PRIVATE {
            return Err(FrameError::PrivateTooLong {
                len: frame.private_len,
            });
        }
        if frame.enhanced && usize::from(frame.private_len) < Reads::LEN {
            return Err(FrameError::NoReads);
        }
        Ok(frame)
    }

    /// The bytes on the wire.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; FRAME_LEN] {
        let bit = |on: bool, bit: u8| if on { bit } else { 0 };
        let flags = bit(self.markers, MARKERS)
            | bit(self.crc, CRC)
            | bit(self.reject, REJECT)
            | bit(self.enhanced, ENHANCED);
        let [high, low] = self.private_len.to_be_bytes();
        let mut bytes = [0; FRAME_LEN];
        for (to, from) in bytes.iter_mut().zip(self.kind.key()) {
            *to = *from;
        }
        let [.., f, r, h, l] = &mut bytes;
        (*f, *r, *h, *l) = (flags, self.revision, high, low);
        bytes
    }
}

impl Reads {
    /// Bytes on the wire.
    pub const LEN: usize = 4;

    /// IRD and ORD without peer-to-peer mode.
    #[must_use]
    pub fn new(ird: u32, ord: u32) -> Self {
        let clamp = |n: u32| u16::try_from(n).map_or(READS_UNSAID - 1, |n| n.min(READS_UNSAID - 1));
        Self {
            ird: clamp(ird),
            ord: clamp(ord),
            peer_to_peer: false,
            rtr_empty: false,
            rtr_write: false,
            rtr_read: false,
        }
    }

    /// Parses the 4 bytes.
    #[must_use]
    pub fn parse(bytes: [u8; Self::LEN]) -> Self {
        let [a, b, c, d] = bytes;
        let (ird, ord) = (u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d]));
        Self {
            ird: ird & 0x3fff,
            ord: ord & 0x3fff,
            peer_to_peer: ird & 0x8000 != 0,
            rtr_empty: ird & 0x4000 != 0,
            rtr_write: ord & 0x8000 != 0,
            rtr_read: ord & 0x4000 != 0,
        }
    }

    /// The bytes on the wire.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        let bit = |on: bool, bit: u16| if on { bit } else { 0 };
        let ird = self.ird & 0x3fff | bit(self.peer_to_peer, 0x8000) | bit(self.rtr_empty, 0x4000);
        let ord = self.ord & 0x3fff | bit(self.rtr_write, 0x8000) | bit(self.rtr_read, 0x4000);
        let [[a, b], [c, d]] = [ird.to_be_bytes(), ord.to_be_bytes()];
        [a, b, c, d]
    }

    /// The reply of a responder that supports `ird` and `ord`. RFC 6581, section 9.2: in
    /// peer-to-peer mode it selects the ready-to-receive frame. A Write without data costs
    /// nothing, a Read without data little. If the initiator offers neither, the reply names
    /// the Write nevertheless, and the initiator has to end the connection (error "no
    /// matching RTR").
    #[must_use]
    pub fn reply(&self, ird: u32, ord: u32) -> Self {
        let read = self.peer_to_peer && self.rtr_read && !self.rtr_write;
        Self {
            peer_to_peer: self.peer_to_peer,
            rtr_write: self.peer_to_peer && !read,
            rtr_read: read,
            ..Self::new(ird, ord)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn captured() -> [u8; 24] {
        let mut bytes = [0; 24];
        bytes[..16].copy_from_slice(b"MPA ID Req Frame");
        bytes[16..].copy_from_slice(&[0x10, 2, 0, 0x24, 0, 0x80, 0, 0]);
        bytes
    }

    #[test]
    fn request_of_linux_host_is_parsed() {
        let bytes = captured();
        let frame = Frame::parse(FrameKind::Request, bytes.first_chunk().unwrap()).unwrap();
        let expected = Frame {
            kind: FrameKind::Request,
            markers: false,
            crc: false,
            reject: false,
            enhanced: true,
            revision: 2,
            private_len: 36,
        };
        assert_eq!(frame, expected);
        assert_eq!(frame.to_bytes(), bytes[..20]);
        let reads = Reads::parse(*bytes[20..].first_chunk().unwrap());
        assert_eq!(reads, Reads::new(128, 0));
        assert_eq!(reads.to_bytes(), bytes[20..]);
    }

    #[test]
    fn invalid_frame_is_refused() {
        let good: [u8; 20] = *captured().first_chunk().unwrap();
        let parse = |at: usize, byte: u8| {
            let mut bad = good;
            bad[at] = byte;
            Frame::parse(FrameKind::Request, &bad)
        };
        assert!(matches!(parse(3, b'x'), Err(FrameError::Key { .. })));
        assert_eq!(
            parse(18, 2),
            Err(FrameError::PrivateTooLong { len: 512 + 36 })
        );
        assert_eq!(parse(19, 3), Err(FrameError::NoReads));
        assert!(Frame::parse(FrameKind::Reply, &good).is_err());
    }

    #[test]
    fn responder_selects_ready_to_receive_frame() {
        let ask = |write, read| Reads {
            peer_to_peer: true,
            rtr_empty: true,
            rtr_write: write,
            rtr_read: read,
            ..Reads::new(1, 1)
        };
        for (write, read, picked) in [
            (true, true, (true, false)),
            (false, true, (false, true)),
            (false, false, (true, false)),
        ] {
            let reply = ask(write, read).reply(4, 4);
            assert!(reply.peer_to_peer && !reply.rtr_empty);
            assert_eq!((reply.rtr_write, reply.rtr_read), picked);
        }
        assert_eq!(Reads::new(9, 9).reply(4, 5), Reads::new(4, 5));
    }

    proptest! {
        #[test]
        fn parsed_frame_round_trips(
            flags: u8,
            revision: u8,
            len in 4u16..=512,
            reads: [u8; 4],
        ) {
            let mut bytes: [u8; 20] = *captured().first_chunk().unwrap();
            let known = if revision < 2 { 0xe0 } else { 0xf0 };
            bytes[16] = flags & known;
            bytes[17] = revision;
            bytes[18..].copy_from_slice(&len.to_be_bytes());
            let frame = Frame::parse(FrameKind::Request, &bytes).unwrap();
            prop_assert_eq!(frame.to_bytes(), bytes);
            prop_assert_eq!(Reads::parse(reads).to_bytes(), reads);
        }
    }
}
