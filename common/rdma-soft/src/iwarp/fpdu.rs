//! MPA framing (RFC 5044, section 4): length, padding, CRC, and how long an
//! FPDU may be.

use nvmeof_rdma::Inline;

use super::{TAGGED_LEN, UNTAGGED_LEN};

/// Bytes of the length field that starts an FPDU.
pub const MPA_LEN: usize = 2;

/// Payload of one DDP segment that we send at most, in bytes. The MPA length has 16
/// bits, so that 64 KiB do not fit: of 64 or 128 KiB as little as possible is
/// left for a last segment, which then arrives in one call with the rest of the
/// one before. A multiple of a cache line keeps what follows aligned.
pub const MAX_PAYLOAD: usize = 64 * 1023;

/// Bytes of CRC that end an FPDU, there whether CRCs are used or not.
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

/// Payload that one DDP segment may have, by its kind of header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PayloadLimit {
    /// Of a tagged segment, in bytes.
    pub tagged: usize,
    /// Of an untagged segment, in bytes.
    pub untagged: usize,
}

impl PayloadLimit {
    /// As long as the format allows: for a stream that is not cut into
    /// segments.
    pub const LONGEST: Self = Self {
        tagged: MAX_PAYLOAD,
        untagged: MAX_PAYLOAD,
    };

    /// So that an FPDU fills one TCP segment of at most `emss` bytes of data
    /// (effective maximum segment size).
    #[must_use]
    pub fn for_segment(emss: usize) -> Self {
        let emss = emss.max(MIN_EMSS);
        // RFC 5044, section 4.2, without markers: MULPDU = EMSS - (6 + EMSS
        // mod 4). Such FPDUs need no padding, and in a row they stay in step
        // with the segments if EMSS is a multiple of 4.
        let mulpdu = emss - (MPA_LEN + CRC_LEN + emss % 4);
        Self {
            tagged: (mulpdu - TAGGED_LEN).min(MAX_PAYLOAD),
            untagged: (mulpdu - UNTAGGED_LEN).min(MAX_PAYLOAD),
        }
    }
}

/// What a smaller segment is taken for: the head of a Send, and what is not cut
/// (Read Request, Terminate), has to fit.
const MIN_EMSS: usize = 128;
const LONGEST_HEAD: usize = Inline::empty().array().len();
const _: () = assert!(MPA_LEN + UNTAGGED_LEN + LONGEST_HEAD + CRC_LEN <= MIN_EMSS);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_segment_has_no_padding_and_fits() {
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
