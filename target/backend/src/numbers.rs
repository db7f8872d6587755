//! Numbers of disks, the same on every reactor.
//!
//! A number is an index in each reactor's table of disks and a generation, which counts the
//! disks that had this index before: what is late for one disk never reaches the next.

/// Numbers that are taken, and those to come.
#[derive(Clone, Debug, Default)]
pub struct Numbers {
    places: Vec<Entry>,
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
    /// A number that no disk has; `None` when there are 65,536 disks. The
    /// first ones are 0, 1, 2 and so on.
    pub fn take(&mut self) -> Option<u32> {
        let free = self.places.iter().position(|place| !place.taken);
        let at = free.unwrap_or(self.places.len());
        let index = u16::try_from(at).ok()?;
        if free.is_none() {
            self.places.push(Entry::default());
        }
        let place = self.places.get_mut(at)?;
        place.taken = true;
        Some(u32::from(place.generation) << 16 | u32::from(index))
    }

    /// No reactor has the disk open any more.
    pub fn free(&mut self, number: u32) {
        if let Some(place) = self.places.get_mut(index_of(number)) {
            place.taken = false;
            place.generation = place.generation.wrapping_add(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_used_again_under_another_number() {
        let mut numbers = Numbers::default();
        let first: Vec<_> = (0..3).filter_map(|_| numbers.take()).collect();
        assert_eq!(first, [0, 1, 2]);
        numbers.free(1);
        let again = numbers.take().unwrap();
        assert_eq!((again, index_of(again)), (1 << 16 | 1, 1));
        assert_eq!(numbers.take(), Some(3));
    }

    #[test]
    fn there_are_as_many_as_places() {
        let mut numbers = Numbers::default();
        for _ in 0..=u16::MAX {
            assert!(numbers.take().is_some());
        }
        assert_eq!(numbers.take(), None);
    }
}
