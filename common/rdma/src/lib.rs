//! The verbs-like contract that every RDMA provider keeps.
//!
//! The terms are those of the InfiniBand and iWARP specifications: queue
//! pairs, work requests, completions, memory keys. What differs from the C
//! verbs is ownership: a buffer that is posted or exposed *moves* into the
//! provider and comes back with its completion or when it is withdrawn, so
//! that memory somebody else may touch is never visible as a slice.
//!
//! A provider is driven by one thread: post any number of work requests,
//! [`Provider::submit`] them once, [`Provider::poll`] for what happened, and when
//! nothing does, [`Provider::rest`] and sleep on [`Provider::wait_fd`]. Nothing calls
//! back.
//!
//! This crate moves no bytes and knows nothing of NVMe.
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
mod rate_limiter;
mod steering;
mod whose;
mod work;

pub use address::{
    Address, AddressError, Peer, UnixPath, UnixPathError, UnusableAddress, WrongKind,
};
pub use error::{CloseReason, ConnectError, ExposeError, Fault, ListenError, PostError, Refused};
pub use event::{Completion, ConnectRequest, Event, Received};
pub use explain::{describe, explain};
pub use id::{ListenerId, QpId, SrqId, Tag};
pub use inline::{Bytes, Inline, PrivateData, TooLong};
pub use key::{RemoteKey, RemoteSlice, Rights};
pub use params::{Limits, QpConfig, SharedReceives};
pub use provider::{ACCEPT_PACE, Progress, Provider};
pub use rate_limiter::RateLimiter;
pub use steering::{Counted, Lightened, Steering};
pub use whose::Whose;
pub use work::{Answer, Outcome, Work, WorkKind};
