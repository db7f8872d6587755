//! The sending side of a connection: the send queue, responses to the peer's Reads, and their
//! records.

use std::collections::VecDeque;

use nvmeof_memory::Buf;
use nvmeof_rdma::{
    Completion, Event, Fault, Inline, Outcome, Posted, QpId, RemoteKey, RemoteSlice, Rights, Tag,
    Work, WorkKind,
};
use nvmeof_rdma_soft::KeyTable;

use crate::channel::Channel;
use crate::fault::{codes, fault};
use crate::grant::{Grant, PeerMemory};
use crate::record::{GRANTS, INVALIDATES, Kind, LAST, Record, SEGMENT, SOLICITED, count};

/// Limits on records and on directly copied bytes per call, so that other connections are
/// served as well.
const RECORDS: usize = 256;
const BYTES: usize = 512 << 10;

/// The sending state of a connection.
#[derive(Debug)]
pub(crate) struct Outbound {
    /// Posted work that is not completely put into the ring, oldest first, and how much of
    /// the payload of the first is.
    waiting: VecDeque<Waiting>,
    put: usize,
    /// Posted work that is in the ring, oldest first; entry 0 has number `base`.
    sent: VecDeque<Sent>,
    base: u64,
    /// RDMA Reads in flight, oldest first, and their maximum number.
    reads: VecDeque<ReadInFlight>,
    max_reads: usize,
    /// Responses to the peer's Reads that are not completely put.
    responses: VecDeque<Response>,
    /// Grants for the peer: the next message carries the last one.
    last_grant: Option<Grant>,
    grants: VecDeque<Grant>,
    /// What is next if both works and responses wait.
    response_next: bool,
    /// Payload of the record for which there was no room.
    pub(crate) blocked: Option<usize>,
}

#[derive(Debug)]
struct Waiting {
    tag: Tag,
    work: Work,
    /// Sent with the message.
    grant: Option<Grant>,
}

/// The rest of work that is in the ring.
#[derive(Debug)]
struct Sent {
    tag: Tag,
    kind: WorkKind,
    buf: Option<Buf>,
    /// False for a Read in flight.
    done: bool,
}

#[derive(Debug)]
struct ReadInFlight {
    number: u64,
    arrived: usize,
}

#[derive(Debug)]
struct Response {
    key: u32,
    /// Current offset in the exposed buffer.
    at: usize,
    rest: u32,
}

/// What is put next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    Grant,
    Work,
    Response,
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
            responses: VecDeque::new(),
            last_grant: None,
            grants: VecDeque::new(),
            response_next: true,
            blocked: None,
        }
    }

    pub(crate) fn prepare(&mut self, sends: usize) {
        self.waiting.reserve_exact(sends);
        self.sent.reserve_exact(sends);
    }

    /// The connection is established: sets the negotiated number.
    pub(crate) fn start(&mut self, max_reads: usize) {
        self.max_reads = max_reads;
    }

    pub(crate) fn posted(&self) -> usize {
        self.waiting.len() + self.sent.len()
    }

    pub(crate) fn max_reads(&self) -> usize {
        self.max_reads
    }

    /// Queues work. A short message with nothing before it goes into the ring immediately;
    /// everything else with the next [`transmit`](Self::transmit).
    pub(crate) fn post(
        &mut self,
        tag: Tag,
        work: Work,
        channel: Option<&mut Channel>,
        peer_memory: Option<&mut PeerMemory>,
    ) {
        let mut grant = None;
        if let Some(mut message) = Message::of(&work, None) {
            if self.put_immediately(&mut message, channel, peer_memory) {
                return self.sent.push_back(Sent::of(tag, work, true));
            }
            grant = message.grant;
        }
        self.waiting.push_back(Waiting { tag, work, grant });
    }

    /// As [`post`](Self::post), for a message without a body. It is done if it goes into the
    /// ring immediately, and everything before it was reported.
    #[inline]
    pub(crate) fn post_message(
        &mut self,
        tag: Tag,
        head: &Inline,
        invalidate: Option<RemoteKey>,
        channel: Option<&mut Channel>,
        peer_memory: Option<&mut PeerMemory>,
    ) -> Posted {
        let mut message = Message {
            pieces: [head, &[]],
            invalidate,
            solicited: false,
            grant: None,
        };
        let put = self.put_immediately(&mut message, channel, peer_memory);
        if put && self.sent.is_empty() {
            return Posted::Done;
        }
        let grant = message.grant;
        let work = Work::Send {
            head: *head,
            body: None,
            invalidate,
            solicited: false,
        };
        match put {
            true => self.sent.push_back(Sent::of(tag, work, true)),
            false => self.waiting.push_back(Waiting { tag, work, grant }),
        }
        Posted::Pending
    }

    /// Puts a message immediately if nothing is before it, it is one record, and there is
    /// room. Returns whether it did. A fault is found again by [`transmit`](Self::transmit),
    /// which can report it. In any case the message gets the last grant, if it can carry it.
    #[inline]
    fn put_immediately(
        &mut self,
        message: &mut Message<'_>,
        channel: Option<&mut Channel>,
        peer_memory: Option<&mut PeerMemory>,
    ) -> bool {
        // A message carries one key: a granted or an invalidated one.
        if message.invalidate.is_none() {
            message.grant = self.last_grant.take();
        }
        let put = channel.is_some_and(|channel| self.put_first(message, channel));
        if put && let (Some(key), Some(peer_memory)) = (message.invalidate, peer_memory) {
            peer_memory.forget(key);
        }
        put
    }

    #[inline]
    fn put_first(&self, message: &Message<'_>, channel: &mut Channel) -> bool {
        let len = message.len();
        // A grant that the message cannot carry goes before it.
        self.has_sent_all()
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

    /// Drops the grant of a key if it was not sent yet.
    pub(crate) fn cancel_grant(&mut self, key: u32) {
        self.last_grant.take_if(|grant| grant.key() == key);
        self.grants.retain(|grant| grant.key() != key);
    }

    /// Responses to the peer's Reads that are not completely put.
    pub(crate) fn responding(&self) -> usize {
        self.responses.len()
    }

    /// Queues the response to a Read of `len` bytes of `key`, from byte `at` of the buffer.
    pub(crate) fn respond(&mut self, key: u32, at: usize, len: u32) {
        let rest = len;
        self.responses.push_back(Response { key, at, rest });
    }

    fn next_item(&self) -> Next {
        if !self.grants.is_empty() {
            return Next::Grant;
        }
        let work = match self.waiting.front().map(|first| &first.work) {
            Some(Work::Read { .. }) => self.reads.len() < self.max_reads,
            Some(_) => true,
            None => false,
        };
        match (work, !self.responses.is_empty()) {
            (true, true) if self.response_next => Next::Response,
            (true, _) => Next::Work,
            (false, true) => Next::Response,
            (false, false) => Next::Nothing,
        }
    }

    /// Whether there is nothing that [`transmit`](Self::transmit) could put.
    #[inline]
    pub(crate) fn has_sent_all(&self) -> bool {
        self.waiting.is_empty()
            && self.responses.is_empty()
            && self.grants.is_empty()
            && self.last_grant.is_none()
    }

    /// Whether nothing can be put now: Reads may wait for others, and the last grant for a
    /// message that carries it.
    pub(crate) fn is_idle(&self) -> bool {
        self.next_item() == Next::Nothing
    }

    /// Puts as much as there is and as there is room for, up to a limit. Returns whether
    /// anything was put.
    pub(crate) fn transmit(
        &mut self,
        channel: &mut Channel,
        keys: &mut KeyTable,
        mut peer_memory: Option<&mut PeerMemory>,
    ) -> Result<bool, Fault> {
        if let Some(grant) = self.last_grant.take() {
            // No message carried it.
            self.grants.push_back(grant);
        }
        let mut copied = 0usize;
        for done in 0..RECORDS {
            let put = match self.next_item() {
                Next::Nothing => return Ok(done > 0),
                Next::Grant => self.put_grant(channel)?,
                Next::Work => {
                    let direct = match &mut peer_memory {
                        Some(peer_memory) => self.work_in_place(peer_memory, channel),
                        None => None,
                    };
                    copied = copied.saturating_add(direct.unwrap_or(0));
                    direct.is_some() || self.put_work(channel)?
                }
                Next::Response => self.put_response(channel, keys)?,
            };
            if copied >= BYTES {
                return Ok(true);
            }
            self.response_next = !self.response_next;
            if !put {
                return Ok(done > 0);
            }
        }
        Ok(true)
    }

    /// Puts a grant, unless there is no room.
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

    /// Does the current work directly in the peer's memory if that is granted: then nothing
    /// of it goes through the ring. Returns its length in bytes.
    ///
    /// Errors are left to the peer to detect.
    fn work_in_place(&mut self, peer_memory: &mut PeerMemory, channel: &Channel) -> Option<usize> {
        if self.put > 0 {
            return None;
        }
        let work = &mut self.waiting.front_mut()?.work;
        let (remote, rights, len) = match work {
            Work::Write { local, remote } => (remote, Rights::REMOTE_WRITE, local.len()),
            Work::Read { local, remote } => (remote, Rights::REMOTE_READ, local.len()),
            Work::Send { invalidate, .. } => {
                if let Some(key) = invalidate {
                    peer_memory.forget(*key);
                }
                return None;
            }
        };
        let len = u32::try_from(len).ok()?;
        let remote = RemoteSlice { len, ..*remote };
        let mut theirs = peer_memory.lend(&remote, rights, channel)?;
        // Has the length of the lent memory.
        let copied = match work {
            Work::Read { local, .. } => theirs.copy_out(0, local),
            Work::Write { local, .. } => theirs.copy_in(0, local),
            Work::Send { .. } => return None,
        };
        copied.ok()?;
        self.first_done(true);
        Some(theirs.len())
    }

    /// Puts a piece of the current work, unless there is no room.
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
                // The first piece carries the grant.
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
            self.first_done(false);
        } else {
            self.put = put.saturating_add(piece);
            if self.put == len {
                self.first_done(true);
            }
        }
        Ok(true)
    }

    /// The current work is completely put.
    fn first_done(&mut self, done: bool) {
        self.put = 0;
        if let Some(Waiting { tag, work, .. }) = self.waiting.pop_front() {
            self.sent.push_back(Sent::of(tag, work, done));
        }
    }

    /// Puts a piece of the current response, unless there is no room.
    fn put_response(&mut self, channel: &mut Channel, keys: &mut KeyTable) -> Result<bool, Fault> {
        let Some(response) = self.responses.front_mut() else {
            return Ok(false);
        };
        let piece = count(response.rest).min(SEGMENT);
        if !channel.has_room(piece)? {
            self.blocked = Some(piece);
            return Ok(false);
        }
        // The key stays valid as long as its memory is read.
        let bytes = keys.reading(response.key, response.at, piece);
        let record = Record {
            len: number(piece),
            rest: response.rest,
            ..Record::new(Kind::Response)
        };
        channel.put(record, [bytes.unwrap_or_default(), &[]])?;
        response.at = response.at.saturating_add(piece);
        response.rest = response.rest.saturating_sub(number(piece));
        self.blocked = None;
        if response.rest == 0 {
            keys.end_read(response.key);
            self.responses.pop_front();
        }
        Ok(true)
    }

    /// Processes a piece of the response to the oldest Read of this side.
    pub(crate) fn on_response(&mut self, record: &Record, channel: &Channel) -> Result<(), Fault> {
        let invalid_response = |text: &str| fault(codes::RESPONSE, text);
        let read = self.reads.front_mut();
        let read = read
            .ok_or_else(|| invalid_response("a read response arrived and no read is in flight"))?;
        let index = read.number.checked_sub(self.base);
        let index = index.and_then(|index| usize::try_from(index).ok());
        let sent = index.and_then(|index| self.sent.get_mut(index));
        let Some(Sent {
            buf: Some(local),
            done,
            ..
        }) = sent
        else {
            return Err(invalid_response(
                "a read response arrived for a read that has ended",
            ));
        };
        let missing = local.len().saturating_sub(read.arrived);
        let end = read.arrived.saturating_add(count(record.len));
        let stuck = record.len == 0 && missing > 0;
        let place = local.get_mut(read.arrived..end);
        let place = place.filter(|_| count(record.rest) == missing && !stuck);
        let Some(place) = place else {
            return Err(invalid_response(
                "a read response has another length than the read",
            ));
        };
        channel.payload(place)?;
        read.arrived = end;
        if end == local.len() {
            *done = true;
            self.reads.pop_front();
        }
        Ok(())
    }

    /// Reports completed work, in posting order.
    #[inline]
    pub(crate) fn complete(&mut self, qp: QpId, events: &mut Vec<Event>) {
        while let Some(sent) = self.sent.pop_front_if(|sent| sent.done) {
            self.base = self.base.saturating_add(1);
            events.push(sent.completion(qp, Outcome::Success));
        }
    }

    /// Reports all work, in posting order.
    pub(crate) fn flush(&mut self, qp: QpId, keys: &mut KeyTable, events: &mut Vec<Event>) {
        self.drop_responses(keys);
        // After the first undone request all are flushed: completions are in posting order.
        self.complete(qp, events);
        let waiting = self.waiting.drain(..);
        let waiting = waiting.map(|Waiting { tag, work, .. }| Sent::of(tag, work, false));
        for left in self.sent.drain(..).chain(waiting) {
            events.push(left.completion(qp, Outcome::Flushed));
        }
        self.reads.clear();
    }

    /// Orderly end of the connection: no more Reads are sent, nor work that was posted after
    /// them, and the peer's Reads get no more responses.
    pub(crate) fn wind_down(&mut self, keys: &mut KeyTable) {
        self.max_reads = 0;
        self.drop_responses(keys);
    }

    fn drop_responses(&mut self, keys: &mut KeyTable) {
        for response in self.responses.drain(..) {
            keys.end_read(response.key);
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

/// A message in the form in which it is put.
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

    /// Puts the part `pieces`, which ends at byte `end` of the message. There must be room.
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

/// A length of memory, which is bounded by the longest message, as a length of a record.
fn number(len: usize) -> u32 {
    u32::try_from(len).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests;
