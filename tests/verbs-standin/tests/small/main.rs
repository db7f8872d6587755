//! The conformance suite over devices with the lowest limits. In a program of its own: a
//! provider offers the limits of the best device.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

#[path = "../it/fabric.rs"]
#[allow(dead_code, reason = "another test uses all of it")]
mod fabric;
#[path = "../it/watched.rs"]
mod watched;

use fabric::Device;

nvmeof_rdma_conformance::conformance_suite!([Device::new("profile=small delay=3")]);
