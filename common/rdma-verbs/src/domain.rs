//! The caller's memory in a protection domain.

use std::io;
use std::sync::Arc;

use nvmeof_memory::{Buf, Region, RegionId};
use nvmeof_rdma::{RegionExposure, RemoteKey, Rights};

use crate::sys::{MemoryRegion, Piece, ProtectionDomain, Segment};

/// First I/O address of registered memory. Peers see I/O addresses and learn no addresses of
/// this process.
const NAMES: u64 = 1 << 40;
/// I/O addresses keep their offset within pages of this size, so that a device can map
/// hugepages as such.
const LARGE_PAGE: u64 = 2 << 20;

/// A protection domain and the memory registered in it for local access. Peers cannot access
/// it, except for regions that are exposed to a trusted one.
#[derive(Debug)]
pub(crate) struct Domain {
    regions: Vec<Registered>,
    pd: Arc<ProtectionDomain>,
    /// Whether windows are bound to its memory.
    windows: bool,
    /// Whether the device supports free choice of I/O addresses.
    names: bool,
}

/// A registered region, with what work requests need of it.
#[derive(Debug)]
struct Registered {
    id: RegionId,
    /// I/O address of its start.
    start: u64,
    local_key: u32,
    region: Arc<MemoryRegion>,
}

impl Domain {
    pub(crate) fn new(pd: Arc<ProtectionDomain>, windows: bool, names: bool) -> Self {
        Self {
            regions: Vec::new(),
            pd,
            windows,
            names,
        }
    }

    pub(crate) fn pd(&self) -> &Arc<ProtectionDomain> {
        &self.pd
    }

    /// Registers `region`, unless it is registered already.
    pub(crate) fn register(&mut self, region: &Region) -> io::Result<()> {
        if self.regions.iter().any(|one| one.id == region.id()) {
            return Ok(());
        }
        let named = self.name_of(region);
        let registered = MemoryRegion::local(&self.pd, region, named, self.windows)?;
        self.add(registered);
        Ok(())
    }

    /// Registers all of `region` for local access and for peers of the queue pairs in this
    /// domain, also if it is registered already.
    pub(crate) fn expose(&mut self, region: &Region) -> io::Result<RegionExposure> {
        let piece = Piece {
            offset: 0,
            len: region.len(),
            named: self.name_of(region),
        };
        #[allow(unsafe_code, reason = "the owner of the memory trusts the peer")]
        // SAFETY: the owner declared that it trusts the peer of the one queue pair in this domain
        // (`QpConfig::trusts_peer`, `Provider::expose_region`): it accesses a buffer only between
        // the message that names the buffer and its response, when no reference to it exists.
        let registered = unsafe { MemoryRegion::remote(&self.pd, region, piece, Rights::all()) }?;
        let exposure = RegionExposure {
            key: RemoteKey(registered.remote_key()),
            addr: registered.first_name(),
        };
        self.add(registered);
        Ok(exposure)
    }

    fn name_of(&self, region: &Region) -> Option<u64> {
        self.names.then(|| NAMES + region.addr() % LARGE_PAGE)
    }

    fn add(&mut self, registered: MemoryRegion) {
        self.regions.push(Registered {
            id: registered.region().id(),
            start: registered.first_name(),
            local_key: registered.local_key(),
            region: Arc::new(registered),
        });
    }

    #[inline]
    fn registered(&self, buf: &Buf) -> Option<&Registered> {
        let id = buf.region();
        self.regions.iter().find(|one| one.id == id)
    }

    /// The region of `buf`.
    pub(crate) fn region_of(&self, buf: &Buf) -> Option<&Arc<MemoryRegion>> {
        Some(&self.registered(buf)?.region)
    }

    /// The view of `buf` for a receive, also if it is empty, because some drivers refuse
    /// receives without memory.
    #[inline(always)]
    pub(crate) fn room(&self, buf: &Buf) -> Option<Segment> {
        let region = self.registered(buf)?;
        Some(Segment {
            addr: region.start.wrapping_add(buf.region_offset()),
            len: u32::try_from(buf.len()).ok()?,
            key: region.local_key,
        })
    }
}
