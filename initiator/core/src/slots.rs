//! Command slots: a fixed number, addressed by command identifier.

/// A command identifier as in a submission queue entry: the slot in the low bits, its
/// generation above, so that duplicate and unexpected responses are detected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Cid(pub u16);

/// A response names a command that is not in flight. The peer cannot be trusted: the
/// queue must be closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a response names command {:#06x}, which is not in flight", cid.0)]
pub struct UnknownCid {
    /// The identifier in the response.
    pub cid: Cid,
}

/// An invalid number of slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0} command slots: out of range (1-{MAX_SLOTS})")]
pub struct BadSlotCount(pub usize);

/// Maximum number of slots: leaves four bits of generation.
pub const MAX_SLOTS: usize = 1 << 12;

/// A fixed number of slots, each empty or holding a `T`.
#[derive(Debug)]
pub struct Slots<T> {
    slots: Vec<Slot<T>>,
    /// Numbers of the empty slots.
    free: Vec<u16>,
    /// The bits of a command identifier that name the slot.
    index_bits: u16,
}

#[derive(Debug)]
struct Slot<T> {
    /// The identifier of its present or next value.
    cid: Cid,
    value: Option<T>,
}

impl<T> Slots<T> {
    /// Creates `count` empty slots.
    ///
    /// # Errors
    /// [`BadSlotCount`] when there would be none or more than [`MAX_SLOTS`].
    pub fn new(count: usize) -> Result<Self, BadSlotCount> {
        let last = count
            .checked_sub(1)
            .filter(|_| count <= MAX_SLOTS)
            .and_then(|last| u16::try_from(last).ok())
            .ok_or(BadSlotCount(count))?;
        let empty = |index| Slot {
            cid: Cid(index),
            value: None,
        };
        Ok(Self {
            slots: (0..=last).map(empty).collect(),
            free: (0..=last).rev().collect(),
            index_bits: u16::MAX.checked_shr(last.leading_zeros()).unwrap_or(0),
        })
    }

    /// Number of slots.
    #[must_use]
    pub fn count(&self) -> usize {
        self.slots.len()
    }

    /// Empty slots.
    #[must_use]
    pub fn free(&self) -> usize {
        self.free.len()
    }

    /// Slots in use.
    #[must_use]
    pub fn taken(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Puts `value` into an empty slot.
    ///
    /// # Errors
    /// The value back when all slots are taken.
    pub fn insert(&mut self, value: T) -> Result<Cid, T> {
        let Some(index) = self.free.pop() else {
            return Err(value);
        };
        let Some(slot) = self.slots.get_mut(usize::from(index)) else {
            return Err(value);
        };
        slot.value = Some(value);
        Ok(slot.cid)
    }

    /// The value in the slot of `cid`.
    ///
    /// # Errors
    /// [`UnknownCid`] when the slot is empty.
    pub fn get_mut(&mut self, cid: Cid) -> Result<&mut T, UnknownCid> {
        self.slots
            .get_mut(usize::from(cid.0 & self.index_bits))
            .filter(|slot| slot.cid == cid)
            .and_then(|slot| slot.value.as_mut())
            .ok_or(UnknownCid { cid })
    }

    /// Empties the slot of `cid`, whose identifier is invalid from now on.
    ///
    /// # Errors
    /// [`UnknownCid`] when it was empty.
    pub fn remove(&mut self, cid: Cid) -> Result<T, UnknownCid> {
        let index = cid.0 & self.index_bits;
        let slot = self
            .slots
            .get_mut(usize::from(index))
            .filter(|slot| slot.cid == cid)
            .ok_or(UnknownCid { cid })?;
        let value = slot.value.take().ok_or(UnknownCid { cid })?;
        slot.cid = next(cid, self.index_bits);
        self.free.push(index);
        Ok(value)
    }

    /// The slots in use.
    pub fn iter(&self) -> impl Iterator<Item = (Cid, &T)> {
        self.slots
            .iter()
            .filter_map(|slot| slot.value.as_ref().map(|value| (slot.cid, value)))
    }
}

/// The identifier of the same slot in the next generation. The last generation is left out, so
/// that no identifier is FFFFh, which stands for "no command" in the error log (NVMe Base 2.0,
/// section 5.16.1.2).
fn next(cid: Cid, index_bits: u16) -> Cid {
    let next = cid.0.wrapping_add(index_bits + 1);
    match next | index_bits {
        u16::MAX => Cid(cid.0 & index_bits),
        _ => Cid(next),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn sizes_are_bounded() {
        assert_eq!(Slots::<()>::new(0).unwrap_err(), BadSlotCount(0));
        assert_eq!(Slots::<()>::new(4097).unwrap_err(), BadSlotCount(4097));
        assert_eq!(Slots::<()>::new(4096).unwrap().count(), 4096);
        assert_eq!(Slots::<()>::new(1).unwrap().free(), 1);
    }

    #[test]
    fn identifier_of_completed_command_is_invalid() {
        let mut slots = Slots::new(4).unwrap();
        let cid = slots.insert('a').unwrap();
        assert_eq!(slots.remove(cid), Ok('a'));
        assert_eq!(slots.remove(cid), Err(UnknownCid { cid }));
        let again = slots.insert('b').unwrap();
        assert_ne!(cid, again, "same slot, other generation");
        assert_eq!(slots.get_mut(cid), Err(UnknownCid { cid }));
        assert_eq!(slots.get_mut(again), Ok(&mut 'b'));
    }

    #[test]
    fn no_identifier_is_ffff() {
        for count in [1, 2, 16, 4096] {
            let mut slots = Slots::new(count).unwrap();
            for _ in 0..70_000 / count {
                let cids: Vec<Cid> = (0..count).map(|_| slots.insert(()).unwrap()).collect();
                assert!(!cids.contains(&Cid(0xffff)));
                assert!(slots.insert(()).is_err());
                for cid in cids {
                    slots.remove(cid).unwrap();
                }
            }
        }
    }

    proptest! {
        /// Slots behave like a map, whatever identifiers a peer makes up.
        #[test]
        fn slots_are_a_bounded_map(
            count in 1usize..40,
            steps in proptest::collection::vec((any::<bool>(), any::<u16>()), 1..300),
        ) {
            let mut slots = Slots::new(count).unwrap();
            let mut model: HashMap<Cid, usize> = HashMap::new();
            for (step, (insert, pick)) in steps.into_iter().enumerate() {
                if insert {
                    match slots.insert(step) {
                        Ok(cid) => prop_assert_eq!(model.insert(cid, step), None),
                        Err(back) => {
                            prop_assert_eq!(back, step);
                            prop_assert_eq!(model.len(), count);
                        }
                    }
                } else {
                    // Mostly one that is in flight, sometimes anything.
                    let cid = model
                        .keys()
                        .nth(usize::from(pick) % (count + 1))
                        .copied()
                        .unwrap_or(Cid(pick));
                    let expected = model.remove(&cid).ok_or(UnknownCid { cid });
                    prop_assert_eq!(slots.remove(cid), expected);
                }
                prop_assert_eq!(slots.taken(), model.len());
                prop_assert_eq!(slots.free() + slots.taken(), count);
                let all: HashMap<Cid, usize> =
                    slots.iter().map(|(cid, value)| (cid, *value)).collect();
                prop_assert_eq!(&all, &model);
            }
        }
    }
}
