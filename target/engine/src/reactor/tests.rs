//! A reactor under virtual time: a host over the simulated network, backing stores in
//! memory.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests"
)]

mod aborting;
mod accepting;
mod addresses;
mod authentication;
mod before_connect;
mod commit;
mod connections;
mod cross_reset;
mod depth;
mod errors;
mod fair_queue;
mod fairness;
mod fused;
mod host;
mod hung;
mod io;
mod keeping;
mod late;
mod lingering;
mod lists;
mod lockout;
mod log;
mod losses;
mod memory;
mod metrics;
mod orders;
mod ports;
mod protection;
mod providers;
mod releasing;
mod relief;
mod reservations;
mod shared;
mod stalls;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use nvmeof_memory::{ClassSpec, Pages};
use nvmeof_rdma::{Address, Provider};
use nvmeof_rdma_layers::Sharing;
use nvmeof_rdma_sim::{Sim, SimConfig, SimNet};
use nvmeof_rdma_soft::SoftConfig;
use nvmeof_target_core::{
    AuthenticationSpec, Fabric, Limits, Model, NamespaceSpec, PortSpec, SavedProtection,
    SettingsKeeper, SettingsSave, SubsystemSpec, Target,
};

use super::{Reactor, ReactorConfig};
use crate::Mailbox;
use crate::mailbox::Mail;
use memory::MemoryStores;

pub(super) const NQN: &str = "nqn.2026-11.org.example:disk";
const BLOCKS: u64 = 2048;

/// One target and the network around it.
pub(super) struct Bench {
    pub(super) net: SimNet,
    pub(super) reactor: Reactor<MemoryStores>,
    /// The mailbox of another reactor of the target, the first one, which has no queues.
    pub(super) other: Mailbox,
    pub(super) address: Address,
    pub(super) drained: bool,
    hosts: u8,
    /// Whether write protections are stored at once; if not, by [`finish_save`](Self::finish_save).
    pub(super) saves_at_once: bool,
    /// The state that was stored last.
    pub(super) stored: Vec<SavedProtection>,
    /// How often a state was stored.
    pub(super) saves: usize,
}

/// The test calls [`Bench::finish_save`] instead.
#[derive(Debug)]
struct NoWaker;

impl SettingsKeeper for NoWaker {
    fn wake(&self) {}
}

fn namespace(nsid: u32) -> NamespaceSpec {
    NamespaceSpec {
        nsid,
        blocks: BLOCKS,
        store: nsid - 1,
        deallocate: true,
        volatile_cache: true,
        ..NamespaceSpec::default()
    }
}

/// Transfers are no longer than the longest of these buffers.
pub(super) fn limits() -> Limits {
    Limits {
        max_transfer: 256 << 10,
        ..Limits::default()
    }
}

pub(super) fn few_buffers() -> ReactorConfig {
    ReactorConfig {
        capsules: 512,
        data: vec![
            ClassSpec {
                len: 4096,
                count: 16,
            },
            ClassSpec {
                len: 256 << 10,
                count: 4,
            },
        ],
        pages: Pages::Normal,
        stall: Duration::from_secs(30),
        drain: Duration::from_secs(5),
        shared_receives: 0,
    }
}

impl Bench {
    pub(super) fn new(seed: u64) -> Self {
        Self::with(seed, few_buffers())
    }

    pub(super) fn with(seed: u64, config: ReactorConfig) -> Self {
        Self::limited(seed, config, limits())
    }

    pub(super) fn limited(seed: u64, config: ReactorConfig, limits: Limits) -> Self {
        let sharing = config.shared_receives > 0;
        Self::over(seed, config, limits, |sim| match sharing {
            true => Box::new(Sharing::new(sim, 1024, 8192).unwrap()),
            false => Box::new(sim),
        })
    }

    /// With layers around the provider.
    pub(super) fn over(
        seed: u64,
        config: ReactorConfig,
        limits: Limits,
        wrap: impl FnOnce(Sim) -> Box<dyn Provider>,
    ) -> Self {
        Self::authenticating(seed, config, limits, AuthenticationSpec::default(), wrap)
    }

    /// With hosts that have keys.
    pub(super) fn authenticating(
        seed: u64,
        config: ReactorConfig,
        limits: Limits,
        keys: AuthenticationSpec,
        wrap: impl FnOnce(Sim) -> Box<dyn Provider>,
    ) -> Self {
        let net = SimNet::new(seed, SimConfig::default());
        let ip = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1));
        // The address of the second provider, if there is one.
        let second = IpAddr::V4(Ipv4Addr::new(10, 0, 1, 1));
        let ports = [ip, second].map(|ip| PortSpec::new(ip, 4420, vec![Fabric::Iwarp.into()]));
        let subsystem = SubsystemSpec {
            nqn: NQN.into(),
            allow_any_host: true,
            namespaces: vec![namespace(1)],
            ..SubsystemSpec::default()
        };
        let model = Model::build(limits, &ports, &[subsystem]).unwrap();
        let model = model.with_authentication(keys);
        let mailbox = Mailbox::new().unwrap();
        let other = Mailbox::new().unwrap();
        let peers = Arc::from([other.clone(), mailbox.clone()]);
        let stores = MemoryStores::new(1, BLOCKS * 512);
        let target = Target::new(model);
        target.set_settings_keeper(Arc::new(NoWaker));
        let mut reactor = Reactor::new(config, target, stores, mailbox, peers).unwrap();
        let provider = net.endpoint(ip, SoftConfig::default());
        let provider = reactor.add_provider(wrap(provider)).unwrap();
        let address = reactor
            .listen(provider, SocketAddr::new(ip, 4420).into())
            .unwrap();
        Self {
            net,
            reactor,
            other,
            address,
            drained: false,
            hosts: 1,
            saves_at_once: true,
            stored: Vec::new(),
            saves: 0,
        }
    }

    /// Listens on the other port as well, over a provider of its own.
    pub(super) fn listen_on_second(&mut self) -> Address {
        let ip = IpAddr::V4(Ipv4Addr::new(10, 0, 1, 1));
        let provider = self.net.endpoint(ip, SoftConfig::default());
        let provider = self.reactor.add_provider(Box::new(provider)).unwrap();
        let address = SocketAddr::new(ip, 4420).into();
        self.reactor.listen(provider, address).unwrap()
    }

    /// A host that connects to that address.
    pub(super) fn host_by(&mut self, address: Address) -> host::Host {
        let first = std::mem::replace(&mut self.address, address);
        let host = self.host();
        self.address = first;
        host
    }

    /// Completes the pending store of write protections with `result`.
    pub(super) fn finish_save(&mut self, result: &std::io::Result<()>) {
        if let Some(to_keep) = self.reactor.target.next_save() {
            self.finish_save_of(to_keep, result);
        }
    }

    pub(super) fn finish_save_of(&mut self, to_keep: SettingsSave, result: &std::io::Result<()>) {
        if result.is_ok() {
            self.saves += 1;
            self.stored.retain(|one| one.nsid != to_keep.nsid());
            self.stored.extend(&to_keep.settings().protected);
        }
        to_keep.end(result);
        self.reactor.mailbox().send(Mail::POLL);
    }

    /// A host with an address of its own.
    pub(super) fn host(&mut self) -> host::Host {
        self.hosts += 1;
        let ip = IpAddr::V4(Ipv4Addr::new(10, 0, 0, self.hosts));
        let provider = self.net.endpoint(ip, SoftConfig::default());
        let mut host = host::Host::new(provider, self.address);
        host.id = [self.hosts; 16];
        host
    }

    /// Completions of sends are withheld while the flag is set.
    pub(super) fn late(seed: u64) -> (Self, Arc<AtomicBool>) {
        let withholds = Arc::new(AtomicBool::new(false));
        let late = |sim| -> Box<dyn Provider> { Box::new(late::Late::new(sim, &withholds)) };
        let bench = Self::over(seed, few_buffers(), limits(), late);
        (bench, withholds)
    }

    /// Runs the reactor and the hosts until `done`, advancing the time when all are idle.
    pub(super) fn until(
        &mut self,
        hosts: &mut [&mut host::Host],
        mut done: impl FnMut(&mut Self, &mut [&mut host::Host]) -> bool,
    ) {
        for _ in 0..200_000 {
            if self.saves_at_once {
                self.finish_save(&Ok(()));
            }
            let now = self.net.now();
            let polled = self.reactor.poll_once(now).unwrap();
            self.drained |= polled.drained;
            self.reactor.check_accounts().unwrap();
            let mut busy = polled.did_work;
            let mut deadline = self.reactor.next_deadline();
            for host in hosts.iter_mut() {
                busy |= host.poll_once(now);
                deadline = deadline.into_iter().chain(host.next_deadline()).min();
            }
            if done(self, hosts) {
                return;
            }
            if !busy && !self.net.advance_to_next(deadline) {
                panic!("nothing will ever happen");
            }
        }
        panic!("it takes too long");
    }

    /// Runs for that long.
    pub(super) fn run_for(&mut self, hosts: &mut [&mut host::Host], time: Duration) {
        let end = self.net.now() + time;
        for host in hosts.iter_mut() {
            host.wake_at = Some(end);
        }
        if hosts.is_empty() {
            let mut sleeper = self.host();
            sleeper.wake_at = Some(end);
            self.until(&mut [&mut sleeper], |bench, _| bench.net.now() >= end);
        } else {
            self.until(hosts, |bench, _| bench.net.now() >= end);
        }
        for host in hosts.iter_mut() {
            host.wake_at = None;
        }
    }
}
