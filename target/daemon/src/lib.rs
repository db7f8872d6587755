//! The NVMe over Fabrics RDMA target daemon, as a library.
//!
//! A [`Reactor`] is the loop of one core: RDMA providers on one side,
//! [`Storage`] on the other, the target's core in between. [`Server`] starts
//! what a [`Config`] says and turns one reactor for each core it names. A
//! simulation turns reactors itself.
//!
//! This crate decides nothing about NVMe, which is `nvmeof-target-core`'s, and
//! moves no byte of data itself: it hands buffers from one side to the other.
#![forbid(unsafe_code)]

mod changes;
mod cli;
mod control;
mod disk_watch;
mod files;
#[doc(hidden)]
pub mod fuzzing;
mod log;
mod manage;
mod ports;
mod processors;
mod protections;
mod retry;
mod ring;
mod server;
mod service;
mod signals;
mod watch;

pub use cli::Cli;
pub use manage::{buffers, ApplyError, Awaits, Faulted, Manager, Plan, Report, Waiting, Waits};
pub use nvmeof_target_config::{Config};
pub use ports::{Device, Part, Port, plan};
pub use processors::{Seat, place};
pub use server::{ServeError, Server};
pub use watch::{
    Counts, Descriptors, Failed, GroupState, Health, HostState, NamespaceState, QueueState,
    ReactorState, Snapshot, SubsystemState, WaitingState, Watch,
};
