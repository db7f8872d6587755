//! Preferred and atomic sizes of writes and deallocations, and their fields in Identify
//! Namespace (NVM 1.0, 4.1.5.1 and 5.8.2).

use nvmeof_wire::identify::IdentifyNamespace;
use nvmeof_wire::identify::namespace::Nsfeat;

/// Preferred sizes of a namespace in bytes; 0 if unknown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Preferred {
    /// Granularity and alignment of writes.
    pub write: u32,
    /// Granularity and alignment of deallocating.
    pub deallocate: u32,
    /// Size of the fastest writes.
    pub optimal_write: u32,
    /// Writes that do not cross a multiple of this size are atomic, also on power loss.
    pub atomic: u32,
}

impl Preferred {
    /// Sets the fields of `id`, whose blocks have 2^`block_shift` bytes, if they are useful:
    /// NPWG, NPWA, NPDG, NPDA and NOWS, with the bit OPTPERF. `mdts` is the longest
    /// transfer in bytes.
    ///
    /// A size is left out if it is no multiple of the block, does not fit its field, or
    /// exceeds the longest command: NPWG and NOWS "should be less than or equal to
    /// Maximum Data Transfer Size". The fields of 16 bits have no value for unknown. For
    /// granularities, one block (0h) stands for unknown. For NOWS it would be wrong, so NOWS
    /// is NPWG if unknown.
    pub(crate) fn describe(&self, id: &mut IdentifyNamespace, block_shift: u8, mdts: u32) {
        let blocks = |bytes: u32| {
            let whole = bytes > 0 && bytes.trailing_zeros() >= u32::from(block_shift);
            let zero_based = (bytes >> block_shift).checked_sub(1).filter(|_| whole)?;
            u16::try_from(zero_based).ok()
        };
        // NVM 1.0, 2.1.4 and 4.1.5.1: NAWUN and NAWUPF, if "the write command does not cross
        // an atomic boundary", which is where the next multiple begins (NABSN, NABSPF).
        // All of them are 0's based, and a boundary of 0h is none. Linux takes the smaller
        // of NAWUPF and NPWG for the size of a physical block.
        if let Some(atomic) = blocks(self.atomic).filter(|blocks| *blocks > 0) {
            (id.nawun, id.nawupf) = (atomic.into(), atomic.into());
            (id.nabsn, id.nabspf) = (atomic.into(), atomic.into());
        }
        let transferable = |bytes: u32| blocks(bytes).filter(|_| bytes <= mdts);
        let write = transferable(self.write).unwrap_or(0);
        let deallocate = blocks(self.deallocate).unwrap_or(0);
        // "The value of this field should be a multiple of Namespace Preferred Write
        // Granularity."
        let granule = u32::from(write) + 1;
        let optimal = transferable(self.optimal_write);
        let optimal = optimal.filter(|blocks| (u32::from(*blocks) + 1).is_multiple_of(granule));
        let optimal = optimal.unwrap_or(write);
        if (write, deallocate, optimal) == (0, 0, 0) {
            return;
        }
        id.nsfeat |= Nsfeat::OPTPERF.bits();
        (id.npwg, id.npwa) = (write.into(), write.into());
        (id.npdg, id.npda) = (deallocate.into(), deallocate.into());
        id.nows = optimal.into();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MDTS: u32 = 1 << 20;

    /// NPWG, NPWA, NPDG, NPDA and NOWS, if they are set.
    fn reported(sizes: [u32; 3], block_shift: u8) -> Option<[u16; 5]> {
        let [write, deallocate, optimal_write] = sizes;
        let preferred = Preferred {
            write,
            deallocate,
            optimal_write,
            atomic: 0,
        };
        let mut id = IdentifyNamespace::with_format(1000, block_shift);
        preferred.describe(&mut id, block_shift, MDTS);
        let all = [id.npwg, id.npwa, id.npdg, id.npda, id.nows];
        let all = all.map(|one| one.get());
        let there = id.nsfeat().contains(Nsfeat::OPTPERF);
        assert!(there || all == [0; 5], "reserved");
        there.then_some(all)
    }

    #[test]
    fn preferred_sizes_are_blocks_counted_from_zero() {
        assert_eq!(
            reported([4096, 65536, 131_072], 9),
            Some([7, 7, 127, 127, 255])
        );
        assert_eq!(
            reported([4096, 65536, 131_072], 12),
            Some([0, 0, 15, 15, 31])
        );
        assert_eq!(
            reported([1 << 20, 0, 1 << 20], 9),
            Some([2047, 2047, 0, 0, 2047])
        );
        assert_eq!(reported([0, 32 << 20, 0], 9), Some([0, 0, 65535, 65535, 0]));
        assert_eq!(
            reported([65536, 0, 196_608], 9),
            Some([127, 127, 0, 0, 383])
        );
    }

    /// NAWUN, NABSN, NAWUPF, NABSPF.
    #[test]
    fn atomic_write_does_not_cross_a_boundary() {
        let reported = |atomic, block_shift| {
            let preferred = Preferred {
                atomic,
                ..Preferred::default()
            };
            let mut id = IdentifyNamespace::with_format(1000, block_shift);
            preferred.describe(&mut id, block_shift, MDTS);
            assert_eq!(id.nabo.get(), 0);
            [id.nawun, id.nabsn, id.nawupf, id.nabspf].map(|one| one.get())
        };
        assert_eq!(reported(4096, 9), [7; 4]);
        assert_eq!(reported(4096, 10), [3; 4]);
        // One block, which needs no boundary, or less.
        for (atomic, block_shift) in [(0, 9), (512, 9), (4096, 12), (2048, 12), (1000, 9)] {
            assert_eq!(reported(atomic, block_shift), [0; 4], "{atomic}");
        }
    }

    #[test]
    fn unknown_optimal_write_size_is_the_granularity() {
        assert_eq!(reported([4096, 0, 0], 9), Some([7, 7, 0, 0, 7]));
        assert_eq!(reported([0, 4096, 0], 9), Some([0, 0, 7, 7, 0]));
        // No multiple of the granularity.
        assert_eq!(reported([4096, 0, 6144], 9), Some([7, 7, 0, 0, 7]));
    }

    #[test]
    fn unreportable_preferred_sizes_are_left_out() {
        assert_eq!(reported([0, 0, 0], 9), None, "nothing is known");
        assert_eq!(reported([512, 512, 512], 9), None, "anything will do");
        assert_eq!(reported([4096, 4096, 4096], 12), None);
        // Smaller than a block, no multiple, too long for a command or the field.
        assert_eq!(reported([512, 2048, 1024], 12), None);
        assert_eq!(reported([4097, 6145, 1], 9), None);
        assert_eq!(reported([2 << 20, 64 << 20, 3 << 20], 9), None);
        assert_eq!(reported([u32::MAX, u32::MAX, u32::MAX], 9), None);
        assert_eq!(
            reported([4096, 64 << 20, 2 << 20], 9),
            Some([7, 7, 0, 0, 7])
        );
    }
}
