//! Copy within a namespace: source ranges, split into commands.

use nvmeof_wire::identify::IdentifyNamespace;
use nvmeof_wire::nvm::{COPY_RANGE_LEN, Copy, CopyRange};
use nvmeof_wire::opcode::{Direction, io};
use zerocopy::IntoBytes;

use crate::blocks::Range;
use crate::command::{BlockRange, Command};

/// Bytes of the payload for one source range.
pub const COPY_ENTRY_LEN: usize = COPY_RANGE_LEN as usize;

/// Maximum blocks of a source range (NLB).
const MAX_RANGE: u32 = 1 << 16;
/// Maximum source ranges of a command (NR).
const MAX_COUNT: usize = 256;

/// Limits of one Copy command of a namespace (NVM 1.0, section 4.1.5.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CopyLimits {
    /// Blocks of one source range (MSSRL).
    pub range: u32,
    /// Blocks of all source ranges (MCL).
    pub total: u32,
    /// Source ranges (MSRC, a 0's based value).
    pub count: usize,
}

/// One Copy command: source ranges, and the destination.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CopyPart {
    /// First block of the destination.
    pub to: u64,
    /// Source ranges, copied one after the other.
    pub from: Vec<Range>,
}

impl CopyLimits {
    /// The limits of a namespace; `None` if it does not support Copy.
    #[must_use]
    pub fn of(identify: &IdentifyNamespace) -> Option<Self> {
        let limits = Self {
            range: u32::from(identify.mssrl.get()).min(MAX_RANGE),
            total: identify.mcl.get(),
            count: usize::from(identify.msrc) + 1,
        };
        (limits.range > 0 && limits.total > 0).then_some(limits)
    }

    /// Splits the copy of `from`, one range after the other, to block `to` into
    /// commands. Empty ranges are omitted.
    #[must_use]
    pub fn cut(&self, to: u64, from: &[Range]) -> Vec<CopyPart> {
        let longest = self.range.min(self.total).max(1);
        let mut parts: Vec<CopyPart> = Vec::new();
        let (mut to, mut blocks) = (to, 0);
        for range in from {
            let (mut slba, mut left) = (range.slba, range.count);
            while left > 0 {
                let count = left.min(longest);
                let piece = Range { slba, count };
                match parts.last_mut() {
                    Some(part)
                        if part.from.len() < self.count.min(MAX_COUNT)
                            && blocks + count <= self.total =>
                    {
                        part.from.push(piece);
                        blocks += count;
                    }
                    _ => {
                        let from = vec![piece];
                        parts.push(CopyPart { to, from });
                        blocks = count;
                    }
                }
                slba = slba.saturating_add(count.into());
                to = to.saturating_add(count.into());
                left -= count;
            }
        }
        parts
    }
}

impl CopyPart {
    /// Number of blocks to copy.
    #[must_use]
    pub fn blocks(&self) -> u64 {
        self.from.iter().map(|range| u64::from(range.count)).sum()
    }

    /// The command, within namespace `nsid`. Its payload, [`COPY_ENTRY_LEN`]
    /// bytes for each range, is filled by [`put`](Self::put). `None` when there
    /// are no ranges, or more than a command can have.
    #[must_use]
    pub fn command(&self, nsid: u32, fua: bool) -> Option<Command> {
        let possible = 1..=MAX_COUNT;
        let ranges = possible
            .contains(&self.from.len())
            .then_some(self.from.len())?;
        let command = Copy {
            nsid,
            slba: self.to,
            ranges: u16::try_from(ranges).ok()?,
            format: 0,
            protected: false,
            fua,
        };
        let len = u32::try_from(ranges * COPY_ENTRY_LEN).ok()?;
        let place = BlockRange {
            nsid,
            slba: self.to,
            count: self.blocks(),
        };
        let name = io::name(io::COPY);
        Some(Command::new(command.to_sqe(), name, Direction::ToController, len).at(place))
    }

    /// Writes the payload of the command.
    pub fn put(&self, payload: &mut [u8]) {
        for (range, bytes) in self
            .from
            .iter()
            .zip(payload.chunks_exact_mut(COPY_ENTRY_LEN))
        {
            bytes.copy_from_slice(CopyRange::new(range.slba, range.count).as_bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const LIMITS: CopyLimits = CopyLimits {
        range: 10,
        total: 25,
        count: 4,
    };

    fn range(slba: u64, count: u32) -> Range {
        Range { slba, count }
    }

    #[test]
    fn long_ranges_are_cut_and_short_ones_travel_together() {
        let parts = LIMITS.cut(100, &[range(0, 21), range(50, 0), range(60, 5)]);
        assert_eq!(
            parts,
            [
                CopyPart {
                    to: 100,
                    from: vec![range(0, 10), range(10, 10), range(20, 1)],
                },
                CopyPart {
                    to: 121,
                    from: vec![range(60, 5)],
                },
            ]
        );
        assert_eq!(LIMITS.cut(0, &[]), []);
    }

    #[test]
    fn command_layout_matches_the_specification() {
        let part = CopyPart {
            to: 0x1_0000_0002,
            from: vec![range(7, 1), range(9, 2)],
        };
        let command = part.command(3, true).unwrap();
        assert_eq!(command.len(), 64);
        assert_eq!(command.place().unwrap().count, 3);
        let mut payload = [0xff; 64];
        part.put(&mut payload);
        assert_eq!(
            (payload[8], payload[16], payload[40], payload[48]),
            (7, 0, 9, 1)
        );
        let none = CopyPart {
            to: 0,
            from: Vec::new(),
        };
        assert!(none.command(1, false).is_none());
    }

    #[test]
    fn namespace_without_copy_has_no_limits() {
        let mut identify = IdentifyNamespace::with_format(8, 9);
        assert_eq!(CopyLimits::of(&identify), None);
        identify.mssrl = 100.into();
        identify.mcl = 1000.into();
        identify.msrc = 127;
        let limits = CopyLimits::of(&identify).unwrap();
        assert_eq!((limits.range, limits.total, limits.count), (100, 1000, 128));
    }

    proptest! {
        #[test]
        fn split_copy_equals_the_whole(
            from in prop::collection::vec((0u64..1000, 0u32..60), 0..20),
            to in 0u64..1000,
            most in (1u32..12, 1u32..40, 1usize..6),
        ) {
            let limits = CopyLimits { range: most.0, total: most.1, count: most.2 };
            let from: Vec<_> = from.into_iter().map(|(slba, count)| range(slba, count)).collect();
            let pairs = |to: u64, from: &[Range]| -> Vec<(u64, u64)> {
                let blocks = from.iter().flat_map(|one| one.slba..one.slba + u64::from(one.count));
                (to..).zip(blocks).collect()
            };
            let mut copied = Vec::new();
            for part in limits.cut(to, &from) {
                prop_assert!(part.from.len() <= limits.count);
                prop_assert!(part.blocks() <= limits.total.into());
                prop_assert!(part.from.iter().all(|one| (1..=limits.range).contains(&one.count)));
                copied.extend(pairs(part.to, &part.from));
            }
            prop_assert_eq!(copied, pairs(to, &from));
        }
    }
}
