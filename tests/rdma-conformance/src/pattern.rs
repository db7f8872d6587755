//! Data patterns that depend on the offset, and random lengths.

use nvmeof_rdma_layers::Dice;

/// A length up to `most`: often short, sometimes anything, sometimes an edge.
pub(super) fn length(dice: &mut Dice, most: usize) -> usize {
    match dice.below(8) {
        0 => 0,
        1 => most,
        2 | 3 => dice.below(most + 1),
        _ => dice.below(most.min(256) + 1),
    }
}

fn mix(mut value: u64) -> u64 {
    value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

/// Fills `bytes` with the pattern of `seed`, in which any shift, swap or loss of bytes is
/// detected.
pub(super) fn fill(bytes: &mut [u8], seed: u64) {
    for (chunk, word) in bytes.chunks_mut(8).zip(words(seed)) {
        chunk.copy_from_slice(&word[..chunk.len()]);
    }
}

/// Checks that `bytes` contain the pattern `seed`.
pub fn check(bytes: &[u8], seed: u64) {
    for ((place, chunk), word) in bytes.chunks(8).enumerate().zip(words(seed)) {
        assert!(
            *chunk == word[..chunk.len()],
            "bytes of pattern {seed} differ at {} of {}: {chunk:02x?}, expected {word:02x?}",
            place * 8,
            bytes.len(),
        );
    }
}

/// Checks that all of `bytes` are `value`.
pub(super) fn check_all(bytes: &[u8], value: u8) {
    if let Some(at) = bytes.iter().position(|byte| *byte != value) {
        let (found, len) = (bytes[at], bytes.len());
        panic!("byte {at} of {len} is {found:#04x}, expected {value:#04x} untouched");
    }
}

fn words(seed: u64) -> impl Iterator<Item = [u8; 8]> {
    let base = mix(seed);
    (0u64..).map(move |place| mix(base.wrapping_add(place)).to_le_bytes())
}
