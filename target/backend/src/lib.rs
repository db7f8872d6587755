//! Storage behind namespaces: files, block devices, RAM, null.
#![forbid(unsafe_code)]
