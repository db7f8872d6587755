//! `nvmeof read`, `write` and `compare`: blocks to and from files and pipes,
//! several transfers at a time.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, IsTerminal, Read, Write};
use std::path::Path;

use indicatif::{ProgressBar, ProgressStyle};
use nvmeof_initiator::{Buf, Error, Failed, Namespace, WriteOptions};
use tokio::task::JoinHandle;

use crate::args;
use crate::failure::Failure;
use crate::simple::{close, open_at};

/// Bytes of one transfer.
const CHUNK: usize = 256 << 10;
/// Transfers in flight.
const DEPTH: usize = 16;

/// Connects with the buffers that transfers take.
async fn open(io: &args::Io) -> Result<Namespace, Failure> {
    open_at(io.subsystem.target.host_for(DEPTH, CHUNK)?, io).await
}

/// `nvmeof read`
pub(crate) async fn read(args: &args::Read) -> Result<(), Failure> {
    let namespace = open(&args.io).await?;
    let result = read_all(&namespace, &args.run).await;
    close(namespace, result).await
}

async fn read_all(namespace: &Namespace, run: &args::Run) -> Result<(), Failure> {
    let rest = namespace.blocks().saturating_sub(run.start_block);
    let count = run.block_count.unwrap_or(rest);
    fits(namespace, run.start_block, count)?;
    let mut to = sink(&run.data)?;
    let mut transfers = Transfers::new(Direction::Read, namespace, run.start_block);
    transfers.announce(count);
    let mut left = count;
    loop {
        while left > 0 && transfers.has_room() {
            let blocks = transfers.chunk.min(left);
            let buf = transfers.buffer(blocks)?;
            transfers.start(buf);
            left -= blocks;
        }
        let Some(buf) = transfers.next().await? else {
            break;
        };
        if let Err(error) = to.write_all(&buf) {
            // Whoever reads the pipe has had enough.
            if error.kind() == io::ErrorKind::BrokenPipe {
                return Ok(());
            }
            return Err(Failure::file(&run.data, &error));
        }
    }
    to.flush().map_err(|error| Failure::file(&run.data, &error))
}

/// `nvmeof write`
pub(crate) async fn write(args: &args::Write) -> Result<(), Failure> {
    let options = WriteOptions {
        fua: args.force_unit_access,
    };
    let namespace = open(&args.io).await?;
    let result = send_all(&namespace, &args.run, Direction::Write(options)).await;
    close(namespace, result).await
}

/// `nvmeof compare`
pub(crate) async fn compare(args: &args::Compare) -> Result<(), Failure> {
    let namespace = open(&args.io).await?;
    let result = send_all(&namespace, &args.run, Direction::Compare).await;
    close(namespace, result).await
}

async fn send_all(
    namespace: &Namespace,
    run: &args::Run,
    direction: Direction,
) -> Result<(), Failure> {
    let mut from = source(&run.data)?;
    let expected = match from.len {
        Some(len) => {
            let blocks = whole_blocks(namespace, &run.data, len)?;
            if let Some(count) = run.block_count.filter(|count| *count != blocks) {
                return Err(Failure::new(format!(
                    "{} has {blocks} blocks, --block-count says {count}",
                    run.data.display()
                ))
                .with_remedy("leave --block-count out, or give a file of that length"));
            }
            Some(blocks)
        }
        None => run.block_count,
    };
    fits(namespace, run.start_block, expected.unwrap_or(0))?;
    let mut transfers = Transfers::new(direction, namespace, run.start_block);
    if let Some(blocks) = expected {
        transfers.announce(blocks);
    }
    let result = pump(&mut from, run, expected, &mut transfers).await;
    // What was started ends before the connection does.
    let rest = transfers.finish().await;
    result.and(rest)
}

/// Sends what `from` has.
async fn pump(
    from: &mut Source,
    run: &args::Run,
    expected: Option<u64>,
    transfers: &mut Transfers<'_>,
) -> Result<(), Failure> {
    let namespace = transfers.namespace;
    let block_size = u64::from(namespace.block_size());
    let name = match run.data.to_str() {
        Some("-") => "standard input".to_owned(),
        _ => run.data.display().to_string(),
    };
    let mut sent = 0;
    loop {
        let most = expected.map_or(transfers.chunk, |all| transfers.chunk.min(all - sent));
        if most == 0 {
            return Ok(());
        }
        if !transfers.has_room() {
            transfers.next().await?;
        }
        let mut buf = transfers.buffer(most)?;
        let got = from
            .fill(&mut buf)
            .map_err(|e| Failure::file(&run.data, &e))?;
        let bytes = u64::try_from(got).unwrap_or(u64::MAX);
        let blocks = bytes / block_size;
        if !bytes.is_multiple_of(block_size) {
            return Err(Failure::new(format!(
                "{name} ends after {} bytes, which is not a whole number of blocks of {block_size} \
                 bytes; {sent} blocks were sent",
                sent * block_size + bytes,
            ))
            .with_remedy("pad the data to a multiple of the block size"));
        }
        if blocks < most
            && let Some(expected) = expected
        {
            return Err(Failure::new(format!(
                "{name} ends after {} blocks, {expected} were expected; {sent} blocks were sent",
                sent + blocks
            )));
        }
        if blocks == 0 {
            return Ok(());
        }
        fits(namespace, run.start_block + sent, blocks)?;
        buf.set_len(got).map_err(|e| Failure::new(e.to_string()))?;
        transfers.start(buf);
        sent += blocks;
        if blocks < most {
            return Ok(());
        }
    }
}

/// Which way, and how.
#[derive(Clone, Copy, Debug)]
enum Direction {
    Read,
    Write(WriteOptions),
    Compare,
}

/// Transfers in flight, in order.
struct Transfers<'a> {
    namespace: &'a Namespace,
    direction: Direction,
    /// Block of the next transfer.
    at: u64,
    /// Most blocks of a transfer.
    chunk: u64,
    in_flight: VecDeque<JoinHandle<Result<Buf, Failed>>>,
    /// Buffers that came back.
    spare: Vec<Buf>,
    bar: ProgressBar,
}

impl<'a> Transfers<'a> {
    fn new(direction: Direction, namespace: &'a Namespace, at: u64) -> Self {
        let block_size = u64::from(namespace.block_size());
        Self {
            namespace,
            direction,
            at,
            chunk: (u64::try_from(CHUNK).unwrap_or(u64::MAX) / block_size).max(1),
            in_flight: VecDeque::with_capacity(DEPTH),
            spare: Vec::with_capacity(DEPTH),
            bar: progress(),
        }
    }

    fn announce(&self, blocks: u64) {
        let block_size = u64::from(self.namespace.block_size());
        self.bar.set_length(blocks.saturating_mul(block_size));
    }

    fn has_room(&self) -> bool {
        self.in_flight.len() < DEPTH
    }

    fn buffer(&mut self, blocks: u64) -> Result<Buf, Failure> {
        let len = blocks.saturating_mul(self.namespace.block_size().into());
        let len = usize::try_from(len).unwrap_or(usize::MAX);
        let Some(mut buf) = self.spare.pop() else {
            let mut buf = self.namespace.controller().alloc(CHUNK)?;
            buf.set_len(len).map_err(|e| Failure::new(e.to_string()))?;
            return Ok(buf);
        };
        buf.set_len(len).map_err(|e| Failure::new(e.to_string()))?;
        Ok(buf)
    }

    fn start(&mut self, buf: Buf) {
        let (namespace, direction, lba) = (self.namespace.clone(), self.direction, self.at);
        let blocks = buf.len() as u64 / u64::from(namespace.block_size());
        self.at += blocks;
        self.in_flight.push_back(tokio::spawn(async move {
            match direction {
                Direction::Read => namespace.read(lba, buf).await,
                Direction::Write(options) => namespace.write(lba, buf, options).await,
                Direction::Compare => namespace.compare(lba, buf).await,
            }
        }));
    }

    /// Waits for the oldest transfer. What it read is in the buffer, which is
    /// kept for the next one when it is given back as [`Spare`].
    async fn next(&mut self) -> Result<Option<Spare<'_>>, Failure> {
        let Some(task) = self.in_flight.pop_front() else {
            return Ok(None);
        };
        let ended = task
            .await
            .map_err(|error| Failure::new(format!("a transfer was stopped: {error}")))?;
        let buf = ended.map_err(Error::from)?;
        self.bar.inc(buf.len() as u64);
        Ok(Some(Spare {
            buf: Some(buf),
            home: &mut self.spare,
        }))
    }

    async fn finish(&mut self) -> Result<(), Failure> {
        let mut result = Ok(());
        loop {
            match self.next().await {
                Ok(Some(_)) => {}
                Ok(None) => break,
                Err(failure) => result = result.and(Err(failure)),
            }
        }
        self.bar.finish_and_clear();
        result
    }
}

/// What came back; reads as its bytes, and goes back to the spare buffers when
/// it is dropped.
struct Spare<'a> {
    buf: Option<Buf>,
    home: &'a mut Vec<Buf>,
}

impl std::ops::Deref for Spare<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.buf.as_deref().unwrap_or_default()
    }
}

impl Drop for Spare<'_> {
    fn drop(&mut self) {
        self.home.extend(self.buf.take());
    }
}

/// A bar on a terminal, nothing on a pipe.
fn progress() -> ProgressBar {
    if !io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let template = "{bytes:>10} of {total_bytes:<10} {bar:24} {bytes_per_sec:>12} {eta:>4}";
    let bar = ProgressBar::no_length();
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style);
    }
    bar
}

fn fits(namespace: &Namespace, start: u64, count: u64) -> Result<(), Failure> {
    let blocks = namespace.blocks();
    if start.checked_add(count).is_some_and(|end| end <= blocks) {
        return Ok(());
    }
    let nsid = namespace.nsid();
    Err(Failure::new(format!(
        "{count} blocks from block {start} do not fit namespace {nsid}, which has {blocks} blocks \
         of {} bytes",
        namespace.block_size()
    ))
    .with_remedy("nothing was sent; choose another --start-block or less data"))
}

/// Blocks of a file, which has a whole number of them.
fn whole_blocks(namespace: &Namespace, path: &Path, len: u64) -> Result<u64, Failure> {
    let block_size = u64::from(namespace.block_size());
    let rest = len % block_size;
    if rest == 0 {
        return Ok(len / block_size);
    }
    let padded = len - rest + block_size;
    Err(Failure::new(format!(
        "{} has {len} bytes, which is not a whole number of blocks of {block_size} bytes \
         ({rest} bytes are left over)",
        path.display()
    ))
    .with_remedy(format!(
        "nothing was sent; extend the file, which keeps its data:\n  truncate -s {padded} {}",
        path.display()
    )))
}

/// Where data goes: a file that is made or emptied, or standard output.
fn sink(path: &Path) -> Result<Box<dyn Write>, Failure> {
    if path == Path::new("-") {
        return Ok(Box::new(io::stdout().lock()));
    }
    let file = File::create(path).map_err(|error| Failure::file(path, &error))?;
    Ok(Box::new(file))
}

/// Where data comes from.
struct Source {
    reader: Box<dyn Read>,
    /// Length in bytes where that is known before.
    len: Option<u64>,
}

fn source(path: &Path) -> Result<Source, Failure> {
    if path == Path::new("-") {
        let reader = Box::new(io::stdin().lock());
        return Ok(Source { reader, len: None });
    }
    let file = File::open(path).map_err(|error| Failure::file(path, &error))?;
    let metadata = file
        .metadata()
        .map_err(|error| Failure::file(path, &error))?;
    let len = metadata.is_file().then_some(metadata.len());
    Ok(Source {
        reader: Box::new(file),
        len,
    })
}

impl Source {
    /// Fills `buf` as far as there is data; how far.
    fn fill(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let mut filled = 0;
        while let Some(rest) = buf.get_mut(filled..).filter(|rest| !rest.is_empty()) {
            match self.reader.read(rest) {
                Ok(0) => break,
                Ok(got) => filled += got,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(filled)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Gives its data a few bytes at a time, as a pipe does.
    struct Trickle(Vec<u8>);

    impl Read for Trickle {
        fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
            let n = self.0.len().min(buf.len()).min(3);
            buf[..n].copy_from_slice(&self.0[..n]);
            self.0.drain(..n);
            Ok(n)
        }
    }

    #[test]
    fn a_pipe_fills_buffers() {
        let mut source = Source {
            reader: Box::new(Trickle((0..20).collect())),
            len: None,
        };
        let mut buf = [0; 16];
        assert_eq!(source.fill(&mut buf).unwrap(), 16);
        assert!(buf.iter().copied().eq(0..16));
        assert_eq!(source.fill(&mut buf).unwrap(), 4);
        assert_eq!(source.fill(&mut buf).unwrap(), 0);
    }

    #[test]
    fn missing_files_are_named() {
        let path = Path::new("/nonexistent/file");
        assert!(source(path).is_err());
        assert!(sink(path).is_err());
    }
}
