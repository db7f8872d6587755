//! The shared receive queue of a device: what is posted, and who draws from it.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;

use nvmeof_memory::Buf;
use nvmeof_rdma::{QpId, SharedReceives, SrqId, Tag};

use crate::conn::RecvItem;
use crate::sys::{RecvChain, Segment, SharedReceiveQueue};

/// A shared receive queue. The fields stand in the order in which they go: the
/// device forgets the memory before its owner may use it again.
#[derive(Debug)]
pub(crate) struct Shared {
    srq: Arc<SharedReceiveQueue>,
    pub(crate) is: SharedReceives,
    /// Number of the completion queue that all receives complete on.
    pub(crate) queue: usize,
    chain: RecvChain,
    /// Queue pairs by the device's number for them.
    drawing: HashMap<u32, QpId>,
    /// Queue pairs that draw, also those that the device does not have yet.
    users: u32,
    /// Messages that their peers may send before one is answered, in all.
    promised: u32,
    /// Whether messages may wait.
    waits: bool,
    /// What is posted, by the number that its completion carries.
    posted: Vec<Option<RecvItem>>,
    free: Vec<usize>,
}

impl Shared {
    pub(crate) fn new(
        id: SrqId,
        srq: Arc<SharedReceiveQueue>,
        entries: u32,
        queue: usize,
        waits: bool,
    ) -> Self {
        Self {
            srq,
            is: SharedReceives { srq: id, entries },
            queue,
            chain: RecvChain::new(),
            drawing: HashMap::new(),
            users: 0,
            promised: 0,
            waits,
            posted: Vec::new(),
            free: Vec::new(),
        }
    }

    pub(crate) fn srq(&self) -> &Arc<SharedReceiveQueue> {
        &self.srq
    }

    /// One more queue pair is going to draw, whose peer may send `recvs`
    /// messages before one is answered. False, and nothing is changed, where
    /// messages must not wait and it would be too many.
    pub(crate) fn join(&mut self, recvs: u32) -> bool {
        let promised = self.promised.saturating_add(recvs);
        if !self.waits && promised > self.is.entries {
            return false;
        }
        self.promised = promised;
        self.users += 1;
        true
    }

    /// The device has the queue pair.
    pub(crate) fn draws(&mut self, number: u32, qp: QpId) {
        self.drawing.insert(number, qp);
    }

    /// A queue pair is gone, of which no completion is left. Returns whether
    /// none draws any more.
    pub(crate) fn leave(&mut self, number: Option<u32>, recvs: u32) -> bool {
        self.promised = self.promised.saturating_sub(recvs);
        if let Some(number) = number {
            self.drawing.remove(&number);
        }
        self.users = self.users.saturating_sub(1);
        self.users == 0
    }

    pub(crate) fn is_used(&self) -> bool {
        self.users > 0
    }

    /// All queue pairs that draw.
    pub(crate) fn drawers(&self) -> impl Iterator<Item = QpId> {
        self.drawing.values().copied()
    }

    /// The queue pair with that number.
    pub(crate) fn drawer(&self, number: u32) -> Option<QpId> {
        self.drawing.get(&number).copied()
    }

    pub(crate) fn is_full(&self) -> bool {
        self.posted.len() - self.free.len() >= self.is.entries as usize
    }

    /// Posts a receive into `room`, which is what `buf` has in view. Gives the
    /// buffer back when the device does not take it.
    pub(crate) fn post(
        &mut self,
        tag: Tag,
        buf: Buf,
        room: Segment,
    ) -> Result<(), (io::Error, Buf)> {
        let number = self.free.pop().unwrap_or_else(|| {
            self.posted.push(None);
            self.posted.len() - 1
        });
        self.chain.push(number as u64, Some(room));
        if let Err(error) = self.chain.post_shared(&self.srq) {
            self.free.push(number);
            return Err((error, buf));
        }
        if let Some(place) = self.posted.get_mut(number) {
            *place = Some(RecvItem {
                tag,
                buf,
                len: 0,
                invalidated: None,
            });
        }
        Ok(())
    }

    /// The receive of a completion.
    pub(crate) fn take(&mut self, number: u64) -> Option<RecvItem> {
        let number = usize::try_from(number).ok()?;
        let item = self.posted.get_mut(number)?.take()?;
        self.free.push(number);
        Some(item)
    }
}
