//! Simulated networks for the conformance suite, one for each seed.
#![allow(clippy::unwrap_used, reason = "shared by tests")]

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::BorrowedFd;
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nvmeof_rdma::{Address, Provider};
use nvmeof_rdma_conformance::{Endpoint, Fabric};
use nvmeof_rdma_sim::{Sim, SimConfig, SimNet};
use nvmeof_rdma_soft::SoftConfig;

/// Two endpoints on a network of their own.
pub(crate) struct SimFabric {
    seed: u64,
    net: SimNet,
    /// Puts layers around a provider.
    wrap: Box<dyn Fn(Sim) -> Box<dyn Provider>>,
}

impl SimFabric {
    /// Networks for the seeds from 0 on: 20, or the number in the environment variable
    /// `SIM_SEEDS`.
    pub(crate) fn seeds(wrap: fn(Sim) -> Box<dyn Provider>) -> impl Iterator<Item = Self> {
        let count = std::env::var("SIM_SEEDS").ok();
        let count = count.map_or(20, |count| count.parse().unwrap());
        (0..count).map(move |seed| Self::new(seed, wrap))
    }

    pub(crate) fn new(seed: u64, wrap: impl Fn(Sim) -> Box<dyn Provider> + 'static) -> Self {
        let micros = Duration::from_micros;
        let defaults = SimConfig::default();
        // Fast and slow, wide and narrow, long pieces and short ones.
        let config = SimConfig {
            latency: match seed % 3 {
                0 => micros(1)..=micros(50),
                1 => micros(0)..=micros(0),
                _ => micros(0)..=micros(5000),
            },
            window: match seed % 4 {
                0 => 4096..=8192,
                _ => defaults.window,
            },
            longest_piece: match seed % 5 {
                0 => 2000,
                _ => defaults.longest_piece,
            },
            // Large enough that a Write with an invalid end, as in the suite, is a single
            // segment: DDP checks each segment by itself.
            segment: match seed / 4 % 4 {
                0 => None,
                1 => Some(1460),
                2 => Some(8960),
                _ => Some(32_741),
            },
            chances: defaults.chances,
        };
        let net = SimNet::new(seed, config);
        let wrap = Box::new(wrap);
        Self { seed, net, wrap }
    }

    /// The network, to inject faults.
    pub(crate) fn net(&self) -> SimNet {
        self.net.clone()
    }
}

pub(crate) fn ip(end: Endpoint) -> IpAddr {
    let last = match end {
        Endpoint::A => 1,
        Endpoint::B => 2,
    };
    Ipv4Addr::new(10, 0, 0, last).into()
}

impl Fabric for SimFabric {
    fn describe(&self) -> String {
        format!("a simulated network, seed {}", self.seed)
    }

    fn seed(&self) -> u64 {
        self.seed
    }

    fn pair(&mut self) -> (Box<dyn Provider>, Box<dyn Provider>) {
        // A checksum is used if one side requests it.
        let make = |end, crc| {
            let config = SoftConfig {
                crc,
                ..SoftConfig::default()
            };
            (self.wrap)(self.net.endpoint(ip(end), config))
        };
        let crc = self.seed % 4;
        (
            make(Endpoint::A, crc == 1 || crc == 3),
            make(Endpoint::B, crc >= 2),
        )
    }

    fn addr(&self, end: Endpoint) -> Address {
        SocketAddr::new(ip(end), 0).into()
    }

    fn now(&self) -> Duration {
        self.net.now()
    }

    fn pause(&mut self, fds: &[BorrowedFd<'_>], until: Option<Duration>) -> bool {
        if until.is_some() {
            return is_readable(fds) || self.net.advance_to_next(until);
        }
        while !is_readable(fds) {
            if !self.net.advance_to_next(None) {
                return false;
            }
        }
        true
    }
}

/// Whether any of `fds` is readable at this moment.
fn is_readable(fds: &[BorrowedFd<'_>]) -> bool {
    let fds = fds.iter().map(|fd| PollFd::new(*fd, PollFlags::POLLIN));
    let mut fds: Vec<_> = fds.collect();
    poll(&mut fds, PollTimeout::ZERO).unwrap() > 0
}
