//! Commands that read with Force Unit Access: what a volatile cache may hold is
//! made stable before anything is read.
//!
//! NVM 1.0, figure 48, FUA of a Read: "the controller shall: 1) commit that data and
//! metadata, if any, to non-volatile media; and 2) return the data, and metadata, if any,
//! that are read from non-volatile media". Compare (3.2.1) and Verify (3.2.5) say the
//! same. Copy (3.2.2) says it of what it writes.

use super::io::next_piece;
use crate::request::{Next, Request, Stage};
use crate::{IoKind, IoOp};

/// The disk commits first; then it does `op`.
#[cold]
pub(super) fn first(request: &mut Request, op: IoOp) -> Next {
    request.stage = Stage::Commit(op);
    Next::Execute(commit_of(op))
}

/// The disk has committed: `op` is next.
#[cold]
pub(super) fn committed(request: &mut Request, op: IoOp) -> Next {
    if matches!(op.kind, IoKind::Fetch { .. }) {
        return next_piece(request, op);
    }
    request.stage = Stage::Disk(op);
    Next::Execute(op)
}

/// A flush of all the disk, because there is none of a part. It names the bytes that
/// it is done for: half of a fused operation is given its lock with its first
/// operation.
fn commit_of(op: IoOp) -> IoOp {
    IoOp {
        kind: IoKind::Flush,
        fua: false,
        ..op
    }
}
