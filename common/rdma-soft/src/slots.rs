//! A table whose keys consist of slot and generation.

/// A table of values of one type.
#[derive(Debug)]
pub struct Slots<T> {
    slots: Vec<(u32, Option<T>)>,
    free: Vec<u32>,
}

impl<T> Default for Slots<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> Slots<T> {
    /// Creates an empty table.
    #[must_use]
    pub fn new() -> Self {
        Self {
            slots: Vec::new(),
            free: Vec::new(),
        }
    }

    /// The key that the next `insert` will return.
    #[must_use]
    pub fn next_id(&self) -> u64 {
        match self.free.last() {
            Some(index) => {
                let slot = self.slots.get(*index as usize);
                id(*index, slot.map_or(0, |(generation, _)| *generation))
            }
            None => id(u32::try_from(self.slots.len()).unwrap_or(u32::MAX), 0),
        }
    }

    /// Inserts `item` and returns its key. Keys have 63 bits: callers may use the highest
    /// bit for themselves.
    pub fn insert(&mut self, item: T) -> u64 {
        let id = self.next_id();
        match self.free.pop() {
            Some(index) => {
                if let Some((_, place)) = self.slots.get_mut(index as usize) {
                    *place = Some(item);
                }
            }
            None => self.slots.push((0, Some(item))),
        }
        id
    }

    /// Number of values.
    #[must_use]
    pub fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Whether the table is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// All values and their keys.
    pub fn iter(&self) -> impl Iterator<Item = (u64, &T)> {
        let numbered = (0u32..).zip(&self.slots);
        numbered.filter_map(|(index, (generation, item))| {
            Some((id(index, *generation), item.as_ref()?))
        })
    }

    /// The value with the key `name`, if it exists.
    #[must_use]
    pub fn get(&self, name: u64) -> Option<&T> {
        let (index, generation) = split(name);
        let (current, item) = self.slots.get(index as usize)?;
        item.as_ref().filter(|_| *current == generation)
    }

    /// The value with the key `name`, if it exists.
    pub fn get_mut(&mut self, name: u64) -> Option<&mut T> {
        let (index, generation) = split(name);
        let (current, item) = self.slots.get_mut(index as usize)?;
        item.as_mut().filter(|_| *current == generation)
    }

    /// Removes the value with the key `name`.
    pub fn remove(&mut self, name: u64) -> Option<T> {
        self.get(name)?;
        let (index, _) = split(name);
        let (generation, item) = self.slots.get_mut(index as usize)?;
        // 31 bits: the highest bit of a key belongs to the caller.
        *generation = generation.wrapping_add(1) & (u32::MAX >> 1);
        self.free.push(index);
        item.take()
    }
}

fn id(index: u32, generation: u32) -> u64 {
    u64::from(generation) << 32 | u64::from(index)
}

fn split(name: u64) -> (u32, u32) {
    let [a, b, c, d, e, f, g, h] = name.to_le_bytes();
    (
        u32::from_le_bytes([a, b, c, d]),
        u32::from_le_bytes([e, f, g, h]),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_is_never_reused() {
        let mut slots = Slots::new();
        let first = slots.insert('a');
        let second = slots.insert('b');
        assert_eq!(slots.remove(first), Some('a'));
        assert_eq!(slots.remove(first), None);
        assert_eq!(slots.next_id(), slots.insert('c'));
        assert_eq!((slots.get(first), slots.get(second)), (None, Some(&'b')));
        assert_eq!(slots.get_mut(first), None);
        assert_eq!(slots.remove(second), Some('b'));
        assert_eq!((slots.len(), slots.is_empty()), (1, false));
        let left: Vec<_> = slots.iter().collect();
        assert!(matches!(left[..], [(name, 'c')] if slots.get(name) == Some(&'c')));
    }
}
