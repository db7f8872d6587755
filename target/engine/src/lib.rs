//! The data path of the target: reactors, queue pairs, and what they share.
//!
//! A [`Reactor`] is the loop of one core: RDMA providers on one side, backing stores
//! ([`Storage`](nvmeof_backend::Storage)) on the other, the target's core in between. It
//! decides nothing about NVMe, which is `nvmeof-target-core`'s, and moves no byte of data
//! itself: it hands buffers from one side to the other. Others give it orders through its
//! [`Mailbox`].
//!
//! Modules import downwards only. Top down:
//!
//! * `thread` runs a `reactor`
//! * `reactor`: the loop, admission, timers, orders
//! * `queue`: one queue pair, its commands, and the resources that queue pairs share
//! * what both use: fair queues (`fair_queue`, `backlog`, `awaiting_buffers`),
//!   `data_buffers`, `mailbox`, `counters`, `failures`, `peer_log`, `tag`
#![forbid(unsafe_code)]

mod awaiting_buffers;
mod backlog;
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

pub use counters::{Counters, End, Spent};
pub use failures::Failures;
pub use mailbox::{Mail, Mailbox, Order, Reply};
pub use queue::SENDS_PER_COMMAND;
pub use reactor::{LONGEST_AT_ONCE, Reactor, ReactorConfig, ReactorError, Turn, capsule_stride};
pub use snapshot::{Member, QueueSnapshot, ReactorSnapshot};
pub use stopping::{NotEnded, Patience, Stopping};
pub use thread::{Clock, Then, poll_timeout, run, sleep, step};
