//! A target with one namespace on a disk without faults.

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use nvmeof_rdma_layers::OneIn;
use nvmeof_target_core::{Fabric, Limits, Model, NamespaceSpec, PortSpec, SubsystemSpec};

use crate::disk::Temper;
use crate::host::SUBNQN;
use crate::plan::DiskShape;

pub(crate) const TARGET: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
pub(crate) const PORT: u16 = 4420;
pub(crate) const BLOCK: u32 = 4096;

/// Its model, with a namespace of so many blocks.
pub(crate) fn model(limits: Limits, blocks: u64, readonly: bool) -> Model {
    let port = PortSpec::new(TARGET, PORT, vec![Fabric::Iwarp.into()]);
    let namespace = NamespaceSpec {
        nsid: 1,
        blocks,
        block_size: BLOCK,
        store: 0,
        readonly,
        ..NamespaceSpec::default()
    };
    let subsystem = SubsystemSpec {
        nqn: SUBNQN.to_owned(),
        allow_any_host: true,
        namespaces: vec![namespace],
        ..SubsystemSpec::default()
    };
    Model::build(limits, &[port], &[subsystem]).unwrap()
}

/// Its disk, which has room for so many commands.
pub(crate) fn disk(blocks: u64, latency: Duration, room: usize) -> (DiskShape, Temper) {
    let shape = DiskShape {
        blocks,
        block_size: BLOCK.into(),
        deallocate: false,
        volatile: false,
        forgets: false,
        alignment: 512,
        scratch: false,
    };
    let temper = Temper {
        latency: latency..=latency,
        stalls: (OneIn(0), Duration::ZERO),
        eio: OneIn(0),
        enospc: OneIn(0),
        room,
    };
    (shape, temper)
}
