//! A namespace: reads and writes of blocks.

use std::sync::Arc;
use std::time::Duration;

use nvmeof_initiator_core::blocks::{MAX_RANGES, RANGE_LEN, deallocate, flush, put_ranges};
use nvmeof_initiator_core::{Blocks, Operation, Range};
use nvmeof_memory::Buf;
use nvmeof_wire::admin::Cns;
use nvmeof_wire::identify::IdentifyNamespace;
use zerocopy::FromBytes;

use crate::controller::Controller;
use crate::deadline::Deadline;
use crate::error::{Error, MachineError, UsageError};
use crate::failed::{Failed, FailedVectored};
use crate::geometry::Geometry;
use crate::polled::Work;

/// A namespace of a connected controller. Each call takes a buffer and returns it, also with
/// an error ([`Failed`]). Dropping a future does not cancel commands that were sent: the buffer
/// returns to its pool when the controller has completed them.
#[derive(Clone, Debug)]
pub struct Namespace {
    controller: Controller,
    geometry: Geometry,
    identify: Arc<IdentifyNamespace>,
    /// Time limit of each call.
    limit: Option<Duration>,
}

/// Options of writes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WriteOptions {
    /// Force Unit Access: the data are on stable media when the call completes.
    pub fua: bool,
}

/// Options of Write Zeroes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ZeroOptions {
    /// Force Unit Access: the zeroes are on stable media when the call completes.
    pub fua: bool,
    /// Whether the controller may deallocate the blocks.
    pub deallocate: bool,
}

impl Controller {
    /// Namespace `nsid`.
    ///
    /// # Errors
    /// When it does not exist, or its format is not supported.
    pub async fn namespace(&self, nsid: u32) -> Result<Namespace, Error> {
        let known = self.namespaces().await?;
        if !known.contains(&nsid) {
            return Err(UsageError::no_namespace(nsid, &known).into());
        }
        let page = self.identify_page(Cns::NAMESPACE, nsid).await?;
        let page = parse(&page)?;
        Namespace::new(self.clone(), nsid, page)
    }
}

fn parse(page: &[u8]) -> Result<IdentifyNamespace, Error> {
    let page = IdentifyNamespace::read_from_bytes(page);
    Ok(page.map_err(|_| MachineError::internal("an Identify page of another length"))?)
}

impl Namespace {
    fn new(controller: Controller, nsid: u32, identify: IdentifyNamespace) -> Result<Self, Error> {
        Ok(Self {
            controller,
            geometry: Geometry::of(nsid, &identify)?,
            identify: Arc::new(identify),
            limit: None,
        })
    }

    /// The same namespace, with a time limit for each call. At the limit, the call fails with
    /// [`Error::TimedOut`], and the connection remains.
    ///
    /// If no command of the call was sent until then, none is sent, and the call returns its
    /// buffer. Otherwise its commands stay outstanding and occupy entries of the queue. Their
    /// buffer returns to its pool when they complete, or when the time-out of commands closes the
    /// queue. Until then a write can be executed at any time, even after later writes to the same
    /// blocks: its outcome is unknown ([`Error::outcome_is_unknown`]). If it matters, do not write
    /// these blocks until a read returns the new data or the buffer is back.
    #[must_use]
    pub fn with_timeout(&self, limit: Duration) -> Self {
        Self {
            limit: Some(limit),
            ..self.clone()
        }
    }

    /// The deadline of a call that starts now.
    pub(crate) fn deadline(&self) -> Option<Deadline> {
        self.limit.and_then(Deadline::after)
    }

    /// Reads its properties again, for example after
    /// [`NamespacesChanged`](crate::ControllerEvent::NamespacesChanged). Clones keep theirs.
    /// Returns whether the number of blocks changed.
    ///
    /// # Errors
    /// It does not exist any more, another namespace has its identifier (NGUID or EUI-64), its
    /// format changed, or a command fails. The properties stay then.
    pub async fn refresh(&mut self) -> Result<bool, Error> {
        let former = self.geometry;
        let found = self.controller.namespace(former.nsid).await?;
        let (old, new) = (&self.identify, &found.identify);
        let is_other = (old.nguid, old.eui64) != (new.nguid, new.eui64);
        if is_other || found.geometry.block_shift != former.block_shift {
            let nsid = former.nsid;
            let text = format!(
                "namespace {nsid} was replaced or formatted: NGUID, EUI-64 or block size changed; \
                 open it again"
            );
            return Err(UsageError::Other(text).into());
        }
        self.geometry = found.geometry;
        self.identify = found.identify;
        Ok(self.geometry != former)
    }

    /// Its identifier.
    #[must_use]
    pub fn nsid(&self) -> u32 {
        self.geometry.nsid
    }

    /// Number of blocks.
    #[must_use]
    pub fn blocks(&self) -> u64 {
        self.geometry.blocks
    }

    /// Bytes of a block.
    #[must_use]
    pub fn block_size(&self) -> u32 {
        self.geometry.block_size()
    }

    /// Size in bytes; `None` on 64-bit overflow.
    #[must_use]
    pub fn len(&self) -> Option<u64> {
        self.geometry.len()
    }

    /// Whether it has no blocks.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.geometry.is_empty()
    }

    /// Its Identify Namespace data structure.
    #[must_use]
    pub fn identify(&self) -> &IdentifyNamespace {
        &self.identify
    }

    /// The controller it belongs to.
    #[must_use]
    pub fn controller(&self) -> &Controller {
        &self.controller
    }

    /// Reads the blocks from `lba` into `buf`.
    ///
    /// # Errors
    /// When they are out of range, `buf` is not a whole number of blocks, or the command
    /// fails.
    pub async fn read(&self, lba: u64, buf: Buf) -> Result<Buf, Failed> {
        self.transfer(Operation::Read, lba, buf, false).await
    }

    /// Writes `buf` to the blocks from `lba`.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub async fn write(&self, lba: u64, buf: Buf, options: WriteOptions) -> Result<Buf, Failed> {
        self.transfer(Operation::Write, lba, buf, options.fua).await
    }

    /// Compares the blocks from `lba` with `buf`.
    ///
    /// # Errors
    /// As [`read`](Self::read). A difference is an [`Error::Command`] with
    /// `Compare Failure`.
    pub async fn compare(&self, lba: u64, buf: Buf) -> Result<Buf, Failed> {
        self.transfer(Operation::Compare, lba, buf, false).await
    }

    /// Reads the blocks from `lba` into `bufs`, one after the other. See
    /// [`write_vectored`](Self::write_vectored).
    ///
    /// # Errors
    /// As [`read`](Self::read), with the result for each buffer.
    pub async fn read_vectored(
        &self,
        lba: u64,
        bufs: Vec<Buf>,
    ) -> Result<Vec<Buf>, FailedVectored> {
        self.transfer_all(Operation::Read, lba, bufs, false).await
    }

    /// Writes `bufs` to the blocks from `lba`, one after the other.
    ///
    /// A command has one keyed SGL descriptor, which names contiguous memory: each buffer is a
    /// command of its own, or several if it is longer than the controller allows. SGL lists
    /// (MSDBD of Identify Controller) are not used. All commands are sent at once on one queue, as
    /// far as it has room, and are executed in any order: the call as a whole is not atomic, not
    /// even within the atomic write unit of the namespace. It ends when all have ended.
    ///
    /// # Errors
    /// As [`write`](Self::write), with the result for each buffer. Other buffers may have been
    /// written. If a buffer is not a whole number of blocks, or blocks are out of range, nothing is
    /// written.
    pub async fn write_vectored(
        &self,
        lba: u64,
        bufs: Vec<Buf>,
        options: WriteOptions,
    ) -> Result<Vec<Buf>, FailedVectored> {
        self.transfer_all(Operation::Write, lba, bufs, options.fua)
            .await
    }

    /// Flush: data of completed writes are on stable media when it completes.
    ///
    /// # Errors
    /// When the command fails.
    pub async fn flush(&self) -> Result<(), Error> {
        let flush = flush(self.geometry.nsid).into();
        let call = self.controller.call(flush, None, self.deadline());
        call.await.0.map(drop)
    }

    /// Writes zeroes to `count` blocks from `lba`, without a transfer.
    ///
    /// # Errors
    /// When they are out of range, or a command fails.
    pub async fn write_zeroes(
        &self,
        lba: u64,
        count: u64,
        options: ZeroOptions,
    ) -> Result<(), Error> {
        self.check(lba, count)?;
        let deadline = self.deadline();
        let ZeroOptions { fua, deallocate } = options;
        let operation = Operation::WriteZeroes { deallocate };
        let most = self.most_blocks(|limits| limits.wzsl, deadline).await?;
        self.each(operation, (lba, count), most, (fua, deadline))
            .await
    }

    /// Deallocates the blocks of `ranges`.
    ///
    /// # Errors
    /// When they are out of range, or a command fails.
    pub async fn deallocate(&self, ranges: &[Range]) -> Result<(), Error> {
        for range in ranges {
            self.check(range.slba, range.count.into())?;
        }
        let deadline = self.deadline();
        for (at, some) in ranges.chunks(MAX_RANGES).enumerate() {
            let Some(command) = deallocate(self.geometry.nsid, some) else {
                continue;
            };
            let mut buf = self.controller.alloc(some.len() * RANGE_LEN)?;
            put_ranges(some, &mut buf);
            let call = self.controller.call(command.into(), Some(buf), deadline);
            let result = call.await.0;
            result.map_err(|error| error.after_changes(at > 0))?;
        }
        Ok(())
    }

    async fn transfer(
        &self,
        operation: Operation,
        lba: u64,
        buf: Buf,
        fua: bool,
    ) -> Result<Buf, Failed> {
        let count = match self.count_of(&buf, lba, operation) {
            Ok(0) => return Ok(buf),
            Ok(count) => count,
            Err(error) => return Err(Failed::new(error, buf)),
        };
        self.move_run(operation, lba, count, buf, fua).await
    }

    async fn transfer_all(
        &self,
        operation: Operation,
        lba: u64,
        bufs: Vec<Buf>,
        fua: bool,
    ) -> Result<Vec<Buf>, FailedVectored> {
        let runs = match self.runs(operation, lba, &bufs, fua) {
            Ok(runs) => runs,
            Err(error) => {
                let failed = |buf| Err(Failed::new(error.clone(), buf));
                let results = bufs.into_iter().map(failed).collect();
                return Err(FailedVectored { error, results });
            }
        };
        let calls = runs.into_iter().map(Work::from).zip(bufs);
        let ended = self.controller.call_all(calls, self.deadline()).await;
        let results = ended.into_iter().map(|ended| match ended {
            (Ok(_), Some(buf)) => Ok(buf),
            (Ok(_), None) => {
                let error = MachineError::internal("a success without its buffer");
                Err(Failed::new(error, None))
            }
            (Err(error), buf) => Err(Failed::new(error, buf)),
        });
        let results: Vec<Result<Buf, Failed>> = results.collect();
        match results.iter().find_map(|result| result.as_ref().err()) {
            None => Ok(results.into_iter().flatten().collect()),
            Some(first) => Err(FailedVectored {
                error: first.error.clone(),
                results,
            }),
        }
    }

    /// The blocks of each buffer, from `lba` on.
    ///
    /// # Errors
    /// A buffer is empty or is not a whole number of blocks, or blocks are out of range.
    fn runs(
        &self,
        operation: Operation,
        lba: u64,
        bufs: &[Buf],
        fua: bool,
    ) -> Result<Vec<Blocks>, Error> {
        let mut next = lba;
        let each = bufs.iter().map(|buf| {
            let count = self.count_of(buf, next, operation)?;
            if count == 0 {
                let text = "an empty buffer in a vectored call: must have 1 block or more";
                return Err(UsageError::Other(text.to_owned()).into());
            }
            let run = self.run(operation, next, count, fua);
            next = next.saturating_add(count);
            Ok(run)
        });
        each.collect()
    }

    /// Runs `operation` with `buf`, whose length fits `count` blocks.
    pub(crate) async fn move_run(
        &self,
        operation: Operation,
        lba: u64,
        count: u64,
        buf: Buf,
        fua: bool,
    ) -> Result<Buf, Failed> {
        let blocks = self.run(operation, lba, count, fua);
        let call = self
            .controller
            .call(blocks.into(), Some(buf), self.deadline());
        match call.await {
            (Ok(_), Some(buf)) => Ok(buf),
            (Err(error), buf) => Err(Failed::new(error, buf)),
            (Ok(_), None) => {
                let error = MachineError::internal("a success without its buffer");
                Err(Failed::new(error, None))
            }
        }
    }

    /// Number of blocks of `buf`; checks that all are inside the namespace.
    pub(crate) fn count_of(&self, buf: &Buf, lba: u64, operation: Operation) -> Result<u64, Error> {
        // Bytes of the buffer for one block.
        let unit = self.run(operation, lba, 1, false).bytes();
        let len = buf.len();
        let bytes = u64::try_from(len).unwrap_or(u64::MAX);
        if !bytes.is_multiple_of(unit) {
            let block_size = u32::try_from(unit).unwrap_or(u32::MAX);
            return Err(UsageError::NotBlocks { len, block_size }.into());
        }
        let count = bytes / unit;
        self.check(lba, count)?;
        Ok(count)
    }

    pub(crate) fn check(&self, slba: u64, count: u64) -> Result<(), Error> {
        Ok(self.geometry.check(slba, count)?)
    }

    pub(crate) fn run(&self, operation: Operation, slba: u64, count: u64, fua: bool) -> Blocks {
        Blocks {
            operation,
            nsid: self.geometry.nsid,
            block_shift: self.geometry.block_shift,
            slba,
            count,
            fua,
        }
    }
}
