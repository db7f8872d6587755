//! Commands that read with Force Unit Access: the volatile cache is flushed before they
//! read.
//!
//! NVM 1.0, figure 48, FUA of a Read: "the controller shall: 1) commit that data and
//! metadata, if any, to non-volatile media; and 2) return the data, and metadata, if any,
//! that are read from non-volatile media". Compare (3.2.1) and Verify (3.2.5) say the
//! same. For Copy (3.2.2) FUA applies to its writes.

use super::io::next_piece;
use crate::request::{Next, Request, Stage};
use crate::{IoKind, IoOp};

/// Flushes the backing store, then executes `op`.
#[cold]
pub(super) fn first(request: &mut Request, op: IoOp) -> Next {
    request.stage = Stage::Commit(op);
    Next::Execute(commit_of(op))
}

/// The flush has completed: `op` is next.
#[cold]
pub(super) fn committed(request: &mut Request, op: IoOp) -> Next {
    if matches!(op.kind, IoKind::Fetch { .. }) {
        return next_piece(request, op);
    }
    request.stage = Stage::Executing(op);
    Next::Execute(op)
}

/// A flush of the whole store, because a range cannot be flushed. It has the byte range of
/// `op`, because half of a fused operation gets its lock with its first operation.
fn commit_of(op: IoOp) -> IoOp {
    IoOp {
        kind: IoKind::Flush,
        fua: false,
        ..op
    }
}
