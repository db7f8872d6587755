//! The initiator as an engine of fio: fio makes the work, counts and verifies,
//! this crate moves the data.
//!
//! Between the two stands `engine/engine.c`: it knows fio's structures and none
//! of ours. What it calls is in [`ffi`], which knows none of fio's. The two meet
//! in `engine/nvmeof_fio.h`. fio's headers are those of the fio that is
//! installed; `cargo xtask fio-engine` gets them and links everything together.
//!
//! A job of fio is a thread or a process. Each has its own controller: an admin
//! queue, kept alive by a thread of ours, and I/O queues that the job polls
//! whenever fio asks for results. Its payload memory is ours, so that nothing is
//! copied on the way.
#![deny(unsafe_code)]

mod control;
mod failure;
pub mod ffi;
mod job;
mod options;
mod payload;
mod request;
mod statuses;

pub use failure::Failure;
pub use job::{Ended, Job, Taken, look};
pub use options::{Given, Options};
pub use request::{Kind, Request};
