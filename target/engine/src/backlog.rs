//! Operations that found no free slot, by backing store: one that accepts no operations
//! does not block the others.

use std::collections::{BTreeMap, VecDeque};

use nvmeof_backend::Request;

use crate::fair_queue::{FairQueue, HostId};

/// The operations that wait for a free slot of their backing store: a fair queue over
/// addresses and hosts for each backing store.
#[derive(Debug, Default)]
pub(crate) struct Backlog {
    /// Backing stores with pending operations.
    stores: BTreeMap<u32, FairQueue<Request>>,
}

impl Backlog {
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.stores.is_empty()
    }

    /// Pending operations of all backing stores.
    pub(crate) fn len(&self) -> usize {
        self.stores.values().map(FairQueue::len).sum()
    }

    /// Whether an operation for `store` is pending.
    #[inline]
    pub(crate) fn waits_for(&self, store: u32) -> bool {
        !self.is_empty() && self.has_store(store)
    }

    #[cold]
    fn has_store(&self, store: u32) -> bool {
        self.stores.contains_key(&store)
    }

    /// Whether the operation with that tag is pending.
    pub(crate) fn has(&self, tag: u64) -> bool {
        let mut all = self.stores.values().flat_map(FairQueue::iter);
        all.any(|request| request.tag == tag)
    }

    /// Appends `request` to the pending operations of `host` for `store`.
    #[cold]
    pub(crate) fn push(&mut self, host: HostId, store: u32, request: Request) {
        self.stores.entry(store).or_default().push(host, request);
    }

    /// The first backing store with pending operations, from number `store` on.
    pub(crate) fn next_store(&self, store: u32) -> Option<u32> {
        self.stores.range(store..).next().map(|(store, _)| *store)
    }

    /// The next operation of the current host on `store`, which stays current until
    /// [`advance`](Self::advance).
    pub(crate) fn pop(&mut self, store: u32) -> Option<Request> {
        self.stores.get_mut(&store)?.pop()
    }

    /// Returns the operation that was popped last to the front.
    pub(crate) fn put_back(&mut self, store: u32, request: Request) {
        if let Some(fair_queue) = self.stores.get_mut(&store) {
            fair_queue.put_back(request);
        }
    }

    /// The operation that was popped was submitted: moves on to the next address on
    /// `store`.
    pub(crate) fn advance(&mut self, store: u32) {
        if let Some(fair_queue) = self.stores.get_mut(&store) {
            fair_queue.advance();
            if fair_queue.is_empty() {
                self.stores.remove(&store);
            }
        }
    }

    /// Removes an operation of `host` that `wanted` accepts.
    pub(crate) fn remove(
        &mut self,
        host: HostId,
        wanted: impl Fn(&Request) -> bool,
    ) -> Option<Request> {
        let mut each = self.stores.values_mut();
        let request = each.find_map(|fair_queue| fair_queue.remove(host, &wanted));
        self.stores.retain(|_, fair_queue| !fair_queue.is_empty());
        request
    }

    /// Removes all operations of `host` that `wanted` accepts.
    pub(crate) fn remove_all(
        &mut self,
        host: HostId,
        wanted: impl Fn(&Request) -> bool,
    ) -> VecDeque<Request> {
        let each = self.stores.values_mut();
        let out = each.flat_map(|fair_queue| fair_queue.remove_all(host, &wanted));
        let out = out.collect();
        self.stores.retain(|_, fair_queue| !fair_queue.is_empty());
        out
    }
}
