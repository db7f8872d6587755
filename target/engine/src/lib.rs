//! The data path of the target: reactors, queue pairs, and the resources that they share.
//!
//! A [`Reactor`] is the event loop of one CPU, between RDMA providers, backing stores
//! ([`BackingStores`](nvmeof_backend::BackingStores)) and `nvmeof-target-core`. The core makes all
//! NVMe decisions; the reactor passes buffers between providers and backing stores and
//! does not touch the data. Other threads control a reactor through its [`Mailbox`].
//!
//! Modules import downwards only. Top down:
//!
//! * `thread` runs a `reactor`
//! * `reactor`: the loop, admission, timers, orders
//! * `queue`: one queue pair, its commands, and the resources that queue pairs share
//! * used by both: `authentication` (computations of authentications, on other threads), fair
//!   queues (`fair_queue`, `backlog`, `awaiting_buffers`), `data_buffers`, `mailbox`,
//!   `computed`, `counters`, `failures`, `peer_log`, `source`, `tag`
#![forbid(unsafe_code)]

mod authentication;
mod awaiting_buffers;
mod backlog;
mod computed;
mod counters;
mod data_buffers;
mod failures;
mod fair_queue;
mod mailbox;
mod peer_log;
mod queue;
mod reactor;
mod snapshot;
mod source;
mod stopping;
mod tag;
mod thread;

pub use authentication::{ComputeJob, ComputeWorkers, WorkerPool};
pub use computed::Computed;
pub use counters::{ConnectionEnd, Counters, ThreadState};
pub use failures::Failures;
pub use mailbox::{Mail, Mailbox, Order, Reply};
pub use queue::SENDS_PER_COMMAND;
pub use reactor::{
    LONGEST_AT_ONCE, PollResult, Reactor, ReactorConfig, ReactorError, capsule_stride,
};
pub use snapshot::{Member, QueueSnapshot, ReactorSnapshot};
pub use stopping::{ShutdownDeadline, ShutdownError, ShutdownProgress};
pub use thread::{Clock, LoopAction, poll_timeout, run, sleep, step};
