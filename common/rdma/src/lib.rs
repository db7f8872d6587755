//! The verbs-like contract that every RDMA provider keeps.
//!
//! The terms are those of the InfiniBand and iWARP specifications: queue pairs, work
//! requests, completions, memory keys. Ownership differs from C verbs: a buffer that is
//! posted or exposed *moves* into the provider and returns with its completion or when it is
//! withdrawn. Memory that a device or a peer may access is therefore never visible as a
//! slice.
//!
//! One thread drives a provider. It posts any number of work requests, calls
//! [`Provider::submit`] once, and [`Provider::poll`] for events. When there are none, it
//! calls [`Provider::rest`] and sleeps on [`Provider::wait_fd`]. There are no callbacks.
//!
//! ```
//! use std::time::Duration;
//!
//! use nvmeof_rdma::{Event, Provider};
//!
//! /// One iteration of an event loop.
//! fn iterate(provider: &mut dyn Provider, now: Duration, events: &mut Vec<Event>) {
//!     provider.submit(now);
//!     if !provider.poll(now, events) {
//!         provider.rest();
//!         // Sleep on `provider.wait_fd()`, until `provider.next_deadline()`.
//!     }
//! }
//! ```
//!
//! This crate implements no provider and contains nothing of NVMe. Beside the contract it
//! owns the table that spreads connections over threads ([`Steering`]), the rate limit of log
//! lines ([`RateLimiter`]) and texts for errors of the operating system ([`explain`]).
#![forbid(unsafe_code)]

mod address;
mod boxed;
mod error;
mod event;
mod explain;
mod id;
mod inline;
mod key;
mod params;
mod provider;
mod qp_owner;
mod rate_limiter;
mod steering;
mod work;

pub use address::{
    Address, AddressError, Peer, UnixPath, UnixPathError, UnusableAddress, WrongKind,
};
pub use error::{CloseReason, ConnectError, ExposeError, Fault, ListenError, PostError, Refused};
pub use event::{Completion, ConnectRequest, Event, Received};
pub use explain::{describe, explain};
pub use id::{ListenerId, QpId, SrqId, Tag};
pub use inline::{Bytes, Inline, PrivateData, TooLong};
pub use key::{RegionExposure, RemoteKey, RemoteSlice, Rights};
pub use params::{Limits, QpConfig, SharedReceives};
pub use provider::{ACCEPT_PACE, Progress, Provider};
pub use qp_owner::QpOwner;
pub use rate_limiter::RateLimiter;
pub use steering::{ConnectionGuard, LightGuard, Steering};
pub use work::{Outcome, Posted, Work, WorkKind, WriteAndSend};
