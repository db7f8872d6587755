//! A message that is being framed, segment by segment.

use nvmeof_rdma::Inline;

use super::frames::{Done, Frames, Payload, Source};
use crate::iwarp::{Header, Kind, Opcode, PayloadLimit, ReadRequest};

/// A message that is not completely framed: head, then payload.
#[derive(Debug)]
pub(super) struct Message {
    pub(super) opcode: Opcode,
    /// Header of the first segment.
    pub(super) kind: Kind,
    /// Source of its payload, and offset there.
    pub(super) source: Source,
    pub(super) offset: usize,
    /// Maximum bytes of head and payload of one segment.
    pub(super) max: usize,
    /// Bytes of head and payload that are not framed.
    pub(super) left: usize,
    /// Framed bytes, and how many of them belong to the head.
    pub(super) framed: usize,
    pub(super) head: usize,
    /// Action once all of it is sent.
    pub(super) done: Done,
}

impl Message {
    /// The response to a Read of memory at `offset` in the buffer of its key.
    pub(super) fn response(request: &ReadRequest, offset: usize, limit: PayloadLimit) -> Self {
        let key = request.source_stag;
        Self {
            opcode: Opcode::READ_RESPONSE,
            kind: Kind::Tagged {
                stag: request.sink_stag,
                to: request.sink_to,
            },
            source: Source::Exposed(key),
            offset,
            max: limit.tagged,
            left: usize::try_from(request.len).unwrap_or(usize::MAX),
            framed: 0,
            head: 0,
            // A response without bytes reads no memory.
            done: Done::Response((request.len > 0).then_some(key)),
        }
    }

    pub(super) fn is_started(&self) -> bool {
        self.framed > 0
    }

    /// The key whose memory it reads.
    pub(super) fn busy_key(&self) -> Option<u32> {
        match self.done {
            Done::Response(key) => key,
            _ => None,
        }
    }

    /// Adds the next segment to `frames`; `head` goes before the payload of the first one and
    /// is shorter than a segment, `memory` is the source of the payload. Returns whether that
    /// was the last segment.
    pub(super) fn frame(&mut self, frames: &mut Frames, head: &Inline, memory: &[u8]) -> bool {
        let count = self.left.min(self.max);
        let last = count == self.left;
        let header = Header {
            opcode: self.opcode,
            last,
            payload: count,
            kind: self.kind_here(),
        };
        let offset = self.offset + self.framed - self.head;
        let bytes = memory.get(offset..offset + count - head.len());
        let payload = Payload {
            source: self.source,
            offset,
            bytes: bytes.unwrap_or_default(),
        };
        let done = if last { self.done } else { Done::Nothing };
        frames.frame(&header, head, payload, done);
        self.head += head.len();
        self.framed += count;
        self.left -= count;
        last
    }

    fn kind_here(&self) -> Kind {
        match self.kind {
            Kind::Tagged { stag, to } => Kind::Tagged {
                stag,
                to: to.wrapping_add(self.framed as u64),
            },
            Kind::Untagged {
                invalidate,
                queue,
                msn,
                offset,
            } => Kind::Untagged {
                invalidate,
                queue,
                msn,
                offset: offset.wrapping_add(u32::try_from(self.framed).unwrap_or(u32::MAX)),
            },
        }
    }
}
