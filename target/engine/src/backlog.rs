//! Disk operations that found no room, by disk: a disk that takes none keeps no other
//! waiting.

use std::collections::{BTreeMap, VecDeque};

use nvmeof_backend::Request;

use crate::fair_queue::{FairQueue, HostId};

/// The operations that wait for a free slot of their backing store. On each of them
/// addresses take turns, and their hosts.
#[derive(Debug, Default)]
pub(crate) struct Backlog {
    /// Of disks for which anything waits.
    disks: BTreeMap<u32, FairQueue<Request>>,
}

impl Backlog {
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.disks.is_empty()
    }

    /// Operations on all disks.
    pub(crate) fn len(&self) -> usize {
        self.disks.values().map(FairQueue::len).sum()
    }

    /// Whether anything waits for `disk`.
    #[inline]
    pub(crate) fn waits_for(&self, disk: u32) -> bool {
        !self.is_empty() && self.has_disk(disk)
    }

    #[cold]
    fn has_disk(&self, disk: u32) -> bool {
        self.disks.contains_key(&disk)
    }

    /// Whether the operation of that tag waits.
    pub(crate) fn has(&self, tag: u64) -> bool {
        let mut all = self.disks.values().flat_map(FairQueue::iter);
        all.any(|request| request.tag == tag)
    }

    /// Behind what `host` has already for `disk`.
    #[cold]
    pub(crate) fn push(&mut self, host: HostId, disk: u32, request: Request) {
        self.disks.entry(disk).or_default().push(host, request);
    }

    /// The first disk from `disk` on for which anything waits.
    pub(crate) fn next_disk(&self, disk: u32) -> Option<u32> {
        self.disks.range(disk..).next().map(|(disk, _)| *disk)
    }

    /// The first operation of the host whose turn it is on `disk`, which it stays until
    /// [`pass`](Self::pass).
    pub(crate) fn pop(&mut self, disk: u32) -> Option<Request> {
        self.disks.get_mut(&disk)?.pop()
    }

    /// Takes back what was popped last.
    pub(crate) fn put_back(&mut self, disk: u32, request: Request) {
        if let Some(fair_queue) = self.disks.get_mut(&disk) {
            fair_queue.put_back(request);
        }
    }

    /// What was popped was taken: it is the next address's turn on `disk`.
    pub(crate) fn pass(&mut self, disk: u32) {
        if let Some(fair_queue) = self.disks.get_mut(&disk) {
            fair_queue.pass();
            if fair_queue.is_empty() {
                self.disks.remove(&disk);
            }
        }
    }

    /// Takes out an operation of `host` that `wanted` says yes to.
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

    /// Takes out all operations of `host` that `wanted` says yes to.
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
