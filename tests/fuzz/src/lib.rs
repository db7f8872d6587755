//! What several fuzz targets need: a script read from the input, a stream
//! whose other end is the input, and a target to talk to.
#![forbid(unsafe_code)]

mod line;
mod script;
mod served;

pub use line::{ADDR, Line};
pub use script::Script;
pub use served::{HOST, SUBSYSTEM, served};
