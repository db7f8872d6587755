//! Shared parts of fuzz targets: a script that is read from the input, a stream whose other
//! end is the input, an NVMe target, and the local side of a connection through shared
//! memory.
#![forbid(unsafe_code)]

mod line;
mod script;
mod served;
pub mod shm;

pub use line::{ADDR, Line};
pub use script::Script;
pub use served::{CLOSED, HIDDEN, HOST, READ_ONLY, SUBSYSTEM, other, port, served};
