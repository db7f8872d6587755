//! Frames that wait for the stream: own bytes (headers, heads, trailers) in an arena, and
//! references to payload.

use std::collections::VecDeque;
use std::io::IoSlice;

use nvmeof_rdma::Inline;

use super::kept::Kept;
use crate::iwarp::{CRC_LEN, Header, MPA_LEN, crc, crc_bytes, pad_len};

/// Maximum own bytes that wait, per connection.
const ARENA: usize = 32 * 1024;
/// Maximum payload that waits; the last frame may exceed it.
const AHEAD: usize = 1 << 20;
/// Maximum frames that wait: more than one system call sends.
const MAX_FRAMES: usize = 256;
/// Maximum own bytes in one frame, rounded up: 20 of header, 64 of head, 7 of trailer.
const ROOM: usize = 96;
/// Maximum padding and CRC.
const TRAILER: usize = 8;

/// The head of messages without one.
pub(super) const NO_HEAD: &Inline = &Inline::empty();

/// Complete frames, oldest first.
#[derive(Debug)]
pub(super) struct Frames {
    queue: VecDeque<Frame>,
    /// Number of frames with payload.
    with_payload: usize,
    /// Bytes of their payload.
    payload: usize,
    /// Sent bytes of the first frame.
    front_sent: usize,
    /// The own bytes of all frames, one after the other: those of the first start at `front`,
    /// those of the last end at `used`.
    arena: Vec<u8>,
    front: usize,
    used: usize,
    /// What the stream refers to after it accepted it.
    kept: Kept,
    /// Whether frames get a CRC.
    pub(super) crc: bool,
}

#[derive(Debug)]
struct Frame {
    /// Offsets in the arena where its payload is inserted, and where its own bytes, or those
    /// of the frame that goes with it, end. They start where those of the frame before it
    /// end.
    middle: usize,
    end: usize,
    source: Source,
    offset: usize,
    len: usize,
    done: Done,
}

/// Source of payload.
#[derive(Clone, Copy, Debug)]
pub(super) enum Source {
    /// Work of the send queue, by number.
    Work(u64),
    /// Exposed memory, by key.
    Exposed(u32),
}

/// Payload of a frame: `bytes`, at `offset` in `source`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Payload<'a> {
    pub(super) source: Source,
    pub(super) offset: usize,
    pub(super) bytes: &'a [u8],
}

/// The action once a frame is sent.
#[derive(Clone, Copy, Debug)]
pub(super) enum Done {
    Nothing,
    /// Completes the work with this number.
    Work(u64),
    /// Ends a response, with the key that it kept busy.
    Response(Option<u32>),
}

impl Payload<'_> {
    pub(super) const NONE: Self = Self {
        source: Source::Work(0),
        offset: 0,
        bytes: &[],
    };
}

impl Frames {
    pub(super) fn new() -> Self {
        Self {
            queue: VecDeque::new(),
            with_payload: 0,
            payload: 0,
            front_sent: 0,
            arena: Vec::new(),
            front: 0,
            used: 0,
            kept: Kept::default(),
            crc: false,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Bytes of the payload that waits.
    pub(super) fn payload(&self) -> usize {
        self.payload
    }

    /// What the stream refers to after it accepted it.
    #[inline]
    pub(super) fn kept(&self) -> &Kept {
        &self.kept
    }

    pub(super) fn kept_mut(&mut self) -> &mut Kept {
        &mut self.kept
    }

    /// The number of work below which payload was sent, if some payload of work waits.
    pub(super) fn sent_below(&self) -> Option<u64> {
        let mut own = self.front + self.front_sent;
        self.queue.iter().find_map(|frame| {
            let is_begun = frame.offset > 0 || own > frame.middle;
            own = frame.end;
            match frame.source {
                Source::Work(number) if frame.len > 0 => Some(number + u64::from(is_begun)),
                _ => None,
            }
        })
    }

    /// The stream never releases sent memory.
    pub(super) fn abandon(&mut self) {
        self.kept.abandon(&mut self.arena);
        (self.front, self.used) = (0, 0);
    }

    /// Maximum number of slices of [`gather`](Self::gather).
    pub(super) fn slices(&self) -> usize {
        2 * self.with_payload + 1
    }

    /// Whether one more frame may be added.
    pub(super) fn has_room(&self) -> bool {
        self.used + ROOM <= ARENA && self.payload < AHEAD && self.queue.len() < MAX_FRAMES
    }

    /// Adds a frame: `header`, `head`, then `rest`.
    #[inline(always)]
    pub(super) fn frame(&mut self, header: &Header, head: &Inline, rest: Payload<'_>, done: Done) {
        if let Some(middle) = self.put(header, head, rest.bytes) {
            self.enqueue(middle, rest, done);
        }
    }

    /// Adds two frames as one: one of `header` and `rest`, and behind it one of a
    /// header and a head.
    #[inline(always)]
    pub(super) fn frame_with(
        &mut self,
        header: &Header,
        rest: Payload<'_>,
        behind: (&Header, &Inline),
        done: Done,
    ) {
        let middle = self.put(header, NO_HEAD, rest.bytes);
        if let Some(middle) = middle
            && self.put(behind.0, behind.1, &[]).is_some()
        {
            self.enqueue(middle, rest, done);
        }
    }

    /// Puts the own bytes of a frame into the arena: `header`, `head` and the trailer of
    /// `payload`. Returns the offset in the arena at which the payload is inserted.
    #[inline(always)]
    fn put(&mut self, header: &Header, head: &Inline, payload: &[u8]) -> Option<usize> {
        debug_assert_eq!(header.payload, head.len() + payload.len());
        let checked = self.crc;
        let (bytes, len) = header.to_bytes();
        let room = self.room()?;
        *room.first_chunk_mut()? = bytes;
        // Copies the whole array: the trailer overwrites the excess.
        if !head.is_empty() {
            *room.get_mut(len..)?.first_chunk_mut()? = *head.array();
        }
        let own = len + head.len();
        let behind = seal(room, own, payload, checked)?;
        Some(self.take_room(own, behind))
    }

    /// Adds a frame without referenced payload: `bytes` from its MPA length to the last one
    /// before its padding, at most 88.
    pub(super) fn raw(&mut self, bytes: &[u8]) {
        let (own, checked) = (bytes.len(), self.crc);
        let sealed = self.room().and_then(|room| {
            room.get_mut(..own)?.copy_from_slice(bytes);
            seal(room, own, &[], checked)
        });
        let Some(behind) = sealed else {
            debug_assert!(false, "raw frames are short");
            return;
        };
        let middle = self.take_room(own, behind);
        self.enqueue(middle, Payload::NONE, Done::Nothing);
    }

    /// Accounts for `own` bytes before the payload and `behind` bytes after it. Returns the
    /// offset in the arena at which the payload is inserted.
    #[inline(always)]
    fn take_room(&mut self, own: usize, behind: usize) -> usize {
        let middle = self.used + own;
        self.used = middle + behind;
        middle
    }

    /// The memory for the own bytes of the next frame. It always exists.
    #[inline(always)]
    fn room(&mut self) -> Option<&mut [u8; ROOM]> {
        let end = self.used + ROOM;
        if end > self.arena.len() {
            self.grow(end);
        }
        self.arena.get_mut(self.used..end)?.first_chunk_mut()
    }

    #[cold]
    fn grow(&mut self, len: usize) {
        let doubled = (2 * self.arena.len()).max(1024);
        self.kept.grow(&mut self.arena, doubled.max(len));
    }

    /// Adds the frame whose bytes were put last to the queue.
    #[inline(always)]
    fn enqueue(&mut self, middle: usize, rest: Payload<'_>, done: Done) {
        let Payload {
            source,
            offset,
            bytes,
        } = rest;
        self.with_payload += usize::from(!bytes.is_empty());
        self.payload += bytes.len();
        self.queue.push_back(Frame {
            middle,
            end: self.used,
            source,
            offset,
            len: bytes.len(),
            done,
        });
    }

    /// Fills `slices`, joining adjacent own bytes; `find` returns payload. Returns the
    /// numbers of slices and bytes.
    pub(super) fn gather<'a>(
        &'a self,
        slices: &mut [IoSlice<'a>],
        find: impl Fn(Source, usize, usize) -> &'a [u8],
    ) -> (usize, usize) {
        let mut to = Gather {
            slices,
            used: 0,
            bytes: 0,
        };
        let mut from = self.front + self.front_sent;
        let mut frames = self.queue.iter();
        if let Some(front) = self.queue.front()
            && from > front.middle
        {
            // Its payload is partly sent, or completely with some of the bytes behind it.
            let sent = (from - front.middle).min(front.len);
            to.push(find(front.source, front.offset + sent, front.len - sent));
            from -= sent;
            frames.next();
        }
        for frame in frames.filter(|frame| frame.len > 0) {
            let own = self.arena.get(from..frame.middle).unwrap_or_default();
            if !to.push(own) || !to.push(find(frame.source, frame.offset, frame.len)) {
                return (to.used, to.bytes);
            }
            from = frame.middle;
        }
        to.push(self.arena.get(from..self.used).unwrap_or_default());
        (to.used, to.bytes)
    }

    /// The stream accepted `count` more bytes. Removes the frames that are completely sent
    /// now and returns their actions.
    #[inline]
    pub(super) fn sent(&mut self, count: usize) -> impl Iterator<Item = Done> {
        self.front_sent += count;
        let whole = if self.front_sent == self.used - self.front + self.payload {
            self.front_sent = 0;
            (self.with_payload, self.payload) = (0, 0);
            self.reuse_arena();
            self.queue.len()
        } else {
            self.pass_whole()
        };
        self.queue.drain(..whole).map(|frame| frame.done)
    }

    /// No frame is left: the next ones start at the beginning of the arena.
    #[inline]
    fn reuse_arena(&mut self) {
        (self.front, self.used) = (0, 0);
        if self.kept.has_arena() {
            self.kept.replace(&mut self.arena);
        }
    }

    /// If not all is sent: advances to the first frame that is not. Returns the number of
    /// frames before it.
    fn pass_whole(&mut self) -> usize {
        let mut whole = 0;
        for frame in &self.queue {
            let len = frame.end - self.front + frame.len;
            if self.front_sent < len {
                break;
            }
            self.front_sent -= len;
            self.front = frame.end;
            self.with_payload -= usize::from(frame.len > 0);
            self.payload -= frame.len;
            whole += 1;
        }
        whole
    }

    /// Drops all frames; returns their actions.
    pub(super) fn clear(&mut self) -> impl Iterator<Item = Done> + use<> {
        self.front_sent = 0;
        self.cut_to_frame()
    }

    /// Drops all frames but one that is partly sent.
    pub(super) fn cut_to_frame(&mut self) -> impl Iterator<Item = Done> + use<> {
        let started = usize::from(self.front_sent > 0);
        let dropped = self.queue.split_off(self.queue.len().min(started));
        let left = self.queue.front();
        self.payload = left.map_or(0, |frame| frame.len);
        self.with_payload = usize::from(self.payload > 0);
        match left.map(|frame| frame.end) {
            Some(end) => self.used = end,
            None => self.reuse_arena(),
        }
        dropped.into_iter().map(|frame| frame.done)
    }

    /// Sets the action of the last frame, if there is one without an action.
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

/// Adds padding and CRC to the `own` bytes in `room` of a frame with that payload. Returns
/// their number.
#[inline(always)]
fn seal(room: &mut [u8; ROOM], own: usize, payload: &[u8], checked: bool) -> Option<usize> {
    let padding = pad_len(own - MPA_LEN + payload.len());
    let (own, rest) = room.split_at_mut_checked(own)?;
    // RFC 5044, section 4.4: the field exists without CRCs too.
    let crc = match checked {
        true => crc_of(own, payload, padding),
        false => 0,
    };
    let [a, b, c, d] = crc_bytes(crc);
    let field = u64::from_le_bytes([a, b, c, d, 0, 0, 0, 0]);
    *rest.first_chunk_mut::<TRAILER>()? = (field << (8 * padding)).to_le_bytes();
    Some(padding + CRC_LEN)
}

/// The CRC of a frame: its own bytes, payload and padding.
#[inline(never)]
fn crc_of(own: &[u8], payload: &[u8], padding: usize) -> u32 {
    let crc = crc::append(crc::of(own), payload);
    crc::append(crc, [0; TRAILER].get(..padding).unwrap_or_default())
}

/// Slices that are filled one after the other.
struct Gather<'s, 'a> {
    slices: &'s mut [IoSlice<'a>],
    used: usize,
    bytes: usize,
}

impl<'a> Gather<'_, 'a> {
    /// Whether there was a place.
    #[inline]
    fn push(&mut self, bytes: &'a [u8]) -> bool {
        if bytes.is_empty() {
            return true;
        }
        let Some(place) = self.slices.get_mut(self.used) else {
            return false;
        };
        *place = IoSlice::new(bytes);
        self.used += 1;
        self.bytes += bytes.len();
        true
    }
}

#[cfg(test)]
mod tests;
