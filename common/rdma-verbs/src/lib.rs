//! RDMA provider for InfiniBand, RoCE and iWARP devices, over libibverbs and librdmacm.
//!
//! The libraries are loaded when the first provider is created: a program with this crate
//! starts on machines without them.
//!
//! # Differences from other providers
//! * A message for which no receive is posted waits at its sender on InfiniBand and RoCE,
//!   indefinitely (RNR retry 7).
//! * Private data: 56 bytes in a request, 196 in an accept, 148 in a reject on
//!   InfiniBand and RoCE, and they arrive padded.
//! * Verbs do not report to a receiver that the sender requested a solicited event.
//! * Memory can be exposed once the connection is established, not before.
//! * iWARP devices use the addresses of exposed memory in this process: the software device
//!   ignores any other I/O address.
//! * Shared receive queues are those of InfiniBand and RoCE devices whose queue
//!   pairs share a protection domain, one for each device and provider.
//! * Withdrawing a key may block for a few seconds if the peer does not acknowledge earlier
//!   messages. Then its connection ends.
//!
//! This crate contains nothing of NVMe and never blocks for a peer: its owner sleeps on
//! [`wait_fd`](nvmeof_rdma::Provider::wait_fd). Calls that block in the kernel, connecting
//! over iWARP and canceling that, run in threads that exist only for the call.
//!
//! Unsafe code is in `sys`, because verbs are C. What `sys` cannot guarantee by types is an
//! `unsafe fn` with a contract, and each caller states why it holds: buffers that work
//! requests and exposures name are kept here until the device is done with them.
#![deny(unsafe_code)]

mod adapter;
mod arming;
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
mod work_id;

pub use config::VerbsConfig;
pub use device::{DeviceInfo, DeviceKind, device_for_local, device_towards, devices};
pub use error::VerbsError;
pub use provider::{Verbs, group, new};
pub use sys::{Lookup, provide_functions};
