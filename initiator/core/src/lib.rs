//! What an NVMe over Fabrics host does, without I/O.
//!
//! [`Setup`] takes a controller from Connect to ready, [`Queue`] keeps track of
//! commands in flight, [`Blocks`] and the functions of [`admin`] and [`blocks`]
//! make commands, [`KeepAlive`], [`DiscoveryReader`] and [`Shutdown`] do what
//! their names say.
//!
//! Everything is told what happened and says what to do: this crate opens no
//! connection, reads no clock (`now` is an argument, a time since an arbitrary
//! start) and knows nothing of RDMA but the formats NVMe defines for it.
#![forbid(unsafe_code)]

pub mod admin;
pub mod blocks;
pub mod cm;
mod command;
pub mod copy;
pub mod discovery;
mod error;
mod keep_alive;
mod queue;
mod setting;
pub mod setup;
mod shutdown;
mod slots;

pub use admin::{Ask, Names, QueueShape};
pub use blocks::{Blocks, CommandError, IoLimits, Operation, Range};
pub use command::{Answer, BadResponse, Command, Payload, Place, Response};
pub use copy::{CopyLimits, CopyPart};
pub use discovery::DiscoveryReader;
pub use error::{Refusal, SetupError};
pub use keep_alive::{KeepAlive, KeepAliveStep};
pub use nvmeof_wire::opcode::Direction;
pub use queue::{Queue, QueueFault};
pub use setting::Setting;
pub use setup::{ControllerInfo, Next, Setup, SetupConfig};
pub use shutdown::Shutdown;
pub use slots::{BadSlotCount, Cid, MAX_SLOTS, Slots, UnknownCid};
