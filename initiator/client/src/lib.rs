//! NVMe over Fabrics RDMA initiator to embed in programs.
//!
//! It has two interfaces; the second uses the first:
//!
//! * [`polled`]: queues that the caller polls, for programs with a loop of their own. It
//!   needs no thread, no runtime and no clock, and does not allocate memory for calls.
//! * [`Host`], [`Controller`], [`Namespace`]: the async interface for tokio. Each call
//!   takes a registered buffer and returns it. Without the feature `async`, which is on by
//!   default, the crate does not depend on tokio and has only the first.
//!
//! [`blocking`] is for programs that poll their I/O queues and block for everything else.
//!
//! ```no_run
#![doc = include_str!("../examples/write_and_verify.rs")]
//! ```
//!
//! [`Multipath`] keeps several paths to a subsystem connected, or one: its calls wait or take
//! another path when one is lost. A [`Controller`] does not reconnect: when its connection is
//! lost, each of its calls fails with an error that names the cause and returns its buffer
//! ([`Failed`] has the exception). There is no block device.
#![forbid(unsafe_code)]

pub mod blocking;
#[cfg(feature = "async")]
mod connect;
#[cfg(feature = "async")]
mod controller;
#[cfg(feature = "async")]
mod deadline;
#[cfg(feature = "async")]
pub mod discovery;
#[cfg(feature = "async")]
mod drive;
mod error;
#[cfg(feature = "async")]
mod failed;
mod geometry;
mod host;
mod identity;
#[cfg(feature = "async")]
mod inside;
#[cfg(feature = "async")]
pub mod multipath;
#[cfg(feature = "async")]
mod namespace;
mod options;
mod pollable;
pub mod polled;
#[cfg(feature = "async")]
mod reservations;
#[cfg(feature = "async")]
mod spread;
mod transport;

#[cfg(feature = "async")]
pub use controller::Controller;
#[cfg(feature = "async")]
pub use discovery::{Discovery, DiscoveryOptions};
pub use error::{
    Awaited, Error, ErrorKind, Fault, Lost, LostCause, MachineError, NoPath, Setup, SetupFault,
    TimedOut, UsageError,
};
#[cfg(feature = "async")]
pub use failed::{Failed, FailedVectored};
pub use geometry::Geometry;
pub use host::{Host, HostConfig};
pub use identity::{Identity, parse_hostid};
#[cfg(feature = "async")]
pub use multipath::{Multipath, MultipathNamespace, MultipathOptions};
#[cfg(feature = "async")]
pub use namespace::{Namespace, WriteOptions, ZeroOptions};
pub use options::ConnectOptions;
pub use transport::{Route, RouteOptions, Transport, UnknownTransport};

// Crates of types in signatures.
pub use nvmeof_initiator_core as protocol;
pub use nvmeof_initiator_core::dhchap;
pub use nvmeof_memory as memory;
pub use nvmeof_rdma as rdma;
pub use nvmeof_wire as wire;

pub use nvmeof_initiator_core::{
    BlockRange, Blocks, Command, CommandError, ControllerEvent, ControllerInfo, IoLimits, Names,
    Operation, QueueShape, Range, Registrant, ReservationAcquire, ReservationCommand,
    ReservationRegister, ReservationRelease, ReservationReport, Setting, SetupConfig,
};
pub use nvmeof_memory::{Buf, ClassSpec, Classes, Pages, Pool, PoolLayout};
pub use nvmeof_rdma::{Address, AddressError, Provider, UnixPath};
pub use nvmeof_wire::admin::{Cns, LogId};
pub use nvmeof_wire::reservation::{
    AcquireAction, PersistChange, RegisterAction, ReleaseAction, ReservationType,
};
pub use nvmeof_wire::{Nqn, Status};

/// Its code is tested.
#[cfg(all(doctest, feature = "async"))]
#[doc = include_str!("../README.md")]
struct Readme;
