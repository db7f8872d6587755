//! End-to-end tests with real processes: their test harness.
//!
//! [`Setup`] writes a configuration and starts a [`Target`]; [`Run`] is one call of the
//! `nvmeof` program; [`Peer`] exchanges raw bytes with the target. Every wait has a
//! deadline, and no process outlives its test.
//!
//! The programs are those in the folder `NVMEOF_BIN_DIR`, or `build/release` by default.
//! This crate does not link them.
#![forbid(unsafe_code)]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::missing_panics_doc,
    clippy::must_use_candidate,
    reason = "a test that cannot continue has failed; some calls only check"
)]

mod control;
mod devices;
mod fio;
mod image;
mod key;
mod metrics;
mod observe;
mod peer;
mod proxy;
mod run;
mod setup;
mod target;
mod timeout;
mod work;
pub mod xml;

pub use control::{ask, ctl, managed};
pub use devices::Devices;
pub use fio::{Jobs, engine};
pub use image::{image, pattern, same_bytes};
pub use key::{KEY, OTHER_KEY, key_file, key_file_with};
pub use metrics::{exchange, over_socket, sample};
pub use observe::{
    cpu_seconds, cpu_time, fds, is_root, own_kib, reactors_on_one_cpu, rss_kib, usable_cpus,
};
pub use peer::{Peer, connect, connect_capsule, request};
pub use proxy::{Proxy, Traffic};
pub use run::{Ended, Run, Running, binary, copy_of, is_debug_build, runner};
pub use setup::{HOST, NQN, Setup, free_port, own_ip, target_command};
pub use target::Target;
pub use timeout::{TIMEOUT, eventually};
pub use work::{assert_io_continues, blocks, nsids, start_io, wait_for_io};
