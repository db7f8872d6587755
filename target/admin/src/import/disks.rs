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
    /// A regular file on a file system with blocks of so many bytes.
    File {
        block: u64,
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
        },
        _ => Kind::Unknown,
    }
}

impl Disks<'_> {
    /// The block size to serve `path` with, so that partitions and file systems
    /// on it stay where they are; `None` where the device says it.
    ///
    /// The kernel's target shows a file with the blocks of its file system, at
    /// most 4096 bytes (`nvmet_file_ns_enable`); a device with its own.
    pub(super) fn block_size(self, place: &str, path: &str, report: &mut Report) -> Option<u32> {
        match (self.0)(Path::new(path)) {
            Kind::BlockDevice => None,
            Kind::File { block } => {
                let block = u32::try_from(block.min(4096)).ok()?;
                [512, 1024, 2048, 4096].contains(&block).then_some(block)
            }
            Kind::Unknown if path.starts_with("/dev/") => {
                let what = format!("{} is not on this machine", quoted(path));
                report.note(place, &what, "correct the path, or take the file there");
                None
            }
            Kind::Unknown => {
                let what = format!("{} is not on this machine", quoted(path));
                let remedy = "block_size = 4096 is what the kernel shows of files on most file \
                              systems; correct it if hosts saw another";
                report.note(place, &what, remedy);
                Some(4096)
            }
        }
    }
}
