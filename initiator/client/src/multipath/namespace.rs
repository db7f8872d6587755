//! A namespace over all paths of its subsystem.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use nvmeof_initiator_core::FenceMethod;
use nvmeof_initiator_core::multipath::{
    Effect, Outcome, Path, PathAccess, PathPolicy, PathSelector, RetryPolicy, RetryStep,
};
use nvmeof_initiator_core::{Range, SetupError};
use nvmeof_memory::Buf;
use nvmeof_wire::admin::Cns;
use nvmeof_wire::identify::descriptors::NamespaceIdentifiers;
use nvmeof_wire::identify::{DescriptorList, IdentifyNamespace};
use nvmeof_wire::log::ana::AnaState;
use tokio::sync::watch;
use zerocopy::FromBytes;

use super::Inner;
use super::connection::Connection;
use crate::error::{Error, Lost, LostCause, MachineError, UsageError};
use crate::failed::Failed;
use crate::geometry::Geometry;
use crate::namespace::{Namespace, WriteOptions, ZeroOptions};

/// A namespace over all paths of its subsystem. Clones share it.
///
/// A call ends when its command succeeds, when the command fails with an error that is not retried,
/// or when no path may become available. If the future of a call is dropped, the command may still
/// be executed.
#[derive(Clone)]
pub struct MultipathNamespace {
    inner: Arc<Inner>,
    head: Arc<Head>,
}

/// The namespace as it was when it was opened. Connections over which it is another one are not
/// used.
pub(super) struct Head {
    /// Differs from that of every other head.
    id: u64,
    geometry: Geometry,
    identify: Box<IdentifyNamespace>,
    identifiers: NamespaceIdentifiers,
    retry: RetryPolicy,
    choice: Mutex<Choice>,
}

/// A path to the namespace.
#[derive(Clone)]
struct Usable {
    connection: Arc<Connection>,
    namespace: Arc<Namespace>,
    access: PathAccess,
    /// When the path is preferred to others.
    settled_at: Duration,
}

/// The paths as they were at the last change, and the choice among them. Without a change, a
/// choice allocates no memory.
struct Choice {
    /// The change of which `paths` are the result.
    version: Option<u64>,
    paths: Vec<Usable>,
    described: Vec<Path>,
    selector: PathSelector,
}

impl Choice {
    fn new(policy: PathPolicy) -> Self {
        Self {
            version: None,
            paths: Vec::new(),
            described: Vec::new(),
            selector: PathSelector::new(policy),
        }
    }

    /// The path for the next command, another one than `avoid` if there is one.
    fn choose(&mut self, avoid: Option<&Arc<Connection>>, now: Duration) -> Option<Usable> {
        let other = avoid.and_then(|avoid| self.select(Some(avoid), now));
        other.or_else(|| self.select(None, now))
    }

    fn select(&mut self, without: Option<&Arc<Connection>>, now: Duration) -> Option<Usable> {
        let describe = |usable: &Usable| {
            let connection = &usable.connection;
            let is_avoided = without.is_some_and(|one| Arc::ptr_eq(one, connection));
            let access = match is_avoided || connection.is_lost() {
                true => PathAccess::None,
                false => usable.access,
            };
            Path {
                access,
                is_settled: now >= usable.settled_at,
                outstanding: connection.outstanding.load(Ordering::Relaxed),
                latency: connection.latency(now),
                distance: LOCAL,
            }
        };
        self.described.clear();
        self.described.extend(self.paths.iter().map(describe));
        let at = self.selector.select(&self.described)?;
        self.paths.get(at).cloned()
    }
}

/// A call that can be made over each path.
#[derive(Clone, Copy)]
enum Call<'a> {
    Read(u64),
    Write(u64, WriteOptions),
    Compare(u64),
    Flush,
    WriteZeroes(u64, u64, ZeroOptions),
    Deallocate(&'a [Range]),
}

/// The result of a call, with its buffer.
type Ended = (Result<(), Error>, Option<Buf>);

impl Call<'_> {
    fn effect(self) -> Effect {
        match self {
            Self::Read(_) | Self::Compare(_) | Self::Flush => Effect::None,
            Self::Write(..) | Self::WriteZeroes(..) | Self::Deallocate(_) => Effect::Idempotent,
        }
    }

    async fn make(self, namespace: &Namespace, buf: Option<Buf>) -> Ended {
        let ended = match (self, buf) {
            (Self::Read(lba), Some(buf)) => namespace.read(lba, buf).await,
            (Self::Write(lba, options), Some(buf)) => namespace.write(lba, buf, options).await,
            (Self::Compare(lba), Some(buf)) => namespace.compare(lba, buf).await,
            (Self::Flush, buf) => return (namespace.flush().await, buf),
            (Self::WriteZeroes(lba, count, options), buf) => {
                return (namespace.write_zeroes(lba, count, options).await, buf);
            }
            (Self::Deallocate(ranges), buf) => return (namespace.deallocate(ranges).await, buf),
            (_, None) => {
                let error = MachineError::internal("a transfer without its buffer");
                return (Err(error.into()), None);
            }
        };
        match ended {
            Ok(buf) => (Ok(()), Some(buf)),
            Err(Failed { error, buf }) => (Err(error), buf),
        }
    }
}

/// What happened to a call until now.
#[derive(Default)]
struct Tries {
    /// Completions with an error.
    retries: u32,
    /// The path that refused it the last time.
    avoid: Option<Arc<Connection>>,
    /// The path that was lost while it may have been executed.
    lost: Option<Arc<Lost>>,
}

impl Tries {
    /// The error of a call that cannot be made again.
    fn ended_with(&self, error: Error) -> Error {
        match &self.lost {
            Some(lost) => Error::UnknownOutcome(Arc::clone(lost)),
            None => error,
        }
    }
}

/// How long a call waits for a change before it looks at the paths again.
const LONGEST_WAIT: Duration = Duration::from_secs(1);

/// The pause before the first retry on a path without an alternative; it grows with each.
const AGAIN: Duration = Duration::from_millis(100);

/// The local NUMA distance. The distance of a path is not known.
const LOCAL: u32 = 10;

/// Counts the bytes of a call until it ends.
struct Outstanding<'a>(&'a AtomicU64, u64);

impl<'a> Outstanding<'a> {
    fn new(bytes: &'a AtomicU64, count: u64) -> Self {
        bytes.fetch_add(count, Ordering::Relaxed);
        Self(bytes, count)
    }
}

impl Drop for Outstanding<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(self.1, Ordering::Relaxed);
    }
}

impl Head {
    pub(super) fn id(&self) -> u64 {
        self.id
    }

    /// Forgets the paths until the next command: they keep their connections.
    pub(super) fn clear(&self) {
        let paths = {
            let mut choice = self.lock();
            choice.version = None;
            std::mem::take(&mut choice.paths)
        };
        drop(paths);
    }

    fn lock(&self) -> MutexGuard<'_, Choice> {
        self.choice.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Namespace `nsid` as `connection` has it.
    async fn of(
        connection: &Connection,
        nsid: u32,
        id: u64,
        policy: PathPolicy,
    ) -> Result<Self, Error> {
        let namespace = connection.controller.namespace(nsid).await?;
        Ok(Self {
            id,
            geometry: namespace.geometry(),
            identify: Box::new(*namespace.identify()),
            identifiers: identifiers(&namespace).await?,
            retry: RetryPolicy::of(connection.controller.identify()),
            choice: Mutex::new(Choice::new(policy)),
        })
    }

    /// Checks whether the namespace is the same one over `connection`, which remembers the result.
    ///
    /// # Errors
    /// That of a command which may succeed later.
    pub(super) async fn check(&self, connection: &Connection) -> Result<(), Error> {
        let generation = connection.generation();
        let checked = match connection.controller.namespace(self.geometry.nsid).await {
            Ok(namespace) => {
                let compared = self.compare(&namespace).await;
                compared.map(|()| Arc::new(namespace))
            }
            Err(error) => Err(error),
        };
        if let Err(error) = &checked {
            if !is_lasting(error) {
                return Err(error.clone());
            }
            let addr = connection.controller.options().addr;
            tracing::warn!(%addr, %error, "path not used for a namespace");
        }
        if !connection.remember(self.id, checked, generation) {
            connection.check_again();
        }
        Ok(())
    }

    /// Checks that `namespace`, of another controller, is the same one.
    async fn compare(&self, namespace: &Namespace) -> Result<(), Error> {
        let addr = namespace.controller().options().addr;
        let nsid = self.geometry.nsid;
        let wrong = |text| Err(Error::setup(addr, 0, SetupError::InvalidResponse(text)));
        if identifiers(namespace).await? != self.identifiers {
            return wrong(format!(
                "namespace {nsid} has other identifiers (UUID, NGUID, EUI-64) than over the \
                 other paths"
            ));
        }
        let (block_size, blocks) = (namespace.block_size(), namespace.blocks());
        if block_size != self.geometry.block_size() || blocks < self.geometry.blocks {
            return wrong(format!(
                "namespace {nsid} has {blocks} blocks of {block_size} bytes, {} blocks of {} \
                 bytes over the other paths",
                self.geometry.blocks,
                self.geometry.block_size()
            ));
        }
        Ok(())
    }
}

/// Whether the check of a namespace would fail again with that error.
fn is_lasting(error: &Error) -> bool {
    match error {
        Error::Setup(_) => true,
        Error::Command(failed) => failed.status.dnr(),
        Error::Usage(usage) => matches!(
            **usage,
            UsageError::NoNamespace { .. } | UsageError::Format { .. }
        ),
        _ => false,
    }
}

impl MultipathNamespace {
    pub(super) async fn new(inner: Arc<Inner>, nsid: u32) -> Result<Self, Error> {
        let mut changes = inner.changes.subscribe();
        let id = inner.next_head();
        loop {
            changes.borrow_and_update();
            let Some((connection, _)) = inner.connections().into_iter().next() else {
                inner.wait_for(&mut changes, id).await?;
                continue;
            };
            match Head::of(&connection, nsid, id, inner.options.policy).await {
                Ok(head) => {
                    let head = Arc::new(head);
                    inner.add(&head);
                    return Ok(Self { inner, head });
                }
                Err(error @ Error::Lost(_)) => connection.abandon(&error),
                Err(error) => return Err(error),
            }
        }
    }

    /// Namespace identifier.
    #[must_use]
    pub fn nsid(&self) -> u32 {
        self.head.geometry.nsid
    }

    /// Number of blocks, as it was when the namespace was opened.
    #[must_use]
    pub fn blocks(&self) -> u64 {
        self.head.geometry.blocks
    }

    /// Bytes of a block.
    #[must_use]
    pub fn block_size(&self) -> u32 {
        self.head.geometry.block_size()
    }

    /// Its Identify Namespace data structure, as it was when the namespace was opened.
    #[must_use]
    pub fn identify(&self) -> &IdentifyNamespace {
        &self.head.identify
    }

    /// Reads the blocks from `lba` into `buf`.
    ///
    /// # Errors
    /// As [`Namespace::read`], and [`Error::NoPath`].
    pub async fn read(&self, lba: u64, buf: Buf) -> Result<Buf, Failed> {
        self.transfer(Call::Read(lba), buf).await
    }

    /// Writes `buf` to the blocks from `lba`. A write whose path is lost is sent again only when
    /// the lost controller is fenced, so that it cannot undo acknowledged writes.
    ///
    /// # Errors
    /// As [`Namespace::write`], [`Error::NoPath`] and [`Error::UnknownOutcome`].
    pub async fn write(&self, lba: u64, buf: Buf, options: WriteOptions) -> Result<Buf, Failed> {
        self.transfer(Call::Write(lba, options), buf).await
    }

    /// Compares the blocks from `lba` with `buf`.
    ///
    /// # Errors
    /// As [`Namespace::compare`], and [`Error::NoPath`].
    pub async fn compare(&self, lba: u64, buf: Buf) -> Result<Buf, Failed> {
        self.transfer(Call::Compare(lba), buf).await
    }

    /// Flush: data of completed writes are on stable media when it completes.
    ///
    /// # Errors
    /// As [`Namespace::flush`], and [`Error::NoPath`].
    pub async fn flush(&self) -> Result<(), Error> {
        self.execute(Call::Flush, None).await.0
    }

    /// Writes zeroes to `count` blocks from `lba`, without a transfer.
    ///
    /// # Errors
    /// As [`Namespace::write_zeroes`], [`Error::NoPath`] and [`Error::UnknownOutcome`].
    pub async fn write_zeroes(
        &self,
        lba: u64,
        count: u64,
        options: ZeroOptions,
    ) -> Result<(), Error> {
        let call = Call::WriteZeroes(lba, count, options);
        self.execute(call, None).await.0
    }

    /// Deallocates the blocks of `ranges`.
    ///
    /// # Errors
    /// As [`Namespace::deallocate`], [`Error::NoPath`] and [`Error::UnknownOutcome`].
    pub async fn deallocate(&self, ranges: &[Range]) -> Result<(), Error> {
        self.execute(Call::Deallocate(ranges), None).await.0
    }

    async fn transfer(&self, call: Call<'_>, buf: Buf) -> Result<Buf, Failed> {
        match self.execute(call, Some(buf)).await {
            (Ok(()), Some(buf)) => Ok(buf),
            (Ok(()), None) => {
                let error = MachineError::internal("a success without its buffer");
                Err(Failed::new(error, None))
            }
            (Err(error), buf) => Err(Failed::new(error, buf)),
        }
    }

    /// Makes `call` on one path after the other, as the retry policy says.
    async fn execute(&self, call: Call<'_>, mut buf: Option<Buf>) -> Ended {
        let has_buffer = buf.is_some();
        let bytes = buf.as_deref().map_or(0, <[u8]>::len);
        let bytes = u64::try_from(bytes).unwrap_or(u64::MAX);
        let mut tries = Tries::default();
        loop {
            let Usable {
                connection,
                namespace,
                ..
            } = match self.next_path(&mut tries).await {
                Ok(usable) => usable,
                Err(error) => return (Err(tries.ended_with(error)), buf),
            };
            let began = self.inner.now();
            let outstanding = Outstanding::new(&connection.outstanding, bytes);
            let (result, back) = call.make(&namespace, buf).await;
            drop(outstanding);
            buf = back;
            let Err(error) = result else {
                let now = self.inner.now();
                connection.measured(now, now.saturating_sub(began));
                return (Ok(()), buf);
            };
            if has_buffer && buf.is_none() {
                // The lost queue keeps it.
                return (Err(error), None);
            }
            let group = namespace.identify().anagrpid.get();
            let step = self.step(&connection, group, call.effect(), &error, &mut tries);
            let fenced = connection.fenced.subscribe();
            // A call that waits does not keep a lost connection.
            drop((connection, namespace));
            let may_retry = match step {
                RetryStep::Fail => Err(error),
                RetryStep::SamePath { after } => {
                    tokio::time::sleep(after).await;
                    Ok(())
                }
                RetryStep::OtherPath { .. } => Ok(()),
                RetryStep::OtherPathOnceFenced => self.fenced(fenced, error, &tries).await,
                RetryStep::UnknownOnceFenced => {
                    let waited = self.fenced(fenced, error.clone(), &tries).await;
                    waited.and(Err(tries.ended_with(error)))
                }
            };
            if let Err(error) = may_retry {
                return (Err(error), buf);
            }
        }
    }

    /// What follows a command of `effect` that failed with `error` on `connection`, in ANA group
    /// `group`.
    fn step(
        &self,
        connection: &Arc<Connection>,
        group: u32,
        effect: Effect,
        error: &Error,
        tries: &mut Tries,
    ) -> RetryStep {
        let outcome = match error {
            Error::Command(failed) => Outcome::Completed(failed.status),
            Error::Usage(_) => return RetryStep::Fail,
            Error::Lost(lost) if matches!(lost.cause, LostCause::RuntimeEnded) => {
                return RetryStep::Fail;
            }
            _ if self.inner.is_ended() => return RetryStep::Fail,
            Error::Lost(_) => Outcome::Lost,
            // The reason of this machine why the connection is lost.
            _ if connection.controller.error().is_some() => Outcome::Lost,
            _ => return RetryStep::Fail,
        };
        let step = self.head.retry.decide(outcome, effect, tries.retries);
        match outcome {
            Outcome::Completed(_) => {
                tries.retries += 1;
                if let RetryStep::OtherPath { read_ana } = step {
                    tries.avoid = Some(Arc::clone(connection));
                    if read_ana {
                        connection.refuses(group);
                        self.inner.changed();
                    }
                }
            }
            Outcome::Lost => {
                // Every queue of it ends, so that no command of this host is begun there.
                connection.abandon(error);
                if effect != Effect::None
                    && let Error::Lost(lost) = error
                {
                    tries.lost = Some(Arc::clone(lost));
                }
            }
        }
        step
    }

    /// Waits until the lost controller is fenced.
    ///
    /// # Errors
    /// No path may be waited for.
    async fn fenced(
        &self,
        mut fenced: watch::Receiver<Option<FenceMethod>>,
        error: Error,
        tries: &Tries,
    ) -> Result<(), Error> {
        loop {
            if fenced.borrow_and_update().is_some() {
                return Ok(());
            }
            if !self.inner.may_wait(self.head.id) {
                return Err(tries.ended_with(error));
            }
            let changed = fenced.changed();
            if let Ok(Err(_)) = tokio::time::timeout(LONGEST_WAIT, changed).await {
                // Nothing is left that could fence it.
                return Err(tries.ended_with(error));
            }
        }
    }

    /// The path for the next command of a call: after a refusal another one, or the same after a
    /// pause.
    async fn next_path(&self, tries: &mut Tries) -> Result<Usable, Error> {
        let Some(avoid) = tries.avoid.take() else {
            return self.path(None).await;
        };
        let usable = self.path(Some(&avoid)).await?;
        let is_same = Arc::ptr_eq(&avoid, &usable.connection);
        if !is_same && tries.retries < 2 {
            return Ok(usable);
        }
        drop(usable);
        tokio::time::sleep(AGAIN.saturating_mul(tries.retries)).await;
        self.path(Some(&avoid)).await
    }

    /// The path for the next command, another one than `avoid` if there is one.
    async fn path(&self, avoid: Option<&Arc<Connection>>) -> Result<Usable, Error> {
        let mut changes = self.inner.changes.subscribe();
        loop {
            let version = *changes.borrow_and_update();
            if let Some(usable) = self.choose(version, avoid) {
                return Ok(usable);
            }
            self.inner.wait_for(&mut changes, self.head.id).await?;
        }
    }

    fn choose(&self, version: u64, avoid: Option<&Arc<Connection>>) -> Option<Usable> {
        let mut choice = self.head.lock();
        if choice.version != Some(version) {
            choice.paths = self.usable();
            choice.version = Some(version);
        }
        choice.choose(avoid, self.inner.now())
    }

    /// The paths on which the namespace is known to be the same one.
    fn usable(&self) -> Vec<Usable> {
        let all = self.inner.connections().into_iter();
        let usable = all.filter_map(|(connection, settled_at)| {
            let namespace = connection.known(self.head.id)?.ok()?;
            let group = namespace.identify().anagrpid.get();
            let access = match connection.state(group) {
                AnaState::OPTIMIZED => PathAccess::Optimized,
                AnaState::NON_OPTIMIZED => PathAccess::NonOptimized,
                _ => PathAccess::None,
            };
            Some(Usable {
                connection,
                namespace,
                access,
                settled_at,
            })
        });
        usable.collect()
    }
}

/// The identifiers of a namespace.
async fn identifiers(namespace: &Namespace) -> Result<NamespaceIdentifiers, Error> {
    let controller = namespace.controller();
    let page = controller
        .identify_page(Cns::DESCRIPTORS, namespace.nsid())
        .await?;
    let list = DescriptorList::read_from_bytes(&page)
        .map_err(|_| MachineError::internal("an Identify page of another length"))?;
    NamespaceIdentifiers::parse(&list).map_err(|error| {
        let addr = controller.options().addr;
        Error::setup(addr, 0, SetupError::InvalidResponse(error.to_string()))
    })
}
