//! RDMA provider: two processes on one host, through shared memory.
//!
//! # Who moves the bytes
//! Each connection has one memfd with two *rings*, one for each direction;
//! whoever sends copies into its ring, and whoever receives copies out of it,
//! to the place that *it* found right: a posted receive, exposed memory after
//! the key was checked, the sink of a read. So a peer reaches the rings of its
//! own connections and nothing else, whatever it does.
//!
//! Where the listening side is a process of the same user or of root
//! ([`Give`]), the side that connects passes its pools as well
//! ([`Pages::Shareable`](nvmeof_memory::Pages::Shareable)). Keys are *granted*
//! then: the peer writes and reads such memory itself, or has it as a buffer
//! ([`map_remote`](nvmeof_rdma::Provider::map_remote)).
//!
//! # How two processes meet
//! An address and port stand for a Unix socket in a folder that both know
//! ([`ShmConfig::folder`]). Each side checks the user of the other. The active
//! side makes the memory, sealed so that it cannot be cut off, and passes it
//! with its request. Whoever could go another way asks first whether somebody
//! is there ([`probe`]). Providers of several threads share one socket
//! ([`Shm::group`]). After that the socket carries wake-ups, which are sent
//! only when the other side says that it sleeps, and the end: orderly, by a
//! fault, or because the peer's process is gone.
//!
//! # What a peer can do to us
//! It may write anything into the rings at any time. Every value is read once
//! and checked, payload is copied and never interpreted; what makes no sense
//! ends that connection.
//!
//! This crate knows nothing of NVMe, and waits for nothing: its owner
//! [rests](nvmeof_rdma::Provider::rest) and sleeps on
//! [`wait_fd`](nvmeof_rdma::Provider::wait_fd).
#![forbid(unsafe_code)]

mod borrowed;
mod channel;
mod config;
mod conn;
mod fault;
mod given;
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

pub use borrowed::Borrowed;
pub use config::{Give, SYSTEM_FOLDER, ShmConfig, own_folder};
pub use probing::{Nobody, probe};
pub use provider::Shm;
