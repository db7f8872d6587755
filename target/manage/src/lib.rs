//! Applies a configuration to reactors: starts them, and changes what they serve while hosts
//! are connected.
//!
//! [`Server`] opens backing stores, listens on ports and starts one reactor for each configured
//! CPU. [`Manager`] applies later changes of ports and backing stores, and handles backing
//! stores that fail. The sources of changes and the recipients of notifications are other
//! crates: this one has no HTTP, no command line and no service manager.
#![forbid(unsafe_code)]

mod backing_store_monitor;
mod buffers;
pub mod cpus;
mod fault_counts;
pub mod files;
pub mod ha;
mod held;
pub mod host_settings;
mod lineage;
mod old_keys;
mod open;
pub mod ports;
pub mod retry;
mod ring;
mod served;
mod server;
mod takeover;
mod waits;
mod workers;

pub use backing_store_monitor::BackingStoreMonitor;
pub use buffers::buffers;
pub use fault_counts::FaultCounts;
pub use held::{Standby, Taken};
pub use host_settings::{NamespaceReservations, UnknownRecord};
pub use lineage::{Lineage, LineageError};
pub use nvmeof_backend::release_images;
pub use old_keys::OldKeyTimer;
pub use open::{UnusableNamespace, locked_by_ended_process, open_present, unusable_namespaces};
pub use served::{
    ANNOUNCE, ANNOUNCE_POLL, ApplyError, ControllerName, Drained, FORGET, Faulted, Fixed,
    ForgetError, HostKeyState, KeysToRead, Manager, OLD_KEY_NOTICE, Plan, Removal, Removed, Report,
    ReservationsError, ResizeNamespaceError, ResizeRequest, Waiting, WaitingObject,
};
pub use server::{MetricsSources, ServeError, Server};
pub use waits::WaitReason;
