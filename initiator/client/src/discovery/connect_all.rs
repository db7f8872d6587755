//! Connects to all subsystems that discovery services report, each over all of its paths.

use std::collections::BTreeMap;

use nvmeof_rdma::Address;
use nvmeof_wire::Nqn;
use nvmeof_wire::log::DiscoveryEntry;
use nvmeof_wire::log::discovery::{RdmaProviderType, SubsystemType};
use tokio::task::JoinSet;

use super::address::{EntryTarget, SkipReason};
use super::{DiscoveryOptions, ServiceResult};
use crate::error::{Error, MachineError};
use crate::host::Host;
use crate::multipath::{Multipath, MultipathOptions};
use crate::options::ConnectOptions;

/// Options of [`Host::connect_all`].
#[derive(Clone, Debug)]
pub struct ConnectAllOptions {
    /// How to discover the subsystems.
    pub discovery: DiscoveryOptions,
    /// Options of each subsystem.
    pub multipath: MultipathOptions,
    /// Options of each path. The address and the subsystem are those of its entry.
    pub path: ConnectOptions,
}

impl Default for ConnectAllOptions {
    fn default() -> Self {
        let nowhere = Address::from(([0, 0, 0, 0], 0));
        Self {
            discovery: DiscoveryOptions::default(),
            multipath: MultipathOptions::default(),
            path: ConnectOptions::new(nowhere, Nqn::discovery()),
        }
    }
}

/// The subsystems of all discovery services.
#[derive(Clone, Debug)]
pub struct ConnectedSubsystems {
    /// The subsystems, in the order of their names.
    pub subsystems: Vec<ConnectedSubsystem>,
    /// Entries that belong to none of them: their subsystem name is invalid, or there are too many
    /// subsystems.
    pub left_out: Vec<(Box<DiscoveryEntry>, SkipReason)>,
    /// The discovery services that were read.
    pub services: Vec<ServiceResult>,
}

/// A subsystem, and the outcomes of its entries.
#[derive(Clone, Debug)]
pub struct ConnectedSubsystem {
    /// Its name.
    pub subnqn: Nqn,
    /// Its paths. `None` if no path could be connected.
    pub multipath: Option<Multipath>,
    /// Its entries. Several of one address are one path.
    pub entries: Vec<SubsystemEntry>,
}

/// An entry of a subsystem.
#[derive(Clone, Debug)]
pub struct SubsystemEntry {
    /// The entry.
    pub entry: Box<DiscoveryEntry>,
    /// Its outcome.
    pub outcome: EntryOutcome,
}

/// The outcome of an entry.
#[derive(Clone, Debug)]
pub enum EntryOutcome {
    /// The path at this address is connected.
    Connected(Address),
    /// The path at this address could not be connected. If another path of the subsystem is
    /// connected, this one is retried in the background.
    Failed(Address, Error),
    /// The entry was not used.
    Skipped(SkipReason),
}

/// Subsystems that are connected at a time: a fabric with many does not open all of their
/// connections at once.
const CONCURRENT: usize = 8;
/// Maximum number of subsystems: each takes tasks and connections of this process until it is
/// dropped.
const MAX_SUBSYSTEMS: usize = 256;
/// Maximum number of paths of a subsystem: each has queues that register all buffers of the host.
const MAX_PATHS: usize = 16;

impl Host {
    /// Connects to all subsystems that the discovery service at `addr` reports, and those to which
    /// it refers: each over all addresses that this host can use. Discovery subsystems are left
    /// out. Must be called inside a tokio runtime.
    ///
    /// # Errors
    /// The service at `addr` cannot be read. Errors of subsystems are in the result.
    pub async fn connect_all(
        &self,
        addr: Address,
        options: &ConnectAllOptions,
    ) -> Result<ConnectedSubsystems, Error> {
        let found = self.discover_all(addr, &options.discovery).await?;
        let (plans, left_out) = plans(found.entries.iter().zip(found.sources.iter().copied()));
        let mut waiting = plans.into_iter();
        let mut tasks = JoinSet::new();
        let mut subsystems = Vec::new();
        loop {
            while tasks.len() < CONCURRENT
                && let Some(plan) = waiting.next()
            {
                tasks.spawn(plan.connect(self.clone(), options.clone()));
            }
            let Some(connected) = tasks.join_next().await else {
                break;
            };
            subsystems.push(connected.map_err(MachineError::internal)?);
        }
        subsystems.sort_by_key(|subsystem: &ConnectedSubsystem| subsystem.subnqn);
        Ok(ConnectedSubsystems {
            subsystems,
            left_out,
            services: found.services,
        })
    }
}

/// The entries of one subsystem, with the addresses of those that may be used.
struct Plan {
    subnqn: Nqn,
    entries: Vec<PlannedEntry>,
}

struct PlannedEntry {
    entry: Box<DiscoveryEntry>,
    addr: Result<Address, SkipReason>,
}

/// Groups the entries of NVM subsystems, each with the address of the service that reports it, by
/// subsystem. Returns the others with a reason.
fn plans<'a>(
    entries: impl Iterator<Item = (&'a DiscoveryEntry, Address)>,
) -> (Vec<Plan>, Vec<(Box<DiscoveryEntry>, SkipReason)>) {
    let mut plans = BTreeMap::<Nqn, Vec<PlannedEntry>>::new();
    let mut left_out = Vec::new();
    let of_subsystems = entries.filter(|(entry, _)| entry.subtype == SubsystemType::NVM);
    for (entry, via) in of_subsystems {
        let entry = Box::new(*entry);
        let subnqn = match Nqn::from_field(&entry.subnqn) {
            Ok(subnqn) => subnqn,
            Err(error) => {
                left_out.push((entry, SkipReason::Subsystem(error)));
                continue;
            }
        };
        if plans.len() >= MAX_SUBSYSTEMS && !plans.contains_key(&subnqn) {
            left_out.push((entry, too_many("subsystems", MAX_SUBSYSTEMS)));
            continue;
        }
        let addr = EntryTarget::of(&entry, via).map(|target| target.addr);
        let planned = PlannedEntry { entry, addr };
        plans.entry(subnqn).or_default().push(planned);
    }
    let plans = plans
        .into_iter()
        .map(|(subnqn, entries)| Plan { subnqn, entries });
    (plans.collect(), left_out)
}

fn too_many(what: &'static str, limit: usize) -> SkipReason {
    SkipReason::TooMany { limit, what }
}

impl Plan {
    async fn connect(mut self, host: Host, options: ConnectAllOptions) -> ConnectedSubsystem {
        self.skip_other_providers(&host).await;
        let paths: Vec<_> = self
            .addresses()
            .into_iter()
            .map(|addr| ConnectOptions {
                addr,
                subnqn: self.subnqn,
                ..options.path.clone()
            })
            .collect();
        let (multipath, errors) = match paths.is_empty() {
            true => (None, BTreeMap::new()),
            false => connect_paths(&host, &paths, options.multipath).await,
        };
        let entries = self.entries.into_iter();
        let entries = entries.map(|PlannedEntry { entry, addr }| {
            let outcome = match addr {
                Err(reason) => EntryOutcome::Skipped(reason),
                Ok(addr) => match errors.get(&addr) {
                    Some(error) => EntryOutcome::Failed(addr, error.clone()),
                    None => EntryOutcome::Connected(addr),
                },
            };
            SubsystemEntry { entry, outcome }
        });
        ConnectedSubsystem {
            subnqn: self.subnqn,
            multipath,
            entries: entries.collect(),
        }
    }

    /// The address of each path.
    fn addresses(&mut self) -> Vec<Address> {
        let mut found = Vec::new();
        for planned in &mut self.entries {
            let Ok(addr) = planned.addr else { continue };
            if found.contains(&addr) {
                continue;
            }
            match found.len() < MAX_PATHS {
                true => found.push(addr),
                false => planned.addr = Err(too_many("paths of the subsystem", MAX_PATHS)),
            }
        }
        found
    }

    /// Skips entries of providers that the one on the route to the address does not reach. An
    /// error of a route is left to the attempt to connect.
    async fn skip_other_providers(&mut self, host: &Host) {
        for planned in &mut self.entries {
            let Ok(addr) = planned.addr else { continue };
            let host = host.clone();
            // It asks the kernel, and a target on this host.
            let route = tokio::task::spawn_blocking(move || host.config().route(addr));
            let Ok(Ok(route)) = route.await else { continue };
            let (reported, used) = (planned.entry.tsas.prtype, route.name());
            if !interoperates(reported, used) {
                planned.addr = Err(SkipReason::Provider { reported, used });
            }
        }
    }
}

/// Whether that provider of this host may reach ports of the provider type `reported`. Software
/// iWARP reaches iWARP only. A device is on the network of the port, or the target is on this host.
fn interoperates(reported: RdmaProviderType, used: &str) -> bool {
    let others = [
        RdmaProviderType::IB,
        RdmaProviderType::ROCE,
        RdmaProviderType::ROCE_V2,
    ];
    used != "iwarp" || !others.contains(&reported)
}

/// Connects the paths of a subsystem, and waits until each was tried. Returns the error of each
/// that is not connected.
async fn connect_paths(
    host: &Host,
    paths: &[ConnectOptions],
    options: MultipathOptions,
) -> (Option<Multipath>, BTreeMap<Address, Error>) {
    let multipath = match Multipath::connect(host, paths, options).await {
        Ok(multipath) => multipath,
        Err(error) => {
            let errors = paths.iter().map(|path| {
                let own = match &error {
                    Error::NoPath(no_path) => {
                        let mut paths = no_path.paths.iter();
                        paths.find_map(|(addr, own)| own.clone().filter(|_| *addr == path.addr))
                    }
                    _ => None,
                };
                (path.addr, own.unwrap_or_else(|| error.clone()))
            });
            return (None, errors.collect());
        }
    };
    let mut changes = multipath.changes();
    loop {
        let paths = multipath.paths();
        if paths
            .iter()
            .all(|path| path.is_live || path.last_error.is_some())
        {
            let errors = paths
                .into_iter()
                .filter_map(|path| Some((path.addr, path.last_error?)));
            let errors = errors.collect();
            return (Some(multipath), errors);
        }
        if !changes.changed().await {
            return (Some(multipath), BTreeMap::new());
        }
    }
}

#[cfg(test)]
mod tests {
    use nvmeof_wire::Ascii;
    use nvmeof_wire::log::discovery::{AddressFamily, RdmaTsas, TransportType};

    use super::*;

    fn entry(subnqn: &str, port: usize) -> DiscoveryEntry {
        let mut entry = DiscoveryEntry::zeroed();
        entry.trtype = TransportType::RDMA;
        entry.adrfam = AddressFamily::IPV4;
        entry.subtype = SubsystemType::NVM;
        entry.traddr = Ascii::new("192.0.2.1");
        entry.trsvcid = Ascii::new(&port.to_string());
        entry.subnqn = Nqn::new(subnqn).unwrap().to_field();
        entry.tsas = RdmaTsas::connected(RdmaProviderType::IWARP);
        entry
    }

    fn via() -> Address {
        "192.0.2.9:8009".parse().unwrap()
    }

    fn planned(entries: &[DiscoveryEntry]) -> (Vec<Plan>, Vec<(Box<DiscoveryEntry>, SkipReason)>) {
        plans(entries.iter().map(|entry| (entry, via())))
    }

    #[test]
    fn entries_are_grouped_and_others_left_out_with_a_reason() {
        let mut referral = entry("nqn.2026-11.org.example:finder", 1);
        referral.subtype = SubsystemType::REFERRAL;
        let mut unnamed = entry("nqn.2026-11.org.example:a", 1);
        unnamed.subnqn = [0; 256];
        let mut tcp = entry("nqn.2026-11.org.example:a", 2);
        tcp.trtype = TransportType::TCP;
        let good = entry("nqn.2026-11.org.example:a", 1);
        let (plans, left_out) = planned(&[referral, unnamed, tcp, good]);
        let [plan] = plans.as_slice() else {
            panic!("{} plans", plans.len());
        };
        let reasons: Vec<_> = plan.entries.iter().map(|one| one.addr.clone()).collect();
        let transport = SkipReason::Transport(TransportType::TCP);
        let addr = "192.0.2.1:1".parse().unwrap();
        assert_eq!(reasons, [Err(transport), Ok(addr)]);
        assert!(matches!(left_out[..], [(_, SkipReason::Subsystem(_))]));
    }

    #[test]
    fn subsystems_and_paths_are_bounded() {
        let many: Vec<_> = (0..MAX_SUBSYSTEMS + 2)
            .map(|n| entry(&format!("nqn.2026-11.org.example:{n:04}"), 1))
            .collect();
        let (found, left_out) = planned(&many);
        assert_eq!((found.len(), left_out.len()), (MAX_SUBSYSTEMS, 2));
        assert!(left_out[0].1.to_string().contains("256 subsystems"));

        let mut many: Vec<_> = (1..MAX_PATHS + 3)
            .map(|port| entry("nqn.2026-11.org.example:a", port))
            .collect();
        // Another provider of the same address is the same path.
        let mut other = many[0];
        other.tsas.prtype = RdmaProviderType::ROCE_V2;
        many.push(other);
        let (mut found, _) = planned(&many);
        let addresses = found[0].addresses();
        assert_eq!(addresses.len(), MAX_PATHS);
        let skipped = found[0].entries.iter().filter(|one| one.addr.is_err());
        assert_eq!(skipped.count(), 2);
    }

    #[test]
    fn software_iwarp_reaches_iwarp_only() {
        for (reported, used, expected) in [
            (RdmaProviderType::IWARP, "iwarp", true),
            (RdmaProviderType::NOT_SPECIFIED, "iwarp", true),
            (RdmaProviderType::ROCE_V2, "iwarp", false),
            (RdmaProviderType::IB, "iwarp", false),
            (RdmaProviderType::ROCE_V2, "verbs", true),
            (RdmaProviderType::ROCE_V2, "shm", true),
        ] {
            assert_eq!(interoperates(reported, used), expected, "{reported:?}");
        }
    }
}
