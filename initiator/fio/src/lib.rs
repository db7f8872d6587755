//! The initiator as an I/O engine of fio: fio generates the load, measures and
//! verifies; this crate transfers the data.
//!
//! The engine has two halves. `engine/engine.c` accesses the structures of fio,
//! and calls the functions of [`ffi`], which have none of fio's types.
//! `engine/nvmeof_fio.h` declares them. `cargo xtask fio-engine` fetches the
//! headers of the installed fio and links both halves.
//!
//! A job of fio is a thread or a process. Each has its own controllers, one for each
//! path: admin queues, kept alive by a thread of this crate, which also connects lost
//! paths again, and I/O queues that the job polls whenever fio asks for results. This
//! crate allocates the payload memory of the job, so that no data are copied.
//!
//! It does not generate load, measure or verify.
#![deny(unsafe_code)]

mod control;
mod failure;
pub mod ffi;
mod job;
mod keys;
mod options;
mod payload;
mod request;
mod stalls;
mod statuses;

pub use failure::Failure;
pub use job::{Job, OperationResult, SubmitResult, look};
pub use options::{Options, RawOptions};
pub use request::{Kind, Request};
