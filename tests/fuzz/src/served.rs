//! A target with one subsystem for everybody, one for a friend and the
//! discovery subsystem.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::LazyLock;

use nvmeof_target_core::{Fabric, Limits, Model, NamespaceSpec, PortSpec, SubsystemSpec, Target};

/// The subsystem that everybody may use.
pub const SUBSYSTEM: &str = "nqn.2026-11.org.example:disk";
/// A host.
pub const HOST: &str = "nqn.2026-11.org.example:host";

static MODEL: LazyLock<Model> = LazyLock::new(|| {
    let traddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
    let port = PortSpec::new(traddr, 4420, vec![Fabric::Iwarp.into()]);
    let open = SubsystemSpec {
        nqn: SUBSYSTEM.into(),
        allow_any_host: true,
        namespaces: vec![namespace(1, 512, false), namespace(3, 4096, true)],
        ..SubsystemSpec::default()
    };
    let closed = SubsystemSpec {
        nqn: "nqn.2026-11.org.example:closed".into(),
        allowed_hosts: vec!["nqn.2026-11.org.example:friend".into()],
        namespaces: vec![namespace(1, 512, false)],
        ..SubsystemSpec::default()
    };
    let limits = Limits {
        io_queues: 4,
        controllers: 3,
        ..Limits::default()
    };
    Model::build(limits, &[port], &[open, closed]).expect("the description is right")
});

fn namespace(nsid: u32, block_size: u32, readonly: bool) -> NamespaceSpec {
    NamespaceSpec {
        nsid,
        blocks: 1000,
        block_size,
        readonly,
        state: nvmeof_target_core::NamespaceState::Ready,
        disk: nsid,
        deallocate: true,
        write_zeroes: true,
        volatile_cache: true,
        ..NamespaceSpec::default()
    }
}

/// A target that nobody talked to.
#[must_use]
pub fn served() -> Target {
    Target::new(MODEL.clone())
}
