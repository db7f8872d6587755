//! The NVMe over Fabrics RDMA target daemon: its command line, its log, and what it has to
//! do with the service manager.
//!
//! What serves is started by `nvmeof-target-manage` and changed over
//! `nvmeof-target-control`; this crate wires them up and decides nothing about NVMe.
#![forbid(unsafe_code)]

mod cli;
mod log;
mod serve;
mod service;
mod signals;

pub use cli::Cli;
