//! What leaves a connection: the send queue, answers to the peer's reads, and
//! the frames they become.

mod frames;
mod message;
mod reads;
mod stage;

use std::collections::VecDeque;
use std::io::IoSlice;

use nvmeof_memory::Buf;
use nvmeof_rdma::{Completion, Event, Outcome, QpId, Tag, Work, WorkKind};

use crate::iwarp::{Header, Kind, Opcode, PayloadLimit, ReadRequest, Terminate, WireFault};
use crate::keys::KeyTable;
use frames::{Done, Frames, Payload, Source};
use message::Message;

/// The sending state of a connection.
#[derive(Debug)]
pub(crate) struct Outbound {
    /// Work that is framed, the newest perhaps in part; oldest first. Entry 0
    /// has number `base`.
    queue: VecDeque<Entry>,
    base: u64,
    /// The number below which all work but Reads is done.
    done: u64,
    /// Posted work of which nothing is framed.
    waiting: VecDeque<(Tag, Work)>,
    /// What is left to be framed of the newest work in `queue`.
    begun: Option<Message>,
    /// RDMA Reads in flight, oldest first, and how many there may be.
    reads: VecDeque<ReadInFlight>,
    max_reads: usize,
    /// Answers to the peer's Reads that are not wholly framed.
    answers: VecDeque<Message>,
    /// Answers that are not wholly sent.
    answering: usize,
    /// Whose turn it is when both works and answers wait.
    prefer_answer: bool,
    send_msn: u32,
    read_msn: u32,
    frames: Frames,
    limit: PayloadLimit,
    /// RFC 5044, section 7.1.2: the responder sends no FPDU before the
    /// initiator's first one.
    pub(crate) held: bool,
    /// The stream took less than there was.
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
    /// Of a Read: its answer is whole.
    answered: bool,
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
            waiting: VecDeque::new(),
            begun: None,
            reads: VecDeque::new(),
            max_reads: 0,
            answers: VecDeque::new(),
            answering: 0,
            prefer_answer: true,
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

    /// The connection stands: what was agreed.
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

    /// Answers to the peer's Reads that are not wholly sent.
    pub(crate) fn answering(&self) -> usize {
        self.answering
    }

    /// Answers a Read of memory that lies `offset` bytes into the buffer of
    /// its key.
    pub(crate) fn answer(&mut self, request: &ReadRequest, offset: usize) {
        self.answering += 1;
        self.answers
            .push_back(Message::answer(request, offset, self.limit));
    }

    fn entry_mut(&mut self, number: u64) -> Option<&mut Entry> {
        let index = usize::try_from(number.checked_sub(self.base)?).ok()?;
        self.queue.get_mut(index)
    }

    fn buf(&self, number: u64) -> Option<&Buf> {
        let index = usize::try_from(number.checked_sub(self.base)?).ok()?;
        self.queue.get(index)?.buf.as_ref()
    }

    /// Slices that [`gather`](Self::gather) gives at most.
    pub(crate) fn slices(&self) -> usize {
        self.frames.slices()
    }

    /// Fills `slices` with what is to be sent; returns how many there are and
    /// how many bytes they have.
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

    /// The stream took `count` bytes.
    pub(crate) fn sent(&mut self, count: usize, keys: &mut KeyTable) {
        for done in self.frames.sent(count) {
            match done {
                Done::Nothing => {}
                Done::Work(number) => self.done = number + 1,
                Done::Response(key) => answered(&mut self.answering, key, keys),
            }
        }
    }

    /// Whether there are frames to send.
    pub(crate) fn has_output(&self) -> bool {
        !self.frames.is_empty()
    }

    /// Whether there is something that could be framed now.
    pub(crate) fn has_more(&self) -> bool {
        !self.held && !matches!(self.turn(), stage::Turn::Nothing)
    }

    /// Hands out what is done, in the order it was posted.
    pub(crate) fn complete(&mut self, qp: QpId, events: &mut Vec<Event>) {
        while let Some(front) = self.queue.front() {
            let done = match front.kind {
                WorkKind::Read => front.answered,
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

    /// Hands out everything.
    pub(crate) fn flush(&mut self, qp: QpId, keys: &mut KeyTable, events: &mut Vec<Event>) {
        self.drop_answers(keys);
        for done in self.frames.clear() {
            if let Done::Response(key) = done {
                answered(&mut self.answering, key, keys);
            }
        }
        // From the first that was not done on, nothing is: completions are in
        // posting order.
        self.complete(qp, events);
        let waiting = self
            .waiting
            .drain(..)
            .map(|(tag, work)| Entry::new(tag, work));
        for entry in self.queue.drain(..).chain(waiting) {
            events.push(completion(qp, entry, Outcome::Flushed));
        }
        self.begun = None;
        self.reads.clear();
    }

    fn drop_answers(&mut self, keys: &mut KeyTable) {
        while let Some(answer) = self.answers.pop_front() {
            answered(&mut self.answering, answer.busy_key(), keys);
        }
    }

    /// The connection ends in good order: no more Reads are sent, nor what was
    /// posted after them, and the peer's Reads are not answered any more.
    pub(crate) fn wind_down(&mut self, keys: &mut KeyTable) {
        self.max_reads = 0;
        let begun = self.answers.front().is_some_and(Message::is_begun);
        for answer in self.answers.split_off(usize::from(begun)) {
            answered(&mut self.answering, answer.busy_key(), keys);
        }
    }

    /// Sends a Write of no bytes, unless something else goes out anyway. Says
    /// whether it did.
    pub(crate) fn send_nothing(&mut self) -> bool {
        let idle = self.frames.is_empty()
            && self.begun.is_none()
            && self.answers.is_empty()
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

    /// Nothing more goes out but the rest of the frame at hand, and after it a
    /// Terminate. `header` and `request` are copies for that: see
    /// [`Terminate::write`].
    pub(crate) fn cut_short(
        &mut self,
        fault: &WireFault,
        header: &[u8],
        request: &[u8],
        keys: &mut KeyTable,
    ) {
        self.closed = true;
        self.begun = None;
        let begun = self.answers.pop_front_if(|front| front.is_begun());
        self.drop_answers(keys);
        for done in self.frames.cut_to_frame() {
            if let Done::Response(key) = done {
                answered(&mut self.answering, key, keys);
            }
        }
        if let Some(begun) = begun {
            // The frame at hand may be of this answer: then its memory stays
            // busy until that is sent.
            let key = begun.busy_key();
            if !self.frames.finish_with(Done::Response(key)) {
                answered(&mut self.answering, key, keys);
            }
        }
        let mut message = Vec::new();
        Terminate::write(fault, header, request, &mut message);
        self.frames.raw(&message);
    }
}

/// One of the answers that are `answering` is sent or dropped.
fn answered(answering: &mut usize, key: Option<u32>, keys: &mut KeyTable) {
    *answering = answering.saturating_sub(1);
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
            answered: false,
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
