//! The protocol logic of an NVMe over Fabrics host, without I/O.
//!
//! * [`Setup`] initializes a controller, from Connect to ready.
//! * [`Queue`] tracks the commands in flight of a queue.
//! * [`Blocks`] and the functions of [`admin`] and [`blocks`] build commands.
//! * [`KeepAlive`], [`DiscoveryReader`] and [`Shutdown`] are state machines for keep
//!   alive, the discovery log page and the shutdown of a controller. [`discovery`] has those for
//!   referrals between discovery services.
//!
//! * [`reservation`] has the reservation commands and the report.
//! * [`Authentication`] authenticates a queue, and the controller to the host.
//! * [`Fence`] says when the commands of a lost controller can be sent again, and the types of
//!   [`multipath`] choose paths, reconnect them and decide on retries.
//!
//! Callers pass events in and carry out the steps that these types return. This crate
//! opens no connection and reads no clock (`now` is an argument, a time since an
//! arbitrary start). Of RDMA it has only the formats that NVMe defines.
#![forbid(unsafe_code)]

pub mod admin;
mod authentication;
pub mod blocks;
pub mod cm;
mod command;
pub mod copy;
pub mod discovery;
mod error;
mod event;
pub mod fence;
mod keep_alive;
pub mod multipath;
mod queue;
pub mod reservation;
mod setting;
pub mod setup;
mod shutdown;
mod slots;

pub use admin::{Ask, Names, QueueShape};
pub use authentication::{Authentication, AuthenticationStep};
pub use blocks::{Blocks, CommandError, IoLimits, Operation, Range};
pub use command::{BadResponse, BlockRange, Command, CommandCompletion, Payload, Response};
pub use copy::{CopyLimits, CopyPart};
pub use discovery::DiscoveryReader;
pub use error::{Refusal, SetupError};
pub use event::{ControllerEvent, EventQueue};
pub use fence::{Fence, FenceMethod, FenceStep, LostController};
pub use keep_alive::{KeepAlive, KeepAliveStep};
pub use nvmeof_dhchap as dhchap;
pub use nvmeof_wire::opcode::Direction;
pub use queue::{Queue, QueueFault};
pub use reservation::{
    Registrant, ReservationAcquire, ReservationCommand, ReservationRegister, ReservationRelease,
    ReservationReport,
};
pub use setting::Setting;
pub use setup::{ControllerInfo, Next, Setup, SetupConfig};
pub use shutdown::Shutdown;
pub use slots::{BadSlotCount, Cid, MAX_SLOTS, Slots, UnknownCid};
