//! Leases and takeovers of gateways, active/passive for each ANA group: a state machine.
//!
//! ```text
//!            handle_record, handle_written           handle_fenced, _opened, _closed, _lost
//!   record ──────────────────────────────►  Machine  ◄────────────────────────────── driver
//!   (RADOS) ◄──────────────────────────────  poll  ──────────────────────────────►
//!             Action::{Read, Write}                  Action::{Fence, Open, Serve, …}
//! ```
//! The gateways share one [`Record`], which changes by compare-and-swap only. All decisions follow
//! from the last record that was read or written, never from the assumption that a write failed.
//! Therefore a lost reply, or a write that takes effect late, needs no case of its own.
//!
//! This crate does not read the record, connect to a cluster, fence or open anything: a driver
//! executes each [`Action`] and reports its result. See `docs/design/high-availability.md`.
#![forbid(unsafe_code)]

mod action;
mod candidates;
mod config;
mod group;
mod lost;
mod machine;
mod observer;
mod record;
mod refusal;
mod view;
mod why;

pub use action::{Action, Number, Written};
pub use config::{Config, ConfigError, Failback, GroupConfig, Time, Timing};
pub use lost::{LostController, LostState};
pub use machine::{Machine, OrderError, Standing};
pub use observer::Liveness;
pub use record::{
    Change, ControllerIds, FORMAT, Facts, Failure, Gateway, Group, Incarnation, MAX_BYTES,
    MAX_CLIENTS, MAX_FACTS, MAX_GATEWAYS, MAX_GROUPS, MAX_TEXT, Owner, Phase, Record, RecordError,
    Wish, WishReason,
};
pub use refusal::Refusal;
pub use why::{Candidate, Why};
