//! One io_uring for one thread.
//!
//! A [`Ring`] starts operations on files, passes them to the kernel in batches
//! ([`Ring::submit`]) and returns their completions ([`Ring::reap`]). An operation owns
//! the [`Buf`](nvmeof_memory::Buf) that the kernel reads or fills, from the call that
//! starts it until its [`Done`], so no code can access memory that the kernel writes. A
//! ring that is dropped waits for its operations in flight.
//!
//! This crate does not interpret the bytes, does not continue short transfers and does not
//! sleep: it has a descriptor to sleep on.
//!
//! Unsafe code is allowed here because the kernel gets addresses, which must stay valid for
//! as long as it uses them.
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
pub use files::{FileId, FileTableFull, IssuedBy, close_elsewhere};
pub use fixed::Registered;
pub use operation::{RefusalReason, Refused, WriteMode};
pub use pieces::NotRegistered;
pub use polled::PolledError;
pub use ring::Ring;
pub use start::{KernelThread, Mode, RingConfig, RingError};
pub use uring::{Done, RingCounts, UnexpectedCompletion, Waker};
