//! Stand-in for libibverbs and librdmacm: RDMA devices that exist in this process, for tests of
//! programs that use real ones. Their peers are in this process as well, or in another one on
//! this host.
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
//! * The end of a process: its kernel would disconnect, and so do its peers here.
//! * Misuse where the libraries would hang or leak is recorded: [`violations`]. [`writer_of`]
//!   tells what may still write to a buffer.
//!
//! # Peers
//! Without other settings, both ends of a connection are behind one lock, and a test with one
//! thread is deterministic. With `links=FOLDER`, each connection is a Unix socket, its *link*.
//! Messages of connection management, requests and answers pass over it in order, and a thread
//! of the responder executes requests, as its device: its own keys, ranges and receives decide.
//! Data are part of messages; access to the other process by `process_vm_writev` would happen at
//! a time that the responder's tables do not decide.
//!
//! # What it does not do
//! * No time: work is done by the thread that posts or polls it, after as many polls as the
//!   device's delay says. A thread lets time pass where everybody sleeps.
//! * No network: nothing is lost or reordered beyond planned faults. A peer that is stopped does
//!   not acknowledge; that ends after `retry_polls`, or not at all.
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
mod oracle;
mod posting;
mod profile;
mod programs;
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
    nvmeof_standin_violations, planned, violations,
};
pub use counters::Counters;
pub use oracle::{queue_pairs, writer_of};
pub use table::install;
