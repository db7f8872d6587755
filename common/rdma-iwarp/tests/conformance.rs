//! The suite of the contract, over loopback sockets.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nvmeof_rdma::Provider;
use nvmeof_rdma::conformance::{End, Fabric};
use nvmeof_rdma_iwarp::IwarpConfig;

struct Loopback {
    crc: [bool; 2],
    addr: SocketAddr,
    start: Instant,
}

fn loopback(crc: [bool; 2], addr: &str) -> Loopback {
    Loopback {
        crc,
        addr: addr.parse().unwrap(),
        start: Instant::now(),
    }
}

impl Fabric for Loopback {
    fn describe(&self) -> String {
        format!("TCP at {}, CRC wanted by {:?}", self.addr, self.crc)
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

    fn addr(&self, _end: End) -> SocketAddr {
        self.addr
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

nvmeof_rdma::conformance_suite!([
    loopback([false, false], "127.0.0.1:0"),
    loopback([true, false], "127.0.0.1:0"),
]);
