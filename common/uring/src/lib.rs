//! One io_uring for one thread.
//!
//! A [`Ring`] takes operations on files, hands all of them to the kernel in
//! one call a turn ([`Ring::submit`]) and gives back what came of them
//! ([`Ring::reap`]). An operation owns the [`Buf`](nvmeof_memory::Buf) the
//! kernel reads or fills, from the call that starts it until its [`Done`], so
//! nobody can look at memory the kernel is writing. A ring that is dropped
//! waits for what it still has in flight.
//!
//! This crate does not know what the bytes mean, does not continue short
//! transfers and does not sleep: it has a descriptor to sleep on.
//!
//! Unsafe code is allowed here because the kernel is told addresses, which
//! must stay valid for as long as it uses them.
#![allow(unsafe_code, reason = "the kernel reads and writes memory by address")]

mod alignment;
mod errno;
mod files;
mod fixed;
mod lent;
mod operation;
mod pieces;
mod polled;
mod ring;
mod slots;
mod start;
mod uring;

pub use alignment::{DirectAlignment, direct_alignment};
pub use files::{Begins, FileId, FileTableFull, close_elsewhere};
pub use fixed::Registered;
pub use operation::{Refused, Why, WriteMode};
pub use pieces::LeftOut;
pub use polled::PolledError;
pub use ring::Ring;
pub use start::{KernelThread, Mode, RingConfig, RingError};
pub use uring::{Done, RingCounts, Stray, Waker};
