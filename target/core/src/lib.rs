//! What an NVM subsystem and its controllers do, without I/O.
#![forbid(unsafe_code)]
