//! The suite of the contract, over loopback TCP and over Unix sockets.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::cell::Cell;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nvmeof_rdma::conformance::{End, Fabric};
use nvmeof_rdma::{Address, Provider, UnixPath};
use nvmeof_rdma_iwarp::IwarpConfig;
use tempfile::TempDir;

struct Loopback {
    crc: [bool; 2],
    /// Of Unix sockets; `None` for TCP.
    folder: Option<TempDir>,
    /// Paths given out.
    paths: Cell<u32>,
    start: Instant,
}

fn tcp(crc: [bool; 2]) -> Loopback {
    Loopback {
        crc,
        folder: None,
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

impl Fabric for Loopback {
    fn describe(&self) -> String {
        let kind = if self.folder.is_some() { "Unix" } else { "TCP" };
        format!("{kind} sockets, CRC wanted by {:?}", self.crc)
    }

    fn serves_unix(&self) -> bool {
        true
    }

    fn pair(&mut self) -> (Box<dyn Provider>, Box<dyn Provider>) {
        let [a, b] = self.crc.map(|crc| {
            let config = IwarpConfig {
                crc,
                ..IwarpConfig::default()
            };
            Box::new(nvmeof_rdma_iwarp::new(config).unwrap())
        });
        (a, b)
    }

    fn addr(&self, _end: End) -> Address {
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

mod tcp {
    use super::tcp;

    nvmeof_rdma::conformance_suite!([tcp([false, false]), tcp([true, false])]);
}

mod unix {
    use super::unix;

    nvmeof_rdma::conformance_suite!([unix([false, false]), unix([true, false])]);
}
