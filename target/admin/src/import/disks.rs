//! How large the blocks are that the kernel's target showed to hosts.

use std::fs;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::Path;

use nvmeof_backend_spec::{ANSWERING, Questions};

use super::report::{Report, quoted};

/// What is at a path of this machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    BlockDevice,
    /// A regular file of `len` bytes on a file system with blocks of `block` bytes.
    File {
        block: u64,
        len: u64,
    },
    /// Nothing, or nothing that can be looked at.
    Unknown,
}

/// Looks at the machine, which is the one that the file is from if all is well.
#[derive(Clone, Copy)]
pub(super) struct Disks<'a>(pub(super) &'a dyn Fn(&Path) -> Kind);

/// What is at `path`.
pub(super) fn kind(path: &Path) -> Kind {
    let (name, path) = (path.display().to_string().into(), path.to_owned());
    // One whose file system hangs cannot be looked at.
    let told = Questions::default().ask(&name, ANSWERING, move || fs::metadata(path).ok());
    match told.ok().flatten() {
        Some(about) if about.file_type().is_block_device() => Kind::BlockDevice,
        Some(about) if about.is_file() => Kind::File {
            block: about.blksize(),
            len: about.len(),
        },
        _ => Kind::Unknown,
    }
}

impl Disks<'_> {
    /// How to serve `path`, so that partitions and file systems on it stay where they are.
    ///
    /// The kernel's target shows a file with the blocks of its file system, at
    /// most 4096 bytes (`nvmet_file_ns_enable`); a device with its own. It rounds the
    /// size of a file down to whole blocks.
    pub(super) fn geometry(self, place: &str, path: &str, report: &mut Report) -> Geometry {
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
                report.note(place, &what, "correct the path, or take the file there");
                whole(None)
            }
            Kind::Unknown => {
                let what = format!("{} is not on this machine", quoted(path));
                let remedy = "block_size = 4096 is what the kernel shows of files on most file \
                              systems; correct it if hosts saw another";
                report.note(place, &what, remedy);
                whole(Some(4096))
            }
        }
    }
}

/// How the kernel's target showed a file or device to hosts.
pub(super) struct Geometry {
    /// `None` where the device says it.
    pub(super) block_size: Option<u32>,
    /// Bytes at the end of the file that are no whole block.
    pub(super) rest: u64,
}
