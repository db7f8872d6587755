//! How the provider behaves.

use std::path::PathBuf;
use std::time::Duration;

use nix::unistd::geteuid;
use nvmeof_rdma::Limits;

use crate::ring::{MAX_RING, MIN_RING};

/// How the provider behaves.
#[derive(Clone, Debug)]
pub struct ShmConfig {
    /// What it offers.
    pub limits: Limits,
    /// Where the sockets are at which processes meet. It is made, for this
    /// user alone, when somebody listens and it is not there.
    pub folder: PathBuf,
    /// Users whose processes may be peers.
    pub users: Vec<u32>,
    /// Access mode of the sockets. Users other than ours need to write them,
    /// and to search the folder.
    pub mode: u32,
    /// Bytes of the ring in each direction, for connections that we make: a
    /// power of two between 64 KiB and 16 MiB; other numbers are brought there.
    pub ring: usize,
    /// How long after the last work a connection is looked at in each poll.
    /// After that its peer has to wake us, which costs it a system call.
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
            folder: default_folder(user, std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from)),
            users: vec![user],
            mode: 0o600,
            ring: 512 << 10,
            spin: Duration::from_micros(50),
            handshake: Duration::from_secs(10),
            linger: Duration::from_secs(1),
        }
    }
}

impl ShmConfig {
    /// The size of ring to make.
    pub(crate) fn ring(&self) -> usize {
        self.ring.clamp(MIN_RING, MAX_RING).next_power_of_two()
    }
}

/// `/run/nvmeof` for root, since its processes meet those of services; for
/// others what the system made for them to keep such things.
fn default_folder(user: u32, runtime: Option<PathBuf>) -> PathBuf {
    if user == 0 {
        return PathBuf::from("/run/nvmeof");
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
