//! What programs see of devices, by the functions of the libraries.

mod bench;
mod completions;
mod connections;
mod memory;
mod programs;
mod queues;
