//! Log pages, as Get Log Page returns them (NVMe Base 2.0, 5.16.1). Their
//! numbers are [`crate::admin::LogId`].

pub mod ana;
pub mod changed;
pub mod controllers;
pub mod discovery;
pub mod effects;
pub mod error;
pub mod firmware;
pub mod smart;
pub mod supported;

pub use changed::ChangedNamespaces;
pub use controllers::{CrossResetEntry, CrossResetState, EntryCount, LostHostEntry};
pub use discovery::{DiscoveryEntry, DiscoveryHeader, DiscoveryPage};
pub use effects::CommandEffects;
pub use error::ErrorEntry;
pub use firmware::FirmwareSlots;
pub use smart::SmartLog;
pub use supported::SupportedPages;
