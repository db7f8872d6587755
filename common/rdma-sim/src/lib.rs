//! RDMA provider: deterministic simulation in virtual time.
#![forbid(unsafe_code)]
