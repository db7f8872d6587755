//! Numbers of backing stores, the same on every reactor.
//!
//! A number consists of an index in the table of each reactor and a generation, which counts
//! the backing stores that had this index before. So a late completion or request never
//! reaches the next backing store at that index.

/// Allocator of numbers.
#[derive(Clone, Debug, Default)]
pub struct Numbers {
    entries: Vec<Entry>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Entry {
    taken: bool,
    generation: u16,
}

/// The index in the table of a reactor.
#[inline]
pub(crate) fn index_of(number: u32) -> usize {
    // 16 bits fit.
    index_bits(number) as usize
}

/// The same for the tags of operations.
#[inline]
pub(crate) fn index_bits(number: u32) -> u32 {
    number & 0xffff
}

impl Numbers {
    /// Allocates a number; `None` when 65,536 are in use. The first ones are 0, 1, 2 and so
    /// on.
    pub fn take(&mut self) -> Option<u32> {
        let free = self.entries.iter().position(|entry| !entry.taken);
        let at = free.unwrap_or(self.entries.len());
        let index = u16::try_from(at).ok()?;
        if free.is_none() {
            self.entries.push(Entry::default());
        }
        let entry = self.entries.get_mut(at)?;
        entry.taken = true;
        Some(u32::from(entry.generation) << 16 | u32::from(index))
    }

    /// Frees a number, if it is taken. No reactor may have the backing store open.
    pub fn free(&mut self, number: u32) {
        let entry = self.entries.get_mut(index_of(number));
        let is_its = |entry: &&mut Entry| u32::from(entry.generation) == number >> 16;
        if let Some(entry) = entry.filter(is_its) {
            entry.taken = false;
            entry.generation = entry.generation.wrapping_add(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn freed_index_is_reused_with_another_number() {
        let mut numbers = Numbers::default();
        let first: Vec<_> = (0..3).filter_map(|_| numbers.take()).collect();
        assert_eq!(first, [0, 1, 2]);
        numbers.free(1);
        let again = numbers.take().unwrap();
        assert_eq!((again, index_of(again)), (1 << 16 | 1, 1));
        assert_eq!(numbers.take(), Some(3));
        // It belongs to another backing store now.
        numbers.free(1);
        assert_eq!(numbers.take(), Some(4));
    }

    #[test]
    fn take_beyond_65536_is_none() {
        let mut numbers = Numbers::default();
        for _ in 0..=u16::MAX {
            assert!(numbers.take().is_some());
        }
        assert_eq!(numbers.take(), None);
    }
}
