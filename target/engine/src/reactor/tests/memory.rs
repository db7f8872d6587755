//! Backing stores in memory: all operations complete at the next poll, unless held.

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use nix::errno::Errno;
use nvmeof_backend::{
    BackingStores, BackingStoresError, Done, IoError, IoErrorKind, Losses, Op, RefusalReason,
    Request, Submitted, flush_begins,
};

pub(in super::super) struct MemoryStores {
    pub(in super::super) contents: Vec<Vec<u8>>,
    pub(in super::super) flushes: usize,
    /// Executed operations, in order.
    pub(in super::super) verbs: Vec<&'static str>,
    /// Those of them that required stable data first.
    pub(in super::super) durable: Vec<&'static str>,
    pub(in super::super) bytes_read: usize,
    /// Nothing completes while this is set.
    pub(in super::super) hold: bool,
    /// Except so many, oldest first.
    pub(in super::super) completes: usize,
    /// Slots of each backing store.
    pub(in super::super) room: usize,
    /// Completes nothing.
    pub(in super::super) stalled_store: Option<u32>,
    /// Completes operations at submission if there is a free slot.
    pub(in super::super) at_once: bool,
    waiting: Vec<(u32, Request)>,
    /// The error of every operation.
    pub(in super::super) fails: Option<Errno>,
    /// Bytes of an operation before it fails.
    pub(in super::super) fails_after: u64,
    /// Whether all of them are the same storage.
    pub(in super::super) same: bool,
    pub(in super::super) closed: Vec<u32>,
    /// By [`identity`](BackingStores::identity).
    pub(in super::super) losses: Vec<Arc<Losses>>,
}

impl MemoryStores {
    pub(in super::super) fn new(count: usize, len: u64) -> Self {
        Self {
            contents: vec![vec![0; usize::try_from(len).unwrap()]; count],
            flushes: 0,
            verbs: Vec::new(),
            durable: Vec::new(),
            bytes_read: 0,
            hold: false,
            completes: 0,
            room: usize::MAX,
            stalled_store: None,
            at_once: false,
            waiting: Vec::new(),
            fails: None,
            fails_after: 0,
            same: false,
            closed: Vec::new(),
            losses: (0..count).map(|_| Losses::of_its_own()).collect(),
        }
    }

    pub(in super::super) fn in_flight(&self) -> usize {
        self.waiting.len()
    }

    /// Reverses the order of outstanding operations.
    pub(in super::super) fn last_first(&mut self) {
        self.waiting.reverse();
    }

    /// Outstanding operations at `offset`.
    pub(in super::super) fn in_flight_at(&self, offset: u64) -> usize {
        let all = self.waiting.iter();
        let there = all.filter(|(_, request)| request.op.range().0 == offset);
        there.count()
    }

    fn execute(&mut self, store: u32, op: Op) -> Option<nvmeof_memory::Buf> {
        if let Op::Write { fua: true, .. }
        | Op::WriteZeroes { fua: true, .. }
        | Op::Deallocate { fua: true, .. } = op
        {
            self.durable.push(op.verb());
        }
        let store = &mut self.contents[usize::try_from(store).unwrap()];
        let range = |offset: u64, len: usize| {
            let start = usize::try_from(offset).unwrap();
            start..start + len
        };
        match op {
            Op::Read { offset, mut buf } => {
                let len = buf.len();
                self.bytes_read += len;
                buf.copy_from_slice(&store[range(offset, len)]);
                Some(buf)
            }
            Op::Write { offset, buf, .. } => {
                assert!(buf.addr().is_multiple_of(512), "misaligned");
                store[range(offset, buf.len())].copy_from_slice(&buf);
                Some(buf)
            }
            Op::Flush => {
                self.flushes += 1;
                None
            }
            Op::WriteZeroes { offset, len, .. } | Op::Deallocate { offset, len, .. } => {
                store[range(offset, usize::try_from(len).unwrap())].fill(0);
                None
            }
        }
    }
}

impl BackingStores for MemoryStores {
    fn stores(&self) -> Vec<u32> {
        let all = 0..u32::try_from(self.contents.len()).unwrap();
        all.filter(|store| !self.closed.contains(store)).collect()
    }

    fn close(&mut self, store: u32) -> bool {
        let idle = self.waiting.iter().all(|(one, _)| *one != store);
        if idle {
            self.closed.push(store);
        }
        idle
    }

    fn buffer_alignment(&self, _store: u32) -> u32 {
        512
    }

    fn identity(&self, store: u32) -> u64 {
        if self.same { 0 } else { store.into() }
    }

    fn losses(&self, store: u32) -> Option<Arc<Losses>> {
        let its = usize::try_from(self.identity(store)).unwrap();
        Some(Arc::clone(&self.losses[its]))
    }

    fn submit(&mut self, store: u32, request: &mut Request) -> Result<Submitted, RefusalReason> {
        assert!(!self.closed.contains(&store), "store {store} is closed");
        let its = self.waiting.iter().filter(|(one, _)| *one == store);
        if its.count() >= self.room {
            return Err(RefusalReason::Full);
        }
        let (tag, op) = (request.tag, request.op.take());
        if self.at_once {
            let offset = op.range().0;
            // The request keeps its buffer.
            if let Some(buf) = self.execute(store, op) {
                request.op = Op::Read { offset, buf };
            }
            return Ok(Submitted::Done(Ok(())));
        }
        self.waiting.push((store, Request { tag, op }));
        Ok(Submitted::Pending)
    }

    fn poll(&mut self, done: &mut Vec<Done>) -> Result<(), BackingStoresError> {
        let mut count = self.waiting.len();
        if self.hold {
            count = count.min(std::mem::take(&mut self.completes));
        }
        let stalled_store = self.stalled_store;
        let is_stalled = |(store, _): &mut (u32, Request)| Some(*store) == stalled_store;
        let stalled: Vec<_> = self.waiting.extract_if(.., is_stalled).collect();
        let count = count.min(self.waiting.len());
        let waiting: Vec<_> = self.waiting.drain(..count).collect();
        self.waiting.extend(stalled);
        for (store, request) in waiting {
            let tag = request.tag;
            self.verbs.push(request.op.verb());
            let losses = self.losses(store).unwrap();
            let is_flush = matches!(request.op, Op::Flush);
            if let Some(errno) = self.fails {
                if is_flush {
                    losses.add();
                }
                let error = IoError {
                    kind: IoErrorKind::of(errno),
                    errno,
                    verb: request.op.verb(),
                    path: "memory".into(),
                    offset: request.op.range().0 + self.fails_after,
                };
                let (buf, result) = (request.op.into_buf(), Err(error));
                done.push(Done { tag, buf, result });
                continue;
            }
            if is_flush {
                losses.flushed(flush_begins());
            }
            let buf = self.execute(store, request.op);
            let result = Ok(());
            done.push(Done { tag, buf, result });
        }
        Ok(())
    }

    fn may_sleep(&mut self) -> Result<bool, BackingStoresError> {
        Ok(true)
    }

    fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}
