//! What a program did with a device, counted.

macro_rules! counters {
    ($($(#[$about:meta])* $name:ident,)*) => {
        /// Calls and work of one device since it was added. Every field only grows.
        #[repr(C)]
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct Counters {
            $($(#[$about])* pub $name: u64,)*
        }

        impl Counters {
            /// What was added since `before`.
            #[must_use]
            pub fn since(&self, before: &Self) -> Self {
                Self { $($name: self.$name - before.$name,)* }
            }
        }
    };
}

counters! {
    /// Calls of `post_send`: doorbells of send queues.
    post_send,
    /// Calls of `post_recv`.
    post_recv,
    /// Calls of `post_srq_recv`.
    post_srq_recv,
    /// Calls of `poll_cq` that returned completions.
    polls,
    /// Calls of `poll_cq` that returned none.
    empty_polls,
    /// Completions taken.
    completions,
    /// Calls of `req_notify_cq`.
    arms,
    /// Completion events raised.
    events,
    /// Completion events taken.
    events_taken,
    /// Work requests: sends, with or without invalidation.
    sends,
    /// Sends that invalidate a key of the peer.
    sends_with_invalidate,
    /// Work requests: RDMA Writes.
    writes,
    /// Work requests: RDMA Reads.
    reads,
    /// Work requests: binds of memory windows.
    binds,
    /// Work requests: local invalidations.
    local_invalidates,
    /// Work requests of send queues with a completion of their own.
    signalled,
    /// Work requests with inline data.
    inline,
    /// Bytes of inline data.
    inline_bytes,
    /// Segments of work requests for send queues.
    segments,
    /// Receives posted, shared ones included.
    receives,
    /// Messages that found no receive.
    receiver_not_ready,
    /// Registrations of memory.
    registrations,
    /// Registrations whose accesses may be reordered.
    relaxed,
    /// Completion vectors that completion queues use or used: a bit for each.
    vectors,
    /// Deregistrations of memory.
    deregistrations,
    /// Memory windows allocated.
    windows,
    /// Shared receives whose completion was lost with its queue pair.
    lost_receives,
}

impl Counters {
    /// Work requests of send queues.
    #[must_use]
    pub fn work_requests(&self) -> u64 {
        self.sends + self.writes + self.reads + self.binds + self.local_invalidates
    }
}
