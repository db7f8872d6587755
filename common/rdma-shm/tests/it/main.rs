//! Tests through the interface of the crate.
//!
//! Beside this folder, as programs of their own: what lowers a limit of the process,
//! and what kills a peer.

mod conformance;
mod grants;
mod group;
mod in_place;
mod stranger;
mod strangers;
