//! Verifies that acknowledged writes stay: `acknowledged DEVICE STOP-FILE`. Several threads write
//! to pieces of their own, each time another value. Before the next write, and at the end, a piece
//! has the value that was acknowledged last: also a write that takes effect late, after a later
//! one, is found. Ends without an error when STOP-FILE exists.
//!
//! Prints `stall MILLISECONDS` for each call that takes half a second, and `writes NUMBER` at the
//! end.
#![forbid(unsafe_code)]

use std::error::Error;
use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::time::{Duration, Instant};

/// `O_DIRECT` of x86 (`asm-generic/fcntl.h`).
const O_DIRECT: i32 = 0o40_000;
const PIECE: usize = 4096;
/// Pieces of each thread.
const PIECES: u64 = 16;
const THREADS: u64 = 4;
const STALL: Duration = Duration::from_millis(500);

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [device, stop] = arguments.as_slice() else {
        return Err("usage: acknowledged DEVICE STOP-FILE".into());
    };
    let mut options = OpenOptions::new();
    options.read(true).write(true).custom_flags(O_DIRECT);
    let disk = &options.open(device)?;
    let stop = Path::new(stop);
    let writes = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|own| scope.spawn(move || Writer::new(own, disk).run(stop)))
            .collect();
        let results = threads.into_iter().map(|thread| match thread.join() {
            Ok(result) => result,
            Err(_) => Err("a thread panicked".to_owned()),
        });
        results.sum::<Result<u64, String>>()
    })?;
    println!("writes {writes}");
    Ok(())
}

struct Writer<'a> {
    own: u64,
    disk: &'a File,
    buf: Vec<u8>,
    /// The last acknowledged value of each piece.
    values: Vec<u64>,
}

impl<'a> Writer<'a> {
    fn new(own: u64, disk: &'a File) -> Self {
        Self {
            own,
            disk,
            // Room for an aligned piece.
            buf: vec![0; 2 * PIECE],
            values: Vec::new(),
        }
    }

    /// Returns the number of writes.
    fn run(mut self, stop: &Path) -> Result<u64, String> {
        for piece in 0..PIECES {
            self.values.push(0);
            self.write(piece, 0)?;
        }
        let mut number = 0;
        // A thread that has failed ends the program only after the others.
        while !stop.exists() {
            let piece = number % PIECES;
            number += 1;
            let result = self
                .verify(piece)
                .and_then(|()| self.write(piece, number << 8 | self.own));
            result.inspect_err(|error| eprintln!("{error}"))?;
        }
        (0..PIECES).try_for_each(|piece| self.verify(piece))?;
        Ok(number)
    }

    fn offset(&self, piece: u64) -> u64 {
        (self.own * PIECES + piece) * PIECE as u64
    }

    fn write(&mut self, piece: u64, value: u64) -> Result<(), String> {
        let (offset, disk) = (self.offset(piece), self.disk);
        let buf = self.aligned()?;
        buf.chunks_exact_mut(8)
            .for_each(|word| word.copy_from_slice(&value.to_le_bytes()));
        timed(|| disk.write_all_at(buf, offset))
            .map_err(|error| format!("write at {offset}: {error}"))?;
        let slot = self.values.get_mut(usize::try_from(piece).unwrap_or(0));
        *slot.ok_or("no such piece")? = value;
        Ok(())
    }

    fn verify(&mut self, piece: u64) -> Result<(), String> {
        let (offset, disk) = (self.offset(piece), self.disk);
        let expected = self.values.get(usize::try_from(piece).unwrap_or(0));
        let expected = *expected.ok_or("no such piece")?;
        let buf = self.aligned()?;
        buf.fill(0xEE);
        timed(|| disk.read_exact_at(buf, offset))
            .map_err(|error| format!("read at {offset}: {error}"))?;
        let words = buf.chunks_exact(8);
        let mut words = words.filter_map(|word| Some(u64::from_le_bytes(word.try_into().ok()?)));
        match words.find(|word| *word != expected) {
            None => Ok(()),
            Some(other) => Err(format!(
                "offset {offset}: write {} was acknowledged, but the data are those of write {}",
                expected >> 8,
                other >> 8
            )),
        }
    }

    /// The part of the buffer that is aligned for direct I/O.
    fn aligned(&mut self) -> Result<&mut [u8], String> {
        let begin = self.buf.as_ptr().align_offset(PIECE);
        let room = self.buf.get_mut(begin..begin + PIECE);
        room.ok_or_else(|| "no room".to_owned())
    }
}

/// Reports a call that takes long.
fn timed<T>(call: impl FnOnce() -> T) -> T {
    let start = Instant::now();
    let result = call();
    let took = start.elapsed();
    if took >= STALL {
        // Immediately, also to a file.
        let mut out = std::io::stdout().lock();
        drop(writeln!(out, "stall {}", took.as_millis()).and_then(|()| out.flush()));
    }
    result
}
