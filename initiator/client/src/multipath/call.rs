//! Calls that can be made over each path, and their time limits.

use std::sync::Arc;
use std::time::Duration;

use nvmeof_initiator_core::blocks::MAX_RANGES;
use nvmeof_initiator_core::multipath::{Effect, is_refusal};
use nvmeof_initiator_core::{CommandError, Operation, Range, ReservationCommand};
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
    Reservation(&'a ReservationCommand),
    /// Reservation Report, into the buffer of the call.
    Report,
}

/// The result of a call, with its buffer.
pub(super) type Ended = (Result<(), Error>, Option<Buf>);

impl Call<'_> {
    pub(super) fn effect(self) -> Effect {
        match self {
            Self::Read(_) | Self::Compare(_) | Self::Flush | Self::Verify(..) | Self::Report => {
                Effect::None
            }
            // `Namespace::copy` refuses sources that overlap the destination.
            Self::Write(..) | Self::WriteZeroes(..) | Self::Deallocate(_) | Self::Copy(..) => {
                Effect::Idempotent
            }
            Self::CompareAndWrite(..) | Self::Reservation(_) => Effect::Other,
        }
    }

    /// Whether it has a buffer.
    pub(super) fn is_transfer(self) -> bool {
        match self {
            Self::Read(_)
            | Self::Write(..)
            | Self::Compare(_)
            | Self::CompareAndWrite(..)
            | Self::Report => true,
            Self::Flush
            | Self::Verify(..)
            | Self::WriteZeroes(..)
            | Self::Deallocate(_)
            | Self::Copy(..)
            | Self::Reservation(_) => false,
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
            | Self::Copy(..)
            | Self::Reservation(_)
            | Self::Report => None,
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
            (Self::Report, Some(buf)) => namespace.read_report(buf, namespace.deadline()).await,
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
            Self::Reservation(request) => namespace.change_reservations(request).await,
            _ => Err(MachineError::internal("a transfer without its buffer").into()),
        }
    }

    /// Number of blocks that it reads or changes, if it has a buffer of `len` bytes.
    pub(super) fn blocks(self, block_size: u32, len: usize) -> u64 {
        let of_buffer = u64::try_from(len).unwrap_or(u64::MAX) / u64::from(block_size.max(1));
        let of_ranges = |ranges: &[Range]| {
            let counts = ranges.iter().map(|range| u64::from(range.count));
            counts.fold(0, u64::saturating_add)
        };
        match self {
            Self::Read(_) | Self::Write(..) | Self::Compare(_) => of_buffer,
            // The buffer has the blocks twice.
            Self::CompareAndWrite(..) => of_buffer / 2,
            Self::Flush | Self::Reservation(_) | Self::Report => 0,
            Self::Verify(_, count) | Self::WriteZeroes(_, count, _) => count,
            Self::Deallocate(ranges) | Self::Copy(ranges, ..) => of_ranges(ranges),
        }
    }

    /// Whether it may have changed data or reservations although its command `failed` completed
    /// with an error. It has `blocks` blocks.
    pub(super) fn may_have_executed(self, failed: &CommandError, blocks: u64) -> bool {
        if self.effect() == Effect::None {
            return false;
        }
        // Of several commands, those before it have succeeded, and others may have.
        let is_only_one = match self {
            // Both commands of the pair are executed, or none.
            Self::CompareAndWrite(..) | Self::Reservation(_) => true,
            Self::Deallocate(ranges) => ranges.len() <= MAX_RANGES,
            _ => failed.place.is_some_and(|place| place.count == blocks),
        };
        !is_only_one || !is_refusal(failed.status)
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
        let count = self.blocks(block_size, len);
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
            Self::Read(lba)
            | Self::Write(lba, _)
            | Self::Compare(lba)
            | Self::CompareAndWrite(lba, _)
            | Self::Verify(lba, _)
            | Self::WriteZeroes(lba, ..) => check(lba, count),
            Self::Flush | Self::Reservation(_) | Self::Report => Ok(()),
            Self::Deallocate(ranges) => each(ranges),
            Self::Copy(from, to, _) => {
                each(from)?;
                check(to, count)
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
    use nvmeof_initiator_core::{BlockRange, ReservationRegister};
    use nvmeof_wire::Status;

    use super::*;

    #[test]
    fn refused_call_has_not_executed_unless_it_has_several_commands() {
        let range = |count| [Range { slba: 90, count }];
        let many = [Range { slba: 0, count: 1 }; MAX_RANGES + 1];
        let (options, zero) = (WriteOptions::default(), ZeroOptions::default());
        let executed = |call: Call<'_>, status: Status, count: Option<u64>| {
            let failed = CommandError {
                command: "a command",
                status,
                result: 0,
                place: count.map(|count| BlockRange {
                    nsid: 1,
                    slba: 0,
                    count,
                }),
            };
            call.may_have_executed(&failed, call.blocks(512, 2048))
        };
        let (refused, failed) = (Status::ANA_INACCESSIBLE, Status::INTERNAL_ERROR);
        let (four, ten) = (Some(4), Some(10));
        for (call, whole) in [
            (Call::Write(0, options), four),
            (Call::CompareAndWrite(0, options), Some(2)),
            (Call::WriteZeroes(0, 10, zero), ten),
            (Call::Deallocate(&range(10)), None),
            (Call::Copy(&range(10), 0, options), ten),
        ] {
            assert!(!executed(call, refused, whole));
            assert!(!executed(call, Status::NAMESPACE_NOT_READY, whole));
            assert!(!executed(call, Status::AUTHENTICATION_REQUIRED, whole));
            assert!(executed(call, failed, whole));
        }
        for (call, part) in [
            (Call::Write(0, options), Some(2)),
            (Call::WriteZeroes(0, 10, zero), four),
            (Call::Deallocate(&many), None),
            (Call::Copy(&range(10), 0, options), four),
        ] {
            assert!(executed(call, refused, part));
        }
        for call in [
            Call::Read(0),
            Call::Flush,
            Call::Verify(0, 10),
            Call::Report,
        ] {
            assert!(!executed(call, failed, Some(1)));
        }
        let register = ReservationRegister::register(7).into();
        let register = Call::Reservation(&register);
        assert!(!executed(register, refused, None) && executed(register, failed, None));
    }

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
