//! Actions that the driver executes, and results of writes.

/// Number of an action. A result with another number is ignored.
pub type Number = u64;

/// What the driver does next. A new action for a group cancels the one before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Read the record and its version, then call `handle_record`.
    Read {
        /// For the result.
        number: Number,
    },
    /// Replace the record if it has the expected version, then call `handle_written`.
    Write {
        /// For the result.
        number: Number,
        /// The version that it replaces; `None`: the object must not exist.
        expected: Option<u64>,
        /// The new contents.
        bytes: Vec<u8>,
    },
    /// Disconnect all hosts that are connected now, so that no command that they have sent begins
    /// any more, then call `handle_disconnected`.
    Disconnect {
        /// For the result.
        number: Number,
    },
    /// Connect new clients for the images of the group; blocklist `clients`; then wait until each
    /// new client has the latest osdmap. Then call `handle_fenced` with the addresses of the new
    /// clients. They open no image yet. On an error, disconnect them. If `clients` is empty,
    /// connect and wait all the same.
    Fence {
        /// The ANA group.
        group: u32,
        /// For the result.
        number: Number,
        /// Addresses of the clients to blocklist, without expiry.
        clients: Vec<String>,
    },
    /// Lock and open the images of the group by the clients of the last `Fence`, then call
    /// `handle_opened`. On an error, leave the rest to `Close`.
    Open {
        /// The ANA group.
        group: u32,
        /// For the result.
        number: Number,
    },
    /// Report the ANA group as optimized, and start commands. No result.
    Serve {
        /// The ANA group.
        group: u32,
        /// The epoch of the ownership.
        epoch: u64,
    },
    /// Report the ANA group as inaccessible. Start no command from now on, and fail those that
    /// have not started: none of them may start after a later `Serve`. No result.
    StopServing {
        /// The ANA group.
        group: u32,
    },
    /// Wait for commands in flight, close the images, release their locks, and disconnect the
    /// clients, then call `handle_closed`. Success means that no operation of these clients takes
    /// effect any more. On an error, close the connections of hosts whose commands have not ended:
    /// these clients are fenced before the group is served again.
    Close {
        /// The ANA group.
        group: u32,
        /// For the result.
        number: Number,
        /// Whether commands in flight can be expected to end.
        is_planned: bool,
    },
}

/// The result of a write of the record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Written {
    /// It took effect; the new version.
    Done(u64),
    /// The record had another version. Nothing changed.
    Conflict,
    /// It may have taken effect, or take effect later.
    Unknown(String),
}
