//! The CRC of a frame: CRC-32C (RFC 5044, section 4.4).

use crc_fast::{CrcAlgorithm, Digest};

/// From this length on `crc-fast` is faster. With the wide carry-less multiplications of
/// recent CPUs it takes half the time of `crc32c`, which uses the CRC instruction.
const LONG: usize = 256;

/// Extends `crc` by `bytes`. The CRC of no bytes is 0.
#[inline]
pub(crate) fn append(crc: u32, bytes: &[u8]) -> u32 {
    if bytes.len() < LONG {
        crc32c::crc32c_append(crc, bytes)
    } else {
        append_long(crc, bytes)
    }
}

/// The CRC of `bytes`.
#[inline]
pub(crate) fn of(bytes: &[u8]) -> u32 {
    append(0, bytes)
}

fn append_long(crc: u32, bytes: &[u8]) -> u32 {
    // The CRC register: the result is its complement.
    let state = u64::from(!crc);
    let mut digest = Digest::new_with_init_state(CrcAlgorithm::Crc32Iscsi, state);
    digest.update(bytes);
    let [a, b, c, d, ..] = digest.finalize().to_le_bytes();
    u32::from_le_bytes([a, b, c, d])
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// RFC 3720, appendix B.4, as required by RFC 5044.
    #[test]
    fn known_values() {
        assert_eq!(of(&[]), 0);
        assert_eq!(of(&[0; 32]), 0x8a91_36aa);
        assert_eq!(of(&[0xff; 32]), 0x62a8_ab43);
        assert_eq!(append_long(0, &[0; 32]), 0x8a91_36aa);
        assert_eq!(append_long(0, b"123456789"), 0xe306_9283);
    }

    proptest! {
        /// For any split, and whichever of the two computes which part.
        #[test]
        fn crc_of_parts_is_crc_of_whole(
            bytes in proptest::collection::vec(any::<u8>(), 0..8 * LONG),
            cut in any::<prop::sample::Index>(),
            skip in 0_usize..64,
        ) {
            let bytes = bytes.get(skip..).unwrap_or_default();
            let whole = crc32c::crc32c(bytes);
            let (first, rest) = bytes.split_at(cut.index(bytes.len() + 1));
            prop_assert_eq!(of(bytes), whole);
            prop_assert_eq!(append(of(first), rest), whole);
            prop_assert_eq!(append_long(append_long(0, first), rest), whole);
        }
    }
}
