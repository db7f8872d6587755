//! Free memory windows, and their keys.

use std::collections::{HashMap, HashSet, VecDeque};
use std::hash::{BuildHasherDefault, Hasher};
use std::io;
use std::sync::Arc;

use nvmeof_rdma::RemoteKey;

use crate::sys::{MemoryWindow, ProtectionDomain};

/// Free windows. The one that was returned first is used next, so that its last key is long
/// gone when it gets a new one.
#[derive(Debug)]
pub(crate) struct Windows {
    free: VecDeque<Arc<MemoryWindow>>,
    made: u32,
    most: u32,
}

/// While fewer are free, a new one is created: with 256 keys each, used in sequence, a key is
/// reused after some 16,000 uses.
const RESERVE: usize = 64;

impl Windows {
    pub(crate) fn new(most: u32) -> Self {
        Self {
            free: VecDeque::new(),
            made: 0,
            most,
        }
    }

    /// Takes one. `None` if the device has no more.
    pub(crate) fn take(
        &mut self,
        pd: &Arc<ProtectionDomain>,
    ) -> io::Result<Option<Arc<MemoryWindow>>> {
        if self.free.len() < RESERVE && self.made < self.most {
            match MemoryWindow::new(pd) {
                Ok(window) => {
                    self.made += 1;
                    self.free.push_back(Arc::new(window));
                }
                Err(error) if self.free.is_empty() => return Err(error),
                // The free ones are sufficient for now.
                Err(_) => self.most = self.made,
            }
        }
        Ok(self.free.pop_front())
    }

    /// Returns one that is not bound any more.
    pub(crate) fn give_back(&mut self, window: Arc<MemoryWindow>) {
        self.free.push_back(window);
    }

    /// Records that one was destroyed instead of returned.
    pub(crate) fn lost(&mut self) {
        self.made = self.made.saturating_sub(1);
    }

    /// Destroys all that are free.
    pub(crate) fn clear(&mut self) {
        self.free.clear();
        self.made = 0;
    }
}

/// A map by key.
pub(crate) type KeyMap<T> = HashMap<RemoteKey, T, BuildHasherDefault<KeyHasher>>;

/// A cheap hash: keys are chosen by local devices, so no attacker can make them collide.
#[derive(Debug, Default)]
pub(crate) struct KeyHasher(u64);

/// 2 to the power of 64, divided by the golden ratio, and odd.
const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

impl Hasher for KeyHasher {
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u32(u32::from(*byte));
        }
    }

    fn write_u32(&mut self, number: u32) {
        let product = (self.0 ^ u64::from(number)).wrapping_mul(GOLDEN);
        // Only the upper bits depend on all of the number.
        self.0 = product ^ (product >> 32);
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

/// The keys that were withdrawn last: a device may reuse one of them.
#[derive(Debug, Default)]
pub(crate) struct Withdrawn {
    keys: HashSet<RemoteKey, BuildHasherDefault<KeyHasher>>,
    order: VecDeque<RemoteKey>,
}

/// Number of keys that are kept.
const REMEMBERED: usize = 4096;

impl Withdrawn {
    pub(crate) fn add(&mut self, key: RemoteKey) {
        if !self.keys.insert(key) {
            return;
        }
        self.order.push_back(key);
        if self.order.len() > REMEMBERED
            && let Some(oldest) = self.order.pop_front()
        {
            self.keys.remove(&oldest);
        }
    }

    pub(crate) fn contains(&self, key: RemoteKey) -> bool {
        self.keys.contains(&key)
    }
}

/// The key a window gets after `key`: the low byte is its owner's to choose
/// (InfiniBand Architecture, 10.6.7.2.3).
pub(crate) fn next_key(key: u32) -> u32 {
    (key & !0xff) | (key.wrapping_add(1) & 0xff)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn next_key_increments_low_byte_and_wraps() {
        assert_eq!(next_key(0x1234_5600), 0x1234_5601);
        assert_eq!(next_key(0x1234_56ff), 0x1234_5600);
        assert_eq!(next_key(u32::MAX), 0xffff_ff00);
        let mut key = 0xabcd_ef07;
        let mut seen = std::collections::BTreeSet::new();
        while seen.insert(key) {
            key = next_key(key);
        }
        assert_eq!(seen.len(), 256);
    }

    #[test]
    fn hash_spreads_keys_of_devices() {
        // An index in the upper 24 bits, or counted up.
        for step in [1, 0x100, 0x101] {
            let places = (0..1024u32).map(|index| {
                let mut hasher = KeyHasher::default();
                hasher.write_u32(index * step);
                hasher.finish() & 1023
            });
            let places: HashSet<_> = places.collect();
            assert!(places.len() > 500, "{} places for {step:#x}", places.len());
        }
    }

    #[test]
    fn withdrawn_keys_are_kept_for_a_while() {
        let mut withdrawn = Withdrawn::default();
        let last = u32::try_from(REMEMBERED).unwrap();
        for key in (0..last).chain([5]) {
            withdrawn.add(RemoteKey(key));
        }
        assert!(withdrawn.contains(RemoteKey(0)));
        withdrawn.add(RemoteKey(last));
        assert!(!withdrawn.contains(RemoteKey(0)));
        assert!(withdrawn.contains(RemoteKey(1)) && withdrawn.contains(RemoteKey(last)));
        assert_eq!(withdrawn.keys.len(), withdrawn.order.len());
    }
}
