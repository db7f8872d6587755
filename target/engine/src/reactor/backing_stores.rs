//! Completions of backing stores, and operations that wait for a free slot there.

use std::time::Duration;

use nvmeof_backend::{BackingStores, BackingStoresError, Done, IoError, RefusalReason, Submitted};
use nvmeof_target_core::FollowUps;

use super::Reactor;
use crate::tag::{NO_SLOT, Tag};

impl<S: BackingStores> Reactor<S> {
    /// Submits pending operations and passes completions to the queues. Returns whether
    /// there were any.
    pub(super) fn poll_stores(&mut self, now: Duration) -> Result<bool, BackingStoresError> {
        let polled = self.stores.poll(&mut self.done);
        let any = !self.done.is_empty();
        if any {
            self.execute_done(now);
        }
        self.submit_backlog(now);
        polled.map(|()| any)
    }

    fn execute_done(&mut self, now: Duration) {
        let mut done = std::mem::take(&mut self.done);
        for done in done.drain(..) {
            self.executed(done, now);
        }
        done.append(&mut self.done);
        self.done = done;
    }

    /// An operation of a backing store completed.
    fn executed(&mut self, done: Done, now: Duration) {
        let tag = Tag::from_bits(done.tag);
        if tag.queue == NO_SLOT {
            return self.flushed(tag.slot, &done);
        }
        // Of a closed queue only the buffer is left. It returns to its pool here.
        let there = self.with_queue(tag.queue, now, |queue_pair, io| {
            queue_pair.executed(tag.slot, done, io);
        });
        if there.is_none() {
            if self.queues.executed(tag.queue, tag.slot) {
                self.resources.follow_ups |= FollowUps::POLL_ALL;
            }
            self.resources.accounts.remove_unused(now);
        }
    }

    /// Submits operations that wait for a free slot, for each backing store: one of each
    /// address, then another of each.
    #[inline(always)]
    pub(super) fn submit_backlog(&mut self, now: Duration) {
        if !self.resources.backlog.is_empty() {
            self.submit_backlogs(now);
        }
    }

    fn submit_backlogs(&mut self, now: Duration) {
        let mut next = self.resources.backlog.next_store(0);
        while let Some(store) = next {
            self.submit_backlog_of(store, now);
            next = store
                .checked_add(1)
                .and_then(|from| self.resources.backlog.next_store(from));
        }
    }

    fn submit_backlog_of(&mut self, store: u32, now: Duration) {
        while let Some(mut request) = self.resources.backlog.pop(store) {
            let tag = request.tag;
            let submitted = self.stores.submit(store, &mut request);
            if let Err(RefusalReason::Full) = submitted {
                self.resources.backlog.put_back(store, request);
                return;
            }
            self.resources.backlog.advance(store);
            let buf = request.op.into_buf();
            match submitted {
                // The submitter may not be ready for the completion yet.
                Ok(Submitted::Done(result)) => self.done.push(Done { tag, buf, result }),
                Ok(Submitted::Pending) => {}
                Err(_) => {
                    let result = Err(IoError::not_open(store));
                    self.executed(Done { tag, buf, result }, now);
                }
            }
        }
    }
}
