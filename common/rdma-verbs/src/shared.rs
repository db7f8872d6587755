//! The shared receive queue of a device: posted receives, and queue pairs that use it.

use std::io;
use std::sync::Arc;

use nvmeof_memory::Buf;
use nvmeof_rdma::{QpId, SharedReceives, SrqId, Tag, explain};

use crate::outstanding::RecvItem;
use crate::sys::{RecvChain, Segment, SharedReceiveQueue};
use crate::work_id::WorkId;

/// A shared receive queue. Fields are dropped in this order: the device forgets the memory
/// before its owner may use it again.
#[derive(Debug)]
pub(crate) struct Shared {
    srq: Arc<SharedReceiveQueue>,
    pub(crate) is: SharedReceives,
    /// Number of the completion queue that all receives complete on. It may have other work
    /// as well.
    pub(crate) queue: usize,
    chain: RecvChain,
    /// Queue pairs by the device's number for them, sorted.
    drawing: Vec<(u32, QpId)>,
    /// Index of the one whose message came last.
    last: usize,
    pub(crate) users: Users,
    /// Queued and posted receives, by the number in their work request ID.
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
            drawing: Vec::new(),
            last: 0,
            users: Users::new(entries, waits),
            posted: Vec::new(),
            free: Vec::new(),
        }
    }

    /// Destroys it, when no queue pair uses it any more. Buffers that the device may still
    /// access are leaked.
    pub(crate) fn close(self) {
        let Self { srq, posted, .. } = self;
        if let Err(error) = SharedReceiveQueue::close(srq) {
            let error = explain(&error);
            tracing::error!("cannot drain a shared receive queue, its buffers are leaked: {error}");
            std::mem::forget(posted);
        }
    }

    pub(crate) fn srq(&self) -> &Arc<SharedReceiveQueue> {
        &self.srq
    }

    /// Records that the device has created the queue pair.
    pub(crate) fn add_user(&mut self, number: u32, qp: QpId) {
        match self.index_of(number) {
            Ok(index) => {
                if let Some(entry) = self.drawing.get_mut(index) {
                    entry.1 = qp;
                }
            }
            Err(index) => self.drawing.insert(index, (number, qp)),
        }
    }

    /// Removes a destroyed queue pair, of which no completion is left.
    pub(crate) fn forget(&mut self, number: u32) {
        if let Ok(index) = self.index_of(number) {
            self.drawing.remove(index);
        }
    }

    /// All queue pairs that use it.
    pub(crate) fn users(&self) -> impl Iterator<Item = QpId> {
        self.drawing.iter().map(|(_, qp)| *qp)
    }

    fn index_of(&self, number: u32) -> Result<usize, usize> {
        self.drawing.binary_search_by_key(&number, |entry| entry.0)
    }

    /// The queue pair with that number. Messages often come in a row.
    pub(crate) fn user(&mut self, number: u32) -> Option<QpId> {
        match self.drawing.get(self.last) {
            Some((last, qp)) if *last == number => Some(*qp),
            _ => {
                self.last = self.index_of(number).ok()?;
                Some(self.drawing.get(self.last)?.1)
            }
        }
    }

    pub(crate) fn is_full(&self) -> bool {
        self.posted.len() - self.free.len() >= self.is.entries as usize
    }

    /// Queues a receive into the view of `buf`, which is `room` for the device, for the next
    /// [`post`](Self::post). The chain must not be full.
    pub(crate) fn queue(&mut self, tag: Tag, buf: Buf, room: Segment) {
        let number = self.free.pop().unwrap_or_else(|| {
            self.posted.push(None);
            self.posted.len() - 1
        });
        self.chain
            .push(WorkId::of_shared(number as u64), Some(room));
        if let Some(place) = self.posted.get_mut(number) {
            *place = Some(RecvItem {
                tag,
                buf,
                len: 0,
                invalidated: None,
            });
        }
    }

    pub(crate) fn is_chain_full(&self) -> bool {
        self.chain.is_full()
    }

    pub(crate) fn has_chained(&self) -> bool {
        !self.chain.is_empty()
    }

    /// Posts what was queued. After an error, the device may have taken some of it.
    pub(crate) fn post(&mut self) -> io::Result<()> {
        #[allow(unsafe_code, reason = "the buffers are kept here until they complete")]
        // SAFETY: each receive names the buffer that is kept under its number until the receive is
        // completed or the queue is destroyed.
        unsafe {
            self.chain.post_shared(&self.srq)
        }
    }

    /// The receive of a completion.
    pub(crate) fn take(&mut self, number: u64) -> Option<RecvItem> {
        let number = usize::try_from(number).ok()?;
        let item = self.posted.get_mut(number)?.take()?;
        self.free.push(number);
        Some(item)
    }
}

/// Queue pairs that use one queue, including those that the device has not created yet.
#[derive(Debug)]
pub(crate) struct Users {
    count: u32,
    /// Total number of messages that their peers may send before the first one gets its
    /// response.
    promised: u32,
    entries: u32,
    /// Whether messages may wait.
    waits: bool,
}

impl Users {
    fn new(entries: u32, waits: bool) -> Self {
        Self {
            count: 0,
            promised: 0,
            entries,
            waits,
        }
    }

    /// Adds a queue pair, whose peer may send `recvs` messages before the first one gets its
    /// response. False, without a change, if messages must not wait and there would be too
    /// many.
    pub(crate) fn join(&mut self, recvs: u32) -> bool {
        let promised = self.promised.saturating_add(recvs);
        if !self.waits && promised > self.entries {
            return false;
        }
        self.promised = promised;
        self.count += 1;
        true
    }

    /// Removes a queue pair that was added with `recvs`.
    pub(crate) fn leave(&mut self, recvs: u32) {
        self.promised = self.promised.saturating_sub(recvs);
        self.count = self.count.saturating_sub(1);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.count == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queue_pairs_are_limited_where_messages_must_not_wait() {
        let mut users = Users::new(64, false);
        assert!(!users.join(65));
        assert!(users.is_empty());
        assert!(users.join(40));
        assert!(!users.join(25));
        assert!(users.join(24));
        users.leave(40);
        assert!(users.join(40));
        users.leave(40);
        users.leave(24);
        assert!(users.is_empty());
    }

    #[test]
    fn queue_pairs_are_unlimited_where_messages_may_wait() {
        let mut users = Users::new(64, true);
        assert!((0..100).all(|_| users.join(128)));
    }
}
