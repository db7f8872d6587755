//! Names of work requests and disk operations: 64 bits that say what they are
//! for and are never mistaken for those of an earlier user of the same place.

/// A place in a table, and how often it was given to someone before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Place {
    pub(crate) index: u16,
    pub(crate) generation: u16,
}

/// No queue has this place.
pub(crate) const NOWHERE: Place = Place {
    index: u16::MAX,
    generation: u16::MAX,
};

/// What a name is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tag {
    pub(crate) queue: Place,
    pub(crate) slot: Place,
}

impl Tag {
    pub(crate) fn to_bits(self) -> u64 {
        let halves = [
            self.queue.index,
            self.queue.generation,
            self.slot.index,
            self.slot.generation,
        ];
        halves
            .into_iter()
            .fold(0, |bits, half| (bits << 16) | u64::from(half))
    }

    pub(crate) fn from_bits(bits: u64) -> Self {
        let [a, b, c, d, e, f, g, h] = bits.to_be_bytes();
        let half = |high, low| u16::from_be_bytes([high, low]);
        Self {
            queue: Place {
                index: half(a, b),
                generation: half(c, d),
            },
            slot: Place {
                index: half(e, f),
                generation: half(g, h),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_named_is_found_again() {
        let tag = Tag {
            queue: Place {
                index: 1,
                generation: 0xfffe,
            },
            slot: Place {
                index: 3,
                generation: 0x8000,
            },
        };
        assert_eq!(tag.to_bits(), 0x0001_fffe_0003_8000);
        assert_eq!(Tag::from_bits(tag.to_bits()), tag);
    }
}
