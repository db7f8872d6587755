//! The NVMe over Fabrics RDMA target daemon: command line, log, signals and notification of
//! the service manager.
//!
//! `nvmeof-target-manage` starts the server and `nvmeof-target-control` changes it. This
//! crate connects the two and decides nothing about NVMe.
#![forbid(unsafe_code)]

mod cli;
mod log;
mod serve;
mod service;
mod signals;

pub use cli::Cli;
