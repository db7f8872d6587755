//! Discovery: the log page of one service, those of all services that it refers to, their changes,
//! and connecting to all of their subsystems.
//!
//! ```no_run
//! use nvmeof_initiator::discovery::{DiscoveryChange, DiscoveryOptions, EntryTarget};
//! use nvmeof_initiator::{Host, HostConfig};
//!
//! # async fn follow() -> Result<(), Box<dyn std::error::Error>> {
//! let host = Host::new(HostConfig::of_this_machine()?)?;
//! let service = "192.0.2.1:4420".parse()?;
//! let options = DiscoveryOptions::default();
//! let mut watch = host.watch_discovery(service, options).await?;
//! while let Some(change) = watch.next().await {
//!     if let DiscoveryChange::Added(entry) = change {
//!         let target = EntryTarget::of(&entry, service)?;
//!         println!("{} at {}", target.subnqn, target.addr);
//!     }
//! }
//! # Ok(())
//! # }
//! ```
//!
//! [`nvmeof_initiator_core::discovery`] decides what to read and when. This module does the I/O.

mod address;
mod connect_all;
mod referrals;
mod session;
mod watch;

use std::sync::Arc;
use std::time::Duration;

use nvmeof_initiator_core::DiscoveryReader;
use nvmeof_initiator_core::dhchap::HostKeys;
use nvmeof_initiator_core::discovery::{DiscoveryService, MAX_ENTRIES};
use nvmeof_initiator_core::multipath::ReconnectOptions;
use nvmeof_rdma::Address;
use nvmeof_wire::Nqn;
use nvmeof_wire::identify::ControllerType;
use nvmeof_wire::log::DiscoveryEntry;

pub use address::{EntryTarget, SkipReason};
pub use connect_all::{
    ConnectAllOptions, ConnectedSubsystem, ConnectedSubsystems, EntryOutcome, SubsystemEntry,
};
pub use referrals::{DiscoveredServices, ServiceResult};
pub use watch::{DiscoveryChange, DiscoveryWatch};

use crate::controller::Controller;
use crate::error::{Awaited, Error, TimedOut, UsageError};
use crate::host::Host;
use crate::options::ConnectOptions;

/// The discovery log page.
#[derive(Clone, Debug)]
pub struct Discovery {
    /// Generation counter: changes with the log page.
    pub generation: u64,
    /// Entries: subsystems and their addresses.
    pub entries: Vec<DiscoveryEntry>,
}

/// Options of discovery over several services.
#[derive(Clone, Debug)]
pub struct DiscoveryOptions {
    /// Whether to follow referrals to other discovery services.
    pub follows_referrals: bool,
    /// Time-out of commands. When it expires, the connection is closed.
    pub command_timeout: Duration,
    /// Time-out of connecting.
    pub connect_timeout: Duration,
    /// Keep-alive time-out of a service that is watched. Zero is refused: neither side would
    /// detect the loss of the other. A service that refuses the time-out is read at intervals.
    pub keep_alive: Duration,
    /// When a watched service that was lost is connected again, and when it is given up.
    pub reconnect: ReconnectOptions,
    /// Time between two reads of a watched service that does not report changes, or refuses the
    /// keep-alive time-out.
    pub interval: Duration,
    /// Keys for in-band authentication (DH-HMAC-CHAP) by all services. With a key of the
    /// controller, only services that prove it are read.
    pub keys: Option<Arc<HostKeys>>,
}

impl Default for DiscoveryOptions {
    /// Referrals are followed. Command time-out 30 s, connect time-out 10 s, keep-alive time-out
    /// 30 s as in nvme-cli. Lost services are never given up. Services that do not report changes
    /// are read every 60 s.
    fn default() -> Self {
        Self {
            follows_referrals: true,
            command_timeout: Duration::from_secs(30),
            connect_timeout: Duration::from_secs(10),
            keep_alive: Duration::from_secs(30),
            reconnect: ReconnectOptions {
                ctrl_loss: None,
                ..ReconnectOptions::default()
            },
            interval: Duration::from_secs(60),
            keys: None,
        }
    }
}

impl Host {
    /// Reads the discovery log page of the discovery controller at `addr`, with the defaults.
    ///
    /// # Errors
    /// As [`discover_with`](Self::discover_with).
    pub async fn discover(&self, addr: Address) -> Result<Discovery, Error> {
        self.discover_with(addr, &DiscoveryOptions::default()).await
    }

    /// Reads the discovery log page of the discovery controller at `addr`. Referrals are not
    /// followed: [`discover_all`](Self::discover_all).
    ///
    /// # Errors
    /// The connection fails or is refused, or a response is invalid.
    pub async fn discover_with(
        &self,
        addr: Address,
        options: &DiscoveryOptions,
    ) -> Result<Discovery, Error> {
        let service = DiscoveryService {
            addr,
            subnqn: Nqn::discovery(),
            max_entries: MAX_ENTRIES,
        };
        read_once(self, &service, options).await
    }
}

impl DiscoveryOptions {
    /// Options of a connection to `service` with this keep-alive time-out.
    fn connection(
        &self,
        service: &DiscoveryService<Address>,
        keep_alive: Duration,
    ) -> ConnectOptions {
        ConnectOptions {
            io_queues: 0,
            keep_alive,
            command_timeout: self.command_timeout,
            connect_timeout: self.connect_timeout,
            keys: self.keys.clone(),
            ..ConnectOptions::new(service.addr, service.subnqn)
        }
    }
}

/// Reads the log page of `service` over a connection of its own.
async fn read_once(
    host: &Host,
    service: &DiscoveryService<Address>,
    options: &DiscoveryOptions,
) -> Result<Discovery, Error> {
    // The connection lasts for a few commands.
    let connection = options.connection(service, Duration::ZERO);
    let controller = host.connect(connection).await?;
    let discovery = read(&controller, service).await;
    controller.disconnect().await;
    discovery
}

/// Time for reading one log page, of up to 16 MiB. A service that completes each command late does
/// not hold up the others.
const READ_TIME: Duration = Duration::from_secs(60);

/// Reads the log page of `service`, until it does not change while it is read.
async fn read(
    controller: &Controller,
    service: &DiscoveryService<Address>,
) -> Result<Discovery, Error> {
    check_type(controller, service)?;
    let read = tokio::time::timeout(READ_TIME, read_pieces(controller, service));
    read.await.unwrap_or_else(|_| {
        Err(Error::TimedOut(Arc::new(TimedOut {
            limit: READ_TIME,
            waiting_for: Awaited::Completion("Get Log Page"),
            may_have_executed: false,
        })))
    })
}

async fn read_pieces(
    controller: &Controller,
    service: &DiscoveryService<Address>,
) -> Result<Discovery, Error> {
    let wrong = |error| Error::setup(service.addr, 0, error);
    let mut reader = DiscoveryReader::with_limit(service.max_entries);
    while let Some(command) = reader.poll_command() {
        match controller.admin_read(command).await {
            Ok(data) => reader.handle_data(&data).map_err(wrong)?,
            Err(Error::Command(failed))
                if reader.handle_failure(failed.status).map_err(wrong)? => {}
            Err(error) => return Err(error),
        }
    }
    Ok(Discovery {
        generation: reader.generation(),
        entries: reader.entries().to_vec(),
    })
}

/// A referral may name a subsystem that is not a discovery subsystem. Controllers before NVMe 1.4
/// do not report their type.
fn check_type(controller: &Controller, service: &DiscoveryService<Address>) -> Result<(), Error> {
    match controller.identify().cntrltype {
        ControllerType::DISCOVERY | ControllerType::NOT_REPORTED => Ok(()),
        _ if service.subnqn.is_discovery() => Ok(()),
        ControllerType(other) => {
            let text = format!(
                "{} at {} is not a discovery subsystem (CNTRLTYPE is {other}); correct the \
                 referral",
                service.subnqn, service.addr
            );
            Err(UsageError::Other(text).into())
        }
    }
}
