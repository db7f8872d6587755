//! One io_uring for one thread.
#![forbid(unsafe_code)]
