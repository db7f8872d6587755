//! Faults to inject.

use crate::OneIn;

/// An injected fault of one call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Injected {
    /// The call is refused: a post with a full queue, an expose with a full key table, a
    /// registration for lack of memory.
    Refuse,
    /// The call succeeds, then its queue pair is disconnected.
    Disconnect,
}

/// Faults to inject, at random and by script. The contract allows all of them at any time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// Seed of the random numbers: the same seed and calls yield the same faults.
    pub seed: u64,
    /// Sends, writes and reads that are refused.
    pub refuse_post: OneIn,
    /// Receives that are refused.
    pub refuse_recv: OneIn,
    /// Buffers that are not exposed.
    pub refuse_expose: OneIn,
    /// Memory of the peer that is not lent.
    pub refuse_map: OneIn,
    /// Regions that are not registered.
    pub refuse_register: OneIn,
    /// Posts after which the queue pair is disconnected.
    pub disconnect: OneIn,
    /// Polls whose events are delayed.
    pub delay: OneIn,
    /// Maximum number of polls by which they are delayed.
    pub delay_polls: u32,
    /// Faults at fixed calls: the number of the call, counted from 0 over all calls of
    /// `register`, `post_recv`, `post_shared_recv`, `post`, `expose` and `map_remote`.
    pub script: Vec<(u64, Injected)>,
}
