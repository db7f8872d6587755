//! One request of each size, one after the other, with direct I/O:
//! `one_each DEVICE MODEL BLOCK START SIZE...`. Each is written to the device and to MODEL, a
//! file with the expected content of the device, and read back. Three blocks remain between two
//! of them, so that their offsets in a page differ. One program, because starting `dd` for each
//! takes most of the time.
#![forbid(unsafe_code)]

use std::error::Error;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};

/// `O_DIRECT` of x86 (`asm-generic/fcntl.h`).
const O_DIRECT: i32 = 0o40_000;
const PAGE: usize = 4096;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [device, model, block, start, sizes @ ..] = arguments.as_slice() else {
        return Err("usage: one_each DEVICE MODEL BLOCK START SIZE...".into());
    };
    let open = |path: &str, flags| {
        let mut options = OpenOptions::new();
        options.read(true).write(true).custom_flags(flags);
        options
            .open(path)
            .map_err(|error| format!("{path}: {error}"))
    };
    let (device, model) = (open(device, O_DIRECT)?, open(model, 0)?);
    let (block, mut at): (u64, u64) = (block.parse()?, start.parse()?);
    for size in sizes {
        let len: usize = size.parse()?;
        one(&device, &model, at, len).map_err(|error| format!("{len} bytes at {at}: {error}"))?;
        at += u64::try_from(len)? + 3 * block;
    }
    Ok(())
}

fn one(device: &File, model: &File, at: u64, len: usize) -> Result<(), Box<dyn Error>> {
    let mut room = vec![0; len + PAGE];
    let begin = room.as_ptr().align_offset(PAGE);
    let buf = room.get_mut(begin..begin + len).ok_or("no such room")?;
    // Each 8 bytes encode their offset and request.
    for (bytes, number) in buf.chunks_mut(8).zip(at..) {
        let word = (number ^ (len as u64) << 40).to_le_bytes();
        bytes.copy_from_slice(word.get(..bytes.len()).unwrap_or_default());
    }
    let written = buf.to_vec();
    // One system call each, which the kernel may split.
    if device.write_at(buf, at)? != len {
        return Err("a short write".into());
    }
    model.write_all_at(buf, at)?;
    buf.fill(0xEE);
    if device.read_at(buf, at)? != len {
        return Err("a short read".into());
    }
    if *buf != *written {
        return Err("other data were read back".into());
    }
    Ok(())
}
