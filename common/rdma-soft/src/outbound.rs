//! The sending side of a connection: the send queue, responses to the peer's Reads, and their
//! frames.

mod frames;
mod kept;
mod message;
mod reads;
mod stage;

use std::collections::VecDeque;
use std::io::IoSlice;

use nvmeof_memory::Buf;
use nvmeof_rdma::{Completion, Event, Outcome, QpId, Tag, Work, WorkKind};

use crate::iwarp::{Header, Kind, Opcode, PayloadLimit, ReadRequest, Terminate, WireFault};
use crate::keys::KeyTable;
use crate::streams::Accepted;
use frames::{Done, Frames, Payload, Source};
use message::Message;

/// The sending state of a connection.
#[derive(Debug)]
pub(crate) struct Outbound {
    /// Work that is framed, the newest perhaps partly; oldest first. Entry 0 has number
    /// `base`.
    queue: VecDeque<Entry>,
    base: u64,
    /// The number below which all work but Reads is done.
    done: u64,
    /// After a reset of the stream: the number below which it refers to no memory of work.
    freed: Option<u64>,
    /// Posted work that is not framed yet.
    waiting: VecDeque<(Tag, Work)>,
    /// The unframed rest of the newest work in `queue`.
    partial: Option<Message>,
    /// RDMA Reads in flight, oldest first, and their maximum number.
    reads: VecDeque<ReadInFlight>,
    max_reads: usize,
    /// Responses to the peer's Reads that are not completely framed.
    responses: VecDeque<Message>,
    /// Number of responses that are not completely sent.
    responding: usize,
    /// Whether a response is next if both work and responses wait.
    prefer_response: bool,
    send_msn: u32,
    read_msn: u32,
    frames: Frames,
    limit: PayloadLimit,
    /// RFC 5044, section 7.1.2: the responder sends no FPDU before the
    /// initiator's first one.
    pub(crate) held: bool,
    /// The stream accepted less than there was.
    pub(crate) blocked: bool,
    /// Nothing new is framed: the connection ends.
    closed: bool,
}

/// Work that is framed.
#[derive(Debug)]
struct Entry {
    tag: Tag,
    buf: Option<Buf>,
    kind: WorkKind,
    /// For a Read: its response is complete.
    responded: bool,
}

#[derive(Debug)]
struct ReadInFlight {
    number: u64,
    sink_stag: u32,
    sink_to: u64,
    len: usize,
    arrived: usize,
}

impl Outbound {
    pub(crate) fn new() -> Self {
        Self {
            queue: VecDeque::new(),
            base: 0,
            done: 0,
            freed: None,
            waiting: VecDeque::new(),
            partial: None,
            reads: VecDeque::new(),
            max_reads: 0,
            responses: VecDeque::new(),
            responding: 0,
            prefer_response: true,
            send_msn: 1,
            read_msn: 1,
            frames: Frames::new(),
            limit: PayloadLimit::LONGEST,
            held: false,
            blocked: false,
            closed: false,
        }
    }

    pub(crate) fn prepare(&mut self, sends: usize) {
        self.queue.reserve_exact(sends);
    }

    /// The connection is established: sets the negotiated values.
    pub(crate) fn start(&mut self, crc: bool, limit: PayloadLimit, max_reads: usize, held: bool) {
        self.frames.crc = crc;
        self.limit = limit;
        self.max_reads = max_reads;
        self.held = held;
    }

    pub(crate) fn posted(&self) -> usize {
        self.queue.len() + self.waiting.len()
    }

    pub(crate) fn max_reads(&self) -> usize {
        self.max_reads
    }

    /// Number of responses to the peer's Reads that are not completely sent.
    pub(crate) fn responding(&self) -> usize {
        self.responding
    }

    /// Queues the response to a Read of memory at `offset` in the buffer of its key.
    pub(crate) fn respond(&mut self, request: &ReadRequest, offset: usize) {
        self.responding += 1;
        self.responses
            .push_back(Message::response(request, offset, self.limit));
    }

    fn entry_mut(&mut self, number: u64) -> Option<&mut Entry> {
        let index = usize::try_from(number.checked_sub(self.base)?).ok()?;
        self.queue.get_mut(index)
    }

    fn buf(&self, number: u64) -> Option<&Buf> {
        let index = usize::try_from(number.checked_sub(self.base)?).ok()?;
        self.queue.get(index)?.buf.as_ref()
    }

    /// Maximum number of slices of [`gather`](Self::gather).
    pub(crate) fn slices(&self) -> usize {
        self.frames.slices()
    }

    /// Fills `slices` with data to send; returns the number of slices and of bytes.
    pub(crate) fn gather<'a>(
        &'a self,
        keys: &'a KeyTable,
        slices: &mut [IoSlice<'a>],
    ) -> (usize, usize) {
        self.frames
            .gather(slices, |source, offset, len| match source {
                Source::Work(number) => slice(self.buf(number), offset, len),
                Source::Exposed(key) => keys.reading(key, offset, len).unwrap_or_default(),
            })
    }

    /// Bytes of waiting payload that stay unchanged until the stream releases them: those of
    /// work, which completes after that. Responses read exposed memory, whose owner withdraws
    /// it when the peer has the bytes: then nothing waits for a release.
    pub(crate) fn stable_payload(&self) -> usize {
        match self.responding {
            0 => self.frames.payload(),
            _ => 0,
        }
    }

    /// The stream accepted bytes.
    #[inline]
    pub(crate) fn sent(&mut self, accepted: Accepted, keys: &mut KeyTable) {
        if accepted.kept > 0 || self.is_kept() {
            return self.sent_kept(accepted, keys);
        }
        if let Some(done) = self.end_frames(accepted.bytes, keys) {
            self.done = done;
        }
    }

    /// The stream accepted bytes, and refers or referred to some.
    #[cold]
    fn sent_kept(&mut self, accepted: Accepted, keys: &mut KeyTable) {
        match accepted.kept {
            0 => self.released(u64::MAX),
            call => self.frames.kept_mut().keep(call),
        }
        if let Some(done) = self.end_frames(accepted.bytes, keys) {
            match accepted.kept {
                0 => self.done = done,
                _ => self.frames.kept_mut().defer(done),
            }
        }
    }

    /// Removes the frames that end with the next `count` bytes. Returns the number below
    /// which all work is sent, if work ended.
    #[inline]
    fn end_frames(&mut self, count: usize, keys: &mut KeyTable) -> Option<u64> {
        let mut below = None;
        for done in self.frames.sent(count) {
            match done {
                Done::Nothing => {}
                Done::Work(number) => below = Some(number + 1),
                Done::Response(key) => response_ended(&mut self.responding, key, keys),
            }
        }
        below
    }

    /// Whether the stream refers to memory of sent work.
    #[inline]
    pub(crate) fn is_kept(&self) -> bool {
        !self.frames.kept().is_empty()
    }

    /// The stream has released all calls up to `call`.
    pub(crate) fn released(&mut self, call: u64) {
        if let Some(below) = self.frames.kept_mut().release(call) {
            *self.freed.as_mut().unwrap_or(&mut self.done) = below;
        }
    }

    /// The stream is reset: work whose memory it still refers to was perhaps not transmitted,
    /// and does not count as done when that memory is released.
    pub(crate) fn reset(&mut self) {
        self.freed.get_or_insert(self.done);
    }

    /// The stream never releases sent memory. That memory is never used again: its work
    /// returns without its buffers. Returns the number of these buffers.
    pub(crate) fn abandon(&mut self) -> usize {
        let freed = self.freed.unwrap_or(self.done);
        let sent = self.frames.sent_below().unwrap_or(self.next_number());
        self.frames.abandon();
        let bufs = (self.base..)
            .zip(&mut self.queue)
            .filter(|(number, entry)| {
                (freed..sent).contains(number) && entry.kind != WorkKind::Read
            });
        bufs.filter_map(|(_, entry)| entry.buf.take())
            .map(std::mem::forget)
            .count()
    }

    /// Whether there are frames to send.
    pub(crate) fn has_output(&self) -> bool {
        !self.frames.is_empty()
    }

    /// Whether anything can be framed now.
    pub(crate) fn has_more(&self) -> bool {
        !self.held && !matches!(self.next_frame(), stage::Next::Nothing)
    }

    /// Reports completed work, in posting order.
    pub(crate) fn complete(&mut self, qp: QpId, events: &mut Vec<Event>) {
        while let Some(front) = self.queue.front() {
            let done = match front.kind {
                WorkKind::Read => front.responded,
                WorkKind::Send | WorkKind::Write => self.base < self.done,
            };
            if !done {
                break;
            }
            if let Some(entry) = self.queue.pop_front() {
                self.base += 1;
                events.push(completion(qp, entry, Outcome::Success));
            }
        }
    }

    /// Reports all work, in posting order.
    pub(crate) fn flush(&mut self, qp: QpId, keys: &mut KeyTable, events: &mut Vec<Event>) {
        self.drop_responses(keys);
        for done in self.frames.clear() {
            if let Done::Response(key) = done {
                response_ended(&mut self.responding, key, keys);
            }
        }
        // After the first undone request all are flushed: completions are in posting order.
        self.complete(qp, events);
        let waiting = self
            .waiting
            .drain(..)
            .map(|(tag, work)| Entry::new(tag, work));
        for entry in self.queue.drain(..).chain(waiting) {
            events.push(completion(qp, entry, Outcome::Flushed));
        }
        self.partial = None;
        self.reads.clear();
    }

    fn drop_responses(&mut self, keys: &mut KeyTable) {
        while let Some(response) = self.responses.pop_front() {
            response_ended(&mut self.responding, response.busy_key(), keys);
        }
    }

    /// Orderly end of the connection: no more Reads are sent, nor work that was posted after
    /// them, and the peer's Reads get no more responses.
    pub(crate) fn wind_down(&mut self, keys: &mut KeyTable) {
        self.max_reads = 0;
        let started = self.responses.front().is_some_and(Message::is_started);
        for response in self.responses.split_off(usize::from(started)) {
            response_ended(&mut self.responding, response.busy_key(), keys);
        }
    }

    /// Sends a Write of no bytes, unless something else is to be sent anyway. Returns whether
    /// it did.
    pub(crate) fn send_nothing(&mut self) -> bool {
        let idle = self.frames.is_empty()
            && self.partial.is_none()
            && self.responses.is_empty()
            && self.waiting.is_empty();
        let sends = idle && !self.closed && !self.held;
        if sends {
            let header = Header {
                opcode: Opcode::WRITE,
                last: true,
                payload: 0,
                kind: Kind::Tagged { stag: 0, to: 0 },
            };
            let nothing = frames::NO_HEAD;
            self.frames
                .frame(&header, nothing, Payload::NONE, Done::Nothing);
        }
        sends
    }

    /// Sends only the rest of the current frame, and after it a Terminate. `header` and
    /// `request` are copies for that: see [`Terminate::write`].
    pub(crate) fn cut_short(
        &mut self,
        fault: &WireFault,
        header: &[u8],
        request: &[u8],
        keys: &mut KeyTable,
    ) {
        self.closed = true;
        self.partial = None;
        let started = self.responses.pop_front_if(|front| front.is_started());
        self.drop_responses(keys);
        for done in self.frames.cut_to_frame() {
            if let Done::Response(key) = done {
                response_ended(&mut self.responding, key, keys);
            }
        }
        if let Some(started) = started {
            // The current frame may belong to this response: then its memory stays busy until
            // the frame is sent.
            let key = started.busy_key();
            if !self.frames.finish_with(Done::Response(key)) {
                response_ended(&mut self.responding, key, keys);
            }
        }
        let mut message = Vec::new();
        Terminate::write(fault, header, request, &mut message);
        self.frames.raw(&message);
    }
}

impl Drop for Outbound {
    fn drop(&mut self) {
        if self.is_kept() {
            self.abandon();
        }
    }
}

/// Counts one of the `responding` responses as sent or dropped.
fn response_ended(responding: &mut usize, key: Option<u32>, keys: &mut KeyTable) {
    *responding = responding.saturating_sub(1);
    if let Some(key) = key {
        keys.end_read(key);
    }
}

fn slice(buf: Option<&Buf>, start: usize, len: usize) -> &[u8] {
    buf.and_then(|buf| buf.get(start..start.checked_add(len)?))
        .unwrap_or_default()
}

impl Entry {
    fn new(tag: Tag, work: Work) -> Self {
        Self {
            tag,
            kind: work.kind(),
            buf: work.into_buf(),
            responded: false,
        }
    }
}

fn completion(qp: QpId, entry: Entry, outcome: Outcome) -> Event {
    Event::Completion(Completion {
        qp,
        tag: entry.tag,
        kind: entry.kind,
        buf: entry.buf,
        outcome,
    })
}
