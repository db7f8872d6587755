//! Local memory that is granted to peers, by key.

use nvmeof_memory::{Buf, Region, RegionId};
use nvmeof_rdma::QpId;

use crate::channel::{GRANT_SLOTS, grant_slot};

/// The regions of a provider, and the keys granted to peers.
#[derive(Debug, Default)]
pub(crate) struct SharedRegions {
    /// All registered regions, usually one for each pool, with the number that peers use for
    /// those that can be passed.
    known: Vec<(RegionId, Option<usize>)>,
    /// Regions that can be passed to a peer, by number.
    shareable: Vec<Region>,
    /// One entry for each slot, once a key is granted.
    keys: Vec<Option<Key>>,
}

#[derive(Clone, Copy, Debug)]
struct Key {
    key: u32,
    owner: QpId,
}

impl SharedRegions {
    pub(crate) fn register(&mut self, region: &Region) {
        if self.known.iter().any(|(id, _)| *id == region.id()) {
            return;
        }
        let number = region.file().map(|_| self.shareable.len());
        self.known.push((region.id(), number));
        if number.is_some() {
            self.shareable.push(region.clone());
        }
    }

    /// The region that a buffer lies in, if it is registered: its number, if it
    /// can be passed.
    #[inline]
    pub(crate) fn find(&self, buf: &Buf) -> Option<Option<usize>> {
        let id = buf.region();
        let found = self.known.iter().find(|(known, _)| *known == id);
        found.map(|(_, number)| *number)
    }

    /// A region that can be passed, by number.
    pub(crate) fn region(&self, number: usize) -> Option<&Region> {
        self.shareable.get(number)
    }

    /// Takes the slot of `key`. False when another key has it.
    pub(crate) fn grant(&mut self, key: u32, owner: QpId) -> bool {
        if self.keys.is_empty() {
            self.keys.resize(GRANT_SLOTS, None);
        }
        match self.keys.get_mut(grant_slot(key)) {
            Some(free @ None) => {
                *free = Some(Key { key, owner });
                true
            }
            _ => false,
        }
    }

    /// The connection to which `key` is granted.
    pub(crate) fn owner(&self, key: u32) -> Option<QpId> {
        let found = (*self.keys.get(grant_slot(key))?)?;
        (found.key == key).then_some(found.owner)
    }

    /// Frees the slot of `key`, which the peer does not use any more.
    pub(crate) fn take_back(&mut self, key: u32) {
        if self.owner(key).is_some()
            && let Some(place) = self.keys.get_mut(grant_slot(key))
        {
            *place = None;
        }
    }

    /// The keys granted to the peer of a connection.
    pub(crate) fn keys_of(&self, owner: QpId) -> impl Iterator<Item = u32> {
        let all = self.keys.iter().flatten();
        all.filter(move |key| key.owner == owner).map(|key| key.key)
    }
}
