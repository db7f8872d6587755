//! Takes over ANA groups from other gateways, and hands them over.
//!
//! ```text
//!             Event                        Action
//!   HaControl ─────► Driver ◄──► Machine ─────────► RecordDriver: the shared record
//!                       ▲      (nvmeof-target-ha)   GroupDriver: clients and images of a group
//!                       └──────────────────────────────┘ results
//! ```
//! Each driver has a thread, which may wait for the cluster. The driver itself never waits, so that
//! a lease that lapses stops the group at once.

mod driver;
mod group;
mod latest;
mod record;
mod report;
mod resets;

pub(crate) use driver::HaStart;
