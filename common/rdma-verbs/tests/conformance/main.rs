//! The conformance suite, over an RDMA device of this machine.
//!
//! It needs a device, so it is built and run only explicitly. The lab does that. Elsewhere:
//!
//! ```text
//! ip neighbour add 10.10.0.99 lladdr 02:00:00:00:00:99 dev IFACE
//! NVMEOF_VERBS_ADDR=10.10.0.1 NVMEOF_VERBS_SILENT=10.10.0.99 \
//!     cargo test -p nvmeof-rdma-verbs --test conformance
//! ```
//!
//! with the address of a device's interface, and an address that is on its route and not in
//! use.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

mod held_up;
mod overlooked;
mod silent;

use std::net::{IpAddr, SocketAddr};
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nvmeof_rdma::{Address, Limits, Provider};
use nvmeof_rdma_conformance::{Deviations, Endpoint, Fabric};
use nvmeof_rdma_verbs::{DeviceKind, VerbsConfig, device_for_local};

struct Device {
    addr: IpAddr,
    name: String,
    kind: DeviceKind,
    ack_timeout: Option<u8>,
    start: Instant,
}

fn device() -> Device {
    let Ok(addr) = std::env::var("NVMEOF_VERBS_ADDR") else {
        panic!(
            "set NVMEOF_VERBS_ADDR to the address of an RDMA device's interface \
             (`rdma link` shows the devices); `cargo xtask lab` runs this with software devices"
        );
    };
    let addr = addr.parse().unwrap();
    // Shown when a case fails. Only the first case sets it.
    let _ = tracing_subscriber::fmt()
        .with_env_filter("debug")
        .with_test_writer()
        .try_init();
    let found =
        device_for_local(SocketAddr::new(addr, 0)).unwrap_or_else(|error| panic!("{error}"));
    let Some(info) = found else {
        panic!(
            "{}",
            nvmeof_rdma_verbs::devices().err().map_or_else(
                || format!("no RDMA device serves {addr}"),
                |error| error.to_string(),
            )
        );
    };
    Device {
        addr,
        name: info.name,
        kind: info.kind,
        ack_timeout: None,
        start: Instant::now(),
    }
}

impl Fabric for Device {
    fn describe(&self) -> String {
        format!("device {} ({:?}) at {}", self.name, self.kind, self.addr)
    }

    fn pair(&mut self) -> (Box<dyn Provider>, Box<dyn Provider>) {
        let [a, b] = [(); 2].map(|()| {
            let default = VerbsConfig::default();
            let config = VerbsConfig {
                limits: Limits {
                    // The suite uses all of them.
                    max_exposed: 4096,
                    ..default.limits
                },
                handshake: Duration::from_secs(5),
                ack_timeout: self.ack_timeout,
                ..default
            };
            Box::new(nvmeof_rdma_verbs::new(config).unwrap())
        });
        (a, b)
    }

    fn addr(&self, _end: Endpoint) -> Address {
        SocketAddr::new(self.addr, 0).into()
    }

    fn deviations(&self) -> Deviations {
        let any = Deviations {
            solicited_unreported: true,
            rejects_for_the_dead: true,
            ..Deviations::NONE
        };
        // Software devices have typical names, unless they were renamed.
        let siw = self.name.starts_with("siw");
        let rxe = self.name.starts_with("rxe");
        match self.kind {
            DeviceKind::Iwarp => Deviations {
                silent_faults: true,
                invalidated_unreported: siw,
                reads_need_no_right: siw,
                tears_short_reads: siw,
                answers_after_withdraw: siw,
                ..any
            },
            _ => Deviations {
                private_data: [56, 196, 148],
                padded: true,
                sends_wait: true,
                opens_in_order: true,
                invalid_keys_pass: rxe,
                ..any
            },
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

nvmeof_rdma_conformance::conformance_suite!([device()]);
