//! Buffers of zeroes to write where the file system cannot zero ranges, and the operations
//! that it turned out not to support.

use nix::errno::Errno;
use nvmeof_memory::{Buf, Pages, Pool, PoolLayout};

/// Bytes of one buffer of zeroes.
const PIECE: usize = 128 << 10;
/// Buffers that are written at the same time.
const PIECES: usize = 4;

/// State of zeroing ranges in one file.
#[derive(Default)]
pub(super) struct Zeroes {
    /// Punching holes is not supported.
    pub(super) no_punch: bool,
    /// Zeroing ranges is not supported.
    pub(super) no_zero_range: bool,
    /// Made at first use. Its buffers stay zero.
    pool: Option<Pool>,
}

impl Zeroes {
    /// Up to `len` bytes of zeroes, `None` when all buffers are in use.
    pub(super) fn take(&mut self, len: u64) -> Result<Option<Buf>, Errno> {
        let pool = match &self.pool {
            Some(pool) => pool,
            None => {
                let layout = PoolLayout {
                    count: PIECES,
                    stride: PIECE,
                    lead: 0,
                };
                let pool = Pool::new(layout, Pages::Normal).map_err(|_| Errno::ENOMEM)?;
                self.pool.insert(pool)
            }
        };
        let Some(mut piece) = pool.take() else {
            return Ok(None);
        };
        let len = usize::try_from(len).unwrap_or(PIECE).min(PIECE);
        piece.set_len(len).map_err(|_| Errno::EINVAL)?;
        Ok(Some(piece))
    }
}
