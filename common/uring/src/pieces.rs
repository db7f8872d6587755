//! Registering pieces of memory with the kernel, and why it refuses more.

use std::fmt;

use io_uring::Submitter;
use nix::errno::Errno;
use nix::sys::resource::{Resource, getrlimit};

use crate::errno::errno_of;

/// Why memory was not registered as fixed buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotRegistered {
    /// The limit on locked memory, in bytes: `RLIMIT_MEMLOCK`, over all rings
    /// of the user.
    Limit(u64),
    /// Before Linux 5.19 there are no sparse tables of buffers.
    OldKernel,
    /// Another error.
    Kernel(Errno),
}

impl NotRegistered {
    pub(crate) fn of(errno: Errno, limit: Option<u64>) -> Self {
        match (errno, limit) {
            (Errno::ENOMEM, Some(limit)) => Self::Limit(limit),
            _ => Self::Kernel(errno),
        }
    }
}

impl fmt::Display for NotRegistered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Limit(limit) => write!(
                f,
                "the limit on locked memory (RLIMIT_MEMLOCK) is {limit} bytes; raise it with \
                 `ulimit -l unlimited`, LimitMEMLOCK=infinity in a systemd unit, or a memlock \
                 line in /etc/security/limits.conf"
            ),
            Self::OldKernel => write!(f, "registration requires Linux 5.19 or later"),
            Self::Kernel(errno) => {
                write!(f, "the kernel refuses them ({errno}); check `dmesg`")
            }
        }
    }
}

/// Has the kernel lock `len` bytes at `addr`, all of them mapped memory of a region, as the
/// fixed buffer `index`. It keeps the pages also after they are unmapped.
pub(crate) fn register_piece(
    submitter: &Submitter<'_>,
    index: u16,
    addr: u64,
    len: usize,
) -> Result<(), Errno> {
    let addr = usize::try_from(addr).map_err(|_| Errno::EFAULT)?;
    let piece = libc::iovec {
        iov_base: std::ptr::with_exposed_provenance_mut(addr),
        iov_len: len,
    };
    update(submitter, index, piece)
}

/// Has the kernel release them, after the operations that use them.
pub(crate) fn clear_piece(submitter: &Submitter<'_>, index: u16) -> Result<(), Errno> {
    let nothing = libc::iovec {
        iov_base: std::ptr::null_mut(),
        iov_len: 0,
    };
    update(submitter, index, nothing)
}

fn update(submitter: &Submitter<'_>, index: u16, piece: libc::iovec) -> Result<(), Errno> {
    // The kernel requires a tag for each entry.
    let tags = [0];
    // SAFETY: the kernel takes hold of the pages that are mapped there at this
    // moment, and answers EFAULT where there are none. Registering touches no
    // bytes; operations do, each in the view of a `Buf` that it owns, and
    // `Fixed` and `Lent` return an index only for a `Buf` of the region that was
    // registered there, which is mapped as long as that `Buf` lives.
    unsafe { submitter.register_buffers_update(u32::from(index), &[piece], Some(&tags)) }
        .map_err(|error| errno_of(&error))
}

/// `CAP_IPC_LOCK` in capabilities(7): may lock memory beyond the limit.
const CAP_IPC_LOCK: u32 = 14;

/// The limit on locked memory in bytes, `None` when there is none for this process.
pub(crate) fn locked_memory_limit() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let effective = effective.and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok());
    if effective.is_some_and(|bits| bits >> CAP_IPC_LOCK & 1 == 1) {
        return None;
    }
    let (soft, _) = getrlimit(Resource::RLIMIT_MEMLOCK).ok()?;
    (soft != libc::RLIM_INFINITY).then_some(soft)
}
