//! What the blocks of a namespace may contain.

use std::collections::BTreeMap;

/// Blocks in use, so that each is written often.
pub(crate) const BLOCKS: u64 = 24;

/// For each block, the writes whose data it may contain.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    blocks: BTreeMap<u64, Vec<u64>>,
    last: u64,
}

impl Ledger {
    /// A write starts; returns its number. Its block may contain its data from now on.
    pub(crate) fn write(&mut self, block: u64) -> u64 {
        self.last += 1;
        let possible = self.blocks.entry(block).or_insert_with(|| vec![0]);
        possible.push(self.last);
        self.last
    }

    /// A write was acknowledged: its block contains its data, and no others.
    pub(crate) fn acknowledged(&mut self, block: u64, write: u64) {
        self.blocks.insert(block, vec![write]);
    }

    /// Checks what was read. From now on the block contains that.
    #[track_caller]
    pub(crate) fn check(&mut self, block: u64, data: &[u8]) {
        let possible = self.blocks.entry(block).or_insert_with(|| vec![0]);
        let found = possible
            .iter()
            .copied()
            .find(|write| same(block, *write, data));
        let Some(found) = found else {
            let head = &data[..16];
            panic!("block {block} contains {head:?}, and none of the writes {possible:?}");
        };
        *possible = vec![found];
    }
}

/// Fills a block with the data of a write.
pub(crate) fn fill(block: u64, write: u64, data: &mut [u8]) {
    for (index, word) in data.chunks_exact_mut(8).enumerate() {
        word.copy_from_slice(&word_of(block, write, index));
    }
}

fn same(block: u64, write: u64, data: &[u8]) -> bool {
    if write == 0 {
        return data.iter().all(|byte| *byte == 0);
    }
    let mut words = data.chunks_exact(8).enumerate();
    words.all(|(index, word)| word == word_of(block, write, index))
}

fn word_of(block: u64, write: u64, index: usize) -> [u8; 8] {
    (write << 24 | block << 12 | index as u64).to_le_bytes()
}
