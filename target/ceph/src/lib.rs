//! RBD images and RADOS objects of a Ceph cluster.
//!
//! librados and librbd (Ceph 16.2 or later) are loaded when they are first needed: a program
//! that uses this crate starts without them. A [`Cluster`] is one connection, which is one
//! client for the cluster: it is blocklisted as a whole. An [`Image`] is an open RBD image, which
//! threads share; each thread has a [`Queue`] with its calls in flight. A [`Pool`] also reads and
//! replaces small values in RADOS objects.
//!
//! Functions that talk to the cluster may block for as long as it does not respond: call them
//! from a thread that may block. The functions of [`Queue`] never block.
//!
//! This crate knows bytes and offsets. It knows no NVMe, and does not decide who may use an
//! image.
#![deny(unsafe_op_in_unsafe_fn)]
#![allow(
    unsafe_code,
    reason = "calls C functions, which own buffers while they run"
)]

mod closing;
mod cluster;
mod error;
mod image;
mod lock;
mod pool;
mod queue;
mod sys;

pub use closing::wait_closed;
pub use cluster::Cluster;
pub use error::{CephError, Missing};
pub use image::{Features, Image, Properties};
pub use pool::{Pool, Swapped};
pub use queue::{Call, Done, NotStarted, Queue};
