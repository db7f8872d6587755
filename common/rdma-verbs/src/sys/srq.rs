//! Shared receive queues.

use std::io;
use std::ptr::NonNull;
use std::sync::Arc;

use super::raw::{ibv_srq, ibv_srq_attr, ibv_srq_init_attr};
use super::{CompletionQueue, Context, ProtectionDomain, check, last_error};

/// A queue of receives that queue pairs share.
#[derive(Debug)]
pub(crate) struct SharedReceiveQueue {
    raw: NonNull<ibv_srq>,
    pd: Arc<ProtectionDomain>,
    /// Destruction was done or attempted.
    closed: bool,
}

/// Identifies a shared receive queue as long as it exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SrqKey(pub(super) usize);

/// The shared receive queue of a queue pair, and its completion queue.
#[derive(Clone, Debug)]
pub(crate) struct SrqHandle {
    pub(crate) srq: Arc<SharedReceiveQueue>,
    pub(crate) cq: Arc<CompletionQueue>,
}

// SAFETY: libibverbs may be called from any thread.
unsafe impl Send for SharedReceiveQueue {}
// SAFETY: as above; drivers lock their queues.
unsafe impl Sync for SharedReceiveQueue {}

impl SharedReceiveQueue {
    /// Creates one for at least `entries` receives of one segment each.
    pub(crate) fn new(pd: &Arc<ProtectionDomain>, entries: u32) -> io::Result<Arc<Self>> {
        let mut attr = ibv_srq_init_attr {
            srq_context: std::ptr::null_mut(),
            attr: ibv_srq_attr {
                max_wr: entries,
                max_sge: 1,
                srq_limit: 0,
            },
        };
        // SAFETY: the domain exists and is kept below; the structure is the
        // one that the function takes.
        let raw = unsafe { (pd.context().functions().ibv_create_srq)(pd.raw(), &raw mut attr) };
        let raw = NonNull::new(raw).ok_or_else(last_error)?;
        Ok(Arc::new(Self {
            raw,
            pd: Arc::clone(pd),
            closed: false,
        }))
    }

    pub(crate) fn key(&self) -> SrqKey {
        SrqKey(self.raw.as_ptr().addr())
    }

    /// Destroys it: afterwards the device accesses no memory for it.
    ///
    /// # Errors
    /// If the device refuses, because a queue pair still uses it.
    pub(crate) fn close(this: Arc<Self>) -> io::Result<()> {
        let Some(mut this) = Arc::into_inner(this) else {
            return Err(io::ErrorKind::ResourceBusy.into());
        };
        this.closed = true;
        match this.destroy() {
            // The device is gone.
            Err(error) if matches!(error.raw_os_error(), Some(libc::EIO | libc::ENODEV)) => Ok(()),
            result => result,
        }
    }

    fn destroy(&self) -> io::Result<()> {
        // SAFETY: called once; queue pairs made with it hold it, so there are
        // none any more, or the call fails.
        check(unsafe { (self.pd.context().functions().ibv_destroy_srq)(self.raw()) })
    }

    pub(super) fn context(&self) -> &Arc<Context> {
        self.pd.context()
    }

    pub(super) fn raw(&self) -> *mut ibv_srq {
        self.raw.as_ptr()
    }
}

impl Drop for SharedReceiveQueue {
    fn drop(&mut self) {
        if !self.closed {
            let _ = self.destroy();
        }
    }
}
