//! The Terminate message (RFC 5040, section 4.8).

use nvmeof_rdma::Fault;

use super::ddp::{Header, Kind, Opcode, QUEUE_TERMINATE};
use super::fault::{WireFault, codes, layer_name};

/// M: the DDP segment length that follows is valid.
const LENGTH: u16 = 0x8000;
/// D: the DDP header is there.
const DDP: u16 = 0x4000;
/// R: the RDMAP header of a Read Request is there.
const RDMAP: u16 = 0x2000;

/// The payload of a Terminate message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terminate {
    /// Layer, error type and error code.
    pub code: u16,
    /// M, D and R: which copies follow.
    flags: u16,
}

impl Terminate {
    /// Bytes that are parsed; copies of headers follow them.
    pub const LEN: usize = 4;

    /// Parses the first bytes of the payload; missing ones count as 0.
    #[must_use]
    pub fn parse(payload: &[u8]) -> Self {
        let word = payload.first_chunk().copied().unwrap_or([0; Self::LEN]);
        let [a, b, c, d] = word;
        Self {
            code: u16::from_be_bytes([a, b]),
            flags: u16::from_be_bytes([c, d]),
        }
    }

    /// The fault that the peer reports.
    #[must_use]
    pub fn into_fault(self) -> Fault {
        let about = if self.flags & RDMAP != 0 {
            ", about a Read Request of this side"
        } else {
            ""
        };
        Fault {
            layer: layer_name(self.code),
            code: self.code,
            text: format!("its Terminate says: {}{about}", codes::words(self.code)),
        }
    }

    /// Appends MPA length, headers and payload of the message for `fault`.
    /// `header` is the MPA length and DDP header of the segment at fault,
    /// `request` the RDMAP header after it when that was a Read Request.
    pub(crate) fn write(fault: &WireFault, header: &[u8], request: &[u8], out: &mut Vec<u8>) {
        // RFC 5040, section 4.8: errors of the layer below carry no copies, and the fields of
        // a header of an unknown version cannot be identified.
        let unknown = matches!(
            fault.code(),
            codes::DDP_TAGGED_VERSION | codes::DDP_UNTAGGED_VERSION | codes::RDMAP_VERSION
        );
        let (header, request) = if fault.code() >> 12 > 1 || unknown {
            (&[][..], &[][..])
        } else {
            (header, request)
        };
        let flag = |bytes: &[u8], flag| if bytes.is_empty() { 0 } else { flag };
        let flags = flag(header, LENGTH | DDP) | flag(request, RDMAP);
        let message = Header {
            opcode: Opcode::TERMINATE,
            last: true,
            payload: Self::LEN + header.len() + request.len(),
            kind: Kind::Untagged {
                invalidate: 0,
                queue: QUEUE_TERMINATE,
                msn: 1,
                offset: 0,
            },
        };
        message.write(out);
        out.extend_from_slice(&fault.code().to_be_bytes());
        out.extend_from_slice(&flags.to_be_bytes());
        // The MPA length is the DDP segment length, and it stands just
        // before the DDP header on the wire as it does here.
        out.extend_from_slice(header);
        out.extend_from_slice(request);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_follow_where_the_error_is_about_a_segment() {
        let header = [0, 46, 0x41, 0x41, 1, 2];
        for (code, request, flags, len) in [
            (codes::RDMAP_RIGHTS, &[7; 28][..], 0xe000u16, 34),
            (codes::DDP_MSN, &[], 0xc000, 6),
            (codes::MPA_CRC, &[], 0, 0),
            (codes::DDP_UNTAGGED_VERSION, &[], 0, 0),
        ] {
            let mut out = Vec::new();
            Terminate::write(&WireFault::new(code, ""), &header, request, &mut out);
            let parsed = Header::parse(&out[..20]).unwrap();
            assert_eq!(
                (parsed.opcode, parsed.payload),
                (Opcode::TERMINATE, 4 + len)
            );
            assert_eq!(out.len(), 24 + len);
            let terminate = Terminate::parse(&out[20..]);
            assert_eq!((terminate.code, terminate.flags), (code, flags));
            assert!(!terminate.into_fault().text.contains("unknown"));
        }
        assert!(
            Terminate::parse(&[])
                .into_fault()
                .text
                .contains("catastrophic")
        );
    }
}
