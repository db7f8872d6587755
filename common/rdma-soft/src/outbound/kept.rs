//! Sent memory that the stream still refers to, and the work that waits for its release.

use std::collections::VecDeque;

/// Arenas that are kept for reuse: 32 KiB each.
const SPARE: usize = 2;

/// What the stream refers to, by the number of the call that sent it: see
/// [`Streams::send_kept`](crate::Streams::send_kept).
#[derive(Debug, Default)]
pub(super) struct Kept {
    /// The newest call whose memory is not released; 0 if there is none.
    newest: u64,
    /// The same of the calls that sent bytes of the current arena.
    arena: u64,
    /// What was sent before the release of each of these calls, oldest first.
    sent: VecDeque<Sent>,
    /// Arenas that are not filled any more, oldest first.
    arenas: VecDeque<(u64, Vec<u8>)>,
    /// Released arenas.
    spare: Vec<Vec<u8>>,
}

/// Work that counts as sent when the stream has released a call.
#[derive(Debug)]
struct Sent {
    call: u64,
    /// The number below which all work is sent.
    done: u64,
}

impl Kept {
    /// Whether the stream refers to no memory.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.newest == 0
    }

    /// The memory of all calls up to `call` is kept, except for released ones. If `call` is
    /// a new one, it sent bytes of the current arena.
    pub(super) fn keep(&mut self, call: u64) {
        if call > self.newest {
            self.arena = call;
        }
        self.newest = call;
    }

    /// Whether the current arena is kept.
    #[inline]
    pub(super) fn has_arena(&self) -> bool {
        self.arena != 0
    }

    /// All work below `done` was sent. That counts from the release of the newest call.
    pub(super) fn defer(&mut self, done: u64) {
        let call = self.newest;
        match self.sent.back_mut() {
            Some(last) if last.call == call => last.done = done,
            _ => self.sent.push_back(Sent { call, done }),
        }
    }

    /// Makes `arena` `len` bytes long. Its bytes stay where the stream refers to them.
    pub(super) fn grow(&mut self, arena: &mut Vec<u8>, len: usize) {
        if self.has_arena() {
            let copy = arena.clone();
            self.put_away(arena, copy);
        }
        arena.resize(len, 0);
    }

    /// Replaces `arena`, because its bytes are sent and its memory would be used again.
    #[cold]
    pub(super) fn replace(&mut self, arena: &mut Vec<u8>) {
        let next = self.spare.pop().unwrap_or_default();
        self.put_away(arena, next);
    }

    fn put_away(&mut self, arena: &mut Vec<u8>, next: Vec<u8>) {
        let call = std::mem::take(&mut self.arena);
        self.arenas
            .push_back((call, std::mem::replace(arena, next)));
    }

    /// All calls up to `call` are released. Returns the number below which all work is done
    /// now, if that changes.
    pub(super) fn release(&mut self, call: u64) -> Option<u64> {
        for kept in [&mut self.newest, &mut self.arena] {
            if call >= *kept {
                *kept = 0;
            }
        }
        while let Some((_, arena)) = self.arenas.pop_front_if(|(by, _)| *by <= call) {
            if self.spare.len() < SPARE {
                self.spare.push(arena);
            }
        }
        let mut done = None;
        while let Some(sent) = self.sent.pop_front_if(|sent| sent.call <= call) {
            done = Some(sent.done);
        }
        done
    }

    /// The stream never releases the arenas that it refers to now: they are not used again.
    /// `arena` is the current one.
    #[cold]
    pub(super) fn abandon(&mut self, arena: &mut Vec<u8>) {
        if self.has_arena() {
            std::mem::take(arena).leak();
        }
        for (_, arena) in self.arenas.drain(..) {
            arena.leak();
        }
        self.sent.clear();
        (self.newest, self.arena) = (0, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kept_bytes_stay_where_they_are() {
        let mut kept = Kept::default();
        let mut arena = vec![1; 16];
        let first = arena.as_ptr();
        kept.keep(1);
        assert!(kept.has_arena());
        kept.grow(&mut arena, 32);
        assert!(!kept.has_arena());
        // Later bytes of the new arena were copied.
        kept.keep(1);
        kept.grow(&mut arena, 32);
        assert_eq!((arena.len(), &arena[..16]), (32, &[1; 16][..]));
        let second = arena.as_ptr();
        kept.keep(2);
        kept.replace(&mut arena);
        let held: Vec<_> = kept
            .arenas
            .iter()
            .map(|(_, arena)| arena.as_ptr())
            .collect();
        assert_eq!(held, [first, second]);
        kept.release(1);
        assert_eq!(kept.arenas.len(), 1);
        kept.release(2);
        assert!(kept.arenas.is_empty() && kept.is_empty());
        // Released memory is used again.
        kept.keep(3);
        kept.replace(&mut arena);
        assert!(arena.as_ptr() == second || arena.as_ptr() == first);
    }

    #[test]
    fn sent_work_counts_from_release() {
        let mut kept = Kept::default();
        kept.keep(1);
        kept.defer(1);
        kept.defer(2);
        kept.keep(2);
        kept.defer(4);
        kept.keep(3);
        assert_eq!(kept.release(0), None);
        assert_eq!(kept.release(1), Some(2));
        assert_eq!(kept.release(2), Some(4));
        assert!(!kept.is_empty());
        assert_eq!(kept.release(3), None);
        assert!(kept.is_empty());
    }
}
