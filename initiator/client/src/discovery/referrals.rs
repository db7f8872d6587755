//! The log pages of a discovery service and of all services that it refers to, read once.

use nvmeof_initiator_core::discovery::{DiscoveryGraph, DiscoveryService, DiscoveryStep};
use nvmeof_rdma::Address;
use nvmeof_wire::Nqn;
use nvmeof_wire::log::DiscoveryEntry;
use tokio::task::JoinSet;

use super::address::EntryTarget;
use super::{DiscoveryOptions, read_once};
use crate::error::{Error, MachineError};
use crate::host::Host;

/// What a discovery service and those that it refers to report.
#[derive(Clone, Debug)]
pub struct DiscoveredServices {
    /// The entries of all services, without duplicates. Those of a subsystem are consecutive.
    pub entries: Vec<DiscoveryEntry>,
    /// The address of the service that reports each of the entries, in the same order.
    /// [`EntryTarget::of`] needs it: what a service may name depends on where it is.
    pub sources: Vec<Address>,
    /// The services, in the order in which they were read: the given one first.
    pub services: Vec<ServiceResult>,
}

/// A discovery service that was read.
#[derive(Clone, Debug)]
pub struct ServiceResult {
    /// Its address.
    pub addr: Address,
    /// The generation counter of its log page, or why it was not read.
    pub generation: Result<u64, Error>,
}

/// Services that are read at a time.
const CONCURRENT: usize = 8;

impl Host {
    /// Reads the discovery log page of the service at `addr`, and of all services to which it
    /// refers directly or indirectly. Each address is read once. Chains of referrals, services
    /// and entries are limited; the log has a warning if a limit is exceeded.
    ///
    /// # Errors
    /// The service at `addr` cannot be read. Errors of other services are in the result.
    pub async fn discover_all(
        &self,
        addr: Address,
        options: &DiscoveryOptions,
    ) -> Result<DiscoveredServices, Error> {
        let mut graph = DiscoveryGraph::new(addr, Nqn::discovery());
        let mut services = Vec::new();
        let mut reads = JoinSet::new();
        loop {
            while reads.len() < CONCURRENT
                && let Some(step) = graph.poll()
            {
                // A service that is read once refers to others once.
                let DiscoveryStep::Follow(service) = step else {
                    continue;
                };
                let (host, options) = (self.clone(), options.clone());
                reads.spawn(async move { (service, read_once(&host, &service, &options).await) });
            }
            let Some(read) = reads.join_next().await else {
                break;
            };
            let (service, read) = read.map_err(MachineError::internal)?;
            let generation = match read {
                Err(error) if service.addr == addr => return Err(error),
                Err(error) => Err(error),
                Ok(discovery) => {
                    let referral = |entry: &_| referral(entry, &service, options);
                    graph.handle_log(&service.addr, discovery.entries, referral);
                    Ok(discovery.generation)
                }
            };
            services.push(ServiceResult {
                addr: service.addr,
                generation,
            });
            log_limits(addr, &mut graph);
        }
        Ok(DiscoveredServices {
            entries: graph.entries().copied().collect(),
            sources: graph
                .entries()
                .map(|entry| graph.source_of(entry).copied().unwrap_or(addr))
                .collect(),
            services,
        })
    }
}

/// The address of a referral in the log page of `service`, if it is to be followed.
pub(super) fn referral(
    entry: &DiscoveryEntry,
    service: &DiscoveryService<Address>,
    options: &DiscoveryOptions,
) -> Option<Address> {
    if !options.follows_referrals {
        return None;
    }
    match EntryTarget::of(entry, service.addr) {
        Ok(target) => Some(target.addr),
        Err(reason) => {
            // A watched service reports it with each change of its log page.
            tracing::debug!(addr = %service.addr, %reason, "referral not followed");
            None
        }
    }
}

/// Warns of each limit that was exceeded for the first time.
pub(super) fn log_limits(addr: Address, graph: &mut DiscoveryGraph<Address>) {
    while let Some(limit) = graph.take_limit() {
        tracing::warn!(%addr, "discovery incomplete: {limit}");
    }
}
