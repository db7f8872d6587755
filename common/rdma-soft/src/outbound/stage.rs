//! Framing of work and responses.

use nvmeof_rdma::{Inline, RemoteKey, RemoteSlice, Tag, Work, WorkKind, WriteAndSend};

use super::frames::{Done, NO_HEAD, Payload, Source};
use super::message::Message;
use super::{Entry, Outbound, ReadInFlight};
use crate::iwarp::{Header, Kind, Opcode, QUEUE_READ, QUEUE_SEND, ReadRequest};
use crate::keys::KeyTable;

/// Source of the next frame.
pub(super) enum Next {
    Response,
    Work,
    Nothing,
}

impl Outbound {
    /// Queues work. If nothing is before it, its first frame is built immediately: then the
    /// work need not be kept.
    pub(crate) fn post(&mut self, tag: Tag, work: Work, keys: &mut KeyTable) {
        if self.may_begin(&work) && self.is_free() {
            self.begin(tag, work, keys);
        } else {
            self.wait([(tag, work)]);
        }
    }

    #[cold]
    fn wait<const N: usize>(&mut self, works: [(Tag, Work); N]) {
        self.waiting.extend(works);
    }

    /// Queues a Write and its Send, which become one entry if both can be framed immediately.
    pub(crate) fn post_response(&mut self, tag: Tag, reply: WriteAndSend) {
        if reply.local.len() > self.limit.tagged || !self.is_free() {
            return self.wait(reply.into_works().map(|work| (tag, work)));
        }
        let WriteAndSend {
            local,
            remote,
            head,
            invalidate,
        } = reply;
        let number = self.next_number();
        let payload = Payload {
            source: Source::Work(number),
            offset: 0,
            bytes: &local,
        };
        let write = Header {
            opcode: Opcode::WRITE,
            last: true,
            payload: local.len(),
            kind: Kind::Tagged {
                stag: remote.key.0,
                to: remote.addr,
            },
        };
        let send = Header {
            opcode: Opcode::send(false, invalidate.is_some()),
            last: true,
            payload: head.len(),
            kind: self.next_send(invalidate),
        };
        let done = Done::Work(number);
        self.frames
            .frame_with(&write, payload, (&send, &Inline::of(head)), done);
        self.queue.push_back(Entry {
            tag,
            buf: Some(local),
            kind: WorkKind::Send,
            responded: false,
        });
        self.prefer_response = true;
    }

    /// Whether nothing is queued, so that newly posted work need not wait.
    #[inline]
    fn is_free(&self) -> bool {
        self.waiting.is_empty()
            && self.partial.is_none()
            && self.responses.is_empty()
            && !self.held
            && !self.closed
            && self.frames.has_room()
    }

    /// The number of the next work.
    #[inline]
    pub(super) fn next_number(&self) -> u64 {
        self.base + self.queue.len() as u64
    }

    /// The header of the next message of the send queue, at its start.
    #[inline]
    fn next_send(&mut self, invalidate: Option<RemoteKey>) -> Kind {
        let msn = self.send_msn;
        self.send_msn = msn.wrapping_add(1);
        Kind::Untagged {
            invalidate: invalidate.map_or(0, |key| key.0),
            queue: QUEUE_SEND,
            msn,
            offset: 0,
        }
    }

    /// Frames as much as fits.
    pub(crate) fn stage(&mut self, keys: &mut KeyTable) {
        if self.held {
            return;
        }
        while self.frames.has_room() {
            match self.next_frame() {
                Next::Response => self.stage_response(keys),
                Next::Work => self.stage_work(keys),
                Next::Nothing => break,
            }
        }
    }

    pub(super) fn next_frame(&self) -> Next {
        // RFC 5041, section 5.2: messages are not interleaved.
        if self.partial.is_some() {
            return Next::Work;
        }
        let next = self.waiting.front();
        let work = !self.closed && next.is_some_and(|(_, work)| self.may_begin(work));
        match self.responses.front() {
            Some(response) if response.is_started() || self.prefer_response || !work => {
                Next::Response
            }
            _ if work => Next::Work,
            _ => Next::Nothing,
        }
    }

    /// RDMA Reads wait until fewer than the negotiated number (ORD) are in flight, and later
    /// work waits with them.
    fn may_begin(&self, work: &Work) -> bool {
        !matches!(work, Work::Read { .. }) || self.reads.len() < self.max_reads
    }

    fn stage_response(&mut self, keys: &KeyTable) {
        let Some(response) = self.responses.front_mut() else {
            return;
        };
        let memory = response.busy_key().and_then(|key| keys.memory(key));
        if response.frame(&mut self.frames, NO_HEAD, memory.unwrap_or_default()) {
            self.responses.pop_front();
            self.prefer_response = false;
        }
    }

    fn stage_work(&mut self, keys: &mut KeyTable) {
        let Some(mut message) = self.partial.take() else {
            if let Some((tag, work)) = self.waiting.pop_front() {
                self.begin(tag, work, keys);
            }
            return;
        };
        let buf = self.queue.back().and_then(|entry| entry.buf.as_deref());
        let last = message.frame(&mut self.frames, NO_HEAD, buf.unwrap_or_default());
        if last {
            self.prefer_response = true;
        } else {
            self.partial = Some(message);
        }
    }

    /// Builds the first frame of the next work.
    fn begin(&mut self, tag: Tag, work: Work, keys: &mut KeyTable) {
        let number = self.next_number();
        self.prefer_response = true;
        match &work {
            Work::Send {
                head,
                body,
                invalidate,
                solicited,
            } => {
                let kind = self.next_send(*invalidate);
                let opcode = Opcode::send(*solicited, invalidate.is_some());
                let memory = body.as_deref().unwrap_or_default();
                self.begin_message(opcode, kind, number, head, memory);
            }
            Work::Write { local, remote } => {
                let kind = Kind::Tagged {
                    stag: remote.key.0,
                    to: remote.addr,
                };
                self.begin_message(Opcode::WRITE, kind, number, NO_HEAD, local);
            }
            Work::Read { local, remote } => {
                self.begin_read(keys, *remote, number, local.len());
            }
        }
        self.queue.push_back(Entry::new(tag, work));
    }

    // Inlined twice, so that each kind of header is built without a branch.
    #[inline(always)]
    fn begin_message(
        &mut self,
        opcode: Opcode,
        kind: Kind,
        number: u64,
        head: &Inline,
        memory: &[u8],
    ) {
        let (source, done) = (Source::Work(number), Done::Work(number));
        let len = head.len() + memory.len();
        let max = match kind {
            Kind::Tagged { .. } => self.limit.tagged,
            Kind::Untagged { .. } => self.limit.untagged,
        };
        if len <= max {
            let header = Header {
                opcode,
                last: true,
                payload: len,
                kind,
            };
            let payload = Payload {
                source,
                offset: 0,
                bytes: memory,
            };
            return self.frames.frame(&header, head, payload, done);
        }
        let message = Message {
            opcode,
            kind,
            source,
            offset: 0,
            max,
            left: len,
            framed: 0,
            head: 0,
            done,
        };
        self.begin_long(message, head, memory);
    }

    /// Builds the first frame of a message that takes several.
    #[inline(never)]
    fn begin_long(&mut self, mut message: Message, head: &Inline, memory: &[u8]) {
        message.frame(&mut self.frames, head, memory);
        self.partial = Some(message);
    }

    /// Frames the Read Request of the next work, and records the destination of the response.
    fn begin_read(&mut self, keys: &mut KeyTable, remote: RemoteSlice, number: u64, len: usize) {
        let request = ReadRequest {
            sink_stag: keys.sink_tag(),
            sink_to: crate::keys::BASE,
            len: u32::try_from(len).unwrap_or(u32::MAX),
            source_stag: remote.key.0,
            source_to: remote.addr,
        };
        self.reads.push_back(ReadInFlight {
            number,
            sink_stag: request.sink_stag,
            sink_to: request.sink_to,
            len,
            arrived: 0,
        });
        let header = Header {
            opcode: Opcode::READ_REQUEST,
            last: true,
            payload: ReadRequest::LEN,
            kind: Kind::Untagged {
                invalidate: 0,
                queue: QUEUE_READ,
                msn: self.read_msn,
                offset: 0,
            },
        };
        self.read_msn = self.read_msn.wrapping_add(1);
        let mut bytes = [0; Header::MAX_LEN + ReadRequest::LEN];
        let (start, end) = bytes.split_at_mut(Header::MAX_LEN);
        start.copy_from_slice(&header.to_bytes().0);
        end.copy_from_slice(&request.to_bytes());
        self.frames.raw(&bytes);
    }
}
