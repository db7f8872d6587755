//! Monitoring: collecting metrics and reporting them over HTTP.
//!
//! Counters are read directly; only the reactor that owns a counter writes it. The present
//! state (queues, commands in flight) is requested from each reactor by an order in its
//! mailbox. A reactor that does not respond is left out of the state and reported as such.

mod collect;
mod exporter;
mod health;
pub(crate) mod http;
mod joined;
mod openmetrics;
mod plain;
#[cfg(test)]
mod tests;

pub use collect::Watch;
pub use exporter::Exporter;
pub use health::Health;
pub(crate) use http::routes;
