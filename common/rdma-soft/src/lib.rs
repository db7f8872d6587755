//! Software RDMA verbs without I/O: keys, queue pairs, iWARP.
#![forbid(unsafe_code)]
