//! Frames that wait for the stream: bytes of our own, and payload where it
//! lies.

use std::collections::VecDeque;
use std::io::IoSlice;

use nvmeof_rdma::Inline;

use crate::iwarp::{CRC_LEN, Header, MPA_LEN, crc, crc_bytes, pad_len};

/// Bytes of our own that wait at most, per connection.
const ARENA: usize = 32 * 1024;
/// Payload that waits at most, but for the frame that reaches it.
const AHEAD: usize = 1 << 20;
/// Frames that wait at most: more than one system call takes.
const MAX_FRAMES: usize = 256;
/// Bytes of our own in one frame at most, and a few more: 20 of header, 64 of
/// head, 7 of trailer.
const ROOM: usize = 96;
/// Padding and CRC at most.
const TRAILER: usize = 8;

/// Whole frames, oldest first.
#[derive(Debug)]
pub(super) struct Frames {
    queue: VecDeque<Frame>,
    /// Of these, those with payload.
    with_payload: usize,
    /// Bytes of that payload.
    payload: usize,
    /// Bytes of the first frame that are sent.
    front_sent: usize,
    /// The bytes of our own of all frames, one after the other: those of the
    /// first start at `front`, those of the last end at `used`.
    arena: Vec<u8>,
    front: usize,
    used: usize,
    /// Whether frames get a CRC.
    pub(super) crc: bool,
}

#[derive(Debug)]
struct Frame {
    /// Where in the arena its payload interrupts its bytes, and where they
    /// end, or those of a frame behind it that has no payload. They start where
    /// those of the frame before it end.
    middle: usize,
    end: usize,
    source: Source,
    offset: usize,
    len: usize,
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

/// What is done once a frame is sent.
#[derive(Clone, Copy, Debug)]
pub(super) enum Done {
    Nothing,
    /// The work of that number.
    Work(u64),
    /// An answer, with the key it kept busy.
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
            crc: false,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Slices that [`gather`](Self::gather) gives at most.
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
        debug_assert_eq!(header.payload, head.len() + rest.bytes.len());
        let Some(own) = self.own(header, head) else {
            return;
        };
        let middle = self.seal(own, rest.bytes);
        self.enqueue(middle, rest, done);
    }

    /// Adds a frame of `header` and `head` to the last one, after which nothing was
    /// to be done: both are done together.
    #[inline(always)]
    pub(super) fn frame_behind(&mut self, header: &Header, head: &Inline, done: Done) {
        debug_assert_eq!(header.payload, head.len());
        let Some(own) = self.own(header, head) else {
            return;
        };
        let middle = self.seal(own, &[]);
        match self.queue.back_mut() {
            Some(last) if matches!(last.done, Done::Nothing) => {
                (last.end, last.done) = (self.used, done);
            }
            _ => self.enqueue(middle, Payload::NONE, done),
        }
    }

    /// Puts the bytes of our own into the room for a frame; returns how many.
    #[inline(always)]
    fn own(&mut self, header: &Header, head: &Inline) -> Option<usize> {
        let (bytes, len) = header.to_bytes();
        let room = self.room()?;
        if let Some(place) = room.first_chunk_mut() {
            *place = bytes;
        }
        // All of it: what is too much is written over by the trailer.
        if !head.is_empty()
            && let Some(place) = room.get_mut(len..).and_then(<[u8]>::first_chunk_mut)
        {
            *place = *head.array();
        }
        Some(len + head.len())
    }

    /// Adds a frame without payload elsewhere: `bytes` from its MPA length to
    /// the last one before its padding, 88 at most.
    pub(super) fn raw(&mut self, bytes: &[u8]) {
        let Some(place) = self.room().and_then(|room| room.get_mut(..bytes.len())) else {
            debug_assert!(false, "frames of our own are short");
            return;
        };
        place.copy_from_slice(bytes);
        let middle = self.seal(bytes.len(), &[]);
        self.enqueue(middle, Payload::NONE, Done::Nothing);
    }

    /// Where the bytes of the next frame go. Always there.
    #[inline]
    fn room(&mut self) -> Option<&mut [u8; ROOM]> {
        if self.arena.len() < self.used + ROOM {
            self.grow();
        }
        self.arena.get_mut(self.used..)?.first_chunk_mut()
    }

    #[cold]
    fn grow(&mut self) {
        let len = (2 * self.arena.len()).max(1024);
        self.arena.resize(len.max(self.used + ROOM), 0);
    }

    /// Adds padding and CRC to the `own` bytes that were put into the room for a
    /// frame with that payload. Returns where in the arena the payload goes.
    #[inline]
    fn seal(&mut self, own: usize, payload: &[u8]) -> usize {
        let (start, middle) = (self.used, self.used + own);
        let padding = pad_len(own - MPA_LEN + payload.len());
        // RFC 5044, section 4.4: the field is there without CRCs too.
        let mut trailer = [0; TRAILER];
        if self.crc
            && let Some(own) = self.arena.get(start..middle)
            && let Some((zeros, rest)) = trailer.split_at_mut_checked(padding)
            && let Some(field) = rest.first_chunk_mut::<CRC_LEN>()
        {
            let crc = crc::append(crc::of(own), payload);
            *field = crc_bytes(crc::append(crc, zeros));
        }
        let place = self.arena.get_mut(middle..);
        if let Some(place) = place.and_then(<[u8]>::first_chunk_mut) {
            *place = trailer;
        }
        self.used = middle + padding + CRC_LEN;
        middle
    }

    /// Adds the frame that was sealed last to the queue.
    #[inline]
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

    /// Fills `slices`, joining bytes of our own that lie one after the other;
    /// `find` gives payload. Returns slices and bytes.
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
        // Of the first frame, what is not sent: header, payload, trailer.
        let (mut from, mut skip) = (self.front + self.front_sent, 0);
        if let Some(front) = self.queue.front()
            && from > front.middle
        {
            skip = (from - front.middle).min(front.len);
            from -= skip;
        }
        for frame in self.queue.iter().filter(|frame| frame.len > 0) {
            let (offset, len) = (frame.offset + skip, frame.len - skip);
            skip = 0;
            if len > 0 {
                let own = self.arena.get(from..frame.middle).unwrap_or_default();
                if !to.push(own) || !to.push(find(frame.source, offset, len)) {
                    return (to.used, to.bytes);
                }
                from = frame.middle;
            }
        }
        to.push(self.arena.get(from..self.used).unwrap_or_default());
        (to.used, to.bytes)
    }

    /// The stream took `count` bytes more.
    pub(super) fn sent(&mut self, count: usize) {
        self.front_sent += count;
    }

    /// Takes off the first frame, once it is wholly sent: what was to be done
    /// then.
    #[inline]
    pub(super) fn take_sent(&mut self) -> Option<Done> {
        let front = self.queue.front()?;
        let len = front.end - self.front + front.len;
        if self.front_sent < len {
            return None;
        }
        self.front_sent -= len;
        self.front = front.end;
        self.with_payload -= usize::from(front.len > 0);
        self.payload -= front.len;
        let done = front.done;
        self.queue.pop_front();
        if self.queue.is_empty() {
            (self.front, self.used) = (0, 0);
        }
        Some(done)
    }

    /// Drops all frames; gives what each would have been done with.
    pub(super) fn clear(&mut self) -> impl Iterator<Item = Done> + use<> {
        self.front_sent = 0;
        self.cut_to_frame()
    }

    /// Drops all frames but one that is partly sent.
    pub(super) fn cut_to_frame(&mut self) -> impl Iterator<Item = Done> + use<> {
        let begun = usize::from(self.front_sent > 0);
        let dropped = self.queue.split_off(self.queue.len().min(begun));
        let left = self.queue.front();
        self.payload = left.map_or(0, |frame| frame.len);
        self.with_payload = usize::from(self.payload > 0);
        self.used = left.map_or(0, |frame| frame.end);
        self.front = self.front.min(self.used);
        dropped.into_iter().map(|frame| frame.done)
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
