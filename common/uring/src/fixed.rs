//! Fixed buffers: regions that are registered with the kernel.

use std::fmt;

use io_uring::Submitter;
use nix::errno::Errno;
use nvmeof_memory::{Buf, Region};

use crate::lent::{Lent, MAX_PIECES};
use crate::pieces::{NotRegistered, locked_memory_limit, register_piece};

/// The result of registering regions as fixed buffers. Displays as one line for the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Registered {
    /// Bytes registered.
    pub registered: u64,
    /// Bytes used without registration.
    pub left_out: u64,
    /// Why some were left out, `None` when none were.
    pub why: Option<NotRegistered>,
}

impl fmt::Display for Registered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            registered,
            left_out,
            why,
        } = self;
        let Some(why) = why else {
            return write!(f, "{registered} bytes of buffers registered with io_uring");
        };
        let all = registered + left_out;
        write!(
            f,
            "{left_out} of {all} bytes of buffers not registered with io_uring: I/O with them \
             works, but the kernel maps their pages again for each request, which costs some \
             CPU time; "
        )?;
        why.fmt(f)
    }
}

/// The kernel's limit for one fixed buffer. A longer region takes several.
const LONGEST: usize = 1 << 30;
/// Maximum number for memory of this process: the kernel's limit for the fixed buffers of a
/// ring, less those for lent memory.
const MOST: usize = (1 << 14) - MAX_PIECES as usize;

/// The regions of a ring and which of them are registered.
#[derive(Debug, Default)]
pub(crate) struct Fixed {
    has_table: bool,
    regions: Vec<FixedRegion>,
    /// Lent memory; `None` without a table, and where not all own memory fits the limit.
    lent: Option<Lent>,
    /// Maximum number of pieces of it.
    lent_pieces: u16,
}

#[derive(Debug)]
struct FixedRegion {
    /// Keeps the memory mapped as long as it is registered.
    region: Region,
    /// Index in the kernel's table for each `LONGEST` bytes.
    pieces: Vec<Option<u16>>,
}

impl Fixed {
    /// Empty, and later with at most `lent` pieces of lent memory.
    pub(crate) fn new(lent: u16) -> Self {
        Self {
            lent_pieces: lent.min(MAX_PIECES),
            ..Self::default()
        }
    }

    /// Registers as much of `regions`, in this order, as the kernel allows. They replace
    /// those of an earlier call.
    pub(crate) fn register<'a>(
        &mut self,
        submitter: &Submitter<'_>,
        regions: impl Iterator<Item = &'a Region>,
    ) -> Registered {
        if self.has_table {
            // Fails only when there is no table.
            let _ = submitter.unregister_buffers();
        }
        self.lent = None;
        self.regions = regions.map(FixedRegion::unregistered).collect();
        let count: usize = self.regions.iter().map(|region| region.pieces.len()).sum();
        let left_out = self.regions.iter().map(|it| it.region.len() as u64).sum();
        let mut outcome = Registered {
            registered: 0,
            left_out,
            why: None,
        };
        if left_out == 0 {
            return outcome;
        }
        let first = u16::try_from(count).ok().filter(|_| count <= MOST);
        let Some(first) = first else {
            outcome.why = Some(NotRegistered::Kernel(Errno::E2BIG));
            return outcome;
        };
        let table = u32::from(first) + u32::from(self.lent_pieces);
        self.has_table = submitter.register_buffers_sparse(table).is_ok();
        if !self.has_table {
            outcome.why = Some(NotRegistered::OldKernel);
            return outcome;
        }
        self.fill(submitter, &mut outcome);
        // The limit applies to all processes of the user: where own memory does not fit,
        // the rest is left to other rings.
        let fits = outcome.why.is_none();
        self.lent = fits.then(|| Lent::new(first, self.lent_pieces));
        outcome
    }

    fn fill(&mut self, submitter: &Submitter<'_>, outcome: &mut Registered) {
        let limit = locked_memory_limit();
        let mut indices = 0u16..;
        for fixed in &mut self.regions {
            let (start, len) = (fixed.region.addr(), fixed.region.len());
            for (n, piece) in fixed.pieces.iter_mut().enumerate() {
                let Some(index) = indices.next() else { return };
                let bytes = LONGEST.min(len - n * LONGEST);
                // The kernel populates each page before it finds that the limit is
                // exceeded.
                let registered = if limit.is_some_and(|limit| bytes as u64 > limit) {
                    Err(Errno::ENOMEM)
                } else {
                    let addr = start + (n * LONGEST) as u64;
                    register_piece(submitter, index, addr, bytes)
                };
                match registered {
                    Ok(()) => {
                        *piece = Some(index);
                        outcome.registered += bytes as u64;
                        outcome.left_out -= bytes as u64;
                    }
                    Err(errno) => {
                        outcome.why.get_or_insert(NotRegistered::of(errno, limit));
                    }
                }
            }
        }
    }

    /// All regions, registered or not.
    pub(crate) fn regions(&self) -> impl Iterator<Item = &Region> {
        self.regions.iter().map(|fixed| &fixed.region)
    }

    /// The pieces of lent memory.
    pub(crate) fn lent(&self) -> Option<&Lent> {
        self.lent.as_ref()
    }

    #[inline]
    pub(crate) fn lent_mut(&mut self) -> Option<&mut Lent> {
        self.lent.as_mut()
    }

    /// The index of the fixed buffer that contains the whole view of `buf`, if there is one
    /// or it can be registered.
    #[inline]
    pub(crate) fn index(&mut self, submitter: &Submitter<'_>, buf: &Buf) -> Option<u16> {
        if buf.is_lent() {
            return self.lent.as_mut()?.index(submitter, buf);
        }
        self.own_index(buf)
    }

    fn own_index(&self, buf: &Buf) -> Option<u16> {
        let id = buf.region();
        let fixed = self.regions.iter().find(|it| it.region.id() == id)?;
        let first = usize::try_from(buf.region_offset()).ok()?;
        let last = first.checked_add(buf.len())?.checked_sub(1)?.max(first);
        if first / LONGEST != last / LONGEST {
            return None;
        }
        *fixed.pieces.get(first / LONGEST)?
    }
}

impl FixedRegion {
    fn unregistered(region: &Region) -> Self {
        Self {
            region: region.clone(),
            pieces: vec![None; region.len().div_ceil(LONGEST)],
        }
    }
}

#[cfg(test)]
mod tests {
    use nvmeof_memory::{Pages, Pool, PoolLayout};

    use super::*;

    #[test]
    fn buffer_within_one_piece_is_fixed() {
        // Buffer 341 starts in the first gibibyte and ends in the second.
        let layout = PoolLayout {
            count: 343,
            stride: 3 << 20,
            lead: 0,
        };
        let pool = Pool::new(layout, Pages::Normal).unwrap();
        let mut fixed = FixedRegion::unregistered(pool.region());
        assert_eq!(fixed.pieces, [None, None]);
        fixed.pieces = vec![Some(8), Some(9)];
        let fixed = Fixed {
            regions: vec![fixed],
            ..Fixed::default()
        };
        let mut bufs: Vec<Buf> = std::iter::from_fn(|| pool.take()).collect();
        let index = |n: usize, bufs: &[Buf]| fixed.own_index(&bufs[n]);
        assert_eq!(index(0, &bufs), Some(8));
        assert_eq!(index(340, &bufs), Some(8));
        assert_eq!(index(341, &bufs), None);
        assert_eq!(index(342, &bufs), Some(9));
        bufs[341].set_len(1 << 20).unwrap();
        assert_eq!(
            index(341, &bufs),
            Some(8),
            "its first mebibyte fits exactly"
        );
        bufs[341].set_view(1 << 20..2 << 20).unwrap();
        assert_eq!(index(341, &bufs), Some(9));
        assert_eq!(Fixed::default().own_index(&bufs[0]), None);
    }
}
