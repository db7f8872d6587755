//! Queues that the caller polls, without thread, runtime and clock.
//!
//! Each queue owns a provider and one queue pair, so that threads can drive queues without
//! locks. Time is an argument: the time since any fixed moment. [`IoQueue::submit_now`] and
//! [`IoQueue::poll`] send all submitted commands together; nothing is sent before.
//!
//! An [`AdminQueue`] initializes the controller and keeps it alive; it must be polled while
//! its I/O queues are in use. Each [`IoQueue`] is connected with its
//! [`ControllerInfo`](nvmeof_initiator_core::ControllerInfo).
//!
//! Calls are submitted one by one ([`IoQueue::submit`]) or in batches
//! ([`IoQueue::submit_batch`]). [`IoQueue::poll`] returns them with their buffers, in order
//! of completion:
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
pub use call::{Call, CallTimeout, Done, SubmitError, Work};
pub use connection::{Connection, ConnectionConfig};
pub use io::{IoConfig, IoQueue};
