//! Names of queue pairs, listeners, shared receive queues and work requests.

/// A queue pair: slot and generation, so that the name of one that is gone
/// never means another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct QpId(pub u64);

/// A listener: slot and generation, like [`QpId`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ListenerId(pub u64);

/// A shared receive queue: never named again when it is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SrqId(pub u64);

/// The caller's own name for a work request, handed back untouched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Tag(pub u64);
