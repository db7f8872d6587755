//! Frames that wait for the stream, as pieces of memory.

use std::collections::VecDeque;
use std::io::IoSlice;

use crate::iwarp::{Header, Kind, MPA_LEN, Opcode, QUEUE_READ, ReadRequest, pad_len};

/// Header bytes that are framed ahead, per connection.
const ARENA: usize = 32 * 1024;
/// Payload that is framed ahead, per connection.
const AHEAD: usize = 1 << 20;
/// Pieces that are framed ahead: more than one system call takes.
const MAX_PIECES: usize = 512;
const ZEROS: [u8; 3] = [0; 3];

/// Whole frames, cut into header bytes of our own and payload where it lies.
#[derive(Debug)]
pub(super) struct Pieces {
    queue: VecDeque<Piece>,
    /// Frames that are not wholly sent, oldest first.
    frames: VecDeque<Frame>,
    /// Bytes of the stream that were framed, that were sent, and that were
    /// sent in whole frames, from its start.
    framed: u64,
    sent: u64,
    whole: u64,
    /// Bytes of the first piece that are sent.
    front_sent: usize,
    /// Header bytes; emptied when everything is sent.
    arena: Vec<u8>,
    payload: usize,
    /// Whether frames get a CRC.
    pub(super) crc: bool,
}

#[derive(Debug)]
struct Piece {
    source: Source,
    offset: usize,
    len: usize,
}

#[derive(Debug)]
struct Frame {
    /// Where in the stream it ends.
    end: u64,
    done: Done,
}

/// Whose bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Source {
    /// The arena.
    Header,
    /// Work of the send queue, by number.
    Work(u64),
    /// Exposed memory, by key.
    Exposed(u32),
}

/// Payload of a frame: `bytes`, which lie in `source` from `offset`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Payload<'a> {
    pub(super) source: Source,
    pub(super) offset: usize,
    pub(super) bytes: &'a [u8],
}

/// What is done once a frame is sent.
#[derive(Clone, Copy, Debug)]
pub(super) enum Done {
    Nothing,
    /// The work of that number.
    Work(u64),
    /// An answer, with the key it kept busy.
    Response(Option<u32>),
}

impl Pieces {
    pub(super) fn new() -> Self {
        Self {
            queue: VecDeque::new(),
            frames: VecDeque::new(),
            framed: 0,
            sent: 0,
            whole: 0,
            front_sent: 0,
            arena: Vec::new(),
            payload: 0,
            crc: false,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// How many pieces of memory [`gather`](Self::gather) has to give.
    pub(super) fn count(&self) -> usize {
        self.queue.len()
    }

    /// Whether one more frame may be added.
    pub(super) fn has_room(&self) -> bool {
        // A frame has at most 20 bytes of header, 64 of head and 7 of trailer.
        self.arena.len() + 128 <= ARENA
            && self.payload < AHEAD
            && self.queue.len() + 3 <= MAX_PIECES
    }

    /// Adds a frame: `header`, `head`, then `rest`.
    pub(super) fn frame(&mut self, header: &Header, head: &[u8], rest: Payload<'_>, done: Done) {
        let Payload {
            source,
            offset,
            bytes,
        } = rest;
        debug_assert_eq!(header.payload, head.len() + bytes.len());
        let start = self.arena.len();
        header.write(&mut self.arena);
        self.arena.extend_from_slice(head);
        let end = self.arena.len();
        let ulpdu = end - start - MPA_LEN + bytes.len();
        self.trail(start, ulpdu, bytes);
        if bytes.is_empty() {
            self.push_header(start, self.arena.len());
        } else {
            self.push_header(start, end);
            self.push(source, offset, bytes.len());
            self.payload += bytes.len();
            self.push_header(end, self.arena.len());
        }
        self.end_frame(done);
    }

    /// Adds a Read Request.
    pub(super) fn read_request(&mut self, request: &ReadRequest, msn: u32) {
        let header = Header {
            opcode: Opcode::READ_REQUEST,
            last: true,
            payload: ReadRequest::LEN,
            kind: Kind::Untagged {
                invalidate: 0,
                queue: QUEUE_READ,
                msn,
                offset: 0,
            },
        };
        self.raw(|out| {
            header.write(out);
            request.write(out);
        });
    }

    /// Adds a frame that `write` puts down from its MPA length to its last
    /// byte of payload.
    pub(super) fn raw(&mut self, write: impl FnOnce(&mut Vec<u8>)) {
        let start = self.arena.len();
        write(&mut self.arena);
        let ulpdu = self.arena.len() - start - MPA_LEN;
        self.trail(start, ulpdu, &[]);
        self.push_header(start, self.arena.len());
        self.end_frame(Done::Nothing);
    }

    /// Padding and CRC of the frame whose header bytes start at `start` of the
    /// arena and whose payload elsewhere is `bytes`.
    fn trail(&mut self, start: usize, ulpdu: usize, bytes: &[u8]) {
        let padding = ZEROS.get(..pad_len(ulpdu)).unwrap_or_default();
        // RFC 5044, section 4.4: the field is there without CRCs too.
        let mut crc = 0;
        if self.crc {
            crc = crc32c::crc32c(self.arena.get(start..).unwrap_or_default());
            crc = crc32c::crc32c_append(crc, bytes);
            crc = crc32c::crc32c_append(crc, padding);
        }
        self.arena.extend_from_slice(padding);
        self.arena.extend_from_slice(&crate::iwarp::crc_bytes(crc));
    }

    /// This part of the arena goes out next, in one piece with what goes out
    /// before it where that lies before it.
    fn push_header(&mut self, start: usize, end: usize) {
        let len = end - start;
        match self.queue.back_mut() {
            Some(last) if last.source == Source::Header && last.offset + last.len == start => {
                last.len += len;
                self.framed += len as u64;
            }
            _ => self.push(Source::Header, start, len),
        }
    }

    fn push(&mut self, source: Source, offset: usize, len: usize) {
        self.framed += len as u64;
        self.queue.push_back(Piece {
            source,
            offset,
            len,
        });
    }

    fn end_frame(&mut self, done: Done) {
        let end = self.framed;
        self.frames.push_back(Frame { end, done });
    }

    /// Fills `slices`; `find` gives payload. Returns slices and bytes.
    pub(super) fn gather<'a>(
        &'a self,
        slices: &mut [IoSlice<'a>],
        find: impl Fn(Source, usize, usize) -> &'a [u8],
    ) -> (usize, usize) {
        let (mut used, mut bytes) = (0, 0);
        let mut skip = self.front_sent;
        for (piece, place) in self.queue.iter().zip(slices) {
            let (offset, len) = (piece.offset + skip, piece.len - skip);
            let slice = match piece.source {
                Source::Header => self.arena.get(offset..offset + len).unwrap_or_default(),
                source => find(source, offset, len),
            };
            skip = 0;
            bytes += slice.len();
            *place = IoSlice::new(slice);
            used += 1;
        }
        (used, bytes)
    }

    /// The stream took `count` bytes.
    pub(super) fn sent(&mut self, count: usize) {
        self.sent += count as u64;
        if self.sent == self.framed {
            self.forget();
            return;
        }
        let mut count = count + self.front_sent;
        while let Some(piece) = self.queue.pop_front_if(|piece| piece.len <= count) {
            count -= piece.len;
            if piece.source != Source::Header {
                self.payload -= piece.len;
            }
        }
        self.front_sent = count;
    }

    /// What the next frame that is wholly sent was to be done with.
    pub(super) fn take_done(&mut self) -> Option<Done> {
        let frame = self.frames.pop_front_if(|frame| frame.end <= self.sent)?;
        self.whole = frame.end;
        Some(frame.done)
    }

    /// No piece is left.
    fn forget(&mut self) {
        self.queue.clear();
        self.arena.clear();
        self.front_sent = 0;
        self.payload = 0;
    }

    /// Drops all pieces; gives what each frame would have been done with.
    pub(super) fn clear(&mut self) -> impl Iterator<Item = Done> + use<> {
        self.forget();
        self.framed = self.sent;
        let frames = std::mem::take(&mut self.frames);
        frames.into_iter().map(|frame| frame.done)
    }

    /// Drops all pieces but those of a frame that is partly sent.
    pub(super) fn cut_to_frame(&mut self) -> impl Iterator<Item = Done> + use<> {
        let begun = self.sent > self.whole;
        let dropped = self.frames.split_off(self.frames.len().min(begun.into()));
        self.framed = self.frames.front().map_or(self.sent, |frame| frame.end);
        let mut left = usize::try_from(self.framed - self.sent).unwrap_or(usize::MAX);
        left += self.front_sent;
        self.payload = 0;
        self.queue.retain_mut(|piece| {
            piece.len = piece.len.min(left);
            left -= piece.len;
            if piece.source != Source::Header {
                self.payload += piece.len;
            }
            piece.len > 0
        });
        if self.sent == self.framed {
            self.forget();
        }
        dropped.into_iter().map(|frame| frame.done)
    }

    /// Adds to what happens once everything here is sent, if there is anything
    /// here and nothing happens yet.
    pub(super) fn finish_with(&mut self, done: Done) -> bool {
        match self.frames.back_mut() {
            Some(last) if matches!(last.done, Done::Nothing) => {
                last.done = done;
                true
            }
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests;
