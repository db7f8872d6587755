//! Tags of work requests and of operations of backing stores: 64 bits that name queue and
//! slot, and differ from the tags of earlier users of the same slot.

/// An index in a table, and how often it was reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct SlotId {
    pub(crate) index: u16,
    pub(crate) generation: u16,
}

/// A slot that no queue has.
pub(crate) const NO_SLOT: SlotId = SlotId {
    index: u16::MAX,
    generation: u16::MAX,
};

/// What a tag names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tag {
    pub(crate) queue: SlotId,
    pub(crate) slot: SlotId,
}

impl Tag {
    pub(crate) fn to_bits(self) -> u64 {
        u64::from(self.queue.to_bits()) << 32 | u64::from(self.slot.to_bits())
    }

    pub(crate) fn from_bits(bits: u64) -> Self {
        let [queue, slot] = [bits >> 32, bits].map(SlotId::from_low_bits);
        Self { queue, slot }
    }
}

impl SlotId {
    /// Decodes 32 bits; only [`NO_SLOT`] is all ones.
    pub(crate) fn of_number(number: u32) -> Self {
        Self::from_low_bits(number.into())
    }

    pub(crate) fn to_bits(self) -> u32 {
        u32::from(self.index) << 16 | u32::from(self.generation)
    }

    #[allow(clippy::cast_possible_truncation, reason = "16 bits each")]
    fn from_low_bits(bits: u64) -> Self {
        Self {
            index: (bits >> 16) as u16,
            generation: bits as u16,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tag_survives_encoding() {
        let tag = Tag {
            queue: SlotId {
                index: 1,
                generation: 0xfffe,
            },
            slot: SlotId {
                index: 3,
                generation: 0x8000,
            },
        };
        assert_eq!(tag.to_bits(), 0x0001_fffe_0003_8000);
        assert_eq!(Tag::from_bits(tag.to_bits()), tag);
    }
}
