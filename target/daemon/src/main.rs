//! The NVMe over Fabrics RDMA target daemon.
#![forbid(unsafe_code)]

fn main() {}
