//! What leaves a connection: the send queue, answers to the peer's reads, and
//! the frames they become.

mod pieces;
mod reads;
mod stage;

use std::collections::VecDeque;
use std::io::IoSlice;

use nvmeof_memory::Buf;
use nvmeof_rdma::{Completion, Event, Outcome, QpId, Tag, Work};

use crate::iwarp::{ReadRequest, Terminate, WireFault};
use crate::keys::KeyTable;
use pieces::{Done, Pieces, Source};

/// The sending state of a connection.
#[derive(Debug)]
pub(crate) struct Outbound {
    /// Posted work, oldest first; entry 0 has number `base`.
    queue: VecDeque<Entry>,
    base: u64,
    /// Number of the work that is framed next, and its payload that is framed.
    next: u64,
    framed: usize,
    /// RDMA Reads in flight, oldest first, and how many there may be.
    reads: VecDeque<ReadInFlight>,
    max_reads: usize,
    /// Answers to the peer's Reads that are not wholly framed.
    responses: VecDeque<Response>,
    /// Answers that are not wholly sent.
    answering: usize,
    /// Whose turn it is when both works and answers wait.
    prefer_response: bool,
    send_msn: u32,
    read_msn: u32,
    pieces: Pieces,
    /// RFC 5044, section 7.1.2: the responder sends no FPDU before the
    /// initiator's first one.
    pub(crate) held: bool,
    /// The stream took less than there was.
    pub(crate) blocked: bool,
    /// Nothing new is framed: the connection ends.
    closed: bool,
}

#[derive(Debug)]
struct Entry {
    tag: Tag,
    work: Work,
    done: bool,
}

#[derive(Debug)]
struct ReadInFlight {
    number: u64,
    sink_stag: u32,
    sink_to: u64,
    len: usize,
    arrived: usize,
}

/// An answer to an RDMA Read of the peer.
#[derive(Debug)]
pub(crate) struct Response {
    request: ReadRequest,
    /// Where in the exposed buffer it starts.
    offset: usize,
    framed: usize,
}

impl Response {
    pub(crate) fn new(request: &ReadRequest, offset: usize) -> Self {
        Self {
            request: *request,
            offset,
            framed: 0,
        }
    }

    fn len(&self) -> usize {
        usize::try_from(self.request.len).unwrap_or(usize::MAX)
    }

    /// The key whose memory it reads; an empty answer reads none.
    fn busy_key(&self) -> Option<u32> {
        (self.request.len > 0).then_some(self.request.source_stag)
    }
}

impl Outbound {
    pub(crate) fn new() -> Self {
        Self {
            queue: VecDeque::new(),
            base: 0,
            next: 0,
            framed: 0,
            reads: VecDeque::new(),
            max_reads: 0,
            responses: VecDeque::new(),
            answering: 0,
            prefer_response: true,
            send_msn: 1,
            read_msn: 1,
            pieces: Pieces::new(),
            held: false,
            blocked: false,
            closed: false,
        }
    }

    pub(crate) fn prepare(&mut self, sends: usize) {
        self.queue.reserve_exact(sends);
    }

    /// The connection stands: what was agreed.
    pub(crate) fn start(&mut self, crc: bool, max_reads: usize, held: bool) {
        self.pieces.crc = crc;
        self.max_reads = max_reads;
        self.held = held;
    }

    pub(crate) fn posted(&self) -> usize {
        self.queue.len()
    }

    pub(crate) fn max_reads(&self) -> usize {
        self.max_reads
    }

    pub(crate) fn post(&mut self, tag: Tag, work: Work) {
        self.queue.push_back(Entry {
            tag,
            work,
            done: false,
        });
    }

    /// Answers to the peer's Reads that are not wholly sent.
    pub(crate) fn answering(&self) -> usize {
        self.answering
    }

    pub(crate) fn answer(&mut self, response: Response) {
        self.answering += 1;
        self.responses.push_back(response);
    }

    fn entry(&self, number: u64) -> Option<&Entry> {
        let index = usize::try_from(number.checked_sub(self.base)?).ok()?;
        self.queue.get(index)
    }

    fn entry_mut(&mut self, number: u64) -> Option<&mut Entry> {
        let index = usize::try_from(number.checked_sub(self.base)?).ok()?;
        self.queue.get_mut(index)
    }

    /// Fills `slices` with what is to be sent; returns how many there are and
    /// how many bytes they have.
    pub(crate) fn gather<'a>(
        &'a self,
        keys: &'a KeyTable,
        slices: &mut [IoSlice<'a>],
    ) -> (usize, usize) {
        self.pieces
            .gather(slices, |source, offset, len| match source {
                Source::Work(number) => {
                    let work = self.entry(number).map(|entry| &entry.work);
                    slice(work.and_then(Work::buf), offset, len)
                }
                Source::Exposed(key) => keys.reading(key, offset, len).unwrap_or_default(),
            })
    }

    /// The stream took `count` bytes.
    pub(crate) fn sent(&mut self, mut count: usize, keys: &mut KeyTable) {
        while let Some(done) = self.pieces.take_sent(&mut count) {
            match done {
                Done::Nothing => {}
                Done::Work(number) => {
                    if let Some(entry) = self.entry_mut(number) {
                        entry.done = true;
                    }
                }
                Done::Response(key) => self.answered(key, keys),
            }
        }
    }

    fn answered(&mut self, key: Option<u32>, keys: &mut KeyTable) {
        self.answering = self.answering.saturating_sub(1);
        if let Some(key) = key {
            keys.end_read(key);
        }
    }

    /// Whether there are frames to send.
    pub(crate) fn has_output(&self) -> bool {
        !self.pieces.is_empty()
    }

    /// Whether there is something that could be framed now.
    pub(crate) fn has_more(&self) -> bool {
        !self.held && !matches!(self.turn(), stage::Turn::Nothing)
    }

    /// Hands out what is done, in the order it was posted.
    pub(crate) fn complete(&mut self, qp: QpId, events: &mut Vec<Event>) {
        while self.queue.front().is_some_and(|entry| entry.done) {
            if let Some(entry) = self.queue.pop_front() {
                self.base += 1;
                events.push(completion(qp, entry, Outcome::Success));
            }
        }
    }

    /// Hands out everything.
    pub(crate) fn flush(&mut self, qp: QpId, keys: &mut KeyTable, events: &mut Vec<Event>) {
        self.drop_answers(keys);
        for done in self.pieces.clear() {
            if let Done::Response(key) = done {
                self.answered(key, keys);
            }
        }
        // From the first that was not done on, nothing is: completions are in
        // posting order.
        self.complete(qp, events);
        for entry in self.queue.drain(..) {
            events.push(completion(qp, entry, Outcome::Flushed));
        }
        self.reads.clear();
    }

    fn drop_answers(&mut self, keys: &mut KeyTable) {
        while let Some(response) = self.responses.pop_front() {
            self.answered(response.busy_key(), keys);
        }
    }

    /// The connection ends in good order: no more Reads are sent, nor what was
    /// posted after them, and the peer's Reads are not answered any more.
    pub(crate) fn wind_down(&mut self, keys: &mut KeyTable) {
        self.max_reads = 0;
        let begun = self.responses.front().is_some_and(|front| front.framed > 0);
        for response in self.responses.split_off(usize::from(begun)) {
            self.answered(response.busy_key(), keys);
        }
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
        self.framed = 0;
        let begun = self.responses.pop_front_if(|front| front.framed > 0);
        self.drop_answers(keys);
        for done in self.pieces.cut_to_frame() {
            if let Done::Response(key) = done {
                self.answered(key, keys);
            }
        }
        if let Some(begun) = begun {
            // The frame at hand may be of this answer: then its memory stays
            // busy until that is sent.
            let key = begun.busy_key();
            if !self.pieces.finish_with(Done::Response(key)) {
                self.answered(key, keys);
            }
        }
        self.pieces
            .raw(|out| Terminate::write(fault, header, request, out));
    }
}

fn slice(buf: Option<&Buf>, start: usize, len: usize) -> &[u8] {
    buf.and_then(|buf| buf.get(start..start.checked_add(len)?))
        .unwrap_or_default()
}

fn completion(qp: QpId, entry: Entry, outcome: Outcome) -> Event {
    Event::Completion(Completion {
        qp,
        tag: entry.tag,
        kind: entry.work.kind(),
        buf: entry.work.into_buf(),
        outcome,
    })
}
