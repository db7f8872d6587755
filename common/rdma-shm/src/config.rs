//! How the provider behaves.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::unistd::geteuid;
use nvmeof_rdma::Limits;

use crate::borrowed::{Borrowed, ROOT};
use crate::channel::MOST_GRANTS;
use crate::ring::{MAX_RING, MIN_RING};

/// Directory of the sockets of services, in which only root creates directories.
pub const SYSTEM_FOLDER: &str = "/run/nvmeof";

/// Peers that may access local memory directly, on connections made by this side. Such a peer
/// can read and write all registered pools; keys are then only a convention.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ShareMemory {
    /// Processes of the same user and of root: they can read and write the memory of this
    /// process anyway (`ptrace(2)`, `/proc/PID/mem`), unless the system forbids that.
    #[default]
    SameUser,
    /// No process: all payload is copied through rings.
    Never,
}

/// How the provider behaves.
#[derive(Clone, Debug)]
pub struct ShmConfig {
    /// Limits of the provider.
    pub limits: Limits,
    /// Directory of the sockets. It is created, for this user alone, when a listener is
    /// opened and it does not exist.
    pub folder: PathBuf,
    /// Users whose processes may be peers. Root is among them by default: it can access the
    /// memory of this process anyway.
    pub users: Vec<u32>,
    /// Access mode of the sockets. Other users need write permission for them, and search
    /// permission for the directory.
    pub mode: u32,
    /// Bytes of the ring in each direction, for connections made by this side: a power of two
    /// between 64 KiB and 16 MiB; other values are adjusted.
    pub ring: usize,
    /// Peers that may access local memory directly.
    pub share_memory: ShareMemory,
    /// Limit on mapped memory of peers in bytes, on accepted connections; 0 for none. A
    /// quarter of it for a user that is neither the own user nor root. Beyond that payload is
    /// copied through rings.
    pub mapped: usize,
    /// Mapped memory of all providers with this configuration or a clone of it.
    pub borrowed: Borrowed,
    /// How long after its last work a connection is checked in each poll, unless its owner
    /// [rests](nvmeof_rdma::Provider::rest) before. After that its peer has to send a
    /// wake-up, which costs it a system call.
    pub spin: Duration,
    /// Time-out for the peer's part of the connection set-up.
    pub handshake: Duration,
    /// Time-out for a closing connection to send queued work.
    pub linger: Duration,
}

impl Default for ShmConfig {
    fn default() -> Self {
        let user = geteuid().as_raw();
        Self {
            limits: Limits {
                max_recvs: 4096,
                max_sends: 8192,
                max_reads: 128,
                max_message: 1 << 24,
                max_exposed: 1 << 18,
                max_pending: 64,
                max_qps: 4096,
            },
            folder: own_folder(),
            users: vec![user, ROOT],
            mode: 0o600,
            ring: 512 << 10,
            share_memory: ShareMemory::SameUser,
            mapped: 1 << 30,
            borrowed: Borrowed::default(),
            spin: Duration::from_micros(50),
            handshake: Duration::from_secs(10),
            linger: Duration::from_secs(1),
        }
    }
}

impl ShmConfig {
    /// Configuration of a listener in `folder` for processes of this user, of root, and of
    /// other `users`, which get access to the sockets.
    #[must_use]
    pub fn listening(folder: PathBuf, users: &[u32]) -> Self {
        let mut config = Self {
            folder,
            ..Self::default()
        };
        for user in users {
            if !config.users.contains(user) {
                config.users.push(*user);
                config.mode = 0o666;
            }
        }
        config
    }

    /// Configuration for connections to listeners in `folder`: processes of this user, of
    /// root, and of the owner of the folder if an administrator or this user chose it. No
    /// other user can create sockets there.
    #[must_use]
    pub fn connecting(folder: PathBuf, chosen: bool) -> Self {
        let owner = std::fs::metadata(&folder).map(|folder| folder.uid());
        let mut config = Self {
            folder,
            ..Self::default()
        };
        if chosen && let Ok(owner) = owner {
            config.users.push(owner);
        }
        config
    }

    /// Configurations for connections to targets of this user and of the system, in this
    /// order.
    #[must_use]
    pub fn usual() -> Vec<Self> {
        let own = own_folder();
        let mut usual = vec![Self::connecting(own.clone(), false)];
        if own != Path::new(SYSTEM_FOLDER) {
            usual.push(Self::connecting(PathBuf::from(SYSTEM_FOLDER), true));
        }
        usual
    }

    /// Number of grants on a connection to a process of `user`.
    pub(crate) fn grants_to(&self, user: u32) -> u32 {
        match self.share_memory {
            ShareMemory::SameUser if user == geteuid().as_raw() || user == ROOT => MOST_GRANTS,
            ShareMemory::SameUser | ShareMemory::Never => 0,
        }
    }

    /// Size of the rings to create.
    pub(crate) fn ring(&self) -> usize {
        self.ring.clamp(MIN_RING, MAX_RING).next_power_of_two()
    }
}

/// The directory of this user's sockets.
#[must_use]
pub fn own_folder() -> PathBuf {
    let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    default_folder(geteuid().as_raw(), runtime)
}

/// `/run/nvmeof` for root, whose processes connect to services; for other users their runtime
/// directory.
fn default_folder(user: u32, runtime: Option<PathBuf>) -> PathBuf {
    if user == ROOT {
        return PathBuf::from(SYSTEM_FOLDER);
    }
    match runtime.filter(|folder| folder.is_absolute()) {
        Some(runtime) => runtime.join("nvmeof"),
        None => std::env::temp_dir().join(format!("nvmeof-{user}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn default_folder_is_in_runtime_directory_of_user() {
        let runtime = Some(PathBuf::from("/run/user/7"));
        let folder = |user, runtime| default_folder(user, runtime);
        assert_eq!(folder(0, runtime.clone()), PathBuf::from("/run/nvmeof"));
        assert_eq!(folder(7, runtime), PathBuf::from("/run/user/7/nvmeof"));
        for none in [None, Some(PathBuf::from("relative")), Some(PathBuf::new())] {
            assert!(folder(7, none).ends_with("nvmeof-7"));
        }
    }

    #[test]
    fn sockets_are_accessible_only_to_named_users() {
        let folder = PathBuf::from("/x");
        let own = ShmConfig::default().users;
        let config = ShmConfig::listening(folder.clone(), &own);
        assert_eq!((config.users, config.mode), (own.clone(), 0o600));
        let config = ShmConfig::listening(folder, &[54_321]);
        assert_eq!(config.users, [&own[..], &[54_321]].concat());
        assert_eq!(config.mode, 0o666);
    }

    #[test]
    fn folder_owner_is_trusted_if_folder_was_chosen() {
        let root = PathBuf::from("/");
        let foreign = ShmConfig::connecting(PathBuf::from("/proc/self/fd/nothing"), true);
        assert_eq!(foreign.users, ShmConfig::default().users);
        let chosen = ShmConfig::connecting(root.clone(), true);
        let owner = std::fs::metadata(&root).unwrap().uid();
        assert_eq!(chosen.users.last(), Some(&owner));
        let usual = ShmConfig::usual();
        assert!(
            usual
                .iter()
                .any(|one| one.folder == Path::new(SYSTEM_FOLDER))
        );
        assert_eq!(usual[0].users, ShmConfig::default().users);
    }

    #[test]
    fn ring_size_is_adjusted_to_valid_value() {
        for (asked, made) in [
            (0, MIN_RING),
            (MIN_RING + 1, 2 * MIN_RING),
            (usize::MAX, MAX_RING),
        ] {
            let config = ShmConfig {
                ring: asked,
                ..ShmConfig::default()
            };
            assert_eq!(config.ring(), made);
        }
    }
}
