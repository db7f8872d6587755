//! What the software iWARP of Linux, `siw`, gets wrong.
//!
//! The kernel tells its library where to map each new queue by an offset into
//! a file, and the library takes one of these offsets, 0x90000, for the sign
//! that nothing was made (`SIW_INVAL_UOBJ_KEY`, which is that number on both
//! sides). A process meets it as soon as it has more than half a megabyte of
//! queues. So each process holds one large queue there that nobody uses.

use std::io;
use std::sync::{Arc, Mutex, Weak};

use crate::mailbox::lock;
use crate::sys::{CompletionChannel, CompletionQueue, ContextKey};

/// `SIW_VENDOR_ID`.
pub(crate) const VENDOR: u32 = 0x0062_6d74;

/// The offset that must not be given out.
const CURSED: u32 = 0x90000;
/// Bytes of one completion in the queue (`struct siw_cqe`), at least.
const COMPLETION: u32 = 32;

/// A queue over the cursed place.
pub(crate) type Blocker = Arc<CompletionQueue>;

static BLOCKERS: Mutex<Vec<(ContextKey, Weak<CompletionQueue>)>> = Mutex::new(Vec::new());

/// Makes sure that the queue is there, before any other is made on the device.
/// It stays as long as somebody holds it.
pub(crate) fn block(key: ContextKey, channel: &Arc<CompletionChannel>) -> io::Result<Blocker> {
    let mut blockers = lock(&BLOCKERS);
    blockers.retain(|(_, queue)| queue.strong_count() > 0);
    let known = blockers.iter().find(|(of, _)| *of == key);
    if let Some(queue) = known.and_then(|(_, queue)| queue.upgrade()) {
        return Ok(queue);
    }
    // Starts at 0 when the process has no other, and reaches beyond.
    let queue = CompletionQueue::new(channel, 2 * CURSED / COMPLETION, usize::MAX)?;
    blockers.push((key, Arc::downgrade(&queue)));
    Ok(queue)
}
