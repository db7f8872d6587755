//! RDMA provider: libibverbs and librdmacm, for InfiniBand, RoCE and iWARP
//! devices.
//!
//! The libraries are loaded when the first provider is made: a program with
//! this crate starts on machines that do not have them.
//!
//! # What verbs do otherwise
//! * A message for which no receive is posted waits at its sender on
//!   InfiniBand and RoCE, for ever (RNR retry 7).
//! * Private data: 56 bytes in a request, 196 in an accept, 148 in a reject on
//!   InfiniBand and RoCE, and they arrive padded.
//! * Verbs do not tell a receiver that the sender wanted a solicited event.
//! * Memory can be exposed when the connection stands, not before.
//! * iWARP devices see the addresses of exposed memory as they are in this
//!   process: the software one ignores any other name.
//! * Shared receive queues are those of InfiniBand and RoCE devices whose queue
//!   pairs share a protection domain, one for each device and provider.
//! * Withdrawing a key may wait for a few seconds when the peer does not
//!   acknowledge what was sent before. Then its connection ends.
//!
//! This crate knows nothing of NVMe, and waits for no peer: its owner sleeps on
//! [`wait_fd`](nvmeof_rdma::Provider::wait_fd). What the kernel makes its caller
//! wait for, connecting over iWARP and giving that up, is done by threads that
//! last as long as such a call.
//!
//! Unsafe code is in `sys`, because verbs are C. What `sys` cannot guarantee by types is an
//! `unsafe fn` with a contract, and the few places that call one say why it holds: buffers
//! that work requests and exposures name are kept here until the device is done with them.
#![deny(unsafe_code)]

mod adapter;
mod blocking_calls;
mod config;
mod conn;
mod device;
mod domain;
mod error;
mod heads;
mod lingering;
mod link;
mod listening;
mod lock;
mod machine;
mod mailbox;
mod outstanding;
mod provider;
mod retired;
mod shared;
mod siw;
mod sizes;
#[allow(unsafe_code, reason = "verbs are C")]
mod sys;
mod windows;
mod words;

pub use config::VerbsConfig;
pub use device::{DeviceInfo, DeviceKind, device_for_local, device_towards, devices};
pub use error::VerbsError;
pub use provider::{Verbs, group, new};
