//! What disks did, and what waits for room on them.

use std::time::Duration;

use nvmeof_backend::{Done, IoError, Refused, Storage, StorageError, Why};

use super::Reactor;
use crate::tag::{NO_SLOT, Tag};

impl<S: Storage> Reactor<S> {
    /// Starts what was submitted and tells queues what is done. Says whether
    /// anything was.
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

    /// A disk operation ended.
    fn executed(&mut self, done: Done, now: Duration) {
        let tag = Tag::from_bits(done.tag);
        if tag.queue == NO_SLOT {
            return self.flushed(tag.slot, &done);
        }
        // Of a queue that is gone only the buffer is left, which goes back to
        // its pool here.
        let there = self.with_queue(tag.queue, now, |queue_pair, io| {
            queue_pair.executed(tag.slot, done, io);
        });
        if there.is_none() {
            self.queues.executed(tag.queue, tag.slot);
            self.resources.accounts.tidy(now);
        }
    }

    /// Disk operations that found no room are tried again on each disk: one of each
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
                    // Whoever submits it may not be ready to hear of it yet.
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
