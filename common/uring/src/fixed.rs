//! Fixed buffers: regions the kernel has mapped once and for all.

use std::fmt;

use io_uring::Submitter;
use nix::errno::Errno;
use nix::sys::resource::{Resource, getrlimit};
use nvmeof_memory::{Buf, Region};

use crate::start::errno_of;

/// What became of registering regions as fixed buffers. Displays as one line
/// for the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Registered {
    /// Bytes registered.
    pub registered: u64,
    /// Bytes used without registration.
    pub left_out: u64,
    /// Why some were left out, `None` when none were.
    pub why: Option<LeftOut>,
}

/// Why bytes were left out of the fixed buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeftOut {
    /// The limit on locked memory, in bytes: `RLIMIT_MEMLOCK`, over all rings
    /// of the user.
    Limit(u64),
    /// Before Linux 5.19 there is no table that can be filled bit by bit.
    OldKernel,
    /// Another error.
    Kernel(Errno),
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
            "{left_out} of {all} bytes of buffers not registered with io_uring: disk I/O with \
             them works, but the kernel maps their pages again for each request, which costs \
             some processor time; "
        )?;
        match why {
            LeftOut::Limit(limit) => write!(
                f,
                "the limit on locked memory (RLIMIT_MEMLOCK) is {limit} bytes; raise it with \
                 `ulimit -l unlimited`, LimitMEMLOCK=infinity in a systemd unit, or a memlock \
                 line in /etc/security/limits.conf"
            ),
            LeftOut::OldKernel => write!(f, "Linux 5.19 or later would register them"),
            LeftOut::Kernel(errno) => write!(f, "the kernel said {errno}"),
        }
    }
}

/// The kernel's limit for one fixed buffer. A longer region takes several.
const LONGEST: usize = 1 << 30;
/// The kernel's limit for the number of fixed buffers of a ring.
const MOST: usize = 1 << 14;
/// `CAP_IPC_LOCK` in capabilities(7): may lock memory beyond the limit.
const CAP_IPC_LOCK: u32 = 14;

/// The regions of a ring and which of them are registered.
#[derive(Debug, Default)]
pub(crate) struct Fixed {
    table: bool,
    regions: Vec<FixedRegion>,
}

#[derive(Debug)]
struct FixedRegion {
    /// Keeps the memory mapped as long as it is registered.
    region: Region,
    /// Place in the kernel's table for each `LONGEST` bytes.
    pieces: Vec<Option<u16>>,
}

impl Fixed {
    /// Registers as much of `regions`, in this order, as the kernel lets us,
    /// instead of what was registered before.
    pub(crate) fn register<'a>(
        &mut self,
        submitter: &Submitter<'_>,
        regions: impl Iterator<Item = &'a Region>,
    ) -> Registered {
        if self.table {
            // Fails only when there is no table.
            let _ = submitter.unregister_buffers();
        }
        self.regions = regions.map(FixedRegion::unregistered).collect();
        let count: usize = self.regions.iter().map(|region| region.pieces.len()).sum();
        let left_out = self.regions.iter().map(|it| it.region.len() as u64).sum();
        let mut told = Registered {
            registered: 0,
            left_out,
            why: None,
        };
        if left_out == 0 {
            return told;
        }
        let Some(table) = u32::try_from(count).ok().filter(|_| count <= MOST) else {
            told.why = Some(LeftOut::Kernel(Errno::E2BIG));
            return told;
        };
        self.table = submitter.register_buffers_sparse(table).is_ok();
        if !self.table {
            told.why = Some(LeftOut::OldKernel);
            return told;
        }
        self.fill(submitter, &mut told);
        told
    }

    fn fill(&mut self, submitter: &Submitter<'_>, told: &mut Registered) {
        let limit = locked_memory_limit();
        let mut places = 0u16..;
        for fixed in &mut self.regions {
            let (start, len) = (fixed.region.addr(), fixed.region.len());
            for (n, piece) in fixed.pieces.iter_mut().enumerate() {
                let Some(place) = places.next() else { return };
                let bytes = LONGEST.min(len - n * LONGEST);
                // Registering makes the kernel populate every page before it
                // finds that there are too many.
                let registered = if limit.is_some_and(|limit| bytes as u64 > limit) {
                    Err(Errno::ENOMEM)
                } else {
                    let addr = start + (n * LONGEST) as u64;
                    register_piece(submitter, place, addr, bytes)
                };
                match registered {
                    Ok(()) => {
                        *piece = Some(place);
                        told.registered += bytes as u64;
                        told.left_out -= bytes as u64;
                    }
                    Err(errno) => {
                        let why = match (errno, limit) {
                            (Errno::ENOMEM, Some(limit)) => LeftOut::Limit(limit),
                            _ => LeftOut::Kernel(errno),
                        };
                        told.why.get_or_insert(why);
                    }
                }
            }
        }
    }

    /// All regions, registered or not.
    pub(crate) fn regions(&self) -> impl Iterator<Item = &Region> {
        self.regions.iter().map(|fixed| &fixed.region)
    }

    /// The fixed buffer all of `buf`'s view lies in, if there is one.
    pub(crate) fn place(&self, buf: &Buf) -> Option<u16> {
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

fn register_piece(
    submitter: &Submitter<'_>,
    place: u16,
    addr: u64,
    len: usize,
) -> Result<(), Errno> {
    let addr = usize::try_from(addr).map_err(|_| Errno::EFAULT)?;
    let piece = libc::iovec {
        iov_base: std::ptr::with_exposed_provenance_mut(addr),
        iov_len: len,
    };
    // The kernel insists on a tag for each when told of the length.
    let tags = [0];
    // SAFETY: the piece lies inside a region that `Fixed` keeps a clone of
    // until the table is unregistered or the ring is gone; registering alone
    // does not touch the bytes, operations do, which own their `Buf`.
    unsafe { submitter.register_buffers_update(u32::from(place), &[piece], Some(&tags)) }
        .map_err(|error| errno_of(&error))
}

/// The limit on locked memory in bytes, `None` when there is none for us.
fn locked_memory_limit() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let effective = effective.and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok());
    if effective.is_some_and(|bits| bits >> CAP_IPC_LOCK & 1 == 1) {
        return None;
    }
    let (soft, _) = getrlimit(Resource::RLIMIT_MEMLOCK).ok()?;
    (soft != libc::RLIM_INFINITY).then_some(soft)
}

#[cfg(test)]
mod tests {
    use nvmeof_memory::{Pages, Pool, PoolLayout};

    use super::*;

    #[test]
    fn a_buffer_is_fixed_when_one_piece_has_all_of_it() {
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
            table: false,
            regions: vec![fixed],
        };
        let mut bufs: Vec<Buf> = std::iter::from_fn(|| pool.take()).collect();
        let place = |n: usize, bufs: &[Buf]| fixed.place(&bufs[n]);
        assert_eq!(place(0, &bufs), Some(8));
        assert_eq!(place(340, &bufs), Some(8));
        assert_eq!(place(341, &bufs), None);
        assert_eq!(place(342, &bufs), Some(9));
        bufs[341].set_len(1 << 20).unwrap();
        assert_eq!(
            place(341, &bufs),
            Some(8),
            "its first mebibyte fits exactly"
        );
        bufs[341].set_view(1 << 20..2 << 20).unwrap();
        assert_eq!(place(341, &bufs), Some(9));
        assert_eq!(Fixed::default().place(&bufs[0]), None);
    }
}
