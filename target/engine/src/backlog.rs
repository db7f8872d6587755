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
    disks: BTreeMap<u32, FairQueue<Request>>,
}

impl Backlog {
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.disks.is_empty()
    }

    /// Pending operations of all backing stores.
    pub(crate) fn len(&self) -> usize {
        self.disks.values().map(FairQueue::len).sum()
    }

    /// Whether an operation for `disk` is pending.
    #[inline]
    pub(crate) fn waits_for(&self, disk: u32) -> bool {
        !self.is_empty() && self.has_disk(disk)
    }

    #[cold]
    fn has_disk(&self, disk: u32) -> bool {
        self.disks.contains_key(&disk)
    }

    /// Whether the operation with that tag is pending.
    pub(crate) fn has(&self, tag: u64) -> bool {
        let mut all = self.disks.values().flat_map(FairQueue::iter);
        all.any(|request| request.tag == tag)
    }

    /// Appends `request` to the pending operations of `host` for `disk`.
    #[cold]
    pub(crate) fn push(&mut self, host: HostId, disk: u32, request: Request) {
        self.disks.entry(disk).or_default().push(host, request);
    }

    /// The first backing store with pending operations, from number `disk` on.
    pub(crate) fn next_disk(&self, disk: u32) -> Option<u32> {
        self.disks.range(disk..).next().map(|(disk, _)| *disk)
    }

    /// The next operation of the current host on `disk`, which stays current until
    /// [`pass`](Self::pass).
    pub(crate) fn pop(&mut self, disk: u32) -> Option<Request> {
        self.disks.get_mut(&disk)?.pop()
    }

    /// Returns the operation that was popped last to the front.
    pub(crate) fn put_back(&mut self, disk: u32, request: Request) {
        if let Some(fair_queue) = self.disks.get_mut(&disk) {
            fair_queue.put_back(request);
        }
    }

    /// The operation that was popped was submitted: moves on to the next address on
    /// `disk`.
    pub(crate) fn pass(&mut self, disk: u32) {
        if let Some(fair_queue) = self.disks.get_mut(&disk) {
            fair_queue.pass();
            if fair_queue.is_empty() {
                self.disks.remove(&disk);
            }
        }
    }

    /// Removes an operation of `host` that `wanted` accepts.
    pub(crate) fn remove(
        &mut self,
        host: HostId,
        wanted: impl Fn(&Request) -> bool,
    ) -> Option<Request> {
        let mut each = self.disks.values_mut();
        let request = each.find_map(|fair_queue| fair_queue.remove(host, &wanted));
        self.disks.retain(|_, fair_queue| !fair_queue.is_empty());
        request
    }

    /// Removes all operations of `host` that `wanted` accepts.
    pub(crate) fn remove_all(
        &mut self,
        host: HostId,
        wanted: impl Fn(&Request) -> bool,
    ) -> VecDeque<Request> {
        let each = self.disks.values_mut();
        let out = each.flat_map(|fair_queue| fair_queue.remove_all(host, &wanted));
        let out = out.collect();
        self.disks.retain(|_, fair_queue| !fair_queue.is_empty());
        out
    }
}
