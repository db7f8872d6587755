//! A controller: its admin queue and its I/O queues.

use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use nvmeof_initiator_core::dhchap::HostKeys;
use nvmeof_initiator_core::multipath::{AnaLimits, AnaLog, AnaReader};
use nvmeof_initiator_core::{
    Command, ControllerEvent, ControllerInfo, QueueShape, SetupError, admin,
};
use nvmeof_memory::Buf;
use nvmeof_wire::admin::{Cns, GetFeatures, LogId, NSID_ALL, SetFeatures};
use nvmeof_wire::identify::{IdentifyController, NamespaceList};
use tokio::sync::Mutex;
use tokio::task::JoinSet;
use zerocopy::FromBytes;

use crate::deadline::Deadline;
use crate::drive::{CallResult, Shared, all};
use crate::error::{Error, Lost, LostCause, MachineError, UsageError};
use crate::host::Host;
use crate::options::ConnectOptions;
use crate::polled::{AdminQueue, Call, IoConfig, IoQueue, Work};
use crate::spread::{Availability, Spread};
use crate::transport::{Device, Route};

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
    device: Device,
    spread: Spread,
    /// One task authenticates the queues at a time.
    authenticating: Mutex<()>,
}

impl Drop for Inner {
    fn drop(&mut self) {
        for queue in &self.io {
            queue.finish();
        }
        self.admin.finish();
    }
}

/// Closes an admin queue whose set-up was not awaited.
struct FinishOnDrop<'a>(Option<&'a Shared<AdminQueue>>);

impl FinishOnDrop<'_> {
    fn disarm(mut self) {
        self.0 = None;
    }
}

impl Drop for FinishOnDrop<'_> {
    fn drop(&mut self) {
        if let Some(admin) = self.0 {
            admin.finish();
        }
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
        // A caller that gives up meanwhile leaves no controller behind.
        let unfinished = FinishOnDrop(Some(&admin));
        admin.ready().await?;
        let info = admin.with(|admin| admin.info().cloned());
        let info = info.ok_or_else(|| MachineError::internal("a controller without itself"))?;
        unfinished.disarm();
        // From here on, a drop shuts everything down.
        let mut inner = Inner {
            host,
            options,
            info,
            admin,
            io: Vec::new(),
            device: route.device().clone(),
            spread: Spread::new(0),
            authenticating: Mutex::new(()),
        };
        for qid in 1..=inner.info.io_queues {
            let queue = inner.io_queue(qid, route, start)?;
            let spin = inner.options.spin;
            inner.io.push(Shared::start(queue, start, spin)?);
        }
        inner.spread = Spread::new(inner.io.len());
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

    /// The Asymmetric Namespace Access log page, with `groups_only` without the namespaces of its
    /// groups; `None` if the controller does not report ANA states (CMIC).
    ///
    /// # Errors
    /// A command fails, or the page is invalid or changes whenever it is read.
    pub async fn ana_log(&self, groups_only: bool) -> Result<Option<AnaLog>, Error> {
        let Some(limits) = AnaLimits::of(self.identify(), groups_only) else {
            return Ok(None);
        };
        let wrong = |error| Error::setup(self.options().addr, 0, error);
        let mut reader = AnaReader::new(limits);
        while let Some(command) = reader.poll_command() {
            match self.admin_read(command).await {
                Ok(data) => reader.handle_data(&data).map_err(wrong)?,
                Err(Error::Command(failed))
                    if reader.handle_failure(failed.status).map_err(wrong)? => {}
                Err(error) => return Err(error),
            }
        }
        Ok(reader.into_log())
    }

    /// Get Features: dword 0 of the completion, and `len` bytes of data, 0 to 4096. The
    /// data of a controller that sends fewer end with zeroes.
    ///
    /// # Errors
    /// When the command fails, or `len` is out of range.
    pub async fn get_feature(&self, get: GetFeatures, len: usize) -> Result<(u32, Vec<u8>), Error> {
        let len = u32::try_from(len).unwrap_or(u32::MAX);
        let (result, data) = self.admin_call(admin::get_feature(get, len), &[]).await?;
        Ok((dword_0(result), data))
    }

    /// Set Features with `data`, 0 to 4096 bytes: dword 0 of the completion.
    ///
    /// # Errors
    /// When the command fails, or `data` is too long.
    pub async fn set_feature(&self, set: SetFeatures, data: &[u8]) -> Result<u32, Error> {
        let len = u32::try_from(data.len()).unwrap_or(u32::MAX);
        let (result, _) = self.admin_call(admin::set_feature(set, len), data).await?;
        Ok(dword_0(result))
    }

    /// Authenticates the queues again: first the admin queue, then all I/O queues at the same time.
    /// With `keys`, for example when the key of this host is changed; each queue uses the keys of
    /// its last authentication otherwise. Calls go on meanwhile. By itself, a queue is
    /// authenticated again when the controller refuses a command until then (Authentication
    /// Required, 191h).
    ///
    /// [`options`](Self::options) keeps the keys of the connection: pass the new ones for others.
    ///
    /// # Errors
    /// The first error. The queue that failed stays connected, and keeps its former keys. If it is
    /// the admin queue, so do all others. A queue that is lost ends the controller as always.
    pub async fn reauthenticate(&self, keys: Option<Arc<HostKeys>>) -> Result<(), Error> {
        let _one_at_a_time = self.inner.authenticating.lock().await;
        self.inner.admin.reauthenticate(keys.clone()).await?;
        let mut all = JoinSet::new();
        for queue in &self.inner.io {
            let (queue, keys) = (Arc::clone(queue), keys.clone());
            all.spawn(async move { queue.reauthenticate(keys).await });
        }
        let mut result = Ok(());
        while let Some(ended) = all.join_next().await {
            result = result.and(ended.map_err(MachineError::internal)?);
        }
        result
    }

    /// The host with its buffers.
    pub(crate) fn host(&self) -> &Host {
        &self.inner.host
    }

    /// The device of its route.
    pub(crate) fn device(&self) -> &Device {
        &self.inner.device
    }

    /// Sends an admin command with up to 4096 bytes of data, and returns the data.
    pub(crate) async fn admin_read(&self, command: Command) -> Result<Vec<u8>, Error> {
        let (_, data) = self.admin_call(command, &[]).await?;
        Ok(data)
    }

    /// Sends an admin command. Its buffer of up to 4096 bytes begins with `data`, the rest
    /// is zero. Returns dwords 0 and 1 of the completion, and the content of the buffer.
    pub(crate) async fn admin_call(
        &self,
        command: Command,
        data: &[u8],
    ) -> Result<(u64, Vec<u8>), Error> {
        let len = usize::try_from(command.len()).unwrap_or(usize::MAX);
        let admin = &self.inner.admin;
        let page = match len {
            0 => None,
            len => {
                let page = admin.with(|admin| admin.page(len));
                let mut page = page.ok_or(UsageError::NoBuffer { len })?;
                // The buffer had data of other commands, which a target may leave there.
                page.fill(0);
                for (to, from) in page.iter_mut().zip(data) {
                    *to = *from;
                }
                Some(page)
            }
        };
        let (result, page) = admin.call(Call::new(command.into(), page, 0)).await;
        let result = result?;
        Ok((result, page.map(|page| page.to_vec()).unwrap_or_default()))
    }

    /// Makes an I/O call. It ends at `deadline`.
    pub(crate) async fn call(
        &self,
        work: Work,
        buf: Option<Buf>,
        deadline: Option<Deadline>,
    ) -> CallResult {
        match (self.pick(), deadline) {
            (Ok(queue), None) => queue.call(Call::new(work, buf, 0)).await,
            (Ok(queue), Some(deadline)) => {
                queue.call(Call::new(work, buf, 0)).until(deadline).await
            }
            (Err(error), _) => (Err(error), buf),
        }
    }

    /// Makes I/O calls at once on one queue. They end at `deadline`. Returns their results in
    /// order.
    pub(crate) async fn call_all(
        &self,
        calls: impl Iterator<Item = (Work, Buf)>,
        deadline: Option<Deadline>,
    ) -> Vec<CallResult> {
        match self.pick() {
            Ok(queue) => {
                let call = |(work, buf)| queue.call(Call::new(work, Some(buf), 0));
                all(calls.map(call).collect(), deadline).await
            }
            Err(error) => calls
                .map(|(_, buf)| (Err(error.clone()), Some(buf)))
                .collect(),
        }
    }

    /// The I/O queue for a call.
    fn pick(&self) -> Result<&Arc<Shared<IoQueue>>, Error> {
        let Inner { io, spread, .. } = &*self.inner;
        let availability = |index: usize| match io.get(index) {
            Some(queue) => queue.availability(),
            None => Availability::Lost,
        };
        // A call on a lost queue fails with the error of the queue.
        let chosen = spread.choose(availability).unwrap_or(0);
        io.get(chosen).ok_or_else(|| {
            let text = "the controller was connected without I/O queues".to_owned();
            UsageError::Other(text).into()
        })
    }

    /// Waits until the admin queue or an I/O queue is lost, and ends the others: a host that lost
    /// one queue does not know what became of commands of the controller. Returns the reason.
    pub(crate) async fn lost(&self) -> Error {
        let queues = self.inner.io.iter().cloned();
        let mut failures: JoinSet<Error> = queues
            .map(|queue| async move { queue.failed().await })
            .collect();
        // An I/O queue first: the admin queue ends them with its reason.
        let why = tokio::select! {
            biased;
            Some(Ok(why)) = failures.join_next() => why,
            why = self.inner.admin.failed() => why,
        };
        self.abandon(&why);
        why
    }

    /// The loss of its admin queue because of `cause`.
    pub(crate) fn lost_because(&self, cause: LostCause) -> Lost {
        self.inner
            .admin
            .with(|admin| admin.connection().lost_because(cause))
    }

    /// Ends all queues because of `why`: their calls fail.
    pub(crate) fn abandon(&self, why: &Error) {
        // Before the admin queue, whose end closes them with another reason.
        for queue in &self.inner.io {
            queue.fail(why.clone());
        }
        self.inner.admin.fail(why.clone());
    }

    /// Waits for the next asynchronous event. Each event is returned once, also if several tasks
    /// or clones wait: one task should handle all events. If the future is dropped, no event is
    /// lost.
    ///
    /// # Errors
    /// The controller is lost or disconnected.
    pub async fn event(&self) -> Result<ControllerEvent, Error> {
        self.inner.admin.event().await
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

/// The low half of dwords 0 and 1.
fn dword_0(result: u64) -> u32 {
    let [a, b, c, d, ..] = result.to_le_bytes();
    u32::from_le_bytes([a, b, c, d])
}

impl Inner {
    fn io_queue(&self, qid: u16, route: &Route, start: Instant) -> Result<IoQueue, Error> {
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
            trusts_target: self.options.trusts_target,
        };
        let (addr, info) = (self.options.addr, &self.info);
        let mut queue = IoQueue::connect(route.provider()?, addr, info, config, start.elapsed())?;
        for region in self.host.buffers().regions() {
            queue.register(region)?;
        }
        Ok(queue)
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
