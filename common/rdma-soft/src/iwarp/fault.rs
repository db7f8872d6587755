//! Protocol violations, as codes on the wire and as text.

use nvmeof_rdma::Fault;

/// A protocol violation of the peer: the code for the Terminate message, and a description.
///
/// One pointer, because every step of the receive path may return it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WireFault(Box<Fault>);

impl WireFault {
    #[cold]
    pub(crate) fn new(code: u16, text: impl Into<String>) -> Self {
        Self(Box::new(Fault {
            layer: layer_name(code),
            code,
            text: text.into(),
        }))
    }

    /// Layer, error type and error code of RFC 5040, section 4.8: 4, 4 and 8
    /// bits.
    #[must_use]
    pub fn code(&self) -> u16 {
        self.0.code
    }

    /// The fault as users of the connection see it.
    #[must_use]
    pub fn into_fault(self) -> Fault {
        *self.0
    }
}

/// The name of the layer in a code.
pub(crate) fn layer_name(code: u16) -> &'static str {
    match code >> 12 {
        0 => "RDMAP",
        1 => "DDP",
        2 => "MPA",
        _ => "unknown",
    }
}

/// Error codes: layer, type and code in one number (IANA registry "RDDP").
pub mod codes {
    /// RDMAP, remote protection: the steering tag of a Read's source is not valid.
    pub const RDMAP_STAG: u16 = 0x0100;
    /// RDMAP, remote protection: base or bounds.
    pub const RDMAP_BOUNDS: u16 = 0x0101;
    /// RDMAP, remote protection: access rights.
    pub const RDMAP_RIGHTS: u16 = 0x0102;
    /// RDMAP, remote protection: the tag belongs to another stream.
    pub const RDMAP_FOREIGN: u16 = 0x0103;
    /// RDMAP, remote protection: the tagged offset wraps.
    pub const RDMAP_WRAP: u16 = 0x0104;
    /// RDMAP, remote protection: the tag cannot be invalidated.
    pub const RDMAP_INVALIDATE: u16 = 0x0109;
    /// RDMAP, remote operation: version.
    pub const RDMAP_VERSION: u16 = 0x0205;
    /// RDMAP, remote operation: unexpected opcode.
    pub const RDMAP_OPCODE: u16 = 0x0206;
    /// RDMAP, remote operation: unspecified.
    pub const RDMAP_UNSPECIFIED: u16 = 0x02ff;
    /// DDP: local catastrophic error.
    pub const DDP_CATASTROPHIC: u16 = 0x1000;
    /// DDP, tagged: the steering tag is not valid.
    pub const DDP_STAG: u16 = 0x1100;
    /// DDP, tagged: base or bounds.
    pub const DDP_BOUNDS: u16 = 0x1101;
    /// DDP, tagged: the tag belongs to another stream.
    pub const DDP_FOREIGN: u16 = 0x1102;
    /// DDP, tagged: the tagged offset wraps.
    pub const DDP_WRAP: u16 = 0x1103;
    /// DDP, tagged: version.
    pub const DDP_TAGGED_VERSION: u16 = 0x1104;
    /// DDP, untagged: queue number.
    pub const DDP_QUEUE: u16 = 0x1201;
    /// DDP, untagged: no buffer for this message.
    pub const DDP_NO_BUFFER: u16 = 0x1202;
    /// DDP, untagged: message sequence number out of range.
    pub const DDP_MSN: u16 = 0x1203;
    /// DDP, untagged: message offset.
    pub const DDP_MO: u16 = 0x1204;
    /// DDP, untagged: the message is longer than its buffer.
    pub const DDP_TOO_LONG: u16 = 0x1205;
    /// DDP, untagged: version.
    pub const DDP_UNTAGGED_VERSION: u16 = 0x1206;
    /// MPA: the stream ended or was lost.
    pub const MPA_LOST: u16 = 0x2001;
    /// MPA: CRC mismatch.
    pub const MPA_CRC: u16 = 0x2002;
    /// MPA: a frame that does not fit together (also: marker mismatch).
    pub const MPA_FRAME: u16 = 0x2003;
    /// MPA: invalid request or reply frame.
    pub const MPA_SETUP: u16 = 0x2004;
    /// MPA, RFC 6581: our IRD is less than the responder's ORD.
    pub const MPA_IRD: u16 = 0x2006;
    /// MPA, RFC 6581: no ready-to-receive frame suits both.
    pub const MPA_RTR: u16 = 0x2007;

    /// The registry's description of a code.
    #[must_use]
    pub fn words(code: u16) -> &'static str {
        match code {
            0x0000..=0x00ff => "local catastrophic error",
            RDMAP_STAG | DDP_STAG => "invalid steering tag",
            RDMAP_BOUNDS | DDP_BOUNDS => "base or bounds violation",
            RDMAP_RIGHTS => "access rights violation",
            RDMAP_FOREIGN | DDP_FOREIGN => "steering tag of another stream",
            RDMAP_WRAP | DDP_WRAP => "tagged offset wraps",
            RDMAP_INVALIDATE | 0x0209 => "steering tag cannot be invalidated",
            RDMAP_VERSION => "invalid RDMAP version",
            RDMAP_OPCODE => "unexpected opcode",
            0x0207 => "catastrophic error of this stream",
            0x0208 => "catastrophic error of the whole device",
            0x01ff | RDMAP_UNSPECIFIED => "unspecified error",
            DDP_CATASTROPHIC => "local catastrophic error of DDP",
            DDP_TAGGED_VERSION | DDP_UNTAGGED_VERSION => "invalid DDP version",
            DDP_QUEUE => "invalid queue number",
            DDP_NO_BUFFER => "no receive was posted for a message",
            DDP_MSN => "message sequence number out of range",
            DDP_MO => "invalid message offset",
            DDP_TOO_LONG => "message too long for the posted receive",
            MPA_LOST => "stream closed or lost",
            MPA_CRC => "CRC mismatch",
            MPA_FRAME => "frame or marker mismatch",
            MPA_SETUP => "invalid MPA request or reply",
            0x2005 => "local catastrophic error of MPA",
            MPA_IRD => "insufficient IRD",
            MPA_RTR => "no matching ready-to-receive frame",
            _ => "unknown error",
        }
    }
}
