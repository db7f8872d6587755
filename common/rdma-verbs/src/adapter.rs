//! RDMA devices in use: what each can do, its completion queues, and what its
//! queue pairs share.

use std::io;
use std::sync::Arc;

use nix::sys::resource::{Resource, getrlimit};
use nvmeof_memory::Region;
use nvmeof_rdma::SrqId;

use crate::VerbsError;
use crate::domain::Domain;
use crate::shared::Shared;
use crate::siw::{self, Blocker};
use crate::sys::{
    CmId, CompletionChannel, CompletionQueue, Context, ContextKey, DeviceAttr, Drawn, MemoryWindow,
    ProtectionDomain, SharedReceiveQueue, set_nonblocking,
};
use crate::windows::Windows;

/// Which adapter of a provider.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct AdapterId(pub(crate) u32);

/// Completions a queue has room for, unless one queue pair needs more.
const QUEUE_SIZE: u32 = 8192;

/// `RXE_VENDOR_ID` of the kernel's soft-RoCE.
const RXE: u32 = 0x00ff_ffff;

/// One device in use. What it owns goes before what that was made from: the
/// fields stand in that order.
#[derive(Debug)]
pub(crate) struct Adapter {
    pub(crate) name: String,
    pub(crate) attr: DeviceAttr,
    /// Longest message in bytes.
    pub(crate) max_message: u32,
    /// Windows not in use.
    pub(crate) windows: Windows,
    /// The one domain of devices with windows. Others have one for each queue
    /// pair, so that a key opens memory on its own queue pair alone.
    pub(crate) shared: Option<Domain>,
    /// The queue that receives may be drawn from, while there is one.
    pub(crate) receives: Option<Shared>,
    pub(crate) queues: Vec<Queue>,
    /// Keeps a driver from tripping.
    _blocker: Option<Blocker>,
    pub(crate) channel: Arc<CompletionChannel>,
    /// Bound to an address of the device and to nothing else: tells when the
    /// device goes, and keeps it open.
    pub(crate) anchor: Option<CmId>,
    pub(crate) context: Arc<Context>,
    /// Queue pairs.
    pub(crate) users: u32,
    /// The device is going: nothing new on it.
    pub(crate) gone: bool,
}

/// A completion queue that many queue pairs share.
#[derive(Debug)]
pub(crate) struct Queue {
    pub(crate) cq: Arc<CompletionQueue>,
    size: u32,
    used: u32,
    /// It is not used any more.
    pub(crate) failed: bool,
    /// The next completion raises an event.
    pub(crate) armed: bool,
    /// For shared receives and nothing else.
    pub(crate) shared: bool,
}

impl Adapter {
    pub(crate) fn open(key: ContextKey) -> io::Result<Self> {
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
            // A device may have windows that its library cannot use.
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

    /// Whether every window is used once, over a region of its own. The kernel
    /// of `rxe` checks the region's range and not the window's, and fails as a
    /// whole when a window is invalidated twice.
    pub(crate) fn windows_once(&self) -> bool {
        self.is_rxe()
    }

    /// Whether a message may be sent again because there was no receive for it.
    /// The kernel of `rxe` then does local work that was queued behind it a
    /// second time, such as a registration, which fails and stops the queue
    /// pair. Who has it here has it at the other end, too.
    pub(crate) fn retries_well(&self) -> bool {
        !self.is_rxe()
    }

    /// A domain for one queue pair, where it does not use the shared one.
    pub(crate) fn own_domain(&self, regions: &[Region]) -> Result<Option<Domain>, VerbsError> {
        if self.shared.is_some() {
            return Ok(None);
        }
        let pd = ProtectionDomain::new(&self.context).map_err(|source| VerbsError::Call {
            what: "making a protection domain",
            source,
        })?;
        // An iWARP device may ignore the name it is asked to use: siw does.
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

    /// Why memory cannot be registered, and what to do.
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

    /// Finds room for `need` completions: returns the number of the queue.
    pub(crate) fn claim(&mut self, need: u32) -> io::Result<usize> {
        let size = need.max(QUEUE_SIZE);
        self.claim_kind(need, size, false)
    }

    fn claim_kind(&mut self, need: u32, size: u32, shared: bool) -> io::Result<usize> {
        let fits = |queue: &Queue| {
            queue.shared == shared && !queue.failed && queue.size - queue.used >= need
        };
        let index = match self.queues.iter().position(fits) {
            Some(index) => index,
            None => self.add_queue(need, size, shared)?,
        };
        if let Some(queue) = self.queues.get_mut(index) {
            queue.used += need;
        }
        Ok(index)
    }

    fn add_queue(&mut self, need: u32, size: u32, shared: bool) -> io::Result<usize> {
        if need > self.attr.max_cqe {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "a queue pair of this size needs more completions than the device has",
            ));
        }
        let size = size.min(self.attr.max_cqe);
        let index = self.queues.len();
        let cq = CompletionQueue::new(&self.channel, size, index)?;
        self.queues.push(Queue {
            cq,
            size,
            used: 0,
            failed: false,
            armed: false,
            shared,
        });
        Ok(index)
    }

    /// Makes the shared receive queue, named `id`, with room for about
    /// `entries`.
    ///
    /// An iWARP device ends a connection whose message finds the queue empty
    /// (RFC 5041, section 7.1): no more queue pairs could draw from it than it
    /// has receives for, and nothing would be saved. Without a domain of all
    /// queue pairs a receive would have to be registered in many.
    pub(crate) fn share_receives(&mut self, id: SrqId, entries: u32) -> io::Result<&mut Shared> {
        let most = self.attr.max_srq_wr.min(self.attr.max_cqe);
        let (Some(domain), false) = (&self.shared, self.attr.iwarp || most == 0) else {
            return Err(io::ErrorKind::Unsupported.into());
        };
        let entries = entries.clamp(1, most);
        let srq = SharedReceiveQueue::new(domain.pd(), entries)?;
        // All of them may complete before one is looked at. On a queue of
        // their own, because they are named otherwise than other work.
        let queue = self.claim_kind(entries, entries, true)?;
        let waits = self.retries_well();
        Ok(self
            .receives
            .insert(Shared::new(id, srq, entries, queue, waits)))
    }

    /// The shared receive queue goes, because no queue pair draws from it.
    pub(crate) fn drop_receives(&mut self) {
        if let Some(receives) = self.receives.take() {
            self.release(receives.queue, receives.is.entries);
            receives.close();
        }
    }

    /// Whether nothing is heard any more of receives from the shared queue.
    pub(crate) fn lost_receives(&self) -> bool {
        let number = self.receives.as_ref().map(|receives| receives.queue);
        let queue = number.and_then(|number| self.queues.get(number));
        queue.is_some_and(|queue| queue.failed)
    }

    /// What a queue pair that draws is made with.
    pub(crate) fn drawn(&self) -> Option<Drawn> {
        let receives = self.receives.as_ref()?;
        Some(Drawn {
            srq: Arc::clone(receives.srq()),
            cq: Arc::clone(&self.queues.get(receives.queue)?.cq),
        })
    }

    /// Gives back room. No completion that used it may still be in the queue.
    pub(crate) fn release(&mut self, index: usize, need: u32) {
        if let Some(queue) = self.queues.get_mut(index) {
            queue.used = queue.used.saturating_sub(need);
        }
    }
}
