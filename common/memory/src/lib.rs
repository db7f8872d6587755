//! Memory regions, fixed pools and the buffers in them.
#![forbid(unsafe_code)]
