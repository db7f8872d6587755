//! RDMA provider: software iWARP over TCP and Unix sockets.
//!
//! `nvmeof-rdma-soft` implements the protocols; this crate provides the sockets. It needs no
//! RDMA device, no kernel module and no privileges. It interoperates with every iWARP peer:
//! Linux `siw`, iWARP network cards, itself. Peers on the same host may use a Unix socket
//! instead, at less cost; the protocol is the same.
//!
//! This crate contains nothing of NVMe and never blocks: its owner sleeps on
//! [`wait_fd`](nvmeof_rdma::Provider::wait_fd).
#![forbid(unsafe_code)]

mod acceptor;
mod config;
mod connecting;
mod socket;
mod streams;
mod zero_copy;

pub use config::{Iwarp, IwarpConfig, group, new};
pub use streams::SocketStreams;
pub use zero_copy::ZeroCopy;
