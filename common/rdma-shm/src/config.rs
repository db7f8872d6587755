//! How the provider behaves.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::unistd::geteuid;
use nvmeof_rdma::Limits;

use crate::borrowed::{Borrowed, ROOT};
use crate::channel::MOST_GRANTS;
use crate::ring::{MAX_RING, MIN_RING};

/// Where the sockets of services are: only root makes folders there.
pub const SYSTEM_FOLDER: &str = "/run/nvmeof";

/// To whom we give our memory, to use it in place: on connections that we make.
/// Whoever has it can read and write all of the pools that are registered, so
/// that keys are but rules which honest peers keep.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Give {
    /// Processes of our user and of root: they can read and write our memory
    /// anyway (`ptrace(2)`, `/proc/PID/mem`), unless the system forbids that.
    #[default]
    SameUser,
    /// Nobody: all payload is copied through rings.
    Never,
}

/// How the provider behaves.
#[derive(Clone, Debug)]
pub struct ShmConfig {
    /// What it offers.
    pub limits: Limits,
    /// Where the sockets are at which processes meet. It is made, for this
    /// user alone, when somebody listens and it is not there.
    pub folder: PathBuf,
    /// Users whose processes may be peers. Root is among them by default: it
    /// reaches our memory anyway.
    pub users: Vec<u32>,
    /// Access mode of the sockets. Users other than ours need to write them,
    /// and to search the folder.
    pub mode: u32,
    /// Bytes of the ring in each direction, for connections that we make: a
    /// power of two between 64 KiB and 16 MiB; other numbers are brought there.
    pub ring: usize,
    /// To whom we give our memory.
    pub give: Give,
    /// Bytes of peers' memory that we map at most, on connections that were made
    /// to us; 0 for none. A quarter of that for a user that is neither ours nor root.
    /// Beyond that payload is copied through rings.
    pub mapped: usize,
    /// What is mapped, by all providers of this configuration and its clones.
    pub borrowed: Borrowed,
    /// How long after the last work a connection is looked at in each poll, unless its
    /// owner [rests](nvmeof_rdma::Provider::rest) before. After that its peer has to wake
    /// us, which costs it a system call.
    pub spin: Duration,
    /// How long a peer may take for its half of the connection set-up.
    pub handshake: Duration,
    /// How long a closing connection may take to send what is queued.
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
            give: Give::SameUser,
            mapped: 1 << 30,
            borrowed: Borrowed::default(),
            spin: Duration::from_micros(50),
            handshake: Duration::from_secs(10),
            linger: Duration::from_secs(1),
        }
    }
}

impl ShmConfig {
    /// To listen in `folder` for processes of this user, of root, and of other
    /// `users`, for whom the sockets have to be open.
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

    /// To connect to what listens in `folder`: processes of this user and of
    /// root, and of the folder's owner if somebody trustworthy chose that
    /// folder. Nobody else can put sockets there.
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

    /// To connect to targets of this user and of the system, in this order.
    #[must_use]
    pub fn usual() -> Vec<Self> {
        let own = own_folder();
        let mut usual = vec![Self::connecting(own.clone(), false)];
        if own != Path::new(SYSTEM_FOLDER) {
            usual.push(Self::connecting(PathBuf::from(SYSTEM_FOLDER), true));
        }
        usual
    }

    /// For how many grants there is room on a connection to a process of `user`.
    pub(crate) fn grants_to(&self, user: u32) -> u32 {
        match self.give {
            Give::SameUser if user == geteuid().as_raw() || user == ROOT => MOST_GRANTS,
            Give::SameUser | Give::Never => 0,
        }
    }

    /// The size of ring to make.
    pub(crate) fn ring(&self) -> usize {
        self.ring.clamp(MIN_RING, MAX_RING).next_power_of_two()
    }
}

/// The folder where this user's processes meet.
#[must_use]
pub fn own_folder() -> PathBuf {
    let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    default_folder(geteuid().as_raw(), runtime)
}

/// `/run/nvmeof` for root, since its processes meet those of services; for
/// others what the system made for them to keep such things.
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
    fn the_folder_is_where_the_user_keeps_such_things() {
        let runtime = Some(PathBuf::from("/run/user/7"));
        let folder = |user, runtime| default_folder(user, runtime);
        assert_eq!(folder(0, runtime.clone()), PathBuf::from("/run/nvmeof"));
        assert_eq!(folder(7, runtime), PathBuf::from("/run/user/7/nvmeof"));
        for none in [None, Some(PathBuf::from("relative")), Some(PathBuf::new())] {
            assert!(folder(7, none).ends_with("nvmeof-7"));
        }
    }

    #[test]
    fn sockets_are_open_only_for_users_that_are_named() {
        let folder = PathBuf::from("/x");
        let own = ShmConfig::default().users;
        let config = ShmConfig::listening(folder.clone(), &own);
        assert_eq!((config.users, config.mode), (own.clone(), 0o600));
        let config = ShmConfig::listening(folder, &[54_321]);
        assert_eq!(config.users, [&own[..], &[54_321]].concat());
        assert_eq!(config.mode, 0o666);
    }

    #[test]
    fn the_owner_of_a_folder_is_trusted_where_the_folder_is() {
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
    fn rings_have_sizes_that_peers_take() {
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
