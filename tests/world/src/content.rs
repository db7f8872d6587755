//! Contents of blocks, which identify the write and the position.

/// The write of a block: the number of the operation, or [`ZEROES`].
pub(crate) type Value = u64;

/// A block that was never written, was zeroed or deallocated.
pub(crate) const ZEROES: Value = 0;

/// Fills one block, number `lba` of namespace `nsid`, as written by `value`.
pub(crate) fn fill(block: &mut [u8], value: Value, nsid: u32, lba: u64) {
    if value == ZEROES {
        block.fill(0);
        return;
    }
    let (words, _) = block.as_chunks_mut::<8>();
    for (at, word) in (0u64..).zip(words) {
        *word = expected(value, nsid, lba, at).to_le_bytes();
    }
}

/// The write of the block; `None` if no single write wrote all of it at this position.
pub(crate) fn read(block: &[u8], nsid: u32, lba: u64) -> Option<Value> {
    let (words, _) = block.as_chunks::<8>();
    let value = u64::from_le_bytes(*words.first()?);
    let right = if value == ZEROES {
        block.iter().all(|byte| *byte == 0)
    } else {
        let all = (0u64..).zip(words);
        all.into_iter()
            .all(|(at, word)| u64::from_le_bytes(*word) == expected(value, nsid, lba, at))
    };
    right.then_some(value)
}

/// The write of a block that starts like this, without a check of its contents.
pub(crate) fn number(start: [u8; 8]) -> Value {
    u64::from_le_bytes(start)
}

/// Word `at` of a block. The first is the value itself; the others depend on the position,
/// so that misplaced and torn blocks are detected.
fn expected(value: Value, nsid: u32, lba: u64, at: u64) -> u64 {
    if at == 0 {
        return value;
    }
    let place = (u64::from(nsid) << 56) ^ (lba << 32) ^ at;
    (value ^ place.rotate_left(17)).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn block_identifies_its_write_and_position() {
        let mut block = [0; 512];
        assert_eq!(read(&block, 1, 5), Some(ZEROES));
        fill(&mut block, 77, 1, 5);
        assert_eq!(read(&block, 1, 5), Some(77));
        assert_eq!(read(&block, 1, 6), None, "another block");
        assert_eq!(read(&block, 2, 5), None, "another namespace");
        block[511] ^= 1;
        assert_eq!(read(&block, 1, 5), None, "torn");
    }
}
