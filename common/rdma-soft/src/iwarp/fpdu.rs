//! MPA framing (RFC 5044, section 4): length, padding, CRC, and maximum length of an FPDU.

use nvmeof_rdma::Inline;

use super::{TAGGED_LEN, UNTAGGED_LEN};

/// Bytes of the length field that starts an FPDU.
pub const MPA_LEN: usize = 2;

/// Maximum payload of a sent DDP segment, in bytes. The MPA length has 16 bits, so that 64
/// KiB do not fit: with this value, the last segment of 64 or 128 KiB is as short as possible
/// and arrives in one call with the rest of the one before. A multiple of a cache line keeps
/// the following data aligned.
pub const MAX_PAYLOAD: usize = 64 * 1023;

/// Bytes of the CRC field at the end of an FPDU, which exists whether or not CRCs are used.
pub(crate) const CRC_LEN: usize = 4;

/// Padding after a ULPDU of `len` bytes: length field, ULPDU and padding end
/// at a multiple of 4.
#[must_use]
pub const fn pad_len(len: usize) -> usize {
    // RFC 5044, section 4.
    (4 - (MPA_LEN + len) % 4) % 4
}

/// The CRC field for a checksum: least significant byte first, as iSCSI does.
pub(crate) fn crc_bytes(crc: u32) -> [u8; CRC_LEN] {
    crc.to_le_bytes()
}

const _: () = assert!(MAX_PAYLOAD + UNTAGGED_LEN <= u16::MAX as usize);

/// Maximum payload of a DDP segment, by its kind of header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PayloadLimit {
    /// For a tagged segment, in bytes.
    pub tagged: usize,
    /// For an untagged segment, in bytes.
    pub untagged: usize,
}

impl PayloadLimit {
    /// The maximum of the format, for a stream without segments.
    pub const LONGEST: Self = Self {
        tagged: MAX_PAYLOAD,
        untagged: MAX_PAYLOAD,
    };

    /// A limit with which an FPDU fills one TCP segment of at most `emss` bytes of data
    /// (effective maximum segment size).
    #[must_use]
    pub fn for_segment(emss: usize) -> Self {
        let emss = emss.max(MIN_EMSS);
        // RFC 5044, section 4.2, without markers: MULPDU = EMSS - (6 + EMSS mod 4). Such
        // FPDUs need no padding, and consecutive ones stay aligned with the segments if EMSS
        // is a multiple of 4.
        let mulpdu = emss - (MPA_LEN + CRC_LEN + emss % 4);
        Self {
            tagged: (mulpdu - TAGGED_LEN).min(MAX_PAYLOAD),
            untagged: (mulpdu - UNTAGGED_LEN).min(MAX_PAYLOAD),
        }
    }
}

/// Lower bound for the segment size: the head of a Send, and messages that are not split
/// (Read Request, Terminate), have to fit.
const MIN_EMSS: usize = 128;
const LONGEST_HEAD: usize = Inline::empty().array().len();
const _: () = assert!(MPA_LEN + UNTAGGED_LEN + LONGEST_HEAD + CRC_LEN <= MIN_EMSS);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn full_segment_fits_without_padding() {
        for (emss, tagged, untagged) in [
            (536, 516, 512),
            (1448, 1428, 1424),
            (1460, 1440, 1436),
            (8960, 8940, 8936),
            (65483, 65460, 65456),
            (0, 108, 104),
            (1 << 20, MAX_PAYLOAD, MAX_PAYLOAD),
        ] {
            let limit = PayloadLimit::for_segment(emss);
            assert_eq!(limit, PayloadLimit { tagged, untagged });
            for ulpdu in [TAGGED_LEN + tagged, UNTAGGED_LEN + untagged] {
                let len = MPA_LEN + ulpdu + pad_len(ulpdu) + CRC_LEN;
                assert!(len <= emss.max(MIN_EMSS), "{len} of {emss}");
            }
        }
    }
}
