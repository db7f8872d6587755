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
//! use nvmeof_initiator::{ConnectOptions, Error, Host, HostConfig, Nqn, WriteOptions};
//!
//! # async fn example() -> Result<(), Error> {
//! let host = Host::new(HostConfig::of_this_machine()?)?;
//! let addr = "127.0.0.1:4420".parse().expect("an address");
//! let subnqn = Nqn::new("nqn.2026-11.org.example:disk").expect("a name");
//! let controller = host.connect(ConnectOptions::new(addr, subnqn)).await?;
//! let namespace = controller.namespace(1).await?;
//!
//! let mut buf = controller.alloc(4096)?;
//! buf.fill(0x5a);
//! let buf = namespace.write(0, buf, WriteOptions::default()).await?;
//! namespace.flush().await?;
//! let buf = namespace.read(0, buf).await?;
//! assert!(buf.iter().all(|byte| *byte == 0x5a));
//! controller.disconnect().await;
//! # Ok(())
//! # }
//! ```
//!
//! A connection that is lost stays lost: every call on it ends with an error
//! that says why, its memory is given back ([`Failed`] names the exception), and
//! connecting again is up to the caller.
#![forbid(unsafe_code)]

pub mod blocking;
mod controller;
mod drive;
mod error;
mod failed;
mod geometry;
mod host;
mod identity;
mod inside;
mod namespace;
pub mod polled;
mod transport;

pub use controller::Controller;
pub use error::{Error, Fault, Lost, LostCause, MachineError, Setup, SetupFault, UsageError};
pub use failed::Failed;
pub use geometry::Geometry;
pub use host::{ConnectOptions, Discovery, Host, HostConfig};
pub use identity::{Identity, parse_hostid};
pub use namespace::{Namespace, WriteOptions, ZeroOptions};
pub use transport::{Route, RouteOptions, Transport, UnknownTransport};

pub use nvmeof_initiator_core::{
    Blocks, CommandError, ControllerInfo, IoLimits, Names, Operation, Place, QueueShape, Range,
    SetupConfig,
};
pub use nvmeof_memory::{Buf, ClassSpec, Classes, Pages, Pool, PoolLayout};
pub use nvmeof_rdma::{Address, AddressError, UnixPath};
pub use nvmeof_wire::{Nqn, Status};
