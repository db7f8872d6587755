//! RDMA provider: software iWARP over TCP.
#![forbid(unsafe_code)]
