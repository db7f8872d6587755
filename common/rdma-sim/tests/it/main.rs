//! Tests through the interface of the crate.

mod conformance;
mod fabric;
mod group;
mod strangers;
mod streams;
mod trouble;
