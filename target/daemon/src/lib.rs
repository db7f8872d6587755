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
mod config;
mod control;
mod ctl;
mod disk_watch;
mod failures;
mod files;
#[doc(hidden)]
pub mod fuzzing;
mod import;
mod log;
mod mailbox;
mod manage;
mod numbers;
mod polling;
mod ports;
mod processors;
mod protections;
mod queue;
mod reactor;
mod retry;
mod server;
mod service;
mod signals;
mod source;
mod stock;
mod stopping;
mod storage;
mod tag;
mod thread;
mod top;
mod turns;
mod watch;

pub use cli::Cli;
pub use config::{
    Choice, Config, ConfigError, ControlConfig, Cores, DEFAULT_PORT, MetricsConfig, Opened,
    ProviderName, Running, Sqpoll, buffers,
};
pub use mailbox::{Mail, Mailbox, Order};
pub use manage::{ApplyError, Awaits, Faulted, Manager, Plan, Report, Waiting, Waits};
pub use polling::Preset;
pub use ports::{Device, Part, Port, plan};
pub use processors::{Seat, place};
pub use reactor::{Reactor, ReactorConfig, ReactorError, Turn};
pub use server::{ServeError, Server};
pub use storage::{OpenDisks, Storage, StorageError, StorageOpenError};
pub use thread::{Then, sleep, step};
pub use watch::{
    Counters, Counts, Descriptors, Failed, GroupState, Health, HostState, Latency, NamespaceState,
    QueueState, ReactorState, Sight, Snapshot, SubsystemState, WaitingState, Watch,
};
