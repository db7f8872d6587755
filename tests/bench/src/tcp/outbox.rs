//! Sends: heads and payloads, in as few calls as possible.

use std::collections::VecDeque;
use std::io::{self, IoSlice, Write as _};

use socket2::Socket;

use super::frame::{self, HEAD_MAX, Kind};
use super::polled;
use super::zerocopy::Sends;

/// Pieces of one call, two for each message.
const PIECES: usize = 256;

/// Messages that are not sent yet.
#[derive(Debug)]
pub(super) struct Outbox {
    kind: Kind,
    /// Messages with payloads.
    queue: VecDeque<(u16, [u8; HEAD_MAX])>,
    /// Bytes of the first of them that are sent.
    sent: usize,
    /// Messages without payload, concatenated: a vector entry for each would cost more
    /// than a copy.
    packed: Vec<u8>,
    /// Sends with MSG_ZEROCOPY, if enabled.
    sends: Option<Sends>,
}

impl Outbox {
    pub(super) fn new(kind: Kind, depth: u16, zerocopy: bool) -> Self {
        let depth = usize::from(depth);
        Self {
            kind,
            queue: VecDeque::with_capacity(depth),
            sent: 0,
            packed: Vec::with_capacity(depth * kind.head),
            sends: zerocopy.then(Sends::default),
        }
    }

    pub(super) fn push(&mut self, slot: u16) {
        let head = frame::head(slot);
        if self.kind.payload == 0 {
            let head = head.get(..self.kind.head).unwrap_or_default();
            self.packed.extend_from_slice(head);
        } else {
            self.queue.push_back((slot, head));
        }
    }

    /// Sends as much as the socket accepts; returns whether it was any.
    pub(super) fn flush(&mut self, stream: &Socket, places: &[Vec<u8>]) -> io::Result<bool> {
        let mut progress = false;
        while !(self.queue.is_empty() && self.packed.is_empty()) {
            // A single message needs no room for many.
            let taken = match self.queue.len() {
                1.. if self.sends.is_some() => self.uncopied(stream, places),
                0 => (&*stream).write(&self.packed),
                1 => self.gather::<2>(stream, places),
                2..=8 => self.gather::<16>(stream, places),
                _ => self.gather::<PIECES>(stream, places),
            };
            match polled(taken)? {
                Some(count) => self.advance(count),
                None => break,
            }
            progress = true;
        }
        Ok(progress)
    }

    /// Sends the rest of the first head, or of the first payload: only pages that do not
    /// change can be sent without a copy.
    fn uncopied(&mut self, stream: &Socket, places: &[Vec<u8>]) -> io::Result<usize> {
        let (Some((slot, head)), Some(sends)) = (self.queue.front(), &mut self.sends) else {
            return Ok(0);
        };
        match self.sent.checked_sub(self.kind.head) {
            None => Sends::head(
                stream,
                head.get(self.sent..self.kind.head).unwrap_or_default(),
            ),
            Some(sent) => {
                let place = places.get(usize::from(*slot)).map(Vec::as_slice);
                let rest = place.and_then(|place| place.get(sent..self.kind.payload));
                sends.payload(stream, rest.unwrap_or_default())
            }
        }
    }

    /// Number of MSG_ZEROCOPY sends, and of those that the kernel copied.
    pub(super) fn sends(&self) -> Option<(u64, u64)> {
        self.sends.map(|sends| (sends.all, sends.copied))
    }

    fn gather<const N: usize>(&self, stream: &Socket, places: &[Vec<u8>]) -> io::Result<usize> {
        let mut pieces = [IoSlice::new(&[]); N];
        // Only the first message may be partially sent.
        let mut skip = self.sent;
        let mut count = 0;
        for (pair, (slot, head)) in pieces.chunks_exact_mut(2).zip(&self.queue) {
            let place = places.get(usize::from(*slot)).map(Vec::as_slice);
            let payload = place.and_then(|place| place.get(..self.kind.payload));
            let in_head = skip.min(self.kind.head);
            let head = head.get(in_head..self.kind.head).unwrap_or_default();
            let payload = payload.unwrap_or_default().get(skip - in_head..);
            skip = 0;
            if let [first, second] = pair {
                *first = IoSlice::new(head);
                *second = IoSlice::new(payload.unwrap_or_default());
            }
            count += 2;
        }
        (&*stream).write_vectored(pieces.get(..count).unwrap_or_default())
    }

    fn advance(&mut self, count: usize) {
        if self.kind.payload == 0 {
            self.packed.drain(..count.min(self.packed.len()));
            return;
        }
        let whole = self.kind.head + self.kind.payload;
        let sent = self.sent + count;
        self.sent = sent % whole;
        self.queue.drain(..(sent / whole).min(self.queue.len()));
    }
}
