//! Watching the target: what is counted, how it is collected, and who is told.
//!
//! What is counted is read from counters that each reactor writes alone. What is
//! there at this moment (queues, commands in flight) each reactor is asked for, by
//! an order in its mailbox; one that does not answer is left out, and named.

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
