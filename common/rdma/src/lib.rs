//! The verbs-like contract that every RDMA provider keeps.
#![forbid(unsafe_code)]
