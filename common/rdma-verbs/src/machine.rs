//! Detection of RDMA devices, modules and libraries of this machine.

use std::fs;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use nvmeof_rdma::{Limits, ListenError};

use crate::VerbsError;
use crate::sizes;
use crate::sys::{self, Context, Missing};

/// The kernel's connection management for user space.
const MANAGER: &str = "/dev/infiniband/rdma_cm";
/// The kernel's verbs for user space, one file per device.
const DEVICES: &str = "/dev/infiniband";
/// The RDMA devices that the kernel knows.
pub(crate) const CLASS: &str = "/sys/class/infiniband";

/// All devices, open.
///
/// # Errors
/// Names what is missing if there are none.
pub(crate) fn contexts() -> Result<Vec<Arc<Context>>, VerbsError> {
    let stand_in = sys::available().map_err(|missing| match missing {
        Missing::Library { file, text } => VerbsError::NoLibrary {
            library: file,
            text,
        },
        Missing::Symbol { file, name } => VerbsError::OldLibrary {
            library: file,
            symbol: name,
        },
    })?;
    if !stand_in {
        // Without a device, modules may be missing as well, but the device is the cause.
        if is_empty(CLASS) {
            return Err(VerbsError::NoDevice);
        }
        openable(MANAGER)?;
    }
    match Context::all() {
        Ok(all) if !all.is_empty() => Ok(all),
        Ok(_) => Err(why_none_opens()),
        Err(error) if error.raw_os_error() == Some(libc::ENODEV) => Err(why_none_opens()),
        Err(error) => Err(unavailable(error)),
    }
}

fn is_empty(folder: &str) -> bool {
    fs::read_dir(folder).map_or(true, |mut entries| entries.next().is_none())
}

/// The error if the kernel has devices and none can be opened.
fn why_none_opens() -> VerbsError {
    let files = fs::read_dir(DEVICES).into_iter().flatten().flatten();
    let names = files.filter_map(|file| file.file_name().into_string().ok());
    let verbs: Vec<_> = names.filter(|name| name.starts_with("uverbs")).collect();
    if verbs.is_empty() {
        return VerbsError::NoModules {
            source: io::ErrorKind::NotFound.into(),
        };
    }
    let opened = verbs
        .iter()
        .map(|name| openable(&format!("{DEVICES}/{name}")));
    match opened.collect::<Result<(), _>>() {
        Err(error) => error,
        // They can be opened, but no library supports them.
        Ok(()) => VerbsError::NoLibrary {
            library: "the driver of this device",
            text: "no RDMA device could be opened".to_owned(),
        },
    }
}

fn openable(file: &str) -> Result<(), VerbsError> {
    match fs::OpenOptions::new().read(true).write(true).open(file) {
        Ok(_) => Ok(()),
        Err(error) => Err(unavailable(error)),
    }
}

/// The error for unusable connection management.
pub(crate) fn unavailable(source: io::Error) -> VerbsError {
    match source.kind() {
        io::ErrorKind::PermissionDenied => VerbsError::Permission { source },
        io::ErrorKind::NotFound => VerbsError::NoModules { source },
        _ => match source.raw_os_error() {
            Some(libc::ENODEV | libc::ENXIO) => VerbsError::NoModules { source },
            _ => VerbsError::Call {
                what: "opening the RDMA connection manager",
                source,
            },
        },
    }
}

/// Lowers `limits` to the maximum of the devices. A queue pair on a device with lower limits
/// is refused if it exceeds them.
///
/// # Errors
/// Names what is missing if there are no devices.
pub(crate) fn lower_limits(limits: &mut Limits) -> Result<(), VerbsError> {
    let mut found: Option<Limits> = None;
    for context in contexts()? {
        let call = |source| VerbsError::Call {
            what: "querying the limits of an RDMA device",
            source,
        };
        let attr = context.attr().map_err(call)?;
        // Devices without RDMA Reads cannot be used.
        if attr.max_reads_in.min(attr.max_reads_out) == 0 || attr.max_qp == 0 {
            continue;
        }
        let message = context.max_message(attr.ports).map_err(call)?;
        let one = sizes::limits_of(&attr, message, limits);
        found = Some(found.map_or_else(|| one.clone(), |others| sizes::either(&others, &one)));
    }
    if let Some(found) = found {
        *limits = found;
    }
    Ok(())
}

/// Why listening on `addr` failed.
pub(crate) fn listen_error(addr: SocketAddr, source: io::Error) -> ListenError {
    if source.raw_os_error() == Some(libc::ENODEV) {
        let text = "no RDMA device serves this address; `rdma link` lists the devices";
        let source = io::Error::new(io::ErrorKind::NotFound, text);
        let addr = addr.into();
        return ListenError::Io { addr, source };
    }
    ListenError::new(addr, source)
}
