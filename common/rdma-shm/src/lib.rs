//! RDMA provider for two processes on one host, over shared memory.
//!
//! # Data path
//! Each connection has one memfd with two *rings*, one for each direction. The sender copies
//! into its ring, and the receiver copies out of it, to a destination that the *receiver*
//! validated: a posted receive, exposed memory after a check of the key, the destination of a
//! read. A peer therefore accesses the rings of its own connections and nothing else.
//!
//! If the listening side is a process of the same user or of root ([`ShareMemory`]), the connecting
//! side passes its pools as well ([`Pages::Shareable`](nvmeof_memory::Pages::Shareable)).
//! Keys are then *granted*: the peer reads and writes such memory directly, or maps it as a
//! buffer ([`map_remote`](nvmeof_rdma::Provider::map_remote)).
//!
//! # Connection set-up
//! An address and port stand for a Unix socket in a directory that both sides know
//! ([`ShmConfig::folder`]). Each side checks the user of the other. The active side creates
//! the memory, sealed against shrinking, and passes it with its request. A client that could
//! use another transport first sends a [`probe`]. Providers of several threads share one
//! socket ([`Shm::group`]). After the set-up the socket carries wake-ups, which are sent only
//! if the other side requests them, and the end of the connection: orderly, by a fault, or
//! because the peer's process died.
//!
//! # Hostile peers
//! A peer may write anything into the rings at any time. Every value is read once and
//! checked, and payload is copied but never interpreted. An invalid value ends that
//! connection.
//!
//! This crate contains nothing of NVMe and never blocks: its owner
//! [rests](nvmeof_rdma::Provider::rest) and sleeps on
//! [`wait_fd`](nvmeof_rdma::Provider::wait_fd).
#![forbid(unsafe_code)]

mod borrowed;
mod channel;
mod config;
mod conn;
mod fault;
mod grant;
mod group;
mod inbound;
mod link;
mod listening;
mod message;
mod outbound;
mod probing;
mod provider;
mod record;
mod ring;
mod shared_regions;

pub use borrowed::Borrowed;
pub use config::{SYSTEM_FOLDER, ShareMemory, ShmConfig, own_folder};
pub use probing::{ProbeError, probe};
pub use provider::Shm;
