//! A program with this crate starts without rdma-core.
#![allow(clippy::panic, reason = "tests")]

use std::fs;

use nvmeof_rdma_verbs::{VerbsError, devices};

/// The libraries are loaded when they are first asked for, by name.
#[test]
fn libraries_are_loaded_late() {
    let maps = fs::read_to_string("/proc/self/maps").unwrap_or_default();
    for library in ["libibverbs", "librdmacm"] {
        assert!(
            !maps.contains(library),
            "{library} is linked to the program"
        );
    }
    match devices() {
        Ok(devices) => assert!(!devices.is_empty()),
        Err(VerbsError::Call { what, source }) => panic!("{what}: {source}"),
        // The error names what is missing.
        Err(error) => assert!(error.to_string().len() > 40, "{error}"),
    }
}
