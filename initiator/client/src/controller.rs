//! A controller: its admin queue and its I/O queues.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use nvmeof_initiator_core::{Command, ControllerInfo, QueueShape, SetupError, admin};
use nvmeof_memory::Buf;
use nvmeof_wire::admin::{Cns, LogId, NSID_ALL};
use nvmeof_wire::identify::{IdentifyController, NamespaceList};
use zerocopy::FromBytes;

use crate::drive::{CallResult, Shared};
use crate::error::{Error, LostCause, MachineError, UsageError};
use crate::host::Host;
use crate::options::ConnectOptions;
use crate::polled::{AdminQueue, Call, IoConfig, IoQueue, Work};
use crate::transport::Route;

/// A connected controller. Clones are the same controller. When the last clone and the last
/// [`Namespace`](crate::Namespace) are dropped, it is shut down in the background.
/// [`disconnect`](Self::disconnect) shuts it down and waits.
#[derive(Clone)]
pub struct Controller {
    inner: Arc<Inner>,
}

struct Inner {
    host: Host,
    options: ConnectOptions,
    info: Arc<ControllerInfo>,
    admin: Arc<Shared<AdminQueue>>,
    io: Vec<Arc<Shared<IoQueue>>>,
    next: AtomicUsize,
}

impl Drop for Inner {
    fn drop(&mut self) {
        for queue in &self.io {
            queue.finish();
        }
        self.admin.finish();
    }
}

/// Maximum number of listed namespaces: more than any subsystem has.
const MAX_NAMESPACES: usize = 1 << 16;
/// Most bytes of one Get Log Page or Identify command.
const PAGE: usize = 4096;

impl Controller {
    pub(crate) async fn set_up(
        host: Host,
        options: ConnectOptions,
        route: &Route,
        admin: Arc<Shared<AdminQueue>>,
        start: Instant,
    ) -> Result<Self, Error> {
        admin.ready().await?;
        let info = admin.with(|admin| admin.info().cloned());
        let info = info.ok_or_else(|| MachineError::internal("a controller without itself"))?;
        // From here on, a drop shuts everything down.
        let mut inner = Inner {
            host,
            options,
            info,
            admin,
            io: Vec::new(),
            next: AtomicUsize::new(0),
        };
        for qid in 1..=inner.info.io_queues {
            let queue = inner.io_queue(qid, route, start)?;
            let spin = inner.options.spin;
            inner.io.push(Shared::start(queue, start, spin)?);
        }
        for queue in &inner.io {
            queue.ready().await?;
        }
        // When the admin queue is lost, the controller is gone: calls on its I/O queues fail
        // without waiting for their time-out.
        let (admin, io) = (Arc::clone(&inner.admin), inner.io.clone());
        tokio::spawn(async move {
            let why = admin.failed().await;
            for queue in io {
                queue.fail(why.clone());
            }
        });
        Ok(Self {
            inner: Arc::new(inner),
        })
    }

    /// Properties of the controller.
    #[must_use]
    pub fn info(&self) -> &ControllerInfo {
        &self.inner.info
    }

    /// Its Identify Controller data structure.
    #[must_use]
    pub fn identify(&self) -> &IdentifyController {
        &self.inner.info.identify
    }

    /// The options of the connection.
    #[must_use]
    pub fn options(&self) -> &ConnectOptions {
        &self.inner.options
    }

    /// A buffer for reads and writes: see [`Host::buffer`].
    ///
    /// # Errors
    /// When none is free, or `len` exceeds all.
    pub fn alloc(&self, len: usize) -> Result<Buf, Error> {
        self.inner.host.buffer(len)
    }

    /// Identifiers of the active namespaces, ascending.
    ///
    /// # Errors
    /// When a command fails.
    pub async fn namespaces(&self) -> Result<Vec<u32>, Error> {
        let mut all = Vec::new();
        loop {
            let after = all.last().copied().unwrap_or(0);
            let page = self.identify_page(Cns::ACTIVE_NAMESPACES, after).await?;
            let list = NamespaceList::read_from_bytes(&page)
                .map_err(|_| MachineError::internal("an Identify page of another length"))?;
            // Ascending only, so that an unordered list cannot cause an endless loop.
            all.extend(list.iter().filter(|nsid| *nsid > after));
            let more = list.is_full() && all.last().is_some_and(|last| *last > after);
            if !more {
                return Ok(all);
            }
            if all.len() > MAX_NAMESPACES {
                let text = format!("the list of namespaces has more than {MAX_NAMESPACES} entries");
                let addr = self.inner.options.addr;
                return Err(Error::setup(addr, 0, SetupError::InvalidResponse(text)));
            }
        }
    }

    /// The Identify data structure for `cns` and `nsid`: 4096 bytes.
    ///
    /// # Errors
    /// When the command fails.
    pub async fn identify_page(&self, cns: Cns, nsid: u32) -> Result<Vec<u8>, Error> {
        self.admin_read(admin::identify(cns, nsid)).await
    }

    /// The first `len` bytes of log page `lid`, of the controller or of a namespace.
    ///
    /// # Errors
    /// When a command fails.
    pub async fn log_page(
        &self,
        lid: LogId,
        nsid: Option<u32>,
        len: usize,
    ) -> Result<Vec<u8>, Error> {
        let nsid = nsid.unwrap_or(NSID_ALL);
        let mut page = Vec::new();
        while page.len() < len {
            let piece = (len - page.len()).min(PAGE);
            let offset = u64::try_from(page.len()).unwrap_or(u64::MAX);
            let piece = u32::try_from(piece).unwrap_or(u32::MAX);
            let command = admin::log_page(lid, nsid, offset, piece);
            page.extend_from_slice(&self.admin_read(command).await?);
        }
        page.truncate(len);
        Ok(page)
    }

    /// Sends an admin command with up to 4096 bytes of data, and returns the data.
    pub(crate) async fn admin_read(&self, command: Command) -> Result<Vec<u8>, Error> {
        let len = usize::try_from(command.len()).unwrap_or(usize::MAX);
        let admin = &self.inner.admin;
        let page = match len {
            0 => None,
            len => {
                let page = admin.with(|admin| admin.page(len));
                Some(page.ok_or(UsageError::NoBuffer { len })?)
            }
        };
        let (result, page) = admin.call(Call::new(command.into(), page, 0)).await;
        result?;
        Ok(page.map(|page| page.to_vec()).unwrap_or_default())
    }

    /// Makes an I/O call on the next queue.
    pub(crate) async fn call(&self, work: Work, buf: Option<Buf>) -> CallResult {
        match self.pick() {
            Ok(queue) => queue.call(Call::new(work, buf, 0)).await,
            Err(error) => (Err(error), buf),
        }
    }

    /// The next connected I/O queue, in round-robin order.
    fn pick(&self) -> Result<&Arc<Shared<IoQueue>>, Error> {
        let io = &self.inner.io;
        let index = self.inner.next.fetch_add(1, Ordering::Relaxed);
        let connected = |queue: &&Arc<Shared<IoQueue>>| queue.with(|queue| queue.is_ready());
        let mut from = io
            .iter()
            .cycle()
            .skip(index % io.len().max(1))
            .take(io.len());
        if let Some(queue) = from.find(connected) {
            return Ok(queue);
        }
        match io.first() {
            // A call on it fails with the error of the queue.
            Some(queue) => Ok(queue),
            None => {
                let text = "the controller was connected without I/O queues".to_owned();
                Err(UsageError::Other(text).into())
            }
        }
    }

    /// The error that ended the controller, if any.
    #[must_use]
    pub fn error(&self) -> Option<Error> {
        self.inner.admin.with(|admin| admin.error().cloned())
    }

    /// Shuts the controller down and closes all queues. Calls in progress fail. Buffers stay
    /// valid.
    pub async fn disconnect(self) {
        for queue in &self.inner.io {
            queue.finish();
        }
        for queue in &self.inner.io {
            queue.closed().await;
        }
        self.inner.admin.finish();
        if let Some(error) = self.inner.admin.closed().await
            && !matches!(&error, Error::Lost(lost) if matches!(lost.cause, LostCause::Local))
        {
            tracing::debug!(%error, "controller was lost before its shutdown");
        }
    }
}

impl Inner {
    fn io_queue(&self, qid: u16, route: &Route, start: Instant) -> Result<IoQueue, Error> {
        let mut provider = route.provider()?;
        for region in self.host.buffers().regions() {
            provider.register(region).map_err(MachineError::register)?;
        }
        let config = IoConfig {
            names: self
                .options
                .admin_config(&self.host.config().identity)
                .setup
                .names,
            queue: QueueShape {
                qid,
                size: self.options.queue_size,
                flow_control: true,
            },
            command_timeout: self.options.command_timeout,
            connect_timeout: self.options.connect_timeout,
        };
        IoQueue::connect(
            provider,
            self.options.addr,
            &self.info,
            config,
            start.elapsed(),
        )
    }
}

impl fmt::Debug for Controller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Controller")
            .field("addr", &self.inner.options.addr)
            .field("subnqn", &self.inner.options.subnqn)
            .field("cntlid", &self.inner.info.cntlid)
            .field("io_queues", &self.inner.io.len())
            .finish_non_exhaustive()
    }
}
