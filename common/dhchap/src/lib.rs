//! Keys and computations of DH-HMAC-CHAP (NVMe Base 2.0, 8.13.5), which Base 2.4 calls
//! KX-HMAC-CHAP.
//!
//! [`Key`] is a secret as `nvme gen-dhchap-key` writes it. [`Exchange`] is one side of the key
//! exchange. [`Transcript`] has what both responses depend on. Messages are in
//! [`nvmeof_wire::auth`]; when they are sent is for the state machines of target and initiator.
//!
//! All functions whose time could tell a secret are constant-time in the secret. Secrets are
//! erased when they are dropped. An exponentiation takes from half a millisecond to tens of
//! milliseconds: no reactor may call it, see [`mark_reactor_thread`].
//!
//! ```
//! use nvmeof_dhchap::{Challenged, Key, Transcript};
//! use nvmeof_wire::auth::HashId;
//!
//! let text = "DHHC-1:00:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh+KfiaR:";
//! let key = Key::parse(text)?;
//! let transcript = Transcript {
//!     hash: HashId::SHA256,
//!     t_id: 2,
//!     sc_c: 0,
//!     hostnqn: "nqn.2014-08.org.nvmexpress:uuid:00000000-0000-4000-8000-000000000001",
//!     subnqn: "nqn.2026-11.org.example:disk",
//! };
//! let challenge = Challenged { value: &[0x11; 32], seqnum: 1, shared: None };
//! let response = transcript.host_response(&key, challenge)?;
//! assert_eq!(response.as_bytes()[..4], [0x2e, 0x0c, 0x26, 0xe0]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]

mod controller;
mod exchange;
mod hash;
mod host;
mod key;
mod primes;
mod random;
mod reactor_thread;
mod response;
mod work;

pub use controller::{AuthFailure, ControllerAuth, Expected, Policy, Proof, Received, UnknownKeys};
pub use exchange::{Exchange, ExchangeError, SharedSecret};
pub use hash::UnknownHash;
pub use host::{HostAuth, HostKeys, HostStep, Refusal};
pub use key::{Key, KeyError};
pub use nvmeof_memory::Secret;
pub use random::{Random, RandomError, SystemRandom};
pub use reactor_thread::mark_reactor_thread;
pub use response::{Challenged, Response, ResponseError, Transcript};
pub use work::{Work, WorkError, WorkResult};
