//! Regions of payload buffers, and those that a trusted target can access as a whole.

use std::io;

use nvmeof_memory::{Buf, Region, RegionId};
use nvmeof_rdma::{Provider, QpId, RegionExposure, RemoteSlice};

/// The regions of one queue.
#[derive(Debug)]
pub(super) struct Pools {
    trusts_target: bool,
    /// Those that are exposed as a whole.
    exposed: Vec<(RegionId, RegionExposure)>,
    /// Those that wait for the connection.
    waiting: Vec<Region>,
}

impl Pools {
    pub(super) fn new(trusts_target: bool) -> Self {
        Self {
            trusts_target,
            exposed: Vec::new(),
            waiting: Vec::new(),
        }
    }

    /// Registers a region, once `qp` is established if the target is trusted.
    pub(super) fn add(
        &mut self,
        region: &Region,
        provider: &mut dyn Provider,
        qp: QpId,
        is_established: bool,
    ) -> io::Result<()> {
        if !self.trusts_target {
            return provider.register(region);
        }
        self.waiting.push(region.clone());
        match is_established {
            true => self.open(provider, qp),
            false => Ok(()),
        }
    }

    /// Registers the regions that waited for the connection.
    pub(super) fn open(&mut self, provider: &mut dyn Provider, qp: QpId) -> io::Result<()> {
        for region in self.waiting.drain(..) {
            if self.exposed.iter().any(|(id, _)| *id == region.id()) {
                continue;
            }
            match provider.expose_region(qp, &region)? {
                Some(exposure) => self.exposed.push((region.id(), exposure)),
                None => {
                    let provider_name = provider.name();
                    tracing::debug!(
                        provider = provider_name,
                        "exposing each buffer to the trusted target by itself"
                    );
                    provider.register(&region)?;
                }
            }
        }
        Ok(())
    }

    /// How the target accesses `buf` without an exposure of its own.
    #[inline]
    pub(super) fn slice_of(&self, buf: &Buf) -> Option<RemoteSlice> {
        let id = buf.region();
        let (_, exposure) = self.exposed.iter().find(|(region, _)| *region == id)?;
        Some(exposure.slice_of(buf))
    }
}
