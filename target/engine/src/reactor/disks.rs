//! Completions of backing stores, and operations that wait for a free slot there.

use std::time::Duration;

use nvmeof_backend::{Done, IoError, Refused, Storage, StorageError, Why};
use nvmeof_target_core::FollowUps;

use super::Reactor;
use crate::tag::{NO_SLOT, Tag};

impl<S: Storage> Reactor<S> {
    /// Submits pending operations and passes completions to the queues. Returns whether
    /// there were any.
    pub(super) fn poll_storage(&mut self, now: Duration) -> Result<bool, StorageError> {
        let mut done = std::mem::take(&mut self.done);
        let polled = self.storage.poll(&mut done);
        let any = !done.is_empty();
        for done in done.drain(..) {
            self.executed(done, now);
        }
        done.append(&mut self.done);
        self.done = done;
        self.submit_backlog(now);
        polled.map(|()| any)
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
            self.resources.accounts.tidy(now);
        }
    }

    /// Submits operations that wait for a free slot, for each backing store: one of each
    /// address, then another of each.
    #[inline]
    pub(super) fn submit_backlog(&mut self, now: Duration) {
        if !self.resources.backlog.is_empty() {
            self.submit_backlogs(now);
        }
    }

    fn submit_backlogs(&mut self, now: Duration) {
        let mut next = self.resources.backlog.next_disk(0);
        while let Some(disk) = next {
            self.submit_backlog_of(disk, now);
            next = disk
                .checked_add(1)
                .and_then(|from| self.resources.backlog.next_disk(from));
        }
    }

    fn submit_backlog_of(&mut self, disk: u32, now: Duration) {
        while let Some(request) = self.resources.backlog.pop(disk) {
            match self.storage.submit(disk, request) {
                Ok(done) => {
                    self.resources.backlog.pass(disk);
                    // The submitter may not be ready for the completion yet.
                    self.done.extend(done);
                }
                Err(Refused {
                    why: Why::Full,
                    back,
                }) => {
                    self.resources.backlog.put_back(disk, back);
                    return;
                }
                Err(Refused {
                    why: Why::NotOpen,
                    back,
                }) => {
                    self.resources.backlog.pass(disk);
                    let result = Err(IoError::not_open(disk));
                    let (tag, buf) = (back.tag, back.op.into_buf());
                    self.executed(Done { tag, buf, result }, now);
                }
            }
        }
    }
}
