//! The conformance suite of backing stores: the contract of [`Backend`].
//!
//! [`all`] runs each check on the store that a [`Claim`] opens, and panics on a violation.
//! [`Bench`] is one store of one reactor with calls that wait for completion. Tests of a
//! single backend use it as well.
//!
//! This crate has no tests of its own and no backing store: `target/backend` runs the
//! suite from its `tests/`.
#![forbid(unsafe_code)]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::missing_panics_doc,
    clippy::cast_possible_truncation,
    reason = "a test suite fails by panicking"
)]

mod bench;
mod limits;
mod many;
mod storing;

pub use bench::{Bench, Keeps};

use nvmeof_backend::{Backend, Claim};
use nvmeof_uring::RingConfig;

/// Wraps a backend before the suite uses it.
pub type Wrap = fn(Box<dyn Backend>) -> Box<dyn Backend>;

/// Runs each check on a writable backing store of at least 2 MiB. Its data are lost.
pub fn all(claim: &Claim, keeps: Keeps, wrap: Wrap) {
    all_over(claim, keeps, wrap, RingConfig::default());
}

/// The same over a ring with this configuration, except for its sizes.
pub fn all_over(claim: &Claim, keeps: Keeps, wrap: Wrap, ring: RingConfig) {
    let bench = || Bench::over(claim, keeps, wrap, ring);
    for check in [
        storing::written_data_are_read,
        storing::write_zeroes_zeroes_exactly_the_range,
        storing::deallocated_bytes_read_as_zero_if_reported,
        storing::reads_overwrite_whole_buffer,
        limits::ranges_outside_or_misaligned_are_refused,
        limits::empty_ranges_complete,
        many::accepted_requests_complete_once,
        many::dropped_reactor_returns_buffers,
        limits::store_is_closed_only_when_idle,
    ] {
        check(&mut bench());
    }
    many::reactors_read_same_data(&mut bench(), &mut bench());
}

/// Runs the checks for a read-only backing store.
pub fn readonly(claim: &Claim, wrap: Wrap) {
    limits::read_only_store_refuses_changes(&mut Bench::new(claim, Keeps::Bytes, wrap));
}
