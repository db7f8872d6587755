//! Stand-in for libibverbs and librdmacm: RDMA devices that exist in this process only, for
//! tests of programs that use real ones.
//!
//! The crate is a shared object that can replace both libraries at run time, and a library
//! for tests: [`install`] makes the provider of this process use it, [`configure`] sets up
//! devices and plans faults, [`counters`] tells what was done with them.
//!
//! # What it is faithful about
//! * Completion queues: order, capacity, one event for each arming, and only for completions
//!   that are added after it.
//! * Queue pairs: entries are free when a completion that covers them is taken; unsignaled
//!   work, inline data, segments and every limit; errors stop a queue pair, and flush both
//!   queues in order.
//! * Receives: a message without one waits or ends the connection; shared receive queues with
//!   their events for the limit and the last receive.
//! * Memory: each access is checked by key, domain, queue pair, range and rights. Windows of
//!   type 2B; invalidation by owner and peer; iWARP's rules for Reads.
//! * Connection management: private data and its limits, rejections, both ways of an end,
//!   events about ids that moved, removal of devices.
//! * Misuse where the libraries would hang or leak is recorded: [`violations`].
//!
//! # What it does not do
//! * No time: work is done by the thread that posts or polls it, after as many polls as the
//!   device's delay says. A thread lets time pass where everybody sleeps.
//! * No network: nothing is lost or reordered beyond planned faults. A peer that is gone does
//!   not acknowledge; that ends after `retry_polls`.
//! * No device: no cache effects, no ordering of memory accesses, no cost of doorbells.
//! * Atomics, immediate data, unreliable datagrams, multicast, resizing.
#![allow(unsafe_code, reason = "it implements C libraries")]
#![allow(
    clippy::indexing_slicing,
    reason = "tests fail by panicking; a device of tests has no untrusted peers"
)]

mod address;
mod calls;
mod completion;
mod connection;
mod control;
mod counters;
mod device;
mod faults;
mod ibverbs;
mod ids;
mod links;
mod memory;
mod message;
mod posting;
mod profile;
mod queue;
mod raw;
mod rdmacm;
mod remote;
mod responder;
mod signal;
mod table;
#[cfg(test)]
mod tests;
mod ticker;
mod transfer;
mod world;

pub use control::{
    VARIABLE, configure, counters, nvmeof_standin_configure, nvmeof_standin_counters,
    nvmeof_standin_violations, violations,
};
pub use counters::Counters;
pub use table::install;
