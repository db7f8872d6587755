//! Workarounds for faults of `siw`, the software iWARP of Linux.
//!
//! The kernel passes its library the location of each new queue as an offset into a file, and
//! the library takes one of these offsets, 0x90000, for an invalid value
//! (`SIW_INVAL_UOBJ_KEY`, which is that number on both sides). A process reaches it as soon
//! as it has more than half a megabyte of queues. Each process therefore holds one large
//! unused queue there.
//!
//! Every hundred segments of a queue pair, its work passes from the system call that posted
//! it to a kernel thread (`SQ_USER_MAXBURST`). That thread may start before the call has
//! ended, still assumes that it is the call (`in_syscall`), and copies a short message from
//! that address of the process that ran before (`siw_try_1seg`): the peer gets foreign bytes,
//! or the connection ends with "cannot do this work". A message of two segments is taken by
//! its pages instead.

use std::io;
use std::sync::{Arc, Mutex, Weak};

use crate::lock::lock;
use crate::sys::{CompletionChannel, CompletionQueue, ContextKey, Payload, Segment, SendOp};

/// `SIW_VENDOR_ID`.
pub(crate) const VENDOR: u32 = 0x0062_6d74;

/// The offset that must not be assigned to a queue.
const CURSED: u32 = 0x90000;
/// Minimum bytes of one completion in the queue (`struct siw_cqe`).
const COMPLETION: u32 = 32;

/// Longer messages do not take that path: siw has less room than this beside a header
/// (`MAX_HDR_INLINE`).
const SHORT: u32 = 64;

/// Splits a short message in memory into two segments.
pub(crate) fn in_two(op: &mut SendOp<'_>) {
    let (SendOp::Send { payload, .. } | SendOp::Write { payload, .. }) = op else {
        return;
    };
    let Payload::Memory(parts) = payload else {
        return;
    };
    if let [Some(only), None] | [None, Some(only)] = *parts
        && only.len <= SHORT
    {
        *parts = [Some(only), Some(Segment { len: 0, ..only })];
    }
}

/// A queue that covers the invalid offset.
pub(crate) type Blocker = Arc<CompletionQueue>;

static BLOCKERS: Mutex<Vec<(ContextKey, Weak<CompletionQueue>)>> = Mutex::new(Vec::new());

/// Creates that queue, before any other on the device. It exists as long as there is a
/// reference to it.
pub(crate) fn block(key: ContextKey, channel: &Arc<CompletionChannel>) -> io::Result<Blocker> {
    let mut blockers = lock(&BLOCKERS);
    blockers.retain(|(_, queue)| queue.strong_count() > 0);
    let known = blockers.iter().find(|(of, _)| *of == key);
    if let Some(queue) = known.and_then(|(_, queue)| queue.upgrade()) {
        return Ok(queue);
    }
    // It starts at 0 if the process has no other queue, and covers the offset.
    let queue = CompletionQueue::new(channel, 2 * CURSED / COMPLETION, usize::MAX, 0)?;
    blockers.push((key, Arc::downgrade(&queue)));
    Ok(queue)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::INLINE;

    fn parts(op: &SendOp<'_>) -> Vec<(u64, u32)> {
        let (SendOp::Send { payload, .. } | SendOp::Write { payload, .. }) = op else {
            return Vec::new();
        };
        match payload {
            Payload::Memory(parts) => parts.iter().flatten().map(|it| (it.addr, it.len)).collect(),
            Payload::Inline { len, .. } => vec![(0, *len)],
            Payload::Entry(_) => vec![(0, 16)],
        }
    }

    fn segment(addr: u64, len: u32) -> Segment {
        Segment { addr, len, key: 7 }
    }

    /// Linux 6.12, siw_qp_tx.c, `siw_try_1seg`: one segment of at most `MAX_HDR_INLINE` bytes
    /// is what the thread copies from the wrong process.
    #[test]
    fn short_messages_have_two_segments() {
        let after = |payload| {
            let mut send = SendOp::Send {
                payload,
                invalidate: Some(3),
                solicited: false,
            };
            let mut write = SendOp::Write {
                payload,
                addr: 1,
                key: 2,
            };
            in_two(&mut send);
            in_two(&mut write);
            assert_eq!(parts(&send), parts(&write));
            parts(&send)
        };
        let (short, long) = (segment(4096, 16), segment(4096, 65));
        for payload in [[Some(short), None], [None, Some(short)]] {
            assert_eq!(after(Payload::Memory(payload)), [(4096, 16), (4096, 0)]);
        }
        // Messages with two segments, long ones, and inline ones are unchanged.
        let both = [Some(short), Some(segment(8192, 8))];
        assert_eq!(after(Payload::Memory(both)), [(4096, 16), (8192, 8)]);
        assert_eq!(after(Payload::Memory([Some(long), None])), [(4096, 65)]);
        assert_eq!(after(Payload::Memory([None; 2])), []);
        let bytes = &[0; INLINE];
        assert_eq!(after(Payload::Inline { bytes, len: 16 }), [(0, 16)]);
    }
}
