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
    /// Bytes of the first piece that are sent.
    front_sent: usize,
    /// Whether the last piece sent was not the last of its frame.
    mid_frame: bool,
    /// Header bytes; emptied when everything is sent.
    arena: Vec<u8>,
    payload: usize,
    /// Whether frames get a CRC.
    pub(super) crc: bool,
}

#[derive(Debug)]
struct Piece {
    /// `None`: the arena.
    source: Option<Source>,
    offset: usize,
    len: usize,
    ends_frame: bool,
    done: Done,
}

/// Whose payload.
#[derive(Clone, Copy, Debug)]
pub(super) enum Source {
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

/// What is done once a piece is sent.
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
            front_sent: 0,
            mid_frame: false,
            arena: Vec::new(),
            payload: 0,
            crc: false,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.queue.is_empty()
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
        let ulpdu = self.arena.len() - start - MPA_LEN + header.payload;
        self.arena.extend_from_slice(head);
        let mut crc = if self.crc {
            crc32c::crc32c(self.arena.get(start..).unwrap_or_default())
        } else {
            0
        };
        let mut trailer_start = start;
        if !bytes.is_empty() {
            self.push(None, start, self.arena.len() - start, Done::Nothing, false);
            self.push(Some(source), offset, bytes.len(), Done::Nothing, false);
            self.payload += bytes.len();
            trailer_start = self.arena.len();
            if self.crc {
                crc = crc32c::crc32c_append(crc, bytes);
            }
        }
        let padding = ZEROS.get(..pad_len(ulpdu)).unwrap_or_default();
        self.arena.extend_from_slice(padding);
        if self.crc {
            crc = crc32c::crc32c_append(crc, padding);
        }
        // RFC 5044, section 4.4: the field is there without CRCs too.
        self.arena.extend_from_slice(&crate::iwarp::crc_bytes(crc));
        let len = self.arena.len() - trailer_start;
        self.push(None, trailer_start, len, done, true);
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
        let padding = ZEROS.get(..pad_len(ulpdu)).unwrap_or_default();
        self.arena.extend_from_slice(padding);
        let crc = if self.crc {
            crc32c::crc32c(self.arena.get(start..).unwrap_or_default())
        } else {
            0
        };
        self.arena.extend_from_slice(&crate::iwarp::crc_bytes(crc));
        self.push(None, start, self.arena.len() - start, Done::Nothing, true);
    }

    fn push(
        &mut self,
        source: Option<Source>,
        offset: usize,
        len: usize,
        done: Done,
        ends_frame: bool,
    ) {
        self.queue.push_back(Piece {
            source,
            offset,
            len,
            ends_frame,
            done,
        });
    }

    /// Fills `slices`, joining header bytes that lie one after the other;
    /// `find` gives payload. Returns slices and bytes.
    pub(super) fn gather<'a>(
        &'a self,
        slices: &mut [IoSlice<'a>],
        find: impl Fn(Source, usize, usize) -> &'a [u8],
    ) -> (usize, usize) {
        let (mut used, mut bytes) = (0, 0);
        let mut skip = self.front_sent;
        let mut pieces = self.queue.iter().peekable();
        let mut slices = slices.iter_mut();
        while let Some(piece) = pieces.peek()
            && let Some(place) = slices.next()
        {
            let slice = match piece.source {
                Some(source) => {
                    let (offset, len) = (piece.offset + skip, piece.len - skip);
                    pieces.next();
                    find(source, offset, len)
                }
                None => {
                    let start = piece.offset + skip;
                    let mut end = start;
                    while let Some(next) = pieces.next_if(|next| {
                        next.source.is_none() && (end == start || next.offset == end)
                    }) {
                        end = next.offset + next.len;
                    }
                    self.arena.get(start..end).unwrap_or_default()
                }
            };
            skip = 0;
            bytes += slice.len();
            *place = IoSlice::new(slice);
            used += 1;
        }
        (used, bytes)
    }

    /// Takes a piece off the front that lies wholly in the `count` bytes sent.
    pub(super) fn take_sent(&mut self, count: &mut usize) -> Option<Done> {
        let front = self.queue.front()?;
        let left = front.len - self.front_sent;
        if *count < left {
            self.front_sent += *count;
            *count = 0;
            return None;
        }
        *count -= left;
        self.front_sent = 0;
        let piece = self.queue.pop_front()?;
        self.mid_frame = !piece.ends_frame;
        if piece.source.is_some() {
            self.payload -= piece.len;
        }
        if self.queue.is_empty() {
            self.arena.clear();
        }
        Some(piece.done)
    }

    /// Drops all pieces; gives what each would have been done with.
    pub(super) fn clear(&mut self) -> impl Iterator<Item = Done> + use<> {
        self.front_sent = 0;
        self.payload = 0;
        self.arena.clear();
        std::mem::take(&mut self.queue)
            .into_iter()
            .map(|piece| piece.done)
    }

    /// Drops all pieces but those of a frame that is partly sent.
    pub(super) fn cut_to_frame(&mut self) -> impl Iterator<Item = Done> + use<> {
        let keep = if self.mid_frame || self.front_sent > 0 {
            let end = self.queue.iter().position(|piece| piece.ends_frame);
            end.map_or(self.queue.len(), |end| end + 1)
        } else {
            0
        };
        let dropped = self.queue.split_off(keep);
        let payload = |piece: &Piece| piece.source.map_or(0, |_| piece.len);
        self.payload = self.queue.iter().map(payload).sum();
        dropped.into_iter().map(|piece| piece.done)
    }

    /// Adds to what happens once everything here is sent, if there is anything
    /// here and nothing happens yet.
    pub(super) fn finish_with(&mut self, done: Done) -> bool {
        match self.queue.back_mut() {
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
