//! Work and answers become frames.

use nvmeof_rdma::{RemoteSlice, Work, WorkKind};

use super::pieces::{Done, Payload, Source};
use super::{Outbound, ReadInFlight, slice};
use crate::iwarp::{Header, Kind, MAX_PAYLOAD, Opcode, QUEUE_SEND, ReadRequest};
use crate::keys::KeyTable;

/// Whose frame is next.
pub(super) enum Turn {
    Response,
    Work,
    Nothing,
}

impl Outbound {
    /// Frames what fits, as long as there is something.
    pub(crate) fn stage(&mut self, keys: &mut KeyTable) {
        if self.held {
            return;
        }
        while self.pieces.has_room() {
            let staged = match self.turn() {
                Turn::Response => self.stage_response(keys),
                Turn::Work => self.stage_work(keys),
                Turn::Nothing => false,
            };
            if !staged {
                break;
            }
        }
    }

    pub(super) fn turn(&self) -> Turn {
        // RFC 5041, section 5.2: messages are not interleaved.
        if self.framed > 0 {
            return Turn::Work;
        }
        let waiting = self.responses.front();
        let work = !self.closed && self.work_is_possible();
        match waiting {
            Some(response) if response.framed > 0 || self.prefer_response || !work => {
                Turn::Response
            }
            _ if work => Turn::Work,
            _ => Turn::Nothing,
        }
    }

    /// RDMA Reads wait until fewer than the agreed number (ORD) are in flight,
    /// and what was posted after them waits with them.
    fn work_is_possible(&self) -> bool {
        match self.entry(self.next) {
            Some(entry) => entry.work.kind() != WorkKind::Read || self.reads.len() < self.max_reads,
            None => false,
        }
    }

    fn stage_response(&mut self, keys: &KeyTable) -> bool {
        let Some(response) = self.responses.front_mut() else {
            return false;
        };
        let len = response.len();
        let count = (len - response.framed).min(MAX_PAYLOAD);
        let last = response.framed + count == len;
        let header = Header {
            opcode: Opcode::READ_RESPONSE,
            last,
            payload: count,
            kind: Kind::Tagged {
                stag: response.request.sink_stag,
                to: response
                    .request
                    .sink_to
                    .wrapping_add(response.framed as u64),
            },
        };
        let (key, busy) = (response.request.source_stag, response.busy_key());
        let offset = response.offset + response.framed;
        response.framed += count;
        let done = match last {
            true => Done::Response(busy),
            false => Done::Nothing,
        };
        let bytes = keys.reading(key, offset, count).unwrap_or_default();
        let payload = Payload {
            source: Source::Exposed(key),
            offset,
            bytes,
        };
        self.pieces.frame(&header, &[], payload, done);
        if last {
            self.responses.pop_front();
            self.prefer_response = false;
        }
        true
    }

    fn stage_work(&mut self, keys: &mut KeyTable) -> bool {
        let number = self.next;
        let Some(index) = number.checked_sub(self.base) else {
            return false;
        };
        let Some(entry) = usize::try_from(index).ok().and_then(|i| self.queue.get(i)) else {
            return false;
        };
        let total = entry.work.len();
        let count = (total - self.framed).min(MAX_PAYLOAD);
        let last = self.framed + count == total;
        let done = if last {
            Done::Work(number)
        } else {
            Done::Nothing
        };
        let source = Source::Work(number);
        match &entry.work {
            Work::Send {
                head,
                body,
                invalidate,
                solicited,
            } => {
                let header = Header {
                    opcode: Opcode::send(*solicited, invalidate.is_some()),
                    last,
                    payload: count,
                    kind: Kind::Untagged {
                        invalidate: invalidate.map_or(0, |key| key.0),
                        queue: QUEUE_SEND,
                        msn: self.send_msn,
                        offset: u32::try_from(self.framed).unwrap_or(u32::MAX),
                    },
                };
                // The head is shorter than a segment: it is in the first one.
                let head = if self.framed == 0 { &head[..] } else { &[] };
                let start = self.framed.saturating_sub(head_len(&entry.work));
                let bytes = slice(body.as_ref(), start, count - head.len());
                let payload = Payload {
                    source,
                    offset: start,
                    bytes,
                };
                self.pieces.frame(&header, head, payload, done);
                if last {
                    self.send_msn = self.send_msn.wrapping_add(1);
                }
            }
            Work::Write { local, remote } => {
                let header = Header {
                    opcode: Opcode::WRITE,
                    last,
                    payload: count,
                    kind: Kind::Tagged {
                        stag: remote.key.0,
                        to: remote.addr.wrapping_add(self.framed as u64),
                    },
                };
                let bytes = slice(Some(local), self.framed, count);
                let payload = Payload {
                    source,
                    offset: self.framed,
                    bytes,
                };
                self.pieces.frame(&header, &[], payload, done);
            }
            Work::Read { remote, .. } => {
                let remote = *remote;
                self.stage_read(keys, remote, total);
                return true;
            }
        }
        self.framed += count;
        if last {
            self.work_framed();
        }
        true
    }

    /// Frames the Read Request of the work that is next, and notes where the
    /// answer goes.
    fn stage_read(&mut self, keys: &mut KeyTable, remote: RemoteSlice, len: usize) {
        let request = ReadRequest {
            sink_stag: keys.sink_tag(),
            sink_to: crate::keys::BASE,
            len: u32::try_from(len).unwrap_or(u32::MAX),
            source_stag: remote.key.0,
            source_to: remote.addr,
        };
        self.reads.push_back(ReadInFlight {
            number: self.next,
            sink_stag: request.sink_stag,
            sink_to: request.sink_to,
            len,
            arrived: 0,
        });
        self.pieces.read_request(&request, self.read_msn);
        self.read_msn = self.read_msn.wrapping_add(1);
        self.work_framed();
    }

    /// All of the work that was next is framed: answers have their turn.
    fn work_framed(&mut self) {
        self.framed = 0;
        self.next += 1;
        self.prefer_response = true;
    }
}

fn head_len(work: &Work) -> usize {
    match work {
        Work::Send { head, .. } => head.len(),
        _ => 0,
    }
}
