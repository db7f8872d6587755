//! What a faulty provider does wrong, and when.

use crate::OneIn;

/// What goes wrong with one call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Injected {
    /// The call is refused: a post because its queue is full, an expose
    /// because the key table is, a registration because memory is short.
    Refuse,
    /// The call is done, then its queue pair is disconnected.
    Disconnect,
}

/// What goes wrong, by chance and by script. All of it is what the contract
/// allows to happen at any time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// Start of the random numbers: the same seed and calls give the same
    /// faults.
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
    /// Polls whose events are held back.
    pub delay: OneIn,
    /// For how many polls at most they are held back.
    pub delay_polls: u32,
    /// Faults at fixed places: the number of the call, counted from 0 over
    /// all calls of `register`, `post_recv`, `post_shared_recv`, `post`, `expose`
    /// and `map_remote`.
    pub script: Vec<(u64, Injected)>,
}
