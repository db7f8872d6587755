//! Decisions of a host that discovers subsystems:
//!
//! * [`DiscoveryReader`]: the commands that read one log page, which may change meanwhile.
//! * [`DiscoveryGraph`]: which referrals to follow, and the entries of all log pages.
//! * [`ReadPace`]: when the log page of a service is read again.
//!
//! None of these does I/O or reads a clock.

mod entries;
mod graph;
mod pace;
mod reader;

pub use entries::{EntryChange, EntryId};
pub use graph::{DiscoveryGraph, DiscoveryLimit, DiscoveryService, DiscoveryStep};
pub use pace::ReadPace;
pub use reader::{CHUNK, DiscoveryReader, MAX_ENTRIES};
