//! The conformance suite over each kind of device: work is done at once, or some polls later
//! and Reads later still; or each connection is over a link, as between two processes.

use nvmeof_rdma_conformance::conformance_suite;

use super::fabric::Device;

/// A device that does everything at once, and one that does not.
fn both(at_once: &'static str, late: &'static str) -> impl Iterator<Item = Device> {
    [at_once, late].into_iter().map(Device::new)
}

conformance_suite!(
    roce,
    both(
        "profile=roce",
        "profile=roce delay=2 read_delay=3 local_delay=2"
    )
);
conformance_suite!(
    no_windows,
    both(
        "profile=no-windows",
        "profile=no-windows delay=2 read_delay=3"
    )
);
conformance_suite!(
    iwarp,
    both("profile=iwarp", "profile=iwarp delay=2 read_delay=3")
);
conformance_suite!(roce_links, [Device::linked("profile=roce")]);
conformance_suite!(
    no_windows_links,
    [Device::linked("profile=no-windows read_delay=3")]
);
conformance_suite!(iwarp_links, [Device::linked("profile=iwarp")]);
