//! The results that a correct disk may return.
//!
//! For each block there is a list of candidates: the writes whose value it may
//! hold now or after a crash. Time is counted in events. A candidate leaves
//! for two separate reasons:
//!
//! * it is *stale*, no read may return it: a write that started after the
//!   candidate had ended was acknowledged, or a read that started after the
//!   candidate had ended returned another value;
//! * it is *superseded*, it cannot come back with a crash: a write that
//!   started after the candidate had ended is known to be on stable media,
//!   because it was acknowledged with FUA, or before a flush was sent that was
//!   then acknowledged (NVMe Base 2.0, section 7.1; NVM 1.0, section 3.2.4).
//!
//! A flush that fails may lose writes of all hosts. Each host is notified by one of its own
//! flushes. From then on, nothing is known about writes that it sent before. After a loss, a
//! completed flush therefore proves only writes of its own host.
//!
//! Writes that overlap in time may take effect in either order, block by block.
//! A write that failed may have changed any of its blocks. A write without a response may
//! still take effect until it is settled: no work on it remains. Once the target has
//! released its queue, it must not take effect after a newer write was acknowledged.
//!
//! A reservation may exclude a host. From then on its writes in progress, with a response or
//! without, take no effect until the host is allowed again: see [`Oracle::exclude`].

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use crate::content::{Value, ZEROES};

/// Number of an operation: when it started. Also the value that a write
/// writes.
pub(crate) type OpId = u64;

/// Knows all namespaces.
#[derive(Debug)]
pub(crate) struct Oracle {
    /// By namespace, then by block.
    blocks: Vec<Vec<Block>>,
    /// Operations in progress, and writes without a response.
    ops: BTreeMap<OpId, Op>,
    clock: u64,
    /// Crashes so far.
    epoch: u32,
    /// Namespaces with a flush that failed this way.
    lossy: BTreeSet<usize>,
    /// The sender of new operations.
    host: Sender,
}

/// The sender of an operation: one of the hosts, or none that writes.
type Sender = Option<usize>;

/// Possible values of one block. Never empty.
#[derive(Debug)]
struct Block(Vec<Candidate>);

#[derive(Clone, Copy, Debug)]
struct Candidate {
    /// The write, 0 for what was there at first.
    op: OpId,
    host: Sender,
    value: Value,
    /// When the write was over; `None` while it may still take effect.
    ended: Option<u64>,
    /// Since when writes that start are done after it, if they are done.
    first: Option<u64>,
    /// Whether it is known to have taken effect, and not lost in a crash.
    acked: bool,
    /// Whether it may be lost whatever is said from now on.
    doubtful: bool,
    /// Since when no read may return it.
    stale: Option<u64>,
    /// It cannot come back with a crash.
    superseded: bool,
}

#[derive(Clone, Debug)]
struct Op {
    kind: Kind,
    host: Sender,
    ns: usize,
    range: Range<u64>,
    /// What a write changes, and to which value.
    parts: Vec<Range<u64>>,
    value: Value,
    epoch: u32,
    /// A reservation keeps it from taking effect.
    excluded: bool,
    /// Its response was lost: it may still take effect.
    lost: bool,
    /// The target has released its queue.
    let_go: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Read,
    Write { fua: bool },
    Flush,
}

/// How an operation ended, as its host knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// Acknowledged.
    Done,
    /// Completed with an error: no later effect.
    Failed,
    /// No response: it may have taken effect, or may still do so.
    Lost,
}

/// A result that no correct disk returns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Wrong(pub(crate) String);

impl Oracle {
    /// Namespaces of so many blocks, all zeroes and on stable media.
    pub(crate) fn new(sizes: impl IntoIterator<Item = u64>) -> Self {
        let first = Candidate {
            op: 0,
            host: None,
            value: ZEROES,
            ended: Some(0),
            first: Some(0),
            acked: true,
            doubtful: false,
            stale: None,
            superseded: false,
        };
        let namespace = |blocks| (0..blocks).map(|_| Block(vec![first])).collect();
        Self {
            blocks: sizes.into_iter().map(namespace).collect(),
            ops: BTreeMap::new(),
            clock: 0,
            epoch: 0,
            lossy: BTreeSet::new(),
            host: None,
        }
    }

    /// What begins from now on is sent by `host`.
    pub(crate) fn sent_by(&mut self, host: Sender) {
        self.host = host;
    }

    /// A flush of `ns` has failed and lost the data that it should make stable.
    pub(crate) fn lose(&mut self, ns: usize) {
        self.lossy.insert(ns);
    }

    /// Counts an event, and returns its number.
    pub(crate) fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    fn begin(&mut self, kind: Kind, ns: usize, range: Range<u64>) -> OpId {
        let id = self.tick();
        let op = Op {
            kind,
            host: self.host,
            ns,
            range,
            parts: Vec::new(),
            value: id,
            epoch: self.epoch,
            excluded: false,
            lost: false,
            let_go: false,
        };
        self.ops.insert(id, op);
        id
    }

    /// A read or compare is sent.
    pub(crate) fn begin_read(&mut self, ns: usize, range: Range<u64>) -> OpId {
        self.begin(Kind::Read, ns, range)
    }

    /// A flush is sent.
    pub(crate) fn begin_flush(&mut self, ns: usize) -> OpId {
        self.begin(Kind::Flush, ns, 0..0)
    }

    /// Something that changes nothing is sent.
    pub(crate) fn begin_nothing(&mut self, ns: usize) -> OpId {
        self.begin(Kind::Read, ns, 0..0)
    }

    /// A write is sent, of its own number or of zeroes.
    pub(crate) fn begin_write(
        &mut self,
        ns: usize,
        range: Range<u64>,
        zeroes: bool,
        fua: bool,
    ) -> OpId {
        self.begin_changes(ns, std::slice::from_ref(&range), zeroes, fua)
    }

    /// As [`begin_write`](Self::begin_write) for several ranges, of which the
    /// first is remembered for messages and all for what they change.
    pub(crate) fn begin_changes(
        &mut self,
        ns: usize,
        ranges: &[Range<u64>],
        zeroes: bool,
        fua: bool,
    ) -> OpId {
        let start = ranges.iter().map(|range| range.start).min().unwrap_or(0);
        let end = ranges.iter().map(|range| range.end).max().unwrap_or(0);
        let id = self.begin(Kind::Write { fua }, ns, start..end);
        let oldest_read = self.oldest_read();
        let value = if zeroes { ZEROES } else { id };
        if let Some(op) = self.ops.get_mut(&id) {
            op.parts = ranges.to_vec();
            op.value = value;
        }
        let candidate = Candidate::outstanding(id, self.host, value);
        for range in ranges {
            for block in self.span(ns, range.clone()) {
                block.forget(oldest_read);
                // Ranges of one command may overlap.
                if block.0.last().is_none_or(|last| last.op != id) {
                    block.0.push(candidate);
                }
            }
        }
        id
    }

    /// A read or compare ended well: what it saw, block by block.
    pub(crate) fn end_read(&mut self, id: OpId, seen: &[Value]) -> Result<(), Wrong> {
        let now = self.tick();
        let Some(op) = self.ops.remove(&id) else {
            return Err(Wrong(format!("operation {id} completed twice")));
        };
        let narrow = op.epoch == self.epoch;
        let first = op.range.start;
        let count = op.range.end - first;
        if count != seen.len() as u64 {
            return Err(Wrong(format!(
                "{} of {count} blocks were returned",
                seen.len()
            )));
        }
        for (lba, value) in (first..).zip(seen) {
            let block = &mut self.blocks[op.ns][usize::try_from(lba).unwrap()];
            if !block.readable(id).any(|one| one.value == *value) {
                let may: Vec<Value> = block.readable(id).map(|one| one.value).collect();
                return Err(Wrong(format!(
                    "block {lba} of disk {} holds {value}, a correct disk has one of {may:?}; \
                     all that is known: {block:?}",
                    op.ns
                )));
            }
            if narrow {
                let gone = |one: &&mut Candidate| {
                    one.value != *value && one.ended.is_some_and(|at| at < id)
                };
                for one in block.0.iter_mut().filter(gone) {
                    one.stale.get_or_insert(now);
                }
            }
        }
        Ok(())
    }

    /// A compare found a difference to `sent`.
    pub(crate) fn end_differing(&mut self, id: OpId, sent: &[Value]) -> Result<(), Wrong> {
        self.tick();
        let Some(op) = self.ops.remove(&id) else {
            return Err(Wrong(format!("operation {id} completed twice")));
        };
        let blocks = &self.blocks[op.ns];
        let differs = (op.range.clone()).zip(sent).any(|(lba, value)| {
            let block = &blocks[usize::try_from(lba).unwrap()];
            block.readable(id).any(|one| one.value != *value)
        });
        if differs {
            return Ok(());
        }
        Err(Wrong(format!(
            "a compare of blocks {:?} of disk {} differs, though all blocks hold {sent:?}",
            op.range, op.ns
        )))
    }

    /// A read that failed, or a write, flush or zeroing that ended somehow.
    pub(crate) fn end(&mut self, id: OpId, ending: Ending) -> Result<(), Wrong> {
        let now = self.tick();
        let Some(op) = self.ops.get_mut(&id).filter(|op| !op.lost) else {
            return Err(Wrong(format!("operation {id} completed twice")));
        };
        match (op.kind, ending) {
            (Kind::Write { .. }, Ending::Lost) if op.epoch == self.epoch => {
                op.lost = true;
                return Ok(());
            }
            (Kind::Write { fua }, Ending::Done) => {
                let op = op.clone();
                self.acknowledge(id, &op, fua, now);
            }
            (Kind::Write { .. }, Ending::Failed | Ending::Lost) => {
                let op = op.clone();
                self.over(id, &op, now);
            }
            (Kind::Flush, Ending::Done) => {
                let Op { ns, host, .. } = *op;
                let all = !self.lossy.contains(&ns);
                for block in &mut self.blocks[ns] {
                    block.flushed(id, |one| all || (one.host == host && host.is_some()));
                }
            }
            (Kind::Flush, Ending::Failed) if self.lossy.contains(&op.ns) => {
                let Op { ns, host, .. } = *op;
                let candidates = self.blocks[ns].iter_mut().flat_map(|block| &mut block.0);
                for one in candidates.filter(|one| one.host == host) {
                    one.doubtful = true;
                }
            }
            (Kind::Flush | Kind::Read, _) => {}
        }
        self.ops.remove(&id);
        Ok(())
    }

    /// An operation in progress is sent again. After a crash, it may take effect from now on:
    /// earlier attempts cannot. Writes of zeroes are not sent again.
    pub(crate) fn resend(&mut self, id: OpId) {
        let epoch = self.epoch;
        let Some(op) = self.ops.get_mut(&id).filter(|op| op.epoch != epoch) else {
            return;
        };
        op.epoch = epoch;
        let op = op.clone();
        self.expect(id, &op);
    }

    /// After a crash: the host sends the operations in progress again by itself, and does not say
    /// whether a completion is that of the first attempt. They may take effect from now on, and
    /// their completions prove no more than those of the first attempts.
    pub(crate) fn resend_unseen(&mut self) {
        let ops: Vec<(OpId, Op)> = self.ops.iter().map(|(id, op)| (*id, op.clone())).collect();
        for (id, op) in ops {
            self.expect(id, &op);
        }
    }

    /// The write may take effect from now on.
    fn expect(&mut self, id: OpId, op: &Op) {
        if let Kind::Write { .. } = op.kind {
            for block in self.span(op.ns, op.range.clone()) {
                block.0.retain(|one| one.op != id);
                block.0.push(Candidate::outstanding(id, op.host, id));
            }
        }
    }

    /// A call was refused before anything was sent: forget it.
    pub(crate) fn cancel(&mut self, id: OpId) {
        let Some(op) = self.ops.remove(&id) else {
            return;
        };
        for block in self.span(op.ns, op.range) {
            block.0.retain(|one| one.op != id);
        }
    }

    fn acknowledge(&mut self, id: OpId, op: &Op, fua: bool, now: u64) {
        let same_epoch = op.epoch == self.epoch;
        for block in self.span(op.ns, op.range.clone()) {
            let Some(mine) = block.0.iter_mut().find(|one| one.op == id) else {
                continue;
            };
            mine.over(now);
            if op.excluded {
                // A flush that was sent before the response proves nothing.
                mine.ended = Some(now);
            }
            // A crash since then may have undone it, unless it was durable.
            if !same_epoch && !fua {
                continue;
            }
            mine.acked |= same_epoch;
            for one in block.0.iter_mut().filter(|one| one.is_before(id)) {
                one.stale.get_or_insert(now);
                one.superseded |= fua;
            }
        }
    }

    fn over(&mut self, id: OpId, op: &Op, now: u64) {
        for block in self.span(op.ns, op.range.clone()) {
            for one in block.0.iter_mut().filter(|one| one.op == id) {
                one.over(now);
            }
        }
    }

    /// A reservation excludes `host` from `ns`: its writes in progress take no effect from now on,
    /// until [`allow`](Self::allow).
    pub(crate) fn exclude(&mut self, ns: usize, host: usize) {
        let now = self.tick();
        let epoch = self.epoch;
        for (id, op) in &mut self.ops {
            let is_its = (op.ns, op.host, op.epoch) == (ns, Some(host), epoch);
            if is_its && !op.excluded && matches!(op.kind, Kind::Write { .. }) {
                op.excluded = true;
                let blocks = self.blocks[ns].iter_mut().flat_map(|block| &mut block.0);
                for one in blocks.filter(|one| one.op == *id) {
                    one.over(now);
                }
            }
        }
    }

    /// Whether a reservation keeps this write, which may be in progress, from taking effect.
    pub(crate) fn is_excluded(&self, id: OpId) -> bool {
        let op = self.ops.get(&id);
        op.is_some_and(|op| op.excluded && op.epoch == self.epoch)
    }

    /// `host` may write to `ns` again. Commands that it sent before may be executed now, if the
    /// target still has their queue.
    pub(crate) fn allow(&mut self, ns: usize, host: usize) {
        let epoch = self.epoch;
        for (id, op) in &mut self.ops {
            let is_its = (op.ns, op.host, op.epoch) == (ns, Some(host), epoch);
            if !(is_its && op.excluded) || op.let_go {
                continue;
            }
            op.excluded = false;
            for range in &op.parts {
                let range =
                    usize::try_from(range.start).unwrap()..usize::try_from(range.end).unwrap();
                for block in &mut self.blocks[ns][range] {
                    block.0.retain(|one| one.op != *id);
                    block.0.push(Candidate::outstanding(*id, op.host, op.value));
                }
            }
        }
    }

    /// The target lost power: no work remains, and data that are not on stable media may be
    /// lost.
    pub(crate) fn crash(&mut self) {
        let now = self.tick();
        self.epoch += 1;
        for block in self.blocks.iter_mut().flatten() {
            for one in &mut block.0 {
                one.over(now);
                one.acked = false;
                if !one.superseded {
                    one.stale = None;
                }
            }
        }
        self.ops.retain(|_, op| !op.lost);
    }

    /// The target has released all queues of writes without a response: later operations take
    /// effect after them.
    pub(crate) fn release(&mut self) {
        let now = self.tick();
        let fresh = self.ops.iter_mut().filter(|(_, op)| op.lost && !op.let_go);
        let fresh: Vec<(OpId, Op)> = fresh
            .map(|(id, op)| {
                op.let_go = true;
                (*id, op.clone())
            })
            .collect();
        for (id, op) in fresh {
            for block in self.span(op.ns, op.range) {
                for one in block.0.iter_mut().filter(|one| one.op == id) {
                    one.first.get_or_insert(now);
                }
            }
        }
    }

    /// Whether the target may still have the queue of a write without a response.
    pub(crate) fn has_unreleased(&self) -> bool {
        self.ops.values().any(|op| op.lost && !op.let_go)
    }

    /// No work on writes without a response remains.
    pub(crate) fn settle(&mut self) {
        let lost: Vec<(OpId, Op)> = self
            .ops
            .iter()
            .filter(|(_, op)| op.lost)
            .map(|(id, op)| (*id, op.clone()))
            .collect();
        if lost.is_empty() {
            return;
        }
        let now = self.tick();
        for (id, op) in lost {
            self.over(id, &op, now);
            self.ops.remove(&id);
        }
    }

    /// Writes without a response that may still take effect.
    pub(crate) fn unsettled(&self) -> usize {
        self.ops.values().filter(|op| op.lost).count()
    }

    /// What a host could compare with: some value each block may hold.
    pub(crate) fn guess(&self, ns: usize, lba: u64) -> Value {
        let block = &self.blocks[ns][usize::try_from(lba).unwrap()];
        let fresh = block.0.iter().rev().find(|one| one.stale.is_none());
        fresh.map_or(ZEROES, |one| one.value)
    }

    fn span(&mut self, ns: usize, range: Range<u64>) -> impl Iterator<Item = &mut Block> {
        let range = usize::try_from(range.start).unwrap()..usize::try_from(range.end).unwrap();
        self.blocks[ns][range].iter_mut()
    }

    /// When the oldest read that has not ended started.
    fn oldest_read(&self) -> u64 {
        let mut reads = self.ops.iter().filter(|(_, op)| op.kind == Kind::Read);
        reads.next().map_or(self.clock, |(id, _)| *id)
    }
}

impl Candidate {
    /// Of a write that was sent and may take effect.
    fn outstanding(op: OpId, host: Sender, value: Value) -> Self {
        Self {
            op,
            host,
            value,
            ended: None,
            first: None,
            acked: false,
            doubtful: false,
            stale: None,
            superseded: false,
        }
    }

    fn over(&mut self, now: u64) {
        self.ended.get_or_insert(now);
        self.first.get_or_insert(now);
    }

    /// Whether a write that started at `start` is done after it.
    fn is_before(&self, start: u64) -> bool {
        self.first.is_some_and(|since| since < start)
    }
}

impl Block {
    /// What a read that started at `start` and ends now may return.
    fn readable(&self, start: u64) -> impl Iterator<Item = &Candidate> {
        let fresh = move |one: &&Candidate| one.stale.is_none_or(|since| since > start);
        self.0.iter().filter(fresh)
    }

    /// A flush that was sent at `sent` is acknowledged, and `covers` some.
    fn flushed(&mut self, sent: u64, covers: impl Fn(&Candidate) -> bool) {
        let durable = |one: &&Candidate| {
            one.acked && !one.doubtful && one.ended.is_some_and(|at| at < sent) && covers(one)
        };
        let Some(newest) = self.0.iter().filter(durable).map(|one| one.op).max() else {
            return;
        };
        for one in &mut self.0 {
            one.superseded |= one.is_before(newest);
        }
    }

    /// Forgets what neither a read nor a crash can bring back.
    fn forget(&mut self, oldest_read: u64) {
        let gone = |one: &Candidate| one.superseded && one.stale.is_some_and(|at| at < oldest_read);
        self.0.retain(|one| !gone(one));
    }
}

#[cfg(test)]
mod tests;
