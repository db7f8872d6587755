//! What leaves a connection: the send queue, answers to the peer's reads, and
//! the records they become.

use std::collections::VecDeque;

use nvmeof_memory::Buf;
use nvmeof_rdma::{
    Completion, Event, Fault, Outcome, QpId, RemoteKey, RemoteSlice, Rights, Tag, Work, WorkKind,
};
use nvmeof_rdma_soft::KeyTable;

use crate::channel::Channel;
use crate::fault::{codes, fault};
use crate::grant::{Grant, Taken};
use crate::record::{GRANTS, INVALIDATES, Kind, LAST, Record, SEGMENT, SOLICITED, count};

/// Records that one call puts, and bytes that it copies to where they belong,
/// so that other connections get their turn.
const RECORDS: usize = 256;
const BYTES: usize = 512 << 10;

/// The sending state of a connection.
#[derive(Debug)]
pub(crate) struct Outbound {
    /// Posted work that is not wholly put, oldest first, and how much of the
    /// payload of the first is.
    waiting: VecDeque<Waiting>,
    put: usize,
    /// Posted work that was put, oldest first; entry 0 has number `base`.
    sent: VecDeque<Sent>,
    base: u64,
    /// RDMA Reads in flight, oldest first, and how many there may be.
    reads: VecDeque<ReadInFlight>,
    max_reads: usize,
    /// Answers to the peer's Reads that are not wholly put.
    answers: VecDeque<Answer>,
    /// What the peer is granted: the next message takes the last of it along.
    last_grant: Option<Grant>,
    grants: VecDeque<Grant>,
    /// Whose turn it is when both works and answers wait.
    answer_next: bool,
    /// Payload of the record for which there was no room.
    pub(crate) blocked: Option<usize>,
}

#[derive(Debug)]
struct Waiting {
    tag: Tag,
    work: Work,
    /// Goes with the message.
    grant: Option<Grant>,
}

/// What is kept of work that was put.
#[derive(Debug)]
struct Sent {
    tag: Tag,
    kind: WorkKind,
    buf: Option<Buf>,
    /// False of a Read that is in flight.
    done: bool,
}

#[derive(Debug)]
struct ReadInFlight {
    number: u64,
    arrived: usize,
}

#[derive(Debug)]
struct Answer {
    key: u32,
    /// Where in the exposed buffer it goes on.
    at: usize,
    rest: u32,
}

/// What is put next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Turn {
    Grant,
    Work,
    Answer,
    Nothing,
}

impl Outbound {
    pub(crate) fn new() -> Self {
        Self {
            waiting: VecDeque::new(),
            put: 0,
            sent: VecDeque::new(),
            base: 0,
            reads: VecDeque::new(),
            max_reads: 0,
            answers: VecDeque::new(),
            last_grant: None,
            grants: VecDeque::new(),
            answer_next: true,
            blocked: None,
        }
    }

    pub(crate) fn prepare(&mut self, sends: usize) {
        self.waiting.reserve_exact(sends);
        self.sent.reserve_exact(sends);
    }

    /// The connection stands: what was agreed.
    pub(crate) fn start(&mut self, max_reads: usize) {
        self.max_reads = max_reads;
    }

    pub(crate) fn posted(&self) -> usize {
        self.waiting.len() + self.sent.len()
    }

    pub(crate) fn max_reads(&self) -> usize {
        self.max_reads
    }

    /// Takes work. A short message with nothing before it goes into the ring at
    /// once; everything else with the next [`transmit`](Self::transmit).
    pub(crate) fn post(
        &mut self,
        tag: Tag,
        work: Work,
        channel: Option<&mut Channel>,
        taken: Option<&mut Taken>,
    ) {
        let mut grant = None;
        if let Work::Send { invalidate, .. } = &work {
            // A message has one key to say: the one it grants or the other.
            if invalidate.is_none() {
                grant = self.last_grant.take();
            }
            if let Some(channel) = channel
                && self.put_now(&work, grant, channel)
            {
                if let (Some(key), Some(taken)) = (invalidate, taken) {
                    taken.forget(*key);
                }
                return self.sent.push_back(Sent::of(tag, work, true));
            }
        }
        self.waiting.push_back(Waiting { tag, work, grant });
    }

    /// Puts a message at once if nothing is before it, it is one record, and
    /// there is room. Returns whether it did. A fault is found again by
    /// [`transmit`](Self::transmit), which can say so.
    #[inline]
    fn put_now(&self, work: &Work, grant: Option<Grant>, channel: &mut Channel) -> bool {
        let Some(message) = Message::of(work, grant) else {
            return false;
        };
        // A grant that the message cannot take along goes before it.
        let granted = self.grants.is_empty() && self.last_grant.is_none();
        let first = self.waiting.is_empty() && self.answers.is_empty() && granted;
        let len = message.len();
        first
            && len <= SEGMENT
            && channel.has_room(len).is_ok_and(|room| room)
            && message.put(message.pieces, len, channel).is_ok()
    }

    /// Grants the peer something, before the next message at the latest.
    pub(crate) fn grant(&mut self, grant: Grant) {
        if let Some(earlier) = self.last_grant.replace(grant) {
            self.grants.push_back(earlier);
        }
    }

    /// Grants a key no more, if that was not said yet.
    pub(crate) fn keep_back(&mut self, key: u32) {
        self.last_grant.take_if(|grant| grant.key() == key);
        self.grants.retain(|grant| grant.key() != key);
    }

    /// Answers to the peer's Reads that are not wholly put.
    pub(crate) fn answering(&self) -> usize {
        self.answers.len()
    }

    /// Queues the answer to a Read of `len` bytes of `key`, from byte `at` of
    /// the buffer on.
    pub(crate) fn answer(&mut self, key: u32, at: usize, len: u32) {
        let rest = len;
        self.answers.push_back(Answer { key, at, rest });
    }

    fn turn(&self) -> Turn {
        if !self.grants.is_empty() {
            return Turn::Grant;
        }
        let work = match self.waiting.front().map(|first| &first.work) {
            Some(Work::Read { .. }) => self.reads.len() < self.max_reads,
            Some(_) => true,
            None => false,
        };
        match (work, !self.answers.is_empty()) {
            (true, true) if self.answer_next => Turn::Answer,
            (true, _) => Turn::Work,
            (false, true) => Turn::Answer,
            (false, false) => Turn::Nothing,
        }
    }

    /// Whether nothing is left that could be put.
    pub(crate) fn is_idle(&self) -> bool {
        self.turn() == Turn::Nothing
    }

    /// Puts what there is and what there is room for, up to a bound. Returns
    /// whether anything was put.
    pub(crate) fn transmit(
        &mut self,
        channel: &mut Channel,
        keys: &mut KeyTable,
        mut taken: Option<&mut Taken>,
    ) -> Result<bool, Fault> {
        if let Some(grant) = self.last_grant.take() {
            // No message took it along.
            self.grants.push_back(grant);
        }
        let mut copied = 0usize;
        for done in 0..RECORDS {
            let put = match self.turn() {
                Turn::Nothing => return Ok(done > 0),
                Turn::Grant => self.put_grant(channel)?,
                Turn::Work => {
                    let direct = match &mut taken {
                        Some(taken) => self.do_work(taken, channel),
                        None => None,
                    };
                    copied = copied.saturating_add(direct.unwrap_or(0));
                    direct.is_some() || self.put_work(channel)?
                }
                Turn::Answer => self.put_answer(channel, keys)?,
            };
            if copied >= BYTES {
                return Ok(true);
            }
            self.answer_next = !self.answer_next;
            if !put {
                return Ok(done > 0);
            }
        }
        Ok(true)
    }

    /// Says what the peer is granted, unless there is no room.
    fn put_grant(&mut self, channel: &mut Channel) -> Result<bool, Fault> {
        if !channel.has_room(0)? {
            self.blocked = Some(0);
            return Ok(false);
        }
        if let Some(grant) = self.grants.pop_front() {
            let mut record = Record::new(Kind::Grant);
            grant.write(&mut record);
            channel.put(record, [&[], &[]])?;
        }
        self.blocked = None;
        Ok(true)
    }

    /// Does the work at hand in the peer's own memory if that is granted: then
    /// nothing of it goes through the ring. Returns how many bytes that were.
    ///
    /// Whatever is wrong with it is left to the peer to find.
    fn do_work(&mut self, taken: &mut Taken, channel: &Channel) -> Option<usize> {
        if self.put > 0 {
            return None;
        }
        let work = &mut self.waiting.front_mut()?.work;
        let (remote, rights, len) = match work {
            Work::Write { local, remote } => (remote, Rights::REMOTE_WRITE, local.len()),
            Work::Read { local, remote } => (remote, Rights::REMOTE_READ, local.len()),
            Work::Send { invalidate, .. } => {
                if let Some(key) = invalidate {
                    taken.forget(*key);
                }
                return None;
            }
        };
        let len = u32::try_from(len).ok()?;
        let remote = RemoteSlice { len, ..*remote };
        let mut theirs = taken.lend(&remote, rights, channel)?;
        // As long as what was lent.
        let copied = match work {
            Work::Read { local, .. } => theirs.copy_out(0, local),
            Work::Write { local, .. } => theirs.copy_in(0, local),
            Work::Send { .. } => return None,
        };
        copied.ok()?;
        self.first_is_put(true);
        Some(theirs.len())
    }

    /// Puts a piece of the work at hand, unless there is no room.
    fn put_work(&mut self, channel: &mut Channel) -> Result<bool, Fault> {
        let put = self.put;
        let Some(Waiting { work, grant, .. }) = self.waiting.front() else {
            return Ok(false);
        };
        let len = work.len();
        let piece = match work {
            Work::Read { .. } => 0,
            _ => len.saturating_sub(put).min(SEGMENT),
        };
        if !channel.has_room(piece)? {
            self.blocked = Some(piece);
            return Ok(false);
        }
        match work {
            Work::Write { local, remote } => {
                let rest = number(len.saturating_sub(put));
                let record = remote_record(Kind::Write, remote, put, rest, piece);
                channel.put(record, [part(local, put, piece), &[]])?;
            }
            Work::Read { remote, .. } => {
                let record = remote_record(Kind::Read, remote, 0, number(len), 0);
                channel.put(record, [&[], &[]])?;
            }
            Work::Send { .. } => {
                // The first piece takes the grant along.
                let grant = grant.filter(|_| put == 0);
                if let Some(message) = Message::of(work, grant) {
                    message.put(message.cut(put, piece), put.saturating_add(piece), channel)?;
                }
            }
        }
        self.blocked = None;
        if matches!(work, Work::Read { .. }) {
            let number = self.base.saturating_add(self.sent.len() as u64);
            self.reads.push_back(ReadInFlight { number, arrived: 0 });
            self.first_is_put(false);
        } else {
            self.put = put.saturating_add(piece);
            if self.put == len {
                self.first_is_put(true);
            }
        }
        Ok(true)
    }

    /// Nothing of the work at hand is left to be put.
    fn first_is_put(&mut self, done: bool) {
        self.put = 0;
        if let Some(Waiting { tag, work, .. }) = self.waiting.pop_front() {
            self.sent.push_back(Sent::of(tag, work, done));
        }
    }

    /// Puts a piece of the answer at hand, unless there is no room.
    fn put_answer(&mut self, channel: &mut Channel, keys: &mut KeyTable) -> Result<bool, Fault> {
        let Some(answer) = self.answers.front_mut() else {
            return Ok(false);
        };
        let piece = count(answer.rest).min(SEGMENT);
        if !channel.has_room(piece)? {
            self.blocked = Some(piece);
            return Ok(false);
        }
        // The key stays as long as its memory is read.
        let bytes = keys.reading(answer.key, answer.at, piece);
        let record = Record {
            len: number(piece),
            rest: answer.rest,
            ..Record::new(Kind::Answer)
        };
        channel.put(record, [bytes.unwrap_or_default(), &[]])?;
        answer.at = answer.at.saturating_add(piece);
        answer.rest = answer.rest.saturating_sub(number(piece));
        self.blocked = None;
        if answer.rest == 0 {
            keys.end_read(answer.key);
            self.answers.pop_front();
        }
        Ok(true)
    }

    /// Takes a piece of the answer to our oldest Read.
    pub(crate) fn on_answer(&mut self, record: &Record, channel: &Channel) -> Result<(), Fault> {
        let unfit = |text: &str| fault(codes::ANSWER, text);
        let read = self.reads.front_mut();
        let read = read.ok_or_else(|| unfit("an answer to no read"))?;
        let index = read.number.checked_sub(self.base);
        let index = index.and_then(|index| usize::try_from(index).ok());
        let sent = index.and_then(|index| self.sent.get_mut(index));
        let Some(Sent {
            buf: Some(local),
            done,
            ..
        }) = sent
        else {
            return Err(unfit("an answer to a read that is gone"));
        };
        let missing = local.len().saturating_sub(read.arrived);
        let end = read.arrived.saturating_add(count(record.len));
        let stuck = record.len == 0 && missing > 0;
        let place = local.get_mut(read.arrived..end);
        let place = place.filter(|_| count(record.rest) == missing && !stuck);
        let Some(place) = place else {
            return Err(unfit("an answer of another length than the read"));
        };
        channel.payload(place)?;
        read.arrived = end;
        if end == local.len() {
            *done = true;
            self.reads.pop_front();
        }
        Ok(())
    }

    /// Hands out what is done, in the order it was posted.
    pub(crate) fn complete(&mut self, qp: QpId, events: &mut Vec<Event>) {
        while let Some(sent) = self.sent.pop_front_if(|sent| sent.done) {
            self.base = self.base.saturating_add(1);
            events.push(sent.completion(qp, Outcome::Success));
        }
    }

    /// Hands out everything.
    pub(crate) fn flush(&mut self, qp: QpId, keys: &mut KeyTable, events: &mut Vec<Event>) {
        self.drop_answers(keys);
        // From the first that was not done on, nothing is: completions are in
        // posting order.
        self.complete(qp, events);
        let waiting = self.waiting.drain(..);
        let waiting = waiting.map(|Waiting { tag, work, .. }| Sent::of(tag, work, false));
        for left in self.sent.drain(..).chain(waiting) {
            events.push(left.completion(qp, Outcome::Flushed));
        }
        self.reads.clear();
    }

    /// The connection ends in good order: no more Reads are sent, nor what was
    /// posted after them, and the peer's Reads are not answered any more.
    pub(crate) fn wind_down(&mut self, keys: &mut KeyTable) {
        self.max_reads = 0;
        self.drop_answers(keys);
    }

    fn drop_answers(&mut self, keys: &mut KeyTable) {
        for answer in self.answers.drain(..) {
            keys.end_read(answer.key);
        }
    }
}

impl Sent {
    fn of(tag: Tag, work: Work, done: bool) -> Self {
        Self {
            tag,
            kind: work.kind(),
            buf: work.into_buf(),
            done,
        }
    }

    fn completion(self, qp: QpId, outcome: Outcome) -> Event {
        Event::Completion(Completion {
            qp,
            tag: self.tag,
            kind: self.kind,
            buf: self.buf,
            outcome,
        })
    }
}

/// A message as it is put.
struct Message<'a> {
    pieces: [&'a [u8]; 2],
    invalidate: Option<RemoteKey>,
    solicited: bool,
    grant: Option<Grant>,
}

impl<'a> Message<'a> {
    #[inline]
    fn of(work: &'a Work, grant: Option<Grant>) -> Option<Self> {
        let Work::Send {
            head,
            body,
            invalidate,
            solicited,
        } = work
        else {
            return None;
        };
        Some(Self {
            pieces: [head, body.as_deref().unwrap_or_default()],
            invalidate: *invalidate,
            solicited: *solicited,
            grant,
        })
    }

    fn len(&self) -> usize {
        let [head, body] = self.pieces;
        head.len().saturating_add(body.len())
    }

    /// `len` bytes of it, from byte `start` on.
    fn cut(&self, start: usize, len: usize) -> [&'a [u8]; 2] {
        let [head, body] = self.pieces;
        let from_head = part(head, start, len.min(head.len().saturating_sub(start)));
        let start = start.saturating_sub(head.len());
        let from_body = part(body, start, len.saturating_sub(from_head.len()));
        [from_head, from_body]
    }

    /// Puts the part of it that is `pieces` and ends at byte `end`, for which
    /// there is room.
    #[inline]
    fn put(&self, pieces: [&[u8]; 2], end: usize, channel: &mut Channel) -> Result<(), Fault> {
        let [one, two] = pieces;
        let flag = |set, flag| if set { flag } else { 0 };
        let mut record = Record {
            flags: flag(end == self.len(), LAST)
                | flag(self.solicited, SOLICITED)
                | flag(self.invalidate.is_some(), INVALIDATES)
                | flag(self.grant.is_some(), GRANTS),
            key: self.invalidate.map_or(0, |RemoteKey(key)| key),
            len: number(one.len().saturating_add(two.len())),
            ..Record::new(Kind::Send)
        };
        if let Some(grant) = self.grant {
            grant.write(&mut record);
        }
        channel.put(record, pieces)
    }
}

/// A record about remote memory, from its byte `put` on.
fn remote_record(kind: Kind, remote: &RemoteSlice, put: usize, rest: u32, piece: usize) -> Record {
    Record {
        key: remote.key.0,
        addr: remote.addr.wrapping_add(put as u64),
        rest,
        len: number(piece),
        ..Record::new(kind)
    }
}

fn part(bytes: &[u8], start: usize, len: usize) -> &[u8] {
    let end = start.saturating_add(len);
    bytes.get(start..end).unwrap_or_default()
}

/// A length of memory, which is bounded by the longest message, as a length of
/// a record.
fn number(len: usize) -> u32 {
    u32::try_from(len).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests;
