//! A namespace over all paths of its subsystem.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use nvmeof_initiator_core::multipath::{Effect, Outcome, PathAccess, PathPolicy, RetryStep};
use nvmeof_initiator_core::{
    FenceMethod, Operation, Range, ReservationAcquire, ReservationRegister, ReservationRelease,
    ReservationReport,
};
use nvmeof_memory::Buf;
use nvmeof_wire::identify::IdentifyNamespace;
use nvmeof_wire::log::ana::AnaState;
use nvmeof_wire::status::SCT_PATH;
use tokio::sync::watch;

use super::Inner;
use super::call::{Call, Ended, Limit};
use super::choice::Usable;
use super::connection::{Connection, ConnectionId};
use super::head::Head;
use super::status::{Cause, Counters};
use crate::deadline::Deadline;
use crate::error::{Awaited, Error, Lost, LostCause, MachineError};
use crate::failed::Failed;
use crate::namespace::{Namespace, WriteOptions, ZeroOptions};
use crate::reservations::whole_report;

/// A namespace over all paths of its subsystem. Clones share it.
///
/// A call ends when its command succeeds, when the command fails with an error that is not retried,
/// when no path may become available, or at its [time limit](Self::with_timeout). If the future of
/// a call is dropped, the command may still be executed; its buffer returns to its pool when the
/// command ends.
#[derive(Clone)]
pub struct MultipathNamespace {
    inner: Arc<Inner>,
    head: Arc<Head>,
    /// The time limit of each call.
    limit: Option<Duration>,
}

/// What happened to a call until now.
struct Tries<'a> {
    call: Call<'a>,
    /// Its number of blocks.
    blocks: u64,
    limit: Option<Limit>,
    /// Completions with an error.
    retries: u32,
    /// The path that refused it the last time.
    avoid: Option<ConnectionId>,
    /// The path that was lost while it may have been executed.
    lost: Option<Arc<Lost>>,
    /// Whether a command of it that completed may have changed data, although the call is made
    /// again.
    may_have_executed: bool,
    /// The last completion with an error, which says more than that no path is left.
    completed: Option<Error>,
}

impl Tries<'_> {
    /// The error of a call that is not made again.
    fn ended_with(&self, error: Error) -> Error {
        match (&self.lost, error) {
            (None, no_path @ Error::NoPath(_)) => self.completed.clone().unwrap_or(no_path),
            (None, error) => error.after_changes(self.may_have_executed),
            (Some(_), error @ Error::TimedOut(_)) => error.after_changes(true),
            // It says more, and that the outcome is unknown as well.
            (Some(_), error @ Error::Machine(_)) => error,
            (Some(lost), _) => Error::UnknownOutcome(Arc::clone(lost)),
        }
    }

    /// `connection` was lost with `error` before the response.
    fn lost(&mut self, connection: &Connection, error: &Error) {
        if self.call.effect() == Effect::None {
            return;
        }
        self.lost = Some(match error {
            Error::Lost(lost) => Arc::clone(lost),
            // It ended because of this machine.
            _ => Arc::new(connection.controller.lost_because(LostCause::Local)),
        });
    }
}

/// How long a call waits for a change before it looks at the paths again.
const LONGEST_WAIT: Duration = Duration::from_secs(1);

/// The pause before the first retry on a path without an alternative; it grows with each.
const AGAIN: Duration = Duration::from_millis(100);

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

#[cold]
fn without_buffer() -> Failed {
    Failed::new(MachineError::internal("a success without its buffer"), None)
}

impl MultipathNamespace {
    pub(super) async fn new(inner: Arc<Inner>, nsid: u32) -> Result<Self, Error> {
        let mut changes = inner.changes.subscribe();
        let id = inner.next_id();
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
                    let limit = None;
                    return Ok(Self { inner, head, limit });
                }
                Err(error @ Error::Lost(_)) => connection.abandon(&error),
                Err(error) => return Err(error),
            }
        }
    }

    /// The same namespace with a time limit for each call, over all of its commands, waits and
    /// retries. A call beyond it fails with [`Error::TimedOut`], which names what the call waited
    /// for. It has its buffer unless a command is in progress: the buffer then returns to its pool
    /// when the command ends.
    #[must_use]
    pub fn with_timeout(&self, limit: Duration) -> Self {
        Self {
            limit: Some(limit),
            ..self.clone()
        }
    }

    /// Namespace identifier.
    #[must_use]
    pub fn nsid(&self) -> u32 {
        self.head.nsid()
    }

    /// Number of blocks. It grows when all paths report a larger namespace
    /// ([`PathEvent::SizeChanged`](super::PathEvent::SizeChanged)).
    #[must_use]
    pub fn blocks(&self) -> u64 {
        self.head.blocks()
    }

    /// Bytes of a block.
    #[must_use]
    pub fn block_size(&self) -> u32 {
        self.head.block_size()
    }

    /// Its Identify Namespace data structure, as it was when the namespace was opened.
    #[must_use]
    pub fn identify(&self) -> &IdentifyNamespace {
        &self.head.identify
    }

    /// Waits until a path can access the namespace, as long as a path is untried. Without it, the
    /// first call waits, also for a path whose ANA state becomes accessible much later.
    ///
    /// # Errors
    /// [`Error::NoPath`] when each path was tried and none can access the namespace.
    pub async fn ready(&self) -> Result<(), Error> {
        let mut changes = self.inner.changes.subscribe();
        loop {
            changes.borrow_and_update();
            // Before the choice: a path that becomes known in between can be used.
            let is_trying = self.inner.is_trying(self.head.id);
            if self.choose(None).is_some() {
                return Ok(());
            }
            if !is_trying {
                return Err(self.inner.no_path(self.head.id));
            }
            self.inner.wait_for(&mut changes, self.head.id).await?;
        }
    }

    /// Reads the blocks from `lba` into `buf`.
    ///
    /// # Errors
    /// As [`Namespace::read`](crate::Namespace::read), and [`Error::NoPath`].
    pub async fn read(&self, lba: u64, buf: Buf) -> Result<Buf, Failed> {
        self.transfer(Call::Read(lba), buf).await
    }

    /// Writes `buf` to the blocks from `lba`. A write whose path is lost is sent again only when
    /// the lost controller is fenced, so that it cannot undo acknowledged writes.
    ///
    /// # Errors
    /// As [`Namespace::write`](crate::Namespace::write), [`Error::NoPath`] and
    /// [`Error::UnknownOutcome`].
    pub async fn write(&self, lba: u64, buf: Buf, options: WriteOptions) -> Result<Buf, Failed> {
        self.transfer(Call::Write(lba, options), buf).await
    }

    /// Compares the blocks from `lba` with `buf`.
    ///
    /// # Errors
    /// As [`Namespace::compare`](crate::Namespace::compare), and [`Error::NoPath`].
    pub async fn compare(&self, lba: u64, buf: Buf) -> Result<Buf, Failed> {
        self.transfer(Call::Compare(lba), buf).await
    }

    /// Compares the blocks from `lba` with the first half of `buf` and, if they are equal, writes
    /// the second half, as an atomic operation. If the path is lost before the response, the
    /// command is not sent again: a second comparison could fail because of the first write. The
    /// call then ends with [`Error::UnknownOutcome`] when the lost controller is fenced.
    ///
    /// # Errors
    /// As [`Namespace::compare_and_write`](crate::Namespace::compare_and_write),
    /// [`Error::NoPath`] and [`Error::UnknownOutcome`].
    pub async fn compare_and_write(
        &self,
        lba: u64,
        buf: Buf,
        options: WriteOptions,
    ) -> Result<Buf, Failed> {
        let call = Call::CompareAndWrite(lba, options);
        self.transfer(call, buf).await
    }

    /// Flush: data of completed writes are on stable media when it completes.
    ///
    /// # Errors
    /// As [`Namespace::flush`](crate::Namespace::flush), and [`Error::NoPath`].
    pub async fn flush(&self) -> Result<(), Error> {
        self.execute(Call::Flush).await
    }

    /// Verifies that `count` blocks from `lba` can be read, without a transfer.
    ///
    /// # Errors
    /// As [`Namespace::verify`](crate::Namespace::verify), and [`Error::NoPath`].
    pub async fn verify(&self, lba: u64, count: u64) -> Result<(), Error> {
        self.execute(Call::Verify(lba, count)).await
    }

    /// Writes zeroes to `count` blocks from `lba`, without a transfer.
    ///
    /// # Errors
    /// As [`Namespace::write_zeroes`](crate::Namespace::write_zeroes), [`Error::NoPath`] and
    /// [`Error::UnknownOutcome`].
    pub async fn write_zeroes(
        &self,
        lba: u64,
        count: u64,
        options: ZeroOptions,
    ) -> Result<(), Error> {
        let call = Call::WriteZeroes(lba, count, options);
        self.execute(call).await
    }

    /// Deallocates the blocks of `ranges`.
    ///
    /// # Errors
    /// As [`Namespace::deallocate`](crate::Namespace::deallocate), [`Error::NoPath`] and
    /// [`Error::UnknownOutcome`].
    pub async fn deallocate(&self, ranges: &[Range]) -> Result<(), Error> {
        self.execute(Call::Deallocate(ranges)).await
    }

    /// Copies the blocks of the ranges in `from`, one after the other, to the blocks from `to`. A
    /// copy whose path is lost is made again from its begin when the lost controller is fenced.
    ///
    /// # Errors
    /// As [`Namespace::copy`](crate::Namespace::copy), [`Error::NoPath`] and
    /// [`Error::UnknownOutcome`].
    pub async fn copy(&self, from: &[Range], to: u64, options: WriteOptions) -> Result<(), Error> {
        self.execute(Call::Copy(from, to, options)).await
    }

    /// Reservation Register, over any path: a registration belongs to the host identifier, and is
    /// valid on all paths.
    ///
    /// If the path is lost before the response, the command is not sent again, as with the other
    /// commands that change reservations: another host may have preempted this one since, which a
    /// second registration would undo. The call ends with [`Error::UnknownOutcome`] when the lost
    /// controller is fenced, so that the command cannot be executed any more. Read the
    /// [report](Self::reservation_report), then repeat the command if it was not executed. These
    /// repetitions do no harm as long as this host is registered (NVMe Base 2.1, 8.1.22): Register
    /// with the same key, Acquire of the type that this host holds, Release. Others may fail with
    /// Reservation Conflict although the first command succeeded: Unregister, Replace, Preempt,
    /// Clear.
    ///
    /// # Errors
    /// As [`Namespace::reservation_register`](crate::Namespace::reservation_register),
    /// [`Error::NoPath`] and [`Error::UnknownOutcome`].
    pub async fn reservation_register(
        &self,
        registration: ReservationRegister,
    ) -> Result<(), Error> {
        self.execute(Call::Reservation(&registration.into())).await
    }

    /// Reservation Acquire, over any path. If the path is lost before the response, it is not sent
    /// again: see [`reservation_register`](Self::reservation_register).
    ///
    /// # Errors
    /// As [`Namespace::reservation_acquire`](crate::Namespace::reservation_acquire),
    /// [`Error::NoPath`] and [`Error::UnknownOutcome`].
    pub async fn reservation_acquire(&self, acquisition: ReservationAcquire) -> Result<(), Error> {
        self.execute(Call::Reservation(&acquisition.into())).await
    }

    /// Reservation Release, over any path. If the path is lost before the response, it is not sent
    /// again: see [`reservation_register`](Self::reservation_register).
    ///
    /// # Errors
    /// As [`Namespace::reservation_release`](crate::Namespace::reservation_release),
    /// [`Error::NoPath`] and [`Error::UnknownOutcome`].
    pub async fn reservation_release(&self, release: ReservationRelease) -> Result<(), Error> {
        self.execute(Call::Reservation(&release.into())).await
    }

    /// Reservation Report, over any path: the reservation and all registrants. If the path is lost
    /// before the response, it is sent again immediately.
    ///
    /// # Errors
    /// As [`Namespace::reservation_report`](crate::Namespace::reservation_report), and
    /// [`Error::NoPath`].
    pub async fn reservation_report(&self) -> Result<ReservationReport, Error> {
        let deadline = self.limit.and_then(Deadline::after);
        let read = |buf| async move {
            match self.again(Call::Report, Some(buf), None, deadline).await {
                (Ok(()), Some(buf)) => Ok(buf),
                (Ok(()), None) => Err(without_buffer().error),
                (Err(error), _) => Err(error),
            }
        };
        whole_report(&self.inner.host, read).await
    }

    /// Makes a call with a buffer, on a path and on others as the retry policy says. If its command
    /// succeeds on the first path, this is the only future between [`read`](Self::read) and the
    /// queue: each other one would move the buffer and the result once more.
    async fn transfer(&self, call: Call<'_>, buf: Buf) -> Result<Buf, Failed> {
        let deadline = self.limit.and_then(Deadline::after);
        let (mut buf, mut failure) = (Some(buf), None);
        if let Some((operation, lba, fua)) = call.operation()
            && let Some(usable) = self.choose(None)
            && let Some(data) = buf.take()
        {
            let namespace = &usable.namespace;
            let count = match self.count_of(call, namespace, (operation, lba), &data) {
                Ok(0) => return Ok(data),
                Ok(count) => count,
                Err(error) => return Err(Failed::new(error, data)),
            };
            let began = self.began();
            let work = namespace.run(operation, lba, count, fua).into();
            let bytes = u64::try_from(data.len()).unwrap_or(u64::MAX);
            let outstanding = Outstanding::new(&usable.connection.outstanding, bytes);
            let ended = namespace.controller().call(work, Some(data), deadline);
            let (result, back) = ended.await;
            drop(outstanding);
            usable.connection.counters.ended(bytes);
            match (result, back) {
                (Ok(_), Some(data)) => {
                    self.measured(&usable.connection, began);
                    return Ok(data);
                }
                (Ok(_), None) => return Err(without_buffer()),
                (Err(error), back) => {
                    buf = back;
                    failure = Some((usable, error));
                }
            }
        }
        match self.again(call, buf, failure, deadline).await {
            (Ok(()), Some(buf)) => Ok(buf),
            (Ok(()), None) => Err(without_buffer()),
            (Err(error), buf) => Err(Failed::new(error, buf)),
        }
    }

    /// Makes a call without a buffer, on a path and on others as the retry policy says.
    async fn execute(&self, call: Call<'_>) -> Result<(), Error> {
        let deadline = self.limit.and_then(Deadline::after);
        self.again(call, None, None, deadline).await.0
    }

    /// Number of blocks of `buf` for `call` on a path; checks that all are inside the namespace.
    fn count_of(
        &self,
        call: Call<'_>,
        namespace: &Namespace,
        (operation, lba): (Operation, u64),
        buf: &Buf,
    ) -> Result<u64, Error> {
        self.check(call, namespace, buf.len())?;
        namespace.count_of(buf, lba, operation)
    }

    /// Checks that the blocks of `call` are inside the namespace over all paths. The path of
    /// `namespace` may have grown before others. `len` is the length of the buffer.
    fn check(&self, call: Call<'_>, namespace: &Namespace, len: usize) -> Result<(), Error> {
        let blocks = self.head.blocks();
        if namespace.blocks() == blocks {
            return Ok(());
        }
        call.check(self.nsid(), blocks, self.block_size(), len)
    }

    /// The time, if latencies are compared.
    fn began(&self) -> Option<Duration> {
        let is_measured = self.inner.options.policy == PathPolicy::Latency;
        is_measured.then(|| self.inner.now())
    }

    /// A command that `began` then has succeeded.
    fn measured(&self, connection: &Connection, began: Option<Duration>) {
        if let Some(began) = began {
            let now = self.inner.now();
            connection.measured(now, now.saturating_sub(began));
        }
    }

    /// Makes `call` once, on a path.
    async fn attempt(
        &self,
        usable: &Usable,
        call: Call<'_>,
        buf: Option<Buf>,
        limit: Option<Limit>,
    ) -> Ended {
        let (connection, namespace) = (&usable.connection, &usable.namespace);
        let len = buf.as_deref().map_or(0, <[u8]>::len);
        if let Err(error) = self.check(call, namespace, len) {
            return (Err(error), buf);
        }
        let bytes = u64::try_from(len).unwrap_or(u64::MAX);
        let began = self.began();
        let outstanding = Outstanding::new(&connection.outstanding, bytes);
        let (result, buf) = match limit {
            None => call.make(namespace, buf).await,
            Some(limit) => {
                let limited = namespace.with_timeout(limit.left());
                let (result, buf) = call.make(&limited, buf).await;
                (result.map_err(|error| limit.of_call(error)), buf)
            }
        };
        drop(outstanding);
        connection.counters.ended(bytes);
        if result.is_ok() {
            self.measured(connection, began);
        }
        (result, buf)
    }

    /// Makes `call` on one path after the other, after `failure` on a path if there was one. Boxed,
    /// so that the future of a read or write that succeeds at once is small.
    #[cold]
    fn again<'a>(
        &'a self,
        call: Call<'a>,
        mut buf: Option<Buf>,
        mut failure: Option<(Arc<Usable>, Error)>,
        deadline: Option<Deadline>,
    ) -> Pin<Box<dyn Future<Output = Ended> + Send + 'a>> {
        let limit = Limit::of(self.limit, deadline);
        Box::pin(async move {
            let len = buf.as_deref().map_or(0, <[u8]>::len);
            let mut tries = Tries {
                call,
                blocks: call.blocks(self.block_size(), len),
                limit,
                retries: 0,
                avoid: None,
                lost: None,
                may_have_executed: false,
                completed: None,
            };
            loop {
                if let Some((usable, error)) = failure.take() {
                    // A command in progress or a lost queue keeps it.
                    let has_lost_buffer = call.is_transfer() && buf.is_none();
                    let followed = self.follow(usable, error, has_lost_buffer, &mut tries);
                    if let Err(error) = followed.await {
                        return (Err(tries.ended_with(error)), buf);
                    }
                }
                let usable = match self.next_path(&mut tries).await {
                    Ok(usable) => usable,
                    Err(error) => return (Err(tries.ended_with(error)), buf),
                };
                let (result, back) = self.attempt(&usable, call, buf, limit).await;
                buf = back;
                match result {
                    Ok(()) => return (Ok(()), buf),
                    Err(error) => failure = Some((usable, error)),
                }
            }
        })
    }

    /// Waits until a call that failed with `error` can be made again.
    ///
    /// # Errors
    /// It is not made again: `error`, or why the wait ended.
    async fn follow(
        &self,
        usable: Arc<Usable>,
        error: Error,
        has_lost_buffer: bool,
        tries: &mut Tries<'_>,
    ) -> Result<(), Error> {
        let (step, cause) = self.step(&usable, &error, tries);
        let fenced = usable.connection.fenced.subscribe();
        let counters = Arc::clone(&usable.connection.counters);
        // A call that waits does not keep a lost connection.
        drop(usable);
        if has_lost_buffer {
            return Err(error);
        }
        match step {
            RetryStep::Fail => return Err(error),
            RetryStep::OtherPath { .. } => {}
            RetryStep::SamePath { after } if after.is_zero() => {}
            RetryStep::SamePath { after } => {
                let delay = tokio::time::sleep(after);
                Limit::within(tries.limit, Awaited::RetryDelay, delay).await?;
            }
            RetryStep::OtherPathOnceFenced => {
                self.fenced(fenced, &counters, &error, tries).await?;
            }
            RetryStep::UnknownOnceFenced => {
                self.fenced(fenced, &counters, &error, tries).await?;
                return Err(error);
            }
        }
        counters.retried(cause);
        Ok(())
    }

    /// What follows a command that failed with `error` on a path, and what a retry is counted as.
    fn step(&self, usable: &Usable, error: &Error, tries: &mut Tries<'_>) -> (RetryStep, Cause) {
        let connection = &usable.connection;
        let is_lost = match error {
            Error::Command(failed) => {
                let status = failed.status;
                let (effect, retries) = (tries.call.effect(), tries.retries);
                let retry = &self.head.retry;
                let step = retry.decide(Outcome::Completed(status), effect, retries);
                tries.retries += 1;
                tries.may_have_executed |= tries.call.may_have_executed(failed, tries.blocks);
                tries.completed = Some(error.clone());
                if let RetryStep::OtherPath { read_ana } = step {
                    tries.avoid = Some(connection.id);
                    if read_ana {
                        connection.refuses(usable.namespace.identify().anagrpid.get());
                        self.inner.changed();
                    }
                }
                let cause = match status.code_type() {
                    SCT_PATH => Cause::PathStatus,
                    _ => Cause::OtherStatus,
                };
                return (step, cause);
            }
            Error::Lost(_) => true,
            Error::Usage(_) | Error::TimedOut(_) => false,
            // The reason of this machine why the connection is lost.
            _ => connection.controller.error().is_some(),
        };
        if !is_lost {
            return (RetryStep::Fail, Cause::Lost);
        }
        tries.lost(connection, error);
        let has_no_runtime =
            matches!(error, Error::Lost(lost) if matches!(lost.cause, LostCause::RuntimeEnded));
        if has_no_runtime || self.inner.is_ended() {
            return (RetryStep::Fail, Cause::Lost);
        }
        // Every queue of it ends, so that no command of this host is begun there.
        connection.abandon(error);
        let retry = &self.head.retry;
        let step = retry.decide(Outcome::Lost, tries.call.effect(), tries.retries);
        (step, Cause::Lost)
    }

    /// Waits until the lost controller is fenced.
    ///
    /// # Errors
    /// `error` if no path may be waited for, or the time is over.
    async fn fenced(
        &self,
        mut fenced: watch::Receiver<Option<FenceMethod>>,
        counters: &Counters,
        error: &Error,
        tries: &Tries<'_>,
    ) -> Result<(), Error> {
        let _running = counters.fence_wait.start();
        loop {
            if fenced.borrow_and_update().is_some() {
                return Ok(());
            }
            if !self.inner.may_wait(self.head.id) {
                return Err(error.clone());
            }
            let changed = tokio::time::timeout(LONGEST_WAIT, fenced.changed());
            let changed = Limit::within(tries.limit, Awaited::Fence, changed).await?;
            if let Ok(Err(_)) = changed {
                // Nothing is left that could fence it.
                return Err(error.clone());
            }
        }
    }

    /// The path for the next command of a call: after a refusal another one, or the same after a
    /// pause.
    async fn next_path(&self, tries: &mut Tries<'_>) -> Result<Arc<Usable>, Error> {
        let Some(avoid) = tries.avoid.take() else {
            return self.path(None, tries.limit).await;
        };
        let usable = self.path(Some(avoid), tries.limit).await?;
        let is_same = usable.connection.id == avoid;
        if !is_same && tries.retries < 2 {
            return Ok(usable);
        }
        drop(usable);
        let pause = tokio::time::sleep(AGAIN.saturating_mul(tries.retries));
        Limit::within(tries.limit, Awaited::RetryDelay, pause).await?;
        self.path(Some(avoid), tries.limit).await
    }

    /// The path for the next command, another one than `avoid` if there is one.
    async fn path(
        &self,
        avoid: Option<ConnectionId>,
        limit: Option<Limit>,
    ) -> Result<Arc<Usable>, Error> {
        if let Some(usable) = self.choose(avoid) {
            return Ok(usable);
        }
        let _running = self.inner.parked.start();
        let mut changes = self.inner.changes.subscribe();
        loop {
            changes.borrow_and_update();
            if let Some(usable) = self.choose(avoid) {
                return Ok(usable);
            }
            let wait = self.inner.wait_for(&mut changes, self.head.id);
            Limit::within(limit, Awaited::Path, wait).await??;
        }
    }

    /// The path for the next command, if there is one now.
    fn choose(&self, avoid: Option<ConnectionId>) -> Option<Arc<Usable>> {
        let version = self.inner.version();
        let mut choice = self.head.lock();
        if !choice.is_of(version) {
            choice.replace(version, self.usable());
        }
        choice.choose(avoid, || self.inner.now())
    }

    /// The paths on which the namespace is known to be the same one.
    #[cold]
    fn usable(&self) -> Vec<Arc<Usable>> {
        let all = self.inner.connections().into_iter();
        let usable = all.filter_map(|(connection, settled_at)| {
            let namespace = connection.known(self.head.id)?.ok()?;
            let group = namespace.identify().anagrpid.get();
            let access = match connection.state(group) {
                AnaState::OPTIMIZED => PathAccess::Optimized,
                AnaState::NON_OPTIMIZED => PathAccess::NonOptimized,
                _ => PathAccess::None,
            };
            Some(Arc::new(Usable {
                connection,
                namespace,
                access,
                settled_at,
            }))
        });
        usable.collect()
    }
}
