//! Stand-in devices as a fabric of the conformance suite: each case has a device of its own.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::BorrowedFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nvmeof_rdma::{Address, Limits, Provider};
use nvmeof_rdma_conformance::{Deviations, Endpoint, Fabric};
use nvmeof_rdma_verbs::{Verbs, VerbsConfig};
use nvmeof_verbs_standin::{configure, install, violations};

use super::watched::Watched;

/// A device of its own name and address.
#[derive(Debug)]
pub(super) struct Device {
    pub(super) name: String,
    pub(super) addr: IpAddr,
    settings: &'static str,
    start: Instant,
}

impl Device {
    /// Adds a device with a profile and other settings.
    pub(super) fn new(settings: &'static str) -> Self {
        static COUNT: AtomicU16 = AtomicU16::new(1);
        install();
        let [high, low] = COUNT.fetch_add(1, Ordering::Relaxed).to_be_bytes();
        let addr = IpAddr::V4(Ipv4Addr::new(10, 77 + high, low, 1));
        let name = format!("test{high}.{low}");
        configure(&format!("{name} {settings} addr={addr} audit")).unwrap();
        Self {
            name,
            addr,
            settings,
            start: Instant::now(),
        }
    }

    /// The same, with each connection over a link, as between processes.
    pub(super) fn linked(settings: &'static str) -> Self {
        let device = Self::new(settings);
        let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("links");
        std::fs::create_dir_all(&folder).unwrap();
        device.set(&format!("links={}", folder.display()));
        device
    }

    /// A device for each side: the first one connects to the second one.
    pub(super) fn two(settings: &'static str) -> [Self; 2] {
        let [host, target] = [(); 2].map(|()| Self::new(settings));
        target.set(&format!("from={}", host.name));
        [host, target]
    }

    /// Changes settings of the device.
    pub(super) fn set(&self, settings: &str) {
        configure(&format!("{} {settings}", self.name)).unwrap();
    }

    pub(super) fn config() -> VerbsConfig {
        let default = VerbsConfig::default();
        VerbsConfig {
            limits: Limits {
                // The suite uses all of them, and waits for each.
                max_exposed: 512,
                ..default.limits
            },
            handshake: Duration::from_secs(2),
            ..default
        }
    }

    pub(super) fn provider() -> Watched<Verbs> {
        let inner =
            nvmeof_rdma_verbs::new(Self::config()).unwrap_or_else(|error| panic!("{error}"));
        Watched { inner }
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            assert_eq!(violations(), [""; 0], "{}", self.name);
        }
    }
}

impl Fabric for Device {
    fn describe(&self) -> String {
        format!("device {}: {}", self.name, self.settings)
    }

    fn pair(&mut self) -> (Box<dyn Provider>, Box<dyn Provider>) {
        (Box::new(Self::provider()), Box::new(Self::provider()))
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
        if self.settings.contains("iwarp") {
            return Deviations {
                silent_faults: true,
                ..any
            };
        }
        Deviations {
            private_data: [56, 196, 148],
            padded: true,
            sends_wait: true,
            // A window opens when its work request is executed.
            opens_in_order: !self.settings.contains("no-windows"),
            ..any
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
