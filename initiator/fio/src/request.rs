//! Operations of fio, in bytes, and the commands for them.

use nix::errno::Errno;
use nvmeof_initiator::polled::Work;
use nvmeof_initiator::{Blocks, Geometry, Operation, Range};
use nvmeof_initiator_core::blocks::{deallocate, flush};

use crate::failure::Failure;

/// What to do with the bytes of a [`Request`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Fill the memory from the namespace.
    Read,
    /// Write the memory to the namespace.
    Write {
        /// Force Unit Access: the data are on stable media when it completes.
        fua: bool,
    },
    /// Deallocate; no memory.
    Trim,
    /// Flush the namespace; no memory and no offset.
    Flush,
}

/// One operation.
#[derive(Clone, Copy, Debug)]
pub struct Request {
    /// Identifier that fio gave it, below 2^63.
    pub user: u64,
    /// What to do.
    pub kind: Kind,
    /// First byte of the namespace.
    pub offset: u64,
    /// Number of bytes.
    pub len: u64,
    /// Address of the memory, inside the memory of
    /// [`Job::allocate`](crate::Job::allocate).
    pub addr: u64,
}

impl Request {
    /// The command, or the commands of a run of blocks.
    pub(crate) fn work(&self, geometry: Geometry) -> Result<Work, Failure> {
        let Geometry {
            nsid, block_shift, ..
        } = geometry;
        let operation = match self.kind {
            Kind::Flush => return Ok(flush(nsid).into()),
            Kind::Trim => {
                let command = deallocate(nsid, &[self.range(geometry)?]);
                let command =
                    command.ok_or_else(|| Failure::new("a trim has no range", Errno::EINVAL))?;
                return Ok(command.into());
            }
            Kind::Read => Operation::Read,
            Kind::Write { .. } => Operation::Write,
        };
        let (slba, count) = self.blocks(geometry)?;
        let blocks = Blocks {
            operation,
            nsid,
            block_shift,
            slba,
            count,
            fua: self.kind == Kind::Write { fua: true },
        };
        Ok(blocks.into())
    }

    /// The blocks of a trim.
    pub(crate) fn range(&self, geometry: Geometry) -> Result<Range, Failure> {
        let (slba, count) = self.blocks(geometry)?;
        let count = u32::try_from(count).map_err(|_| {
            let text = format!(
                "bs={} of a trim exceeds one range of 2^32 - 1 blocks; lower bs=",
                self.len
            );
            Failure::new(text, Errno::EINVAL)
        })?;
        Ok(Range { slba, count })
    }

    /// First block and number of blocks.
    fn blocks(&self, geometry: Geometry) -> Result<(u64, u64), Failure> {
        let Self { offset, len, .. } = *self;
        let size = u64::from(geometry.block_size());
        if len == 0 || !len.is_multiple_of(size) || !offset.is_multiple_of(size) {
            let text = format!(
                "{len} bytes at offset {offset} are not whole blocks of {size} bytes of \
                 namespace {}; set bs= (and blockalign=, offset=) to multiples",
                geometry.nsid
            );
            return Err(Failure::new(text, Errno::EINVAL));
        }
        Ok((offset / size, len / size))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GEOMETRY: Geometry = Geometry {
        nsid: 3,
        blocks: 1 << 40,
        block_shift: 12,
    };

    fn request(kind: Kind, offset: u64, len: u64) -> Request {
        Request {
            user: 1,
            kind,
            offset,
            len,
            addr: 0,
        }
    }

    fn blocks(kind: Kind) -> Blocks {
        match request(kind, 8192, 12288).work(GEOMETRY).unwrap() {
            Work::Blocks(blocks) => blocks,
            Work::Single(command) => panic!("{command:?}"),
        }
    }

    #[test]
    fn bytes_are_converted_to_blocks() {
        let expected = Blocks {
            operation: Operation::Read,
            nsid: 3,
            block_shift: 12,
            slba: 2,
            count: 3,
            fua: false,
        };
        assert_eq!(blocks(Kind::Read), expected);
        let write = blocks(Kind::Write { fua: false });
        assert_eq!((write.operation, write.fua), (Operation::Write, false));
        assert!(blocks(Kind::Write { fua: true }).fua);
    }

    #[test]
    fn flush_and_trim_are_one_command() {
        let name = |kind, len| match request(kind, 0, len).work(GEOMETRY).unwrap() {
            Work::Single(command) => (command.name(), command.len()),
            Work::Blocks(blocks) => panic!("{blocks:?}"),
        };
        assert_eq!(name(Kind::Flush, 0), ("Flush", 0));
        assert_eq!(name(Kind::Trim, 65536), ("Dataset Management", 16));
        let range = request(Kind::Trim, 8192, 65536).range(GEOMETRY).unwrap();
        assert_eq!((range.slba, range.count), (2, 16));
    }

    #[test]
    fn partial_blocks_are_refused() {
        for (offset, len) in [(0, 0), (512, 4096), (4096, 512), (1, 1)] {
            let failure = request(Kind::Read, offset, len).work(GEOMETRY).unwrap_err();
            assert_eq!(failure.errno(), Errno::EINVAL);
            assert!(failure.to_string().contains("whole blocks of 4096"));
        }
        assert!(request(Kind::Trim, 0, 1 << 45).work(GEOMETRY).is_err());
    }
}
