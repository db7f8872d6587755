//! The medium between hosts and target.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use nvmeof_memory::Pages;
use nvmeof_rdma::{Provider, Steering};
use nvmeof_rdma_shm::{Shm, ShmConfig};
use nvmeof_rdma_sim::SimNet;
use nvmeof_rdma_soft::SoftConfig;
use tempfile::TempDir;

/// Time-out of the peer's half of the connection set-up.
const HANDSHAKE: Duration = Duration::from_secs(1);
/// Time-out of a closing connection to send its queued data.
const LINGER: Duration = Duration::from_millis(100);

fn soft(crc: bool) -> SoftConfig {
    SoftConfig {
        crc,
        handshake: HANDSHAKE,
        linger: LINGER,
        ..SoftConfig::default()
    }
}

fn shm(folder: &TempDir) -> ShmConfig {
    ShmConfig {
        folder: folder.path().to_owned(),
        ring: 64 << 10,
        // Virtual time does not advance during polls.
        spin: Duration::ZERO,
        handshake: HANDSHAKE,
        linger: LINGER,
        ..ShmConfig::default()
    }
}

/// The medium between hosts and target.
#[derive(Clone)]
pub(crate) enum Medium {
    /// The simulated network; whether frames carry a checksum.
    Net { net: SimNet, crc: bool },
    /// Real shared memory: it takes no virtual time, and is deterministic because one thread
    /// uses it. The disks of the target access the memory of hosts.
    Memory(Arc<TempDir>),
}

impl Medium {
    /// Shared memory, with a folder of its own for sockets.
    pub(crate) fn memory() -> Self {
        Self::Memory(Arc::new(TempDir::new().unwrap()))
    }

    /// A provider at `ip`.
    pub(crate) fn provider(&self, ip: IpAddr) -> Box<dyn Provider> {
        match self {
            Self::Net { net, crc } => Box::new(net.endpoint(ip, soft(*crc))),
            Self::Memory(folder) => Box::new(Shm::new(shm(folder)).unwrap()),
        }
    }

    /// Providers at `ip` for some reactors, over which connections are spread.
    pub(crate) fn providers(&self, ip: IpAddr, reactors: usize) -> Vec<Box<dyn Provider>> {
        fn boxed<P: Provider + 'static>(all: Vec<P>) -> Vec<Box<dyn Provider>> {
            let all = all.into_iter();
            all.map(|one| Box::new(one) as Box<dyn Provider>).collect()
        }
        match self {
            // Unchanged for seeds with one reactor.
            _ if reactors == 1 => vec![self.provider(ip)],
            Self::Net { net, crc } => boxed(net.group(ip, &soft(*crc), reactors)),
            Self::Memory(folder) => {
                boxed(Shm::group(&shm(folder), &Steering::new(reactors)).unwrap())
            }
        }
    }

    /// The kind of pages of hosts' buffers.
    pub(crate) fn pages(&self) -> Pages {
        match self {
            Self::Net { .. } => Pages::Normal,
            Self::Memory(_) => Pages::Shareable,
        }
    }

    /// Removes the folder from texts of providers, which differs between runs.
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
