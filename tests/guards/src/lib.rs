//! The hot paths without a network: one thread, both sides, bytes handed over
//! in memory.
//!
//! What is counted here, instructions by `nvmeof-guards` and allocations by a
//! test, does not depend on how busy the machine is. It is the code that runs
//! in production, but for the sockets where [`Pipes`] take their place. TCP
//! ([`Medium::tcp`]), shared memory ([`Medium::Shm`]) and disks are as in production.
#![forbid(unsafe_code)]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::missing_panics_doc,
    reason = "a guard that cannot go on has failed"
)]

mod carry;
mod engine;
mod long;
mod pipes;
mod stage;

pub use engine::Engine;
pub use long::{Direction, Long};
pub use pipes::{PipeStreams, Pipes, Side};
pub use stage::{Medium, Stage, Submit};
