//! Sizes of a reactor's buffers, and their validation.

use nvmeof_memory::{Pool, PoolError, PoolLayout};
use nvmeof_target_core::Limits;
use nvmeof_wire::fabrics::CONNECT_DATA_LEN;

use super::ReactorConfig;
use crate::queue::{KINDS, all_admin_capsules};

/// Data in a capsule begin on a page boundary, for backing stores that require alignment.
pub(super) const PAGE: usize = 4096;
pub(super) const SQE_LEN: usize = nvmeof_wire::sqe::SQE_LEN;
/// Maximum number of buffers of the longest kind that one command needs: a Compare's.
pub const LONGEST_AT_ONCE: usize = 2;

/// Bytes from one capsule to the next: the command before a page boundary, the data
/// behind it. The data of a Connect fit in any case, because they are pulled there.
#[must_use]
pub fn capsule_stride(in_capsule: usize) -> usize {
    PAGE + in_capsule.max(CONNECT_DATA_LEN).next_multiple_of(PAGE)
}

/// Bytes of a capsule of an admin queue: a command, and behind it the data of a
/// Connect. In-capsule data of I/O queues (IOCCSZ) do not apply to it.
pub(crate) const ADMIN_CAPSULE: usize = SQE_LEN + CONNECT_DATA_LEN;

/// Capsules for the admin queues of a reactor that has so many `capsules` for I/O queues.
/// They take at most 3 % to 27 % of the memory of these, less with longer in-capsule data.
pub(super) fn admin_capsules(limits: &Limits, capsules: usize) -> usize {
    all_admin_capsules(limits).min(capsules.saturating_mul(2))
}

/// The capsule pools for I/O queues and for admin queues.
pub(super) fn capsule_pools(
    config: &ReactorConfig,
    limits: &Limits,
) -> Result<[Pool; 2], ReactorError> {
    let in_capsule = usize::try_from(limits.in_capsule).unwrap_or(0);
    let io = PoolLayout {
        count: config.capsules,
        stride: capsule_stride(in_capsule),
        lead: PAGE - SQE_LEN,
    };
    let admin = PoolLayout {
        count: admin_capsules(limits, config.capsules),
        stride: ADMIN_CAPSULE,
        lead: 0,
    };
    Ok([
        Pool::new(io, config.pages)?,
        Pool::new(admin, config.pages)?,
    ])
}

/// A reactor cannot be created.
#[derive(Debug, thiserror::Error)]
pub enum ReactorError {
    /// The buffers cannot be allocated.
    #[error(transparent)]
    Buffers(#[from] PoolError),
    /// Some commands could never be served.
    #[error("there are {there} buffers of {max_transfer} bytes or more, at least 2 are needed")]
    TooFewLongest {
        /// Number of such buffers.
        there: usize,
        /// Longest data of a command.
        max_transfer: usize,
    },
    /// Some kinds could not be distinguished.
    #[error("there are {there} kinds of buffers, at most {KINDS} are supported")]
    TooManyKinds {
        /// Number of kinds.
        there: usize,
    },
}

/// Checks that a reactor of these sizes can serve every command.
pub(super) fn check(config: &ReactorConfig, limits: &Limits) -> Result<(), ReactorError> {
    let max_transfer = usize::try_from(limits.max_transfer).unwrap_or(usize::MAX);
    let longest = config.data.iter().filter(|class| class.len >= max_transfer);
    let there = longest.map(|class| class.count).sum();
    if there < LONGEST_AT_ONCE {
        return Err(ReactorError::TooFewLongest {
            there,
            max_transfer,
        });
    }
    let there = config.data.len();
    if there > KINDS {
        return Err(ReactorError::TooManyKinds { there });
    }
    Ok(())
}
