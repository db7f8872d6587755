//! The conformance suite, on many simulated networks and through layers.
#![allow(clippy::unwrap_used, reason = "tests")]

use crate::fabric::SimFabric;
use nvmeof_rdma_layers::{Faults, Faulty, OneIn, Sharing, Trace, TraceLog};

nvmeof_rdma_conformance::conformance_suite!(bare, SimFabric::seeds(|sim| Box::new(sim)));

// Wrappers keep every promise of the inner provider.
nvmeof_rdma_conformance::conformance_suite!(
    traced,
    (0..2).map(|seed| SimFabric::new(seed, |sim| {
        Box::new(Trace::new(sim, "inner", TraceLog::new(10)))
    }))
);
nvmeof_rdma_conformance::conformance_suite!(
    faulty_without_faults,
    (0..2).map(|seed| SimFabric::new(seed, |sim| {
        Box::new(Faulty::new(sim, Faults::default()))
    }))
);
// Late events violate no promise either.
nvmeof_rdma_conformance::conformance_suite!(
    delayed,
    (0..2).map(|seed| SimFabric::new(seed, |sim| {
        let faults = Faults {
            delay: OneIn(3),
            delay_polls: 8,
            ..Faults::default()
        };
        Box::new(Faulty::new(sim, faults))
    }))
);
// Shared receive queues, which streams do not have, added by a layer.
nvmeof_rdma_conformance::conformance_suite!(
    sharing,
    (0..3).map(|seed| SimFabric::new(seed, |sim| {
        Box::new(Sharing::new(sim, 512, 8192).unwrap())
    }))
);
