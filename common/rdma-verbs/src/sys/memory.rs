//! Memory that devices may access: protection domains, regions, windows.

use std::io;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use nvmeof_memory::Region;
use nvmeof_rdma::{Rights, explain};

use super::raw::{ACCESS_RELAXED_ORDERING, ibv_access_flags, ibv_mr, ibv_mw, ibv_mw_type, ibv_pd};
use super::{Context, check, last_error};

/// A protection domain: queue pairs reach only memory of their own.
#[derive(Debug)]
pub(crate) struct ProtectionDomain {
    raw: NonNull<ibv_pd>,
    context: Arc<Context>,
}

// SAFETY: libibverbs may be called from any thread.
unsafe impl Send for ProtectionDomain {}
// SAFETY: as above.
unsafe impl Sync for ProtectionDomain {}

impl ProtectionDomain {
    pub(crate) fn new(context: &Arc<Context>) -> io::Result<Arc<Self>> {
        // SAFETY: the context is open.
        let raw = unsafe { (context.functions().ibv_alloc_pd)(context.raw()) };
        let raw = NonNull::new(raw).ok_or_else(last_error)?;
        Ok(Arc::new(Self {
            raw,
            context: Arc::clone(context),
        }))
    }

    pub(super) fn raw(&self) -> *mut ibv_pd {
        self.raw.as_ptr()
    }

    pub(super) fn context(&self) -> &Arc<Context> {
        &self.context
    }
}

impl Drop for ProtectionDomain {
    fn drop(&mut self) {
        // SAFETY: regions, windows and queue pairs made in it hold it, so
        // there are none any more.
        let result = unsafe { (self.context.functions().ibv_dealloc_pd)(self.raw()) };
        debug_assert!(result == 0, "a protection domain in use: {result}");
    }
}

/// The registered bytes of a region, and their I/O address.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Piece {
    /// Bytes from the start of the region to the first one.
    pub(crate) offset: u64,
    /// Number of bytes.
    pub(crate) len: usize,
    /// I/O address of the first byte for the device and for peers; `None` for the address in
    /// this process.
    pub(crate) named: Option<u64>,
}

/// Memory registered with a device.
#[derive(Debug)]
pub(crate) struct MemoryRegion {
    raw: NonNull<ibv_mr>,
    pd: Arc<ProtectionDomain>,
    /// Keeps the memory mapped.
    region: Region,
    piece: Piece,
    /// Deregistration was done or attempted.
    closed: bool,
}

// SAFETY: libibverbs may be called from any thread.
unsafe impl Send for MemoryRegion {}
// SAFETY: as above; a region's fields do not change.
unsafe impl Sync for MemoryRegion {}

/// The device's accesses to data may be reordered, which a bus needs for its full speed.
///
/// No code here depends on an order: bytes are looked at when the completion of their work
/// request was taken, or that of a later message of the same queue pair, and by nobody before.
/// Completion queues are the library's memory and are written without this attribute. Such a
/// write does not pass earlier ones, whether those have it or not: a posted request may pass
/// another one only if its own Relaxed Ordering attribute is set (PCI Express Base
/// Specification, section 2.4.1 "Transaction Ordering Rules", entries A2a and A2b). InfiniBand
/// promises no more without the attribute: the content of a receive or of an RDMA Write is
/// known only from a completion (InfiniBand Architecture, volume 1, section 9.5 "Transaction
/// Ordering").
const RELAXED: libc::c_uint = ACCESS_RELAXED_ORDERING;

impl MemoryRegion {
    /// Registers memory for local access, and for windows if `windows`.
    pub(crate) fn local(
        pd: &Arc<ProtectionDomain>,
        region: &Region,
        named: Option<u64>,
        windows: bool,
    ) -> io::Result<Self> {
        let mut access = ibv_access_flags::IBV_ACCESS_LOCAL_WRITE.0;
        if windows {
            access |= ibv_access_flags::IBV_ACCESS_MW_BIND.0;
        }
        let piece = Piece {
            offset: 0,
            len: region.len(),
            named,
        };
        Self::register(pd, region, piece, access)
    }

    /// Registers a piece of memory that a peer may reach with `rights`.
    ///
    /// # Safety
    /// Until it is closed, as far as `rights` let the peer read or write the piece, no reference
    /// exists to it and nothing else writes it, except for bytes that the peer is trusted not to
    /// access meanwhile.
    pub(crate) unsafe fn remote(
        pd: &Arc<ProtectionDomain>,
        region: &Region,
        piece: Piece,
        rights: Rights,
    ) -> io::Result<Self> {
        let access = ibv_access_flags::IBV_ACCESS_LOCAL_WRITE.0 | remote_access(rights);
        Self::register(pd, region, piece, access)
    }

    /// Registers a piece of memory for one window.
    pub(crate) fn for_window(
        pd: &Arc<ProtectionDomain>,
        region: &Region,
        piece: Piece,
    ) -> io::Result<Self> {
        let access =
            ibv_access_flags::IBV_ACCESS_LOCAL_WRITE.0 | ibv_access_flags::IBV_ACCESS_MW_BIND.0;
        Self::register(pd, region, piece, access)
    }

    fn register(
        pd: &Arc<ProtectionDomain>,
        region: &Region,
        piece: Piece,
        access: libc::c_uint,
    ) -> io::Result<Self> {
        let outside = || io::Error::from(io::ErrorKind::InvalidInput);
        let offset = usize::try_from(piece.offset).map_err(|_| outside())?;
        let end = offset.checked_add(piece.len).ok_or_else(outside)?;
        if end > region.len() {
            return Err(outside());
        }
        let addr = usize::try_from(region.addr()).map_err(|_| outside())? + offset;
        let addr = std::ptr::without_provenance_mut::<libc::c_void>(addr);
        let functions = pd.context().functions();
        let raw = match (functions.register_relaxed, piece.named) {
            // SAFETY: the bytes lie in the region, which stays mapped as long
            // as the registration. They are touched as work requests or
            // exposures say, whose callers promise that this is allowed.
            (Some(register), named) => unsafe {
                let named = named.unwrap_or(addr.addr() as u64);
                register(pd.raw(), addr, piece.len, named, access | RELAXED)
            },
            // SAFETY: as above.
            (None, Some(named)) => unsafe {
                let access = access.cast_signed();
                (functions.ibv_reg_mr_iova)(pd.raw(), addr, piece.len, named, access)
            },
            // SAFETY: as above.
            (None, None) => unsafe {
                (functions.ibv_reg_mr)(pd.raw(), addr, piece.len, access.cast_signed())
            },
        };
        let raw = NonNull::new(raw).ok_or_else(last_error)?;
        Ok(Self {
            raw,
            pd: Arc::clone(pd),
            region: region.clone(),
            piece,
            closed: false,
        })
    }

    pub(crate) fn region(&self) -> &Region {
        &self.region
    }

    pub(super) fn raw(&self) -> *mut ibv_mr {
        self.raw.as_ptr()
    }

    pub(crate) fn local_key(&self) -> u32 {
        // SAFETY: registered until this is dropped.
        unsafe { (*self.raw()).lkey }
    }

    pub(crate) fn remote_key(&self) -> u32 {
        // SAFETY: as in `local_key`.
        unsafe { (*self.raw()).rkey }
    }

    /// I/O address of the first byte.
    pub(crate) fn first_name(&self) -> u64 {
        self.name_of(self.piece.offset)
    }

    /// I/O address of the byte at `offset` of the region.
    pub(crate) fn name_of(&self, offset: u64) -> u64 {
        let start = self
            .piece
            .named
            .unwrap_or(self.region.addr() + self.piece.offset);
        start.wrapping_add(offset.wrapping_sub(self.piece.offset))
    }
}

impl MemoryRegion {
    /// Deregisters it.
    ///
    /// # Errors
    /// If the device may still access the memory. Then it stays mapped for ever.
    pub(crate) fn close(mut self) -> io::Result<()> {
        self.deregister()
    }

    fn deregister(&mut self) -> io::Result<()> {
        if std::mem::replace(&mut self.closed, true) {
            return Ok(());
        }
        // SAFETY: nothing of this side names it any more.
        let result = unsafe { (self.pd.context().functions().ibv_dereg_mr)(self.raw()) };
        unless_gone(result).inspect_err(|error| {
            let error = explain(error);
            tracing::error!("cannot deregister memory, it is leaked: {error}");
            std::mem::forget((self.region.clone(), Arc::clone(&self.pd)));
        })
    }
}

impl Drop for MemoryRegion {
    fn drop(&mut self) {
        // Callers that need the result use `close`.
        let _ = self.deregister();
    }
}

/// Result of a destroy call. A device that is gone (`EIO`) accesses nothing any more.
fn unless_gone(result: libc::c_int) -> io::Result<()> {
    check(result).or_else(|error| match error.raw_os_error() {
        Some(libc::EIO) => Ok(()),
        _ => Err(error),
    })
}

fn remote_access(rights: Rights) -> libc::c_uint {
    let mut access = 0;
    if rights.contains(Rights::REMOTE_READ) {
        access |= ibv_access_flags::IBV_ACCESS_REMOTE_READ.0;
    }
    if rights.contains(Rights::REMOTE_WRITE) {
        access |= ibv_access_flags::IBV_ACCESS_REMOTE_WRITE.0;
    }
    access
}

pub(super) fn window_access(rights: Rights) -> libc::c_uint {
    remote_access(rights)
}

/// A memory window of type 2: gives the peer of one queue pair access to part of a region, by
/// a key whose low byte is chosen anew for each bind.
#[derive(Debug)]
pub(crate) struct MemoryWindow {
    raw: NonNull<ibv_mw>,
    pd: Arc<ProtectionDomain>,
    /// Deallocation was done or attempted.
    closed: bool,
}

// SAFETY: libibverbs may be called from any thread.
unsafe impl Send for MemoryWindow {}
// SAFETY: the key, the one field that changes, is read and written atomically
// here. The driver reads it when a bind is posted, of which there is one at a
// time (`SendChain::post`).
unsafe impl Sync for MemoryWindow {}

impl MemoryWindow {
    pub(crate) fn new(pd: &Arc<ProtectionDomain>) -> io::Result<Self> {
        let Some(alloc) = pd.context().ops().alloc_mw else {
            return Err(io::Error::from(io::ErrorKind::Unsupported));
        };
        // SAFETY: the function of the context that the domain is in.
        let raw = unsafe { alloc(pd.raw(), ibv_mw_type::IBV_MW_TYPE_2) };
        let raw = NonNull::new(raw).ok_or_else(last_error)?;
        Ok(Self {
            raw,
            pd: Arc::clone(pd),
            closed: false,
        })
    }

    pub(super) fn raw(&self) -> *mut ibv_mw {
        self.raw.as_ptr()
    }

    /// The current key.
    pub(crate) fn key(&self) -> u32 {
        self.place().load(Ordering::Relaxed)
    }

    fn place(&self) -> &AtomicU32 {
        // SAFETY: allocated until this is dropped.
        let place = unsafe { &raw mut (*self.raw.as_ptr()).rkey };
        // SAFETY: as above; it is aligned, and read and written here alone.
        unsafe { AtomicU32::from_ptr(place) }
    }

    /// Records the key of a bind. Drivers read the field when the next bind is posted.
    pub(super) fn set_key(&self, key: u32) {
        self.place().store(key, Ordering::Relaxed);
    }
}

impl MemoryWindow {
    /// Deallocates it, which ends the access that it gave.
    ///
    /// # Errors
    /// If a peer may still access that memory.
    pub(crate) fn close(mut self) -> io::Result<()> {
        self.deallocate()
    }

    fn deallocate(&mut self) -> io::Result<()> {
        if std::mem::replace(&mut self.closed, true) {
            return Ok(());
        }
        let Some(dealloc) = self.pd.context().ops().dealloc_mw else {
            return Err(io::ErrorKind::Unsupported.into());
        };
        // SAFETY: allocated by the same context.
        let result = unsafe { dealloc(self.raw()) };
        unless_gone(result).inspect_err(|error| {
            let error = explain(error);
            tracing::error!("cannot free a memory window, it is leaked: {error}");
            std::mem::forget(Arc::clone(&self.pd));
        })
    }
}

impl Drop for MemoryWindow {
    fn drop(&mut self) {
        // Callers that need the result use `close`.
        let _ = self.deallocate();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicI32;

    use nvmeof_memory::{Pages, Pool, PoolLayout};

    use super::super::library::{Functions, functions};
    use super::super::raw::ibv_context;
    use super::*;

    /// Result of deregistration.
    static SAID: AtomicI32 = AtomicI32::new(0);

    unsafe extern "C" fn alloc_pd(_: *mut ibv_context) -> *mut ibv_pd {
        NonNull::dangling().as_ptr()
    }

    unsafe extern "C" fn dealloc_pd(_: *mut ibv_pd) -> libc::c_int {
        0
    }

    unsafe extern "C" fn reg_mr(
        _: *mut ibv_pd,
        _: *mut libc::c_void,
        _: usize,
        _: libc::c_int,
    ) -> *mut ibv_mr {
        NonNull::dangling().as_ptr()
    }

    unsafe extern "C" fn dereg_mr(_: *mut ibv_mr) -> libc::c_int {
        SAID.load(Ordering::Relaxed)
    }

    unsafe extern "C" fn free_devices(list: *mut *mut ibv_context) {
        // SAFETY: as the function that this replaces.
        unsafe { libc::free(list.cast()) };
    }

    /// A domain of a device that returns [`SAID`]. `None` without the libraries.
    fn domain() -> Option<Arc<ProtectionDomain>> {
        let functions = Functions {
            register_relaxed: None,
            ibv_alloc_pd: alloc_pd,
            ibv_dealloc_pd: dealloc_pd,
            ibv_reg_mr: reg_mr,
            ibv_dereg_mr: dereg_mr,
            rdma_free_devices: free_devices,
            ..*functions().ok()?
        };
        let functions = Box::leak(Box::new(functions));
        // SAFETY: the functions that would look at it are replaced.
        let context = unsafe { Context::with_functions(NonNull::dangling(), functions) };
        ProtectionDomain::new(&Arc::new(context)).ok()
    }

    fn is_mapped(addr: u64) -> bool {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        maps.lines().any(|line| {
            let range = line
                .split(' ')
                .next()
                .and_then(|range| range.split_once('-'));
            let (start, end) = range.unwrap();
            let number = |text| u64::from_str_radix(text, 16).unwrap();
            (number(start)..number(end)).contains(&addr)
        })
    }

    /// Result of deregistration, whether that is an error, and whether the memory stays
    /// mapped although its owner released it.
    #[test]
    fn memory_that_stays_registered_stays_mapped() {
        let Some(pd) = domain() else { return };
        let layout = PoolLayout {
            count: 1,
            // Large enough to be a mapping that nothing merges with.
            stride: 64 << 20,
            lead: 0,
        };
        for (message, failed) in [(0, false), (libc::EIO, false), (libc::EBUSY, true)] {
            SAID.store(message, Ordering::Relaxed);
            let pool = Pool::new(layout, Pages::Normal).unwrap();
            let region = MemoryRegion::local(&pd, pool.region(), None, false).unwrap();
            let addr = pool.region().addr();
            drop(pool);
            assert!(is_mapped(addr), "as long as it is registered");
            assert_eq!(region.close().is_err(), failed, "{message}");
            assert_eq!(is_mapped(addr), failed, "{message}");
        }
    }
}
