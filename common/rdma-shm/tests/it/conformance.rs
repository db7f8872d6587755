//! The conformance suite, between two providers of one process: with rings of the usual size,
//! and with the smallest ones, which long transfers fill; with memory that the active side
//! lends, and without.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nvmeof_rdma::{Address, Provider};
use nvmeof_rdma_conformance::{Endpoint, Fabric};
use nvmeof_rdma_layers::{Faults, Faulty, OneIn};
use nvmeof_rdma_shm::{ShareMemory, Shm, ShmConfig};
use tempfile::TempDir;

struct OneHost {
    folder: TempDir,
    ring: usize,
    /// How long connections are polled before they rely on wake-ups.
    spin: Duration,
    share_memory: ShareMemory,
    /// Faults to inject, within the contract; `None` without that layer.
    faults: Option<Faults>,
    start: Instant,
}

fn one_host(ring: usize, spin: Duration, share_memory: ShareMemory) -> OneHost {
    OneHost {
        folder: tempfile::tempdir().unwrap(),
        ring,
        spin,
        share_memory,
        faults: None,
        start: Instant::now(),
    }
}

/// The same below the layer that injects `faults`.
fn faulty(share_memory: ShareMemory, faults: Faults) -> OneHost {
    OneHost {
        faults: Some(faults),
        ..one_host(512 << 10, Duration::from_micros(50), share_memory)
    }
}

impl Fabric for OneHost {
    fn describe(&self) -> String {
        let Self {
            ring,
            spin,
            share_memory,
            faults,
            ..
        } = self;
        format!(
            "rings of {ring} bytes, spinning for {spin:?}, memory to {share_memory:?}, {faults:?}"
        )
    }

    fn pair(&mut self) -> (Box<dyn Provider>, Box<dyn Provider>) {
        let make = || -> Box<dyn Provider> {
            let config = ShmConfig {
                folder: self.folder.path().join("meet"),
                ring: self.ring,
                spin: self.spin,
                share_memory: self.share_memory,
                ..ShmConfig::default()
            };
            let shm = Shm::new(config).unwrap();
            match &self.faults {
                Some(faults) => Box::new(Faulty::new(shm, faults.clone())),
                None => Box::new(shm),
            }
        };
        (make(), make())
    }

    fn addr(&self, end: Endpoint) -> Address {
        match end {
            Endpoint::A => "[::1]:0".parse().unwrap(),
            Endpoint::B => "127.0.0.1:0".parse().unwrap(),
        }
    }

    fn now(&self) -> Duration {
        self.start.elapsed()
    }

    fn pause(&mut self, fds: &[BorrowedFd<'_>], _until: Option<Duration>) -> bool {
        let mut fds: Vec<_> = fds
            .iter()
            .map(|fd| PollFd::new(*fd, PollFlags::POLLIN))
            .collect();
        poll(&mut fds, PollTimeout::from(1u8)).unwrap() > 0
    }
}

nvmeof_rdma_conformance::conformance_suite!(
    bare,
    [
        one_host(512 << 10, Duration::from_micros(50), ShareMemory::SameUser),
        one_host(64 << 10, Duration::ZERO, ShareMemory::SameUser),
        one_host(512 << 10, Duration::from_micros(50), ShareMemory::Never),
        one_host(64 << 10, Duration::ZERO, ShareMemory::Never),
    ]
);

// The layer keeps every promise of the inner provider, including those about lent memory, and
// late events violate none.
nvmeof_rdma_conformance::conformance_suite!(
    faulty_without_faults,
    [ShareMemory::SameUser, ShareMemory::Never]
        .map(|share_memory| faulty(share_memory, Faults::default()))
);
nvmeof_rdma_conformance::conformance_suite!(
    delayed,
    [ShareMemory::SameUser, ShareMemory::Never].map(|share_memory| {
        let faults = Faults {
            delay: OneIn(3),
            delay_polls: 8,
            ..Faults::default()
        };
        faulty(share_memory, faults)
    })
);
