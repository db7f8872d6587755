//! Detecting block devices whose medium may be behind a network.
//!
//! The driver of such a device ends a request when its connection is lost, or sends it over
//! another path. The storage may still execute the request after that.

use std::fs::{self, Metadata};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use nix::sys::stat::{major, minor};

use crate::hints::folder;

/// Maximum depth of stacked devices.
const LAYERS: usize = 8;

/// Whether the medium of a block device, or of the device below the file system of a file, may be
/// behind a network. True if unknown. False for a file system without a device, such as tmpfs.
pub(crate) fn may_be_remote(metadata: &Metadata, device: bool) -> bool {
    if device {
        return is_remote(&folder(metadata), LAYERS);
    }
    let (major, minor) = (major(metadata.dev()), minor(metadata.dev()));
    let below = PathBuf::from(format!("/sys/dev/block/{major}:{minor}"));
    below.exists() && is_remote(&below, LAYERS)
}

/// The same for the device with that folder in sysfs.
fn is_remote(folder: &Path, layers: usize) -> bool {
    let (Ok(folder), Some(layers)) = (folder.canonicalize(), layers.checked_sub(1)) else {
        return true;
    };
    let parts = || folder.iter().filter_map(|part| part.to_str());
    // SCSI devices are below the iSCSI session or the Fibre Channel port of their target.
    let has_part = |prefix: &str| {
        parts().any(|part| {
            let rest = part.strip_prefix(prefix);
            rest.is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
        })
    };
    if has_part("session") || has_part("rport-") || is_remote_nvme(&folder) {
        return true;
    }
    let uuid = fs::read_to_string(folder.join("dm/uuid")).unwrap_or_default();
    if uuid.starts_with("mpath-") {
        return true;
    }
    match fs::read_dir(folder.join("slaves")) {
        Ok(mut below) => {
            below.any(|device| device.map_or(true, |device| is_remote(&device.path(), layers)))
        }
        // Partitions have no such folder.
        Err(_) => false,
    }
}

/// Whether it is a namespace of a controller that is not attached by PCI Express. A namespace with
/// several paths is below its subsystem, together with its controllers.
fn is_remote_nvme(folder: &Path) -> bool {
    let above = folder.ancestors().take(3);
    above
        .flat_map(controllers)
        .any(|transport| transport != "pcie")
}

/// The transports of the controller with that folder, or of the controllers in it.
fn controllers(folder: &Path) -> Vec<String> {
    let transport = |folder: &Path| {
        let text = fs::read_to_string(folder.join("transport")).ok()?;
        Some(text.trim().to_owned())
    };
    let is_subsystem = folder.file_name().is_some_and(|name| {
        let name = name.to_string_lossy();
        name.starts_with("nvme-subsys")
    });
    let inside = is_subsystem.then(|| fs::read_dir(folder).ok()).flatten();
    let inside = inside.into_iter().flatten().flatten();
    let inside = inside.filter_map(|entry| transport(&entry.path()));
    transport(folder).into_iter().chain(inside).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use std::os::unix::fs::symlink;

    use super::*;

    fn file(path: &Path, text: &str) {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    #[test]
    fn devices_behind_a_network_are_remote() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path();
        let device = |path: &str| {
            let device = root.join(path);
            fs::create_dir_all(device.join("slaves")).unwrap();
            device
        };
        let local = [
            device("pci0/ata1/host0/target0:0:0/0:0:0:0/block/sda"),
            device("pci0/nvme/nvme0/nvme0n1"),
            device("pci0/virtio1/block/vda"),
            device("virtual/nvme-subsystem/nvme-subsys3/nvme3n1"),
        ];
        file(&root.join("pci0/nvme/nvme0/transport"), "pcie\n");
        let two_ports = root.join("virtual/nvme-subsystem/nvme-subsys3/nvme3/transport");
        file(&two_ports, "pcie\n");
        let remote = [
            device("platform/host7/session1/target7:0:0/7:0:0:1/block/sdb"),
            device("pci0/host1/rport-1:0-3/target1:0:0/1:0:0:0/block/sdc"),
            device("virtual/nvme-fabrics/ctl/nvme1/nvme1n1"),
            device("virtual/nvme-subsystem/nvme-subsys2/nvme2n1"),
            device("virtual/block/dm-7"),
            root.join("gone"),
        ];
        file(
            &root.join("virtual/nvme-fabrics/ctl/nvme1/transport"),
            "tcp\n",
        );
        let path = root.join("virtual/nvme-subsystem/nvme-subsys2/nvme2/transport");
        file(&path, "rdma\n");
        file(&root.join("virtual/block/dm-7/dm/uuid"), "mpath-36001405\n");
        let stacked = |name: &str, on: &Path| {
            let device = device(name);
            symlink(on, device.join("slaves/one")).unwrap();
            device
        };
        for (at, on) in local.iter().enumerate() {
            assert!(!is_remote(on, LAYERS), "{}", on.display());
            let above = stacked(&format!("virtual/block/dm-1{at}"), on);
            assert!(!is_remote(&above, LAYERS), "{}", on.display());
        }
        for (at, on) in remote.iter().enumerate() {
            assert!(is_remote(on, LAYERS), "{}", on.display());
            let above = stacked(&format!("virtual/block/md2{at}"), on);
            assert!(is_remote(&above, LAYERS), "{}", on.display());
        }
        let part = root.join("platform/host7/session1/target7:0:0/7:0:0:1/block/sdb/sdb1");
        file(&part.join("partition"), "1\n");
        assert!(is_remote(&part, LAYERS));
        let part = root.join("pci0/nvme/nvme0/nvme0n1/nvme0n1p1");
        file(&part.join("partition"), "1\n");
        assert!(!is_remote(&part, LAYERS));
    }

    #[test]
    fn device_on_itself_is_taken_for_remote() {
        let root = tempfile::tempdir().unwrap();
        let device = root.path().join("dm-0");
        fs::create_dir_all(device.join("slaves")).unwrap();
        symlink(&device, device.join("slaves/dm-0")).unwrap();
        assert!(is_remote(&device, LAYERS));
    }
}
