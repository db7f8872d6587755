//! Changes of the discovery log pages of a service and of all services that it refers to.
//!
//! [`DiscoveryWatch`] owns the graph of services. It starts and ends a task ([`Session`]) for each
//! service, and receives what the tasks read.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::time::Instant;

use nvmeof_initiator_core::discovery::{
    DiscoveryGraph, DiscoveryService, DiscoveryStep, EntryChange,
};
use nvmeof_rdma::Address;
use nvmeof_wire::Nqn;
use nvmeof_wire::log::DiscoveryEntry;
use tokio::sync::mpsc;
use tokio::task::AbortHandle;

use super::DiscoveryOptions;
use super::referrals::{log_limits, referral};
use super::session::{News, Report, Session};
use crate::error::{Error, UsageError};
use crate::host::Host;

/// A change of what discovery services report.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum DiscoveryChange {
    /// A new entry.
    Added(Box<DiscoveryEntry>),
    /// An entry that no service reports any more. The entries of a lost service stay.
    Removed(Box<DiscoveryEntry>),
    /// An entry of the same subsystem, address and provider type has other fields.
    Changed(Box<DiscoveryEntry>),
    /// A service cannot be read: its connection is lost, or cannot be established.
    ServiceLost {
        /// Its address.
        addr: Address,
        /// The reason.
        error: Error,
    },
    /// A lost service was read again. Changes that were missed follow.
    ServiceRecovered {
        /// Its address.
        addr: Address,
    },
    /// A lost service is not connected again: it refuses this host, or `ctrl_loss` has expired.
    ServiceGivenUp {
        /// Its address.
        addr: Address,
        /// The last error.
        error: Error,
    },
}

/// Follows the discovery log pages of a service and of those that it refers to: see
/// [`Host::watch_discovery`]. Its connections end when it is dropped.
pub struct DiscoveryWatch {
    host: Host,
    options: DiscoveryOptions,
    graph: DiscoveryGraph<Address>,
    followed: BTreeMap<Address, Followed>,
    /// Number of sessions so far. A session that was ended may have sent a report.
    sessions: u64,
    sender: mpsc::Sender<Report>,
    reports: mpsc::Receiver<Report>,
    /// Not returned yet.
    changes: VecDeque<DiscoveryChange>,
}

/// A service that is followed.
struct Followed {
    session: u64,
    task: AbortHandle,
    service: DiscoveryService<Address>,
    is_lost: bool,
    is_given_up: bool,
}

impl Drop for Followed {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Reports that were not received yet. Sessions wait while there are as many: a caller that does
/// not ask for changes lets services be read less often.
const REPORTS: usize = 4;

impl Host {
    /// Watches the discovery log page of the service at `addr`, and those of all services to which
    /// it refers. The entries that exist are the first changes. Must be called inside a tokio
    /// runtime.
    ///
    /// # Errors
    /// The service at `addr` cannot be read. A service that is lost later is connected again.
    pub async fn watch_discovery(
        &self,
        addr: Address,
        options: DiscoveryOptions,
    ) -> Result<DiscoveryWatch, Error> {
        // The timer of the controller counts milliseconds.
        if options.keep_alive.as_millis() == 0 {
            let text = format!(
                "the discovery service at {addr} is to be watched without a keep-alive time-out, \
                 so neither side would detect the loss of the other; set one"
            );
            return Err(UsageError::Other(text).into());
        }
        let (sender, reports) = mpsc::channel(REPORTS);
        let mut watch = DiscoveryWatch {
            host: self.clone(),
            options,
            graph: DiscoveryGraph::new(addr, Nqn::discovery()),
            followed: BTreeMap::new(),
            sessions: 0,
            sender,
            reports,
            changes: VecDeque::new(),
        };
        watch.follow(addr);
        match watch.reports.recv().await {
            Some(Report {
                news: News::Lost(error) | News::GivenUp(error),
                ..
            }) => Err(error),
            Some(report) => {
                watch.handle(report);
                Ok(watch)
            }
            None => Err(UsageError::Other("the runtime has ended".to_owned()).into()),
        }
    }
}

impl DiscoveryWatch {
    /// Waits for the next change. `None` when all services are given up. If the future is dropped,
    /// no change is lost.
    pub async fn next(&mut self) -> Option<DiscoveryChange> {
        loop {
            if let Some(change) = self.changes.pop_front() {
                return Some(change);
            }
            if self.followed.values().all(|service| service.is_given_up) {
                return None;
            }
            let report = self.reports.recv().await?;
            self.handle(report);
        }
    }

    /// The present entries of all services, without duplicates. Those of a subsystem are
    /// consecutive.
    pub fn entries(&self) -> impl Iterator<Item = &DiscoveryEntry> {
        self.graph.entries()
    }

    /// The addresses of the services that are followed.
    pub fn services(&self) -> impl Iterator<Item = Address> {
        self.followed.keys().copied()
    }

    fn handle(&mut self, report: Report) {
        let Report {
            session,
            addr,
            news,
        } = report;
        let followed = self.followed.get_mut(&addr);
        // A session that was ended is not followed any more.
        let Some(followed) = followed.filter(|followed| followed.session == session) else {
            return;
        };
        match news {
            News::Read(discovery) => {
                if std::mem::take(&mut followed.is_lost) {
                    tracing::info!(%addr, "discovery service recovered");
                    self.changes
                        .push_back(DiscoveryChange::ServiceRecovered { addr });
                }
                let service = followed.service;
                let referral = |entry: &_| referral(entry, &service, &self.options);
                let changes = self.graph.handle_log(&addr, discovery.entries, referral);
                self.changes.extend(changes.into_iter().map(Into::into));
                self.follow(addr);
            }
            News::Lost(error) if followed.is_lost => {
                tracing::debug!(%addr, %error, "discovery service not connected");
            }
            News::Lost(error) => {
                followed.is_lost = true;
                let cause = error.cause();
                tracing::warn!(%addr, cause, "discovery service lost; reconnecting");
                self.changes
                    .push_back(DiscoveryChange::ServiceLost { addr, error });
            }
            News::GivenUp(error) => {
                followed.is_given_up = true;
                let cause = error.cause();
                tracing::error!(%addr, cause, "discovery service given up; not reconnecting");
                self.changes
                    .push_back(DiscoveryChange::ServiceGivenUp { addr, error });
            }
        }
    }

    /// Starts and ends sessions after the log page of the service at `addr` was read.
    fn follow(&mut self, addr: Address) {
        while let Some(step) = self.graph.poll() {
            match step {
                DiscoveryStep::Leave(addr) => {
                    self.followed.remove(&addr);
                }
                DiscoveryStep::Follow(service) => {
                    self.sessions += 1;
                    let session = Session {
                        number: self.sessions,
                        host: self.host.clone(),
                        options: self.options.clone(),
                        service,
                        reports: self.sender.clone(),
                        start: Instant::now(),
                    };
                    let followed = Followed {
                        session: self.sessions,
                        task: tokio::spawn(session.run()).abort_handle(),
                        service,
                        is_lost: false,
                        is_given_up: false,
                    };
                    self.followed.insert(service.addr, followed);
                }
            }
        }
        log_limits(addr, &mut self.graph);
    }
}

impl fmt::Debug for DiscoveryWatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DiscoveryWatch")
            .field("services", &self.followed.keys())
            .finish_non_exhaustive()
    }
}

impl From<EntryChange> for DiscoveryChange {
    fn from(change: EntryChange) -> Self {
        match change {
            EntryChange::Added(entry) => Self::Added(entry),
            EntryChange::Removed(entry) => Self::Removed(entry),
            EntryChange::Changed(entry) => Self::Changed(entry),
        }
    }
}
