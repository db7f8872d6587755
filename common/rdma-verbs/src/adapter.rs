//! RDMA devices in use: limits, completion queues, and state shared by queue pairs.

use std::io;
use std::sync::Arc;

use nix::sys::resource::{Resource, getrlimit};
use nvmeof_memory::Region;
use nvmeof_rdma::SrqId;

use crate::VerbsError;
use crate::arming::Arming;
use crate::domain::Domain;
use crate::shared::Shared;
use crate::siw::{self, Blocker};
use crate::sys::{
    CmId, CompletionChannel, CompletionQueue, Context, ContextKey, DeviceAttr, MemoryWindow,
    ProtectionDomain, SharedReceiveQueue, SrqHandle, set_nonblocking,
};
use crate::windows::Windows;

/// Identifier of an adapter of a provider.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct AdapterId(pub(crate) u32);

/// Size of a completion queue, unless one queue pair needs more.
const QUEUE_SIZE: u32 = 8192;

/// `RXE_VENDOR_ID` of the kernel's soft-RoCE.
const RXE: u32 = 0x00ff_ffff;

/// A device in use. Fields are dropped in this order: each before the object that it was
/// created from.
#[derive(Debug)]
pub(crate) struct Adapter {
    pub(crate) name: String,
    pub(crate) attr: DeviceAttr,
    /// Longest message in bytes.
    pub(crate) max_message: u32,
    /// Free memory windows.
    pub(crate) windows: Windows,
    /// The protection domain of devices with windows. Others have one for each queue pair, so
    /// that a key is valid on its own queue pair only.
    pub(crate) shared: Option<Domain>,
    /// The shared receive queue, if there is one.
    pub(crate) receives: Option<Shared>,
    pub(crate) queues: Vec<Queue>,
    /// Completion vector of the queues.
    vector: usize,
    /// Workaround for a fault of the `siw` driver.
    _blocker: Option<Blocker>,
    pub(crate) channel: Arc<CompletionChannel>,
    /// Bound to an address of the device only: reports when the device is removed, and keeps
    /// it open.
    pub(crate) anchor: Option<CmId>,
    pub(crate) context: Arc<Context>,
    /// Number of queue pairs.
    pub(crate) users: u32,
    /// The device is being removed: it gets no new queue pairs.
    pub(crate) gone: bool,
}

/// A completion queue that many queue pairs share.
#[derive(Debug)]
pub(crate) struct Queue {
    pub(crate) cq: Arc<CompletionQueue>,
    size: u32,
    used: u32,
    /// It failed and is not used any more.
    pub(crate) failed: bool,
    pub(crate) arming: Arming,
    /// The last attempt to arm it failed.
    pub(crate) arm_fails: bool,
}

impl Adapter {
    pub(crate) fn open(key: ContextKey, vector: usize) -> io::Result<Self> {
        let context = Context::of(key)?;
        let attr = context.attr()?;
        let channel = CompletionChannel::new(&context)?;
        set_nonblocking(channel.fd())?;
        set_nonblocking(context.async_fd())?;
        let blocker = if attr.vendor_id == siw::VENDOR {
            Some(siw::block(key, &channel)?)
        } else {
            None
        };
        let shared = if attr.windows {
            let pd = ProtectionDomain::new(&context)?;
            // A device may have windows that its library does not support.
            let usable = MemoryWindow::new(&pd).is_ok();
            usable.then(|| Domain::new(pd, true, true))
        } else {
            None
        };
        Ok(Self {
            name: context.name(),
            max_message: context.max_message(attr.ports)?,
            windows: Windows::new(attr.max_mw),
            shared,
            receives: None,
            queues: Vec::new(),
            vector,
            _blocker: blocker,
            channel,
            anchor: None,
            attr,
            context,
            users: 0,
            gone: false,
        })
    }

    pub(crate) fn key(&self) -> ContextKey {
        self.context.key()
    }

    pub(crate) fn is_rxe(&self) -> bool {
        self.attr.vendor_id == RXE
    }

    /// Whether every window is used once, with a region of its own. The kernel of `rxe`
    /// checks the range of the region and not of the window, and crashes when a window is
    /// invalidated twice.
    pub(crate) fn windows_once(&self) -> bool {
        self.is_rxe()
    }

    /// Whether a message without a receive may be retransmitted safely. The kernel of `rxe`
    /// then repeats local work that was queued behind it, such as a registration, which fails
    /// and stops the queue pair. The peer is assumed to use the same kind of device.
    pub(crate) fn retries_well(&self) -> bool {
        !self.is_rxe()
    }

    /// Creates a domain for one queue pair, if it does not use the shared one. One whose peer is
    /// trusted does not: regions that are exposed to that peer are in no domain of others.
    pub(crate) fn own_domain(
        &self,
        regions: &[Region],
        trusts_peer: bool,
    ) -> Result<Option<Domain>, VerbsError> {
        if self.shared.is_some() && !trusts_peer {
            return Ok(None);
        }
        let pd = ProtectionDomain::new(&self.context).map_err(|source| VerbsError::Call {
            what: "creating a protection domain",
            source,
        })?;
        // An iWARP device may ignore the requested I/O address: siw does.
        let mut domain = Domain::new(pd, false, !self.attr.iwarp);
        for region in regions {
            domain
                .register(region)
                .map_err(|error| self.not_registered(error))?;
        }
        Ok(Some(domain))
    }

    /// Registers a region in the shared domain.
    pub(crate) fn register(&mut self, region: &Region) -> Result<(), VerbsError> {
        let Some(shared) = &mut self.shared else {
            return Ok(());
        };
        let result = shared.register(region);
        result.map_err(|error| self.not_registered(error))
    }

    /// The error for memory that cannot be registered, with its remedy.
    pub(crate) fn not_registered(&self, source: io::Error) -> VerbsError {
        let limit = getrlimit(Resource::RLIMIT_MEMLOCK).map_or(u64::MAX, |(soft, _)| soft);
        let memory = source.raw_os_error() == Some(libc::ENOMEM);
        if memory && limit != u64::MAX {
            return VerbsError::MemoryLock {
                device: self.name.clone(),
                limit,
            };
        }
        VerbsError::Call {
            what: "registering memory with the RDMA device",
            source,
        }
    }

    /// Reserves `need` completions: returns the number of the queue.
    pub(crate) fn claim(&mut self, need: u32) -> io::Result<usize> {
        let fits = |queue: &Queue| !queue.failed && queue.size - queue.used >= need;
        let index = match self.queues.iter().position(fits) {
            Some(index) => index,
            None => self.add_queue(need)?,
        };
        if let Some(queue) = self.queues.get_mut(index) {
            queue.used += need;
        }
        Ok(index)
    }

    fn add_queue(&mut self, need: u32) -> io::Result<usize> {
        if need > self.attr.max_cqe {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "a queue pair of this size needs more completions than the device supports",
            ));
        }
        let size = need.max(QUEUE_SIZE).min(self.attr.max_cqe);
        let index = self.queues.len();
        let cq = CompletionQueue::new(&self.channel, size, index, self.vector)?;
        self.queues.push(Queue {
            cq,
            size,
            used: 0,
            failed: false,
            arming: Arming::default(),
            arm_fails: false,
        });
        Ok(index)
    }

    /// Creates the shared receive queue `id`, with about `entries` entries.
    ///
    /// An iWARP device ends a connection whose message finds the queue empty (RFC 5041,
    /// section 7.1): no more queue pairs could use it than it has receives for, and nothing
    /// would be saved. Without a domain of all queue pairs a receive would have to be
    /// registered in many.
    pub(crate) fn share_receives(&mut self, id: SrqId, entries: u32) -> io::Result<&mut Shared> {
        let most = self.attr.max_srq_wr.min(self.attr.max_cqe);
        let (Some(domain), false) = (&self.shared, self.attr.iwarp || most == 0) else {
            return Err(io::ErrorKind::Unsupported.into());
        };
        let entries = entries.clamp(1, most);
        let srq = SharedReceiveQueue::new(domain.pd(), entries)?;
        // All of them may complete before the queue is polled. Work of queue pairs completes on
        // the same queue as far as there is room: one poll finds both.
        let queue = self.claim(entries)?;
        let waits = self.retries_well();
        Ok(self
            .receives
            .insert(Shared::new(id, srq, entries, queue, waits)))
    }

    /// Destroys the shared receive queue, which no queue pair uses.
    pub(crate) fn drop_receives(&mut self) {
        if let Some(receives) = self.receives.take() {
            self.release(receives.queue, receives.is.entries);
            receives.close();
        }
    }

    /// Whether the completion queue of the shared receives has failed.
    pub(crate) fn lost_receives(&self) -> bool {
        let number = self.receives.as_ref().map(|receives| receives.queue);
        let queue = number.and_then(|number| self.queues.get(number));
        queue.is_some_and(|queue| queue.failed)
    }

    /// The parts for a queue pair that uses the shared receive queue.
    pub(crate) fn srq_handle(&self) -> Option<SrqHandle> {
        let receives = self.receives.as_ref()?;
        Some(SrqHandle {
            srq: Arc::clone(receives.srq()),
            cq: Arc::clone(&self.queues.get(receives.queue)?.cq),
        })
    }

    /// Releases reserved completions. The queue must not contain any of them.
    pub(crate) fn release(&mut self, index: usize, need: u32) {
        if let Some(queue) = self.queues.get_mut(index) {
            queue.used = queue.used.saturating_sub(need);
        }
    }
}
