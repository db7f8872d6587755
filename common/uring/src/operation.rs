//! Operations, and the buffers that they own.

use std::fmt;

use io_uring::{opcode, squeue, types};
use nix::fcntl::FallocateFlags;
use nvmeof_memory::Buf;

use crate::files::FileId;
use crate::slots::InFlight;
use crate::uring::Uring;

/// Whether a write waits for the medium.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteMode {
    /// Completes when the kernel or the device has the data.
    Normal,
    /// Completes when the data, and the metadata needed to read it, would survive a loss
    /// of power: `RWF_DSYNC`, as if the file were open with `O_DSYNC`.
    Dsync,
}

/// An operation was not started: the reason, and its buffer.
#[derive(Debug)]
pub struct Refused<T> {
    /// Why.
    pub why: RefusalReason,
    /// The buffer, returned to the caller.
    pub back: T,
}

/// Why an operation was not started.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RefusalReason {
    /// The maximum number of operations is in flight: retry after
    /// [`Ring::reap`](crate::Ring::reap).
    #[error("the ring is full")]
    Full,
    /// The file was not added to the ring, or was removed.
    #[error("the file is not in the ring")]
    UnknownFile,
    /// The view of the buffer is longer than 4 GiB.
    #[error("one transfer cannot be longer than 4 GiB")]
    TooLong,
}

impl<T: fmt::Debug> fmt::Display for Refused<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.why.fmt(f)
    }
}

impl<T: fmt::Debug> std::error::Error for Refused<T> {}

/// The operations of [`Ring`](crate::Ring), which documents them.
impl Uring {
    pub(crate) fn read(
        &mut self,
        tag: u64,
        file: FileId,
        offset: u64,
        mut buf: Buf,
    ) -> Result<(), Refused<Buf>> {
        let (file, flags, len) = match self.transfer(file, &buf) {
            Ok(checked) => checked,
            Err(why) => return Err(Refused { why, back: buf }),
        };
        let index = self.fixed_index(&buf);
        let start = buf.as_mut_ptr();
        let entry = match index {
            Some(index) => opcode::ReadFixed::new(file, start, len, index)
                .offset(offset)
                .build(),
            None => opcode::Read::new(file, start, len).offset(offset).build(),
        };
        // SAFETY: the entry names the view of `buf` and a registered file.
        unsafe { self.start_with(tag, buf, entry.flags(flags)) }
    }

    pub(crate) fn write(
        &mut self,
        tag: u64,
        file: FileId,
        offset: u64,
        buf: Buf,
        mode: WriteMode,
    ) -> Result<(), Refused<Buf>> {
        let (file, flags, len) = match self.transfer(file, &buf) {
            Ok(checked) => checked,
            Err(why) => return Err(Refused { why, back: buf }),
        };
        let durable = match mode {
            WriteMode::Normal => 0,
            WriteMode::Dsync => libc::RWF_DSYNC,
        };
        let start = buf.as_ptr();
        let entry = match self.fixed_index(&buf) {
            Some(index) => opcode::WriteFixed::new(file, start, len, index)
                .offset(offset)
                .rw_flags(durable)
                .build(),
            None => opcode::Write::new(file, start, len)
                .offset(offset)
                .rw_flags(durable)
                .build(),
        };
        // SAFETY: the entry names the view of `buf` and a registered file.
        unsafe { self.start_with(tag, buf, entry.flags(flags)) }
    }

    pub(crate) fn fsync(
        &mut self,
        tag: u64,
        file: FileId,
        datasync: bool,
    ) -> Result<(), Refused<()>> {
        let flags = if datasync {
            types::FsyncFlags::DATASYNC
        } else {
            types::FsyncFlags::empty()
        };
        let entry = |file| opcode::Fsync::new(file).flags(flags).build();
        // SAFETY: the entry names no memory.
        unsafe { self.without_buf(tag, file, entry) }
    }

    pub(crate) fn fallocate(
        &mut self,
        tag: u64,
        file: FileId,
        mode: FallocateFlags,
        offset: u64,
        len: u64,
    ) -> Result<(), Refused<()>> {
        let entry = |file| {
            opcode::Fallocate::new(file, len)
                .offset(offset)
                .mode(mode.bits())
                .build()
        };
        // SAFETY: the entry names no memory.
        unsafe { self.without_buf(tag, file, entry) }
    }

    /// The index of the fixed buffer that contains the view.
    fn fixed_index(&mut self, buf: &Buf) -> Option<u16> {
        let index = self.fixed.index(&self.ring.submitter(), buf);
        self.counts.not_fixed += u64::from(index.is_none());
        index
    }

    fn transfer(
        &self,
        file: FileId,
        buf: &Buf,
    ) -> Result<(types::Fixed, squeue::Flags, u32), RefusalReason> {
        let (slot, flags) = self.files.slot(file).ok_or(RefusalReason::UnknownFile)?;
        let len = u32::try_from(buf.len()).map_err(|_| RefusalReason::TooLong)?;
        Ok((types::Fixed(slot), flags, len))
    }

    /// # Safety
    /// `entry` names no memory but the view of `buf`.
    unsafe fn start_with(
        &mut self,
        tag: u64,
        buf: Buf,
        entry: squeue::Entry,
    ) -> Result<(), Refused<Buf>> {
        let buf = Some(buf);
        // SAFETY: as the caller promises.
        let started = unsafe { self.start(InFlight { tag, buf }, entry) };
        let Err(InFlight {
            buf: Some(back), ..
        }) = started
        else {
            return Ok(());
        };
        let why = RefusalReason::Full;
        Err(Refused { why, back })
    }

    /// # Safety
    /// `entry` names no memory.
    unsafe fn without_buf(
        &mut self,
        tag: u64,
        file: FileId,
        entry: impl FnOnce(types::Fixed) -> squeue::Entry,
    ) -> Result<(), Refused<()>> {
        let refused = |why| Refused { why, back: () };
        let slot = self.files.slot(file);
        let (slot, flags) = slot.ok_or_else(|| refused(RefusalReason::UnknownFile))?;
        let entry = entry(types::Fixed(slot)).flags(flags);
        // SAFETY: as the caller promises.
        unsafe { self.start(InFlight { tag, buf: None }, entry) }
            .map_err(|_| refused(RefusalReason::Full))
    }
}
