//! What several fuzz targets need: a script read from the input, a stream
//! whose other end is the input, a target to talk to, and our side of a connection
//! through shared memory.
#![forbid(unsafe_code)]

mod line;
mod script;
mod served;
pub mod shm;

pub use line::{ADDR, Line};
pub use script::Script;
pub use served::{CLOSED, HIDDEN, HOST, READ_ONLY, SUBSYSTEM, other, port, served};
