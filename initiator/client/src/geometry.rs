//! The blocks of a namespace: number and size.

use nvmeof_initiator_core::{Blocks, Operation};
use nvmeof_wire::identify::IdentifyNamespace;

use crate::error::UsageError;

/// The blocks of a namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// The namespace.
    pub nsid: u32,
    /// Number of blocks.
    pub blocks: u64,
    /// Size of a block as a power of two.
    pub block_shift: u8,
}

impl Geometry {
    /// The geometry of namespace `nsid`, from Identify Namespace.
    ///
    /// # Errors
    /// When its format is not supported.
    pub fn of(nsid: u32, identify: &IdentifyNamespace) -> Result<Self, UsageError> {
        let format = |what: String| UsageError::Format { nsid, what };
        let lba_format = identify
            .format()
            .ok_or_else(|| format("has an invalid LBA format (FLBAS)".to_owned()))?;
        if lba_format.block_len().is_none() {
            let what = format!("has blocks of 2^{} bytes", lba_format.lbads);
            return Err(format(what));
        }
        if lba_format.ms.get() != 0 {
            let what = format!("has {} bytes of metadata per block", lba_format.ms);
            return Err(format(what));
        }
        Ok(Self {
            nsid,
            blocks: identify.nsze.get(),
            block_shift: lba_format.lbads,
        })
    }

    /// The operation on `count` blocks from `slba`, without Force Unit Access.
    ///
    /// # Errors
    /// They are beyond the end of the namespace.
    pub fn run(&self, operation: Operation, slba: u64, count: u64) -> Result<Blocks, UsageError> {
        self.check(slba, count)?;
        Ok(Blocks {
            operation,
            nsid: self.nsid,
            block_shift: self.block_shift,
            slba,
            count,
            fua: false,
        })
    }

    /// Checks that `count` blocks from `slba` are inside the namespace.
    pub(crate) fn check(&self, slba: u64, count: u64) -> Result<(), UsageError> {
        let end = slba.checked_add(count);
        if end.is_some_and(|end| end <= self.blocks) {
            return Ok(());
        }
        let Self { nsid, blocks, .. } = *self;
        Err(UsageError::OutOfRange {
            nsid,
            slba,
            count,
            blocks,
        })
    }

    /// Bytes of a block.
    #[must_use]
    pub fn block_size(&self) -> u32 {
        1 << self.block_shift
    }

    /// Size in bytes; `None` on 64-bit overflow.
    #[must_use]
    pub fn len(&self) -> Option<u64> {
        self.blocks.checked_mul(u64::from(self.block_size()))
    }

    /// Whether it has no blocks.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.blocks == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_that_cannot_be_read_are_refused() {
        let good = IdentifyNamespace::with_format(16, 12);
        let geometry = Geometry::of(3, &good).unwrap();
        assert_eq!((geometry.nsid, geometry.len()), (3, Some(65536)));
        assert!(Geometry::of(1, &IdentifyNamespace::with_format(16, 40)).is_err());
        let mut metadata = good;
        metadata.lbaf[0].ms.set(8);
        let error = Geometry::of(1, &metadata).unwrap_err().to_string();
        assert!(error.contains("8 bytes of metadata"), "{error}");
        assert_eq!(geometry.run(Operation::Read, 15, 1).unwrap().bytes(), 4096);
        for (slba, count) in [(15, 2), (17, 0), (u64::MAX, 1)] {
            let error = geometry.run(Operation::Read, slba, count).unwrap_err();
            assert!(matches!(error, UsageError::OutOfRange { blocks: 16, .. }));
        }
        let endless = IdentifyNamespace::with_format(u64::MAX, 9);
        assert_eq!(Geometry::of(1, &endless).unwrap().len(), None);
    }
}
