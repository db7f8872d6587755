//! Commands of the NVM command set, within the limits of a controller.

use nvmeof_wire::nvm::{DSM_RANGE_LEN, DatasetManagement, DsmRange, Io, IoFlags};
use nvmeof_wire::opcode::{Direction, Opcode, io};
use nvmeof_wire::reservation;
use nvmeof_wire::sgl::KEYED_LEN_MAX;
use nvmeof_wire::sqe::Fuse;
use nvmeof_wire::{Sqe, Status};
use zerocopy::IntoBytes;
use zerocopy::little_endian::U32;

use crate::command::{BlockRange, Command};
use crate::setting::Setting;

/// The remedy of the status Authentication Required.
pub(crate) const AUTHENTICATION_REQUIRED: &str = "the target requires authentication: pass the \
     key that it has for this host; if a key is passed, the log has the cause";

/// Limits of one I/O command, by the controller and the transport.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IoLimits {
    /// Most bytes of payload.
    pub max_transfer: u32,
    /// Most bytes of payload inside the capsule; 0: not supported.
    pub in_capsule: u32,
    /// Most blocks of a Write Zeroes.
    pub max_write_zeroes: u32,
    /// Most blocks of a Verify.
    pub max_verify: u32,
}

impl Default for IoLimits {
    /// The limits of a controller that reports none.
    fn default() -> Self {
        Self {
            max_transfer: MAX_TRANSFER,
            in_capsule: 0,
            max_write_zeroes: MAX_BLOCKS,
            max_verify: MAX_BLOCKS,
        }
    }
}

/// Most bytes of one command, even if the controller allows more: a keyed descriptor
/// has 24 bits of length, and a whole number of blocks of any size must fit.
pub const MAX_TRANSFER: u32 = 8 << 20;
const _: () = assert!(MAX_TRANSFER <= KEYED_LEN_MAX);

/// Most blocks of one command: NLB has 16 bits and counts from 0 (NVM 1.0,
/// section 3.2.4).
const MAX_BLOCKS: u32 = 1 << 16;

/// An operation on a range of blocks, of any length: it is split into commands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Blocks {
    /// What to do.
    pub operation: Operation,
    /// Namespace.
    pub nsid: u32,
    /// Size of a block as a power of two.
    pub block_shift: u8,
    /// First block.
    pub slba: u64,
    /// Number of blocks; not 0.
    pub count: u64,
    /// Force Unit Access: the data are on stable media when the call completes.
    pub fua: bool,
}

/// What to do with a range of blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Read it.
    Read,
    /// Write it.
    Write,
    /// Compare it with the payload; a difference is
    /// [`Status::COMPARE_FAILURE`].
    Compare,
    /// Check that it can be read, without a transfer.
    Verify,
    /// Compare it with the first half of the payload and, if they are equal, write the
    /// second half, as an atomic operation: a fused Compare and Write (NVM 1.0,
    /// section 2.1.5). It is not split.
    CompareWrite,
    /// Make it read as zeroes.
    WriteZeroes {
        /// Whether the controller may deallocate it (DEAC).
        deallocate: bool,
    },
}

impl Blocks {
    /// Which way the payload goes.
    #[must_use]
    pub fn direction(&self) -> Direction {
        Direction::of(self.operation.opcode().0)
    }

    /// Bytes of payload.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes_of(self.units())
    }

    /// Bytes of payload of `count` blocks.
    #[inline]
    #[must_use]
    pub fn bytes_of(&self, count: u64) -> u64 {
        match self.operation {
            Operation::WriteZeroes { .. } | Operation::Verify => 0,
            _ => self.offset_of(count),
        }
    }

    /// Blocks that the commands cover, one after the other: those of a fused
    /// operation are covered twice.
    #[must_use]
    pub fn units(&self) -> u64 {
        match self.operation {
            Operation::CompareWrite => self.count.saturating_mul(2),
            _ => self.count,
        }
    }

    /// Whether its commands change data of the namespace.
    #[must_use]
    pub fn changes_data(&self) -> bool {
        match self.operation {
            Operation::Read | Operation::Compare | Operation::Verify => false,
            Operation::Write | Operation::CompareWrite | Operation::WriteZeroes { .. } => true,
        }
    }

    /// Commands that have to be next to each other on the queue.
    #[must_use]
    pub fn together(&self) -> usize {
        match self.operation {
            Operation::CompareWrite => 2,
            _ => 1,
        }
    }

    /// Byte of the payload where block `block`, counted from 0, starts.
    #[must_use]
    pub fn offset_of(&self, block: u64) -> u64 {
        block.checked_shl(self.block_shift.into()).unwrap_or(0)
    }

    /// Most blocks of one command.
    #[inline]
    #[must_use]
    pub fn step(&self, limits: &IoLimits) -> u64 {
        let step = match self.operation {
            // Whatever its length: the controller says when it is too long.
            Operation::CompareWrite => {
                return self.count.max(1);
            }
            Operation::Verify => limits.max_verify.min(MAX_BLOCKS),
            Operation::WriteZeroes { .. } => limits.max_write_zeroes.min(MAX_BLOCKS),
            _ => limits
                .max_transfer
                .min(MAX_TRANSFER)
                .checked_shr(self.block_shift.into())
                .unwrap_or(0)
                .min(MAX_BLOCKS),
        };
        u64::from(step.max(1))
    }

    /// The command for `count` blocks from block `first`, counted from 0.
    /// `count` is at most [`step`](Self::step).
    #[inline]
    #[must_use]
    pub fn sqe(&self, first: u64, count: u64) -> Sqe {
        match self.operation {
            Operation::CompareWrite => self.half(first),
            _ => self.one(first, count),
        }
    }

    /// The name of that command.
    #[must_use]
    pub fn name(&self, first: u64) -> &'static str {
        let operation = match self.operation {
            Operation::CompareWrite => Self::half_of(first).0,
            whole => whole,
        };
        io::name(operation.opcode())
    }

    /// The command of an operation that is not fused.
    #[inline]
    fn one(&self, first: u64, count: u64) -> Sqe {
        let blocks = u32::try_from(count).unwrap_or(MAX_BLOCKS).min(MAX_BLOCKS);
        debug_assert_eq!(u64::from(blocks), count, "count exceeds step()");
        let mut flags = self.operation.flags();
        flags.set(IoFlags::FUA, self.fua);
        Io {
            nsid: self.nsid,
            slba: self.slba.saturating_add(first),
            blocks,
            flags,
        }
        .to_sqe(self.operation.opcode())
    }

    /// One command of a fused operation.
    #[cold]
    fn half(&self, first: u64) -> Sqe {
        let (operation, fuse) = Self::half_of(first);
        let alone = Self {
            operation,
            fua: self.fua && fuse == Fuse::Second,
            ..*self
        };
        let mut sqe = alone.one(0, self.count);
        sqe.set_fuse(fuse);
        sqe
    }

    /// Which half of a fused operation starts at block `first`.
    fn half_of(first: u64) -> (Operation, Fuse) {
        if first == 0 {
            (Operation::Compare, Fuse::First)
        } else {
            (Operation::Write, Fuse::Second)
        }
    }

    /// `count` blocks from block `first`, counted from 0.
    #[must_use]
    pub fn place(&self, first: u64, count: u64) -> BlockRange {
        if self.operation == Operation::CompareWrite {
            return BlockRange {
                nsid: self.nsid,
                slba: self.slba,
                count: self.count,
            };
        }
        BlockRange {
            nsid: self.nsid,
            slba: self.slba.saturating_add(first),
            count,
        }
    }
}

impl Operation {
    fn opcode(self) -> Opcode {
        match self {
            Self::Read => io::READ,
            // Both commands of a fused operation have the same direction.
            Self::Write | Self::CompareWrite => io::WRITE,
            Self::Compare => io::COMPARE,
            Self::Verify => io::VERIFY,
            Self::WriteZeroes { .. } => io::WRITE_ZEROES,
        }
    }

    fn flags(self) -> IoFlags {
        match self {
            Self::WriteZeroes { deallocate: true } => IoFlags::DEALLOCATE,
            _ => IoFlags::empty(),
        }
    }
}

/// Flush: data of completed writes to `nsid` are on stable media when it completes.
#[must_use]
pub fn flush(nsid: u32) -> Command {
    let mut sqe = Sqe::new(io::FLUSH);
    sqe.nsid = U32::new(nsid);
    Command::new(sqe, io::name(io::FLUSH), Direction::None, 0)
}

/// A range of blocks to deallocate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    /// First block.
    pub slba: u64,
    /// Number of blocks.
    pub count: u32,
}

/// Most ranges of one Dataset Management command (NVM 1.0, section 3.2.3).
pub const MAX_RANGES: usize = 256;
/// Bytes of a range.
pub const RANGE_LEN: usize = DSM_RANGE_LEN as usize;

/// Deallocate the blocks of the ranges. [`put_ranges`] fills the payload, [`RANGE_LEN`]
/// bytes for each range. `None`
/// when there is no range or there are more than [`MAX_RANGES`].
#[must_use]
pub fn deallocate(nsid: u32, ranges: &[Range]) -> Option<Command> {
    let possible = 1..=MAX_RANGES;
    let ranges = possible.contains(&ranges.len()).then_some(ranges.len())?;
    let command = DatasetManagement {
        nsid,
        ranges: u16::try_from(ranges).ok()?,
        deallocate: true,
    };
    let name = io::name(io::DATASET_MANAGEMENT);
    let len = command.data_len();
    Some(Command::new(
        command.to_sqe(),
        name,
        Direction::ToController,
        len,
    ))
}

/// Writes the payload of [`deallocate`].
pub fn put_ranges(ranges: &[Range], payload: &mut [u8]) {
    for (range, bytes) in ranges.iter().zip(payload.chunks_exact_mut(RANGE_LEN)) {
        bytes.copy_from_slice(DsmRange::new(range.slba, range.count).as_bytes());
    }
}

/// A command that the controller completed with an error.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct CommandError {
    /// The specification's name of the command.
    pub command: &'static str,
    /// Status of the completion.
    pub status: Status,
    /// Command specific dwords 0 and 1.
    pub result: u64,
    /// The blocks of the command.
    pub place: Option<BlockRange>,
}

impl std::fmt::Display for CommandError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} failed", self.command)?;
        if let Some(BlockRange { nsid, slba, count }) = self.place {
            write!(f, " on namespace {nsid}, {count} blocks from {slba}")?;
        }
        write!(f, ": {}", self.status)
    }
}

impl CommandError {
    /// The remedy, if one is known.
    #[must_use]
    pub fn remedy(&self) -> Option<&'static str> {
        Some(match self.status.kind() {
            Status::INVALID_NAMESPACE => "choose an active namespace",
            // Base 2.1, 3.2.1.4: the status of an inactive namespace as well.
            Status::INVALID_FIELD if self.place.is_some() => {
                "the namespace may be gone; if it is not, the error log names the field"
            }
            Status::LBA_OUT_OF_RANGE => "the blocks are beyond the end of the namespace",
            Status::CAPACITY_EXCEEDED => {
                "the backing store of the namespace is full; free space on the target"
            }
            Status::NAMESPACE_WRITE_PROTECTED => {
                "the namespace is read-only; change `readonly` in the target's configuration"
            }
            Status::WRITE_FAULT | Status::UNRECOVERED_READ_ERROR | Status::INTERNAL_ERROR => {
                "the backing store failed; the log of the target has the cause"
            }
            Status::RESERVATION_CONFLICT => {
                "the reservations of the namespace do not permit it: check its holder and the \
                 keys of its registrants"
            }
            Status::COMMAND_INTERRUPTED if self.reserves() => {
                "it may be in force: check the reservations before it is sent again"
            }
            Status::NAMESPACE_NOT_READY
            | Status::COMMAND_INTERRUPTED
            | Status::TRANSIENT_TRANSPORT_ERROR => "retry",
            Status::INVALID_OPCODE if self.reserves() => {
                "the controller does not support reservations; nvmeof-target supports them if \
                 control.state in its configuration names a state file"
            }
            Status::INVALID_OPCODE => "the controller does not support this command",
            Status::AUTHENTICATION_REQUIRED => AUTHENTICATION_REQUIRED,
            Status::ATOMIC_WRITE_UNIT_EXCEEDED => {
                "too many blocks for one Compare and Write; specify fewer"
            }
            Status::OVERLAPPING_RANGE => "a source range overlaps the destination",
            Status::COMPARE_FAILURE => "the data on the namespace differ from the data given",
            _ => return None,
        })
    }

    /// Whether its command is a reservation command.
    fn reserves(&self) -> bool {
        let names = reservation::COMMANDS.map(io::name);
        names.contains(&self.command)
    }

    /// The settings that caused it.
    #[must_use]
    pub fn settings(&self) -> &'static [Setting] {
        match self.status.kind() {
            Status::INVALID_NAMESPACE => &[Setting::Namespace],
            Status::INVALID_FIELD if self.place.is_some() => &[Setting::Namespace, Setting::Field],
            Status::LBA_OUT_OF_RANGE => &[Setting::Blocks],
            Status::RESERVATION_CONFLICT => &[Setting::Reservations],
            Status::COMMAND_INTERRUPTED if self.reserves() => &[Setting::Reservations],
            Status::AUTHENTICATION_REQUIRED => &[Setting::Keys],
            Status::ATOMIC_WRITE_UNIT_EXCEEDED => &[Setting::CompareAndWrite],
            _ => &[],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::Payload;
    use crate::slots::Cid;

    fn read(slba: u64, count: u64) -> Blocks {
        Blocks {
            operation: Operation::Read,
            nsid: 1,
            block_shift: 9,
            slba,
            count,
            fua: false,
        }
    }

    fn sqe(command: &Command) -> Sqe {
        Sqe::from_capsule(&command.capsule(Cid(0), Payload::None)).unwrap()
    }

    #[test]
    fn block_counts_start_at_zero_on_the_wire() {
        let sqe = read(0x1_0000_0008, 16).sqe(8, 8);
        assert_eq!((sqe.cdw10.get(), sqe.cdw11.get()), (16, 1));
        assert_eq!(sqe.cdw12.get(), 7);
    }

    #[test]
    fn flags_are_where_the_specification_puts_them() {
        let zeroes = Blocks {
            operation: Operation::WriteZeroes { deallocate: true },
            fua: true,
            ..read(0, 65536)
        };
        assert_eq!(
            zeroes.sqe(0, 65536).cdw12.get(),
            0xffff | (IoFlags::FUA | IoFlags::DEALLOCATE).bits()
        );
        assert_eq!(zeroes.bytes(), 0);
        assert_eq!(zeroes.bytes_of(8), 0);
    }

    #[test]
    fn commands_keep_to_the_limits() {
        let limits = IoLimits {
            max_transfer: 128 << 10,
            ..IoLimits::default()
        };
        assert_eq!(read(0, 1).step(&limits), 256);
        assert_eq!(
            read(0, 1).step(&IoLimits::default()),
            u64::from(MAX_TRANSFER >> 9)
        );
        let zeroes = Blocks {
            operation: Operation::WriteZeroes { deallocate: false },
            ..read(0, 1)
        };
        assert_eq!(zeroes.step(&limits), 65536);
        let verify = Blocks {
            operation: Operation::Verify,
            ..zeroes
        };
        let some = IoLimits {
            max_verify: 100,
            ..limits
        };
        assert_eq!((verify.step(&some), verify.bytes()), (100, 0));
        assert_eq!(verify.sqe(0, 100).opcode, io::VERIFY);
        let tiny = IoLimits {
            max_transfer: 1,
            ..limits
        };
        assert_eq!(read(0, 1).step(&tiny), 1, "never none");
    }

    /// NVM 1.0, section 2.1.5; Base 2.0, figure 87, FUSE.
    #[test]
    fn fused_operation_is_two_commands_for_the_same_blocks() {
        let fused = Blocks {
            operation: Operation::CompareWrite,
            fua: true,
            ..read(0x40, 8)
        };
        let limits = IoLimits::default();
        assert_eq!((fused.units(), fused.bytes()), (16, 8192));
        assert_eq!((fused.step(&limits), fused.together()), (8, 2));
        assert_eq!(fused.offset_of(8), 4096);
        assert_eq!(fused.bytes_of(8), 4096);
        for (first, opcode, fuse, flags) in [
            (0, io::COMPARE, Fuse::First, 7),
            (8, io::WRITE, Fuse::Second, 7 | IoFlags::FUA.bits()),
        ] {
            let sqe = fused.sqe(first, 8);
            assert_eq!((sqe.opcode, sqe.fuse()), (opcode, fuse));
            assert_eq!((sqe.cdw10.get(), sqe.cdw12.get()), (0x40, flags));
            assert_eq!(fused.name(first), io::name(opcode));
            assert_eq!(fused.place(first, 8), fused.place(0, 8));
        }
    }

    #[test]
    fn commands_that_change_data_are_known() {
        let changes = |operation| {
            let blocks = Blocks {
                operation,
                ..read(0, 1)
            };
            blocks.changes_data()
        };
        let zeroes = Operation::WriteZeroes { deallocate: false };
        assert!(
            ![Operation::Read, Operation::Compare, Operation::Verify]
                .map(changes)
                .contains(&true)
        );
        assert!(
            ![Operation::Write, Operation::CompareWrite, zeroes]
                .map(changes)
                .contains(&false)
        );
        assert!(!flush(1).changes_data());
        let range = Range { slba: 0, count: 1 };
        assert!(deallocate(1, &[range]).is_some_and(|command| command.changes_data()));
    }

    #[test]
    fn remedies_of_reservation_commands_are_their_own() {
        let remedy = |command, status| {
            let error = CommandError {
                command,
                status,
                result: 0,
                place: None,
            };
            (error.remedy().unwrap(), error.settings())
        };
        let interrupted = Status::COMMAND_INTERRUPTED;
        assert_eq!(remedy("Write", interrupted), ("retry", &[][..]));
        let (text, settings) = remedy("Reservation Acquire", interrupted);
        assert!(text.contains("before it is sent again"), "{text}");
        assert_eq!(settings, [Setting::Reservations]);
        let (text, _) = remedy("Reservation Report", Status::INVALID_OPCODE);
        assert!(text.contains("control.state"), "{text}");
        let (_, settings) = remedy("Read", Status::RESERVATION_CONFLICT.with_dnr());
        assert_eq!(settings, [Setting::Reservations]);
    }

    #[test]
    fn ranges_are_counted_and_laid_out() {
        assert!(deallocate(1, &[]).is_none());
        let range = Range {
            slba: 0x0102,
            count: 8,
        };
        assert!(deallocate(1, &[range; MAX_RANGES + 1]).is_none());
        let command = deallocate(1, &[range; 2]).unwrap();
        assert_eq!((command.len(), sqe(&command).cdw10.get()), (32, 1));
        let mut payload = [0xff; 32];
        put_ranges(&[range; 2], &mut payload);
        let one = [0, 0, 0, 0, 8, 0, 0, 0, 2, 1, 0, 0, 0, 0, 0, 0];
        assert_eq!(payload[..16], one);
        assert_eq!(payload[16..], one);
    }
}
