//! Calls that can be made over each path, and their time limits.

use std::sync::Arc;
use std::time::Duration;

use nvmeof_initiator_core::multipath::Effect;
use nvmeof_initiator_core::{Operation, Range};
use nvmeof_memory::Buf;
use tokio::time::Instant;

use crate::deadline::Deadline;
use crate::error::{Awaited, Error, MachineError, TimedOut, UsageError};
use crate::failed::Failed;
use crate::namespace::{Namespace, WriteOptions, ZeroOptions};

/// A call that can be made over each path.
#[derive(Clone, Copy)]
pub(super) enum Call<'a> {
    Read(u64),
    Write(u64, WriteOptions),
    Compare(u64),
    CompareAndWrite(u64, WriteOptions),
    Flush,
    Verify(u64, u64),
    WriteZeroes(u64, u64, ZeroOptions),
    Deallocate(&'a [Range]),
    Copy(&'a [Range], u64, WriteOptions),
}

/// The result of a call, with its buffer.
pub(super) type Ended = (Result<(), Error>, Option<Buf>);

impl Call<'_> {
    pub(super) fn effect(self) -> Effect {
        match self {
            Self::Read(_) | Self::Compare(_) | Self::Flush | Self::Verify(..) => Effect::None,
            // `Namespace::copy` refuses sources that overlap the destination.
            Self::Write(..) | Self::WriteZeroes(..) | Self::Deallocate(_) | Self::Copy(..) => {
                Effect::Idempotent
            }
            Self::CompareAndWrite(..) => Effect::Other,
        }
    }

    /// Whether it has a buffer.
    pub(super) fn is_transfer(self) -> bool {
        match self {
            Self::Read(_) | Self::Write(..) | Self::Compare(_) | Self::CompareAndWrite(..) => true,
            Self::Flush
            | Self::Verify(..)
            | Self::WriteZeroes(..)
            | Self::Deallocate(_)
            | Self::Copy(..) => false,
        }
    }

    /// Its operation, its first block and whether it has Force Unit Access, if it consists of the
    /// commands for one run of blocks with a buffer.
    pub(super) fn operation(self) -> Option<(Operation, u64, bool)> {
        match self {
            Self::Read(lba) => Some((Operation::Read, lba, false)),
            Self::Write(lba, options) => Some((Operation::Write, lba, options.fua)),
            Self::Compare(lba) => Some((Operation::Compare, lba, false)),
            // Compare and Write has a limit of blocks, which only `make` checks.
            Self::CompareAndWrite(..)
            | Self::Flush
            | Self::Verify(..)
            | Self::WriteZeroes(..)
            | Self::Deallocate(_)
            | Self::Copy(..) => None,
        }
    }

    pub(super) async fn make(self, namespace: &Namespace, buf: Option<Buf>) -> Ended {
        let ended = match (self, buf) {
            (Self::Read(lba), Some(buf)) => namespace.read(lba, buf).await,
            (Self::Write(lba, options), Some(buf)) => namespace.write(lba, buf, options).await,
            (Self::Compare(lba), Some(buf)) => namespace.compare(lba, buf).await,
            (Self::CompareAndWrite(lba, options), Some(buf)) => {
                namespace.compare_and_write(lba, buf, options).await
            }
            (call, buf) => return (call.make_without_buffer(namespace).await, buf),
        };
        match ended {
            Ok(buf) => (Ok(()), Some(buf)),
            Err(Failed { error, buf }) => (Err(error), buf),
        }
    }

    async fn make_without_buffer(self, namespace: &Namespace) -> Result<(), Error> {
        match self {
            Self::Flush => namespace.flush().await,
            Self::Verify(lba, count) => namespace.verify(lba, count).await,
            Self::WriteZeroes(lba, count, options) => {
                namespace.write_zeroes(lba, count, options).await
            }
            Self::Deallocate(ranges) => namespace.deallocate(ranges).await,
            Self::Copy(from, to, options) => namespace.copy(from, to, options).await,
            _ => Err(MachineError::internal("a transfer without its buffer").into()),
        }
    }

    /// Checks that its blocks are below `blocks`, in a namespace whose paths may have more. `len`
    /// is the length of its buffer.
    pub(super) fn check(
        self,
        nsid: u32,
        blocks: u64,
        block_size: u32,
        len: usize,
    ) -> Result<(), Error> {
        let of_buffer = u64::try_from(len).unwrap_or(u64::MAX) / u64::from(block_size.max(1));
        let check = |slba: u64, count: u64| match slba.checked_add(count) {
            Some(end) if end <= blocks => Ok(()),
            _ => Err(Error::from(UsageError::OutOfRange {
                nsid,
                slba,
                count,
                blocks,
            })),
        };
        let each = |ranges: &[Range]| {
            let mut all = ranges.iter();
            all.try_for_each(|range| check(range.slba, range.count.into()))
        };
        match self {
            Self::Read(lba) | Self::Write(lba, _) | Self::Compare(lba) => check(lba, of_buffer),
            // The buffer has the blocks twice.
            Self::CompareAndWrite(lba, _) => check(lba, of_buffer / 2),
            Self::Flush => Ok(()),
            Self::Verify(lba, count) | Self::WriteZeroes(lba, count, _) => check(lba, count),
            Self::Deallocate(ranges) => each(ranges),
            Self::Copy(from, to, _) => {
                each(from)?;
                let total = from
                    .iter()
                    .fold(0u64, |sum, range| sum.saturating_add(range.count.into()));
                check(to, total)
            }
        }
    }
}

/// The time limit of one call, over all of its commands, waits and retries.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limit {
    total: Duration,
    end: Instant,
}

impl Limit {
    /// The limit `total` that ends at `deadline`. `None` if the clock does not reach its end.
    pub(super) fn of(total: Option<Duration>, deadline: Option<Deadline>) -> Option<Self> {
        let (total, end) = (total?, deadline?.at);
        Some(Self { total, end })
    }

    /// The time that is left; zero if none.
    pub(super) fn left(&self) -> Duration {
        self.end.saturating_duration_since(Instant::now())
    }

    /// Ends `wait` when the time is over.
    ///
    /// # Errors
    /// [`Error::TimedOut`].
    pub(super) async fn within<T>(
        limit: Option<Self>,
        waiting_for: Awaited,
        wait: impl Future<Output = T>,
    ) -> Result<T, Error> {
        let Some(Self { total, end }) = limit else {
            return Ok(wait.await);
        };
        let ended = tokio::time::timeout_at(end, wait).await;
        ended.map_err(|_| Error::timed_out(total, waiting_for, false))
    }

    /// The error of a command that had the time that was left, as that of the call.
    pub(super) fn of_call(&self, error: Error) -> Error {
        match error {
            Error::TimedOut(one) => {
                Error::timed_out(self.total, one.waiting_for, one.may_have_executed)
            }
            other => other,
        }
    }
}

impl Error {
    /// A call ended after `limit`.
    pub(super) fn timed_out(
        limit: Duration,
        waiting_for: Awaited,
        may_have_executed: bool,
    ) -> Self {
        Self::TimedOut(Arc::new(TimedOut {
            limit,
            waiting_for,
            may_have_executed,
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_beyond_the_common_size_are_refused() {
        let range = |slba, count| [Range { slba, count }];
        let (options, zero) = (WriteOptions::default(), ZeroOptions::default());
        let inside = [
            Call::Read(98),
            Call::Write(98, options),
            Call::Compare(98),
            Call::CompareAndWrite(99, options),
            Call::Flush,
            Call::Verify(90, 10),
            Call::WriteZeroes(90, 10, zero),
            Call::Deallocate(&range(90, 10)),
            Call::Copy(&range(90, 10), 0, options),
        ]
        .map(|call| call.check(1, 100, 512, 1024).is_ok());
        assert_eq!(inside, [true; 9]);
        let outside = [
            Call::Read(99),
            Call::Write(u64::MAX, options),
            Call::Compare(99),
            Call::CompareAndWrite(100, options),
            Call::Verify(90, 11),
            Call::WriteZeroes(90, u64::MAX, zero),
            Call::Deallocate(&range(90, 11)),
            Call::Copy(&range(90, 11), 0, options),
            Call::Copy(&range(0, 11), 90, options),
        ]
        .map(|call| call.check(1, 100, 512, 1024).is_err());
        assert_eq!(outside, [true; 9]);
    }
}
