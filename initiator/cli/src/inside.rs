//! `nvmeof verify`, `copy` and `compare-write`.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use nvmeof_initiator::{Error, MultipathNamespace, Range, WriteOptions};
use nvmeof_initiator_core::CopyLimits;

use crate::args;
use crate::failure::Failure;
use crate::paths::Disk;
use crate::simple::{close, in_pieces, open, open_with, piece};

/// Most bytes of one Compare and Write.
const LONGEST: usize = 64 << 10;

/// `nvmeof verify`
pub(crate) async fn verify(args: &args::Verify) -> Result<(), Failure> {
    let as_nvme_cli = args.count.is_nlb().then_some("--nlb (-c)");
    args::check_start(&args.io.subsystem.target, args.start_block, as_nvme_cli)?;
    let disk = open(&args.io).await?;
    let start = args.start_block.unwrap_or(0);
    let namespace = disk.namespace();
    let rest = namespace.blocks().saturating_sub(start);
    let count = args.count.blocks().unwrap_or(rest);
    let verify = |lba, count| namespace.verify(lba, count);
    let result = in_pieces(namespace, (start, count), verify).await;
    close(disk, result).await
}

/// `nvmeof copy`
pub(crate) async fn copy(args: &args::Copy) -> Result<(), Failure> {
    let from = args.from.pairs()?;
    let options = WriteOptions {
        fua: args.force_unit_access,
    };
    // The command sends up to 256 source ranges.
    let disk = open_with(&args.io, 8192).await?;
    let result = copy_pieces(disk.namespace(), &from, args.to, options).await;
    close(disk, result).await
}

/// Copies one piece after the other: after the loss of its path, only that piece is copied again.
async fn copy_pieces(
    namespace: &MultipathNamespace,
    from: &[Range],
    to: u64,
    options: WriteOptions,
) -> Result<(), Error> {
    // An invalid copy is refused as a whole, before a piece of it is copied. The source of one
    // piece may overlap the destination of another one.
    if !is_valid(namespace.blocks(), from, to) {
        return namespace.copy(from, to, options).await;
    }
    let most = u32::try_from(piece(namespace)).unwrap_or(u32::MAX);
    let limits = CopyLimits {
        range: most,
        total: most,
        count: usize::MAX,
    };
    for part in limits.cut(to, from) {
        namespace.copy(&part.from, part.to, options).await?;
    }
    Ok(())
}

/// Whether all blocks are among `blocks`, and no source overlaps the destination.
fn is_valid(blocks: u64, from: &[Range], to: u64) -> bool {
    let counts = from.iter().map(|range| u64::from(range.count));
    let end = to.checked_add(counts.fold(0, u64::saturating_add));
    let Some(end) = end.filter(|end| *end <= blocks) else {
        return false;
    };
    from.iter().all(|range| {
        let last = range.slba.checked_add(range.count.into());
        last.is_some_and(|last| last <= blocks && (range.slba >= end || to >= last))
    })
}

/// `nvmeof compare-write`
pub(crate) async fn compare_write(args: &args::CompareWrite) -> Result<(), Failure> {
    let [expected, new] = [&args.compare, &args.data].map(|path| content(path));
    let (expected, new) = (expected?, new?);
    if expected.len() != new.len() {
        return Err(Failure::new(format!(
            "{} has {} bytes, {} has {}",
            args.compare.display(),
            expected.len(),
            args.data.display(),
            new.len()
        ))
        .with_remedy("give two files of the same length"));
    }
    let longest = expected.len().saturating_mul(2).max(4096);
    let disk = open_with(&args.io, longest).await?;
    let result = exchange(&disk, args, &expected, &new).await;
    close(disk, result).await
}

async fn exchange(
    disk: &Disk,
    args: &args::CompareWrite,
    expected: &[u8],
    new: &[u8],
) -> Result<(), Error> {
    let mut buf = disk.host().buffer(expected.len() + new.len())?;
    let bytes = expected.iter().chain(new);
    for (to, from) in buf.iter_mut().zip(bytes) {
        *to = *from;
    }
    let options = WriteOptions {
        fua: args.force_unit_access,
    };
    let lba = args.start_block;
    let ended = disk.namespace().compare_and_write(lba, buf, options).await;
    Ok(ended.map(drop)?)
}

/// The content of a file or of standard input.
fn content(path: &Path) -> Result<Vec<u8>, Failure> {
    let failed = |error| Failure::file(path, &error);
    let from: Box<dyn Read> = if path == Path::new("-") {
        Box::new(io::stdin().lock())
    } else {
        Box::new(File::open(path).map_err(failed)?)
    };
    let mut bytes = Vec::new();
    let most = u64::try_from(LONGEST).unwrap_or(u64::MAX) + 1;
    from.take(most).read_to_end(&mut bytes).map_err(failed)?;
    if bytes.len() > LONGEST {
        let text = format!("{} has more than {LONGEST} bytes", path.display());
        let remedy =
            "give at most what the namespace compares and writes atomically (id-ns: nacwu)";
        return Err(Failure::new(text).with_remedy(remedy));
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_beyond_the_end_or_over_their_sources_are_invalid() {
        let range = |slba, count| Range { slba, count };
        let valid = |from: &[Range], to| is_valid(100, from, to);
        assert!(valid(&[range(0, 10), range(90, 10)], 20));
        assert!(valid(&[range(0, 10)], 10) && valid(&[range(10, 10)], 0));
        // The second range overlaps the part of the destination that the first one is copied to.
        assert!(!valid(&[range(0, 10), range(20, 10)], 20));
        assert!(!valid(&[range(0, 10)], 9) && !valid(&[range(9, 10)], 0));
        assert!(!valid(&[range(91, 10)], 0) && !valid(&[range(0, 10)], 91));
        assert!(!valid(&[range(u64::MAX, 10)], 0) && !valid(&[range(0, 10)], u64::MAX));
    }
}
