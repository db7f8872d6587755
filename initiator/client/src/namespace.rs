//! A namespace: reads and writes of blocks.

use nvmeof_initiator_core::blocks::{MAX_RANGES, RANGE_LEN, deallocate, flush, put_ranges};
use nvmeof_initiator_core::{Blocks, Operation, Range};
use nvmeof_memory::Buf;
use nvmeof_wire::admin::Cns;
use nvmeof_wire::identify::IdentifyNamespace;
use zerocopy::FromBytes;

use crate::controller::Controller;
use crate::error::{Error, MachineError, UsageError};
use crate::failed::Failed;
use crate::geometry::Geometry;

/// A namespace of a connected controller. Each call takes a buffer and returns it, also with
/// an error ([`Failed`]). Dropping a future does not cancel its call: the buffer returns to
/// its pool when the controller has completed the command.
#[derive(Clone, Debug)]
pub struct Namespace {
    controller: Controller,
    geometry: Geometry,
    identify: Box<IdentifyNamespace>,
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
        Namespace::new(self.clone(), nsid, &page)
    }
}

impl Namespace {
    fn new(controller: Controller, nsid: u32, page: &[u8]) -> Result<Self, Error> {
        let identify = IdentifyNamespace::read_from_bytes(page)
            .map_err(|_| MachineError::internal("an Identify page of another length"))?;
        Ok(Self {
            controller,
            geometry: Geometry::of(nsid, &identify)?,
            identify: Box::new(identify),
        })
    }

    /// Number and size of its blocks.
    pub(crate) fn geometry(&self) -> Geometry {
        self.geometry
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

    /// Flush: data of completed writes are on stable media when it completes.
    ///
    /// # Errors
    /// When the command fails.
    pub async fn flush(&self) -> Result<(), Error> {
        let (result, _none) = self
            .controller
            .call(flush(self.geometry.nsid).into(), None)
            .await;
        result.map(drop)
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
        let ZeroOptions { fua, deallocate } = options;
        let operation = Operation::WriteZeroes { deallocate };
        let most = self.most_blocks(|limits| limits.wzsl).await;
        self.each(operation, (lba, count), most, fua).await
    }

    /// Deallocates the blocks of `ranges`.
    ///
    /// # Errors
    /// When they are out of range, or a command fails.
    pub async fn deallocate(&self, ranges: &[Range]) -> Result<(), Error> {
        for range in ranges {
            self.check(range.slba, range.count.into())?;
        }
        for some in ranges.chunks(MAX_RANGES) {
            let Some(command) = deallocate(self.geometry.nsid, some) else {
                continue;
            };
            let mut buf = self.controller.alloc(some.len() * RANGE_LEN)?;
            put_ranges(some, &mut buf);
            let (result, _buf) = self.controller.call(command.into(), Some(buf)).await;
            result?;
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
        match self.controller.call(blocks.into(), Some(buf)).await {
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
        let end = slba.checked_add(count);
        if end.is_some_and(|end| end <= self.geometry.blocks) {
            return Ok(());
        }
        let (nsid, blocks) = (self.geometry.nsid, self.geometry.blocks);
        Err(UsageError::OutOfRange {
            nsid,
            slba,
            count,
            blocks,
        }
        .into())
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
