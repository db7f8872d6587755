//! Discovery, and connecting a host to a controller.

use std::time::{Duration, Instant};

use nvmeof_initiator_core::DiscoveryReader;
use nvmeof_rdma::Address;
use nvmeof_wire::Nqn;
use nvmeof_wire::log::DiscoveryEntry;

use crate::controller::Controller;
use crate::drive::Shared;
use crate::error::{Error, MachineError};
use crate::host::Host;
use crate::options::ConnectOptions;
use crate::polled::AdminQueue;

/// The discovery log page.
#[derive(Clone, Debug)]
pub struct Discovery {
    /// Generation counter: changes with the log page.
    pub generation: u64,
    /// Entries: subsystems and their addresses.
    pub entries: Vec<DiscoveryEntry>,
}

impl Host {
    /// Reads the discovery log page of the discovery controller at `addr`.
    ///
    /// # Errors
    /// The connection fails or is refused, or a response is invalid.
    pub async fn discover(&self, addr: Address) -> Result<Discovery, Error> {
        let mut options = ConnectOptions::new(addr, Nqn::discovery());
        options.io_queues = 0;
        // The connection lasts for a few commands.
        options.keep_alive = Duration::ZERO;
        let controller = self.connect(options).await?;
        let mut reader = DiscoveryReader::new();
        while let Some(command) = reader.poll_command() {
            let wrong = |error| Error::setup(addr, 0, error);
            match controller.admin_read(command).await {
                Ok(data) => reader.handle_data(&data).map_err(wrong)?,
                Err(Error::Command(failed))
                    if reader.handle_failure(failed.status).map_err(wrong)? => {}
                Err(error) => return Err(error),
            }
        }
        controller.disconnect().await;
        Ok(Discovery {
            generation: reader.generation(),
            entries: reader.entries().to_vec(),
        })
    }

    /// Connects to a subsystem: initializes a controller and connects its I/O queues. Must
    /// be called inside a tokio runtime, which drives the queues. When the runtime ends, the
    /// queues are closed, and their calls fail.
    ///
    /// # Errors
    /// The connection fails or is refused; the message has the remedy.
    pub async fn connect(&self, options: ConnectOptions) -> Result<Controller, Error> {
        let start = Instant::now();
        let config = options.admin_config(&self.config().identity);
        let (host, addr) = (self.clone(), options.addr);
        let route = tokio::task::spawn_blocking(move || host.config().route(addr));
        let route = route.await.map_err(MachineError::internal)??;
        let admin = AdminQueue::connect(route.provider()?, addr, config, Duration::ZERO)?;
        let admin = Shared::start(admin, start, Duration::ZERO)?;
        Controller::set_up(self.clone(), options, &route, admin, start).await
    }
}
