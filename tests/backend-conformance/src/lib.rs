//! The conformance suite of backing stores: what every [`Backend`] promises.
//!
//! [`all`] runs every check on what a [`Claim`] opens, and panics where it breaks a
//! promise. [`Bench`] is one store of one reactor with calls that wait for their end, for
//! tests of a single backend as well.
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

/// Puts layers on a backend before the suite uses it.
pub type Wrap = fn(Box<dyn Backend>) -> Box<dyn Backend>;

/// Runs every check on a disk that may be written, of at least 2 MiB. Its
/// contents are lost.
pub fn all(claim: &Claim, keeps: Keeps, wrap: Wrap) {
    all_over(claim, keeps, wrap, RingConfig::default());
}

/// The same over a ring of that kind, which gets other sizes.
pub fn all_over(claim: &Claim, keeps: Keeps, wrap: Wrap, ring: RingConfig) {
    let bench = || Bench::over(claim, keeps, wrap, ring);
    for check in [
        storing::written_bytes_are_read,
        storing::zeroes_are_where_they_were_asked_for,
        storing::deallocated_bytes_are_zero_where_that_is_promised,
        storing::reads_never_show_what_was_in_the_buffer,
        limits::ranges_outside_or_askew_are_refused,
        limits::nothing_is_done_at_once,
        many::everything_taken_comes_back_once,
        many::a_dropped_reactor_gives_its_buffers_back,
        limits::a_disk_is_closed_when_it_is_idle,
    ] {
        check(&mut bench());
    }
    many::reactors_see_the_same_bytes(&mut bench(), &mut bench());
}

/// Runs the checks for a disk that may only be read.
pub fn readonly(claim: &Claim, wrap: Wrap) {
    limits::nothing_can_be_changed(&mut Bench::new(claim, Keeps::Bytes, wrap));
}
