//! Style checks that run as tests.
#![forbid(unsafe_code)]
