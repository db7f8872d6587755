//! The block sizes with which nvmet exported files and devices.

use std::fs;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::Path;

use nvmeof_backend_spec::{QUERY_TIMEOUT, Queries};

use super::report::{Report, quoted};

/// The kind of file at a path of this machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    BlockDevice,
    /// A regular file of `len` bytes on a file system with blocks of `block` bytes.
    File {
        block: u64,
        len: u64,
    },
    /// No file, or one that cannot be examined.
    Unknown,
}

/// Examines files of this machine, which should be the one that nvmet ran on.
#[derive(Clone, Copy)]
pub(super) struct Probe<'a>(pub(super) &'a dyn Fn(&Path) -> Kind);

/// Examines `path`.
pub(super) fn kind(path: &Path) -> Kind {
    let (name, path) = (path.display().to_string().into(), path.to_owned());
    // A file system that does not respond within the time limit counts as unknown.
    let metadata = Queries::default().ask(&name, QUERY_TIMEOUT, move || fs::metadata(path).ok());
    match metadata.ok().flatten() {
        Some(about) if about.file_type().is_block_device() => Kind::BlockDevice,
        Some(about) if about.is_file() => Kind::File {
            block: about.blksize(),
            len: about.len(),
        },
        _ => Kind::Unknown,
    }
}

impl Probe<'_> {
    /// The block size with which `path` has to be served, so that partitions and file systems
    /// on it remain valid.
    ///
    /// nvmet exports a file with the block size of its file system, at most 4096 bytes
    /// (`nvmet_file_ns_enable`), and a device with its own. It rounds the size of a file
    /// down to whole blocks.
    pub(super) fn geometry(self, location: &str, path: &str, report: &mut Report) -> Geometry {
        let whole = |block_size| Geometry {
            block_size,
            rest: 0,
        };
        match (self.0)(Path::new(path)) {
            Kind::BlockDevice => whole(None),
            Kind::File { block, len } => {
                let block = block.min(4096);
                let known = u32::try_from(block).ok();
                let known = known.filter(|block| [512, 1024, 2048, 4096].contains(block));
                Geometry {
                    block_size: known,
                    rest: known.map_or(0, |block| len % u64::from(block)),
                }
            }
            Kind::Unknown if path.starts_with("/dev/") => {
                let what = format!("{} is not on this machine", quoted(path));
                report.note(
                    location,
                    &what,
                    "correct the path, or import on the machine with the device",
                );
                whole(None)
            }
            Kind::Unknown => {
                let what = format!("{} is not on this machine", quoted(path));
                let remedy = "block_size = 4096 is what nvmet uses for files on most file systems; \
                              correct it if hosts saw another one";
                report.note(location, &what, remedy);
                whole(Some(4096))
            }
        }
    }
}

/// The geometry with which nvmet exported a file or device.
pub(super) struct Geometry {
    /// `None`: that of the device.
    pub(super) block_size: Option<u32>,
    /// Bytes of an incomplete block at the end of the file.
    pub(super) rest: u64,
}
