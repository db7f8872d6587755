//! NVMe over Fabrics RDMA initiator for embedding in programs.
//!
//! Two layers, of which the second uses the first:
//!
//! * [`polled`]: queues that the caller polls, for those who have a loop of
//!   their own. No thread, no runtime, no clock, no allocation per call.
//! * [`Host`], [`Controller`], [`Namespace`]: the same for tokio. Registered
//!   buffers go in and come back.
//!
//! [`blocking`] is for programs that poll their I/O queues and only wait for
//! everything else.
//!
//! ```no_run
#![doc = include_str!("../examples/write_and_verify.rs")]
//! ```
//!
//! A connection that is lost stays lost: every call on it ends with an error
//! that says why, its memory is given back ([`Failed`] names the exception), and
//! connecting again is up to the caller.
#![forbid(unsafe_code)]

pub mod blocking;
mod connect;
mod controller;
mod drive;
mod error;
mod failed;
mod geometry;
mod host;
mod identity;
mod inside;
mod namespace;
mod options;
pub mod polled;
mod transport;

pub use connect::Discovery;
pub use controller::Controller;
pub use error::{Error, Fault, Lost, LostCause, MachineError, Setup, SetupFault, UsageError};
pub use failed::Failed;
pub use geometry::Geometry;
pub use host::{Host, HostConfig};
pub use identity::{Identity, parse_hostid};
pub use namespace::{Namespace, WriteOptions, ZeroOptions};
pub use options::ConnectOptions;
pub use transport::{Route, RouteOptions, Transport, UnknownTransport};

// Every type that a signature here has can be named by these.
pub use nvmeof_initiator_core as protocol;
pub use nvmeof_memory as memory;
pub use nvmeof_rdma as rdma;
pub use nvmeof_wire as wire;

pub use nvmeof_initiator_core::{
    Blocks, Command, CommandError, ControllerInfo, IoLimits, Names, Operation, Place, QueueShape,
    Range, Setting, SetupConfig,
};
pub use nvmeof_memory::{Buf, ClassSpec, Classes, Pages, Pool, PoolLayout};
pub use nvmeof_rdma::{Address, AddressError, Provider, UnixPath};
pub use nvmeof_wire::admin::{Cns, LogId};
pub use nvmeof_wire::{Nqn, Status};
