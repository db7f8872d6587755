//! End-to-end tests with real processes.
#![forbid(unsafe_code)]
