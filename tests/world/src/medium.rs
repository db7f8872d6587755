//! What hosts and the target reach each other by.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use nvmeof_memory::Pages;
use nvmeof_rdma::Provider;
use nvmeof_rdma_shm::{Shm, ShmConfig};
use nvmeof_rdma_sim::SimNet;
use nvmeof_rdma_soft::SoftConfig;
use tempfile::TempDir;

/// How long a peer may take for its half of the connection set-up.
const HANDSHAKE: Duration = Duration::from_secs(1);
/// How long a closing connection may take to send what is queued.
const LINGER: Duration = Duration::from_millis(100);

/// What hosts and the target reach each other by.
#[derive(Clone)]
pub(crate) enum Medium {
    /// The simulated network; whether frames carry a checksum.
    Net { net: SimNet, crc: bool },
    /// Shared memory, which is real: no time passes in it, and it is as
    /// predictable as the single thread that uses it. The target has its disks
    /// work in the hosts' memory.
    Memory(Arc<TempDir>),
}

impl Medium {
    /// Shared memory, with a folder of its own in which to meet.
    pub(crate) fn memory() -> Self {
        Self::Memory(Arc::new(TempDir::new().unwrap()))
    }

    /// A provider at `ip`.
    pub(crate) fn provider(&self, ip: IpAddr) -> Box<dyn Provider> {
        match self {
            Self::Net { net, crc } => {
                let config = SoftConfig {
                    crc: *crc,
                    handshake: HANDSHAKE,
                    linger: LINGER,
                    ..SoftConfig::default()
                };
                Box::new(net.endpoint(ip, config))
            }
            Self::Memory(folder) => {
                let config = ShmConfig {
                    folder: folder.path().to_owned(),
                    ring: 64 << 10,
                    // Time does not pass while somebody looks.
                    spin: Duration::ZERO,
                    handshake: HANDSHAKE,
                    linger: LINGER,
                    ..ShmConfig::default()
                };
                Box::new(Shm::new(config).unwrap())
            }
        }
    }

    /// The pages that buffers of hosts are made of.
    pub(crate) fn pages(&self) -> Pages {
        match self {
            Self::Net { .. } => Pages::Normal,
            Self::Memory(_) => Pages::Shareable,
        }
    }

    /// What differs from run to run in texts of providers: where they meet.
    pub(crate) fn without_place(&self, text: &str) -> String {
        match self {
            Self::Net { .. } => text.to_owned(),
            Self::Memory(folder) => {
                let folder = folder.path().to_string_lossy().into_owned();
                text.replace(&folder, "(folder)")
            }
        }
    }
}
