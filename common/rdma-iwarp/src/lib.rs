//! RDMA provider: software iWARP over TCP and over Unix sockets.
//!
//! The protocols are in `nvmeof-rdma-soft`; this crate gives them sockets. It
//! needs no RDMA device, no kernel module and no privileges, and speaks to
//! whatever speaks iWARP: Linux `siw`, iWARP network cards, itself. Peers on the
//! same host may come through a Unix socket instead, at less cost; nothing else
//! is different there.
//!
//! This crate knows nothing of NVMe, and waits for nothing: its owner sleeps
//! on [`wait_fd`](nvmeof_rdma::Provider::wait_fd).
#![forbid(unsafe_code)]

mod acceptor;
mod calling;
mod config;
mod socket;
mod streams;

pub use config::{Iwarp, IwarpConfig, group, new};
pub use streams::SocketStreams;
