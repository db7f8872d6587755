//! `nvmeof read`, `write` and `compare`: transfers blocks to and from files and pipes, with
//! several commands in flight.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, IsTerminal, Read, Write};
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use indicatif::{ProgressBar, ProgressStyle};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nvmeof_initiator::{Buf, Error, Failed, MultipathNamespace, WriteOptions};
use nvmeof_wire::text::ShellWord;
use tokio::task::JoinHandle;

use crate::args;
use crate::failure::{Failure, Printing};
use crate::interrupt::{Interrupt, Signal};
use crate::paths::Disk;

/// Bytes of one transfer.
const CHUNK: usize = 256 << 10;
/// Transfers in flight.
const DEPTH: usize = 16;
/// Milliseconds to wait for data before signals are checked.
const SIGNAL_CHECK_MS: u8 = 100;

/// Connects with the buffers of transfers.
async fn open(io: &args::Io, bar: &ProgressBar) -> Result<Disk, Failure> {
    let host = io.subsystem.target.host_for(DEPTH, CHUNK)?;
    Disk::open(host, io, bar.clone()).await
}

/// `nvmeof read`
pub(crate) async fn read(args: &args::Read) -> Result<(), Failure> {
    args.run.check(&args.io.subsystem.target)?;
    let bar = progress_bar();
    let disk = open(&args.io, &bar).await?;
    let printing = printing(&args.io, &args.run);
    let result = read_all(&disk, &args.run, bar, printing).await;
    disk.close(result).await
}

async fn read_all(
    disk: &Disk,
    run: &args::Run,
    bar: ProgressBar,
    printing: Printing,
) -> Result<(), Failure> {
    let namespace = disk.namespace();
    let extent = run.extent(namespace.block_size())?;
    let rest = namespace.blocks().saturating_sub(extent.start);
    let count = extent.count.unwrap_or(rest);
    fits(namespace, extent.start, count, CHOOSE_RANGE)?;
    let mut to = sink(&run.data)?;
    let mut transfers = Transfers::new(Direction::Read, disk, extent.start, bar);
    let interrupt = transfers.announce(Some(count), printing)?;
    let mut left = count;
    loop {
        while left > 0 && transfers.has_room() && interrupt.signal().is_none() {
            let blocks = transfers.chunk.min(left);
            let buf = transfers.buffer(blocks)?;
            transfers.start(buf);
            left -= blocks;
        }
        let Some(buf) = transfers.next().await? else {
            break;
        };
        if let Err(error) = to.write_all(&buf) {
            // The reader closed the pipe.
            if error.kind() == io::ErrorKind::BrokenPipe {
                return Ok(());
            }
            return Err(Failure::file(&run.data, &error));
        }
    }
    to.flush()
        .map_err(|error| Failure::file(&run.data, &error))?;
    transfers.was_interrupted(&interrupt)
}

fn printing(io: &args::Io, run: &args::Run) -> Printing {
    let format = io.subsystem.target.output_format;
    Printing::new((format, run.data == Path::new("-")))
}

/// `nvmeof write`
pub(crate) async fn write(args: &args::Write) -> Result<(), Failure> {
    let options = WriteOptions {
        fua: args.force_unit_access,
    };
    args.run.check(&args.io.subsystem.target)?;
    send(&args.io, &args.run, Direction::Write(options)).await
}

/// `nvmeof compare`
pub(crate) async fn compare(args: &args::Compare) -> Result<(), Failure> {
    args.run.check(&args.io.subsystem.target)?;
    send(&args.io, &args.run, Direction::Compare).await
}

async fn send(io: &args::Io, run: &args::Run, direction: Direction) -> Result<(), Failure> {
    let bar = progress_bar();
    let disk = open(io, &bar).await?;
    let printing = Printing::new((io.subsystem.target.output_format, false));
    let result = send_all(&disk, run, direction, bar, printing).await;
    disk.close(result).await
}

async fn send_all(
    disk: &Disk,
    run: &args::Run,
    direction: Direction,
    bar: ProgressBar,
    printing: Printing,
) -> Result<(), Failure> {
    let namespace = disk.namespace();
    let extent = run.extent(namespace.block_size())?;
    let mut from = source(&run.data)?;
    let expected = match from.len {
        Some(len) => {
            let blocks = whole_blocks(namespace, &run.data, len, direction)?;
            if let Some(count) = extent.count.filter(|count| *count != blocks) {
                return Err(Failure::new(format!(
                    "{} has {blocks} blocks, {}",
                    run.data.display(),
                    extent.length(count)
                ))
                .with_remedy(format!(
                    "leave {} out, or give a file of that length",
                    extent.option
                )));
            }
            Some(blocks)
        }
        None => extent.count,
    };
    let remedy = format!("{}; {CHOOSE_DATA}", direction.nothing_done());
    fits(namespace, extent.start, expected.unwrap_or(0), &remedy)?;
    let mut transfers = Transfers::new(direction, disk, extent.start, bar);
    let interrupt = transfers.announce(expected, printing)?;
    let result = pump(&mut from, &extent, expected, &mut transfers, &interrupt).await;
    // Transfers in flight complete before the connection is closed.
    let rest = transfers.finish().await;
    let result = result.and(rest);
    let result = result.map_err(|failure| transfers.with_progress(failure));
    result.and_then(|()| transfers.was_interrupted(&interrupt))
}

/// Sends the data of `from`.
async fn pump(
    from: &mut Source,
    extent: &args::Extent<'_>,
    expected: Option<u64>,
    transfers: &mut Transfers<'_>,
    interrupt: &Interrupt,
) -> Result<(), Failure> {
    let namespace = transfers.disk.namespace();
    let block_size = u64::from(namespace.block_size());
    let name = match extent.data.to_str() {
        Some("-") => "standard input".to_owned(),
        _ => extent.data.display().to_string(),
    };
    let mut sent = 0;
    loop {
        let most = expected.map_or(transfers.chunk, |all| transfers.chunk.min(all - sent));
        if most == 0 || interrupt.signal().is_some() {
            return Ok(());
        }
        if !transfers.has_room() {
            transfers.next().await?;
        }
        let mut buf = transfers.buffer(most)?;
        let got = from.fill(&mut buf, interrupt);
        let Some(got) = got.map_err(|e| Failure::file(extent.data, &e))? else {
            return Ok(());
        };
        let bytes = u64::try_from(got).unwrap_or(u64::MAX);
        let blocks = bytes / block_size;
        if !bytes.is_multiple_of(block_size) {
            return Err(Failure::new(format!(
                "{name} ends after {} bytes, which is not a whole number of blocks of {block_size} \
                 bytes; {sent} blocks were {}",
                sent * block_size + bytes,
                transfers.direction.sent(),
            ))
            .with_remedy("pad the data to a multiple of the block size"));
        }
        if blocks < most
            && let Some(expected) = expected
        {
            return Err(Failure::new(format!(
                "{name} ends after {} blocks, {expected} were expected; {sent} blocks were {}",
                sent + blocks,
                transfers.direction.sent(),
            ))
            .with_remedy(format!("give more data, or a smaller {}", extent.option)));
        }
        if blocks == 0 {
            return Ok(());
        }
        fits(namespace, extent.start + sent, blocks, CHOOSE_DATA)?;
        buf.set_len(got).map_err(|e| Failure::new(e.to_string()))?;
        transfers.start(buf);
        sent += blocks;
        if blocks < most {
            return Ok(());
        }
    }
}

/// The command of the transfers.
#[derive(Clone, Copy, Debug)]
enum Direction {
    Read,
    Write(WriteOptions),
    Compare,
}

impl Direction {
    /// The participle for blocks that were sent to the controller.
    fn sent(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write(_) => "sent",
            Self::Compare => "sent for comparison",
        }
    }

    /// The statement that no command was sent.
    fn nothing_done(self) -> &'static str {
        match self {
            Self::Read => "nothing was read",
            Self::Write(_) => "nothing was written",
            Self::Compare => "nothing was compared",
        }
    }
}

/// Transfers in flight, in order.
struct Transfers<'a> {
    disk: &'a Disk,
    direction: Direction,
    /// Block of the next transfer.
    at: u64,
    /// First block of all.
    first: u64,
    progress: Arc<Progress>,
    /// Most blocks of a transfer.
    chunk: u64,
    in_flight: VecDeque<JoinHandle<Result<Buf, Failed>>>,
    /// Buffers of completed transfers.
    spare: Vec<Buf>,
    /// Whether a transfer failed.
    failed: bool,
    bar: ProgressBar,
}

/// The number of contiguous blocks transferred, from the first one on.
#[derive(Debug, Default)]
struct Progress {
    done: AtomicU64,
    /// 0 if it is not known in advance.
    all: AtomicU64,
}

impl Progress {
    fn interrupted(&self, signal: Signal, direction: Direction, first: u64) -> Failure {
        let done = self.done.load(Ordering::Relaxed);
        let of_all = match self.all.load(Ordering::Relaxed) {
            0 => String::new(),
            all => format!(" of {all}"),
        };
        let (verb, key) = match direction {
            Direction::Read => ("read", "read_blocks"),
            Direction::Write(_) => ("acknowledged", "acknowledged_blocks"),
            Direction::Compare => ("compared", "compared_blocks"),
        };
        Failure::new(format!(
            "interrupted by {}: {done}{of_all} blocks from block {first} were {verb}",
            signal.name()
        ))
        .with("interrupted", signal.name())
        .with(key, done)
        .with_status(signal.exit_status())
    }
}

impl<'a> Transfers<'a> {
    fn new(direction: Direction, disk: &'a Disk, at: u64, bar: ProgressBar) -> Self {
        let block_size = u64::from(disk.namespace().block_size());
        Self {
            disk,
            direction,
            at,
            first: at,
            progress: Arc::default(),
            chunk: (u64::try_from(CHUNK).unwrap_or(u64::MAX) / block_size).max(1),
            in_flight: VecDeque::with_capacity(DEPTH),
            spare: Vec::with_capacity(DEPTH),
            failed: false,
            bar,
        }
    }

    /// Starts to watch for signals: the first one stops the transfer after the commands in
    /// flight, a second one ends the process. `blocks` is the length, if it is known.
    fn announce(&self, blocks: Option<u64>, printing: Printing) -> Result<Interrupt, Failure> {
        if let Some(blocks) = blocks {
            let block_size = u64::from(self.disk.namespace().block_size());
            self.bar.set_length(blocks.saturating_mul(block_size));
            self.progress.all.store(blocks, Ordering::Relaxed);
        }
        let (progress, direction, first) = (Arc::clone(&self.progress), self.direction, self.first);
        Interrupt::watch(move |signal| {
            let failure = progress.interrupted(signal, direction, first);
            failure
                .and("; transfers in flight may have completed too")
                .report(printing);
        })
    }

    fn was_interrupted(&self, interrupt: &Interrupt) -> Result<(), Failure> {
        let done = self.progress.done.load(Ordering::Relaxed);
        let signal = interrupt.signal();
        let all = self.progress.all.load(Ordering::Relaxed);
        match signal.filter(|_| all == 0 || done < all) {
            Some(signal) => Err(self
                .progress
                .interrupted(signal, self.direction, self.first)),
            None => Ok(()),
        }
    }

    /// Adds the number of acknowledged blocks to the failure of a write.
    fn with_progress(&self, failure: Failure) -> Failure {
        let done = self.progress.done.load(Ordering::Relaxed);
        match self.direction {
            Direction::Write(_) if done > 0 => failure
                .and(&format!(
                    "; {done} blocks from block {} were acknowledged before",
                    self.first
                ))
                .with("acknowledged_blocks", done),
            _ => failure,
        }
    }

    fn has_room(&self) -> bool {
        self.in_flight.len() < DEPTH
    }

    fn buffer(&mut self, blocks: u64) -> Result<Buf, Failure> {
        let len = blocks.saturating_mul(self.disk.namespace().block_size().into());
        let len = usize::try_from(len).unwrap_or(usize::MAX);
        let Some(mut buf) = self.spare.pop() else {
            let mut buf = self.disk.host().buffer(CHUNK)?;
            buf.set_len(len).map_err(|e| Failure::new(e.to_string()))?;
            return Ok(buf);
        };
        buf.set_len(len).map_err(|e| Failure::new(e.to_string()))?;
        Ok(buf)
    }

    fn start(&mut self, buf: Buf) {
        let namespace = self.disk.namespace().clone();
        let (direction, lba) = (self.direction, self.at);
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

    /// Waits for the oldest transfer and returns its buffer with the data, which becomes
    /// available for the next transfer when the [`Spare`] is dropped.
    async fn next(&mut self) -> Result<Option<Spare<'_>>, Failure> {
        let Some(task) = self.in_flight.pop_front() else {
            return Ok(None);
        };
        let ended = task
            .await
            .map_err(|error| Failure::new(format!("a transfer task failed: {error}")));
        let ended = ended.and_then(|ended| Ok(ended.map_err(Error::from)?));
        let buf = ended.inspect_err(|_| self.failed = true)?;
        let bytes = buf.len() as u64;
        self.bar.inc(bytes);
        // Blocks after a failed transfer are not contiguous with the first one.
        if !self.failed {
            let blocks = bytes / u64::from(self.disk.namespace().block_size());
            self.progress.done.fetch_add(blocks, Ordering::Relaxed);
        }
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

/// The buffer of a completed transfer. Dropping it returns it to the spare buffers.
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

/// A progress bar on a terminal, none on a pipe.
fn progress_bar() -> ProgressBar {
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

const CHOOSE_RANGE: &str = "choose another --start-block or --block-count";
const CHOOSE_DATA: &str = "choose another --start-block or less data";

/// Checks that the range is inside the namespace.
fn fits(
    namespace: &MultipathNamespace,
    start: u64,
    count: u64,
    remedy: &str,
) -> Result<(), Failure> {
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
    .with_remedy(remedy))
}

/// The number of blocks of a file; an error if the last one is incomplete.
fn whole_blocks(
    namespace: &MultipathNamespace,
    path: &Path,
    len: u64,
    direction: Direction,
) -> Result<u64, Failure> {
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
        "{}; extend the file, which keeps its data:\n  truncate -s {padded} {}",
        direction.nothing_done(),
        ShellWord(&path.to_string_lossy())
    )))
}

/// The destination: a file that is created or truncated, or standard output.
fn sink(path: &Path) -> Result<Box<dyn Write>, Failure> {
    if path == Path::new("-") {
        return Ok(Box::new(io::stdout().lock()));
    }
    let file = File::create(path).map_err(|error| Failure::file(path, &error))?;
    Ok(Box::new(file))
}

/// The source of data.
struct Source {
    reader: File,
    /// Length in bytes, if it is known in advance.
    len: Option<u64>,
}

fn source(path: &Path) -> Result<Source, Failure> {
    if path == Path::new("-") {
        let standard = io::stdin().as_fd().try_clone_to_owned();
        let reader = File::from(standard.map_err(|error| Failure::file(path, &error))?);
        return Ok(Source { reader, len: None });
    }
    let file = File::open(path).map_err(|error| Failure::file(path, &error))?;
    let metadata = file
        .metadata()
        .map_err(|error| Failure::file(path, &error))?;
    let len = metadata.is_file().then_some(metadata.len());
    Ok(Source { reader: file, len })
}

impl Source {
    /// Fills `buf` with the available data and returns its length; `None` if a signal arrived
    /// first.
    fn fill(&mut self, buf: &mut [u8], interrupt: &Interrupt) -> io::Result<Option<usize>> {
        let mut filled = 0;
        while let Some(rest) = buf.get_mut(filled..).filter(|rest| !rest.is_empty()) {
            while self.len.is_none() && !self.has_data() {
                if interrupt.signal().is_some() {
                    return Ok(None);
                }
            }
            match self.reader.read(rest) {
                Ok(0) => break,
                Ok(got) => filled += got,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(Some(filled))
    }

    /// Whether data or the end of the input are available within [`SIGNAL_CHECK_MS`].
    fn has_data(&self) -> bool {
        let mut fds = [PollFd::new(self.reader.as_fd(), PollFlags::POLLIN)];
        // An input that cannot be polled is read.
        !matches!(
            poll(&mut fds, PollTimeout::from(SIGNAL_CHECK_MS)),
            Ok(0) | Err(nix::errno::Errno::EINTR)
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pipe_fills_buffers() {
        let (from, mut to) = io::pipe().unwrap();
        let reader = File::from(std::os::fd::OwnedFd::from(from));
        let mut source = Source { reader, len: None };
        // A few bytes at a time.
        let writer = std::thread::spawn(move || {
            for byte in 0..20 {
                to.write_all(&[byte]).unwrap();
            }
        });
        let mut buf = [0; 16];
        let interrupt = Interrupt::default();
        assert_eq!(source.fill(&mut buf, &interrupt).unwrap(), Some(16));
        assert!(buf.iter().copied().eq(0..16));
        assert_eq!(source.fill(&mut buf, &interrupt).unwrap(), Some(4));
        assert_eq!(source.fill(&mut buf, &interrupt).unwrap(), Some(0));
        writer.join().unwrap();
    }

    #[test]
    fn missing_files_are_named() {
        let path = Path::new("/nonexistent/file");
        assert!(source(path).is_err());
        assert!(sink(path).is_err());
    }
}
