//! Commands on a namespace without a data transfer.

use indicatif::ProgressBar;
use nvmeof_initiator::{Error, MultipathNamespace, ZeroOptions};

use crate::args;
use crate::failure::Failure;
use crate::paths::Disk;

/// Bytes of one call: after the loss of its path, a call is made again from its start.
const PIECE: u64 = 1 << 30;

/// Blocks of one call.
pub(crate) fn piece(namespace: &MultipathNamespace) -> u64 {
    (PIECE / u64::from(namespace.block_size())).max(1)
}

/// `nvmeof flush`
pub(crate) async fn flush(args: &args::Flush) -> Result<(), Failure> {
    let disk = open(&args.io).await?;
    let result = disk.namespace().flush().await;
    close(disk, result).await
}

/// `nvmeof write-zeroes`
pub(crate) async fn write_zeroes(args: &args::WriteZeroes) -> Result<(), Failure> {
    let count = args.count.required()?;
    let disk = open(&args.io).await?;
    let options = ZeroOptions {
        fua: args.force_unit_access,
        deallocate: args.deac,
    };
    let namespace = disk.namespace();
    let zero = |lba, count| namespace.write_zeroes(lba, count, options);
    let result = in_pieces(namespace, (args.start_block, count), zero).await;
    close(disk, result).await
}

/// `nvmeof dsm`
pub(crate) async fn deallocate(args: &args::Dsm) -> Result<(), Failure> {
    let ranges = args.ranges.pairs()?;
    let disk = open(&args.io).await?;
    let result = disk.namespace().deallocate(&ranges).await;
    close(disk, result).await
}

/// Makes `call` for one piece after the other of the `count` blocks from `start`.
pub(crate) async fn in_pieces<F>(
    namespace: &MultipathNamespace,
    (start, count): (u64, u64),
    call: impl Fn(u64, u64) -> F,
) -> Result<(), Error>
where
    F: Future<Output = Result<(), Error>>,
{
    let end = start.checked_add(count);
    // A range beyond the end is refused as a whole, before a piece of it is changed.
    if end.is_none_or(|end| end > namespace.blocks()) {
        return call(start, count).await;
    }
    for (lba, count) in pieces(start, count, piece(namespace)) {
        call(lba, count).await?;
    }
    Ok(())
}

/// The first block and the number of blocks of each piece, at most `most` blocks.
fn pieces(start: u64, count: u64, most: u64) -> impl Iterator<Item = (u64, u64)> {
    let mut done = 0;
    std::iter::from_fn(move || {
        let some = (count - done).min(most);
        let piece = (start + done, some);
        done += some;
        (some > 0).then_some(piece)
    })
}

/// Connects to the namespace of `io`, with a buffer of 4096 bytes for a command on each path: the
/// queue of a lost path can keep its buffer for a while.
pub(crate) async fn open(io: &args::Io) -> Result<Disk, Failure> {
    open_with(io, 4096).await
}

/// The same with buffers of `longest` bytes.
pub(crate) async fn open_with(io: &args::Io, longest: usize) -> Result<Disk, Failure> {
    let target = &io.subsystem.target;
    let host = target.host_for(target.paths().saturating_add(1), longest)?;
    Disk::open(host, io, ProgressBar::hidden()).await
}

/// Disconnects, whatever the result was.
pub(crate) async fn close(disk: Disk, result: Result<(), Error>) -> Result<(), Failure> {
    disk.close(result.map_err(Failure::from)).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_have_all_blocks_once() {
        let of = |start, count, most| pieces(start, count, most).collect::<Vec<_>>();
        assert_eq!(of(3, 10, 4), [(3, 4), (7, 4), (11, 2)]);
        assert_eq!(of(0, 8, 4), [(0, 4), (4, 4)]);
        assert_eq!(of(u64::MAX - 1, 1, u64::MAX), [(u64::MAX - 1, 1)]);
        assert!(of(5, 0, 4).is_empty());
    }
}
