//! Queues that the caller polls: no thread, no runtime, no clock.
//!
//! Each queue owns a provider and one queue pair, so that threads can drive
//! queues without locks. Time is an argument: the time since any fixed moment.
//! Nothing goes out before [`IoQueue::submit_now`] or [`IoQueue::poll`], which
//! sends all that was submitted at once.
//!
//! An [`AdminQueue`] sets the controller up and keeps it alive; it must be
//! polled as long as its I/O queues are in use. Then
//! [`ControllerInfo`](nvmeof_initiator_core::ControllerInfo) is what each
//! [`IoQueue`] is connected with.
//!
//! Calls are made one by one ([`IoQueue::submit`]) or many at once
//! ([`IoQueue::submit_batch`]), and come back from [`IoQueue::poll`] with their
//! buffers, in whatever order they end:
//!
//! ```no_run
#![doc = include_str!("../../examples/polled_reads.rs")]
//! ```

mod admin;
mod association;
mod call;
mod connection;
mod io;
mod transfer;

pub use admin::{AdminConfig, AdminQueue};
pub use association::Association;
pub use call::{Call, Done, Patience, SubmitError, Work};
pub use connection::{Connection, ConnectionConfig};
pub use io::{IoConfig, IoQueue};
