//! A stored record, in a file or a RADOS object: a line with version and checksum, then the bytes.

use std::fmt::{self, Display};
use std::io;

/// A record.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Record {
    /// Its version; 0: there is none.
    pub version: u64,
    /// Its bytes. Empty if there is none.
    pub bytes: Vec<u8>,
}

/// The first line.
struct Header {
    version: u64,
    checksum: u32,
}

/// Its first word: the format and its version.
const FORMAT: &str = "nvmeof-record-1";

/// The record with `bytes` that replaces one with version `before`: its version, and what to
/// store.
///
/// # Errors
/// There is no further version.
pub(super) fn encode(before: u64, bytes: &[u8]) -> io::Result<(u64, Vec<u8>)> {
    let version = before
        .checked_add(1)
        .ok_or_else(|| io::Error::from(io::ErrorKind::FileTooLarge))?;
    let checksum = checksum(version, bytes);
    let mut stored = Header { version, checksum }.to_string().into_bytes();
    stored.extend_from_slice(bytes);
    Ok((version, stored))
}

/// The record that is stored as `stored`.
///
/// # Errors
/// What is wrong with it.
pub(super) fn decode(stored: &[u8]) -> Result<Record, &'static str> {
    let end = stored.iter().position(|byte| *byte == b'\n');
    let (line, bytes) = stored.split_at(end.ok_or("it has no first line")?);
    let bytes = bytes.get(1..).unwrap_or_default();
    let header = Header::parse(line)
        .ok_or("its first line is not one that this version of nvmeof-target writes")?;
    if checksum(header.version, bytes) != header.checksum {
        return Err("its checksum is wrong");
    }
    Ok(Record {
        version: header.version,
        bytes: bytes.to_vec(),
    })
}

impl Header {
    fn parse(line: &[u8]) -> Option<Self> {
        let mut words = std::str::from_utf8(line).ok()?.split(' ');
        let (format, version, checksum) = (words.next()?, words.next()?, words.next()?);
        let version = version.strip_prefix("version=")?.parse().ok()?;
        let checksum = u32::from_str_radix(checksum.strip_prefix("crc32c=")?, 16).ok()?;
        let is_whole = format == FORMAT && version != 0 && words.next().is_none();
        is_whole.then_some(Self { version, checksum })
    }
}

impl Display for Header {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { version, checksum } = self;
        writeln!(f, "{FORMAT} version={version} crc32c={checksum:08x}")
    }
}

fn checksum(version: u64, bytes: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&version.to_le_bytes()), bytes)
}
