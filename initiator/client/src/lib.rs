//! NVMe over Fabrics RDMA initiator for embedding in programs.
#![forbid(unsafe_code)]
