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
//! [`connect_paths`] does the same for several paths to a namespace, and connects lost paths again:
//! a [`MultipathAdmin`] and a [`MultipathIo`].
//!
//! Exponentiations of the authentication run on threads of the process, `nvmeof-auth`, which
//! inherit the CPUs and the scheduling of the thread that polls.
//!
//! What to submit:
//!
//! * [`Geometry::run`](crate::Geometry::run): reads, writes, compares, zeroes, and fused Compare
//!   and Write;
//! * [`Work::flush`] and [`Work::deallocate`];
//! * [`Work::reservation`] and [`Work::reservation_report`];
//! * admin commands: the functions of [`protocol::admin`](crate::protocol::admin), with
//!   [`AdminQueue::page`] for their data;
//! * other commands and formats: [`protocol`](crate::protocol) and [`wire`](crate::wire).
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
mod computation;
mod connection;
mod io;
mod paths;
mod pools;
mod reauthentication;
mod transfer;

pub use admin::{AdminConfig, AdminQueue};
pub use association::Association;
pub use call::{Call, CallTimeout, Done, SubmitError, Work};
pub use connection::{Connection, ConnectionConfig};
pub use io::{IoConfig, IoQueue};
#[cfg(feature = "async")]
pub(crate) use transfer::Withdrawn;
// Types in signatures of `paths`.
pub use nvmeof_initiator_core::multipath::{PathPolicy, ReconnectOptions};
pub use paths::{
    MultipathAdmin, MultipathConfig, MultipathIo, PathChange, PathConfig, PathEvent, PathStatus,
    Providers, Wakers, connect as connect_paths,
};
