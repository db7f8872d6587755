//! MPA framing (RFC 5044, section 4): length, padding, CRC.

/// Bytes of the length field that starts an FPDU.
pub const MPA_LEN: usize = 2;

/// Payload of one DDP segment that we send, in bytes. The MPA length has 16
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

const _: () = assert!(MAX_PAYLOAD + 18 <= u16::MAX as usize);
