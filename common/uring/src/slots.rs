//! Slots, which relate completions to operations.

use nvmeof_memory::Buf;

/// An operation in flight, with its buffer.
#[derive(Debug)]
pub(crate) struct InFlight {
    pub(crate) tag: u64,
    pub(crate) buf: Option<Buf>,
}

/// A fixed number of slots. The number that the kernel returns with a completion is the
/// index of the slot and, in the upper half, its generation, so that a stale completion is
/// detected.
#[derive(Debug)]
pub(crate) struct Slots {
    slots: Vec<Slot>,
    free: Vec<u32>,
}

#[derive(Debug)]
struct Slot {
    generation: u32,
    held: Option<InFlight>,
}

impl Slots {
    pub(crate) fn new(count: u32) -> Self {
        let empty = || Slot {
            generation: 0,
            held: None,
        };
        Self {
            slots: (0..count).map(|_| empty()).collect(),
            free: (0..count).rev().collect(),
        }
    }

    pub(crate) fn in_flight(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    pub(crate) fn free(&self) -> usize {
        self.free.len()
    }

    /// Puts `op` in a free slot and returns the number for the kernel, or returns `op` when
    /// no slot is free.
    pub(crate) fn insert(&mut self, op: InFlight) -> Result<u64, InFlight> {
        let Some(index) = self.free.pop() else {
            return Err(op);
        };
        let Some(slot) = self.slots.get_mut(index as usize) else {
            return Err(op);
        };
        slot.held = Some(op);
        Ok(u64::from(slot.generation) << 32 | u64::from(index))
    }

    /// Removes the operation with this `number`; `None` when the number is stale or was
    /// never in use.
    pub(crate) fn remove(&mut self, number: u64) -> Option<InFlight> {
        let generation = u32::try_from(number >> 32).ok()?;
        let index = u32::try_from(number & u64::from(u32::MAX)).ok()?;
        let slot = self.slots.get_mut(index as usize)?;
        if slot.generation != generation {
            return None;
        }
        let op = slot.held.take()?;
        slot.generation = slot.generation.wrapping_add(1);
        self.free.push(index);
        Some(op)
    }

    /// Forgets all operations in flight without freeing their buffers.
    pub(crate) fn leak(&mut self) {
        std::mem::forget(std::mem::take(&mut self.slots));
        self.free.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn op(tag: u64) -> InFlight {
        InFlight { tag, buf: None }
    }

    #[test]
    fn remove_of_stale_or_unknown_number_is_none() {
        let mut slots = Slots::new(2);
        let first = slots.insert(op(1)).unwrap();
        assert_eq!(slots.remove(first).unwrap().tag, 1);
        let second = slots.insert(op(2)).unwrap();
        assert_ne!(first, second, "the slot is reused, its number is not");
        for foreign in [first, second + 1, 2, u64::MAX] {
            assert!(slots.remove(foreign).is_none(), "{foreign:#x}");
        }
        assert_eq!(slots.remove(second).unwrap().tag, 2);
        assert!(slots.remove(second).is_none());
    }

    #[test]
    fn insert_into_full_table_returns_operation() {
        let mut slots = Slots::new(1);
        slots.insert(op(1)).unwrap();
        assert_eq!(slots.insert(op(7)).unwrap_err().tag, 7);
        assert_eq!((slots.in_flight(), slots.free()), (1, 0));
    }
}
