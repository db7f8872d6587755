//! The conformance suite, over loopback TCP and Unix sockets, also through the layer that
//! injects faults.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::cell::Cell;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nvmeof_rdma::{Address, Provider, UnixPath};
use nvmeof_rdma_conformance::{Endpoint, Fabric};
use nvmeof_rdma_iwarp::{IwarpConfig, ZeroCopy};
use nvmeof_rdma_layers::{Faults, Faulty, OneIn};
use tempfile::TempDir;

struct Loopback {
    crc: [bool; 2],
    /// Directory of Unix sockets; `None` for TCP.
    folder: Option<TempDir>,
    /// Faults to inject, within the contract; `None` without that layer.
    faults: Option<Faults>,
    zero_copy: ZeroCopy,
    /// Number of paths used.
    paths: Cell<u32>,
    start: Instant,
}

fn tcp(crc: [bool; 2]) -> Loopback {
    Loopback {
        crc,
        folder: None,
        faults: None,
        zero_copy: ZeroCopy::Never,
        paths: Cell::new(0),
        start: Instant::now(),
    }
}

fn unix(crc: [bool; 2]) -> Loopback {
    Loopback {
        folder: Some(tempfile::tempdir().unwrap()),
        ..tcp(crc)
    }
}

impl Loopback {
    /// The same below the layer that injects `faults`.
    fn with(self, faults: Faults) -> Self {
        let faults = Some(faults);
        Self { faults, ..self }
    }

    /// The same with every payload sent without a copy.
    fn without_copies(self) -> Self {
        let zero_copy = ZeroCopy::Always;
        Self { zero_copy, ..self }
    }
}

/// Late events, which violate no promise.
fn late() -> Faults {
    Faults {
        delay: OneIn(3),
        delay_polls: 8,
        ..Faults::default()
    }
}

impl Fabric for Loopback {
    fn describe(&self) -> String {
        let kind = if self.folder.is_some() { "Unix" } else { "TCP" };
        let Self {
            crc,
            faults,
            zero_copy,
            ..
        } = self;
        format!("{kind} sockets, CRC wanted by {crc:?}, zero copy {zero_copy:?}, {faults:?}")
    }

    fn serves_unix(&self) -> bool {
        true
    }

    fn pair(&mut self) -> (Box<dyn Provider>, Box<dyn Provider>) {
        let [a, b] = self.crc.map(|crc| -> Box<dyn Provider> {
            let config = IwarpConfig {
                crc,
                zero_copy: self.zero_copy,
                ..IwarpConfig::default()
            };
            let iwarp = nvmeof_rdma_iwarp::new(config).unwrap();
            match &self.faults {
                Some(faults) => Box::new(Faulty::new(iwarp, faults.clone())),
                None => Box::new(iwarp),
            }
        });
        (a, b)
    }

    fn addr(&self, _end: Endpoint) -> Address {
        let Some(folder) = &self.folder else {
            return "127.0.0.1:0".parse().unwrap();
        };
        self.paths.set(self.paths.get() + 1);
        let path = folder.path().join(format!("{}.sock", self.paths.get()));
        UnixPath::new(&path).unwrap().into()
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

// The layer keeps every promise of the inner provider, and so do late events.
mod tcp {
    use super::{Faults, late, tcp};

    nvmeof_rdma_conformance::conformance_suite!(bare, [tcp([false, false]), tcp([true, false])]);
    nvmeof_rdma_conformance::conformance_suite!(
        faulty_without_faults,
        [tcp([false, false]).with(Faults::default())]
    );
    nvmeof_rdma_conformance::conformance_suite!(
        delayed,
        [false, true].map(|crc| tcp([crc, false]).with(late()))
    );
    nvmeof_rdma_conformance::conformance_suite!(
        without_copies,
        [false, true].map(|crc| tcp([crc, false]).without_copies())
    );
    nvmeof_rdma_conformance::conformance_suite!(
        without_copies_delayed,
        [tcp([false, false]).without_copies().with(late())]
    );
}

mod unix {
    use super::{Faults, late, unix};

    nvmeof_rdma_conformance::conformance_suite!(bare, [unix([false, false]), unix([true, false])]);
    nvmeof_rdma_conformance::conformance_suite!(
        faulty_without_faults,
        [unix([false, false]).with(Faults::default())]
    );
    nvmeof_rdma_conformance::conformance_suite!(delayed, [unix([false, false]).with(late())]);
}
