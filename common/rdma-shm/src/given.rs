//! Our memory that peers may use in place: which of our keys they were granted.

use nvmeof_memory::{Buf, Region, RegionId};
use nvmeof_rdma::QpId;

use crate::grant::{PLACES, place};

/// The regions of a provider, and its keys that peers were granted.
#[derive(Debug, Default)]
pub(crate) struct Given {
    /// All that are registered: a handful, one for each pool.
    known: Vec<RegionId>,
    /// Those that can be passed to a peer, by the number that peers know.
    shareable: Vec<Region>,
    /// One for each place, once there is any.
    keys: Vec<Option<Key>>,
}

#[derive(Clone, Copy, Debug)]
struct Key {
    key: u32,
    owner: QpId,
}

impl Given {
    pub(crate) fn register(&mut self, region: &Region) {
        if self.known.contains(&region.id()) {
            return;
        }
        self.known.push(region.id());
        if region.file().is_some() {
            self.shareable.push(region.clone());
        }
    }

    pub(crate) fn is_registered(&self, buf: &Buf) -> bool {
        self.known.contains(&buf.region())
    }

    /// What can be passed, by number.
    pub(crate) fn region(&self, number: usize) -> Option<&Region> {
        self.shareable.get(number)
    }

    /// The number of the region that a buffer lies in, if it can be passed.
    pub(crate) fn number_of(&self, buf: &Buf) -> Option<usize> {
        let id = buf.region();
        self.shareable.iter().position(|region| region.id() == id)
    }

    /// Takes the place of `key`. False when another one has it.
    pub(crate) fn give(&mut self, key: u32, owner: QpId) -> bool {
        if self.keys.is_empty() {
            self.keys.resize(PLACES, None);
        }
        match self.keys.get_mut(place(key)) {
            Some(free @ None) => {
                *free = Some(Key { key, owner });
                true
            }
            _ => false,
        }
    }

    /// To whom `key` is granted.
    pub(crate) fn owner(&self, key: u32) -> Option<QpId> {
        let found = (*self.keys.get(place(key))?)?;
        (found.key == key).then_some(found.owner)
    }

    /// The peer does not use `key` any more.
    pub(crate) fn take_back(&mut self, key: u32) {
        if self.owner(key).is_some()
            && let Some(place) = self.keys.get_mut(place(key))
        {
            *place = None;
        }
    }

    /// The keys that the peer of a connection has.
    pub(crate) fn keys_of(&self, owner: QpId) -> impl Iterator<Item = u32> {
        let all = self.keys.iter().flatten();
        all.filter(move |key| key.owner == owner).map(|key| key.key)
    }
}
