//! The hot paths without a network: both sides in one thread, with data in memory.
//!
//! `nvmeof-guards` counts instructions, and tests count allocations. Both are independent of
//! the load of the machine; this crate measures no time. The code is that of production,
//! except that [`Pipes`] replace sockets. TCP ([`Medium::tcp`]), shared memory
//! ([`Medium::Shm`]) and backing stores are as in production.
#![forbid(unsafe_code)]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::missing_panics_doc,
    reason = "a guard that cannot continue has failed"
)]

mod carry;
mod engine;
mod long;
mod pipes;
mod reactors;
mod stage;

pub use engine::Engine;
pub use long::{Direction, Long};
pub use pipes::{PipeStreams, Pipes, Side};
pub use reactors::{MARKS, Reactors, mark};
pub use stage::{Medium, Served, Stage, Submit};
